"""The committer: one sync for everybody's records, failures, rotation, checkpoints under load."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.engine import HOT_RECORD_BYTES
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import (
    DurastreamError,
    OutcomeUnknownError,
    StreamStoppedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.model.namespace import CreateCommand
from durastreamd.protocol.outcomes import Appended, Created, Duplicate
from durastreamd.storage.disk import RealDisk
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import DeleteCommand, Ticket
from tests.support.held_writer import NOW, TEXT, Bench, append, cancelled, content, held, serving
from tests.support.patience import PATIENCE_S

Clock = MockClock
ROTATING = EngineOptions(
    journal_bytes_max=2048,
    segment_bytes_max=300,
    hot_bytes_max=500 + 20 * HOT_RECORD_BYTES,
    state_every_bytes=400,
    syncs_max=4,
    slice_streams=2,
)


async def test_records_of_many_streams_share_one_sync(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        for number in range(40):
            await bench.make(f"/{number}")
        records, syncs = bench.streams.committer.records, bench.disk.syncs
        tickets = [bench.streams.post(f"/{number}", append(b"x")) for number in range(40)]
        for ticket in tickets:
            assert isinstance(await ticket.outcome(), Appended)
        assert bench.streams.committer.records == records + 40
        assert bench.disk.syncs == syncs + 1


async def test_nothing_is_applied_before_its_commit(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        ticket = bench.streams.post("/s", append(b"x"))
        created = bench.streams.post("/t", CreateCommand("/t", content_type=TEXT))
        await wait_all_tasks_blocked()
        assert bench.stream("/s").tail == 0
        assert "/t" not in bench.engine.namespace.by_key
        assert not ticket.settled
        assert not created.settled
        await bench.commit_one()
        assert bench.content("/s") == b"x"
        assert isinstance(await created.outcome(), Created)


async def test_full_disk_answers_all_and_leaves_nothing_behind(autojump_clock: Clock) -> None:
    async with serving("/s", "/t") as bench:
        await bench.add("/s", b"before", ("p", 0, 0))
        await bench.hold()
        tickets = [bench.streams.post("/s", append(b"lost", ("p", 0, 1)))]
        tickets += [bench.streams.post("/t", append(b"lost")) for _ in range(3)]
        tickets += [bench.streams.post("/u", CreateCommand("/u", content_type=TEXT))]
        bench.disk.full, bench.disk.room = "journal", 150  # a frame and a half
        await wait_all_tasks_blocked()
        bench.writer.release()
        for ticket in tickets:
            with pytest.raises(WriteFailedError):
                await ticket.outcome()
        found = bench.after_kill()
        assert content(found, "/s") == b"before"
        assert content(found, "/t") == b""
        assert "/u" not in found.namespace.by_key
        bench.disk.full = ""
        await bench.add("/s", b"+after", ("p", 0, 1))
        await bench.make("/u")
    found = bench.after_kill()
    assert content(found, "/s") == b"before+after"
    assert content(found, "/t") == b""


async def test_failure_of_one_batch_leaves_the_next_alone(autojump_clock: Clock) -> None:
    async with held("/s", "/t") as bench:
        lost = bench.streams.post("/s", append(b"lost"))
        await wait_all_tasks_blocked()
        kept = bench.streams.post("/t", append(b"kept"))
        bench.disk.full = "journal"
        await bench.commit_one()
        bench.disk.full = ""
        await bench.commit_one()
        with pytest.raises(WriteFailedError):
            await lost.outcome()
        assert isinstance(await kept.outcome(), Appended)
    assert content(bench.after_kill(), "/t") == b"kept"
    assert content(bench.after_kill(), "/s") == b""


async def test_rotation_that_finds_no_room_fails_those_who_wait(autojump_clock: Clock) -> None:
    bench = Bench(EngineOptions(journal_bytes_max=600))
    async with bench.running():
        await bench.make("/s")
        bench.disk.no_new_files = True
        refused = 0
        for _ in range(20):
            try:
                await bench.add("/s", b"x" * 50)
            except WriteFailedError:
                refused += 1
        assert 0 < refused < 20
        bench.disk.no_new_files = False
        await bench.add("/s", b"y")
        stored = bench.stream("/s").tail
        assert stored == (20 - refused) * 50 + 1
    assert bench.after_kill().namespace.by_key["/s"].tail == stored


async def load(bench: Bench, callers: int, each: int) -> list[int]:
    """Append from many callers at once; return the offsets acknowledged."""
    acked: list[int] = []

    async def call(number: int) -> None:
        for seq in range(each):
            body = b"<%03d.%03d>" % (number, seq)
            outcome = await bench.add(f"/{number % 3}", body, (f"p{number}", 0, seq))
            assert isinstance(outcome, Appended)
            acked.append(outcome.tail)
            if seq % 7 == 0:
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for number in range(callers):
            nursery.start_soon(call, number)
    return acked


async def test_checkpoints_while_appends_go_on_lose_nothing(autojump_clock: Clock) -> None:
    bench = Bench(ROTATING)
    async with bench.running():
        for number in range(3):
            await bench.make(f"/{number}")
        first = bench.engine.journal.number
        await load(bench, callers=12, each=30)
        assert bench.engine.journal.number > first + 3
        killed = bench.after_kill()
    stopped = bench.after_kill()
    for engine in (killed, stopped):
        for number in range(3):
            data = content(engine, f"/{number}")
            messages = [part + b">" for part in data.split(b">")[:-1]]
            for caller in range(number, 12, 3):
                mine = [one for one in messages if one.startswith(b"<%03d." % caller)]
                assert mine == [b"<%03d.%03d>" % (caller, seq) for seq in range(30)]
    assert len(bench.disk.names("journal")) == 1


async def test_checkpoint_waits_for_the_batch_under_way(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        await trio.sleep(5)
        await bench.hold()
        bench.streams.post("/s", append(b"x"))
        await wait_all_tasks_blocked()
        with trio.fail_after(20):  # the next round of the flusher's timer would come later
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.streams.checkpoint)
                await wait_all_tasks_blocked()
                bench.writer.release()
    assert content(bench.after_kill(), "/s") == b"x"


async def test_failed_flush_is_tried_again_and_loses_nothing(autojump_clock: Clock) -> None:
    bench = Bench(ROTATING)
    async with bench.running():
        for number in range(3):
            await bench.make(f"/{number}")
        bench.disk.full, bench.disk.room = "streams", 100
        await load(bench, callers=3, each=12)
        assert bench.engine.hot_bytes > 0
        bench.disk.full = ""
        with trio.fail_after(10):  # the flusher's timer would come later
            while bench.engine.hot or bench.streams._changed():
                await trio.sleep(0.5)
    engine = bench.after_kill()
    for number in range(3):
        expected = b"".join(b"<%03d.%03d>" % (number, seq) for seq in range(12))
        assert content(engine, f"/{number}") == expected


async def test_streams_stop_after_a_failed_checkpoint(autojump_clock: Clock) -> None:
    bench = Bench()
    with trio.fail_after(PATIENCE_S):
        async with bench.running():
            await bench.make("/s")
            await bench.streams.checkpoint()
            await bench.add("/s", b"x")
            bench.disk.open_error = "catalog"
            await bench.streams.checkpoint()
            bench.disk.open_error = ""
    assert content(bench.after_kill(), "/s") == b"x"


async def test_service_resumes_after_a_disk_without_room_for_names(autojump_clock: Clock) -> None:
    bench = Bench(EngineOptions(hot_bytes_max=10))
    async with bench.running():
        await bench.make("/s")
        bench.disk.no_new_files = True  # as when a file system is out of inodes
        with pytest.raises(DurastreamError):
            for _ in range(10):
                await bench.add("/s", b"x" * 10)
        await trio.sleep(100)
        bench.disk.no_new_files = False
        await trio.sleep(600)
        try:
            await bench.add("/s", b"y")
        finally:
            bench.engine.hot_bytes = 0


async def test_answer_after_a_failed_sync_does_not_claim_that_nothing_is_there(
    autojump_clock: Clock,
) -> None:
    bench = Bench()
    tickets: list[Ticket] = []
    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with bench.streams.running():
            await bench.make("/s")
            await bench.hold()
            bench.disk.syncs_left = 0
            tickets.append(bench.streams.post("/s", append(b"x")))
            await wait_all_tasks_blocked()
            bench.writer.release()
            await trio.sleep_forever()
    assert content(bench.after_kill(), "/s") == b"x"  # it was written, only not synced
    with pytest.raises(OutcomeUnknownError):
        await tickets[0].outcome()


async def test_who_was_not_handed_over_is_refused_for_certain(autojump_clock: Clock) -> None:
    bench = Bench()
    flying: list[Ticket] = []
    waiting: list[Ticket] = []
    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with bench.streams.running():
            for key in ("/s", "/t", "/u"):
                await bench.make(key)
            await bench.hold()
            flying.append(bench.streams.post("/s", append(b"x")))
            flying.append(bench.streams.post("/s", append(b"y")))
            await wait_all_tasks_blocked()
            waiting.append(bench.streams.post("/s", append(b"z")))  # in the mailbox
            waiting.append(bench.streams.post("/t", append(b"z")))  # a draft before the committer
            waiting.append(bench.streams.post("/u", DeleteCommand()))  # a record before it
            waiting.append(bench.streams.post("/u", append(b"z")))
            await wait_all_tasks_blocked()
            bench.disk.syncs_left = 0
            bench.writer.release()
            await trio.sleep_forever()
    after = bench.after_kill()
    assert [content(after, key) for key in ("/s", "/t", "/u")] == [b"xy", b"", b""]
    for ticket in flying:
        with pytest.raises(OutcomeUnknownError):
            await ticket.outcome()
    for ticket in waiting:
        with pytest.raises(StreamStoppedError):
            await ticket.outcome()


async def test_report_that_comes_after_the_end_is_harmless(autojump_clock: Clock) -> None:
    async with cancelled("/s") as bench:
        bench.streams.post("/s", append(b"x"))
        await wait_all_tasks_blocked()
    errand = bench.writer.held.popleft()  # as the in-line writer does, now and then
    errand.work()
    errand.report(None)


class _SyncsFail(RealDisk):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.syncs_left = -1

    def sync(self, handle: int) -> None:
        if not self.syncs_left:
            message = "fdatasync failed: Input/output error"
            raise SyncFailedError(message)
        self.syncs_left -= 1
        super().sync(handle)


async def test_failed_sync_in_the_thread_ends_the_streams(tmp_path: Path) -> None:
    disk = _SyncsFail(str(tmp_path))
    engine, _ = open_engine(disk, EngineOptions(), lambda: bytes(16), NOW, create=True)
    streams = Streams(engine, lambda: NOW)
    tickets: list[Ticket] = []
    with trio.fail_after(PATIENCE_S), pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with streams.running():
            await streams.ask("/s", CreateCommand("/s", content_type=TEXT))
            disk.syncs_left = 0
            tickets += [streams.post("/s", append(b"x")) for _ in range(300)]
            await trio.sleep_forever()
    with trio.fail_after(PATIENCE_S):
        for ticket in tickets:
            with pytest.raises(DurastreamError):
                await ticket.outcome()
    engine.release()


async def test_threads_with_rotation_by_size_keep_everything(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    engine, _ = open_engine(disk, ROTATING, lambda: bytes(16), NOW, create=True)
    streams = Streams(engine, lambda: NOW, StreamLimits(retry_s=0.01))

    async def call(number: int) -> None:
        for seq in range(20):
            while True:
                try:
                    found = await streams.ask("/s", append(b"%d," % number, (f"{number}", 0, seq)))
                except DurastreamError:
                    await trio.sleep(0.001)  # hot bytes are being flushed
                    continue
                assert isinstance(found, Appended | Duplicate)
                break

    with trio.fail_after(PATIENCE_S):
        async with streams.running():
            await streams.ask("/s", CreateCommand("/s", content_type=TEXT))
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(call, number)
    engine.release()
    engine, _ = open_engine(disk, ROTATING, bytes, NOW)
    data = content(engine, "/s")
    assert [data.count(b"%d," % number) for number in range(10)] == [20] * 10
    engine.release()


async def test_a_checkpoint_asked_for_while_a_mark_is_synced_is_not_forgotten(
    autojump_clock: Clock,
) -> None:
    """Nothing follows a mark that would remind the committer: the end of a server waited for it."""
    async with held("/a") as bench:
        bench.streams.committer.mark(bench.clock())
        async with trio.open_nursery() as nursery:
            await wait_all_tasks_blocked()
            nursery.start_soon(bench.streams.checkpoint)
            await wait_all_tasks_blocked()
            bench.writer.release()
            nursery.cancel_scope.deadline = trio.current_time() + 5
        assert not nursery.cancel_scope.cancelled_caught
        assert not bench.streams.committer.rotation_wanted
