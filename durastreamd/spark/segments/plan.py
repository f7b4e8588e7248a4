"""Which bytes of which files a task reads: the plan of the segments source.

A stream's bytes up to the last checkpoint are in its segments, described by their indexes; what
was acknowledged since is in the journal. Both become pieces of about the same size: an ``Extent``
is a run of one segment with the part of the index that describes it, cut where a record begins; a
``Journalled`` is a run of one journal file with the streams whose records stand in it.

The plan names bytes, it does not hold them. A task finds them again by itself, verifies them
against the sums beside them, and looks into the segments for what a checkpoint has meanwhile moved
there from the journal. So a plan stays good beside a running server, and a task is a few bytes.
"""

import errno
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from durastreamd.engine.engine import Engine
from durastreamd.errors import CorruptDataError, SyncFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened
from durastreamd.storage import format as fmt, journal, log
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.index import HEADER_BYTES, IndexFile

# No sealed index is so long; a task reads to the end of the file.
WHOLE_INDEX = 2**62


class OwnedRun(NamedTuple):
    """A run of a stream's bytes and whose files they are in: a fork begins in its source's."""

    owner: int
    low: int
    high: int


def levels_of(engine: Engine, stream: Stream) -> list[OwnedRun]:
    """Return whose files hold a stream's bytes, in the order of position."""
    parts = engine.namespace.lineage.parts(stream)
    levels = [OwnedRun(holder.id, low, high) for holder, low, high in parts if low < high]
    return levels[::-1]


class Extent(NamedTuple):
    """Bytes [low, high) of a stream, in one segment; its records stand in a part of the index."""

    name: str  # of the stream whose rows they become
    owner: int  # the stream whose files they are in
    json: bool
    low: int
    high: int
    base: int = -1  # the segment; -1 where only the task can know it
    index_from: int = HEADER_BYTES
    index_to: int = WHOLE_INDEX


class Journalled(NamedTuple):
    """Bytes [start, end) of a journal file: frames, among them those of ``extents``."""

    number: int
    start: int
    end: int
    extents: tuple[Extent, ...]


Piece = Extent | Journalled


class ByteRange(NamedTuple):
    """What is wanted of a stream: the rows whose bytes lie in [low, high)."""

    name: str
    json: bool
    low: int
    high: int
    levels: list[OwnedRun]


def size_of(piece: Piece) -> int:
    """Return how many bytes a piece reads, about."""
    return piece.high - piece.low if isinstance(piece, Extent) else piece.end - piece.start


def pieces_of(found: Opened, ranges: list[ByteRange], piece_bytes: int) -> list[Piece]:
    """Return every byte of the ranges, in pieces; a stream's pieces are in its order."""
    pieces: list[Piece] = []
    waiting: dict[int, list[Extent]] = {}  # by owner: what only the journal holds
    for wanted in ranges:
        for level in wanted.levels:
            low, high = max(wanted.low, level.low), min(wanted.high, level.high)
            if low >= high:
                continue
            place = found.stored.get(level.owner)
            filed = min(place.flushed, high) if place is not None else low
            if place is not None and low < filed:
                extent = Extent(wanted.name, level.owner, wanted.json, low, filed)
                pieces += _in_segments(found.disk, place, extent, piece_bytes)
            if max(low, filed) < high:
                extent = Extent(wanted.name, level.owner, wanted.json, max(low, filed), high)
                waiting.setdefault(level.owner, []).append(extent)
    return pieces + _in_journal(found, waiting, piece_bytes)


def gathered(pieces: list[Piece], piece_bytes: int) -> list[tuple[Piece, ...]]:
    """Put pieces together, in order, until a partition has its size: small streams share one."""
    partitions: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for piece in pieces:
        if current and size + size_of(piece) > piece_bytes:
            partitions.append(tuple(current))
            current, size = [], 0
        current.append(piece)
        size += size_of(piece)
    if current:
        partitions.append(tuple(current))
    return partitions


# --- segments ---


