"""Pieces that no index vouches for: frames set aside, and messages found again in bare bytes."""

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.model.records import Append, Create
from durastreamd.offline.repair.pieces import RECORD_BYTES, Piece, frames_aside, messages_of
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from tests.support.damage import put
from tests.support.moving_disk import MovingDisk

STREAM = 5


def frame_of(record: Append, lsn: int, data: bytes, stream: int = STREAM) -> bytes:
    header = record.header()
    total = payload_sum(data, stream, record.start)
    place = (stream, record.start, len(data), record.time_ms, record.ordinal, total, lsn)
    bare = fmt.FRAME.pack(fmt.FRAME_MAGIC, len(header), len(data), *_reordered(place))
    return bare + header + data


def _reordered(place: tuple[int, ...]) -> tuple[int, ...]:
    stream, start, _, time_ms, ordinal, total, lsn = place
    known = (stream, start, time_ms, ordinal, total, lsn)
    return (*known, *([0] * (len(fmt.FRAME.unpack(bytes(fmt.FRAME.size))) - 9)))


@pytest.fixture
def disk() -> MovingDisk:
    disk = MovingDisk()
    disk.make_directory(fmt.QUARANTINE_DIR)
    return disk


def aside(disk: MovingDisk, name: str, *frames: bytes) -> str:
    path = f"{fmt.QUARANTINE_DIR}/{name}"
    put(disk, path, b"".join(frames))
    return path


FIRST = Append(STREAM, 0, 3, 1001, 0, 1, [3])
SECOND = Append(STREAM, 3, 4, 1002, 1, 1, [4])


def test_frames_aside_are_found_in_order_of_their_lsn(disk: MovingDisk) -> None:
    late = aside(disk, f"{STREAM:016x}@9.frames", frame_of(SECOND, 9, b"four"))
    aside(disk, f"{STREAM:016x}@8.frames", frame_of(FIRST, 8, b"one"))
    aside(disk, f"{6:016x}@8.frames", frame_of(FIRST, 8, b"one", 6))
    aside(disk, f"{STREAM:016x}@1.torn", frame_of(FIRST, 1, b"one"))
    found = frames_aside(disk, STREAM, 0)
    assert [piece.frame.lsn for piece in found] == [8, 9]
    assert disk.read(late)[found[1].at :] == b"four"
    assert [piece.frame.lsn for piece in frames_aside(disk, STREAM, 8)] == [9]


def test_a_frame_whose_bytes_do_not_verify_is_left_out_and_the_next_is_not(
    disk: MovingDisk,
) -> None:
    rotten = frame_of(FIRST, 8, b"one")[:-1] + b"!"
    aside(disk, f"{STREAM:016x}@8.frames", rotten, frame_of(SECOND, 9, b"four"), b"torn")
    assert [piece.frame.lsn for piece in frames_aside(disk, STREAM, 0)] == [9]


def test_a_piece_knows_where_it_ends() -> None:
    frame = fmt.StoredFrame(STREAM, 3, 4, 1002, 7, 0, 9, b"", b"")
    assert Piece(frame, SECOND, "", 0).end == 7
    assert Piece(frame, SECOND, "", 0).messages == 8
    create = Create(STREAM, 0, 0, 1000, 0, 0, [], "/a", "text/plain")
    assert Piece(frame, create, "", 0).messages == 7


@given(st.lists(st.sampled_from((b"1", b'"a"', b'{"b":[1]}')), max_size=8))
def test_json_messages_are_found_again(values: list[bytes]) -> None:
    data = b"".join(value + b",\n" for value in values)
    found = list(messages_of(data, json=True, count=len(values)))
    assert sum(size for _, size, _ in found) == len(data)
    assert sum(number for _, _, number in found if isinstance(number, int)) == len(values)


def test_what_is_no_json_is_passed_over() -> None:
    data = b'1,\n}rot{,\n"a",\n'
    assert list(messages_of(data, json=True, count=3)) == [(0, 3, 1), (10, 5, 1)]
    assert list(messages_of(b"1,\n2", json=True, count=2)) == [(0, 3, 1)]
    assert list(messages_of(b"", json=True, count=2)) == []
    assert list(messages_of(b"1,\n", json=True, count=0)) == []


EDGES = [edge + step for edge in (1, RECORD_BYTES, 3 * RECORD_BYTES) for step in (0, 1, 7)]


@settings(max_examples=30)
@given(st.sampled_from(EDGES), st.integers(1, 6))
def test_other_bytes_are_all_kept_in_at_most_so_many_messages(size: int, count: int) -> None:
    data = (b"line\n" * (size // 5 + 1))[:size]
    ((start, length, lengths),) = messages_of(data, json=False, count=count)
    assert (start, length) == (0, size)
    assert isinstance(lengths, list)
    assert sum(lengths) == size
    assert 1 <= len(lengths) <= count
    assert all(lengths)
