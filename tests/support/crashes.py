"""Crash enumeration: from every crash point of a world to every disk a crash there may leave.

A crash is a kill, a power cut, a kill and then a power cut; and each of them comes again inside
the recovery that follows any of them (``_crashes_inside``), at every operation now and then.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from durastreamd.engine import checkpoint as cp
from durastreamd.errors import DurastreamError
from durastreamd.storage import format as fmt
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import (
    CrashPoint,
    Dump,
    World,
    dump,
    passed,
    random_step,
    start,
    unreferenced,
)


class ViolationError(AssertionError):
    """An invariant does not hold; the message says which and where."""


class Tally(NamedTuple):
    """How much was looked at."""

    states: int
    points: int


def recovered(disk: SimDisk, where: str) -> Dump:
    """Open a crashed disk and return what it is found as; recovery must not fail (I8)."""
    before = set(disk.names(fmt.QUARANTINE_DIR))
    try:
        engine, _ = start(disk)
        found = dump(engine)
        # No crash makes a record unusable; one that was set aside was built on a missing one.
        fresh = {*disk.names(fmt.QUARANTINE_DIR)} - before
        aside = [name for name in fresh if name.endswith(".frames")]
        assert not aside, f"records were set aside: {aside}"
    except (DurastreamError, AssertionError, OSError, KeyError, ValueError) as exc:
        message = f"{where}: recovery failed: {exc!r}"
        raise ViolationError(message) from exc
    return found


def check(found: Dump, legal: list[Dump], where: str) -> None:
    """I1-I5, I7: the state is one that a crash here may leave, whole."""
    if found not in legal:
        nearest = legal[-1]
        differing = {
            key: (found.get(key), nearest.get(key))
            for key in {*found, *nearest}
            if found.get(key) != nearest.get(key)
        }
        message = f"{where}: found (left) instead of legal (right): {differing}"
        raise ViolationError(message)


def explore(point: CrashPoint, rng: random.Random, *, cap: int, deep: float) -> int:
    """Recover from a sample of what a crash at this point may leave; return how many states."""
    states = 0
    where = point.operation
    for image in crash_images(point.disk, rng, cap=cap, weak=rng.random() < 0.5):
        before = image.survivor()
        found = recovered(image, f"power cut at {where}")
        check(found, point.legal, f"power cut at {where}")
        states += 1
        if rng.random() < deep:
            states += _tidied(before.survivor(), rng, f"a power cut at {where}")
        if rng.random() < deep:
            # What a power cut left is durable, so whatever follows finds the same.
            states += _crashes_inside(before, [found], rng, f"a power cut at {where}")
        if rng.random() < deep:
            # I6: what recovery shows is durable, and recovering again changes nothing.
            again = next(iter(crash_images(image, rng, cap=1)))
            place = f"second cut after {where}"
            check(recovered(again, place), [found], place)
            states += 1
    # kill -9, restart, readers see it, and then the power fails.
    survivor = point.disk.survivor()
    seen = recovered(survivor, f"kill at {where}")
    check(seen, point.legal, f"kill at {where}")
    states += 1
    if rng.random() < 3 * deep:
        states += _tidied(point.disk.survivor(), rng, f"a kill at {where}")
    if rng.random() < deep:
        # What was on its way at the kill may be lost as long as nobody was shown it.
        states += _crashes_inside(point.disk, point.legal, rng, f"a kill at {where}")
    for image in crash_images(survivor, rng, cap=2):
        place = f"kill, then cut, at {where}"
        before = image.survivor()
        check(recovered(image, place), [seen], place)
        states += 1
        if rng.random() < deep / 2:
            states += _crashes_inside(before, [seen], rng, place)
    return states


def _tidied(disk: SimDisk, rng: random.Random, after: str) -> int:
    """I11: with the second checkpoint after a crash nothing is left that nothing refers to."""
    engine, _ = start(disk)
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))
    for held in (disk, next(iter(crash_images(disk, rng, cap=1)))):
        left = [*unreferenced(engine, held), *passed(engine)]
        if left:
            message = f"{after}: left on the disk after two checkpoints: {left}"
            raise ViolationError(message)
    return 1


def _crashes_inside(disk: SimDisk, legal: list[Dump], rng: random.Random, after: str) -> int:
    """I8 at depth two: crash inside a recovery, in every way, at each operation now and then."""
    disks: list[SimDisk] = []
    trial = disk.survivor()
    trial.hook = lambda _name, _path: disks.append(trial.survivor()) if rng.random() < 0.2 else None
    check(recovered(trial, after), legal, after)
    states = 1
    for disk in disks:
        for image in crash_images(disk, rng, cap=2):
            place = f"power cut inside the recovery after {after}"
            check(recovered(image, place), legal, place)
            states += 1
        place = f"kill inside the recovery after {after}"
        killed = disk.survivor()
        seen = recovered(killed, place)
        check(seen, legal, place)
        image = next(iter(crash_images(killed, rng, cap=1)))
        check(recovered(image, f"{place}, then cut"), [seen], f"{place}, then cut")
        states += 2
    return states


def hunt_an_end_in_a_checkpoint() -> None:
    """Crash after a checkpoint during which a stream grew and ended: too rare for dice."""
    world = World()
    world.create("/a")
    world.append("/a", b"in an older row")
    world.checkpoint()
    world.append("/a", b"in the journal that goes")
    world.engine.journal.rotate()
    steps = cp.checkpoint(world.engine)
    job = next(steps)
    world.append("/a", b"in the journal that stays")
    world.delete("/a")
    with suppress(StopIteration):
        while True:
            job = steps.send(job())
    check(recovered(world.disk.survivor(), "after the checkpoint"), [{}], "after the checkpoint")


@contextmanager
def catalogue_rewritten_at(outdated: int) -> Iterator[None]:
    """Have a catalogue written anew after so few outdated rows that a short run gets there."""
    before, cp._OUTDATED_MIN = cp._OUTDATED_MIN, outdated
    try:
        yield
    finally:
        cp._OUTDATED_MIN = before


Choose = Callable[[World, random.Random], Callable[[], object]]


def hunt(
    seed: int, *, steps: int, cap: int, deep: float = 0.1, choose: Choose = random_step
) -> Tally:
    """Drive a random world and explore every crash point of every step."""
    rng = random.Random(seed)
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)  # thousands of recoveries
    with catalogue_rewritten_at(rng.choice((4, 1000))):
        return _hunt(rng, steps, cap, deep, choose)


def _hunt(
    rng: random.Random, steps: int, cap: int, deep: float, choose: Choose = random_step
) -> Tally:
    world = World()
    states = points = 0
    for _ in range(steps):
        operation = choose(world, rng)
        world.step(operation)
        for point in world.points:
            states += explore(point, rng, cap=cap, deep=deep)
        points += len(world.points)
        world.points = []
    return Tally(states, points)
