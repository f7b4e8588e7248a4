"""Settling what each stream of a damaged directory is served as, from what was salvaged of all.

Sources come before their forks: what a source was cut back by is lost for its forks, too. What
follows for the operator is one ``Affected`` for each stream that is not as it was.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import xxhash

from durastreamd.engine.view import blob_of
from durastreamd.model.lineage import Lineage
from durastreamd.model.records import Append, Create, Record, Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.layout import FileRange, NewFile
from durastreamd.offline.repair.losses import TAKE, Run, judge, kept_of, lost_of
from durastreamd.offline.repair.salvage import Salvage
from durastreamd.offline.verify.census import Ranges, joined, without
from durastreamd.offline.verify.folding import record_of
from durastreamd.offline.verify.segments import WINDOW_BYTES
from durastreamd.offline.verify.survey import StreamFiles, Survey
from durastreamd.offline.verify.verification import check_snapshot
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.protocol.offsets import mint
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import read_blob
from durastreamd.storage.checksum import payload_seed
from durastreamd.storage.disk import Disk, read_file
from durastreamd.storage.index import HEADER_BYTES, IndexFile
from durastreamd.storage.scan import Gap

_NO_FILES = StreamFiles([], [], [])
_ALL = 2**63  # more bytes than any stream has


class _Evidence(NamedTuple):
    """A record or state that touches a place, and where the record's bytes lie."""

    frame: fmt.StoredFrame
    record: Record | None
    path: str
    at: int


@dataclass
class Affected:
    """A stream that is not served as it was, or not proven to be."""

    stream: str
    id: int
    extent: Run  # what it showed
    served: Run  # what it will show
    messages: int | None = None  # in what it will show, if that can be told
    lost: Ranges = field(default_factory=list)
    given_up: Ranges = field(default_factory=list)  # whole, on the other side of a loss
    unproven: Ranges = field(default_factory=list)  # served, its checksums are lost
    doubtful: Ranges = field(default_factory=list)  # not served, its checksums are lost
    doubtful_of: str = ""  # the stream they are of: this one, or the first of its sources
    doubtful_id: int = 0
    undecided: bool = False  # nobody has said what becomes of them
    if_taken: Run | None = None  # what it would show with them
    snapshot_lost: str = ""  # why
    producers_lost: str = ""  # what is forgotten of them
    snapshot: int | None = None  # the position of the one it keeps
    keep: str = ""  # the choice that was made, where there was one
    instead: dict[str, Run] = field(default_factory=dict)

    @property
    def bytes_before(self) -> int:
        """Return how many bytes it showed."""
        return self.extent[1] - self.extent[0]

    @property
    def bytes_served(self) -> int:
        """Return how many bytes it will show."""
        return self.served[1] - self.served[0]

    @property
    def outcome(self) -> str:
        """Return ``whole``, ``in part``, ``lost`` or ``undecided``."""
        if self.undecided:
            return "undecided"
        if not (self.lost or self.given_up or self.doubtful or self.snapshot_lost):
            return "whole"
        return "in part" if self.bytes_served or self.snapshot is not None else "lost"


class Chosen(NamedTuple):
    """What the operator chose, by stream where a stream was named."""

    keep: str
    kept: Mapping[int, str]
    unproven: str = ""
    taken: Mapping[int, str] = {}

    def side(self, stream: int) -> str:
        """Return which side of a loss a stream keeps."""
        return self.kept.get(stream, self.keep)

    def proofless(self, stream: int) -> str:
        """Return what becomes of a stream's bytes without proof; "" if that was not said."""
        return self.taken.get(stream, self.unproven)


