"""What can be proven of one stream, from whichever of its traces survive.

A record is in the journal, in an index, or in both; its bytes are in the journal or in a segment.
Here all of them are put together: a record counts if its head verifies anywhere, its bytes count if
their sum holds anywhere (in the right segment, in one that was put under another's name, in the
journal, or among the frames a recovery set aside). An entry that is hurt may prove bytes yet
(``witnesses``). What is left of a segment then has no checksum: it is *doubtful*, and taken only if
the operator says so (``filling``). Bytes known to be bad are never taken.

Segments without a fault are left alone and stand here as blocks.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from durastreamd.errors import ReadFailedError
from durastreamd.model.records import Append, Create, Delete, Record
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.repair.filling import Filling
from durastreamd.offline.repair.pieces import Piece, SegmentBytes
from durastreamd.offline.repair.witnesses import Witnesses
from durastreamd.offline.verify.census import Ranges, joined, without
from durastreamd.offline.verify.findings import UNREADABLE
from durastreamd.offline.verify.folding import advance, begin, detail_of, learn, record_of, state_of
from durastreamd.offline.verify.scan import JournalHead
from durastreamd.offline.verify.segments import (
    Payloads,
    SegmentReport,
    SegmentTask,
    check_segment,
    read_or_nothing,
)
from durastreamd.offline.verify.survey import Catalogued, StreamFiles
from durastreamd.protocol import content_type
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import Disk, read_file
from durastreamd.storage.index import HEADER_BYTES, Entry, IndexFile, owner_of
from durastreamd.storage.scan import Gap

# A segment that begins like one of our own files is one of them under another's name.
_OURS = (fmt.INDEX_MAGIC, fmt.JOURNAL_MAGIC, fmt.CATALOG_MAGIC, fmt.IDENTITY_MAGIC)


class Salvage:
    """One stream, as far as it survives."""

    def __init__(self, stream: Stream, detail: Detail) -> None:
        self.stream = stream
        self.detail = detail
        self.blocks: list[SegmentReport] = []
        self.pieces: list[Piece] = []
        self.doubtful: list[Piece] = []  # at hand, but nothing proves them; see ``take_doubtful``
        self.unproven: Ranges = []  # of what is taken
        self.nameless = False
        self.forgotten: tuple[int, int] | None = None  # who wrote here as producer is not known

    @property
    def covered(self) -> Ranges:
        """Return which bytes survive."""
        held = [(block.base, block.end) for block in self.blocks]
        return joined(held + [(p.frame.start, p.end) for p in self.pieces if p.frame.size])

    @property
    def in_doubt(self) -> Ranges:
        """Return which bytes are at hand, but without proof, and not taken."""
        return joined([(piece.frame.start, piece.end) for piece in self.doubtful])

    def take_doubtful(self) -> None:
        """Take bytes that nothing proves: the operator has said so."""
        self.unproven = self.in_doubt
        self.pieces = sorted([*self.pieces, *self.doubtful], key=_place)
        self.doubtful = []


class Traces(NamedTuple):
    """Everything there is of one stream."""

    stream: int
    row: Catalogued | None
    files: StreamFiles
    heads: list[JournalHead]  # of the journal, by lsn
    aside: list[Piece]  # frames a recovery set aside
    torn_lsn: int  # frames from here on were never acknowledged, and one is lost before them
    strays: "Strays"
    anew: bool = False  # every index is to be written again


class Strays(NamedTuple):
    """Files that may be another's: indexes by their true owner, and all that do not verify."""

    indexes: dict[tuple[int, int], str]
    files: list[str]


def salvage(disk: Disk, traces: Traces) -> Salvage | None:
    """Put one stream together again; None if nothing of it is left to serve."""
    return _Salvaging(disk, traces).run()


