"""Each kind of damage: found at the right byte, planned, mended, and nothing else is touched."""

from collections.abc import Callable

import pytest

from durastreamd.model.records import Append, Mark
from durastreamd.offline.repair.apply import mark_of, repairs
from durastreamd.offline.repair.losses import Keep
from durastreamd.offline.verify.findings import Finding
from durastreamd.storage import format as fmt, log
from tests.support.damage import (
    flip,
    losses_of,
    opened,
    planned,
    put,
    repaired,
    shown,
    swap,
    truncate,
    verified,
    zero,
)
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import Dump, World, dump, start

TAIL, FLOOR, PRODUCERS, DATA = 2, 3, 8, 12

A = fmt.stream_dir(1)
J = fmt.stream_dir(2)
A_LOG, A_IDX = fmt.segment_path(1, 0), fmt.index_path(1, 0)


def found_at(disk: MovingDisk, path: str, position: int, kind: str) -> Finding:
    """Verify twice: the damage is found there, and nothing changes."""
    files = disk.files()
    findings = verified(disk)
    assert verified(disk) == findings
    assert disk.files() == files
    hits = [f for f in findings if (f.path, f.kind) == (path, kind)]
    assert any(f.position == position for f in hits), [str(f) for f in findings]
    planned(disk)
    assert disk.files() == files
    return next(f for f in hits if f.position == position)


def quarantined(disk: MovingDisk, path: str) -> bytes:
    return disk.read(f"quarantine/{repairs(disk)[-1]}/old/{path}")


def unchanged(before: Dump, after: Dump, *but: str) -> None:
    for key, fields in before.items():
        if key not in but:
            assert after[key] == fields, key


def test_the_world_is_clean_and_the_repair_has_nothing_to_do(disk: MovingDisk) -> None:
    assert verified(disk) == []
    assert planned(disk).empty


# --- segments ---


def raised(before: Dump, after: Dump, key: str, lost: tuple[int, int]) -> None:
    """The floor is above the loss, everything from there on is as it was, producers are known."""
    was, now = shown(before)[key], shown(after)[key]
    assert (now.floor, now.tail) == (lost[1], was.tail)
    assert now.data == was.data[lost[1] - was.floor :]
    assert now.producers == was.producers


@pytest.mark.parametrize("harm", [flip, zero], ids=["bit flip", "zeroed block"])
def test_damage_inside_a_segment(
    disk: MovingDisk, before: Dump, harm: Callable[[MovingDisk, str, int], None]
) -> None:
    harm(disk, A_LOG, 175)  # in the third record of 80 bytes
    original = disk.read(A_LOG)
    found_at(disk, A_LOG, 160, "payload")
    lost = (160, 240 if harm is flip else len(original))
    plan = planned(disk)
    assert losses_of(plan, "/a", "lost") == [lost]
    assert losses_of(plan, "/a", "no longer served") == [(0, 160)]
    assert not losses_of(plan, "/f", "lost"), "the fork reads below the loss only"
    repaired(disk)
    assert quarantined(disk, A_LOG) == original
    after = opened(disk)
    unchanged(before, after, "/a")
    raised(before, after, "/a", lost)


def test_the_older_side_is_kept_on_request(disk: MovingDisk, before: Dump) -> None:
    flip(disk, A_LOG, 175)
    plan = repaired(disk, keep=Keep("older"))
    assert losses_of(plan, "/a", "lost") == [(160, 240)]
    after = opened(disk)
    assert (after["/a"][FLOOR], after["/a"][TAIL]) == (0, 160)
    assert after["/a"][DATA] == before["/a"][DATA][:160]  # type: ignore[index]
    assert after["/a"][PRODUCERS] == before["/a"][PRODUCERS], "no retry is stored twice"
    unchanged(before, after, "/a")


def test_a_loss_that_a_fork_reads_raises_its_floor_too(disk: MovingDisk, before: Dump) -> None:
    flip(disk, A_LOG, 85)
    plan = repaired(disk, keep=Keep("newer"))
    assert losses_of(plan, "/f", "lost") == [(80, 160)]
    after = opened(disk)
    raised(before, after, "/f", (80, 160))
    raised(before, after, "/a", (80, 160))


def test_a_missing_segment(disk: MovingDisk, before: Dump) -> None:
    disk.unlink(A_LOG)
    end = len(before["/a"][DATA])  # type: ignore[arg-type]
    found_at(disk, A_LOG, 0, "missing")
    plan = repaired(disk)
    ((low, high),) = losses_of(plan, "/a", "lost")
    assert low == 0
    assert high < end
    after = opened(disk)
    raised(before, after, "/a", (low, high))
    unchanged(before, after, "/a", "/f")


