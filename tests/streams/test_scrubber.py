"""The scrub: finds every damage at rest and none where there is none, and is in nobody's way."""

import errno
import random
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from durastreamd.engine.options import EngineOptions
from durastreamd.errors import CorruptDataError, StreamDamagedError
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Snapshot
from durastreamd.protocol.outcomes import Deleted, SnapshotPublished
from durastreamd.storage import format as fmt, scrub
from durastreamd.storage.blobs import BlobWriter
from durastreamd.streams import scrubber
from durastreamd.streams.limits import ScrubOptions
from durastreamd.streams.scrubber import Scrubber, in_turn
from durastreamd.streams.ticket import DeleteCommand, PublishCommand
from tests.support.held_writer import Bench, append
from tests.support.sim_disk import SimDisk
from tests.support.world import World, random_step

MIB = 1024 * 1024
BODIES = [random.Random(n).randbytes(60_000) for n in range(7)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(EngineOptions(segment_bytes_max=150_000))
    async with made.running():
        for key in ("/a", "/b", "/small"):
            await made.streams.ask(key, CreateCommand(key, "text/plain"))
        for body in BODIES:
            await made.streams.ask("/a", append(body))
            await made.streams.ask("/b", append(body[::-1]))
            await made.streams.checkpoint()
        await made.streams.ask("/small", append(b"few"))
        await publish(made, "/b", 3 * 60_000)
        await made.streams.checkpoint()
        yield made


async def publish(bench: Bench, key: str, position: int) -> None:
    stream = bench.stream(key)
    serial = position + 1
    writer = BlobWriter(bench.disk, stream.id, position, serial)
    writer.write(b"folded" * 100_000)
    writer.finish()
    blob = Snapshot(stream.id, position, serial, "text/plain", writer.size, writer.sum)
    outcome = await bench.streams.ask(key, PublishCommand(blob))
    assert isinstance(outcome, SnapshotPublished)


def scrubbing(
    bench: Bench, options: ScrubOptions | None = None, activity: Callable[[], int] = lambda: 0
) -> Scrubber:
    return Scrubber(bench.streams, options or ScrubOptions(), activity, lambda: 1)


def files(bench: Bench, *suffixes: str) -> list[str]:
    return [path for path in bench.disk.files() if path.endswith(suffixes)]


async def test_a_round_reads_everything_and_finds_nothing_amiss(
    autojump_clock: MockClock, bench: Bench
) -> None:
    made = scrubbing(bench)
    held = bench.disk.open_handles
    await made.round()
    there = sum(len(bench.disk.read(path)) for path in files(bench, ".log", ".idx", ".snap"))
    opened = len(files(bench, ".idx", ".snap"))
    assert made.bytes_total == there + opened * scrub.FILE_COST
    assert (made.rounds_total, made.findings_total) == (1, 0)
    assert (made.round_checked, made.round_streams) == (3, 3)
    assert not bench.engine.damaged
    assert not bench.engine.pins
    assert bench.disk.open_handles == held


@pytest.mark.parametrize("suffix", [".log", ".idx", ".snap"])
@pytest.mark.parametrize("kind", ["flip", "zero", "cut", "foreign", "gone", "extend"])
async def test_a_round_finds_what_nobody_read(
    autojump_clock: MockClock, bench: Bench, suffix: str, kind: str
) -> None:
    found = [path for path in files(bench, suffix) if not path.startswith("streams/03")]
    for path in found:
        stream = fmt.stream_of(path)
        active = path in (
            fmt.segment_path(stream or 0, bench.engine.placements[stream or 0].base),
            fmt.index_path(stream or 0, bench.engine.placements[stream or 0].base),
        )
        if kind == "extend" and (active or suffix == ".idx"):
            continue  # what lies beyond its placement is not part of it
        before = bench.disk.read(path)
        if kind == "gone":
            bench.disk.unlink(path)
        else:
            bench.disk.damage(path, lambda data: harm(kind, data))
        made = scrubbing(bench)
        await made.round()
        assert made.findings_total == 1, path
        assert list(bench.engine.damaged) == [stream]
        assert path.rpartition("/")[0] in bench.engine.namespace.by_id[stream or 0].damage
        await made.round()
        assert made.findings_total == 1, "told once"
        bench.engine.namespace.by_id[stream or 0].damage = ""
        bench.engine.damaged.clear()
        if kind == "gone":
            bench.disk.release(bench.disk.open(path, create=True))
        bench.disk.damage(path, partial(restore, before))


async def test_a_segment_that_is_gone_with_its_index_is_found(
    autojump_clock: MockClock, bench: Bench
) -> None:
    """What is left fits together; it is only that a part of the stream is not there."""
    gone = files(bench, ".log", ".idx")
    first = min(path for path in gone if path.startswith("streams/01"))
    middle = sorted(path for path in gone if path.startswith("streams/01"))[2]
    for path in {first, middle}:
        twins = [path, path[:-4] + (".log" if path.endswith(".idx") else ".idx")]
        before = {twin: bench.disk.read(twin) for twin in twins}
        for twin in twins:
            bench.disk.unlink(twin)
        made = scrubbing(bench)
        await made.round()
        assert (made.findings_total, list(bench.engine.damaged)) == (1, [1])
        await made.recheck()
        assert list(bench.engine.damaged) == [1]
        for twin, data in before.items():
            bench.disk.release(bench.disk.open(twin, create=True))
            bench.disk.damage(twin, partial(restore, data))
        await made.recheck()
        assert not bench.engine.damaged


# --- taking back ---


@pytest.mark.parametrize("suffix", [".log", ".idx", ".snap"])
async def test_what_verifies_again_is_served_again(
    autojump_clock: MockClock, bench: Bench, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = next(path for path in files(bench, suffix) if path.startswith("streams/02"))
    before = bench.disk.read(path)
    bench.disk.damage(path, lambda data: harm("flip", data))
    made = scrubbing(bench)
    await made.round()
    await bench.streams.checkpoint()
    stream = bench.stream("/b")
    for engine in (bench.engine, bench.after_kill()):
        assert engine.namespace.by_key["/b"].provisional
        assert path in engine.namespace.by_key["/b"].damage
    await made.recheck()
    assert stream.provisional, "it does not verify yet"
    with pytest.raises(StreamDamagedError):
        await bench.streams.ask("/b", append(b"more"))
    bench.disk.damage(path, partial(restore, before))
    await made.recheck()
    assert (stream.damage, bench.engine.damaged, made.taken_back_total) == ("", {}, 1)
    assert made.findings_total == 1
    assert f"stream {stream.id:016x} verifies again and is served" in caplog.text
    await bench.streams.ask("/b", append(b"more"))
    assert bench.content("/b").endswith(b"more")
    await bench.streams.checkpoint()
    assert not bench.after_kill().damaged
    await made.round()
    assert made.findings_total == 1


async def test_a_snapshot_that_only_a_fork_shows_counts(
    autojump_clock: MockClock, bench: Bench
) -> None:
    """Its owner is refused for it, and stays so as long as it does not verify."""
    await bench.fork("/fork", "/b").outcome()
    shown = bench.stream("/fork").snapshot
    assert shown is not None
    await publish(bench, "/b", 6 * 60_000)
    await bench.streams.checkpoint()
    path = fmt.snapshot_path(shown.owner, shown.position, shown.serial)
    before = bench.disk.read(path)
    bench.disk.damage(path, lambda data: harm("flip", data))
    made = scrubbing(bench)
    await made.round()
    assert list(bench.engine.damaged) == [bench.stream("/b").id]
    await made.recheck()
    assert bench.engine.damaged
    bench.disk.damage(path, partial(restore, before))
    await made.recheck()
    assert not bench.engine.damaged


async def test_a_failing_disk_takes_nothing_back(autojump_clock: MockClock, bench: Bench) -> None:
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "it was so"))
    made = scrubbing(bench)
    for operation in ("open", "pread"):
        bench.disk.refuse(errno.EIO, (operation,))
        await made.recheck()
        bench.disk.mend()
        assert bench.stream("/a").provisional
    await made.recheck()
    assert not bench.engine.damaged


