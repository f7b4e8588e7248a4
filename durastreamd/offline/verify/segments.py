"""Checking one segment with its index: every entry, the chain they form, the bytes they vouch for.

The unit of work of a verification: a worker process takes a ``SegmentTask`` and gives back a
``SegmentReport``, small whatever the segment's size. What only several segments together can show
(gaps, the state at the head of each, the catalogue's row) is judged by ``verification``.
"""

import errno
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.verify.findings import UNREADABLE, Finding, refusal
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
from durastreamd.storage import format as fmt, index
from durastreamd.storage.checksum import payload_seed, payload_sum
from durastreamd.storage.disk import Disk, read_file
from durastreamd.storage.index import HEADER_BYTES, IndexFile, owner_of
from durastreamd.storage.scan import Gap

# Payloads are read this many bytes at a time: it stays in the cache of a core until it is hashed.
WINDOW_BYTES = 256 * 1024
FRAMES_HELD_MAX = 4096


class SegmentTask(NamedTuple):
    """A segment to check. Lengths are the catalogue's for the active one, None for others."""

    stream: int
    base: int
    key: str
    index_bytes: int | None
    segment_bytes: int | None
    deep: bool
    live: bool  # a server is writing: what lies past the lengths is its work


class SegmentReport(NamedTuple):
    """What a segment was found to hold: [base, end), and the stream at both ends of it."""

    base: int
    end: int
    head: tuple[Stream, Detail] | None
    tail: tuple[Stream, Detail] | None
    findings: list[Finding]
    bytes_read: int


def check_segment(disk: Disk, task: SegmentTask) -> SegmentReport:
    """Check a segment and its index; never raises for what the files hold."""
    return _Check(disk, task).run()


