"""Laying out what was salvaged of a stream in files: which stay, which are written anew.

A segment without a fault stays. What is left of the others goes into new segments, one per run of
adjoining records, so that a lost range lies between two segments and inside none. The stream then
goes on in a new, empty segment at its tail, whose index begins with the state that the repair
established: the one place where a raised floor or a producer's last number is written down.
"""

from typing import NamedTuple

from durastreamd.engine.engine import state_frame
from durastreamd.engine.options import MIB
from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.repair.pieces import Piece
from durastreamd.offline.repair.salvage import Salvage
from durastreamd.offline.verify.census import Ranges
from durastreamd.offline.verify.folding import advance, begin, detail_of, learn
from durastreamd.offline.verify.segments import SegmentReport
from durastreamd.offline.verify.survey import StreamFiles
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import Disk, file_size
from durastreamd.storage.index import HEADER_BYTES, IndexFile
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
    last = IndexFile(stream.id, stream.tail)
    beginning = last.beginning(state_frame(stream, found.detail))
    made.append(NewFile(last.path, [beginning]))
    placement = Placement(stream.tail, 0, len(beginning), HEADER_BYTES, made=True)
    return Layout(placement, kept, made)


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
    try:
        return file_size(disk, path) == run.pieces[-1].end - run.base
    except OSError:
        return False  # something that is no file has its name


def _write_run(
    stream: Stream, run: _Run, running: tuple[Stream, Detail]
) -> tuple[tuple[NewFile, NewFile], tuple[Stream, Detail]]:
    """Return the index and the segment of a run, and the state after it."""
    index = IndexFile(stream.id, run.base)
    parts = [index.header()]
    first = run.pieces[0]
    if not isinstance(first.record, Create):
        before, detail = running
        before = Stream.from_row(before.row())
        before.tail, before.messages = run.base, max(before.messages, first.frame.ordinal)
        before.lsn = max(before.lsn, first.frame.lsn - 1)
        running = before, detail
        parts = [index.beginning(state_frame(before, detail))]
    position = len(parts[0])
    payload: list[bytes | FileRange] = []
    for piece in run.pieces:
        parts.append(index.entry(piece.frame, position))
        position += len(parts[-1])
        running = _after(running, piece)
        if piece.frame.size:
            payload.append(FileRange(piece.path, piece.at, piece.frame.size))
    made = NewFile(index.path, [b"".join(parts)])
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