async def test_what_a_recovery_marked_is_left_to_a_repair(
    autojump_clock: MockClock, bench: Bench
) -> None:
    stream = bench.stream("/a")
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "met"))
    bench.engine.mark_damaged(stream, "a frame was set aside")
    assert not stream.provisional
    assert "a frame was set aside" in stream.damage
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "met"))
    await scrubbing(bench).recheck()
    assert "a frame was set aside" in stream.damage


async def test_streams_are_looked_at_again_by_the_clock(
    autojump_clock: MockClock, bench: Bench, nursery: trio.Nursery
) -> None:
    made = scrubbing(bench, ScrubOptions(start_s=2, recheck_s=10, bytes_per_s=1024 * MIB))
    nursery.start_soon(made.run)
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "met"))
    await trio.sleep(1)
    assert bench.engine.damaged
    await trio.sleep(4)
    assert not bench.engine.damaged
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "met"))
    await trio.sleep(4)
    assert bench.engine.damaged
    await trio.sleep(8)
    assert not bench.engine.damaged
    made.reconfigure(ScrubOptions(bytes_per_s=0, recheck_s=10))
    bench.engine.note_damage(CorruptDataError(fmt.segment_path(1, 0), 0, "met"))
    await trio.sleep(100)
    assert bench.engine.damaged
    nursery.cancel_scope.cancel()


def restore(before: bytes, data: bytearray) -> None:
    data[:] = before


