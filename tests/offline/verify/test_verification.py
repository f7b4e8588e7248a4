"""Verification: what it finds is at its place, and beside a daemon only what stays is believed."""

import pytest

from durastreamd.model.records import Snapshot
from durastreamd.offline.verify.census import take_census
from durastreamd.offline.verify.segments import SegmentReport, SegmentTask
from durastreamd.offline.verify.verification import (
    LOOK_AGAIN_S,
    LOOKS,
    Scope,
    check_snapshot,
    examine,
    in_turn,
    orphans,
    settled,
    survey,
    tasks_of,
    verify,
)
from durastreamd.storage import format as fmt
from tests.support.damage import flip, put, truncate
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("/a")
    world.append("/a", b"0123456789")
    world.publish("/a", 4, b"folded up to four")
    world.checkpoint()
    return world


@pytest.fixture
def disk(world: World) -> MovingDisk:
    return moving(world.disk)


def found(disk: MovingDisk, scope: Scope) -> list[tuple[str, str]]:
    return [(each.path, each.kind) for each in verify(disk, scope, in_turn(disk))]


def test_payloads_are_read_only_where_asked(disk: MovingDisk) -> None:
    flip(disk, fmt.segment_path(1, 0), 5)
    assert found(disk, Scope()) == []
    assert found(disk, Scope(deep=True)) == [(fmt.segment_path(1, 0), "payload")]
    assert found(disk, Scope(deep=True, only=frozenset({2}))) == []


def snapshot_of(world: World) -> Snapshot:
    shown: Snapshot | None = world.engine.namespace.by_key["/a"].snapshot
    assert shown is not None
    return shown


def test_a_snapshot_is_missing_short_or_rotten(world: World, disk: MovingDisk) -> None:
    shown = snapshot_of(world)
    path = fmt.snapshot_path(shown.owner, shown.position, shown.serial)

    def kinds(*, deep: bool = True) -> list[str]:
        return [each.kind for each in check_snapshot(disk, shown, "/a", deep=deep)]

    assert kinds() == []
    flip(disk, path, 3)
    assert (kinds(), kinds(deep=False)) == (["payload"], [])
    truncate(disk, path, 3)
    assert kinds(deep=False) == ["short"]
    disk.unlink(path)
    assert kinds(deep=False) == ["missing"]
    assert disk.open_handles == 0


def test_each_segment_is_a_task_and_the_active_one_has_its_lengths(disk: MovingDisk) -> None:
    seen = survey(disk)
    (task,) = tasks_of(seen, seen.listed[1], Scope(deep=True))
    place = seen.listed[1].placement
    assert (task.stream, task.base, task.key) == (1, 0, "/a")
    assert (task.index_bytes, task.segment_bytes) == (place.index_bytes, place.segment_bytes)


def test_what_nothing_refers_to_is_an_orphan(disk: MovingDisk) -> None:
    directory = fmt.stream_dir(9)
    for path in (directory.rpartition("/")[0], directory):
        disk.make_directory(path)
    put(disk, fmt.segment_path(9, 0), b"of nobody")
    put(disk, fmt.snapshot_path(1, 2, 77), b"old")
    seen = survey(disk)
    paths = {fmt.segment_path(9, 0), fmt.snapshot_path(1, 2, 77)}
    assert set(orphans(seen, take_census(seen))) == paths


def test_what_goes_away_while_looking_is_not_reported(disk: MovingDisk) -> None:
    flip(disk, fmt.segment_path(1, 0), 5)
    scope = Scope(deep=True, live=True)
    seen = examine(disk, scope, in_turn(disk))
    pauses: list[float] = []

    def mend(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            flip(disk, fmt.segment_path(1, 0), 5)

    assert [each.kind for each in seen.findings] == ["payload"]
    assert settled(disk, seen, scope, in_turn(disk), mend) == []
    assert pauses == [LOOK_AGAIN_S]


def test_what_stays_is_reported_after_every_look(disk: MovingDisk) -> None:
    flip(disk, fmt.segment_path(1, 0), 5)
    put(disk, "alien", b"")
    scope = Scope(deep=True, live=True)
    seen = examine(disk, scope, in_turn(disk))
    pauses: list[float] = []
    left = settled(disk, seen, scope, in_turn(disk), pauses.append)
    assert sorted(each.kind for each in left) == ["foreign", "payload"]
    assert len(pauses) == LOOKS - 1


def test_a_runner_is_given_every_task_at_once(disk: MovingDisk) -> None:
    given: list[list[SegmentTask]] = []

    def run(tasks: list[SegmentTask]) -> list[tuple[SegmentTask, SegmentReport]]:
        given.append(tasks)
        return list(in_turn(disk)(tasks))

    assert verify(disk, Scope(), run) == []
    assert [len(tasks) for tasks in given] == [1]
