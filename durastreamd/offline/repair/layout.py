"""Laying out what was salvaged of a stream in files: which stay, which are written anew.

A segment without a fault stays. What is left of the others goes into new segments, one per run of
adjoining records, so that a lost range lies between two segments and inside none. The stream then
goes on in a new, empty segment at its tail, whose index begins with the state that the repair
established: the one place where a raised floor or a producer's last number is written down.
"""

from typing import NamedTuple

import cbor2

from durastreamd.engine.options import MIB
from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.repair.salvage import Piece, Salvage
from durastreamd.offline.verify.census import Ranges
from durastreamd.offline.verify.folding import advance, begin, detail_of, learn
from durastreamd.offline.verify.segments import SegmentReport
from durastreamd.offline.verify.survey import StreamFiles
from durastreamd.storage import format as fmt, index
from durastreamd.storage.disk import Disk
from durastreamd.storage.log import Placement

SEGMENT_BYTES_MAX = 64 * MIB


class FileRange(NamedTuple):
    """A range of a file that is there already."""

    path: str
    at: int
    size: int


class NewFile(NamedTuple):
    """A file to be written: bytes, and ranges of other files, one after the other."""

    path: str
    parts: list[bytes | FileRange]


class Layout(NamedTuple):
    """Where a stream's files come to be."""

    placement: Placement
    kept: set[str]
    made: list[NewFile]


class _Run(NamedTuple):
    base: int
    pieces: list[Piece]


def lay_out(disk: Disk, found: Salvage, files: StreamFiles, read: Ranges) -> Layout:
    """Return the files of a salvaged stream, of which somebody reads the ranges ``read``."""
    stream = found.stream
    running = _poor_state(stream)
    kept: set[str] = set()
    made: list[NewFile] = []
    for item in _items(found, read):
        if isinstance(item, _Run):
            segment, running = _write_run(stream, item, running)
            made.append(segment[0])
            whole = fmt.segment_path(stream.id, item.base)
            if _is_file(disk, files, item, whole):
                kept.add(whole)
            elif segment[1].parts:
                made.append(segment[1])
            continue
        kept.add(fmt.index_path(stream.id, item.base))
        kept.add(fmt.segment_path(stream.id, item.base))
        running = item.tail or running
    last = _state_entry(stream, found.detail, stream.tail)
    header = index.encode_header(stream.id, stream.tail)
    made.append(NewFile(fmt.index_path(stream.id, stream.tail), [header + last]))
    size = len(header) + len(last)
    return Layout(Placement(stream.tail, 0, size, len(header), made=True), kept, made)


def _items(found: Salvage, read: Ranges) -> list[SegmentReport | _Run]:
    """Return blocks and runs of records in order, without what nobody reads."""
    tail = found.stream.tail
    lowest = min((low for low, _ in read), default=tail)
    items: list[SegmentReport | _Run] = []
    # An empty segment holds nothing but a state, and the last one is written anew anyhow.
    blocks = [b for b in found.blocks if b.end > max(lowest, b.base) and b.end <= tail]
    edges = {block.base for block in blocks}
    for piece in found.pieces:
        size = piece.frame.size
        wanted = any(low < piece.end and piece.frame.start < high for low, high in read)
        if piece.end > tail or (size and not wanted):
            continue
        last = items[-1] if items else None
        joins = (
            isinstance(last, _Run)
            and last.pieces[-1].end == piece.frame.start
            and piece.frame.start not in edges
            and piece.end - last.base <= SEGMENT_BYTES_MAX
        )
        if joins:
            assert isinstance(last, _Run)
            last.pieces.append(piece)
        elif size or (isinstance(piece.record, Create) and piece.frame.start not in edges):
            items.append(_Run(piece.frame.start, [piece]))
    runs = [i for i in items if not isinstance(i, _Run) or i.base < tail]
    return sorted([*blocks, *runs], key=lambda item: item.base)


def _is_file(disk: Disk, files: StreamFiles, run: _Run, path: str) -> bool:
    """Tell whether a run's bytes are exactly those of the file that is there under its name."""
    if run.base not in files.segments:
        return False
    if any(p.frame.size and (p.path, p.at) != (path, p.frame.start - run.base) for p in run.pieces):
        return False
    handle = disk.open(path)
    try:
        return disk.size(handle) == run.pieces[-1].end - run.base
    finally:
        disk.release(handle)


def _write_run(
    stream: Stream, run: _Run, running: tuple[Stream, Detail]
) -> tuple[tuple[NewFile, NewFile], tuple[Stream, Detail]]:
    """Return the index and the segment of a run, and the state after it."""
    base_seed = index.file_seed(stream.id, run.base)
    parts = [index.encode_header(stream.id, run.base)]
    position = len(parts[0])
    first = run.pieces[0]
    if not isinstance(first.record, Create):
        before, detail = running
        before = Stream.from_row(before.row())
        before.tail, before.messages = run.base, max(before.messages, first.frame.ordinal)
        before.lsn = max(before.lsn, first.frame.lsn - 1)
        running = before, detail
        parts.append(_state_entry(before, detail, run.base))
        position += len(parts[-1])
    payload: list[bytes | FileRange] = []
    for piece in run.pieces:
        parts.append(index.encode_entry(piece.frame, base_seed, position))
        position += len(parts[-1])
        running = _after(running, piece)
        if piece.frame.size:
            payload.append(FileRange(piece.path, piece.at, piece.frame.size))
    made = NewFile(fmt.index_path(stream.id, run.base), [b"".join(parts)])
    return (made, NewFile(fmt.segment_path(stream.id, run.base), payload)), running


def _after(running: tuple[Stream, Detail], piece: Piece) -> tuple[Stream, Detail]:
    stream, detail = running
    if isinstance(piece.record, Create):
        return begin(piece.record, piece.frame.lsn), Detail()
    stream = Stream.from_row(stream.row())
    advance(stream, piece.record, piece.frame.lsn)
    if isinstance(piece.record, Append):
        known = Detail()
        learn(known, detail)
        learn(known, detail_of(piece.record))
        detail = known
    return stream, detail


def _poor_state(stream: Stream) -> tuple[Stream, Detail]:
    """Return the least that can be said of a stream before its first surviving record."""
    least = Stream.from_row(stream.row())
    least.floor = least.messages = least.lsn = 0
    least.snapshot, least.closed, least.gone, least.plain = None, False, False, True
    least.written_ms = least.accessed_ms = least.created_ms
    return least, Detail()


def _state_entry(stream: Stream, detail: Detail, base: int) -> bytes:
    blob = cbor2.dumps([stream.row(), detail.row()])
    frame = fmt.StoredFrame(
        stream.id, stream.tail, 0, stream.written_ms, stream.messages, 0, stream.lsn, blob, b""
    )
    position = index.HEADER_BYTES
    return index.encode_entry(frame, index.file_seed(stream.id, base), position, is_state=True)
