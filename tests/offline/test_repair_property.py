"""Any damage to any data directory: nothing raises, nothing that verifies is lost, all is named."""

import random

from hypothesis import HealthCheck, given, settings, strategies as st

from durastreamd.offline.repair.losses import PROOFLESS, SIDES, Keep
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
from tests.support.world import Dump, World, dump


def silent(plan: Plan) -> bool:
    """Tell whether the plan admits that records are lost and cannot be said to be whose."""
    admitted = any(loss["what"] in ("frames", "journal", "name") for loss in plan.losses)
    return not (admitted or plan.doubts or any("cut" in note for note in plan.notes))


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
            named = losses_of(plan, name, "lost", "no longer served", "without proof")
            for position in range(was.floor, was.tail):
                served = now.floor <= position < now.tail
                assert served or any(low <= position < high for low, high in named), (key, position)
            assert now.closed >= was.closed
            told = {told.stream: told for told in plan.affected}.get(name)
            if not plan.losses and (told is None or not told.producers_lost):
                assert now.producers == was.producers


def _owner(path: str) -> int:
    return int(path.split("/")[2], 16)


def check_untouched(world: World, after: Dump, plan: Plan, touched: list[str]) -> None:
    """Whoever has all of its files, and all of its ancestors', is as it was."""
    if not all(path.startswith("streams/") for path in touched):
        return
    harmed = {_owner(path) for path in touched}
    streams = world.engine.namespace.by_id
    for key, was in dump(world.engine).items():
        stream = world.engine.namespace.by_key.get(key)
        line = {stream.id} if stream is not None else set()
        while stream is not None and stream.source:
            stream = streams[stream.source]
            line.add(stream.id)
        if not harmed & line:
            assert after[key] == was, key
            assert key not in [told.stream for told in plan.affected]


def check_nothing_lost_that_verifies(disk: MovingDisk, plan: Plan, after: dict[str, Shown]) -> None:
    names = {stream.id: key for key, stream in after.items()}
    for frame in surviving(disk):
        for low, high in losses_of(plan, names.get(frame.stream, ""), "lost"):
            touched = frame.size and frame.start < high and low < frame.start + frame.size
            assert not touched, f"record {frame.lsn} verifies and was called lost"


def chosen(disk: MovingDisk, rng: random.Random, side: str, proofless: str) -> Keep:
    """Return a choice for all streams, and another for some of those that have one."""
    plan = planned(disk)
    named = [told.stream for told in plan.affected if told.instead]
    some = rng.sample(named, min(len(named), rng.randrange(3)))
    doubted = rng.sample(plan.undecided, min(len(plan.undecided), rng.randrange(3)))
    return Keep(
        side,
        {name: rng.choice(SIDES) for name in some},
        proofless,
        {name: rng.choice(PROOFLESS) for name in doubted},
    )


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 60),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    side=st.sampled_from(SIDES),
    proofless=st.sampled_from(PROOFLESS),
)
def test_any_damage_is_found_named_and_mended(
    seed: int, steps: int, kinds: list[str], side: str, proofless: str
) -> None:
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
    plan = repaired(disk, keep=chosen(disk, rng, side, proofless))
    assert not plan.undecided
    kept = disk.files()
    originals = set(kept.values())
    for path, data in damaged.items():
        # Whatever was there is there still: in its place, or in quarantine.
        assert kept.get(path) == data or data in originals, path
    dumped = opened(disk)
    after = shown(dumped)
    touched = [str(path) for _, path, _ in done]
    whole = not any(path.startswith(("journal/", "catalog/", "DURASTREAMD")) for path in touched)
    if "swap" not in kinds:
        check_untouched(world, dumped, plan, touched)
    check_served(before, after, plan, records_whole=whole and "swap" not in kinds)
    check_nothing_lost_that_verifies(twin, plan, after)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_an_undamaged_directory_is_clean_and_left_alone(seed: int, steps: int) -> None:
    disk = moving(random_world(seed, steps).disk)
    assert [str(f) for f in verified(disk) if not f.harmless] == []
