"""Repair attacked: the power cut, the disk failing, others at work, very many losses."""

import errno
import random
import sys
from collections.abc import Callable

import pytest

from durastreamd.errors import DataDirectoryError, DirectoryLockedError, DurastreamError
from durastreamd.offline.repair.apply import Repair, mark_of, repairs
from durastreamd.offline.repair.losses import DROP, Keep
from durastreamd.storage import format as fmt
from tests.support.damage import flip, opened, planned, repaired, verified
from tests.support.fault_disk import FaultDisk
from tests.support.moving_disk import CutDisk, MovingDisk, moving
from tests.support.sim_disk import SimDisk
from tests.support.world import Dump, World, start

CHOSEN = Keep(unproven=DROP)


class FailingDisk(FaultDisk, MovingDisk):
    """Files can be moved on it, and it fails on purpose."""


@pytest.fixture(scope="module")
def damaged() -> MovingDisk:
    """Rot in a segment, an index and the identity; a fork, a snapshot, a tail in the journal."""
    world = World()
    world.create("/a")
    for number in range(6):
        world.append("/a", b"%060d" % number, producer=("p", 0, number))
    world.fork("/f", "/a", 120)
    world.create("/b", content_type="application/json")
    world.append("/b", b"1,\n")
    world.checkpoint()
    world.append("/a", b"in the journal")
    world.publish("/b", 3, b"blob")
    disk = moving(world.disk)
    flip(disk, fmt.segment_path(1, 0), 70)
    disk.unlink(fmt.index_path(3, 0))
    flip(disk, "DURASTREAMD", 30)
    return disk


@pytest.fixture(scope="module")
def mended(damaged: MovingDisk) -> Dump:
    disk = moving(damaged)
    repaired(disk, keep=CHOSEN)
    return opened(disk)


def carry_out(disk: SimDisk, *, undo: bool = False) -> None:
    """Do what the command does: finish what was cut short, then repair, or undo."""
    assert isinstance(disk, MovingDisk)
    with Repair(disk) as repair:
        mark = mark_of(disk)
        if mark is not None:
            repair.resume(mark)
        if undo:
            if mark is None or mark.direction != "back":
                repair.undo(repairs(disk)[-1])
            return
        plan = planned(disk, keep=CHOSEN)
        if not plan.empty:
            repair.apply(plan)


def outside(disk: SimDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.files().items() if "quarantine" not in path}


def check_finished(left: MovingDisk, mended: Dump) -> None:
    """Either no server starts, or it serves what is right; and the next repair ends it well."""
    if mark_of(left) is None and not verified(left):
        assert opened(moving(left)) == mended
    elif mark_of(left) is not None:
        with pytest.raises(DataDirectoryError, match="repair"):
            opened(moving(left))
    carry_out(left)
    assert verified(left) == []
    assert opened(left) == mended


def each_cut(disk: CutDisk, work: Callable[[], None], check: Callable[[MovingDisk], None]) -> int:
    """Cut the power after each operation, in a few ways; return how many states were checked."""
    rng = random.Random(7)
    states = 0

    def hook(_operation: str, _path: str) -> None:
        nonlocal states
        for left in disk.cuts(rng):
            states += 1
            check(left)

    disk.hook = hook
    work()
    return states


@pytest.mark.slow
def test_the_power_fails_at_any_step_of_a_repair(damaged: MovingDisk, mended: Dump) -> None:
    disk = CutDisk(damaged.survivor().root)
    states = each_cut(disk, lambda: carry_out(disk), lambda left: check_finished(left, mended))
    assert states > 100
    disk.hook = None
    assert opened(disk) == mended


@pytest.mark.slow
def test_the_power_fails_at_any_step_of_undoing(damaged: MovingDisk, mended: Dump) -> None:
    disk = CutDisk(damaged.survivor().root)
    carry_out(disk)
    disk = CutDisk(disk.survivor().root)

    def check(left: MovingDisk) -> None:
        carry_out(left, undo=True)
        assert outside(left) == outside(damaged)

    assert each_cut(disk, lambda: carry_out(disk, undo=True), check) > 60


@pytest.mark.slow
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("undo", [False, True])
def test_any_operation_of_a_repair_fails_and_the_next_one_ends_it(
    damaged: MovingDisk, mended: Dump, fault: int, *, undo: bool
) -> None:
    whole = moving(damaged)
    if undo:
        carry_out(whole)
    number = 0
    while True:
        number += 1
        disk = FailingDisk(whole.survivor().root, random.Random(number))
        disk.fault, disk.ragged = fault, True
        disk.only = ("pwrite", "sync", "sync_directory", "rename", "unlink", "make_directory")
        disk.fail_at = number
        try:
            carry_out(disk, undo=undo)
        except (OSError, DurastreamError):
            assert disk.fired
        if not disk.fired and disk.calls < number:
            break
        if not disk.fired:
            continue  # that was a read
        left = moving(disk.forgetful())
        if undo:
            carry_out(left, undo=True)
            assert outside(left) == outside(damaged), number
        else:
            check_finished(left, mended)
    assert number > 50


def test_nobody_comes_between_the_steps_of_a_repair(damaged: MovingDisk) -> None:
    """A server that starts in the middle, and another repair: refused after every operation."""
    disk = moving(damaged)
    asked = 0

    def hook(_operation: str, _path: str) -> None:
        nonlocal asked
        asked += 1
        disk.hook = None
        with pytest.raises(DirectoryLockedError), Repair(disk):
            pass
        with pytest.raises(DataDirectoryError):
            start(disk)
        disk.hook = hook

    disk.hook = hook
    carry_out(disk)
    assert asked > 40


class LargeWorld(World):
    """Keeps no history, so it can hold very many records."""

    def look(self) -> Dump:
        return {}


def losses(number: int) -> tuple[MovingDisk, int]:
    """Return a stream of which every other record is lost, and how many calls a plan takes."""
    world = LargeWorld()
    world.create("/a")
    for at in range(number):
        world.append("/a", b"%010d" % at)
    world.checkpoint()
    disk = moving(world.disk)

    def rot(data: bytearray) -> None:
        for at in range(5, len(data), 20):
            data[at] ^= 1

    for path in [path for path in disk.files() if path.endswith(".log")]:
        disk.damage(path, rot)
    return disk, calls_of(lambda: planned(disk))


def streams(number: int) -> tuple[MovingDisk, int]:
    """Return streams that have all lost their index, and how many calls a plan takes."""
    world = LargeWorld()
    for at in range(number):
        world.create(f"/s{at}")
        world.append(f"/s{at}", b"one")
        world.append(f"/s{at}", b"another")
    world.checkpoint()
    disk = moving(world.disk)
    for stream in range(1, number + 1):
        disk.unlink(fmt.index_path(stream, 0))
    return disk, calls_of(lambda: planned(disk))


def calls_of(work: Callable[[], object]) -> int:
    """Count calls and comparisons in loops of Python: lines, that is."""
    count = 0

    def trace(_frame: object, _event: str, _argument: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("many", [losses, streams])
def test_the_work_of_a_plan_grows_with_the_losses_and_no_faster(
    many: Callable[[int], tuple[MovingDisk, int]],
) -> None:
    few = many(150)[1]
    disk, work = many(600)
    assert work < 4.6 * few
    repaired(disk)
