"""Checkpoints and flushes: what they leave behind, and that they may overlap with anything."""

import errno

import pytest

from durastreamd.engine import checkpoint as cp
from durastreamd.errors import WriteFailedError
from durastreamd.storage import format as fmt, log
from durastreamd.storage.disk import write_at
from tests.support.fault_disk import FaultDisk
from tests.support.sim_disk import SimDisk
from tests.support.world import World, dump, passed, start, unreferenced


def test_a_checkpoint_leaves_an_empty_journal() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"x" * 100)
    world.checkpoint()
    assert len(world.disk.names("journal")) == 1
    assert world.engine.journal.length == fmt.JOURNAL_HEADER.size
    assert not world.engine.hot
    assert not world.engine.dirty


def test_a_checkpoint_may_begin_while_a_flush_is_under_way() -> None:
    world = World()
    world.create("/a")
    for _ in range(4):
        world.append("/a", b"x" * 200)
    flush = cp.flush(world.engine)
    job = next(flush)
    world.engine.journal.rotate()
    checkpoint = cp.checkpoint(world.engine)
    first = next(checkpoint)
    with pytest.raises(StopIteration):
        while True:
            job = flush.send(job())
    expected = dump(world.engine)
    with pytest.raises(StopIteration):
        while True:
            first = checkpoint.send(first())
    assert dump(world.engine) == expected
    engine, report = start(world.disk.survivor())
    assert dump(engine) == expected
    assert report.replayed == 0


def test_many_dirty_streams_are_one_sync() -> None:
    """One fdatasync per touched stream took another server from 900k to 10k append/s."""
    world = World()
    for number in range(100):
        world.create(f"/s{number}")
    world.engine.journal.rotate()
    before = world.disk.syncs
    cp.run(cp.checkpoint(world.engine))
    assert world.disk.syncs - before == 2  # the file system, and the catalogue


def test_a_failed_checkpoint_keeps_its_marks_and_is_done_again() -> None:
    """A failed checkpoint elsewhere dropped the set of what it had taken."""
    disk = FaultDisk()
    world = World(disk)
    world.create("/a")
    world.append("/a", b"x" * 100)
    disk.fail_at, disk.period, disk.fault, disk.only = disk.calls + 4, 1, 28, ("pwrite",)
    with pytest.raises(WriteFailedError):
        world.checkpoint()
    disk.fail_at = 0
    assert world.engine.dirty
    expected = dump(world.engine)
    world.checkpoint()
    engine, report = start(disk.survivor())
    assert dump(engine) == expected
    assert report.replayed == 0


def test_removed_streams_and_passed_segments_give_their_space_back() -> None:
    world = World()
    world.create("/a")
    world.create("/b")
    for _ in range(5):
        world.append("/a", b"x" * 250)
        world.append("/b", b"y" * 250)
        world.checkpoint()
    world.delete("/b")
    world.publish("/a", 1000, b"folded")
    world.checkpoint()
    files = world.disk.files()
    assert not [path for path in files if "0002/" in path]
    segments = [path for path in files if path.endswith(".log")]
    assert segments == [fmt.segment_path(1, 1000)]
    view = world.engine.view(world.engine.namespace.by_key["/a"])
    assert view.read(1000, 1250) == b"x" * 250


@pytest.mark.parametrize("end", ["snapshot", "delete"])
def test_what_forks_no_longer_read_of_a_deleted_stream_goes_while_the_server_runs(end: str) -> None:
    """Also of its source: the stream between is gone, and another fork of it reads only the end."""
    world = World()
    world.create("/a")
    world.append("/a", b"x" * 150, b"y" * 150)
    world.checkpoint()
    world.fork("/b", "/a", 300)
    world.append("/b", b"z" * 300)
    world.checkpoint()
    world.fork("/c", "/b", 600)
    world.fork("/d", "/b", 600)
    world.publish("/d", 600, b"folded")
    for key in ("/a", "/b"):
        world.delete(key)
    world.checkpoint()
    kept = [world.engine.namespace.by_key[key].id for key in ("/a", "/b")]
    assert all(
        world.disk.exists(fmt.segment_path(stream, at))
        for stream, at in zip(kept, (0, 300), strict=True)
    )
    if end == "snapshot":
        world.publish("/c", 600, b"folded")
    else:
        world.delete("/c")
    world.checkpoint()
    world.checkpoint()
    assert passed(world.engine) == []
    assert not any(
        world.disk.exists(fmt.segment_path(stream, at))
        for stream, at in zip(kept, (0, 300), strict=True)
    )