class _Check:
    """The work on one segment."""

    def __init__(self, disk: Disk, task: SegmentTask) -> None:
        self._disk = disk
        self._task = task
        self._index = fmt.index_path(task.stream, task.base)
        self._segment = fmt.segment_path(task.stream, task.base)
        self._findings: list[Finding] = []
        self._stream: Stream | None = None
        self._detail = Detail()
        self._head: tuple[Stream, Detail] | None = None
        self._end = task.base
        self._last: fmt.StoredFrame | None = None
        self._broken = False  # an entry is lost before the one at hand
        self._bytes: Payloads | None = None

    def _found(self, path: str, position: int, kind: str, detail: str) -> None:
        self._findings.append(Finding(path, position, kind, detail, self._task.key))

    def _refused(self, path: str, exc: OSError) -> None:
        self._findings.append(refusal(path, exc, self._task.key))

    def run(self) -> SegmentReport:
        """Check all of it; where the disk does not hand out a file, that is all there is to say."""
        report = self._run()
        refused = [f for f in report.findings if f.kind == UNREADABLE]
        return report._replace(findings=refused) if refused else report

    def _run(self) -> SegmentReport:
        raw = self._read_index()
        size = self._segment_size()
        read = len(raw)
        pending: list[fmt.StoredFrame] = []
        weight = 0
        for entry in IndexFile(self._task.stream, self._task.base).walk(raw).items(HEADER_BYTES):
            if isinstance(entry, Gap):
                self._found(self._index, entry.position, "entry", _about(entry))
                self._broken = True
                continue
            frame = entry.frame
            if entry.is_state:
                self._state(entry)
                continue
            self._record(entry)
            if (
                self._task.deep
                and frame.size
                and frame.start - self._task.base + frame.size <= size
            ):
                pending.append(frame)
                weight += frame.size
            if weight >= WINDOW_BYTES or len(pending) >= FRAMES_HELD_MAX:
                self._payloads(pending)
                read += weight
                pending, weight = [], 0
        self._payloads(pending)
        if self._bytes is not None:
            self._bytes.release()
        self._check_length(size)
        last = (self._stream, self._detail) if self._stream is not None else None
        return SegmentReport(
            self._task.base, self._end, self._head, last, self._findings, read + weight
        )

    # --- the index ---

    def _read_index(self) -> bytes:
        task = self._task
        try:
            raw = read_file(self._disk, self._index)
        except FileNotFoundError:
            self._found(self._index, 0, "missing", "the index is not there")
            return b""
        except OSError as exc:
            self._refused(self._index, exc)
            return b""
        if owner_of(raw) != (task.stream, task.base):
            self._header(raw)
        limit = task.index_bytes
        if limit is None:
            return raw
        if len(raw) < limit:
            detail = f"the file ends here, {limit} bytes were durable"
            self._found(self._index, len(raw), "short", detail)
        elif len(raw) > limit and not task.live:
            self._beyond(self._index, limit, len(raw))
        return raw[:limit]

    def _header(self, raw: bytes) -> None:
        owner = owner_of(raw)
        if owner is None:
            self._found(self._index, 0, "header", "the index header does not verify")
        else:
            detail = f"this is the index of stream {owner[0]:016x} from {owner[1]}"
            self._found(self._index, 0, "misplaced", detail)

    def _beyond(self, path: str, limit: int, size: int) -> None:
        detail = f"{size - limit} bytes since the last checkpoint; the journal has them, too"
        self._findings.append(Finding(path, limit, "unplaced", detail, self._task.key, True))  # noqa: FBT003

    def _follows(self, frame: fmt.StoredFrame) -> bool:
        """Take the record that nearly all are, a plain append that fits; tell whether it was one.

        The same as what follows, for less time: large streams are made of these.
        """
        stream, last = self._stream, self._last
        messages = plain(frame.header)
        if messages is None or stream is None or last is None or self._broken or stream.closed:
            return False
        count, size = messages
        if (
            frame.start != self._end
            or frame.ordinal < stream.messages
            or size not in (-1, frame.size)
        ):
            return False
        if frame.lsn <= last.lsn or frame.time_ms < last.time_ms:
            return False
        stream.tail = self._end = frame.start + frame.size
        stream.messages = frame.ordinal + count
        stream.lsn = frame.lsn
        stream.written_ms = stream.accessed_ms = max(stream.accessed_ms, frame.time_ms)
        self._last = frame
        return True

    def _record(self, entry: index.Entry) -> None:
        frame = entry.frame
        if self._follows(frame):
            return
        record = record_of(frame)
        if record is None:
            self._found(self._index, entry.position, "record", "its header is of no known kind")
            return
        lengths = record.lengths if isinstance(record, Append | Create) else None
        if lengths is not None and sum(lengths) != frame.size:
            detail = f"its messages have {sum(lengths)} bytes, the record has {frame.size}"
            self._found(self._index, entry.position, "record", detail)
        self._chain(entry)
        if isinstance(record, Create):
            if self._stream is not None:
                self._found(self._index, entry.position, "order", "a second beginning")
            self._stream = begin(record, frame.lsn)
        elif self._stream is None:
            if not self._broken:
                detail = "the index begins neither with a create record nor with a state"
                self._found(self._index, entry.position, "order", detail)
        else:
            if isinstance(record, Append) and self._stream.closed and not self._broken:
                self._found(self._index, entry.position, "order", "an append after the closure")
            advance(self._stream, record, frame.lsn)
        if isinstance(record, Append) and (record.producers or record.seq is not None):
            learn(self._detail, detail_of(record))
        self._end = max(self._end, frame.start + frame.size)
        self._last = frame
        self._broken = False

    def _chain(self, entry: index.Entry) -> None:
        frame, last, stream = entry.frame, self._last, self._stream
        if last is not None and (frame.lsn <= last.lsn or frame.ordinal < last.ordinal):
            detail = f"record {frame.lsn} does not follow record {last.lsn}"
            self._found(self._index, entry.position, "order", detail)
        if last is not None and frame.time_ms < last.time_ms:
            self._found(self._index, entry.position, "order", "it is older than the one before")
        if self._broken:
            return
        if frame.start != self._end:
            detail = f"the record starts at {frame.start}, the one before ends at {self._end}"
            self._found(self._index, entry.position, "gap", detail)
        elif stream is not None and frame.ordinal < stream.messages:
            detail = f"{frame.ordinal} messages before the record, {stream.messages} were counted"
            self._found(self._index, entry.position, "order", detail)

    def _state(self, entry: index.Entry) -> None:
        found = state_of(entry.frame.header)
        if found is None:
            self._found(self._index, entry.position, "state", "the state cannot be understood")
            return
        stream, detail = found
        if stream.id != self._task.stream or stream.tail != entry.frame.start:
            self._found(self._index, entry.position, "state", "the state is of another place")
        if self._stream is not None and not self._broken:
            wrong = contradiction(found, (self._stream, self._detail))
            if wrong:
                self._found(self._index, entry.position, "state", wrong)
        if self._stream is None and self._last is None:
            if stream.tail != self._task.base and not self._broken:
                self._found(self._index, entry.position, "gap", f"the state is of {stream.tail}")
            self._head = found
        known = Detail()
        learn(known, detail)
        self._stream, self._detail = Stream.from_row(stream.row()), known
        self._end = max(self._end, stream.tail)
        self._broken = False

    # --- the segment ---

    def _segment_size(self) -> int:
        try:
            handle = self._disk.open(self._segment)
        except FileNotFoundError:
            return -1
        except OSError as exc:
            self._refused(self._segment, exc)
            return -1
        try:
            return self._disk.size(handle)
        finally:
            self._disk.release(handle)

    def _check_length(self, size: int) -> None:
        task = self._task
        wanted = self._end - task.base
        clean = all(finding.harmless for finding in self._findings)
        if clean and task.segment_bytes is not None and wanted != task.segment_bytes:
            claimed = task.base + task.segment_bytes
            detail = f"its records end at {self._end}, the catalogue says {claimed}"
            self._found(self._index, task.index_bytes or 0, "short", detail)
        wanted = max(wanted, task.segment_bytes or 0)
        if size < 0:
            if wanted:
                self._found(self._segment, 0, "missing", f"the segment of {wanted} bytes is gone")
        elif size < wanted:
            detail = f"the file ends here, {wanted} bytes were durable"
            self._found(self._segment, size, "short", detail)
        elif size > wanted and task.segment_bytes is None:
            if self._last is not None or self._head is not None:
                detail = f"{size - wanted} bytes no entry of the index vouches for"
                self._found(self._segment, wanted, "excess", detail)
        elif size > wanted and not task.live:
            self._beyond(self._segment, wanted, size)

    def _payloads(self, frames: list[fmt.StoredFrame]) -> None:
        if not frames:
            return
        if self._bytes is None:
            self._bytes = Payloads(self._disk, self._segment, self._task.base)
        for frame in self._bytes.bad(frames):
            at = frame.start - self._task.base
            detail = f"the {frame.size} bytes of record {frame.lsn} do not verify"
            self._found(self._segment, at, "payload", detail)
        failure = self._bytes.failure
        if failure is not None and failure.errno != errno.ENOENT:
            self._refused(self._segment, failure)


