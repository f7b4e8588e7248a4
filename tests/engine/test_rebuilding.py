"""What can be rebuilt is: a state from its records. What cannot be verified is not served."""

import pytest

from durastreamd.engine.engine import Engine
from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt
from tests.support.sim_disk import SimDisk
from tests.support.world import World, start


def busy_world() -> World:
    """A stream whose first index has a state among its records."""
    world = World()
    world.create("/j", content_type="application/json")
    for number in range(8):
        world.append("/j", b"%d,\n" % number, producer=("p", 0, number))
        world.checkpoint()
    return world


def state_position(engine: Engine) -> tuple[str, int]:
    stream = engine.namespace.by_key["/j"]
    place = engine.placements[stream.id]
    assert place.state_at > 0
    return fmt.index_path(stream.id, place.base), place.state_at


def damaged(disk: SimDisk, path: str, *positions: int) -> Engine:
    twin = disk.survivor()

    def flip(data: bytearray) -> None:
        for position in positions:
            data[position] ^= 0x10

    twin.damage(path, flip)
    return start(twin)[0]


def test_a_damaged_state_is_rebuilt_from_the_records_before_it() -> None:
    world = busy_world()
    path, at = state_position(world.engine)
    for position in range(at, at + fmt.ENTRY.size + 20):
        engine = damaged(world.disk, path, position)
        detail = engine.load_detail(engine.namespace.by_key["/j"])
        assert detail.producers == {"p": (0, 7)}, position


def test_a_damaged_record_is_not_passed_over() -> None:
    """The last state is damaged, too, so that it cannot stand for the record before it."""
    world = busy_world()
    path, at = state_position(world.engine)
    engine = damaged(world.disk, path, at - 3, at + 20)
    with pytest.raises(CorruptDataError, match="does not verify"):
        engine.load_detail(engine.namespace.by_key["/j"])


def test_bytes_whose_sums_are_lost_are_not_read() -> None:
    world = World()
    world.create("/j", content_type="application/json")
    for _ in range(4):
        world.append("/j", b'"%b",\n' % (b"x" * 250))
        world.checkpoint()
    stream = world.engine.namespace.by_key["/j"]
    twin = world.disk.survivor()
    twin.unlink(fmt.index_path(stream.id, 0))
    engine, _ = start(twin)
    view = engine.view(engine.namespace.by_key["/j"])
    for wanted in (lambda: view.read(0, 254), lambda: view.is_boundary(253)):
        with pytest.raises(CorruptDataError, match="missing"):
            wanted()
    assert len(view.read(254, view.tail)) == 3 * 254
