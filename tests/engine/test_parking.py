"""A stream whose files refuse to be written holds up nobody, and loses nothing."""

import errno
import random

import pytest

from durastreamd.engine import checkpoint as cp, parking
from durastreamd.errors import StreamDamagedError, WriteFailedError
from durastreamd.storage import format as fmt
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import Dump, World, dump, start


class RefusingDisk(SimDisk):
    """Refuses to open files for writing whose paths begin so, and to make any there."""

    refused = "nothing"
    fault = errno.EPERM

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        if (create or write) and path.startswith(self.refused):
            raise OSError(self.fault, "refused", path)
        return super().open(path, create=create, write=write)

    def make_directory(self, path: str) -> None:
        if path.startswith(self.refused):
            raise OSError(self.fault, "refused", path)
        super().make_directory(path)


class RefusingWorld(World):
    """A world in which the files of some streams cannot be written."""

    disk: RefusingDisk  # type: ignore[mutable-override]

    def refuse(self, key: str) -> None:
        self.disk.refused = fmt.stream_dir(self.engine.namespace.by_key[key].id)

    def allow(self) -> None:
        self.disk.refused = "nothing"

    def park(self) -> None:
        """Take checkpoints until the stream that refuses is parked."""
        for _ in range(parking.TRIES_MAX - 1):
            with pytest.raises(WriteFailedError):
                self.checkpoint()
        self.checkpoint()

    def journals(self) -> int:
        return len(self.disk.names(fmt.JOURNAL_DIR))

    def restarted(self) -> Dump:
        """Return what a start finds that can write everything."""
        engine, _ = start(self.disk.survivor())
        assert not engine.damaged
        return dump(engine)


@pytest.fixture
def world() -> RefusingWorld:
    """Two streams in their files; /a refuses to be written, and has one more record."""
    world = RefusingWorld(RefusingDisk())
    for key in ("/a", "/b"):
        world.create(key)
        world.append(key, b"in the files of " + key.encode())
    world.checkpoint()
    world.refuse("/a")
    world.append("/a", b"one more")
    return world


def test_it_keeps_a_few_journal_files_and_then_none(world: RefusingWorld) -> None:
    for _ in range(parking.TRIES_MAX + 20):
        world.append("/b", b"and others go on")
        try:
            world.checkpoint()
        except WriteFailedError:
            assert world.journals() <= parking.TRIES_MAX
    assert world.journals() == 1
    assert world.engine.unwritable.keys() == {world.engine.namespace.by_key["/a"].id}


def test_it_is_served_from_memory_and_found_by_the_next_start(world: RefusingWorld) -> None:
    world.park()
    assert world.restarted() == world.look()
    world.touch("/a")  # the one record that it still takes; it is set aside, too
    world.append("/b", b"two more")
    world.checkpoint()
    assert world.restarted() == world.look()


def test_a_stream_that_has_no_files_yet_is_parked_as_well(world: RefusingWorld) -> None:
    world.allow()
    world.create("/new")
    world.refuse("/new")
    world.append("/new", b"first bytes")
    world.park()
    assert world.journals() == 1
    assert world.restarted() == world.look()


def test_it_goes_on_as_soon_as_it_can_be_written(world: RefusingWorld) -> None:
    world.park()
    world.allow()
    world.checkpoint()
    assert not world.engine.unwritable
    assert not world.engine.hot
    world.append("/a", b"and another")
    assert world.restarted() == world.look()
    world.checkpoint()
    assert world.restarted() == world.look()


def test_it_is_refused_by_a_start_that_cannot_write_either(world: RefusingWorld) -> None:
    world.park()
    shown = world.look()
    again = RefusingDisk(world.disk.survivor().root)
    again.refused = world.disk.refused
    for _ in range(2):
        engine, _ = start(again)
        stream = engine.namespace.by_key["/a"]
        with pytest.raises(StreamDamagedError, match="set aside up to record"):
            engine.view(stream)
        engine.release()
    assert dump(start(again.survivor())[0]) == shown


def test_a_file_the_disk_does_not_hand_out_at_a_start_is_used_by_the_next(
    world: RefusingWorld,
) -> None:
    """A cable, a controller: the records of the stream wait in quarantine, none is given up."""
    shown = world.look()
    failing = RefusingDisk(world.disk.survivor().root)
    failing.refused, failing.fault = world.disk.refused, errno.EIO
    engine, report = start(failing)
    assert len(report.damaged) == 1
    engine.release()
    assert dump(start(failing.survivor())[0]) == shown


def test_a_deleted_one_is_gone(world: RefusingWorld) -> None:
    world.park()
    world.delete("/a")
    assert not world.engine.unwritable
    assert "/a" not in world.restarted()
    world.checkpoint()
    assert "/a" not in world.restarted()


def test_want_of_room_parks_nobody(world: RefusingWorld) -> None:
    world.disk.fault = errno.ENOSPC
    for _ in range(2 * parking.TRIES_MAX):
        with pytest.raises(WriteFailedError):
            world.checkpoint()
    assert not world.engine.unwritable


@pytest.mark.slow
def test_no_crash_while_it_is_parked_or_goes_on_loses_anything(world: RefusingWorld) -> None:
    left: list[SimDisk] = []
    world.disk.hook = lambda _name, _path: left.append(world.disk.survivor())
    world.park()
    world.allow()
    world.checkpoint()
    world.disk.hook = None
    shown, rng = world.look(), random.Random(0)
    assert len(left) > 30
    for disk in left:
        for image in (*crash_images(disk, rng, cap=3, weak=True), disk.survivor()):
            inside: list[SimDisk] = []

            def keep(
                _name: str, _path: str, *, at: SimDisk = image, to: list[SimDisk] = inside
            ) -> None:
                to.append(at.survivor())

            image.hook = keep
            assert dump(start(image)[0]) == shown
            for deeper in rng.sample(inside, 2):
                assert dump(start(deeper)[0]) == shown


def test_the_flush_for_memory_leaves_it_out_and_ends(world: RefusingWorld) -> None:
    world.append("/a", b"x" * 2000)
    world.park()
    world.append("/b", b"y" * 2000)
    assert world.engine.hot_bytes > world.engine.options.hot_bytes_max
    cp.run(cp.flush(world.engine))
    assert [*world.engine.hot] == [world.engine.namespace.by_key["/a"].id]
