"""One stream's state: rows round-trip, deadlines follow a table, records keep the invariants."""

import cbor2
import pytest
from hypothesis import given, strategies as st

from durastreamd.model.records import Append, Create, Publish, Snapshot, Touch
from durastreamd.model.stream_state import MET, Detail, Stream, apply, check_invariants

NOW = 1_000_000
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(0, 2**53 - 1)
LIFETIMES = st.just(-1) | st.integers(0, 2**45)


def stream(ttl_ms: int = -1, expires_ms: int = -1, *, closes: bool = False) -> Stream:
    made = Stream(Create(1, 0, 0, NOW, 0, 0, [], "/s", "text/plain", ttl_ms, expires_ms, closes))
    made.lsn = 1
    return made


def appended(target: Stream, size: int, time_ms: int = NOW, **options: object) -> Append:
    lengths = [size] if size else []
    return Append(
        target.id,
        target.tail,
        size,
        time_ms,
        target.messages,
        len(lengths),
        lengths,
        **options,  # type: ignore[arg-type]
    )


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Return any stream there may be."""
    source = draw(st.integers(0, 99))
    start = draw(st.integers(0, 500)) if source else 0
    size = draw(st.integers(0, 500))
    floor = draw(st.integers(0, start)) if source else 0
    blob = draw(
        st.none() | st.builds(Snapshot, NUMBERS, st.just(floor), NUMBERS, NAMES, NUMBERS, NUMBERS)
    )
    record = Create(
        draw(st.integers(100, 2**40)),
        start,
        size,
        draw(NUMBERS),
        draw(NUMBERS),
        1 if size else 0,
        [size] if size else [],
        draw(NAMES),
        draw(NAMES),
        draw(LIFETIMES),
        draw(LIFETIMES),
        draw(st.booleans()),
        source,
        draw(st.integers(-1, start)) if source else -1,
        draw(st.integers(0, 9)) if source else 0,
        floor,
        blob if source else None,
    )
    made = Stream(record)
    made.lsn = draw(NUMBERS)
    made.gone = draw(st.booleans())
    made.damage = draw(st.sampled_from(["", "rotten", f"{MET}rotten"]))
    made.plain = draw(st.booleans())
    return made


@given(streams())
def test_row_round_trips_through_cbor(target: Stream) -> None:
    check_invariants(target)
    row = cbor2.loads(cbor2.dumps(target.row()))
    again = Stream.from_row(row)
    check_invariants(again)
    for name in Stream.__slots__:
        if name not in ("read_ms", "detail"):
            assert getattr(again, name) == getattr(target, name), name
    assert again.read_ms == target.accessed_ms
    assert again.detail is None


@given(
    st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS), max_size=5),
    st.none() | NAMES,
)
def test_detail_round_trips_through_cbor(
    producers: dict[str, tuple[int, int]], seq: str | None
) -> None:
    detail = Detail()
    detail.producers, detail.seq = producers, seq
    again = Detail.from_row(cbor2.loads(cbor2.dumps(detail.row())))
    assert (again.producers, again.seq) == (producers, seq)


# --- lifetimes ---


@pytest.mark.parametrize(
    ("ttl_ms", "expires_ms", "read_ms", "deadline"),
    [
        (-1, -1, NOW, None),
        (500, -1, NOW, NOW + 500),
        (500, -1, NOW + 70, NOW + 570),
        (0, -1, NOW, NOW),
        (-1, NOW + 9, NOW, NOW + 9),
        (-1, NOW + 9, NOW + 5, NOW + 9),
        (-1, 0, NOW, 0),
    ],
)
def test_deadline_follows_the_table(
    ttl_ms: int, expires_ms: int, read_ms: int, deadline: int | None
) -> None:
    target = stream(ttl_ms, expires_ms)
    target.read_ms = read_ms
    assert target.deadline_ms() == deadline
    if deadline is None:
        assert not target.expired(2**60)
    else:
        assert target.expired(deadline)
        assert not target.expired(deadline - 1)


@pytest.mark.parametrize("kind", ["append", "close", "publish", "touch"])
def test_every_write_renews_a_sliding_lifetime_and_no_absolute_one(kind: str) -> None:
    for ttl_ms, expires_ms, expected in ((500, -1, NOW + 540), (-1, NOW + 500, NOW + 500)):
        target = stream(ttl_ms, expires_ms)
        later = NOW + 40
        blob = Snapshot(1, 0, 1, "text/plain", 0, 0)
        records: dict[str, Append | Publish | Touch] = {
            "append": appended(target, 3, later),
            "close": appended(target, 0, later, closes=True),
            "publish": Publish(1, 0, later, 0, blob),
            "touch": Touch(1, 0, later, 0),
        }
        apply(target, records[kind], 2)
        assert target.deadline_ms() == expected


def test_renewal_never_shortens_a_lifetime() -> None:
    target = stream(500)
    apply(target, Touch(1, 0, NOW + 40, 0), 2)
    apply(target, Touch(1, 0, NOW + 10, 0), 3)
    assert target.deadline_ms() == NOW + 540


# --- applying ---


def test_append_moves_the_tail_and_takes_all_it_carries() -> None:
    target = stream()
    apply(target, appended(target, 5, seq="7", producers=(("p", 1, 0),)), 2)
    apply(target, appended(target, 2, closes=True, producers=(("p", 1, 1), ("q", 0, 0))), 3)
    check_invariants(target)
    assert (target.tail, target.messages, target.closed, target.lsn) == (7, 2, True, 3)
    assert target.loaded().producers == {"p": (1, 1), "q": (0, 0)}
    assert target.loaded().seq == "7"
    assert not target.plain


def test_plain_append_leaves_nothing_to_load() -> None:
    target = stream()
    apply(target, appended(target, 5), 2)
    assert target.plain
    assert target.detail is None


def test_stream_seq_alone_makes_a_detail_worth_loading() -> None:
    target = stream()
    apply(target, appended(target, 5, seq=""), 2)
    assert not target.plain
    assert target.loaded().seq == ""


def test_detail_that_is_on_disk_is_not_taken_for_empty() -> None:
    target = stream()
    target.plain = False
    with pytest.raises(AssertionError, match="before it was loaded"):
        target.loaded()


def test_snapshot_becomes_the_floor() -> None:
    target = stream()
    apply(target, appended(target, 50), 2)
    blob = Snapshot(1, 30, 1, "text/plain", 9, 9)
    apply(target, Publish(1, 50, NOW, 1, blob), 3)
    check_invariants(target)
    assert (target.floor, target.snapshot, target.tail) == (30, blob, 50)


def test_record_is_applied_once_and_in_order() -> None:
    target = stream()
    apply(target, appended(target, 1), 5)
    for lsn in (5, 4):
        with pytest.raises(AssertionError, match="applied after"):
            apply(target, appended(target, 1), lsn)


def test_append_elsewhere_than_at_the_tail_is_never_applied() -> None:
    target = stream()
    with pytest.raises(AssertionError, match="tail is 0"):
        apply(target, Append(1, 3, 1, NOW, 0, 1, [1]), 2)


def test_closed_stays_closed() -> None:
    target = stream(closes=True)
    with pytest.raises(AssertionError, match="closed"):
        apply(target, appended(target, 1), 2)
    assert target.closed


PRODUCERS = st.lists(
    st.tuples(st.sampled_from("pqr"), NUMBERS, NUMBERS), max_size=2, unique_by=lambda p: p[0]
)
MOVES = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 40), PRODUCERS, st.none() | NAMES),
    st.tuples(st.just("publish"), st.integers(0, 400)),
    st.tuples(st.just("touch"), st.integers(-50, 50)),
)


@given(st.lists(MOVES, max_size=20))
def test_any_run_of_records_keeps_the_invariants(moves: list[tuple[object, ...]]) -> None:
    target = stream(500)
    for lsn, move in enumerate(moves, 2):
        tail, floor, deadline = target.tail, target.floor, target.deadline_ms()
        record: Append | Publish | Touch
        match move:
            case ("append", int(size), list(producers), seq):
                record = appended(target, size, seq=seq, producers=tuple(producers))
            case ("publish", int(place)):
                position = target.floor + place % (target.tail - target.floor + 1)
                blob = Snapshot(1, position, lsn, "text/plain", 1, 1)
                record = Publish(1, target.tail, NOW, target.messages, blob)
            case (_, delta):
                assert isinstance(delta, int)
                record = Touch(1, target.tail, NOW + delta, target.messages)
            case _:
                raise AssertionError(move)
        apply(target, record, lsn)
        check_invariants(target)
        assert target.tail >= tail
        assert target.floor >= floor
        assert deadline is not None
        assert (target.deadline_ms() or 0) >= deadline
        again = Stream.from_row(cbor2.loads(cbor2.dumps(target.row())))
        assert again.row() == target.row()
