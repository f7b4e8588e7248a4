"""Bugs that other servers of this kind had, one test each; the docstring says whose and what."""

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    DurastreamError,
    StreamDamagedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.model.namespace import CreateCommand
from durastreamd.protocol.outcomes import Appended, Created, Duplicate, NotFound
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.format import StoredFrame
from durastreamd.streams.ticket import DeleteCommand, Ticket
from tests.support.held_writer import NOW, TEXT, Bench, FullDisk, append, content, held, serving
from tests.support.patience import PATIENCE_S
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import World, dump, start
from tests.system.test_kill import spawn, wait_for_acks

Clock = MockClock
PLAIN = {"content_type": TEXT}


def power_cuts(disk: SimDisk) -> list[SimDisk]:
    """Return disks that a power cut now may leave, the one without anything unsynced first."""
    return list(crash_images(disk, random.Random(1), cap=25))


def faulty(disk: SimDisk) -> FullDisk:
    """Return the disk after kill -9, able to fail."""
    twin = FullDisk()
    twin.root = disk.survivor().root
    return twin


def last_journal(disk: SimDisk) -> str:
    return f"{fmt.JOURNAL_DIR}/{disk.names(fmt.JOURNAL_DIR)[-1]}"


def two_journal_files() -> World:
    """Return a world killed between the rotation of a checkpoint and its end."""
    world = World()
    world.create("/s", **PLAIN)
    world.append("/s", b"sealed ")
    world.engine.journal.rotate()
    world.append("/s", b"later")
    return world


@pytest.mark.parametrize("how", ["cut", "zeroed", "emptied"])
def test_01_short_end_of_a_sealed_journal_file_is_not_the_end_of_the_log(how: str) -> None:
    """Electric: zeros in a sealed segment read as the end of the log; later data was dropped."""
    disk = two_journal_files().disk.survivor()
    first = f"{fmt.JOURNAL_DIR}/{disk.names(fmt.JOURNAL_DIR)[-2]}"

    def harm(data: bytearray) -> None:
        keep = {"cut": len(data) - 10, "zeroed": len(data) - 150, "emptied": 64}[how]
        size = len(data)
        del data[keep:]
        if how == "zeroed":
            data.extend(bytes(size - keep))

    disk.damage(first, harm)
    before = disk.files()
    try:
        engine, _ = start(disk)
    except CorruptDataError:
        kept = {path: data for path, data in disk.files().items() if path in before}
        assert kept == before, "a refused opening changes nothing"
        return
    with pytest.raises(StreamDamagedError):  # the owner is known: it alone is refused
        engine.view(engine.namespace.by_key["/s"])


async def test_03_nobody_sees_what_is_not_synced(autojump_clock: Clock) -> None:
    """Electric: documents and code disagreed on whether visibility comes before durability."""
    async with held("/s") as bench:
        bench.streams.post("/s", append(b"x", closes=True))
        await wait_all_tasks_blocked()
        stream = bench.stream("/s")
        assert (stream.tail, stream.closed, stream.messages) == (0, False, 0)
        assert bench.engine.view(stream).tail == 0
        await bench.commit_one()
        assert (stream.tail, stream.closed, stream.messages) == (1, True, 1)


@pytest.mark.parametrize("lost", [1, 5, 40, 90])
def test_04_torn_end_is_cut_though_the_stream_is_quiet(lost: int) -> None:
    """Electric: nothing proved that a quiet stream's torn tail was never acknowledged."""
    world = World()
    world.create("/quiet", **PLAIN)
    world.append("/quiet", b"acked")
    good = len(world.disk.read(last_journal(world.disk)))
    disk = world.disk.survivor()
    world.append("/quiet", b"torn")
    torn = world.disk.read(last_journal(world.disk))[good:-lost]
    disk.damage(last_journal(disk), lambda data: data.extend(torn))
    engine, report = start(disk)
    assert content(engine, "/quiet") == b"acked"
    assert report.torn_bytes == len(torn)
    kept = [data for path, data in disk.files().items() if path.endswith(".torn")]
    assert kept == [torn]


