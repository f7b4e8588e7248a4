"""The actor: batches, the order of answers, and that nobody waits for ever."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import (
    DurastreamError,
    OverloadedError,
    StreamStoppedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.model.draft import Draft
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Append
from durastreamd.protocol import Data
from durastreamd.protocol.outcomes import (
    AlreadyClosed,
    Appended,
    Created,
    Deleted,
    Duplicate,
    Exists,
    NotFound,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
)
from durastreamd.storage.disk import RealDisk
from durastreamd.streams import actor
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import Command, DeleteCommand, Ticket
from tests.support.held_writer import NOW, TEXT, Bench, append, cancelled, held, serving
from tests.support.patience import PATIENCE_S

Clock = MockClock


def tails(outcomes: list[object]) -> list[int]:
    return [outcome.tail for outcome in outcomes if isinstance(outcome, Appended)]


async def outcomes_of(tickets: list[Ticket]) -> list[object]:
    """Return outcomes and errors, in the order of the tickets."""
    found: list[object] = []
    with trio.fail_after(PATIENCE_S):
        for ticket in tickets:
            try:
                found.append(await ticket.outcome())
            except DurastreamError as exc:
                found.append(exc)
    return found


# --- batches ---


async def test_concurrent_appends_are_one_record_and_one_sync(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        records, syncs = bench.streams.committer.records, bench.disk.syncs
        outcomes: list[object] = []

        async def call(number: int) -> None:
            outcomes.append(await bench.streams.ask("/s", append(b"%03d" % number)))

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(call, number)
        assert bench.streams.committer.records == records + 1
        assert bench.disk.syncs == syncs + 1
        assert sorted(tails(outcomes)) == [3 * (number + 1) for number in range(60)]


async def test_appends_join_an_open_draft(autojump_clock: Clock) -> None:
    async with held("/s", "/other") as bench:
        bench.streams.post("/other", append(b"-"))
        await wait_all_tasks_blocked()
        tickets = []
        for body in (b"a", b"b", b"c"):  # the committer is busy, so the draft stays open
            tickets.append(bench.streams.post("/s", append(body)))
            await wait_all_tasks_blocked()
        records = bench.streams.committer.records
        bench.writer.release()
        assert tails(await outcomes_of(tickets)) == [1, 2, 3]
        assert bench.streams.committer.records == records + 2
        assert bench.content("/s") == b"abc"


@pytest.mark.parametrize("waits", [False, True], ids=["joining", "waiting"])
async def test_a_draft_is_no_longer_than_what_one_turn_may_copy(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    monkeypatch.setattr(actor, "DRAFT_BYTES_MAX", 10)
    taken: list[int] = []
    in_parts = Draft.in_parts

    def noted(draft: Draft, now_ms: int) -> tuple[Append, list[Data]]:
        taken.append(draft.size)
        return in_parts(draft, now_ms)

    monkeypatch.setattr(Draft, "in_parts", noted)
    async with held("/s", "/other") as bench:
        bench.streams.post("/s" if waits else "/other", append(b"-"))
        await wait_all_tasks_blocked()
        bodies = [b"aaaa", b"bbbb", b"cccc", b"d" * 30, b"e", b"f"]
        tickets = [bench.streams.post("/s", append(body)) for body in bodies]
        await wait_all_tasks_blocked()
        bench.writer.release()
        assert len(tails(await outcomes_of(tickets))) == len(bodies)
        assert bench.content("/s") == b"-" * waits + b"".join(bodies)
        # As many together as fit; what is longer than a draft is one by itself.
        assert taken == [1, 8, 4, 30, 2]


async def test_tickets_that_come_in_flight_are_the_next_batch(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        first = bench.streams.post("/s", append(b"1"))
        await wait_all_tasks_blocked()
        later = [bench.streams.post("/s", append(b"2")) for _ in range(5)]
        await wait_all_tasks_blocked()
        assert bench.stream("/s").tail == 0
        await bench.commit_one()
        assert first.settled
        assert not any(ticket.settled for ticket in later)
        assert bench.stream("/s").tail == 1
        await bench.commit_one()
        assert tails(await outcomes_of(later)) == [2, 3, 4, 5, 6]
        assert not bench.writer.held
        bench.writer.holding = False


async def test_answers_come_in_the_order_of_the_questions(autojump_clock: Clock) -> None:
    answered: list[int] = []
    async with held("/s") as bench, trio.open_nursery() as nursery:
        bench.streams.post("/s", append(b"-"))
        await wait_all_tasks_blocked()

        async def wait(number: int, ticket: Ticket) -> None:
            await ticket.outcome()
            answered.append(number)

        commands: list[Command] = [append(b"x"), append(b"y"), DeleteCommand(), append(b"z")]
        commands += [CreateCommand("/s", content_type=TEXT), append(b"again")]
        for number, command in enumerate(commands):
            nursery.start_soon(wait, number, bench.streams.post("/s", command))
            await wait_all_tasks_blocked()
        bench.writer.release()
        with trio.fail_after(PATIENCE_S):
            while len(answered) < len(commands):
                await wait_all_tasks_blocked()
        # Those of one batch become ready at once; trio wakes them in any order.
        assert set(answered[:2]) == {0, 1}
        assert answered[2:] == [2, 3, 4, 5]
        assert bench.content("/s") == b"again"


async def test_cancelled_caller_does_not_disturb_the_commit(autojump_clock: Clock) -> None:
    async with held("/s") as bench, trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                await bench.streams.ask("/s", append(b"gone"))

        nursery.start_soon(impatient)
        await wait_all_tasks_blocked()
        joined = bench.streams.post("/s", append(b"+stays"))
        scope.cancel()
        await wait_all_tasks_blocked()
        bench.writer.release()
        assert tails(await outcomes_of([joined])) == [10]
        assert bench.content("/s") == b"gone+stays"


# --- answers that wait ---


async def test_duplicate_in_the_same_draft_waits_for_its_original(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        tickets = [bench.streams.post("/s", append(b"x", ("p", 0, 0))) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert not any(ticket.settled for ticket in tickets)
        bench.writer.release()
        first, second = await outcomes_of(tickets)
        assert isinstance(first, Appended)
        assert isinstance(second, Duplicate)
        assert second.tail == 1
        assert bench.content("/s") == b"x"


async def test_duplicate_from_the_mailbox_waits_for_its_original(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        original = bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        await wait_all_tasks_blocked()
        retry = bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        await wait_all_tasks_blocked()
        assert not retry.settled
        await bench.commit_one()
        assert original.settled
        assert isinstance((await outcomes_of([retry]))[0], Duplicate)


@pytest.mark.parametrize("same_draft", [True, False])
async def test_duplicate_of_a_failed_original_is_no_duplicate(
    autojump_clock: Clock, *, same_draft: bool
) -> None:
    async with held("/s") as bench:
        original = bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        if not same_draft:
            await wait_all_tasks_blocked()
        retry = bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        await wait_all_tasks_blocked()
        bench.disk.full = "journal"
        await bench.commit_one()
        bench.disk.full = ""
        bench.writer.release()
        failed, second = await outcomes_of([original, retry])
        assert isinstance(failed, WriteFailedError)
        # Decided with the original it fails with it; decided after, it is the first of its kind.
        assert isinstance(second, WriteFailedError if same_draft else Appended)
        await bench.streams.ask("/s", append(b"x", ("p", 0, 0)))
        assert bench.content("/s") == b"x"


async def test_refusal_waits_for_what_it_was_refused_for(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        commands = [
            append(b"x", ("p", 1, 0)),
            append(b"y", ("p", 1, 5)),
            append(b"y", ("p", 0, 0)),
            append(None, closes=True),
            append(b"late"),
            append(None, closes=True),
        ]
        tickets = [bench.streams.post("/s", command) for command in commands]
        await wait_all_tasks_blocked()
        assert not any(ticket.settled for ticket in tickets)
        bench.disk.full = "journal"
        await bench.commit_one()
        assert all(isinstance(found, WriteFailedError) for found in await outcomes_of(tickets))
        bench.disk.full = ""
        bench.writer.release()
        kinds = [type(await bench.streams.ask("/s", command)) for command in commands]
        expected = [Appended, SequenceGap, StaleEpoch, Appended, StreamClosed, AlreadyClosed]
        assert kinds == expected


async def test_refusal_that_rests_on_committed_state_is_answered_at_once(
    autojump_clock: Clock,
) -> None:
    async with held("/s") as bench:
        ticket = bench.streams.post("/s", append(b"y", ("p", 0, 7)))
        missing = bench.streams.post("/none", append(b"y"))
        assert await outcomes_of([ticket, missing]) == [SequenceGap(0, 7), NotFound()]
        bench.writer.release()


# --- nobody waits for ever ---


@pytest.mark.parametrize("callers", [1, 64, 65, 300])
async def test_failed_write_answers_every_caller(autojump_clock: Clock, callers: int) -> None:
    async with held("/s") as bench:
        bench.disk.full = "journal"
        tickets = [bench.streams.post("/s", append(b"x")) for _ in range(callers)]
        await wait_all_tasks_blocked()
        tickets += [bench.streams.post("/s", append(b"y")) for _ in range(callers)]
        bench.writer.release()
        found = await outcomes_of(tickets)
        assert all(isinstance(outcome, WriteFailedError) for outcome in found)
        bench.disk.full = ""
        assert await bench.add("/s", b"z") == Appended(1, closed=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("callers", [1, 64, 65, 300])
async def test_failed_sync_ends_the_streams_and_answers_every_caller(
    autojump_clock: Clock, callers: int
) -> None:
    bench = Bench()
    tickets: list[Ticket] = []
    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with bench.running():
            await bench.make("/s")
            await bench.hold()
            bench.disk.syncs_left = 0
            tickets += [bench.streams.post("/s", append(b"x")) for _ in range(callers)]
            await wait_all_tasks_blocked()
            tickets += [bench.streams.post("/s", append(b"y")) for _ in range(callers)]
            tickets.append(bench.streams.post("/s", DeleteCommand()))
            bench.writer.release()
            await trio.sleep_forever()
    assert all(isinstance(found, DurastreamError) for found in await outcomes_of(tickets))


@pytest.mark.parametrize("callers", [1, 64, 65, 300])
async def test_cancelled_streams_answer_every_caller(autojump_clock: Clock, callers: int) -> None:
    tickets: list[Ticket] = []
    async with cancelled("/s", "/t") as bench:
        tickets += [bench.streams.post("/s", append(b"x")) for _ in range(callers)]
        await wait_all_tasks_blocked()
        tickets += [bench.streams.post("/s", append(b"y")) for _ in range(callers)]
        tickets += [bench.streams.post("/t", append(b"z")) for _ in range(callers)]
    assert all(isinstance(found, DurastreamError) for found in await outcomes_of(tickets))
    assert bench.after_kill().namespace.by_key["/s"].tail == 0


async def test_full_mailbox_is_an_overload_and_loses_nothing(autojump_clock: Clock) -> None:
    bench = Bench(limits=StreamLimits(mailbox_max=8))
    async with bench.running():
        await bench.make("/s")
        await bench.hold()
        tickets = [bench.streams.post("/s", append(b"0"))]
        await wait_all_tasks_blocked()
        refused = 0
        for _ in range(20):
            try:
                tickets.append(bench.streams.post("/s", append(b"1")))
            except OverloadedError:
                refused += 1
        assert refused == 12  # eight wait; the task has not had a turn to take one yet
        bench.writer.release()
        assert tails(await outcomes_of(tickets)) == list(range(1, 10))
        assert bench.content("/s") == b"0" + b"1" * 8
        await bench.add("/s", b"2")


# --- names ---


async def test_name_is_created_deleted_and_created_again(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        commands: list[Command] = [append(b"old", ("p", 3, 0)), DeleteCommand(), append(b"lost")]
        commands += [CreateCommand("/s", content_type=TEXT), append(b"new", ("p", 0, 0))]
        commands += [CreateCommand("/s", content_type=TEXT)]
        tickets = [bench.streams.post("/s", command) for command in commands]
        bench.writer.release()
        kinds = [type(found) for found in await outcomes_of(tickets)]
        assert kinds == [Appended, Deleted, NotFound, Created, Appended, Exists]
        assert bench.content("/s") == b"new"
    engine = bench.after_kill()
    assert engine.namespace.by_key["/s"].tail == 3


async def test_threads_serve_many_callers_on_a_real_disk(tmp_path: Path) -> None:
    # All of it fits into memory: nobody is refused, and full journal files bring it to the disk.
    options = EngineOptions(journal_bytes_max=4096, segment_bytes_max=512, hot_bytes_max=2**16)
    engine, _ = open_engine(RealDisk(str(tmp_path)), options, lambda: bytes(16), NOW, create=True)
    streams = Streams(engine, lambda: NOW)
    with trio.fail_after(PATIENCE_S):
        async with streams.running():
            for key in ("/a", "/b"):
                await streams.ask(key, CreateCommand(key, content_type=TEXT))

            async def call(number: int) -> None:
                for seq in range(10):
                    key = ("/a", "/b")[(number + seq) % 2]
                    body = b"%02d:%02d " % (number, seq)
                    found = await streams.ask(key, append(body, (f"p{number}{key}", 0, seq // 2)))
                    assert isinstance(found, Appended)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(call, number)
            assert streams.committer.batches < streams.committer.records < 200
    engine.release()
    engine, report = open_engine(RealDisk(str(tmp_path)), options, bytes, NOW)
    assert report.replayed == 0  # stopping took a checkpoint
    assert engine.namespace.by_key["/a"].tail + engine.namespace.by_key["/b"].tail == 200 * 6
    engine.release()


async def test_threads_cancelled_in_the_middle_answer_everyone(tmp_path: Path) -> None:
    engine, _ = open_engine(
        RealDisk(str(tmp_path)), EngineOptions(), lambda: bytes(16), NOW, create=True
    )
    streams = Streams(engine, lambda: NOW)
    tickets: list[Ticket] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.run)
        await wait_all_tasks_blocked()
        await streams.ask("/s", CreateCommand("/s", content_type=TEXT))
        tickets += [streams.post("/s", append(b"x")) for _ in range(100)]
        await wait_all_tasks_blocked()
        tickets += [streams.post("/s", append(b"y")) for _ in range(100)]
        nursery.cancel_scope.cancel()
    found = await outcomes_of(tickets)
    engine.release()
    engine, _ = open_engine(RealDisk(str(tmp_path)), EngineOptions(), bytes, NOW)
    stored = engine.namespace.by_key["/s"].tail
    assert stored == len(tails(found)), "acknowledged is what is there: the thread ended in order"
    assert all(
        isinstance(outcome, Appended | WriteFailedError | StreamStoppedError) for outcome in found
    )
    engine.release()
