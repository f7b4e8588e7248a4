"""Crash enumeration: from every crash point of a world to every disk a crash there may leave."""

import logging
import random
from typing import NamedTuple

from durastreamd.errors import DurastreamError
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import CrashPoint, Dump, World, dump, random_step, start


class ViolationError(AssertionError):
    """An invariant does not hold; the message says which and where."""


class Tally(NamedTuple):
    """How much was looked at."""

    states: int
    points: int


def recovered(disk: SimDisk, where: str) -> Dump:
    """Open a crashed disk and return what it is found as; recovery must not fail (I8)."""
    try:
        engine, _ = start(disk)
        found = dump(engine)
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
        nested = _crashes_inside(image, rng, where) if rng.random() < deep else 0
        found = recovered(image, f"power cut at {where}")
        check(found, point.legal, f"power cut at {where}")
        states += 1 + nested
        if rng.random() < deep:
            # I6: what recovery shows is durable, and recovering again changes nothing.
            again = next(iter(crash_images(image, rng, cap=1)))
            check(
                recovered(again, f"second cut after {where}"), [found], f"second cut after {where}"
            )
            states += 1
    # kill -9, restart, readers see it, and then the power fails.
    survivor = point.disk.survivor()
    seen = recovered(survivor, f"kill at {where}")
    check(seen, point.legal, f"kill at {where}")
    states += 1
    for image in crash_images(survivor, rng, cap=2):
        check(
            recovered(image, f"kill, then cut, at {where}"), [seen], f"kill, then cut, at {where}"
        )
        states += 1
    return states


def _crashes_inside(image: SimDisk, rng: random.Random, where: str) -> int:
    """I8 at depth two: cut the power inside recovery, at each of its operations now and then."""
    twin = image.survivor()
    expected = recovered(twin.survivor(), f"power cut at {where}")
    disks: list[SimDisk] = []
    trial = twin.survivor()
    trial.hook = lambda _name, _path: disks.append(trial.survivor()) if rng.random() < 0.2 else None
    recovered(trial, f"power cut at {where}")
    states = 1
    for disk in disks:
        for cut in crash_images(disk, rng, cap=2):
            place = f"power cut inside the recovery after {where}"
            check(recovered(cut, place), [expected], place)
            states += 1
    return states


def hunt(seed: int, *, steps: int, cap: int, deep: float = 0.1) -> Tally:
    """Drive a random world and explore every crash point of every step."""
    rng = random.Random(seed)
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)  # thousands of recoveries
    world = World()
    states = points = 0
    for _ in range(steps):
        operation = random_step(world, rng)
        world.step(operation)
        for point in world.points:
            states += explore(point, rng, cap=cap, deep=deep)
        points += len(world.points)
        world.points = []
    return Tally(states, points)