class _Salvaging:
    """The work on one stream."""

    def __init__(self, disk: Disk, traces: Traces) -> None:
        self._disk = disk
        self._traces = traces
        self._states: list[tuple[Stream, Detail]] = []
        self._pieces: dict[int, Piece] = {}  # by lsn; those whose bytes are at hand
        self._records: dict[int, Record] = {}  # by lsn; every head that verifies
        self._bad: Ranges = []  # bytes known not to verify
        self._blocks: list[SegmentReport] = []
        self._extents: list[tuple[int, int, str]] = []  # broken segments: base, end, path
        self._witnessed: list[fmt.StoredFrame] = []  # of hurt entries that prove their bytes

    def run(self) -> Salvage | None:
        traces = self._traces
        for base in traces.files.bases:
            self._segment(base)
        for head in traces.heads:
            self._journal_record(head)
        for piece in traces.aside:
            self._records.setdefault(piece.frame.lsn, piece.record)
            self._pieces.setdefault(piece.frame.lsn, piece)
        self._drop_torn()
        folded = self._fold()
        if folded is None:
            return None
        folded.blocks = self._blocks
        folded.pieces = self._in_order()
        self._fill(folded)
        return folded

    # --- evidence ---

    def _segment(self, base: int) -> None:
        task = SegmentTask(self._traces.stream, base, "", None, None, deep=True, live=False)
        report = check_segment(self._disk, task)
        for finding in report.findings:
            if finding.kind == UNREADABLE:
                reason = f"{finding.detail}; nothing is repaired without it while it may be whole"
                raise ReadFailedError(finding.path, reason)
        if not report.findings and report.tail is not None and not self._traces.anew:
            self._blocks.append(report)
            self._states.append(report.tail)
            return
        path = fmt.segment_path(self._traces.stream, base)
        if base in self._traces.files.segments:
            self._extent(base, path)
        frames: list[fmt.StoredFrame] = []
        for frame in self._index_frames(base):
            record = record_of(frame)
            if record is not None:
                self._records[frame.lsn] = record
                frames.append(frame)
        self._payloads(base, path, frames)

    def _extent(self, base: int, path: str) -> None:
        try:
            handle = self._disk.open(path)
        except OSError:
            return
        start = read_or_nothing(self._disk, handle, 16, 0)
        if start and not start.startswith(_OURS):
            # What a segment has from where the next one begins is no part of the stream.
            after = [other for other in self._traces.files.bases if other > base]
            end = min([base + self._disk.size(handle), *after])
            self._extents.append((base, end, path))
        self._disk.release(handle)

    def _index_frames(self, base: int) -> Iterator[fmt.StoredFrame]:
        stream = self._traces.stream
        path = self._traces.strays.indexes.get((stream, base), fmt.index_path(stream, base))
        try:
            raw = read_file(self._disk, path)
        except OSError:
            return
        if owner_of(raw) not in (None, (stream, base)):
            return
        file = IndexFile(stream, base)
        entries = list(file.walk(raw).items(HEADER_BYTES))
        yield from self._witnesses(file, raw, entries)
        for entry in entries:
            if isinstance(entry, Gap):
                continue
            if not entry.is_state:
                yield entry.frame
            elif (state := state_of(entry.frame.header)) is not None and state[0].id == stream:
                self._states.append(state)

    def _witnesses(
        self, file: IndexFile, raw: bytes, entries: list[Entry | Gap]
    ) -> Iterator[fmt.StoredFrame]:
        """Yield the records of hurt entries that can be put right; note what others prove."""
        own = [extent for extent in self._extents if extent[0] == file.base]
        gaps = [at for at, entry in enumerate(entries) if isinstance(entry, Gap)]
        if not own or not gaps:
            return
        base, end, path = own[0]
        handle = self._disk.open(path)
        try:
            segment = SegmentBytes(path, base, end, partial(read_or_nothing, self._disk, handle))
            found = Witnesses(file, raw, segment)
            for at in gaps:
                gap = entries[at]
                assert isinstance(gap, Gap)
                for frame, whole in found.of(gap, *_edges(base, entries, at)):
                    if whole:
                        yield frame
                    else:
                        self._witnessed.append(frame)
        finally:
            self._disk.release(handle)

    def _payloads(self, base: int, path: str, frames: list[fmt.StoredFrame]) -> None:
        """Look for the bytes of records: in their segment, or in one that is out of place."""
        wanted = []
        for frame in frames:
            if frame.size:
                wanted.append(frame)
            else:
                self._pieces[frame.lsn] = Piece(frame, self._records[frame.lsn], "", 0)
        own = path if base in self._traces.files.segments else ""
        for candidate in [own, *(p for p in self._traces.strays.files if p != path)]:
            if not candidate or not wanted:
                continue
            wanted = self._take_verified(base, candidate, wanted)
        self._bad += [(frame.start, frame.start + frame.size) for frame in wanted]

    def _take_verified(
        self, base: int, path: str, frames: list[fmt.StoredFrame]
    ) -> list[fmt.StoredFrame]:
        payloads = Payloads(self._disk, path, base)
        bad = {frame.lsn for frame in payloads.bad(frames)}
        payloads.release()
        for frame in frames:
            if frame.lsn not in bad:
                record = self._records[frame.lsn]
                self._pieces[frame.lsn] = Piece(frame, record, path, frame.start - base)
        return [frame for frame in frames if frame.lsn in bad]

    def _journal_record(self, head: JournalHead) -> None:
        frame = head.frame
        record = record_of(frame)
        if record is None or (isinstance(record, Delete) and not record.soft):
            return
        self._records.setdefault(frame.lsn, record)
        if head.payload_ok and frame.lsn not in self._pieces:
            path = fmt.journal_path(head.number) if frame.size else ""
            self._pieces[frame.lsn] = Piece(frame, record, path, head.payload_at)

    def _drop_torn(self) -> None:
        """Leave out what was never acknowledged and does not follow from what is left."""
        torn = self._traces.torn_lsn
        row = self._traces.row
        tails = [state[0].tail for state in self._states]
        tails += [row.stream.tail] if row is not None else []
        tails += [r.start + r.size for lsn, r in self._records.items() if lsn < torn]
        reached = max(tails, default=-1)
        dropping = False
        for lsn in sorted(lsn for lsn in self._records if lsn >= torn):
            record = self._records[lsn]
            joins = record.start == reached or (reached < 0 and isinstance(record, Create))
            dropping = dropping or not joins or lsn not in self._pieces
            if dropping:
                del self._records[lsn]
                self._pieces.pop(lsn, None)
            else:
                reached = record.start + record.size

    # --- the state ---

    def _fold(self) -> Salvage | None:
        row = self._traces.row
        known = [state[0] for state in self._states]
        if row is not None:
            known.append(row.stream)
        known += [begin(r, lsn) for lsn, r in self._records.items() if isinstance(r, Create)]
        nameless = not known
        if nameless:
            known = list(_unnamed(self._traces.stream, self._pieces))
        if not known:
            return None
        newest = max(known, key=lambda stream: (stream.lsn, stream.tail))
        folded = Salvage(Stream.from_row(newest.row()), Detail())
        folded.nameless = nameless
        for _, detail in self._states:
            learn(folded.detail, detail)
        for lsn in sorted(self._records):
            record = self._records[lsn]
            if isinstance(record, Append):
                learn(folded.detail, detail_of(record))
            if lsn > newest.lsn:
                advance(folded.stream, record, lsn)
        folded.stream.damage = ""
        folded.forgotten = self._forgotten(folded.stream)
        folded.stream.plain = not folded.detail.producers and folded.detail.seq is None
        return folded

    def _forgotten(self, stream: Stream) -> tuple[int, int] | None:
        """Return where records may have told of producers that nothing tells of any more.

        A state knows them as of its place, and so does a row that says that there are none; from
        there on every record must be known.
        """
        row = self._traces.row
        known = [(state.lsn, state.tail) for state, _ in self._states]
        if row is not None and row.stream.plain:
            known.append((row.stream.lsn, row.stream.tail))
        heads = self._records.items()
        known += [(lsn, r.start + r.size) for lsn, r in heads if isinstance(r, Create)]
        lsn, tail = max(known, default=(-1, stream.fork_position))
        later = [(n, (r.start, r.start + r.size)) for n, r in heads if n > lsn]
        missing = without([(tail, stream.tail)], [place for _, place in later])
        if missing:
            return missing[0][0], missing[-1][1]
        top = max([lsn, *(n for n, _ in later)])
        return (tail, tail) if row is not None and top < row.stream.lsn else None

    # --- the bytes ---

    def _in_order(self) -> list[Piece]:
        """Return the pieces that no block holds, in order."""
        kept: list[Piece] = []
        blocks = sorted(self._blocks, key=lambda block: block.base)
        bases = [block.base for block in blocks]
        for piece in sorted(self._pieces.values(), key=lambda p: (p.frame.start, p.frame.lsn)):
            at = bisect_right(bases, piece.frame.start) - 1
            before = blocks[at].tail if at >= 0 else None
            held = before is not None and (
                piece.frame.lsn <= before[0].lsn or piece.frame.start < blocks[at].end
            )
            follows = not kept or (
                piece.frame.start >= kept[-1].end and piece.frame.lsn > kept[-1].frame.lsn
            )
            if follows and not held:
                kept.append(piece)
        return kept

    def _fill(self, folded: Salvage) -> None:
        """Put bytes in that no whole entry vouches for: proven by a hurt one, or doubtful."""
        known = joined(folded.covered + self._bad)
        states = self._known_states(folded)
        filling = Filling(folded.stream, folded.pieces, states, self._witnessed)
        for base, end, path in self._extents:
            handle = self._disk.open(path)
            source = SegmentBytes(path, base, end, partial(read_or_nothing, self._disk, handle))
            for low, high in without([(base, min(end, folded.stream.tail))], known):
                for piece in filling.fill(low, high, source):
                    (folded.pieces if piece.proven else folded.doubtful).append(piece)
            self._disk.release(handle)
        folded.pieces.sort(key=_place)

    def _known_states(self, folded: Salvage) -> list[Stream]:
        heads = [block.head[0] for block in folded.blocks if block.head is not None]
        return [*(state for state, _ in self._states), *heads]