def raised_from(position: int, disk: MovingDisk, before: Dump) -> None:
    """Repair: one range is lost, from a position on, and the floor rises above it."""
    ((low, high),) = losses_of(repaired(disk), "/a", "lost")
    assert low == position
    raised(before, opened(disk), "/a", (low, high))


def test_a_segment_missing_with_its_index(disk: MovingDisk, before: Dump) -> None:
    disk.unlink(A_LOG)
    disk.unlink(A_IDX)
    found_at(disk, A_LOG, 0, "gap")
    raised_from(0, disk, before)


def test_a_truncated_segment(disk: MovingDisk, before: Dump) -> None:
    truncate(disk, A_LOG, 100)
    found_at(disk, A_LOG, 100, "short")
    raised_from(80, disk, before)


def test_a_truncated_last_segment_cuts_the_tail_back(disk: MovingDisk, before: Dump) -> None:
    path = fmt.segment_path(3, 0)
    truncate(disk, path, 14)
    found_at(disk, path, 14, "short")
    plan = repaired(disk)
    ((low, high),) = losses_of(plan, "/s", "lost")
    assert high == before["/s"][TAIL]
    after = opened(disk)
    assert (after["/s"][FLOOR], after["/s"][TAIL]) == (before["/s"][FLOOR], low)
    unchanged(before, after, "/s")


def test_two_segments_swapped_are_put_right(disk: MovingDisk, before: Dump) -> None:
    other = fmt.segment_path(2, 0)
    swap(disk, A_LOG, other)
    assert any(f.path == A_LOG and not f.harmless for f in verified(disk))
    plan = repaired(disk)
    assert plan.losses == []
    assert opened(disk) == before


# --- indexes ---


def test_a_bit_flip_in_an_index_loses_nothing(disk: MovingDisk, before: Dump) -> None:
    flip(disk, A_IDX, 200)
    original = disk.read(A_IDX)
    assert any(f.path == A_IDX and f.kind == "entry" and f.position <= 200 for f in verified(disk))
    plan = repaired(disk)
    assert not losses_of(plan, "/a", "lost", "no longer served")
    # What the entry said of their sum still proves them, so nothing is taken on trust.
    assert losses_of(plan, "/a", "unproven", "without proof") == []
    assert quarantined(disk, A_IDX) == original
    after = opened(disk)
    assert after["/a"][DATA] == before["/a"][DATA]
    assert after["/a"][PRODUCERS] == before["/a"][PRODUCERS]
    unchanged(before, after, "/a", "/f")


@pytest.mark.parametrize("stream", ["/j", "/a"])
def test_a_lost_index_is_rebuilt_from_the_segment(
    disk: MovingDisk, before: Dump, stream: str
) -> None:
    number = before[stream][0]
    assert isinstance(number, int)
    path = fmt.index_path(number, 0)
    disk.unlink(path)
    found_at(disk, path, 0, "missing")
    plan = repaired(disk)
    assert not losses_of(plan, stream, "lost", "no longer served")
    after = opened(disk)
    assert after[stream][DATA] == before[stream][DATA]
    if stream == "/j":
        assert after[stream] == before[stream], "messages are found at their separators"


def test_two_indexes_swapped_are_put_right(disk: MovingDisk, before: Dump) -> None:
    other = fmt.index_path(2, 0)
    swap(disk, A_IDX, other)
    found_at(disk, A_IDX, 0, "misplaced")
    plan = repaired(disk)
    assert plan.losses == []
    assert opened(disk) == before


# --- catalogue and identity ---


def catalog_path(disk: MovingDisk) -> str:
    return f"catalog/{disk.names('catalog')[-1]}"


def test_a_lost_catalogue_is_rebuilt(disk: MovingDisk, before: Dump) -> None:
    disk.unlink(catalog_path(disk))
    found_at(disk, "catalog", 0, "missing")
    repaired(disk)
    assert opened(disk) == before


@pytest.mark.parametrize("at", [4, 60, -10])
def test_a_bit_flip_in_the_catalogue(disk: MovingDisk, before: Dump, at: int) -> None:
    path = catalog_path(disk)
    size = len(disk.read(path))
    flip(disk, path, at % size)
    original = disk.read(path)
    hits = [f for f in verified(disk) if f.path == path and not f.harmless]
    assert hits
    assert hits[0].position <= at % size
    repaired(disk)
    assert quarantined(disk, path) == original
    assert opened(disk) == before


@pytest.mark.parametrize("at", range(0, 90, 7))
def test_a_bit_flip_in_the_identity(disk: MovingDisk, before: Dump, at: int) -> None:
    flip(disk, "DURASTREAMD", at % len(disk.read("DURASTREAMD")), 1)
    original = disk.read("DURASTREAMD")
    found_at(disk, "DURASTREAMD", 0, "damaged")
    plan = repaired(disk)
    assert plan.losses == []
    assert quarantined(disk, "DURASTREAMD") == original
    assert opened(disk) == before


