"""Folding with holes: what is known only grows, and whole evidence gives the server's own state."""

import cbor2
from hypothesis import given, strategies as st

from durastreamd.model.records import Append, Create, Delete
from durastreamd.model.stream_state import Detail, Stream, apply
from durastreamd.offline.verify.folding import (
    advance,
    begin,
    detail_of,
    knows_less,
    learn,
    plain,
    record_of,
    state_of,
)
from durastreamd.storage import format as fmt

CREATE = Create(1, 0, 0, 1000, 0, 0, [], "/a", "text/plain")


def appends(sizes: list[int]) -> list[Append]:
    found, start = [], 0
    for number, size in enumerate(sizes):
        found.append(Append(1, start, size, 1001 + number, number, 1, [size]))
        start += size
    return found


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.data())
def test_the_state_after_the_last_record_does_not_need_those_before(
    sizes: list[int], data: st.DataObject
) -> None:
    records = appends(sizes)
    served = begin(CREATE, 1)
    for lsn, record in enumerate(records, 2):
        apply(served, record, lsn)
    kept = [each for each in enumerate(records[:-1], 2) if data.draw(st.booleans())]
    folded = begin(CREATE, 1)
    for lsn, record in [*kept, (len(records) + 1, records[-1])]:
        advance(folded, record, lsn)
    assert folded.row() == served.row()


def test_closed_and_gone_stay_so() -> None:
    stream = begin(CREATE, 1)
    advance(stream, Append(1, 0, 3, 1001, 0, 1, [3], closes=True), 2)
    advance(stream, Append(1, 3, 3, 1001, 1, 1, [3]), 3)
    advance(stream, Delete(1, 6, 1002, 2, soft=True), 4)
    assert (stream.closed, stream.gone, stream.tail, stream.lsn) == (True, True, 6, 4)


def test_of_a_producer_the_highest_number_is_known() -> None:
    known, told = Detail(), Detail()
    known.producers, known.seq = {"p": (1, 5), "q": (0, 0)}, "b"
    told.producers, told.seq = {"p": (0, 9), "r": (2, 2)}, "a"
    assert knows_less(told, known)
    learn(known, told)
    assert known.producers == {"p": (1, 5), "q": (0, 0), "r": (2, 2)}
    assert known.seq == "b"
    learn(told, known)
    assert not knows_less(told, known)
    assert told.row()[1] == "b"


def test_an_append_tells_of_its_producers() -> None:
    record = Append(1, 0, 3, 1001, 0, 1, [3], seq="s", producers=(("p", 0, 4),))
    detail = detail_of(record)
    assert (detail.producers, detail.seq) == ({"p": (0, 4)}, "s")


def frame(header: bytes) -> fmt.StoredFrame:
    return fmt.StoredFrame(1, 0, 3, 1001, 0, 0, 2, header, b"")


def test_what_cannot_be_understood_is_none_and_not_an_error() -> None:
    assert record_of(frame(b"\xff")) is None
    assert record_of(frame(cbor2.dumps([99]))) is None
    for header in (b"", b"\xff", cbor2.dumps([]), cbor2.dumps([[1], 2]), cbor2.dumps(7)):
        assert state_of(header) is None


def test_a_state_comes_back() -> None:
    stream, detail = begin(CREATE, 1), Detail()
    detail.producers = {"p": (0, 4)}
    found = state_of(cbor2.dumps([stream.row(), detail.row()]))
    assert found is not None
    assert isinstance(found[0], Stream)
    assert (found[0].row(), found[1].row()) == (stream.row(), detail.row())


def test_only_an_append_without_anything_else_is_plain() -> None:
    assert plain(Append(1, 0, 3, 1001, 0, 1, [3]).header()) == (1, 3)
    assert plain(Append(1, 0, 9, 1001, 0, 3, None).header()) == (3, -1)
    assert plain(Append(1, 0, 3, 1001, 0, 1, [3], closes=True).header()) is None
    assert plain(Append(1, 0, 3, 1001, 0, 1, [3], seq="s").header()) is None
    assert plain(Append(1, 0, 3, 1001, 0, 1, [3], producers=(("p", 0, 0),)).header()) is None
    assert plain(CREATE.header()) is None
