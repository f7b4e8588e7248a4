"""Retention as a decision: floors only rise, parts of a policy change alone, records come back."""

import pytest

from durastreamd.model.records import NO_POLICY, Create, RecordPlace, Retain, Snapshot, parse
from durastreamd.model.retention import Change, decide, limited
from durastreamd.model.stream_state import Stream, apply, check_invariants

NOW = 1_000_000


def stream(size: int = 10) -> Stream:
    return Stream(Create(1, 0, size, NOW, 0, 1, [size], "/s", "text/plain"))


def retained(target: Stream, change: Change) -> Retain | None:
    record = decide(target, change, NOW)
    if record is not None:
        place = RecordPlace(1, record.start, 0, record.time_ms, record.ordinal)
        assert parse(place, record.header()) == record
        apply(target, record, target.lsn + 1)
        check_invariants(target)
        again = Stream.from_row(target.row())
        assert (again.trimmed, again.policy, again.row()) == (
            target.trimmed, target.policy, target.row(),
        )  # fmt: skip
    return record


@pytest.mark.parametrize(("floor", "found"), [(0, 4), (3, 4), (4, 4), (7, 7), (10, 10), (99, 10)])
def test_a_floor_never_falls_and_never_passes_the_tail(floor: int, found: int) -> None:
    target = stream()
    assert retained(target, Change(4)) is not None
    record = retained(target, Change(floor))
    assert (record is not None) is (found > 4)
    assert (target.floor, target.trimmed) == (found, found)
    assert target.lost_from() is None
    assert not target.whole


def test_parts_of_a_policy_are_changed_alone_and_taken_back() -> None:
    target = stream()
    assert not limited(target)
    retained(target, Change(age_ms=5000, messages=3))
    assert (target.policy, target.floor, target.trimmed) == ((5000, -1, 3), 0, 0)
    retained(target, Change(size=0, messages=-1))
    assert target.policy == (5000, 0, -1)
    assert limited(target)
    retained(target, Change(age_ms=-1, size=-1))
    assert target.policy == NO_POLICY
    assert retained(target, Change(0, -1, -1, -1)) is None


def test_a_stream_without_retention_is_written_as_ever() -> None:
    assert len(stream().row()) == 18


def test_what_retention_passed_is_not_lost_and_what_a_repair_passed_is() -> None:
    target = stream()
    retained(target, Change(4))
    target.floor = 6  # as a repair leaves it
    assert target.lost_from() == 4
    target.snapshot = Snapshot(1, 6, 1, "text/plain", 1, 1)
    assert (target.lost_from(), target.whole) == (None, True)
    retained(target, Change(8))
    assert (target.lost_from(), target.whole) == (None, False)