def test_a_lost_identity(disk: MovingDisk, before: Dump) -> None:
    disk.unlink("DURASTREAMD")
    found_at(disk, "DURASTREAMD", 0, "missing")
    repaired(disk)
    assert mark_of(disk) is None
    assert opened(disk) == before


# --- journal ---


def journal_path(disk: MovingDisk) -> str:
    return f"journal/{disk.names('journal')[-1]}"


def test_a_bit_flip_in_a_journal_payload(disk: MovingDisk, before: Dump) -> None:
    path = journal_path(disk)
    at = disk.read(path).index(b"after the checkpoint")
    flip(disk, path, at + 3)
    original = disk.read(path)
    found_at(disk, path, at, "payload")
    plan = repaired(disk)
    was = before["/a"][TAIL]
    assert isinstance(was, int)
    assert losses_of(plan, "/a", "lost") == [(was - 20, was)]
    assert quarantined(disk, path) == original
    after = opened(disk)
    assert after["/a"][DATA] == before["/a"][DATA][:-20]  # type: ignore[index]
    assert after["/a"][PRODUCERS] == before["/a"][PRODUCERS], "its head still names the producer"
    unchanged(before, after, "/a")


def test_a_bit_flip_in_a_journal_head(disk: MovingDisk, before: Dump) -> None:
    path = journal_path(disk)
    at = disk.read(path).index(fmt.FRAME_MAGIC)
    flip(disk, path, at + 20)
    found_at(disk, path, at, "frame")
    plan = repaired(disk)
    assert any(loss["what"] == "frames" and "/a" in str(loss["detail"]) for loss in plan.losses)
    after = opened(disk)
    assert after["/a"][DATA] == before["/a"][DATA][:-20]  # type: ignore[index]
    unchanged(before, after, "/a")


def test_several_lost_journal_frames_are_accepted_by_name(disk: MovingDisk, before: Dump) -> None:
    """The server refuses to start on this (case I); the repair names the loss and goes on."""
    path = journal_path(disk)
    data = disk.read(path)
    first = data.index(fmt.FRAME_MAGIC)
    second = data.index(fmt.FRAME_MAGIC, first + 1)
    third = data.index(fmt.FRAME_MAGIC, second + 1)
    zero(disk, path, first, third - first)
    found_at(disk, path, first, "frame")
    plan = repaired(disk)
    assert any("nobody can say" in str(loss.get("detail")) for loss in plan.losses)
    after = opened(disk)
    unchanged(before, after, "/a", "/j")
    assert after["/j"][DATA] == before["/j"][DATA][: -len(b'"late",\n')]  # type: ignore[index]


def test_what_was_never_acknowledged_costs_no_history() -> None:
    """Two records of one unsynced batch, the first torn: the second does not raise the floor."""
    world = World()
    world.create("/a")
    world.append("/a", b"acknowledged")
    state = world.engine.namespace.by_key["/a"]
    first = Append(1, state.tail, 5, world.now_ms, 1, 1, [5])
    second = Append(1, state.tail + 5, 6, world.now_ms, 2, 1, [6])
    world.commit([(first, b"first"), (second, b"second")])
    disk = moving(world.disk)
    path = journal_path(disk)
    flip(disk, path, disk.read(path).index(b"first"))
    assert all(finding.harmless for finding in verified(disk))
    plan = repaired(disk)
    assert plan.losses == []
    assert shown(opened(disk))["/a"].data == b"acknowledged"


def test_a_lost_create_frame_leaves_a_stream_without_its_name() -> None:
    world = World()
    world.create("/named")
    world.append("/named", b"its bytes")
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    path = journal_path(disk)
    at = disk.read(path).index(fmt.FRAME_MAGIC)
    flip(disk, path, at + 90)
    plan = repaired(disk)
    assert any("lost-and-found" in note for note in plan.notes)
    after = opened(disk)
    assert after[f"/lost-and-found/{1:016x}"][DATA] == b"its bytes"


def test_a_missing_journal_file(disk: MovingDisk, before: Dump) -> None:
    path = journal_path(disk)
    disk.unlink(path)
    found_at(disk, path, 0, "missing")
    plan = repaired(disk)
    assert any(loss["what"] == "journal" for loss in plan.losses)
    unchanged(before, opened(disk), "/a", "/j")


# --- the rest ---


