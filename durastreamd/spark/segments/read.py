"""Reading the pieces of a plan: from bytes on disk to messages, without a loop over them.

A group is some records that stand one after the other, read in one go. Their sums are compared
one by one; everything after that happens to all messages of the group at once, because a JSON
segment holds a line end after each message and nowhere else, and other streams keep their messages'
lengths in the record.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import cbor2
import numpy as np

from durastreamd.errors import CorruptDataError
from durastreamd.offline.opening import disk_at
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.spark.rows import Messages
from durastreamd.spark.segments.plan import Extent, Journalled, Piece, segments_at
from durastreamd.storage import datadir, format as fmt, journal
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.index import HEADER_BYTES, IndexFile, IndexReader

logger = logging.getLogger(__name__)

# Payload read at once: some ten thousand ordinary messages, and a buffer that stays in the cache.
GROUP_BYTES = 1024 * 1024

_LINE_END = ord("\n")


class Loss(NamedTuple):
    """Bytes of a stream that could not be read."""

    stream: str
    file: str
    position: int
    low: int
    high: int
    reason: str


class Losses:
    """What a task could not read: an error at once, or a list in the end."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self.found: list[Loss] = []

    def add(self, loss: Loss) -> None:
        """Take note of a loss, or raise."""
        text = f"{loss.reason}; bytes {loss.low} to {loss.high} of stream {loss.stream!r} are lost"
        if self._fail:
            hint = "failOnDataLoss=false leaves them out, `dsadmin repair` mends the directory"
            raise CorruptDataError(loss.file, loss.position, f"{text} ({hint})")
        logger.warning("%s:%d: %s", loss.file, loss.position, text)
        self.found.append(loss)


class Group(NamedTuple):
    """Records that follow each other: their bytes, where each ends, when it was written."""

    extent: Extent
    start: int
    data: bytes
    ends: list[int]
    times: list[int]
    number: int  # of the first message
    lengths: list[int] | None  # of the messages; None where line ends tell


# --- records ---


class PieceReader:
    """Reads pieces of one data directory."""

    def __init__(self, root: str, losses: Losses, *, verify: bool) -> None:
        self._disk = disk_at(root)
        self._losses = losses
        self._verify = verify

    def groups(self, piece: Piece) -> Iterator[Group]:
        """Yield the records of a piece."""
        if isinstance(piece, Journalled):
            yield from self._journal_groups(piece)
        elif piece.base >= 0:
            yield from self._segment_groups(piece)
        else:
            for extent in self._found(piece):
                yield from self._segment_groups(extent)

    def frames(self, piece: Piece) -> Iterator[tuple[Extent, fmt.StoredFrame]]:
        """Yield the records of a piece without reading segments: for who counts, not reads."""
        if isinstance(piece, Extent) and piece.base >= 0:
            for frame in self._frames(piece):
                yield piece, frame
        elif isinstance(piece, Extent):
            for extent in self._found(piece):
                yield from self.frames(extent)
        else:
            for extent, frames in self._journal_frames(piece):
                for frame in frames:
                    yield extent, frame

    def _found(self, wanted: Extent) -> list[Extent]:
        """Return where an extent is whose segment was not known when the plan was made."""
        try:
            found = list(segments_at(self._disk, wanted.owner, wanted.low, wanted.high))
        except CorruptDataError as exc:
            self._lose(wanted, exc.file, exc.position, wanted.low, wanted.high, exc.reason)
            return []
        return [wanted._replace(low=low, high=high, base=base) for base, low, high in found]

    def _segment_groups(self, extent: Extent) -> Iterator[Group]:
        path = fmt.segment_path(extent.owner, extent.base)
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            reason = "the segment is gone"
            self._lose(extent, path, 0, extent.low, extent.high, reason)
            return
        try:
            for frames in _grouped(self._frames(extent)):
                yield from self._checked(extent, path, handle, frames)
        finally:
            self._disk.release(handle)

    def _frames(self, extent: Extent) -> Iterator[fmt.StoredFrame]:
        """Yield the records that hold bytes of an extent; every byte of it is in one, or lost."""
        expected = extent.low
        file = IndexFile(extent.owner, extent.base)
        path = file.path
        position, reason = 0, "the index does not describe these bytes"
        for frame in self._entries(extent, file):
            if isinstance(frame, CorruptDataError):
                # A record only if bytes are missing below; a state's loss costs no row.
                position, reason = frame.position, frame.reason
                continue
            if frame.start >= extent.high:
                break
            end = frame.start + frame.size
            if end <= expected or not frame.size:
                continue
            if frame.start > expected:
                self._lose(extent, path, position, expected, frame.start, reason)
            yield frame
            expected = end
        if expected < extent.high:
            self._lose(extent, path, position, expected, extent.high, reason)

    def _entries(
        self, extent: Extent, file: IndexFile
    ) -> Iterator[fmt.StoredFrame | CorruptDataError]:
        """Yield the records an index describes, and in their place what does not verify."""
        try:
            with file.opened(self._disk, at_most=extent.index_to) as reader:
                at, damaged = self._first_entry(reader, extent), 0
                while at < reader.length:
                    try:
                        for entry in reader.entries(at, passing_over=damaged):
                            if not entry.is_state:
                                yield entry.frame
                        return
                    except CorruptDataError as exc:
                        yield exc
                        at = damaged = exc.position
        except FileNotFoundError:
            yield CorruptDataError(file.path, 0, "the index is gone")

    def _first_entry(self, reader: IndexReader, extent: Extent) -> int:
        if extent.index_from > HEADER_BYTES or extent.low == extent.base:
            return extent.index_from
        entry = reader.last_at_or_before(lambda frame: frame.start, extent.low)
        return HEADER_BYTES if entry is None else entry.position

    def _checked(
        self, extent: Extent, path: str, handle: int, frames: list[fmt.StoredFrame]
    ) -> Iterator[Group]:
        """Read records that follow each other, compare their sums, yield those that hold."""
        start = frames[0].start
        size = frames[-1].start + frames[-1].size - start
        data = self._disk.pread(handle, size, start - extent.base)
        whole = memoryview(data)
        good: list[fmt.StoredFrame] = []
        for frame in frames:
            at = frame.start - start
            payload = whole[at : at + frame.size]
            reason = ""
            if len(payload) < frame.size:
                reason = f"the file ends inside record {frame.lsn}"
            elif self._verify and payload_sum(payload, extent.owner, frame.start) != (
                frame.payload_sum
            ):
                reason = f"record {frame.lsn} does not verify"
            if not reason:
                good.append(frame)
                continue
            end = frame.start + frame.size
            self._lose(extent, path, frame.start - extent.base, frame.start, end, reason)
            if good:
                yield _group(extent, good, data, start)
            good = []
        if good:
            yield _group(extent, good, data, start)

    # --- the journal ---

    def _journal_groups(self, piece: Journalled) -> Iterator[Group]:
        for extent, frames in self._journal_frames(piece):
            if extent.base >= 0:
                yield from self._segment_groups(extent)
                continue
            for group in _grouped(iter(frames)):
                data = b"".join(frame.payload for frame in group)
                yield _group(extent, group, data, group[0].start)

    def _journal_frames(
        self, piece: Journalled
    ) -> Iterator[tuple[Extent, Iterable[fmt.StoredFrame]]]:
        """Yield the frames of each extent; with a base, they are in that segment by now."""
        data = self._read_journal(piece)
        if data is None:  # a checkpoint came since
            for wanted in piece.extents:
                for extent in self._found(wanted):
                    yield extent, self._frames(extent)
            return
        uuid = datadir.read_identity(self._disk).uuid
        base = journal.file_seed(uuid, piece.number) + piece.start
        wanted_by: dict[int, list[fmt.StoredFrame]] = {each.owner: [] for each in piece.extents}
        for found in journal.frames(data, 0, base, payloads=True):
            if found.payload_ok and found.frame.size and found.frame.stream in wanted_by:
                wanted_by[found.frame.stream].append(found.frame)
        for extent in piece.extents:
            yield extent, self._journalled(extent, wanted_by[extent.owner], piece.number)

    def _read_journal(self, piece: Journalled) -> bytes | None:
        try:
            handle = self._disk.open(fmt.journal_path(piece.number))
        except FileNotFoundError:
            return None
        try:
            return self._disk.pread(handle, piece.end - piece.start, piece.start)
        finally:
            self._disk.release(handle)

    def _journalled(
        self, extent: Extent, frames: list[fmt.StoredFrame], number: int
    ) -> list[fmt.StoredFrame]:
        held = []
        expected = extent.low
        for frame in frames:
            if frame.start <= expected < min(frame.start + frame.size, extent.high):
                held.append(frame)
                expected = frame.start + frame.size
        if expected < extent.high:
            path = fmt.journal_path(number)
            self._lose(extent, path, 0, expected, extent.high, "a frame does not verify")
        return held

    def _lose(
        self, extent: Extent, path: str, position: int, low: int, high: int, reason: str
    ) -> None:
        self._losses.add(Loss(extent.name, path, position, low, high, reason))


