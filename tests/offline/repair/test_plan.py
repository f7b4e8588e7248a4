"""The plan: nothing is touched by making it, and it names what is lost, moved and made."""

from durastreamd.offline.repair.losses import Keep
from durastreamd.offline.repair.plan import Plan, make_plan
from durastreamd.offline.verify.verification import Scope, examine, in_turn
from durastreamd.storage import format as fmt
from tests.support.damage import NEW_UUID, UUID, flip, put
from tests.support.moving_disk import MovingDisk

SEGMENT = fmt.segment_path(1, 0)


def planned(
    disk: MovingDisk, *, side: str = "newer", rebuild: frozenset[int] = frozenset()
) -> Plan:
    files = disk.files()
    seen = examine(disk, Scope(deep=True), in_turn(disk))
    plan = make_plan(disk, seen, make_uuid=NEW_UUID, keep=Keep(side), rebuild=rebuild)
    assert disk.files() == files
    assert disk.open_handles == 0
    return plan


def test_a_whole_directory_needs_nothing(disk: MovingDisk) -> None:
    plan = planned(disk)
    assert plan.empty
    assert (plan.losses, plan.uuid) == ([], UUID)


def test_what_is_not_ours_alone_makes_no_new_catalogue(disk: MovingDisk) -> None:
    put(disk, "alien", b"")
    plan = planned(disk)
    assert (plan.out, plan.made) == (["alien"], [])


def test_a_lost_range_is_named_with_its_stream(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 15)
    (loss, hidden) = sorted(planned(disk).losses, key=lambda loss: str(loss["what"]))
    assert {loss["stream"], hidden["stream"]} == {"/a"}
    assert {(loss["from"], loss["to"]), (hidden["from"], hidden["to"])} == {(10, 20), (0, 10)}


def test_which_side_of_a_loss_is_kept_is_asked_for(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 15)
    newer, older = planned(disk), planned(disk, side="older")
    assert fmt.segment_path(1, 20) in {file.path for file in newer.made}
    assert fmt.segment_path(1, 20) not in {file.path for file in older.made}


def test_every_original_that_is_not_kept_goes_to_quarantine(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 15)
    plan = planned(disk)
    made = {file.path for file in plan.made}
    controls = {path for path in disk.files() if path.endswith((".cat", ".jnl"))}
    assert controls <= set(plan.out)
    assert SEGMENT in plan.out
    assert not made & (set(disk.files()) - set(plan.out)), "nothing is written over"
    assert any(path.endswith(".cat") for path in made)
    assert any(path.endswith(".jnl") for path in made)


def test_a_stream_can_be_rebuilt_without_a_fault(disk: MovingDisk) -> None:
    plan = planned(disk, rebuild=frozenset({1}))
    assert plan.losses == []
    assert fmt.index_path(1, 0) in {file.path for file in plan.made}


def test_without_an_identity_the_uuid_is_what_other_files_say(disk: MovingDisk) -> None:
    disk.unlink(fmt.IDENTITY_FILE)
    assert planned(disk).uuid == UUID
    for path in [path for path in disk.files() if path.endswith((".cat", ".jnl"))]:
        disk.unlink(path)
    assert planned(disk).uuid == NEW_UUID