def test_05_acknowledged_delete_is_not_undone_by_a_power_cut() -> None:
    """Electric: the unlink was not awaited, and a crash brought the stream back."""
    for checkpointed in (False, True):
        world = World()
        world.create("/s", **PLAIN)
        world.append("/s", b"x")
        if checkpointed:
            world.checkpoint()
        world.delete("/s")
        for disk in power_cuts(world.disk):
            engine, _ = start(disk)
            assert "/s" not in engine.namespace.by_key


async def test_06_failed_sync_is_not_tried_again(autojump_clock: Clock) -> None:
    """PostgreSQL and Electric: fsync retried after it failed, and the retry lied."""
    bench = Bench()
    tries: list[int] = []
    sync = bench.disk.sync

    def count(handle: int) -> None:
        tries.append(handle)
        sync(handle)

    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with bench.streams.running():
            await bench.make("/s")
            bench.disk.sync = count  # type: ignore[method-assign]
            bench.disk.syncs_left = 0
            bench.streams.post("/s", append(b"x"))
            await trio.sleep_forever()
    assert len(tries) == 1


async def test_07_dead_writer_ends_the_server_and_nobody_hangs(autojump_clock: Clock) -> None:
    """Electric: the committer panicked, the server stayed up and every append hung."""
    bench = Bench()
    tickets: list[Ticket] = []

    def bug(batch: list[StoredFrame], data: list[bytes | memoryview]) -> None:
        del batch, data
        message = "a bug in the writer"
        raise ZeroDivisionError(message)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with bench.streams.running():
            await bench.make("/s")
            bench.engine.journal.commit = bug  # type: ignore[method-assign]
            tickets += [bench.streams.post("/s", append(b"x")) for _ in range(100)]
            await trio.sleep_forever()
    for ticket in tickets:
        with trio.fail_after(PATIENCE_S), pytest.raises(DurastreamError):
            await ticket.outcome()


@pytest.mark.parametrize("where", ["streams", "catalog"])
async def test_08_failed_checkpoint_keeps_its_dirty_set(autojump_clock: Clock, where: str) -> None:
    """Electric: a failed checkpoint forgot which streams it was about."""
    bench = Bench()
    async with bench.running():
        for key in ("/a", "/b", "/c"):
            await bench.make(key)
            await bench.add(key, key.encode(), ("p", 0, 0))
        bench.disk.full, bench.disk.room = where, 30
        await bench.streams.checkpoint()
        assert set(bench.engine.dirty) == {1, 2, 3}
        bench.disk.full = ""
        with trio.fail_after(10):  # the flusher's timer would come later
            while bench.engine.dirty:
                await trio.sleep(1)
        assert not bench.engine.hot
        for disk in power_cuts(bench.disk):
            engine, _ = start(disk)
            assert [content(engine, key) for key in ("/a", "/b", "/c")] == [b"/a", b"/b", b"/c"]


def test_09_unreadable_index_costs_no_data_and_no_other_stream() -> None:
    """Electric: a sidecar that did not parse had the stream's data deleted at the start."""
    world = World()
    for key in ("/s", "/t"):
        world.create(key, **PLAIN)
        world.append(key, b"precious", producer=("p", 0, 0))
    world.checkpoint()
    for key in ("/s", "/t"):
        world.append(key, b"+", producer=("p", 0, 1))
    disk = world.disk.survivor()
    harmed = world.engine.namespace.by_key["/s"].id
    index = fmt.index_path(harmed, world.engine.placements[harmed].base)
    disk.damage(index, lambda data: data.__setitem__(slice(0, None), b"\xaa" * len(data)))
    bytes_before = {path: data for path, data in disk.files().items() if path.endswith(".log")}
    engine, report = start(disk)
    assert len(report.damaged) == 1
    with pytest.raises(StreamDamagedError):
        engine.view(engine.namespace.by_key["/s"])
    assert content(engine, "/t") == b"precious+"
    for path, data in bytes_before.items():
        assert disk.files()[path].startswith(data)
    assert any(b"\xff\xfeJF" in data for path, data in disk.files().items() if "quarantine" in path)