def _place(piece: Piece) -> tuple[int, int]:
    return piece.frame.start, piece.frame.lsn


def _edges(base: int, entries: list[Entry | Gap], at: int) -> tuple[int, int]:
    """Return where the record before a gap in an index ends, and where the next one begins."""
    low, high = base if at == 0 else -1, -1
    before = entries[at - 1] if at else None
    after = entries[at + 1] if at + 1 < len(entries) else None
    if isinstance(before, Entry):
        low = before.frame.start + (0 if before.is_state else before.frame.size)
    if isinstance(after, Entry):
        high = after.frame.start
    return low, high


def _unnamed(stream: int, pieces: dict[int, Piece]) -> Iterator[Stream]:
    """Yield a stream for records whose create record is lost: its name is made up."""
    appends = [p for p in pieces.values() if isinstance(p.record, Append) and p.frame.size]
    if not appends:
        return
    first = min(appends, key=lambda piece: piece.frame.lsn)
    assert isinstance(first.record, Append)
    kind = content_type.JSON if first.record.lengths is None else content_type.DEFAULT
    frame = first.frame
    made = Create(
        stream,
        0,
        0,
        frame.time_ms,
        0,
        0,
        None if kind == content_type.JSON else [],
        f"/lost-and-found/{stream:016x}",
        kind,
    )
    found = begin(made, 0)
    found.tail, found.messages = frame.start, frame.ordinal
    yield found
