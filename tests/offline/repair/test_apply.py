"""Carrying a plan out: held by a lock, finished after a stop at any step, and taken back whole."""

import pytest

from durastreamd.errors import DurastreamError
from durastreamd.offline.repair.apply import Repair, mark_of, read_manifest, repairs
from durastreamd.storage import format as fmt
from tests.support.damage import flip, planned, verified
from tests.support.moving_disk import MovingDisk, moving

SEGMENT = fmt.segment_path(1, 0)


@pytest.fixture
def disk(disk: MovingDisk) -> MovingDisk:
    """The same, with one byte that is wrong."""
    flip(disk, SEGMENT, 15)
    return disk


def test_a_repair_leaves_a_clean_directory_and_every_original(disk: MovingDisk) -> None:
    before = disk.files()
    plan = planned(disk)
    with Repair(disk) as repair:
        name = repair.apply(plan)
    assert repairs(disk) == [name] == ["repair-0001"]
    assert verified(disk) == []
    assert mark_of(disk) is None
    for path in plan.out:
        assert disk.read(f"{fmt.QUARANTINE_DIR}/{name}/old/{path}") == before[path]
    assert disk.open_handles == 0


def test_the_manifest_says_what_was_lost_and_found(disk: MovingDisk) -> None:
    plan = planned(disk)
    with Repair(disk) as repair:
        manifest = read_manifest(disk, repair.apply(plan))
    assert manifest.losses == plan.losses
    assert [found["kind"] for found in manifest.findings] == [f.kind for f in plan.findings]
    assert set(manifest.installed) == {file.path for file in plan.made}


def test_an_undone_repair_leaves_every_file_as_it_was(disk: MovingDisk) -> None:
    before = disk.files()
    with Repair(disk) as repair:
        name = repair.apply(planned(disk))
        repair.undo(name)
        repair.undo(name)  # a second time it has nothing to do
    after = {path: data for path, data in disk.files().items() if path in before}
    assert after == before
    assert mark_of(disk) is None


class Stopped(BaseException):
    """The process is killed here."""


def test_a_repair_stopped_at_any_rename_is_finished_by_the_next(disk: MovingDisk) -> None:
    whole = moving(disk)
    with Repair(whole) as repair:
        repair.apply(planned(whole))
    for step in range(1, 100):
        cut = moving(disk)
        plan, rename, left = planned(cut), cut.rename, [step]

        def renaming(source: str, target: str) -> None:
            left[0] -= 1  # noqa: B023  # called within this round
            if not left[0]:  # noqa: B023
                raise Stopped
            rename(source, target)  # noqa: B023

        cut.rename = renaming  # type: ignore[method-assign]
        try:
            with Repair(cut) as repair:
                repair.apply(plan)
            assert step > len(plan.out) + len(plan.made)
            return
        except Stopped:
            cut.rename = rename  # type: ignore[method-assign]
        with Repair(cut) as repair:
            mark = mark_of(cut)
            if mark is None:
                continue  # it had not begun to move
            repair.resume(mark)
        assert cut.files() == whole.files()
    pytest.fail("there is no end to the steps")


def test_two_repairs_do_not_meet(disk: MovingDisk) -> None:
    with Repair(disk), pytest.raises(DurastreamError), Repair(disk):
        pass
    assert disk.open_handles == 0
