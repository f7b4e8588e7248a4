"""Pieces: the records that survive, and where some come from that no index vouches for.

Frames that a recovery set aside are in ``quarantine/<id>@<lsn>.frames``, records of a damaged
stream. Their checksums are bound to a journal file that is gone. They verified when they were put
there; what can still be checked is: whose they are, where they start, and the bytes they carry.

Bytes of a segment whose index entries are lost are taken apart into messages again, as far as that
can be told from them (``filling``).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from durastreamd.model.records import Append, Create, Record
from durastreamd.offline.verify.folding import record_of
from durastreamd.protocol.json_text import SEPARATOR, VALUE
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import Disk, read_file

# Records made up for bytes without an index hold about this much, as large batches do.
RECORD_BYTES = 1024 * 1024


# Where a record begins in some bytes, its size, and its messages: their number, or their lengths.
Messages = tuple[int, int, int | list[int]]


class Piece(NamedTuple):
    """A record that survives, and where its bytes lie; ``path`` is "" where it has none."""

    frame: fmt.StoredFrame
    record: Record
    path: str
    at: int
    proven: bool = True

    @property
    def end(self) -> int:
        """Return the position after its bytes."""
        return self.frame.start + self.frame.size

    @property
    def messages(self) -> int:
        """Return how many messages the stream has after it."""
        added = self.record.count if isinstance(self.record, Append | Create) else 0
        return self.frame.ordinal + added


class SegmentBytes(NamedTuple):
    """A segment file that bytes are taken from: those of [base, end), read (size, position)."""

    path: str
    base: int
    end: int
    read: Callable[[int, int], bytes]


# --- set aside ---


def frames_aside(disk: Disk, stream: int, after_lsn: int) -> list[Piece]:
    """Return the records of a stream in quarantine that are later than an lsn."""
    found: dict[int, Piece] = {}
    for name in disk.names(fmt.QUARANTINE_DIR):
        if name.startswith(f"{stream:016x}@") and name.endswith(".frames"):
            path = f"{fmt.QUARANTINE_DIR}/{name}"
            for piece in _pieces_of(path, read_file(disk, path), stream):
                if piece.frame.lsn > after_lsn:
                    found.setdefault(piece.frame.lsn, piece)
    return [found[lsn] for lsn in sorted(found)]


def _pieces_of(path: str, raw: bytes, stream: int) -> list[Piece]:
    pieces: list[Piece] = []
    position = 0
    while position + fmt.FRAME.size <= len(raw):
        magic, header_size, size, owner, start, time_ms, ordinal, total, lsn, *_ = (
            fmt.FRAME.unpack_from(raw, position)
        )
        body = position + fmt.FRAME.size + header_size
        if magic != fmt.FRAME_MAGIC or owner != stream or body + size > len(raw):
            break
        header = raw[position + fmt.FRAME.size : body]
        if payload_sum(raw[body : body + size], stream, start) == total:
            frame = fmt.StoredFrame(stream, start, size, time_ms, ordinal, total, lsn, header, b"")
            record = record_of(frame)
            if record is not None:
                pieces.append(Piece(frame, record, path, body))
        position = body + size
    return pieces


# --- taken apart ---


def messages_of(data: bytes, *, json: bool, count: int) -> Iterator[Messages]:
    """Yield records for bytes that held ``count`` messages.

    JSON messages are counted; the lengths of others are made up, unless there was only one.
    """
    if count <= 0 or not data:
        return
    if json:
        yield from _json(data, count)
    else:
        yield 0, len(data), list(_lengths(data, count))


def _json(data: bytes, count: int) -> Iterator[tuple[int, int, int]]:
    start, number, total = 0, 0, 0
    at = 0
    while total + number < count:
        end = data.find(SEPARATOR, at)
        good = end >= 0 and _is_value(data[at:end])
        if end < 0:
            break
        end += len(SEPARATOR)
        if good:
            number += 1
        if number and (not good or end - start >= RECORD_BYTES):
            stop = end if good else at
            yield start, stop - start, number
            total, number, start = total + number, 0, stop
        if not good:
            start = end
        at = end
    if number:
        yield start, at - start, number


def _is_value(text: bytes) -> bool:
    try:
        VALUE.decode(text)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return b"\n" not in text


def _lengths(data: bytes, count: int) -> Iterator[int]:
    """Yield at most ``count`` lengths, cutting after a line end where there is one."""
    size = max(RECORD_BYTES, -(-len(data) // count))
    at = 0
    while at < len(data):
        end = min(at + size, len(data))
        line = data.rfind(b"\n", at + 1, end) + 1 if end < len(data) and count > 1 else 0
        last = count == 1
        stop = len(data) if last else (line or end)
        yield stop - at
        at = stop
        count -= 1
