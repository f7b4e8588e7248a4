"""Any damage to any data directory: nothing raises, nothing that verifies is lost, all is named."""

import random

from hypothesis import HealthCheck, given, settings, strategies as st

from durastreamd.admin.repair_plan import Plan
from tests.support.damage import (
    KINDS,
    losses_of,
    opened,
    planned,
    random_damage,
    random_world,
    repaired,
    surviving,
    verified,
)
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import Dump, dump

# Indices into the tuples of ``world.dump``.
ID, TAIL, FLOOR, CLOSED, GONE, PRODUCERS, DATA = 0, 2, 3, 4, 5, 8, 12


def silent(plan: Plan) -> bool:
    """Tell whether the plan admits that records are lost and cannot be said to be whose."""
    admitted = any(loss["what"] in ("frames", "journal", "name") for loss in plan.losses)
    return not admitted and not any("cut" in note for note in plan.notes)


def check_served(before: Dump, after: Dump, plan: Plan, *, journal_whole: bool) -> None:
    """Every byte is served as it was, or named."""
    by_id = {fields[ID]: (key, fields) for key, fields in after.items() if "bucket " not in key}
    for key, was in before.items():
        if key.startswith("bucket ") or was[GONE]:
            continue
        found = by_id.get(was[ID])
        if found is None:
            assert not journal_whole or not silent(plan) or plan.notes, key
            continue
        name, now = found
        if now[GONE]:
            continue  # a deletion that was lost and one that was kept look alike from here
        low, high = max(was[FLOOR], now[FLOOR]), min(was[TAIL], now[TAIL])  # type: ignore[type-var]
        unproven = losses_of(plan, name, "unproven")
        for position in range(low, high):  # type: ignore[arg-type]
            if any(first <= position < last for first, last in unproven):
                continue
            assert _byte(was, position) == _byte(now, position), (key, position)
        if journal_whole and silent(plan):
            named = losses_of(plan, name, "lost", "no longer served")
            for position in range(was[FLOOR], was[TAIL]):  # type: ignore[call-overload]
                served = now[FLOOR] <= position < now[TAIL]  # type: ignore[operator]
                assert served or any(a <= position < b for a, b in named), (key, position)
            assert dict(now[PRODUCERS]).keys() >= dict(was[PRODUCERS]).keys() or plan.losses  # type: ignore[call-overload]
            assert now[CLOSED] >= was[CLOSED]  # type: ignore[operator]


def _byte(fields: tuple[object, ...], position: int) -> int:
    data, floor = fields[DATA], fields[FLOOR]
    assert isinstance(data, bytes)
    assert isinstance(floor, int)
    return data[position - floor]


def check_nothing_lost_that_verifies(disk: MovingDisk, plan: Plan, after: Dump) -> None:
    names = {fields[ID]: key for key, fields in after.items() if not key.startswith("bucket ")}
    for frame in surviving(disk):
        lost = losses_of(plan, names.get(frame.stream, ""), "lost")
        for low, high in lost:
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
    before = dump(world.engine)
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
    after = opened(disk)
    touched = [str(path) for _, path, _ in done]
    whole = not any(path.startswith(("journal/", "catalog/", "DURASTREAMD")) for path in touched)
    check_served(before, after, plan, journal_whole=whole and "swap" not in kinds)
    check_nothing_lost_that_verifies(twin, plan, after)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_an_undamaged_directory_is_clean_and_left_alone(seed: int, steps: int) -> None:
    disk = moving(random_world(seed, steps).disk)
    assert [str(f) for f in verified(disk) if not f.harmless] == []
