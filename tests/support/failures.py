"""The failing half of the simulation: the disk refuses now and then while everything goes on.

Before an operation of a random world a fault is armed: an error, the operation of the disk that
meets it, whether it comes again. Whatever was refused, the world is then what was acknowledged, and
can be read; and so it is after a kill or a power cut at that moment. A failed ``sync`` ends the
process by design and is met one at a time by ``test_nth_operation_fails``.
"""

import errno
import logging
import random

from durastreamd.engine.opening import Report
from durastreamd.errors import StorageError, SyncFailedError
from tests.support.crashes import (
    Tally,
    ViolationError,
    _tidied,
    catalogue_rewritten_at,
    check,
    recovered,
)
from tests.support.fault_disk import _COUNTED, FaultDisk
from tests.support.sim_disk import crash_images
from tests.support.world import Dump, World, dump, random_step, start

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
FAILING = tuple(name for name in _COUNTED if name not in ("sync", "truncate"))


class FailingWorld(World):
    """A world on a disk that can be told to fail."""

    disk: FaultDisk  # type: ignore[mutable-override]

    def __init__(self) -> None:
        super().__init__(FaultDisk())

    def reopen(self) -> Report:
        self.disk = FaultDisk(self.disk.survivor().root)
        self.engine, report = start(self.disk, now_ms=self.now_ms)
        return report

    def look(self) -> Dump:
        """Look without meeting the fault, and without using up operations."""
        calls, fail_at, self.disk.fail_at = self.disk.calls, self.disk.fail_at, 0
        found = dump(self.engine)
        self.disk.calls, self.disk.fail_at = calls, fail_at
        return found

    def arm(self, rng: random.Random) -> None:
        disk = self.disk
        disk.fault, disk.only = rng.choice(ERRORS), FAILING
        disk.fail_at = disk.calls + rng.randrange(1, rng.choice((4, 12, 40)))
        disk.period = rng.choice((0, 0, 1, 3, 7))


def hunt_failures(seed: int, *, steps: int, cap: int = 2) -> Tally:
    """Drive a random world whose disk fails, and look at it after each failure."""
    rng = random.Random(seed)
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)
    with catalogue_rewritten_at(rng.choice((4, 1000))):
        return _hunt(FailingWorld(), rng, steps, cap)


def _hunt(world: FailingWorld, rng: random.Random, steps: int, cap: int) -> Tally:
    states = failures = 0
    for number in range(steps):
        operation = random_step(world, rng)
        world.now_ms += 10
        world._history, world._acked = [dump(world.engine)], 0
        before, ended = world.disk, False
        if operation != world.reopen and rng.random() < 0.7:
            world.arm(rng)
        try:
            operation()
        except SyncFailedError:
            ended = True
        except (StorageError, OSError, KeyError):
            pass  # refused; or it built on what was refused
        before.fail_at = world.disk.fail_at = 0
        failures += before.fired > 0
        legal = [world._history[world._acked]]
        where = f"step {number}, error {world.disk.fault}"
        if not ended:
            _now(world, legal[0], where)
        if ended or before.fired or rng.random() < 0.2:
            for image in crash_images(world.disk, rng, cap=cap, weak=True):
                check(recovered(image, f"cut after {where}"), legal, f"cut after {where}")
                states += 1
            check(recovered(world.disk.survivor(), f"kill after {where}"), legal, where)
            states += 2
        before.fired = world.disk.fired = 0
        if ended:
            world.reopen()
    states += _tidied(world.disk.survivor(), rng, "failures")
    return Tally(states, failures)


def _now(world: FailingWorld, expected: object, where: str) -> None:
    """What was acknowledged can be read at once: placements and files agree."""
    try:
        found = dump(world.engine)
    except (StorageError, OSError, AssertionError) as exc:
        message = f"{where}: cannot be read: {exc!r}"
        raise ViolationError(message) from exc
    if found != expected:
        message = f"{where}: shown {found}, acknowledged {expected}"
        raise ViolationError(message)