def test_retention_frees_nothing_that_a_fork_reads() -> None:
    world = World()
    world.create("/a")
    for _ in range(4):
        world.append("/a", b"x" * 250)
        world.checkpoint()
    world.fork("/f", "/a", 500)
    world.publish("/a", 1000, b"folded")
    world.checkpoint()
    fork = world.engine.namespace.by_key["/f"]
    assert world.engine.view(fork).read(0, 500) == b"x" * 500
    assert fmt.segment_path(1, 0) in world.disk.files()
    world.delete("/f")
    world.checkpoint()
    assert fmt.segment_path(1, 0) not in world.disk.files()
    assert fmt.segment_path(1, 750) not in world.disk.files()


def test_a_reader_keeps_its_files_until_it_is_done() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"x" * 250)
    world.checkpoint()
    stream = world.engine.namespace.by_key["/a"]
    with world.engine.reading(stream) as view:
        world.delete("/a")
        world.checkpoint()
        assert view.read(0, 250) == b"x" * 250
    world.checkpoint()
    assert not [path for path in world.disk.files() if path.startswith("streams/")]


def test_an_outdated_catalogue_is_written_anew() -> None:
    world = World(SimDisk())
    world.create("/a")
    for _ in range(1200):
        world.append("/a", b"x")
        world.checkpoint()
    assert world.engine.catalog.number == 2
    assert len(world.disk.names("catalog")) == 1
    expected = dump(world.engine)
    engine, _ = start(world.disk.survivor())
    assert dump(engine) == expected


def test_streams_at_rest_hold_no_handle() -> None:
    world = World()
    for number in range(20):
        world.create(f"/s{number}")
    world.checkpoint()
    engine, _ = start(world.disk.survivor())
    disk = engine.disk
    assert isinstance(disk, SimDisk)
    assert disk.open_handles == 3  # two locks and the journal


class PickyDisk(SimDisk):
    """Refuses to write to some files."""

    refused: tuple[str, ...] = ()

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        if self._paths[handle] in self.refused:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return super().pwrite(handle, data, position)


def whole(world: World, key: str) -> bytes:
    view = world.engine.view(world.engine.namespace.by_key[key])
    assert [end for _, end in view.messages(0)][-1] == view.tail
    return view.read(0, view.tail)


@pytest.mark.parametrize("order", [("/a", "/b"), ("/b", "/a")])
def test_a_failed_job_takes_nothing_along_that_succeeded_beside_it(order: tuple[str, ...]) -> None:
    """The beginning of a segment was forgotten, and the next one's bytes could not be found."""
    disk = PickyDisk()
    world = World(disk)
    for key in order:
        world.create(key)
        world.append(key, b"1" * 50)
    world.checkpoint()
    written = dict.fromkeys(order, b"1" * 50)
    broken = world.engine.namespace.by_key["/a"].id
    for number in range(4):
        for key in order:
            world.append(key, b"%d" % number * 120)
            written[key] += b"%d" % number * 120
        disk.refused = (fmt.segment_path(broken, 0),) if number < 3 else ()
        if disk.refused:
            with pytest.raises(WriteFailedError):
                world.flush()
        else:
            world.flush()
        assert {key: whole(world, key) for key in order} == written
    expected = dump(world.engine)
    world.reopen()
    assert {key: whole(world, key) for key in order} == written
    world.checkpoint()
    assert dump(world.engine) == expected
    assert {key: whole(world, key) for key in order} == written


