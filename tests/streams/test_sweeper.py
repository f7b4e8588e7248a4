"""Lifetimes: renewed by reads, journalled now and then, swept when they are over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.options import EngineOptions
from durastreamd.errors import OverloadedError
from durastreamd.model.records import Record, Touch
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.outcomes import Created, Deleted, Gone, NotFound
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.ticket import DeleteCommand
from durastreamd.streams.writer import Errand
from tests.support.held_writer import NOW, Bench, append, held, reopen, serving

Clock = MockClock


@asynccontextmanager
async def touched(
    monkeypatch: pytest.MonkeyPatch, **lifetime: int
) -> AsyncIterator[tuple[Bench, list[int]]]:
    """Serve a stream, and note the time of each Touch that is applied."""
    bench = Bench()
    times: list[int] = []
    applied = bench.streams.applied

    def note(record: Record, ended: list[Stream]) -> None:
        if isinstance(record, Touch):
            times.append(record.time_ms)
        applied(record, ended)

    monkeypatch.setattr(bench.streams, "applied", note)
    async with bench.running():
        await bench.make("/s", **lifetime)
        yield bench, times


async def test_expired_stream_is_not_found_at_once_and_swept_soon(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=5_500)
        await bench.add("/s", b"x")
        await bench.streams.checkpoint()
        assert bench.disk.names("streams/01")
        await trio.sleep(5.6)
        assert bench.streams.find("/s") == NotFound()
        assert await bench.streams.ask("/s", append(b"late")) == NotFound()
        assert "/s" in bench.engine.namespace.by_key
        await trio.sleep(1)
        assert "/s" not in bench.engine.namespace.by_key
        await bench.streams.checkpoint()
        assert not bench.disk.names("streams/01")
    assert not bench.after_kill().namespace.by_key


async def test_stream_expires_at_a_fixed_time_whatever_is_read(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", expires_ms=NOW + 5_000)
        for _ in range(6):
            if isinstance(found := bench.streams.find("/s"), Stream):
                bench.streams.touch(found)
            await trio.sleep(1)
        assert bench.streams.find("/s") == NotFound()


async def test_reads_renew_in_memory_and_now_and_then_on_disk(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with touched(monkeypatch, ttl_ms=8_000) as (bench, touches):
        for _ in range(400):  # forty seconds of reads
            await trio.sleep(0.1)
            found = bench.streams.find("/s")
            assert isinstance(found, Stream)
            bench.streams.touch(found)
        assert 30 <= len(touches) <= 41  # each eighth of the lifetime, not each read
        stream = bench.stream("/s")
        assert stream.read_ms == bench.clock()
        assert stream.read_ms - stream.accessed_ms <= 1_000
        await trio.sleep(10)
        assert bench.streams.find("/s") == NotFound()
        assert "/s" not in bench.engine.namespace.by_key


async def test_read_is_not_forgotten_by_a_restart(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=8_000)
        await trio.sleep(7.9)
        bench.streams.touch(bench.stream("/s"))
        await wait_all_tasks_blocked()
        engine = reopen(bench.disk, now_ms=bench.clock())
        assert isinstance(engine.namespace.find("/s", bench.clock() + 7_000), Stream)


async def test_stream_without_lifetime_is_not_touched(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with touched(monkeypatch) as (bench, touches):
        await trio.sleep(100)
        bench.streams.touch(bench.stream("/s"))
        await wait_all_tasks_blocked()
        assert not touches


async def test_reads_at_once_are_one_touch(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with touched(monkeypatch, ttl_ms=80_000) as (bench, touches):
        await trio.sleep(20)
        await bench.hold()
        for _ in range(200):
            bench.streams.touch(bench.stream("/s"))
        await wait_all_tasks_blocked()
        bench.writer.release()
        await wait_all_tasks_blocked()
        assert len(touches) <= 2


async def test_source_abandoned_by_a_failed_fork_is_swept(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        await bench.add("/s", b"x")
        await bench.hold()
        fork = bench.fork("/f", "/s")
        await wait_all_tasks_blocked()
        deletion = bench.streams.post("/s", DeleteCommand())  # a soft one: the fork may succeed
        bench.disk.full = "journal"
        await bench.commit_one()
        bench.disk.full = ""
        bench.writer.release()
        assert await deletion.outcome() == Deleted()
        with pytest.raises(Exception, match="No space"):
            await fork.outcome()
        assert bench.streams.find("/s") == Gone()
        await trio.sleep(3)
        assert bench.streams.find("/s") == NotFound()
        assert "/s" not in bench.engine.namespace.by_key
        await bench.make("/s")


async def test_last_fork_takes_its_deleted_source_along(autojump_clock: Clock) -> None:
    async with held("/s") as bench:
        fork = bench.fork("/f", "/s")
        deletion = bench.streams.post("/s", DeleteCommand())
        await wait_all_tasks_blocked()
        await bench.commit_one()
        assert isinstance(await fork.outcome(), Created)
        assert await deletion.outcome() == Deleted()
        bench.writer.holding = False
        assert await bench.streams.ask("/f", DeleteCommand()) == Deleted()
        assert not bench.engine.namespace.by_key


async def test_expired_source_of_a_fork_is_kept_for_it(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=5_000)
        await bench.add("/s", b"kept")
        fork = bench.fork("/f", "/s")
        assert isinstance(await fork.outcome(), Created)
        for _ in range(20):
            await trio.sleep(1)
            bench.streams.touch(bench.stream("/f"))
        assert bench.stream("/s").gone
        assert bench.streams.find("/s") == Gone()
        assert bench.content("/f") == b"kept"
        await trio.sleep(10)
        assert not bench.engine.namespace.by_key


async def test_stream_renewed_while_its_sweep_waits_is_swept_later(autojump_clock: Clock) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=5_000)
        await trio.sleep(4.5)
        await bench.hold()
        bench.streams.post("/s", append(b"x"))
        await trio.sleep(2.1)
        bench.writer.release()
        await trio.sleep(100)
        assert "/s" not in bench.engine.namespace.by_key


class _SpinError(RuntimeError):
    pass


async def test_sweep_of_an_overloaded_server_waits_its_turn(autojump_clock: Clock) -> None:
    bench = Bench(EngineOptions(hot_bytes_max=800))
    async with bench.running():
        await bench.make("/t", ttl_ms=5_000)
        await bench.make("/s")
        bench.disk.full = "streams"
        with pytest.raises(OverloadedError):
            for _ in range(10):
                await bench.add("/s", b"x" * 10)
        watched = 0
        watch = bench.streams._sweeper.watch

        def count(stream: Stream | None) -> None:
            nonlocal watched
            watched += 1
            if watched > 1_000:
                raise _SpinError
            watch(stream)

        bench.streams._sweeper.watch = count  # type: ignore[method-assign]
        await trio.sleep(20)
        bench.disk.full = ""
        await trio.sleep(60)
        assert "/t" not in bench.engine.namespace.by_key


async def test_sweep_of_a_full_disk_waits_for_the_next_tick(autojump_clock: Clock) -> None:
    bench = Bench(limits=StreamLimits(sweep_s=1.0))
    async with bench.running():
        await bench.make("/t", ttl_ms=5_000)
        await trio.sleep(4.9)
        bench.disk.full = "journal"
        before = bench.writer.done
        put = bench.writer.put

        def bounded(errand: Errand) -> None:
            if bench.writer.done > before + 200:
                bench.disk.full = ""
            put(errand)

        bench.writer.put = bounded  # type: ignore[method-assign]
        await trio.sleep(10)
        tried = bench.writer.done - before
        bench.disk.full = ""
        assert tried < 30
