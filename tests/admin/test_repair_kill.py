"""A repair killed after any of its steps is finished by the next one; undoing it restores all."""

import pytest

from durastreamd.errors import DataDirectoryError, DirectoryLockedError
from durastreamd.offline.repair.apply import Repair, mark_of, read_manifest, repairs
from tests.support.damage import flip, opened, planned, repaired, verified
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import Dump, World


class KilledError(BaseException):
    """The process is gone."""


def kill_after(disk: MovingDisk, count: int) -> None:
    left = count

    def hook(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError(operation, path)

    disk.hook = hook


@pytest.fixture(scope="module")
def damaged() -> MovingDisk:
    world = World()
    world.create("/a")
    for number in range(6):
        world.append("/a", b"%060d" % number, producer=("p", 0, number))
    world.create("/b", content_type="application/json")
    world.append("/b", b"1,\n")
    world.checkpoint()
    world.append("/a", b"in the journal")
    world.publish("/b", 3, b"blob")
    disk = moving(world.disk)
    flip(disk, "streams/01/0000000000000001/0000000000000000.log", 70)
    flip(disk, "DURASTREAMD", 30)
    return disk


@pytest.fixture(scope="module")
def mended(damaged: MovingDisk) -> Dump:
    disk = moving(damaged)
    repaired(disk)
    return opened(disk)


def carry_out(disk: MovingDisk, *, undo: bool = False) -> None:
    with Repair(disk) as repair:
        mark = mark_of(disk)
        if mark is not None:
            repair.resume(mark)
        if undo:
            if mark is None or mark.direction != "back":
                repair.undo(repairs(disk)[-1])
            return
        plan = planned(disk)
        if not plan.empty:
            repair.apply(plan)


def test_killed_after_any_step(damaged: MovingDisk, mended: Dump) -> None:
    steps = refused = 0
    while True:
        steps += 1
        disk = moving(damaged)
        kill_after(disk, steps)
        try:
            carry_out(disk)
        except KilledError:
            left = moving(disk)
        else:
            break
        if verified(left):
            with pytest.raises(DataDirectoryError, match="repair"):
                opened(moving(left))
        refused += mark_of(left) is not None
        carry_out(left)
        assert verified(left) == []
        assert opened(left) == mended, f"killed after step {steps}"
        assert planned(moving(left)).empty
    assert steps > 40
    assert refused > 20, "while files are moved no server starts"


def test_undone_it_is_as_it_was(damaged: MovingDisk) -> None:
    disk = moving(damaged)
    original = disk.files()
    carry_out(disk)
    assert {k: v for k, v in disk.files().items() if "quarantine" not in k} != original
    carry_out(disk, undo=True)
    assert {k: v for k, v in disk.files().items() if "quarantine" not in k} == original


def test_killed_while_undoing(damaged: MovingDisk) -> None:
    original = damaged.files()
    whole = moving(damaged)
    carry_out(whole)
    steps = 0
    while True:
        steps += 1
        disk = moving(whole)
        kill_after(disk, steps)
        try:
            carry_out(disk, undo=True)
        except KilledError:
            left = moving(disk)
        else:
            break
        carry_out(left, undo=True)
        assert {k: v for k, v in left.files().items() if "quarantine" not in k} == original, steps
    assert steps > 20


def test_what_a_server_wrote_since_is_not_undone(damaged: MovingDisk) -> None:
    disk = moving(damaged)
    carry_out(disk)
    world = World(disk)
    world.create("/since")
    after = moving(disk)
    with Repair(after) as repair, pytest.raises(DataDirectoryError, match="since"):
        repair.undo(repairs(after)[-1])


def test_the_manifest_says_what_was_done(damaged: MovingDisk) -> None:
    disk = moving(damaged)
    carry_out(disk)
    (name,) = repairs(disk)
    manifest = read_manifest(disk, name)
    assert any(loss["stream"] == "/a" for loss in manifest.losses)
    assert any(finding["kind"] == "payload" for finding in manifest.findings)
    for source, target in manifest.moves:
        assert disk.exists(target), (source, target)


def test_one_repair_at_a_time(damaged: MovingDisk) -> None:
    disk = moving(damaged)
    with Repair(disk) as repair:
        repair.apply(planned(disk))
        with pytest.raises(DirectoryLockedError), Repair(disk):
            pass  # the identity was replaced meanwhile, and is locked still
    bare = moving(damaged)
    bare.unlink("DURASTREAMD")
    with Repair(bare), pytest.raises(DirectoryLockedError), Repair(bare):
        pass


def test_every_move_is_durable_before_the_server_may_start(damaged: MovingDisk) -> None:
    disk = moving(damaged)
    unsynced: set[str] = set()
    renamed: list[str] = []

    def hook(operation: str, path: str) -> None:
        folder = path.rpartition("/")[0]
        if operation == "sync_directory":
            unsynced.discard(path)
        elif operation == "rename":
            renamed.append(path)
            if path == "DURASTREAMD":
                assert not unsynced, "its files must be durable before the identity says so"
            unsynced.add(folder)
        elif operation == "make_directory":
            unsynced.add(folder)

    disk.hook = hook
    carry_out(disk)
    assert renamed.count("DURASTREAMD") == 2
    assert not unsynced
