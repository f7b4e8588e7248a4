"""What each stream is served as after a repair, by the operator's choice, and what is said."""

import pytest

from durastreamd.errors import CorruptDataError
from durastreamd.model.records import Mark
from durastreamd.offline.repair.losses import DROP, TAKE, Keep
from durastreamd.storage import format as fmt
from tests.support.damage import flip, opened, planned, put, repaired, shown, truncate, verified
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import Dump, World, start

TAIL, FLOOR, PRODUCERS = 2, 3, 8
A, J = fmt.stream_dir(1), fmt.stream_dir(2)
A_LOG, A_IDX = fmt.segment_path(1, 0), fmt.index_path(1, 0)


@pytest.fixture
def disk(world: World) -> MovingDisk:
    return moving(world.disk)


def _journal(disk: MovingDisk) -> str:
    return f"journal/{disk.names('journal')[-1]}"


def test_the_larger_side_is_kept_of_each_stream(disk: MovingDisk, before: Dump) -> None:
    flip(disk, A_LOG, 85)
    plan = repaired(disk)
    after = shown(opened(disk))
    assert (after["/a"].floor, after["/a"].tail) == (160, 980)
    # Of the fork 80 bytes lie before the loss, all of them its source's, and 14 after it.
    assert (after["/f"].floor, after["/f"].tail) == (0, 80)
    assert after["/f"].data == shown(before)["/f"].data[:80]
    told = {told.stream: told for told in plan.affected}
    assert told["/f"].instead == {"newer": (160, 174)}
    assert told["/f"].messages == 1
    assert (told["/a"].keep, told["/a"].instead) == ("larger", {"older": (0, 80)})
    assert told["/a"].messages == 11


def test_a_loss_near_the_end_costs_the_end(world: World, before: Dump) -> None:
    """One bit near the end: what lies before it stays, and that is nearly all."""
    disk = moving(world.disk)
    base = fmt.numbered(disk.names(J), ".log")[-1]
    path = fmt.segment_path(2, base)
    flip(disk, path, len(disk.read(path)) - 15)
    repaired(disk)
    was, now = shown(before)["/j"], shown(opened(disk))["/j"]
    assert now.floor == 0
    assert now.tail > was.tail / 2
    assert now.data == was.data[: now.tail]


def test_the_choice_is_of_one_stream(disk: MovingDisk, before: Dump) -> None:
    flip(disk, A_LOG, 85)
    repaired(disk, keep=Keep("older", {"f": "newer"}))
    after = shown(opened(disk))
    assert (after["/a"].floor, after["/a"].tail) == (0, 80)
    assert (after["/f"].floor, after["/f"].tail) == (160, 174)
    assert after["/f"].data == b"the fork's own"


def test_the_older_side_of_a_fork_is_what_its_source_kept(disk: MovingDisk, before: Dump) -> None:
    """The source ends before the place at which it was forked; so does the fork, from now on."""
    truncate(disk, A_LOG, 85)
    repaired(disk, keep=Keep("older"))
    after = shown(opened(moving(disk)))
    for key in ("/a", "/f"):
        assert (after[key].floor, after[key].tail) == (0, 80)
        assert after[key].data == shown(before)[key].data[:80]
    # Both go on from there, each for itself.
    world = World(disk)
    world.append("/a", b"source", producer=("p", 0, 13))
    world.append("/f", b"fork")
    world.checkpoint()
    disk = moving(world.disk)
    assert [str(f) for f in verified(disk)] == []
    after = shown(opened(disk))
    assert after["/a"].data[80:] == b"source"
    assert after["/f"].data[80:] == b"fork"