def segments_at(disk: RealDisk, owner: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield (base, low, high) of each segment that holds bytes of [low, high)."""
    bases = log.bases(disk, owner, high)
    if not bases or bases[0] > low:
        raise CorruptDataError(fmt.stream_dir(owner), low, "no segment holds this position")
    for base, following in pairwise([*bases, max(high, bases[-1]) + 1]):
        if base < high and following > low:
            yield base, max(low, base), min(high, following)


def _in_segments(
    disk: RealDisk, place: log.Placement, wanted: Extent, piece_bytes: int
) -> Iterator[Extent]:
    for base, low, high in segments_at(disk, wanted.owner, wanted.low, wanted.high):
        length = place.index_bytes if base == place.base else WHOLE_INDEX
        extent = wanted._replace(low=low, high=high, base=base, index_to=length)
        if high - low <= piece_bytes and low == base:
            yield extent
        else:
            yield from _split(disk, extent, piece_bytes)


def _split(disk: RealDisk, extent: Extent, piece_bytes: int) -> Iterator[Extent]:
    """Cut a long extent where records begin, into pieces of equal size."""
    count = -(-(extent.high - extent.low) // piece_bytes)
    wanted = [extent.low + (extent.high - extent.low) * number // count for number in range(count)]
    cuts = _record_starts(disk, extent, wanted)
    if not cuts:
        yield extent  # no index, or a damaged one: the task will say so
        return
    edges = [*(start for start, _ in cuts[1:]), extent.high]
    entries = [*(entry for _, entry in cuts[1:]), extent.index_to]
    low = extent.low
    for (_, first), high, last in zip(cuts, edges, entries, strict=True):
        yield extent._replace(low=low, high=high, index_from=first, index_to=last)
        low = high


def _record_starts(disk: RealDisk, extent: Extent, wanted: list[int]) -> list[tuple[int, int]]:
    """Return (start, place in the index) of the records at or before each wanted position."""
    cuts: list[tuple[int, int]] = []
    file = IndexFile(extent.owner, extent.base)
    try:
        with file.opened(disk, at_most=extent.index_to) as reader:
            for position in wanted:
                entry = reader.last_at_or_before(lambda frame: frame.start, position)
                if entry is None:
                    cut = (extent.low, HEADER_BYTES)
                else:
                    cut = (entry.frame.start, entry.position)
                if not cuts or cut[0] > max(cuts[-1][0], extent.low):
                    cuts.append(cut)
    except FileNotFoundError:
        return []
    return cuts


# --- the journal ---


class _JournalRun:
    """A piece of the journal in the making: where it begins, what it holds of each extent."""

    def __init__(self, number: int, start: int) -> None:
        self.number = number
        self.start = start
        self.held: dict[tuple[int, int], tuple[int, int]] = {}

    def piece(self, end: int, waiting: dict[int, list[Extent]]) -> Journalled:
        extents = tuple(
            waiting[owner][at]._replace(low=low, high=high)
            for (owner, at), (low, high) in self.held.items()
        )
        return Journalled(self.number, self.start, end, extents)


def _in_journal(found: Opened, waiting: dict[int, list[Extent]], piece_bytes: int) -> list[Piece]:
    if not waiting:
        return []
    pieces: list[Piece] = []
    reached: dict[tuple[int, int], int] = {}
    for number in journal.journal_numbers(found.disk):
        if number < found.journal_first:
            continue
        file = journal.read_journal_file(found.disk, found.engine.uuid, number)
        _make_durable(found.disk, fmt.journal_path(number))
        pieces += _runs(file, found.engine.uuid, waiting, reached, piece_bytes)
    # Beside a running server a checkpoint may have come between: then the segments have the rest.
    for owner, extents in waiting.items():
        for at, extent in enumerate(extents):
            low = reached.get((owner, at), extent.low)
            if low < extent.high:
                pieces.append(extent._replace(low=low))
    return pieces


def _runs(
    file: journal.JournalFile,
    uuid: bytes,
    waiting: dict[int, list[Extent]],
    reached: dict[tuple[int, int], int],
    piece_bytes: int,
) -> Iterator[Journalled]:
    """Yield the pieces of one journal file; ``reached`` keeps how far each extent has come."""
    base = journal.file_seed(uuid, file.number)
    run: _JournalRun | None = None
    end = 0
    for entry in journal.frames(file.data, fmt.JOURNAL_HEADER.size, base):
        frame = entry.frame
        if not entry.payload_ok or not frame.size:
            continue
        for at, extent in enumerate(waiting.get(frame.stream, ())):
            low = reached.get((frame.stream, at), extent.low)
            high = min(frame.start + frame.size, extent.high)
            if frame.start > low or high <= low:
                continue  # not the next record: an older one, or one after a gap
            if run is None:
                run = _JournalRun(file.number, entry.position)
            first = run.held.get((frame.stream, at), (low, high))[0]
            run.held[frame.stream, at] = (first, high)
            reached[frame.stream, at] = high
            end = entry.end
        if run is not None and end - run.start >= piece_bytes:
            yield run.piece(end, waiting)
            run = None
    if run is not None:
        yield run.piece(end, waiting)


def _make_durable(disk: RealDisk, path: str) -> None:
    """Sync a journal file, so that no row of ours is of a batch that a power cut could still undo.

    A batch of a running server is in the file a moment before its own sync returns. Where a sync
    means nothing (a read-only mount), nobody is writing either.
    """
    handle = disk.open(path)
    try:
        disk.sync(handle)
    except SyncFailedError as exc:
        cause = exc.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EROFS, errno.EINVAL):
            raise
    finally:
        disk.release(handle)
