"""The streams of a server: races between names, actors at rest, stopping, bounds."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.engine import HOT_RECORD_BYTES
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import (
    DurastreamError,
    OverloadedError,
    StreamStoppedError,
    SyncFailedError,
)
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Snapshot
from durastreamd.protocol.outcomes import (
    Appended,
    BucketCreated,
    BucketDeleted,
    BucketMissing,
    BucketNotEmpty,
    Created,
    Deleted,
    Duplicate,
    ForkRefused,
    Gone,
    NotFound,
    Outcome,
    SnapshotPublished,
    StaleEpoch,
)
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.ticket import BucketCommand, DeleteCommand, PublishCommand, Ticket
from tests.support.held_writer import TEXT, Bench, append, cancelled, content, serving
from tests.support.patience import PATIENCE_S

Clock = MockClock
RESTLESS = StreamLimits(idle_s=2.0)


def actor_tasks() -> list[str]:
    """Return the names of the live tasks of actors."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    names: list[str] = []
    waiting = [root]
    while waiting:
        task = waiting.pop()
        names.append(task.name)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [name for name in names if name.startswith("stream ")]


# --- races between names ---


async def test_fork_in_flight_makes_the_delete_of_its_source_a_soft_one(
    autojump_clock: Clock,
) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"inherited")
        await bench.hold()
        fork = bench.fork("/f", "/s")
        deletion = bench.streams.post("/s", DeleteCommand())
        await wait_all_tasks_blocked()
        bench.writer.release()
        assert isinstance(await fork.outcome(), Created)
        assert await deletion.outcome() == Deleted()
        assert bench.streams.find("/s") == Gone()
        assert bench.content("/f") == b"inherited"
    engine = bench.after_kill()
    assert content(engine, "/f") == b"inherited"
    assert engine.namespace.by_key["/s"].gone


async def test_delete_in_flight_refuses_forks_of_the_stream(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"old")
        await bench.hold()
        deletion = bench.streams.post("/s", DeleteCommand())
        await wait_all_tasks_blocked()
        fork = bench.fork("/f", "/s")
        refused = await fork.outcome()
        assert isinstance(refused, ForkRefused)
        assert refused.code == "GONE"
        bench.writer.release()
        assert await deletion.outcome() == Deleted()
        assert bench.streams.find("/s") == NotFound()
    assert not bench.after_kill().namespace.by_key


async def test_failed_delete_lets_the_stream_be_forked_again(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"old")
        bench.disk.full = "journal"
        with pytest.raises(DurastreamError):
            await bench.streams.ask("/s", DeleteCommand())
        bench.disk.full = ""
        assert isinstance(await bench.fork("/f", "/s").outcome(), Created)
        assert bench.content("/f") == b"old"


async def test_fork_races_with_delete_while_the_source_is_in_flight(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"first ")
        await bench.hold()
        bench.streams.post("/s", append(b"second"))
        await wait_all_tasks_blocked()
        deletion = bench.streams.post("/s", DeleteCommand())  # waits behind the append
        fork = bench.fork("/f", "/s")  # decided now, at the committed tail
        bench.writer.release()
        assert isinstance(await fork.outcome(), Created)
        assert await deletion.outcome() == Deleted()
        assert bench.content("/f") == b"first "
        assert bench.streams.find("/s") == Gone()