class Settling:
    """The streams, changed to what they are served as."""

    def __init__(
        self,
        disk: Disk,
        found: Survey,
        streams: dict[int, Stream],
        salvaged: dict[int, Salvage],
        change: Callable[[int], None],
        left: Collection[int] = (),
    ) -> None:
        self._disk = disk
        self._found = found
        self._streams = streams
        self._salvaged = salvaged
        self._change = change  # has a stream salvaged that was left alone so far
        self._left = left  # streams that stay as they are, whatever is found of them
        self._lineage = Lineage(streams)
        self._covered: dict[int, Ranges] = {}
        self.made: list[NewFile] = []

    def run(self, chosen: Chosen) -> list[Affected]:
        """Settle every stream by what was chosen for it; return those that are not as they were."""
        snapshots = self._check_snapshots()
        self._take_doubtful(chosen)
        for stream, state in self._streams.items():
            salvaged = self._salvaged.get(stream)
            self._covered[stream] = salvaged.covered if salvaged is not None else [(0, state.tail)]
        shown = [s for s in self._streams.values() if not s.gone and s.id not in self._left]
        at_hand = {i: joined(ranges + self._doubts(i)) for i, ranges in self._covered.items()}
        destroyed = {s.id: lost_of(self._lineage, at_hand, s) for s in shown}
        affected: list[Affected] = []
        for state in sorted(shown, key=self._lineage.depth):
            told = self._settle(state.id, destroyed[state.id], chosen)
            told.snapshot_lost = snapshots.get(state.id, "")
            if told.outcome != "whole" or told.unproven or told.producers_lost:
                affected.append(told)
        return sorted(affected, key=lambda told: told.stream)

    def _take_doubtful(self, chosen: Chosen) -> None:
        for stream, salvaged in self._salvaged.items():
            if salvaged.doubtful and chosen.proofless(stream) == TAKE:
                salvaged.take_doubtful()

    def _doubts(self, stream: int) -> Ranges:
        salvaged = self._salvaged.get(stream)
        return salvaged.in_doubt if salvaged is not None else []

    def _settle(self, stream: int, destroyed: Ranges, chosen: Chosen) -> Affected:
        state = self._streams[stream]
        told = Affected(state.key, stream, (state.floor, state.tail), (state.floor, state.tail))
        told.lost = destroyed
        self._tell_doubts(state, told, chosen)
        lost = lost_of(self._lineage, self._covered, state)
        side = chosen.side(stream)
        if lost:
            unserved = [*destroyed, *told.doubtful]
            told.served, told.given_up, told.instead = judge(state, lost, unserved, side)
            told.keep = side
        if told.doubtful:
            told.if_taken = kept_of(state, destroyed, side)
        if told.served != told.extent:
            self._change(stream)
            state = self._streams[stream]
            self._cut(state, *told.served)
        told.unproven = self._inherited(state, lambda found: found.unproven)
        told.producers_lost = self._forgotten(stream)
        told.snapshot = state.snapshot.position if state.snapshot is not None else None
        if lost:
            before = self._messages_before(state, state.floor)
            told.messages = state.messages - before if before is not None else None
        return told

    def _tell_doubts(self, state: Stream, told: Affected, chosen: Chosen) -> None:
        told.doubtful = self._inherited(state, lambda found: found.in_doubt)
        if not told.doubtful:
            return
        holders = [holder for holder, _, _ in self._lineage.parts(state) if self._doubts(holder.id)]
        told.doubtful_of, told.doubtful_id = holders[0].key, holders[0].id
        told.undecided = not all(chosen.proofless(holder.id) for holder in holders)

    def _cut(self, state: Stream, floor: int, tail: int) -> None:
        if tail != state.tail:
            state.messages = self._messages_at(state, tail)
            state.tail = tail
            state.fork_position = min(state.fork_position, tail)
            self._lineage.forget(state)
            self._covered[state.id] = without(self._covered[state.id], [(tail, tail + _ALL)])
        state.floor = floor

    def _inherited(self, state: Stream, ranges_of: Callable[[Salvage], Ranges]) -> Ranges:
        """Return ranges of what a stream shows, its own bytes and those of its sources."""
        ranges: Ranges = []
        for holder, begin, high in self._lineage.parts(state):
            if high <= state.floor:
                break
            salvaged = self._salvaged.get(holder.id)
            low = max(begin, state.floor)
            for first, last in ranges_of(salvaged) if salvaged is not None else []:
                if max(first, low) < min(last, high):
                    ranges.append((max(first, low), min(last, high)))
        return joined(ranges)

    def _forgotten(self, stream: int) -> str:
        salvaged = self._salvaged.get(stream)
        if salvaged is None or salvaged.forgotten is None:
            return ""
        low, high = salvaged.forgotten
        return f"those who last wrote at {low} to {high}, if any, are forgotten"

    # --- snapshots ---

    def _check_snapshots(self) -> dict[int, str]:
        """Take snapshots away that do not verify; return whose, and why."""
        lost: dict[int, str] = {}
        for stream in list(self._streams):
            blob = self._streams[stream].snapshot
            if blob is None or self._streams[stream].gone or stream in self._left:
                continue
            wrong = list(check_snapshot(self._disk, blob, "", deep=True))
            if wrong:
                self._change(stream)
                self._streams[stream].snapshot = None
                lost[stream] = f"that of {mint(blob.position)}: {wrong[0].detail}"
            elif blob.owner not in self._streams:
                self._change(stream)
                self._streams[stream].snapshot = self._adopted(stream, blob)
        return lost

    def _adopted(self, stream: int, blob: Snapshot) -> Snapshot:
        """Give a fork the snapshot of a source that is lost: a copy, whose sum is of its place."""
        hashed = xxhash.xxh3_64(seed=payload_seed(stream, blob.position))
        for piece in read_blob(self._disk, blob_of(blob), WINDOW_BYTES):
            hashed.update(piece)
        own = msgspec.structs.replace(blob, owner=stream, sum=hashed.intdigest())
        source = FileRange(blob_of(blob).path, 0, blob.size)
        self.made.append(NewFile(blob_of(own).path, [source]))
        return own

    # --- counting messages ---

    def _messages_at(self, state: Stream, position: int) -> int:
        """Return how many messages a stream has whose tail is cut back to a place."""
        found = self._messages_before(state, position)
        if found is not None:
            return found
        # The record that was forked is damaged in its head: at least those before it are known.
        known = [0]
        for holder, _, _ in self._lineage.parts(state):
            salvaged = self._salvaged.get(holder.id)
            if salvaged is not None:
                known += [p.messages for p in salvaged.pieces if p.end <= position]
                tails = [block.tail for block in salvaged.blocks if block.end <= position]
                known += [tail[0].messages for tail in tails if tail is not None]
        return max(known)

    def _messages_before(self, state: Stream, position: int) -> int | None:
        """Return how many messages lie before a place, as a record there says; None if none does.

        Where a loss begins a record ends, and where it ends one begins.
        """
        for holder, low, high in self._lineage.parts(state):
            if low <= position <= high:
                for evidence in self._records(holder.id, position):
                    return self._count(evidence, position)
        return None

    def _records(self, stream: int, position: int) -> Iterator[_Evidence]:
        """Yield what says how many messages of a stream lie before a place."""
        salvaged = self._salvaged.get(stream)
        files = self._found.files.get(stream, _NO_FILES)
        bases = [base for base in sorted(files.indexes) if base <= position]
        if salvaged is not None:
            for piece in salvaged.pieces:
                if piece.frame.start <= position <= piece.end:
                    yield _Evidence(piece.frame, piece.record, piece.path, piece.at)
            held = {block.base for block in salvaged.blocks}
            bases = [base for base in bases if base in held]
        for base in bases[-2:]:
            raw = read_file(self._disk, fmt.index_path(stream, base))
            for entry in IndexFile(stream, base).walk(raw).items(HEADER_BYTES):
                if isinstance(entry, Gap):
                    continue
                frame = entry.frame
                if frame.start <= position <= frame.start + frame.size:
                    record = None if entry.is_state else record_of(frame)
                    path = fmt.segment_path(stream, base)
                    yield _Evidence(frame, record, path, frame.start - base)

    def _count(self, evidence: _Evidence, position: int) -> int:
        frame, record, path, at = evidence
        if position == frame.start or not isinstance(record, Append | Create):
            return frame.ordinal
        if position == frame.start + frame.size:
            return frame.ordinal + record.count
        if record.lengths is None:
            handle = self._disk.open(path)
            try:
                data = self._disk.pread(handle, position - frame.start, at)
            finally:
                self._disk.release(handle)
            return frame.ordinal + data.count(SEPARATOR)
        ends = itertools.accumulate(record.lengths)
        return frame.ordinal + sum(frame.start + end <= position for end in ends)