def contradiction(told: tuple[Stream, Detail], known: tuple[Stream, Detail]) -> str:
    """Say how a state contradicts the records before it; "" if it does not.

    A state may know more than those records (a repair raised the floor), never less.
    """
    stream, detail = told
    before, producers = known
    if stream.tail != before.tail or stream.messages < before.messages:
        return (
            f"the state is of {stream.tail} and {stream.messages} messages, "
            f"the records before it end at {before.tail} and {before.messages}"
        )
    if stream.floor < before.floor or before.closed > stream.closed or stream.lsn < before.lsn:
        return "the state is older than the records before it"
    if knows_less(detail, producers):
        return "the state lacks producers of the records before it"
    if stream.key != before.key:
        return f"the state is of a stream called {stream.key}"
    return ""


def _about(gap: Gap) -> str:
    detail = "the index entry does not verify"
    if gap.passed:  # what may be hidden among imitations was not looked at, and that is said
        detail += f", and {gap.passed} places after it that imitate entries were not checked"
    return detail


class Payloads:
    """The bytes of one segment, against the sums that its index has of them."""

    def __init__(self, disk: Disk, path: str, base: int) -> None:
        self._disk = disk
        self._base = base
        self._window = memoryview(bytearray(WINDOW_BYTES))
        self.failure: OSError | None = None  # why the disk did not hand out some of it
        try:
            self._handle = disk.open(path)
        except OSError as exc:
            self._handle = -1
            self.failure = exc

    def release(self) -> None:
        """Give the file back."""
        if self._handle >= 0:
            self._disk.release(self._handle)

    def bad(self, frames: list[fmt.StoredFrame]) -> Iterator[fmt.StoredFrame]:
        """Yield the frames whose bytes do not verify; reads every byte once."""
        at = 0
        while at < len(frames):
            low = high = frames[at].start
            end = at
            while end < len(frames) and frames[end].start == high:
                if high + frames[end].size - low > WINDOW_BYTES:
                    break
                high += frames[end].size
                end += 1
            if end == at:
                if self._handle < 0 or self._sum_of(frames[at]) != frames[at].payload_sum:
                    yield frames[at]
                at += 1
                continue
            window = self._read(high - low, low - self._base)
            for frame in frames[at:end]:
                part = window[frame.start - low : frame.start - low + frame.size]
                if payload_sum(part, frame.stream, frame.start) != frame.payload_sum:
                    yield frame
            at = end

    def _read(self, size: int, position: int) -> memoryview:
        if self._handle < 0:
            return memoryview(b"")
        try:
            taken = self._disk.pread_into(self._handle, self._window[:size], position)
        except OSError as exc:
            self.failure = exc
            return memoryview(b"")
        return self._window[:taken]

    def _sum_of(self, frame: fmt.StoredFrame) -> int:
        """Return the checksum of a record too large for one window."""
        hashed = xxhash.xxh3_64(seed=payload_seed(frame.stream, frame.start))
        at, end = frame.start - self._base, frame.start - self._base + frame.size
        while at < end:
            data = self._read(min(WINDOW_BYTES, end - at), at)
            if not data:
                break
            hashed.update(data)
            at += len(data)
        return hashed.intdigest()


def read_or_nothing(disk: Disk, handle: int, size: int, position: int) -> bytes:
    """Read a range; what the disk cannot give back any more does not verify."""
    try:
        return disk.pread(handle, size, position)
    except OSError:
        return b""