@pytest.mark.parametrize("side", ["larger", "older", "newer"])
def test_a_snapshot_stays_when_bytes_after_it_are_lost(side: str) -> None:
    world = World()
    world.create("/s")
    for size in (10, 5, 5, 40):
        world.append("/s", b"x" * size)
    world.publish("/s", 10, b"folded up to ten")
    world.checkpoint()
    disk = moving(world.disk)
    flip(disk, fmt.segment_path(1, 0), 17)
    (told,) = repaired(disk, keep=Keep(side)).affected
    after = opened(moving(disk))["/s"]
    assert (after[FLOOR], after[TAIL]) == ((10, 15) if side == "older" else (20, 60))
    assert told.snapshot == 10
    assert not told.snapshot_lost
    stream = start(disk)[0].namespace.by_key["/s"]
    assert stream.snapshot is not None
    assert stream.lost_from() == (None if side == "older" else 10)


def test_a_snapshot_alone_is_what_is_left_of_a_stream() -> None:
    world = World()
    world.create("/s")
    world.append("/s", b"folded")
    world.publish("/s", 6, b"folded up to six")
    world.append("/s", b"after it")
    world.checkpoint()
    disk = moving(world.disk)
    disk.unlink(fmt.segment_path(1, 0))
    (told,) = repaired(disk).affected
    assert told.outcome == "in part"
    stream = start(disk)[0].namespace.by_key["/s"]
    assert (stream.floor, stream.tail, stream.lost_from()) == (6, 6, None)
    assert stream.snapshot is not None


@pytest.mark.parametrize("side", ["larger", "older", "newer"])
def test_wrong_bytes_without_proof_are_not_served_unless_that_is_said(
    disk: MovingDisk, before: Dump, side: str
) -> None:
    """A segment and its own index are both hurt: nobody can tell which bytes are right."""
    flip(disk, A_LOG, 85)
    disk.unlink(A_IDX)
    plan = planned(disk, keep=Keep(side))
    assert plan.undecided == ["/a"]
    for key in ("/a", "/f"):
        (told,) = [told for told in plan.affected if told.stream == key]
        assert (told.outcome, told.doubtful_of, told.lost) == ("undecided", "/a", [])
        assert told.doubtful[0][0] == 0
        assert told.if_taken == told.extent
    careful = moving(disk)
    dropped = repaired(careful, keep=Keep(side, unproven=DROP))
    after = shown(opened(careful))
    for key in ("/a", "/f"):
        was, now = shown(before)[key], after[key]
        assert now.data == was.data[now.floor - was.floor : now.tail - was.floor]
    assert not any(told.unproven for told in dropped.affected)
    taken = repaired(disk, keep=Keep(side, unproven=TAKE))
    after = shown(opened(disk))
    assert (after["/a"].floor, after["/a"].tail) == (0, 980)
    assert after["/a"].data != shown(before)["/a"].data, "as the operator was told"
    assert [told.stream for told in taken.affected if told.unproven] == ["/a", "/f"]


def test_bytes_without_proof_are_decided_on_by_stream(disk: MovingDisk, before: Dump) -> None:
    disk.unlink(A_IDX)
    disk.unlink(fmt.index_path(2, 0))
    assert planned(disk).undecided == ["/a", "/j"]
    assert planned(disk, keep=Keep(unproven_named={"a": TAKE})).undecided == ["/j"]
    plan = repaired(disk, keep=Keep(unproven=DROP, unproven_named={"a": TAKE}))
    after = shown(opened(disk))
    assert after["/a"].data == shown(before)["/a"].data
    assert after["/j"].floor > 0
    (told,) = [told for told in plan.affected if told.stream == "/j"]
    assert told.doubtful == [(0, after["/j"].floor)]
    assert (told.outcome, told.lost, told.given_up) == ("in part", [], [])


def test_forgotten_producers_are_named(disk: MovingDisk, before: Dump) -> None:
    """Without indexes only the journal's records tell of producers."""
    for path in disk.files():
        if path.endswith(".idx"):
            disk.unlink(path)
    plan = repaired(disk)
    told = {told.stream: told for told in plan.affected}
    after = shown(opened(disk))
    assert not plan.losses
    assert "last wrote at 0 to 960" in told["/a"].producers_lost
    for key in ("/j", "/s", "/f"):
        # The catalogue knows that they had none.
        assert not told[key].producers_lost, key
        assert after[key].data == shown(before)[key].data


