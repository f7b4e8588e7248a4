"""Any damage to any data directory: nothing raises, nothing that verifies is lost, all is named."""

import random

from hypothesis import HealthCheck, given, settings, strategies as st

from durastreamd.offline.repair.plan import Plan
from tests.support.damage import (
    KINDS,
    Shown,
    losses_of,
    opened,
    planned,
    random_damage,
    random_world,
    repaired,
    shown,
    surviving,
    verified,
)
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import dump


def silent(plan: Plan) -> bool:
    """Tell whether the plan admits that records are lost and cannot be said to be whose."""
    admitted = any(loss["what"] in ("frames", "journal", "name") for loss in plan.losses)
    return not admitted and not any("cut" in note for note in plan.notes)


def check_served(
    before: dict[str, Shown], after: dict[str, Shown], plan: Plan, *, records_whole: bool
) -> None:
    """Every byte is served as it was, or named."""
    by_id = {stream.id: (key, stream) for key, stream in after.items()}
    for key, was in before.items():
        if was.gone:
            continue
        if was.id not in by_id:
            assert not records_whole, f"{key} is gone"
            continue
        name, now = by_id[was.id]
        if now.gone:
            continue  # a deletion that was lost and one that was kept look alike from here
        unproven = losses_of(plan, name, "unproven")
        for position in range(max(was.floor, now.floor), min(was.tail, now.tail)):
            if not any(low <= position < high for low, high in unproven):
                assert was.byte(position) == now.byte(position), (key, position)
        if records_whole and silent(plan):
            named = losses_of(plan, name, "lost", "no longer served")
            for position in range(was.floor, was.tail):
                served = now.floor <= position < now.tail
                assert served or any(low <= position < high for low, high in named), (key, position)
            assert now.closed >= was.closed
            if not plan.losses:
                assert now.producers == was.producers


def check_nothing_lost_that_verifies(disk: MovingDisk, plan: Plan, after: dict[str, Shown]) -> None:
    names = {stream.id: key for key, stream in after.items()}
    for frame in surviving(disk):
        for low, high in losses_of(plan, names.get(frame.stream, ""), "lost"):
            touched = frame.size and frame.start < high and low < frame.start + frame.size
            assert not touched, f"record {frame.lsn} verifies and was called lost"


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 40),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
)
def test_any_damage_is_found_named_and_mended(seed: int, steps: int, kinds: list[str]) -> None:
    world = random_world(seed, steps)
    before = shown(dump(world.engine))
    disk = moving(world.disk)
    rng = random.Random(seed)
    done = [random_damage(disk, rng, kind) for kind in kinds]
    damaged = disk.files()
    found = verified(disk)
    assert verified(disk) == found, "twice the same"
    planned(disk)
    assert disk.files() == damaged, "looking changes nothing"
    twin = moving(disk)
    plan = repaired(disk)
    kept = disk.files()
    originals = set(kept.values())
    for path, data in damaged.items():
        # Whatever was there is there still: in its place, or in quarantine.
        assert kept.get(path) == data or data in originals, path
    after = shown(opened(disk))
    touched = [str(path) for _, path, _ in done]
    whole = not any(path.startswith(("journal/", "catalog/", "DURASTREAMD")) for path in touched)
    check_served(before, after, plan, records_whole=whole and "swap" not in kinds)
    check_nothing_lost_that_verifies(twin, plan, after)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_an_undamaged_directory_is_clean_and_left_alone(seed: int, steps: int) -> None:
    disk = moving(random_world(seed, steps).disk)
    assert [str(f) for f in verified(disk) if not f.harmless] == []
