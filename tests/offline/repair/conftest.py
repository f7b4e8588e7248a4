"""A directory to be repaired: one stream of four records, in one segment."""

import pytest

from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import World


@pytest.fixture
def disk() -> MovingDisk:
    """Forty bytes at rest, whole."""
    world = World()
    world.create("/a")
    for number in range(4):
        world.append("/a", b"%d" % number * 10)
    world.checkpoint()
    return moving(world.disk)