@pytest.mark.parametrize("harm", ["missing", "empty"])
def test_10_missing_data_directory_is_refused(tmp_path: Path, harm: str) -> None:
    """Electric: a volume that was not mounted was taken for an empty store."""
    root = tmp_path / "volume"
    if harm == "empty":
        root.mkdir()
    with pytest.raises(DataDirectoryError, match="is the volume mounted"):
        open_engine(RealDisk(str(root)), EngineOptions(), bytes, NOW)
    assert not root.exists() or not list(root.iterdir())


@pytest.mark.parametrize("create", [True, False])
def test_10_foreign_directory_is_refused(tmp_path: Path, *, create: bool) -> None:
    """A mistyped path: somebody else's files are not moved into."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataDirectoryError):
        open_engine(RealDisk(str(tmp_path)), EngineOptions(), bytes, NOW, create=create)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_10_unknown_version_is_refused_by_its_number() -> None:
    """A downgrade: the message says which version wrote it and which one this is."""
    world = World()
    disk = world.disk.survivor()
    disk.damage(fmt.IDENTITY_FILE, lambda data: data.__setitem__(slice(19, 20), b"7"))
    before = disk.files()
    with pytest.raises(DataDirectoryError, match=r"format 7, this durastreamd reads format 1"):
        start(disk, create=True)
    assert disk.files() == before


@pytest.mark.parametrize("where", ["streams", "journal", "catalog"])
def test_11_want_of_descriptors_in_recovery_fails_the_opening(where: str) -> None:
    """Electric: EMFILE at the start made streams vanish without a word."""
    world = World()
    for key in ("/s", "/t"):
        world.create(key, **PLAIN)
        world.append(key, b"one", producer=("p", 0, 0))
    world.checkpoint()
    world.append("/s", b"two", producer=("p", 0, 1))
    expected = dump(world.engine)
    disk = faulty(world.disk)
    disk.open_error = where
    with pytest.raises((OSError, DurastreamError)) as caught:
        start(disk)
    assert not isinstance(caught.value, CorruptDataError), "the machine's fault, not the data's"
    disk.open_error = ""
    disk.locked.clear()
    engine, report = start(disk)
    assert not report.damaged
    assert dump(engine) == expected


def test_12_names_are_durable_before_they_are_needed() -> None:
    """Electric: no sync of the directory after a new segment; a cut lost the whole file."""
    world = two_journal_files()
    for disk in power_cuts(world.disk):
        engine, _ = start(disk)
        assert content(engine, "/s") == b"sealed later"
    world.checkpoint()
    for disk in power_cuts(world.disk):
        engine, _ = start(disk)
        assert content(engine, "/s") == b"sealed later"


@pytest.mark.parametrize("room", [0, 1, 100, 150])  # the last is a whole frame and a bit
async def test_13_refused_append_stays_refused(autojump_clock: Clock, room: int) -> None:
    """Electric: a 500'd append came back with the next one, and its retry was a 'duplicate'."""
    bench = Bench()
    async with bench.running():
        for key in ("/s", "/t"):
            await bench.make(key)
        await bench.add("/s", b"1", ("p", 0, 0))
        await bench.hold()
        refused = append(b"refused", ("p", 0, 1), closes=True, seq="a")
        tickets = [bench.streams.post("/s", refused), bench.streams.post("/t", append(b"x"))]
        bench.disk.full, bench.disk.room = "journal", room
        await wait_all_tasks_blocked()
        bench.writer.release()
        for ticket in tickets:
            with pytest.raises(WriteFailedError):
                await ticket.outcome()
        bench.disk.full = ""
        for disk in power_cuts(bench.disk):  # the answer was given: the cut-back is durable, too
            assert content(open_again(disk), "/s") == b"1"
        outcome = await bench.streams.ask("/s", append(b"2", ("p", 0, 1), seq="a"))
        assert outcome == Appended(2, closed=False, epoch=0, seq=1)  # type: ignore[arg-type]
    assert content(bench.after_kill(), "/s") == b"12"