def test_a_directory_with_an_orphan_index_of_an_older_version_is_served() -> None:
    world = World()
    world.create("/a")
    for number in range(6):
        world.append("/a", b"%d" % number * 90)
        if number % 3 == 2:
            world.checkpoint()
    stream = world.engine.namespace.by_key["/a"]
    assert world.engine.placements[stream.id].base > 180
    expected = dump(world.engine)
    state = world.engine.state_frame(stream)._replace(start=180)
    log.begin_segment(world.disk, stream.id, 180, state)
    assert dump(world.engine) == expected
    world.reopen()
    assert dump(world.engine) == expected
    world.publish("/a", 270, b"folded")  # retention looks at the segments, too
    expected = dump(world.engine)
    for _ in range(2):
        world.checkpoint()
        assert dump(world.engine) == expected


def test_a_stream_deleted_during_a_checkpoint_is_gone_from_the_disk_after_a_kill() -> None:
    """The commit had its row, not its removal; its bytes stayed for ever."""
    world = World()
    world.create("/a")
    world.append("/a", b"secret to be erased")
    world.checkpoint()
    world.append("/a", b" soon")
    deleted: list[object] = []

    def between() -> None:
        if not deleted:
            deleted.append(world.delete("/a"))

    original = cp._record

    def record(*arguments: object) -> object:
        between()
        return original(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp, "_record", record)
        patch.setattr(cp, "_remove_files", lambda *_: iter(()))
        world.checkpoint()
    assert deleted
    assert unreferenced(world.engine, world.disk)
    world.reopen()
    assert unreferenced(world.engine, world.disk) == []


def test_directories_of_streams_that_ended_go_when_the_directory_is_opened() -> None:
    world = World()
    for key in ("/a", "/b"):
        world.create(key)
        world.append(key, b"x")
    world.checkpoint()
    world.delete("/a")
    world.checkpoint()
    log.make_directories(world.disk, 1)  # as an older version left it
    write_at(world.disk, fmt.segment_path(1, 0), [b"secret"], 0)
    world.reopen()
    assert unreferenced(world.engine, world.disk) == []
    assert not world.disk.exists(fmt.stream_dir(1))


def test_a_directory_of_a_stream_that_was_never_made_is_left_alone() -> None:
    world = World()
    log.make_directories(world.disk, 9)
    write_at(world.disk, fmt.segment_path(9, 0), [b"somebody's"], 0)
    world.reopen()
    assert world.disk.read(fmt.segment_path(9, 0)) == b"somebody's"
    world.create("/a")
    assert world.engine.namespace.by_key["/a"].id == 10


def test_a_blob_that_no_record_names_is_gone_after_a_kill() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"xy")
    world.checkpoint()
    world._upload(world.engine.namespace.by_key["/a"], 2, b"never named")
    for passing in (False, True):
        if passing:  # the checkpoint takes the touch along; its commit speaks of the stream
            world.checkpoint()
        twin = SimDisk(world.disk.survivor().root)
        assert unreferenced(world.engine, twin)
        engine, _ = start(twin)
        assert unreferenced(engine, twin) == []


def test_a_failed_checkpoint_forgets_no_removal() -> None:
    disk = FaultDisk()
    world = World(disk)
    world.create("/a")
    world.create("/b")
    for _ in range(6):
        world.append("/a", b"x" * 100)
        world.append("/b", b"y" * 100)
    world.checkpoint()
    world.publish("/a", 600, b"folded")
    world.delete("/b")
    disk.fail_at, disk.period, disk.fault, disk.only = 1, 1, errno.EIO, ("pwrite",)
    with pytest.raises(WriteFailedError):
        cp.run(cp.checkpoint(world.engine))
    disk.fail_at = 0
    world.append("/a", b"z" * 300)
    for _ in range(2):
        world.checkpoint()
    assert passed(world.engine) == []
    assert unreferenced(world.engine, disk) == []