def _grouped(frames: Iterator[fmt.StoredFrame]) -> Iterator[list[fmt.StoredFrame]]:
    """Gather records that follow each other without a gap, up to a size."""
    group: list[fmt.StoredFrame] = []
    size = 0
    end = -1
    for frame in frames:
        if group and (size + frame.size > GROUP_BYTES or frame.start != end):
            yield group
            group, size = [], 0
        group.append(frame)
        size += frame.size
        end = frame.start + frame.size
    if group:
        yield group


def _group(extent: Extent, frames: list[fmt.StoredFrame], data: bytes, start: int) -> Group:
    """Return records as a group; ``data`` begins at ``start``, which may lie before them."""
    first, last = frames[0].start, frames[-1].start + frames[-1].size
    if first != start or len(data) != last - first:
        data = data[first - start : last - start]
    lengths = None
    if not extent.json:
        lengths = [length for frame in frames for length in cbor2.loads(frame.header)[1]]
    ends = [frame.start + frame.size for frame in frames]
    times = [frame.time_ms for frame in frames]
    return Group(extent, first, data, ends, times, frames[0].ordinal, lengths)


# --- messages ---


def messages_in(group: Group) -> Messages:
    """Split a group into its messages, those within its extent."""
    if group.lengths is None:
        stops = np.flatnonzero(np.frombuffer(group.data, dtype=np.uint8) == _LINE_END) + 1
        ends = stops - len(SEPARATOR)
    else:
        stops = ends = np.cumsum(np.asarray(group.lengths, dtype=np.int64))
    begins = np.zeros(len(stops), np.int64)
    begins[1:] = stops[:-1]
    after = stops + group.start
    record = np.searchsorted(np.asarray(group.ends, dtype=np.int64), after)
    times = np.asarray(group.times, dtype=np.int64)[record] * 1000
    numbers = np.arange(group.number, group.number + len(stops))
    json = group.lengths is None
    first, last = np.searchsorted(after, [group.extent.low, group.extent.high], side="right")
    return Messages(group.data, begins, ends, numbers, json, times).part(int(first), int(last))