def test_producers_of_one_lost_index_are_known_from_the_next(
    disk: MovingDisk, before: Dump
) -> None:
    disk.unlink(A_IDX)
    plan = repaired(disk)
    assert [told.producers_lost for told in plan.affected if told.stream == "/a"] == [""]
    assert opened(disk)["/a"][PRODUCERS] == before["/a"][PRODUCERS]


def test_a_journal_cut_to_nothing_is_not_called_no_loss(disk: MovingDisk) -> None:
    put(disk, _journal(disk), b"")
    plan = repaired(disk)
    assert ["what it held, if anything, is gone" in doubt for doubt in plan.doubts] == [True]


def test_a_torn_end_is_not_called_no_loss(disk: MovingDisk) -> None:
    path = _journal(disk)
    truncate(disk, path, len(disk.read(path)) - 10)
    plan = repaired(disk)
    assert not plan.losses
    assert ["or the disk lost its end since" in doubt for doubt in plan.doubts] == [True]


def test_a_damaged_journal_header_alone_loses_nothing(disk: MovingDisk, before: Dump) -> None:
    flip(disk, _journal(disk), 20)
    with pytest.raises(CorruptDataError, match="run `dsadmin repair`"):
        start(moving(disk))
    plan = repaired(disk)
    assert (plan.losses, plan.doubts) == ([], [])
    assert any("its header is damaged, 3 of its records are whole" in n for n in plan.notes)
    assert opened(disk) == before


def test_a_lost_mark_is_no_loss() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"first")
    at = world.engine.journal.length
    world.commit([(Mark(world.now_ms), b"")])
    world.append("/a", b"second")
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    flip(disk, _journal(disk), at + 20)
    plan = repaired(disk)
    assert (plan.losses, plan.doubts) == ([], [])
    assert any("it held no data" in note for note in plan.notes)
    assert shown(opened(disk))["/a"].data == b"firstsecond"


def test_a_snapshot_after_a_lost_append_names_the_tail() -> None:
    """The append is lost and the snapshot of its end is not: the stream goes on from there."""
    world = World()
    world.create("/a")
    world.append("/a", b"first")
    world.checkpoint()
    at = world.engine.journal.length
    world.append("/a", b"second")
    world.publish("/a", 11, b"both")
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    flip(disk, _journal(disk), at + 20)
    repaired(disk)
    after = opened(disk)["/a"]
    assert (after[FLOOR], after[TAIL]) == (11, 11)


def test_what_a_segment_has_too_much_is_not_taken_for_the_next(
    disk: MovingDisk, before: Dump
) -> None:
    first, second = fmt.numbered(disk.names(A), ".log")[:2]
    put(disk, A_LOG, disk.read(A_LOG) + b"?" * 100)
    disk.unlink(fmt.index_path(1, second))
    repaired(disk)
    assert first == 0
    assert shown(opened(disk))["/a"].data == shown(before)["/a"].data


def test_a_fork_takes_over_the_snapshot_of_a_source_that_is_lost() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"first")
    world.publish("/a", 5, b"folded")
    world.fork("/f", "/a", 5)
    world.append("/f", b"own")
    world.checkpoint()
    world.checkpoint()
    disk = moving(world.disk)
    disk.unlink(f"catalog/{disk.names('catalog')[-1]}")
    for suffix in (".idx", ".log"):
        for base in fmt.numbered(disk.names(A), suffix):
            disk.unlink(f"{A}/{base:016d}{suffix}")
    repaired(disk)
    stream = start(disk)[0].namespace.by_key["/f"]
    assert stream.snapshot is not None
    assert stream.snapshot.owner == stream.id