def open_again(disk: SimDisk) -> Engine:
    engine, _ = open_engine(disk, EngineOptions(), bytes, NOW)
    return engine


async def test_14_failed_create_leaves_no_phantom(autojump_clock: Clock) -> None:
    """Electric: a create that failed left a stream that took, and acknowledged, appends."""
    bench = Bench()
    async with bench.running():
        bench.disk.full, bench.disk.room = "journal", 40
        create = bench.streams.post("/s", CreateCommand("/s", content_type=TEXT))
        hopeful = bench.streams.post("/s", append(b"x"))
        with pytest.raises(WriteFailedError):
            await create.outcome()
        assert await hopeful.outcome() == NotFound()
        bench.disk.full = ""
        assert await bench.streams.ask("/s", append(b"x")) == NotFound()
    assert not bench.after_kill().namespace.by_key


async def test_19_view_never_names_bytes_it_does_not_hold(autojump_clock: Clock) -> None:
    """Electric: a long poll answered with a tail past what it had delivered (raced 200 times)."""
    bench = Bench(EngineOptions(hot_bytes_max=400, segment_bytes_max=40))
    async with bench.running():
        await bench.make("/s")
        stream = bench.stream("/s")
        expected = b""
        for number in range(200):
            view = bench.engine.view(stream)
            await bench.add("/s", b"%03d" % number)
            if number % 10 == 0:
                await bench.streams.checkpoint()
            assert view.page_end(0, 2**40) == view.tail == len(expected)
            assert view.read(0, view.tail) == expected
            assert [end for _, end in view.messages(0)][-1:] == [len(expected)][: len(expected)]
            expected += b"%03d" % number


async def test_21_creates_are_committed_in_groups(autojump_clock: Clock) -> None:
    """Electric: creates went one by one, some four milliseconds each."""
    bench = Bench()
    async with bench.running():
        syncs = bench.disk.syncs
        tickets = [
            bench.streams.post(f"/{number}", CreateCommand(f"/{number}")) for number in range(200)
        ]
        for ticket in tickets:
            assert isinstance(await ticket.outcome(), Created)
        assert bench.disk.syncs - syncs == 1


async def test_23_many_dirty_streams_cost_one_sync(autojump_clock: Clock) -> None:
    """Electric: one fdatasync per touched stream made checkpoints fall off a cliff."""
    bench = Bench()
    async with bench.running():
        for number in range(100):
            await bench.make(f"/{number}")
            await bench.add(f"/{number}", b"x")
        bench.disk.synced.clear()
        await bench.streams.checkpoint()
        assert bench.disk.synced.count("everything") == 1
        assert not [path for path in bench.disk.synced if path.startswith("streams")]


async def test_25_append_of_a_caller_that_left_is_published(autojump_clock: Clock) -> None:
    """Electric: after a client hung up, readers saw its append only with the next one."""
    async with held("/s") as bench, trio.open_nursery() as nursery:
        with bench.streams.follow(bench.stream("/s")) as follower:
            nursery.start_soon(bench.streams.ask, "/s", append(b"x"))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(5):
                await wait_all_tasks_blocked()
                bench.writer.release()
                await follower.changed()
            assert bench.content("/s") == b"x"


