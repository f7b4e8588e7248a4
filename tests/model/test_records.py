"""Records: what is written is what is read back, and nothing looks like a mark in an index."""

import cbor2
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from durastreamd.model.records import (
    Append,
    BucketChange,
    Create,
    Delete,
    Mark,
    Publish,
    Record,
    RecordPlace,
    Snapshot,
    Touch,
    UnreadableRecordError,
    parse,
)

INDEX_MARK = b"\xff\xfe"

NUMBERS = st.integers(0, 2**53 - 1)
IDS = st.integers(1, 2**40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LIFETIMES = st.just(-1) | st.integers(0, 2**45)
LENGTHS = st.none() | st.lists(st.integers(1, 2**33), max_size=6)
SNAPSHOTS = st.builds(Snapshot, IDS, NUMBERS, NUMBERS, NAMES, NUMBERS, st.integers(0, 2**64 - 1))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    lengths = draw(LENGTHS)
    producers = draw(st.lists(st.tuples(NAMES, NUMBERS, NUMBERS), max_size=3))
    return Append(
        draw(IDS),
        draw(NUMBERS),
        draw(NUMBERS) if lengths is None else sum(lengths),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(NUMBERS) if lengths is None else len(lengths),
        lengths,
        draw(st.booleans()),
        draw(st.none() | NAMES),
        tuple(producers),
    )


@st.composite
def creates(draw: st.DrawFn) -> Create:
    lengths = draw(LENGTHS)
    plain = Create(
        draw(IDS),
        draw(NUMBERS),
        draw(NUMBERS) if lengths is None else sum(lengths),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(NUMBERS) if lengths is None else len(lengths),
        lengths,
        draw(NAMES),
        draw(NAMES),
        draw(LIFETIMES),
        draw(LIFETIMES),
        draw(st.booleans()),
    )
    if draw(st.booleans()):
        return plain
    return replace(
        plain,
        source=draw(IDS),
        anchor=draw(st.just(-1) | NUMBERS),
        sub=draw(NUMBERS),
        floor=draw(NUMBERS),
        snapshot=draw(st.none() | SNAPSHOTS),
    )


RECORDS: st.SearchStrategy[Record] = st.one_of(
    appends(),
    creates(),
    st.builds(Delete, IDS, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(Publish, IDS, NUMBERS, NUMBERS, NUMBERS, SNAPSHOTS),
    st.builds(Touch, IDS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(BucketChange, NAMES, NUMBERS, st.booleans()),
    st.builds(Mark, NUMBERS),
)


def place_of(record: Record) -> RecordPlace:
    return RecordPlace(record.stream, record.start, record.size, record.time_ms, record.ordinal)


@given(RECORDS)
def test_every_record_is_read_back_as_it_was_written(record: Record) -> None:
    found = parse(place_of(record), record.header())
    assert type(found) is type(record)
    assert found == record


@pytest.mark.parametrize("change", [{"seq": ""}, {"closes": True}, {"producers": (("", 0, 0),)}])
def test_least_of_what_an_append_may_carry_is_kept(change: dict[str, object]) -> None:
    record = replace(Append(1, 0, 1, 0, 0, 1, [1]), **change)
    assert parse(place_of(record), record.header()) == record


@given(NAMES, NAMES, NAMES)
def test_text_in_a_header_never_looks_like_a_mark(key: str, kind: str, seq: str) -> None:
    created = Create(1, 0, 0, 0, 0, 0, [], key, kind)
    producers = ((key, 0, 0), (kind, 1, 2))
    appended = Append(1, 0, 0, 0, 0, 0, [], seq=seq, producers=producers)
    blob = Snapshot(1, 0, 1, kind, 0, 0)
    for record in (created, appended, Publish(1, 0, 0, 0, blob), BucketChange(key, 0, exists=True)):
        assert INDEX_MARK not in record.header()


@given(RECORDS)
def test_header_is_plain_cbor_without_indefinite_items(record: Record) -> None:
    fields = cbor2.loads(record.header())
    assert isinstance(fields, list)
    assert cbor2.dumps(fields) == record.header()


def test_header_of_a_plain_append_is_tiny() -> None:
    assert len(Append(1, 0, 100, 0, 0, 1, [100]).header()) <= 6
    assert len(Append(1, 0, 100, 0, 0, 1).header()) <= 4


@pytest.mark.parametrize("kind", [100, 255, 65_536, -1, "append", None, 1.5])
def test_unknown_kind_is_unreadable(kind: object) -> None:
    with pytest.raises(UnreadableRecordError):
        parse(RecordPlace(1, 0, 0, 0, 0), cbor2.dumps([kind, 1]))


@given(st.binary(max_size=20))
def test_header_of_any_bytes_is_read_or_unreadable(header: bytes) -> None:
    try:
        record = parse(RecordPlace(1, 0, 0, 0, 0), header)
    except UnreadableRecordError:
        return
    assert isinstance(record, Record)


@given(RECORDS, st.data())
def test_header_that_ends_early_is_unreadable(record: Record, data: st.DataObject) -> None:
    header = record.header()
    length = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(UnreadableRecordError):
        parse(place_of(record), header[:length])