def harm(kind: str, data: bytearray) -> None:
    middle = 40 + (len(data) - 40) // 2
    if kind == "flip":
        data[middle] ^= 1
    elif kind == "zero":
        data[middle - 8 : middle + 8] = bytes(16)
    elif kind == "cut":
        del data[-1:]
    elif kind == "foreign":
        data[:] = bytes(reversed(data))
    else:
        data += b"x"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_found_where_nothing_is_amiss(seed: int) -> None:
    """Whatever was done to streams, at any moment: forks, retention, deletions, flushes."""
    rng = random.Random(seed)
    world = World()
    for _ in range(30):
        world.step(random_step(world, rng), keep=False)
        space = world.engine.namespace
        for stream in list(space.by_id.values()):
            for _cost in world.engine.check(stream):
                pass


# --- manners ---


async def test_it_keeps_its_pace(autojump_clock: MockClock, bench: Bench) -> None:
    made = scrubbing(bench, ScrubOptions(bytes_per_s=MIB))
    begun = trio.current_time()
    await made.round()
    assert trio.current_time() - begun == pytest.approx(made.bytes_total / MIB, rel=0.2)


async def test_it_waits_while_the_server_is_busy_but_not_for_ever(
    autojump_clock: MockClock, bench: Bench
) -> None:
    work, step = 0, 10_000

    def activity() -> int:
        nonlocal work
        work += step
        return work

    made = scrubbing(bench, activity=activity)
    made._busy()
    begun = trio.current_time()
    await made._let_others_go_first()
    passed = trio.current_time() - begun
    assert scrubber.PAUSE_MAX_S <= passed < scrubber.PAUSE_MAX_S + 2 * scrubber.LOOK_S
    step = 0
    begun = trio.current_time()
    await made._let_others_go_first()
    assert trio.current_time() - begun < scrubber.LOOK_S


async def test_rounds_come_by_their_period_and_tell_the_age_of_the_oldest_check(
    autojump_clock: MockClock, bench: Bench, nursery: trio.Nursery
) -> None:
    fast = 1024 * MIB
    made = scrubbing(bench, ScrubOptions(period_s=5, start_s=2, bytes_per_s=fast))
    nursery.start_soon(made.run)
    await trio.sleep(1)
    assert made.rounds_total == 0
    assert made.oldest_s() == pytest.approx(1, abs=0.5)
    await trio.sleep(2)
    assert made.rounds_total == 1
    assert made.oldest_s() == pytest.approx(1, abs=0.5)
    await trio.sleep(5)
    assert made.rounds_total == 2
    made.reconfigure(ScrubOptions(bytes_per_s=0, period_s=5))
    await trio.sleep(6)
    assert made.rounds_total == 2
    made.reconfigure(ScrubOptions(period_s=5, bytes_per_s=fast))
    await trio.sleep(1)
    assert made.rounds_total == 3
    nursery.cancel_scope.cancel()


def test_a_round_begins_anywhere_and_leaves_nobody_out() -> None:
    for first in range(12):
        assert sorted(in_turn([5, 6, 7, 9], first)) == [5, 6, 7, 9]
    assert list(in_turn([5, 6, 7], 4)) == [6, 7, 5]
    assert not list(in_turn([], 3))


# --- what changes under it ---


async def test_streams_may_go_and_change_under_it(autojump_clock: MockClock, bench: Bench) -> None:
    made = scrubbing(bench, ScrubOptions(bytes_per_s=MIB // 4))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.round)
        for number in range(12):
            await trio.sleep(0.4)
            if number == 1:
                await publish(bench, "/b", 6 * 60_000)
            elif number == 2:
                assert isinstance(await bench.streams.ask("/a", DeleteCommand()), Deleted)
            elif number < 8:
                await bench.streams.ask("/b", append(BODIES[number - 2]))
            await bench.streams.checkpoint()
    assert (made.rounds_total, made.findings_total) == (1, 0)
    await bench.streams.ask("/small", append(b"more"))
    await bench.streams.checkpoint()
    assert not [path for path in bench.disk.files() if path.startswith("streams/01")]
    assert not bench.engine.pins


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_what_the_system_refuses_is_no_finding(
    autojump_clock: MockClock,
    bench: Bench,
    number: int,
    operation: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench.disk.refuse(number, (operation,))
    made = scrubbing(bench)
    await made.round()
    bench.disk.mend()
    assert (made.findings_total, bench.engine.damaged) == (0, {})
    assert bench.engine.failed_reads == (3 if number == errno.EIO else 0)
    assert caplog.text.count("is left to the next") == 3
    await made.round()
    assert made.findings_total == 0


# --- the check itself ---


def test_a_check_that_does_not_compare_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.create("/s")
    world.append("/s", b"x" * 100)
    world.checkpoint()
    placed = world.engine.placements[1]

    def found(disk: SimDisk) -> bool:
        try:
            list(scrub.check_stream(disk, 1, placed, 0, ()))
        except CorruptDataError:
            return True
        return False

    twin = world.disk.survivor()
    twin.damage(fmt.segment_path(1, 0), lambda data: data.__setitem__(50, 0))
    assert found(twin)
    assert not found(world.disk)
    monkeypatch.setattr(scrub, "_pieces", lambda *_: iter(()))
    assert found(world.disk), "a check that reads nothing does not pass for one"