def test_half_a_snapshot(disk: MovingDisk, before: Dump) -> None:
    (path,) = [path for path in disk.files() if path.endswith(".snap")]
    truncate(disk, path, 7)
    original = disk.read(path)
    found_at(disk, path, 7, "short")
    plan = repaired(disk)
    assert [loss["what"] for loss in plan.losses if loss["stream"] == "/s"] == ["snapshot"]
    assert quarantined(disk, path) == original
    after = opened(disk)
    assert after["/s"][DATA] == before["/s"][DATA]
    assert after["/s"][FLOOR] == before["/s"][FLOOR]
    unchanged(before, after, "/s")


def test_a_flipped_bit_in_a_snapshot(disk: MovingDisk) -> None:
    (path,) = [path for path in disk.files() if path.endswith(".snap")]
    flip(disk, path, 3)
    found_at(disk, path, 0, "payload")
    assert verified(disk, deep=False) == []
    repaired(disk)


@pytest.mark.parametrize("path", ["alien", "journal/alien", f"{A}/alien", "streams/zz"])
def test_a_foreign_file(disk: MovingDisk, before: Dump, path: str) -> None:
    put(disk, path, b"not ours")
    assert found_at(disk, path, 0, "foreign").harmless
    plan = repaired(disk)
    assert plan.losses == []
    assert plan.made == []
    assert quarantined(disk, path) == b"not ours"
    assert opened(disk) == before


def test_a_mark_of_damage_is_cleared_and_the_frames_set_aside_come_back() -> None:
    """The server set a stream aside and went on; the repair brings back what it put aside."""
    world = World()
    world.create("/d")
    for number in range(4):
        world.append("/d", b"record %d." % number, producer=("p", 0, number))
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    path = journal_path(disk)
    flip(disk, path, disk.read(path).index(b"record 1."))
    engine, _ = start(disk)
    assert engine.namespace.by_key["/d"].damage
    engine.release()
    assert [name for name in disk.names("quarantine") if name.endswith(".frames")]
    plan = repaired(disk)
    assert losses_of(plan, "/d", "lost") == [(9, 18)]
    fields = opened(disk)["/d"]
    assert fields[DATA] == b"record 2.record 3."
    assert dict(fields[PRODUCERS]) == {"p": (0, 3)}  # type: ignore[call-overload]


def leave_orphan(disk: MovingDisk) -> None:
    """Put an index of /a's inside its first segment."""
    engine = start(disk.survivor())[0]
    stream = engine.namespace.by_key["/a"]
    stream.detail = engine.load_detail(stream)
    log.begin_segment(disk, 1, 100, engine.state_frame(stream)._replace(start=100))


def test_an_index_that_cuts_a_segment_is_found_and_goes_to_quarantine(
    world: World, disk: MovingDisk
) -> None:
    """Left by a flush of an older version that failed; every byte is there, and stays."""
    leave_orphan(disk)
    orphan = fmt.index_path(1, 100)
    found = verified(disk)
    assert [(f.path, f.kind, f.stream) for f in found if f.kind == "orphan"] == [
        (orphan, "orphan", "/a")
    ]
    assert orphan in planned(disk).out
    expected = opened(disk.survivor())
    repaired(disk)
    assert orphan not in disk.files()
    assert shown(opened(disk)) == shown(expected)


def test_an_index_that_cuts_a_segment_goes_with_other_damage(
    world: World, disk: MovingDisk
) -> None:
    leave_orphan(disk)
    put(disk, fmt.index_path(2, 0), b"")
    plan = repaired(disk)
    assert fmt.index_path(1, 100) in plan.out
    assert shown(opened(disk))["/a"].data == shown(dump(world.engine))["/a"].data


@pytest.mark.parametrize("careful", [False, True])
def test_imitated_heads_of_one_client_hide_no_frame_of_others(*, careful: bool) -> None:
    """One bit of the imitator's own frame rots: it alone loses, and the plan says what."""
    world = World()
    for key in ("/evil", "/v1", "/v2"):
        world.create(key)
    fields = (1, 0, world.now_ms, 0, 0, 2, 1, 1) if careful else (0,) * 8
    # Pretended headers reach over the frames of the two others.
    head = fmt.FRAME.pack(fmt.FRAME_MAGIC, 40_000, 5, *fields, 0) + b"\x82\x00\x81\x05".ljust(8)
    at = world.engine.journal.length
    world.append("/evil", head * 400)
    world.append("/v1", b"one" * 8000)
    world.append("/v2", b"two" * 8000)
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    flip(disk, fmt.journal_path(world.engine.journal.number), at + 60)

    plan = repaired(disk)
    after = shown(opened(disk))
    assert after["/v1"].data == b"one" * 8000
    assert after["/v2"].data == b"two" * 8000
    assert after["/evil"].data == b""
    assert plan.losses, "the imitator's own append is lost, and that is said"
