"""Every operation of the disk as a crash point: the invariants of ARCHITECTURE.md hold after each.

The states are counted; CI looks at more than 200,000 (``STATES_MIN`` per shard, ``SHARDS`` shards).
A failure prints its seed: ``hunt(seed, ...)`` replays it exactly.
"""

import random
from itertools import count

import pytest

from durastreamd.storage.scan import is_drawn
from tests.support.crashes import check, explore, hunt, recovered
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import World, dump, numbered_from_1, start

SHARDS = 24
STATES_MIN = 8_500


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_crash_loses_or_doubles_what_was_acknowledged(shard: int) -> None:
    states = 0
    for seed in count(shard * 1000):
        tally = hunt(seed, steps=30, cap=6)
        assert tally.states >= tally.points > 0, f"seed {seed} looked at too little to count"
        states += tally.states
        if states >= STATES_MIN:
            return


def test_a_crash_while_a_directory_is_made_leaves_one_or_none() -> None:
    """And if it is used after a kill, the next power cut does not undo that it was made."""
    disk = SimDisk()
    left: list[tuple[SimDisk, str]] = []
    disk.hook = lambda name, path: left.append((disk.survivor(), f"{name} {path}"))
    start(disk, create=True)
    rng = random.Random(0)
    for found, where in left:
        for image in crash_images(found, rng, cap=8, weak=True):
            world = World(image)
            world.create("/a")
            check(recovered(image.survivor(), where), [dump(world.engine)], where)
        world = World(found.survivor())
        world.create("/a")
        world.append("/a", b"acknowledged")
        seen = recovered(world.disk.survivor(), where)
        for image in crash_images(world.disk, rng, cap=8, weak=True):
            check(recovered(image, f"kill at {where}, then cut"), [seen], where)
    assert len(left) > 10


@pytest.mark.slow
def test_no_crash_in_the_first_start_on_an_older_directory_loses_anything() -> None:
    """Its sequence numbers jump from where an older version left them to where nobody guesses."""
    with numbered_from_1():
        world = World()
    for operation in (
        lambda: world.create("/a"),
        lambda: world.append("/a", b"in the journal"),
        world.checkpoint,
        lambda: world.append("/a", b"and after a checkpoint"),
    ):
        world.step(operation)
    rng = random.Random(0)
    assert sum(explore(point, rng, cap=2, deep=0.5) for point in world.points) > 300
    engine, _ = start(world.disk.survivor())
    assert world.engine.journal.next_lsn < 10
    assert is_drawn(engine.journal.next_lsn)
