"""Records made up for bytes without their entries: proven where a hurt entry says so, in order."""

from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.filling import Filling
from durastreamd.offline.repair.pieces import Piece, SegmentBytes
from durastreamd.storage import format as fmt

DATA = b'"a",\n"b",\n"c",\n"d",\n'  # four messages of five bytes


def stream_of(kind: str, messages: int = 4, lsn: int = 9) -> Stream:
    lengths: list[int] | None = None if kind == "application/json" else []
    stream = Stream(Create(3, 0, 0, 1000, 0, 0, lengths, "/s", kind))
    stream.tail, stream.messages, stream.lsn = len(DATA), messages, lsn
    return stream


def source(data: bytes = DATA) -> SegmentBytes:
    return SegmentBytes("a file", 0, len(data), lambda size, at: data[at : at + size])


def hurt(low: int, high: int, header: bytes = b"") -> fmt.StoredFrame:
    return fmt.StoredFrame(3, low, high - low, 0, 0, 0, 0, header, b"")


def told(pieces: list[Piece]) -> list[tuple[int, int, int, int, bool]]:
    return [(p.frame.start, p.end, p.frame.lsn, p.messages, p.proven) for p in pieces]


def test_what_a_hurt_entry_proves_stands_between_what_nothing_does() -> None:
    filling = Filling(stream_of("application/json"), [], [], [hurt(5, 15)])
    assert told(list(filling.fill(0, 20, source()))) == [
        (0, 5, 1, 1, False),
        (5, 15, 2, 3, True),
        (15, 20, 3, 4, False),
    ]


def test_what_is_proven_is_counted_first() -> None:
    """Three messages in all, two of them proven: the bytes before them are one."""
    filling = Filling(stream_of("text/plain", 3), [], [], [hurt(5, 10), hurt(10, 20)])
    assert told(list(filling.fill(0, 20, source()))) == [
        (0, 5, 1, 1, False),
        (5, 10, 2, 2, True),
        (10, 20, 3, 3, True),
    ]


def test_a_header_whose_lengths_fit_says_where_messages_end() -> None:
    header = Append(3, 0, 20, 0, 0, 2, [5, 15]).header()
    (piece,) = Filling(stream_of("text/plain"), [], [], [hurt(0, 20, header)]).fill(0, 20, source())
    assert isinstance(piece.record, Append)
    assert piece.record.lengths == [5, 15]
    header = Append(3, 0, 20, 0, 0, 2, [5, 16]).header()
    (piece,) = Filling(stream_of("text/plain"), [], [], [hurt(0, 20, header)]).fill(0, 20, source())
    assert isinstance(piece.record, Append)
    assert piece.record.lengths == [20]


def test_there_are_no_more_records_than_numbers_for_them() -> None:
    """A state says that record 1 was the only one before it."""
    state = stream_of("application/json", 1, 1)
    state.tail = 10
    filling = Filling(stream_of("application/json"), [], [state], [])
    assert told(list(filling.fill(0, 10, source()))) == [(0, 5, 1, 1, False)]
    assert told(list(filling.fill(10, 20, source()))) == [(10, 20, 2, 3, False)]
