"""A directory with one of each: segments, records in the journal, JSON, a fork, a snapshot."""

import pytest

from durastreamd.model.records import Mark
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import Dump, World, dump


@pytest.fixture(scope="module")
def world() -> World:
    """/a has three segments and records in the journal; /j is JSON; /f forked /a; /s a snapshot."""
    world = World()
    world.create("/a")
    world.create("/j", content_type="application/json")
    world.create("/s")
    for number in range(12):
        world.append("/a", b"%04d" % number * 20, producer=("p", 0, number))
        world.append("/j", b'{"n":%d},\n' % number)
        world.append("/s", b"s%d" % number)
        if number % 4 == 3:
            world.checkpoint()
    world.fork("/f", "/a", 160)
    world.append("/f", b"the fork's own")
    world.publish("/s", 10, b"folded up to ten")
    world.checkpoint()
    world.append("/a", b"after the checkpoint", producer=("p", 0, 12))
    world.append("/j", b'"late",\n')
    world.commit([(Mark(world.now_ms), b"")])
    return world


@pytest.fixture
def disk(world: World) -> MovingDisk:
    return moving(world.disk)


@pytest.fixture(scope="module")
def before(world: World) -> Dump:
    return dump(world.engine)