async def test_bucket_with_a_stream_in_the_making_is_not_deleted(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        assert await bench.streams.ask("logs/", BucketCommand(exists=True)) == BucketCreated()
        await bench.hold()
        made = bench.streams.post("logs/a", CreateCommand("logs/a", content_type=TEXT))
        ended = bench.streams.post("logs/", BucketCommand(exists=False))
        assert await ended.outcome() == BucketNotEmpty(1)
        bench.writer.release()
        assert isinstance(await made.outcome(), Created)


async def test_bucket_being_deleted_takes_no_stream(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.streams.ask("logs/", BucketCommand(exists=True))
        await bench.hold()
        ended = bench.streams.post("logs/", BucketCommand(exists=False))
        made = bench.streams.post("logs/a", CreateCommand("logs/a", content_type=TEXT))
        assert await made.outcome() == BucketMissing()
        bench.writer.release()
        assert await ended.outcome() == BucketDeleted()
    assert not bench.after_kill().namespace.buckets


# --- at rest ---


async def test_idle_actor_retires_and_leaves_no_task(autojump_clock: Clock) -> None:
    bench = Bench(limits=RESTLESS)
    async with bench.running():
        await bench.make("/s")
        assert actor_tasks() == []  # nothing has had to wait yet
        await bench.hold()
        tickets = [bench.streams.post("/s", append(b"x", ("p", 4, 0)))]
        await wait_all_tasks_blocked()
        tickets.append(bench.streams.post("/s", append(b"y", ("p", 4, 1))))
        assert actor_tasks() == ["stream /s"]
        bench.writer.release()
        assert [await ticket.outcome() for ticket in tickets]
        await bench.streams.checkpoint()
        assert bench.stream("/s").detail is not None
        await trio.sleep(10)
        assert bench.streams.actor_count == 0
        assert actor_tasks() == []
        assert bench.stream("/s").detail is None
        assert not bench.engine.awake


async def test_detail_loaded_from_disk_still_fences_producers(autojump_clock: Clock) -> None:
    bench = Bench(limits=RESTLESS)
    async with bench.running():
        await bench.make("/s")
        await bench.add("/s", b"x", ("p", 4, 0))
        await bench.streams.checkpoint()
        await trio.sleep(10)
        assert bench.stream("/s").detail is None
        outcomes: list[Outcome] = [
            await bench.streams.ask("/s", append(b"y", producer))
            for producer in (("p", 3, 9), ("p", 4, 0), ("p", 4, 1))
        ]
        assert [type(found) for found in outcomes] == [StaleEpoch, Duplicate, Appended]
        assert bench.streams.actors_started == 2


async def test_busy_actor_does_not_retire(autojump_clock: Clock) -> None:
    bench = Bench(limits=RESTLESS)
    async with bench.running():
        await bench.make("/s")
        await bench.hold()
        ticket = bench.streams.post("/s", append(b"x"))
        await trio.sleep(20)
        assert bench.streams.actor_count == 1
        bench.writer.release()
        assert isinstance(await ticket.outcome(), Appended)


def test_append_in_the_round_of_the_retirement_is_served() -> None:
    async def main() -> None:
        bench = Bench(limits=RESTLESS)
        async with bench.running():
            await bench.make("/s")
            await bench.add("/s", b"x", ("p", 0, 0))
            await bench.streams.checkpoint()
            tickets: list[Ticket] = []
            retire_idle = bench.streams._retire_idle

            def and_post() -> None:
                before = bench.streams.actor_count
                retire_idle()
                if bench.streams.actor_count < before and not tickets:
                    tickets.append(bench.streams.post("/s", append(b"y", ("p", 0, 1))))

            bench.streams._retire_idle = and_post  # type: ignore[method-assign]
            await trio.sleep(10)
            assert isinstance(await tickets[0].outcome(), Appended)
            assert bench.stream("/s").loaded().producers == {"p": (0, 1)}

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("what", ["publish", "soft delete"])
def test_stream_at_rest_is_changed_and_checkpointed(what: str) -> None:
    async def main() -> None:
        bench = Bench(EngineOptions(state_every_bytes=300), RESTLESS)
        async with bench.running():
            await bench.make("/s")
            for seq in range(2):
                await bench.add("/s", b"x", ("p", 0, seq))
                await bench.streams.checkpoint()
            await bench.fork("/f", "/s").outcome()
            await trio.sleep(10)
            stream = bench.stream("/s")
            assert stream.detail is None
            if what == "publish":
                snapshot = Snapshot(stream.id, 2, 1, TEXT, 0, 0)
                found = await bench.streams.ask("/s", PublishCommand(snapshot))
                assert isinstance(found, SnapshotPublished)
            else:
                assert await bench.streams.ask("/s", DeleteCommand()) == Deleted()
            await bench.streams.checkpoint()
        engine = bench.after_kill()
        again = engine.namespace.by_key["/s"]
        assert engine.load_detail(again).producers == {"p": (0, 1)}

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_want_of_descriptors_for_one_stream_leaves_the_others_alone(
    autojump_clock: Clock,
) -> None:
    bench = Bench(limits=RESTLESS)
    async with bench.running():
        for key in ("/s", "/t"):
            await bench.make(key)
            await bench.add(key, b"x", ("p", 0, 0))
        await bench.streams.checkpoint()
        await trio.sleep(10)
        bench.disk.open_error = "streams"
        with pytest.raises(DurastreamError):
            await bench.streams.ask("/s", append(b"y", ("p", 0, 1)))
        bench.disk.open_error = ""
        await bench.add("/t", b"y", ("p", 0, 1))
        await bench.add("/s", b"y", ("p", 0, 1))


# --- bounds ---


async def test_too_many_unflushed_bytes_are_an_overload(autojump_clock: Clock) -> None:
    bench = Bench(EngineOptions(hot_bytes_max=1000))
    async with bench.running():
        await bench.make("/s")
        bench.disk.full = "streams"
        with pytest.raises(OverloadedError):
            for _ in range(10):
                await bench.add("/s", b"x" * 50)
        assert bench.engine.hot_bytes <= 2 * 1000 + HOT_RECORD_BYTES + 100
        bench.disk.full = ""
        await trio.sleep(5)
        await bench.add("/s", b"served again")


# --- stopping ---


async def test_stopping_takes_a_checkpoint_and_leaves_an_empty_journal(
    autojump_clock: Clock,
) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"x")
    assert not bench.streams._changed()
    assert len(bench.disk.names("journal")) == 1
    assert content(bench.after_kill(), "/s") == b"x"


async def test_streams_that_never_ran_refuse(autojump_clock: Clock) -> None:
    bench = Bench()
    with pytest.raises(StreamStoppedError):
        bench.streams.post("/s", append(b"x"))


async def test_post_after_the_end_is_refused(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        pass
    bench.writer.holding = True  # the thread is gone
    with pytest.raises(StreamStoppedError), trio.fail_after(PATIENCE_S):
        await bench.streams.ask("/s", append(b"x"))


async def test_post_while_stopping_is_refused(autojump_clock: Clock) -> None:
    tickets: list[Ticket] = []

    async def linger() -> None:
        """Keep the streams stopping for a while, as the writer's thread does in a sync."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                tickets.append(bench.streams.post("/s", append(b"y")))

    async with cancelled("/s") as bench:
        bench.streams.post("/s", append(b"x"))
        assert bench.streams._nursery is not None
        bench.streams._nursery.start_soon(linger)
        await wait_all_tasks_blocked()
    for ticket in tickets:
        with pytest.raises(StreamStoppedError):
            await ticket.outcome()
    assert len(tickets) == 1


async def test_a_failed_sync_ends_the_server_whoever_asked(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    met: list[Exception] = []

    def sync() -> None:
        reason = "fsync failed: Input/output error"
        raise SyncFailedError(reason)

    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with bench.running():
            try:
                await bench.streams.blocking(sync)  # a snapshot's, say
            except SyncFailedError as exc:
                met.append(exc)
            await trio.sleep_forever()
    assert len(met) == 1