async def test_26_duplicate_is_not_answered_before_its_original_is_durable(
    autojump_clock: Clock,
) -> None:
    """Electric: a retry was acknowledged while the original was not yet synced."""
    async with held("/s") as bench:
        bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        await wait_all_tasks_blocked()
        retry = bench.streams.post("/s", append(b"x", ("p", 0, 0)))
        await wait_all_tasks_blocked()
        assert not retry.settled
        bench.writer.release()
        assert isinstance(await retry.outcome(), Duplicate)


@pytest.mark.parametrize("checkpointed", [True, False])
def test_27_retry_after_a_crash_is_a_duplicate(*, checkpointed: bool) -> None:
    """Electric: producers were saved lazily, so a retry after a crash was stored twice."""
    world = World()
    world.create("/s", **PLAIN)
    for seq in range(30):
        world.append("/s", b"x", producer=("p", 2, seq), seq=f"{seq:03d}")
        if checkpointed and seq % 5 == 0:
            world.checkpoint()
    for disk in power_cuts(world.disk):
        again = World.__new__(World)
        again.engine, _ = start(disk)
        again.now_ms = NOW
        outcome = again.append("/s", b"x", producer=("p", 2, 29))
        assert isinstance(outcome, Duplicate)
        assert again.engine.namespace.by_key["/s"].loaded().seq == "029"


@pytest.mark.parametrize("proven", [True, False])
def test_28_zeroed_payload_under_a_good_header_is_not_served(*, proven: bool) -> None:
    """Electric: preallocated zeros passed for a record whose header was good."""
    world = World()
    world.create("/s", **PLAIN)
    world.create("/t", **PLAIN)
    world.append("/s", b"acked")
    world.append("/s", b"PAYLOAD")
    if proven:
        world.append("/t", b"later")
    disk = world.disk.survivor()
    at = disk.read(last_journal(disk)).find(b"PAYLOAD")
    disk.damage(last_journal(disk), lambda data: data.__setitem__(slice(at, at + 7), bytes(7)))
    engine, report = start(disk)
    if proven:  # it was durable once: damage, and only this stream's
        assert len(report.damaged) == 1
        with pytest.raises(StreamDamagedError):
            engine.view(engine.namespace.by_key["/s"])
        assert content(engine, "/t") == b"later"
    else:
        assert content(engine, "/s") == b"acked"


def test_what_was_shown_after_a_restart_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL: after a failed fsync the page cache showed a new process what no disk held."""
    world = World()
    world.create("/s", **PLAIN)
    monkeypatch.setattr(world.disk, "sync", lambda _: None)  # it says yes and does nothing
    world.append("/s", b"only in the page cache")
    disk = world.disk.survivor()
    engine, _ = start(disk)
    shown = content(engine, "/s")
    for cut in power_cuts(disk):
        assert content(start(cut)[0], "/s") == shown


@pytest.mark.slow
@pytest.mark.system
def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    """Two daemons on one directory: each would write over the other's journal."""
    data, acks = tmp_path / "data", tmp_path / "acks"
    data.mkdir()
    process = spawn(data, acks, 0)
    try:
        wait_for_acks(process, acks, 0)
        with pytest.raises(DirectoryLockedError, match="in use by another"):
            open_engine(RealDisk(str(data)), EngineOptions(), bytes, NOW)
        wait_for_acks(process, acks, acks.stat().st_size)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    engine, _ = open_engine(RealDisk(str(data)), EngineOptions(), bytes, NOW)
    engine.release()


async def test_deleted_name_does_not_come_back_with_its_old_bytes(autojump_clock: Clock) -> None:
    """Several: a name made again showed bytes or producers of its former life."""
    async with serving("/s") as bench:
        await bench.add("/s", b"old", ("p", 5, 0))
        await bench.streams.checkpoint()
        await bench.streams.ask("/s", DeleteCommand())
        await bench.make("/s")
        await bench.add("/s", b"new", ("p", 0, 0))
        for disk in power_cuts(bench.disk):
            assert content(open_again(disk), "/s") == b"new"
