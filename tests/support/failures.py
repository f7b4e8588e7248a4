"""The failing half of the simulation: the disk refuses now and then while everything goes on.

Before an operation of a random world a fault is armed: an error, the operation of the disk that
meets it, whether it comes again. Whatever was refused, the world is then what was acknowledged, and
can be read; and so it is after a kill or a power cut at that moment.

A failed sync ends the process. What was on its way may be there afterwards or not, up to any
record, and may be seen in the kernel's memory although it is not on the disk and never will be
(``Inode.fail``). Whatever the next start shows is there for good.
"""

import errno
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from durastreamd.engine import checkpoint as cp, parking
from durastreamd.engine.opening import Report
from durastreamd.errors import StorageError, SyncFailedError
from durastreamd.model.records import Record
from tests.support.crashes import (
    Tally,
    ViolationError,
    _crashes_inside,
    _tidied,
    catalogue_rewritten_at,
    check,
    recovered,
)
from tests.support.fault_disk import COUNTED, FaultDisk
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import Dump, World, dump, passed, random_step, start

SYNCS = ("sync", "sync_directory", "sync_everything", "truncate")
OUTLIVED = tuple(name for name in COUNTED if name not in ("sync", "truncate"))
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE)


@contextmanager
def parked_after(tries: int) -> Iterator[None]:
    """Have streams parked whose files refused so many checkpoints."""
    before, parking.TRIES_MAX = parking.TRIES_MAX, tries
    try:
        yield
    finally:
        parking.TRIES_MAX = before


class FailingWorld(World):
    """A world on a disk that can be told to fail."""

    disk: FaultDisk  # type: ignore[mutable-override]
    failing: tuple[tuple[str, ...], ...] = (COUNTED,)

    def __init__(self, rng: random.Random | None = None) -> None:
        super().__init__(FaultDisk(rng=rng))

    def reopen(self) -> Report:
        self.disk = FaultDisk(self.disk.survivor().root, self.disk.rng)
        self.engine, report = start(self.disk, now_ms=self.now_ms)
        return report

    def commit(self, records: list[tuple[Record, bytes | memoryview]]) -> None:
        """Commit; when the process has to end by it, note what may be found of the batch."""
        engine = self.engine
        first = engine.journal.next_lsn
        try:
            super().commit(records)
        except SyncFailedError:
            # Nobody looks at this engine any more; it tells what each record would have made.
            self.disk.mend()
            for lsn, drafted in enumerate(records, first):
                engine.applied(drafted[0], engine.stage(*drafted, lsn))
                self._history.append(dump(engine))
            raise

    def look(self) -> Dump:
        """Look without meeting the fault, and without using up operations."""
        calls, fail_at, self.disk.fail_at = self.disk.calls, self.disk.fail_at, 0
        found = dump(self.engine)
        self.disk.calls, self.disk.fail_at = calls, fail_at
        return found

    def arm(self, rng: random.Random) -> None:
        disk = self.disk
        disk.fault, disk.only = rng.choice(ERRORS), rng.choice(self.failing)
        disk.fail_at = disk.calls + rng.randrange(1, rng.choice((4, 12, 40)))
        disk.period = rng.choice((0, 0, 1, 3, 7))
        disk.ragged = rng.random() < 0.5


def hunt_failures(seed: int, *, steps: int, cap: int = 2) -> Tally:
    """Drive a random world whose disk fails, and look at it after each failure."""
    rng = random.Random(seed)
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)
    with catalogue_rewritten_at(rng.choice((4, 1000))), parked_after(rng.choice((1, 4))):
        world = FailingWorld(rng)
        # In half of the worlds the process mostly outlives it, so that more is built on a failure.
        world.failing = rng.choice(((OUTLIVED,), (COUNTED, SYNCS, OUTLIVED)))
        return _hunt(world, rng, steps, cap)


def _hunt(world: FailingWorld, rng: random.Random, steps: int, cap: int) -> Tally:
    states = failures = 0
    for number in range(steps):
        operation = random_step(world, rng)
        world.now_ms += 10
        world._history, world._acked = [dump(world.engine)], 0
        before, ended, waiting = world.disk, False, bool(world.engine.trimmed)
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
        legal = world._history[world._acked :] if ended else [world._history[world._acked]]
        where = f"step {number}, error {world.disk.fault}"
        if not ended:
            _now(world, legal[0], where)
        if ended or before.fired or rng.random() < 0.2:
            states += _crashes(world.disk, legal, rng, cap, where, deep=ended)
        tidy = waiting and before.fired and not ended
        before.fired = world.disk.fired = 0
        if tidy:
            _tidied_alive(world, where)
        if ended:
            if rng.random() < 0.5:
                world.disk = FaultDisk(world.disk.forgetful().root, rng)
            world.reopen()
    states += _tidied(world.disk.survivor(), rng, "failures")
    return Tally(states, failures)


def _crashes(
    disk: SimDisk, legal: list[Dump], rng: random.Random, cap: int, where: str, *, deep: bool
) -> int:
    """Recover from a power cut at this moment and from a kill, with what the kernel remembers."""
    states = 0
    for image in crash_images(disk, rng, cap=cap, weak=True):
        check(recovered(image, f"cut after {where}"), legal, f"cut after {where}")
        states += 1
    killed = disk.survivor() if not deep or rng.random() < 0.5 else disk.forgetful()
    if deep and rng.random() < 0.3:
        states += _crashes_inside(killed, legal, rng, f"a kill after {where}")
    place = f"kill after {where}"
    seen = recovered(killed, place)
    check(seen, legal, place)
    states += 1
    for image in crash_images(killed, rng, cap=cap):
        # What readers were shown stays, whatever the syncs before were worth.
        check(recovered(image, f"cut after a {place}"), [seen], f"cut after a {place}")
        states += 1
    return states


def _tidied_alive(world: FailingWorld, where: str) -> None:
    """I11 without a restart: a failure puts off what is to be removed, and no more."""
    for _ in range(2):
        world.checkpoint()
    if left := passed(world.engine):
        message = f"{where}: left after two more checkpoints: {left}"
        raise ViolationError(message)


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


def hunt_a_failed_cut() -> None:
    """Have the checkpoint fail that would remove what retention has passed: too rare for dice."""
    world = FailingWorld()
    world.create("/a")
    for _ in range(8):
        world.append("/a", b"x" * 100)
        world.checkpoint()
    world.publish("/a", world.engine.namespace.by_key["/a"].tail, b"all of it")
    world.engine.journal.rotate()
    world.disk.refuse(errno.EIO, ("pwrite",))
    with suppress(StorageError):
        cp.run(cp.checkpoint(world.engine))
    world.disk.mend()
    _tidied_alive(world, "a failed checkpoint")
