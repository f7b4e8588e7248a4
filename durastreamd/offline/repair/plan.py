"""The plan of a repair: what is lost, what is moved to quarantine, what is written anew.

Rules
-----
1. What verifies is believed, whichever file it stands in. What does not is evidence of nothing.
2. A stream without a fault keeps its files and its row as they are.
3. Everything that the journal has is brought into streams' files, as a start of the server would;
   then a new catalogue holds every row, and a new journal goes on after the highest lsn ever seen.
   So lost frames leave no gap that a recovery would stumble over.
4. A lost range is never served: see ``losses``. It is named in the plan with its stream. Nor are
   bytes that nothing proves, unless the operator says so.
5. Producers keep the highest epoch and sequence number that anything knows of them, so a retry of
   what was acknowledged is still recognised, even where its bytes are lost.
6. A stream whose name is lost with its create record is served as ``/lost-and-found/<id>``.
7. Originals go to quarantine/ and are never changed; nothing is deleted. See ``apply``.

Without a trusted catalogue a directory below streams/ is a living stream unless something says that
it ended; empty buckets are lost then, and a deletion of the last seconds may be undone.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from durastreamd.engine.view import blob_of
from durastreamd.model.buckets import bucket_of
from durastreamd.model.records import MARK_STREAM, BucketChange, Delete
from durastreamd.model.stream_state import Stream
from durastreamd.offline.names import stream_named
from durastreamd.offline.repair.layout import Layout, NewFile, lay_out
from durastreamd.offline.repair.left import leave, unreadable
from durastreamd.offline.repair.losses import Keep
from durastreamd.offline.repair.pieces import Piece, frames_aside
from durastreamd.offline.repair.salvage import Salvage, Strays, Traces, salvage
from durastreamd.offline.repair.settling import Affected, Chosen, Settling
from durastreamd.offline.verify.census import Census, Ranges, Readers
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.folding import record_of
from durastreamd.offline.verify.scan import JournalHead
from durastreamd.offline.verify.segments import read_or_nothing
from durastreamd.offline.verify.subscribed import repaired_facts
from durastreamd.offline.verify.survey import DURABLE, NEVER, StreamFiles, Survey
from durastreamd.offline.verify.verification import Examination
from durastreamd.storage import catalog, format as fmt, journal
from durastreamd.storage.catalog import Commit
from durastreamd.storage.disk import Disk
from durastreamd.storage.index import owner_of
from durastreamd.storage.rows import BucketRow, FactRow, Row, StreamRow

_STREAM_PATH = re.compile(rf"{fmt.STREAMS_DIR}/[0-9a-f]{{2}}/([0-9a-f]{{16}})(/|$)")
_LIGHT = {"foreign", "orphan"}
_NO_FILES = StreamFiles([], [], [])
# Files that do not verify are tried in each other's place; more of them are rot, not a mix-up.
STRAYS_MAX = 32
_LARGER = Keep()


@dataclass
class Plan:
    """What a repair will do.

    ``affected`` are the streams that are not as they were; ``losses`` all that is known to be lost,
    ``doubts`` what nobody can know, ``notes`` the rest that an operator should read.
    """

    findings: list[Finding]
    streams: int = 0  # how many there are afterwards
    affected: list[Affected] = field(default_factory=list)
    losses: list[dict[str, object]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    out: list[str] = field(default_factory=list)  # files that go to quarantine
    made: list[NewFile] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)  # directories with nothing left in them
    left: dict[str, str] = field(default_factory=dict)  # streams that are left alone, and why
    # What there is afterwards: the last record, the streams by id, the buckets.
    lsn: int = 0
    ids: list[int] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    uuid: bytes = b""
    extensions: list[str] = field(default_factory=list)  # of the format, in use

    @property
    def undecided(self) -> list[str]:
        """Return the streams with bytes without proof of which nobody has said what to do."""
        return sorted({told.doubtful_of for told in self.affected if told.undecided})

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to do."""
        return not (self.out or self.made or self.emptied)


def make_plan(
    disk: Disk,
    seen: Examination,
    *,
    make_uuid: bytes,
    keep: Keep = _LARGER,
    rebuild: frozenset[int] = frozenset(),
) -> Plan:
    """Decide what to do about what a deep verification has found."""
    plan = Plan(seen.findings, sum(not s.gone for s in seen.census.streams.values()))
    plan.uuid = seen.found.uuid or make_uuid
    left = unreadable(seen)
    plan.left = {s.key: left[i] for i, s in seen.census.streams.items() if i in left}
    others = [
        f
        for f in seen.findings
        if _stream_of(seen.census, f) not in left and f.path not in seen.found.unlisted
    ]
    if all(finding.kind in _LIGHT for finding in others) and not rebuild:
        plan.out = [finding.path for finding in others]
        _empty_directories(disk, plan, seen.found, set())
        return plan
    _Planning(disk, seen, plan, keep, rebuild, left).run()
    return plan


class _Planning:
    """The making of a full plan."""

    def __init__(
        self,
        disk: Disk,
        seen: Examination,
        plan: Plan,
        keep: Keep,
        rebuild: frozenset[int],
        left: dict[int, str],
    ) -> None:
        self._disk = disk
        self._found: Survey = seen.found
        self._census: Census = seen.census
        self._plan = plan
        self._keep = keep
        self._rebuild = rebuild
        self._left = left
        self._dirty = {i for f in seen.findings if (i := _stream_of(seen.census, f)) is not None}
        self._strays = self._find_strays(seen.findings)
        self._streams: dict[int, Stream] = {}
        self._salvaged: dict[int, Salvage] = {}
        self._buckets = dict(self._found.buckets)
        self._kept: set[str] = set()
        self._aside: dict[int, list[Piece]] = {}
        self._torn = self._found.torn_lsn
        # To say what lost frames held: streams that lost bytes, owners by lsn, last lsns by stream.
        self._hurt: set[str] = set()
        self._owners: dict[int, int] = {}
        self._latest: dict[int, int] = {}

    def run(self) -> None:
        self._gather()
        self._settle()
        rows = self._lay_out()
        self._control_files(rows)
        self._quarantine()
        self._name_lost_frames()

    # --- which streams, and what of them ---

    def _find_strays(self, findings: list[Finding]) -> Strays:
        """Look for files that stand under another's name, as restored copies sometimes do."""
        faulty = dict.fromkeys(f.path for f in findings if _STREAM_PATH.match(f.path))
        there = [path for path in faulty if path.endswith((".log", ".idx"))]
        there = [path for path in there if self._disk.exists(path)][:STRAYS_MAX]
        indexes: dict[tuple[int, int], str] = {}
        for path in there:
            owner = owner_of(self._start_of(path))
            if owner is not None and path != fmt.index_path(*owner):
                indexes[owner] = path
        return Strays(indexes, there)

    def _start_of(self, path: str) -> bytes:
        try:
            handle = self._disk.open(path)
        except OSError:
            return b""  # nothing that can be read is anybody's
        try:
            return read_or_nothing(self._disk, handle, fmt.INDEX_HEADER.size, 0)
        finally:
            self._disk.release(handle)

    def _gather(self) -> None:
        found = self._found
        heads: dict[int, list[JournalHead]] = {}
        for head in found.heads:
            heads.setdefault(head.frame.stream, []).append(head)
        ended = self._fold_deletions()
        next_id = found.commit.next_id if found.commit is not None else 0
        owners = {owner for owner, _ in self._strays.indexes}
        for stream in sorted({*found.listed, *found.files, *heads, *owners} - ended):
            row = found.listed.get(stream)
            if stream in (0, NEVER - 1) or (stream in found.ended and row is None):
                continue
            if row is None and found.catalog_trusted and stream < next_id:
                continue  # it has ended; its files were about to be removed
            if self._vanished(stream):
                self._plan.notes.append(f"stream {stream:016x}: no file is left, taken for deleted")
                continue
            self._take(stream, heads.get(stream, []))
        self._drop_displaced()

    def _vanished(self, stream: int) -> bool:
        """A stream without any file, in a catalogue that is not whole, has probably ended."""
        row = self._found.listed.get(stream)
        made = row is not None and row.placement.made
        there = stream in self._found.files or stream in self._left
        return made and not self._found.catalog_trusted and not there

    def _fold_deletions(self) -> set[int]:
        ended: set[int] = set()
        for head in self._found.heads:
            record = record_of(head.frame)
            if isinstance(record, Delete) and not record.soft:
                ended.add(head.frame.stream)
            elif isinstance(record, BucketChange):
                if record.exists:
                    self._buckets[record.bucket] = record.time_ms
                else:
                    self._buckets.pop(record.bucket, None)
        return ended

    def _take(self, stream: int, heads: list[JournalHead]) -> None:
        row = self._found.listed.get(stream)
        fresh = [h for h in heads if row is None or h.frame.lsn > row.stream.lsn]
        if stream in self._left:
            kept = [h for h in fresh if h.payload_ok and h.frame.lsn < self._torn]
            trusted = self._found.catalog_trusted
            self._streams[stream], aside = leave(row, kept, self._left[stream], trusted=trusted)
            self._plan.made += aside
            return
        clean = row is not None and not fresh and stream not in self._dirty | self._rebuild
        if clean and row is not None:
            self._streams[stream] = Stream.from_row(row.stream.row())
            return
        self._salvage(stream, heads)

    def _salvage(self, stream: int, heads: list[JournalHead]) -> None:
        row = self._found.listed.get(stream)
        aside: list[Piece] = []
        if row is not None and row.stream.damage:
            # A stream without files is in its row from its first record on, which has its bytes.
            aside = frames_aside(self._disk, stream, row.stream.lsn - (not row.placement.made))
            self._aside[stream] = aside
            self._plan.notes.append(f"{row.stream.key}: the mark of damage is cleared")
        files = self._found.files.get(stream, _NO_FILES)
        traces = Traces(
            stream,
            row,
            files,
            heads,
            aside,
            self._torn,
            self._strays,
            stream in self._rebuild,
        )
        result = salvage(self._disk, traces)
        if result is None:
            self._lose_name(stream)
            return
        if result.nameless:
            self._plan.notes.append(
                f"stream {stream:016x}: its name is lost; it is served as {result.stream.key}"
            )
        self._streams[stream] = result.stream
        self._salvaged[stream] = result

    def _lose_name(self, stream: int) -> None:
        if self._found.files.get(stream, _NO_FILES) != _NO_FILES:
            self._plan.losses.append(
                {
                    "stream": f"{stream:016x}",
                    "what": "name",
                    "detail": "nothing says what this stream was; its files are in quarantine",
                }
            )

    def _drop_displaced(self) -> None:
        """One name, one stream: the one created last. A deleted stream stays for its forks only."""
        by_key: dict[str, int] = {}
        for stream in sorted(self._streams):
            key = self._streams[stream].key
            if key in by_key:
                self._streams.pop(by_key[key])
                self._salvaged.pop(by_key[key], None)
            by_key[key] = stream
        forks = Counter(state.source for state in self._streams.values())
        abandoned = [i for i, state in self._streams.items() if state.gone and not forks[i]]
        while abandoned:
            stream = abandoned.pop()
            source = self._streams.pop(stream).source
            self._salvaged.pop(stream, None)
            forks[source] -= 1
            if source in self._streams and self._streams[source].gone and not forks[source]:
                abandoned.append(source)

    # --- losses ---

    def _settle(self) -> None:
        settling = Settling(
            self._disk, self._found, self._streams, self._salvaged, self._change, self._left.keys()
        )
        keep = self._keep
        named, taken = self._by_id(keep.named), self._by_id(keep.unproven_named)
        self._plan.affected = settling.run(Chosen(keep.side, named, keep.unproven, taken))
        self._plan.made += settling.made
        self._plan.streams = sum(not state.gone for state in self._streams.values())
        for told in self._plan.affected:
            self._tell(told.stream, "lost", told.lost)
            self._tell(told.stream, "no longer served", told.given_up)
            self._tell(told.stream, "without proof", told.doubtful)
            if told.snapshot_lost:
                self._plan.losses.append(
                    {"stream": told.stream, "what": "snapshot", "detail": told.snapshot_lost}
                )

    def _by_id(self, named: Mapping[str, str]) -> dict[int, str]:
        by_key = {state.key: state for state in self._streams.values()}
        return {stream_named(by_key, self._streams, n).id: said for n, said in named.items()}

    def _change(self, stream: int) -> None:
        """A stream that was left alone so far is to be laid out anew."""
        if stream not in self._salvaged:
            self._salvage(stream, [])

    def _tell(self, key: str, what: str, ranges: Ranges) -> None:
        for low, high in ranges:
            self._plan.losses.append({"stream": key, "what": what, "from": low, "to": high})

    # --- files ---

    def _lay_out(self) -> list[Row]:
        rows: list[Row] = []
        readers = Readers(self._streams)
        for stream, state in sorted(self._streams.items()):
            salvaged = self._salvaged.get(stream)
            files = self._found.files.get(stream, _NO_FILES)
            if salvaged is None:
                placement = self._found.listed[stream].placement
                self._kept |= {fmt.index_path(stream, base) for base in files.indexes}
                self._kept |= {fmt.segment_path(stream, base) for base in files.segments}
            else:
                layout: Layout = lay_out(self._disk, salvaged, files, readers.ranges(state))
                placement = layout.placement
                self._kept |= layout.kept
                self._plan.made += layout.made
            if (blob := state.snapshot) is not None:
                self._kept.add(blob_of(blob).path)
            rows.append(StreamRow(state.row(), placement))
            bucket = bucket_of(state.key)
            if bucket and bucket not in self._buckets:
                self._buckets[bucket] = state.created_ms
                self._plan.notes.append(f"bucket {bucket}: made again for {state.key}")
        rows += itertools.starmap(FactRow, repaired_facts(self._found, self._streams))
        return [*itertools.starmap(BucketRow, sorted(self._buckets.items())), *rows]

    def _control_files(self, rows: list[Row]) -> None:
        found, uuid = self._found, self._plan.uuid
        if any(finding.path == fmt.IDENTITY_FILE for finding in found.findings):
            self._plan.notes.append("the identity is written again from what other files say")
            if found.uuid is None:
                detail = "no file names the directory's uuid, so nothing in its journal verifies"
                self._lose("journal", detail)
        lsn = max([found.top_lsn, *(s.lsn for s in self._streams.values())])
        number = max(found.journal_number, *found.headers, 0) + 1
        ids = [*self._streams, *found.files, *(h.frame.stream for h in found.heads)]
        next_id = max([*(i for i in ids if i < NEVER - 1), 0]) + 1
        next_id = max(next_id, found.commit.next_id if found.commit is not None else 1)
        self._plan.lsn, self._plan.ids = lsn, sorted(self._streams)
        self._plan.buckets = sorted(self._buckets)
        self._plan.extensions = sorted(found.extensions or ())
        commit = Commit(lsn, number, next_id, [])
        head = journal.FileHead(lsn + 1, lsn)
        self._plan.made += [
            NewFile(fmt.journal_path(number), [journal.encode_header(uuid, number, head)]),
            NewFile(
                fmt.catalog_path(found.catalog_number + 1),
                [
                    catalog.encode_file(
                        uuid, found.catalog_number + 1, found.checkpoint, rows, commit
                    )
                ],
            ),
        ]
        if not found.catalog_trusted:
            self._plan.doubts.append(
                "whether there were buckets without a stream; they are gone with the catalogue"
            )

    def _quarantine(self) -> None:
        """Everything that is neither kept nor ours goes to quarantine."""
        found, plan = self._found, self._plan
        out = [f"{fmt.CATALOG_DIR}/{n}" for n in self._disk.names(fmt.CATALOG_DIR)]
        out += [f"{fmt.JOURNAL_DIR}/{n}" for n in self._disk.names(fmt.JOURNAL_DIR)]
        for stream, files in found.files.items():
            paths = [fmt.index_path(stream, base) for base in files.indexes]
            paths += [fmt.segment_path(stream, base) for base in files.segments]
            paths += [fmt.snapshot_path(stream, *blob) for blob in files.snapshots]
            out += [path for path in paths if path not in self._kept]
        out += [*found.foreign, *found.leftovers, *(orphan.path for orphan in found.orphans)]
        for pieces in self._aside.values():
            out += [p.path for p in pieces if p.path]
        plan.out = list(dict.fromkeys(out))
        _empty_directories(self._disk, plan, found, {file.path for file in plan.made})

    # --- the journal ---

    def _name_lost_frames(self) -> None:
        found = self._found
        for finding in found.findings:
            if finding.path.endswith(".jnl"):
                self._about_journal(finding)
            elif finding.kind == "torn":
                self._plan.notes.append(f"{finding.path}:{finding.position}: {finding.detail}, cut")
        self._hurt = {told.stream for told in self._plan.affected if told.lost}
        self._owners = {head.frame.lsn - 1: head.previous for head in found.heads}
        self._latest = {head.frame.stream: head.frame.lsn for head in found.heads}  # by lsn
        for low, high in found.missing:
            self._about_missing(low, high)

    def _about_journal(self, finding: Finding) -> None:
        """Say what a fault of a journal file has cost; what it is known to have is named later."""
        path, position, kind, detail = finding[:4]
        plan = self._plan
        if kind == "torn" and position:
            plan.notes.append(f"{path}:{position}: {detail}, cut")
            plan.doubts.append(f"whether a crash left {path} so, or the disk lost its end since")
        elif kind == "torn":
            plan.doubts.append(f"{path} is empty; what it held, if anything, is gone")
        elif kind == "missing":
            self._lose("journal", f"{path} is missing; what it held, if anything, is gone")
        elif kind == "header":
            read = sum(fmt.journal_path(head.number) == path for head in self._found.heads)
            if read:
                plan.notes.append(f"{path}: its header is damaged, {read} of its records are whole")
            else:
                plan.doubts.append(
                    f"{path}: its header is damaged and no record in it is whole; "
                    "what it held, if anything, is gone"
                )
        elif kind == "frame" and DURABLE not in detail:  # those are among the missing
            self._lose("journal", f"{path}:{position}: {detail}; what stood there is gone")

    def _about_missing(self, low: int, high: int) -> None:
        """Name records that were durable and are in no file."""
        # The frame after a lost one says whose it was.
        owner = self._owners.get(high) if low == high else None
        known = self._streams.get(owner) if owner else None
        if owner == MARK_STREAM:
            self._plan.notes.append(f"record {low} of the journal is lost; it held no data")
        elif owner == 0:
            self._lose("frames", f"record {low} of the journal: a bucket made or removed")
        elif known is not None:
            hurt = known.key in self._hurt
            later = self._latest.get(known.id, 0) > low
            what = "nothing that is served was in it" if later else "its last, and what that held"
            what = "see above" if hurt else what
            self._lose("frames", f"record {low} of the journal, of {known.key}: {what}")
        else:
            which = f"record {low}" if low == high else f"records {low} to {high}"
            self._lose(
                "frames",
                f"{which} of the journal: whose, nobody can say. Any stream may be without its "
                "last bytes, a producer without its last number, a deletion be undone",
            )

    def _lose(self, what: str, detail: str) -> None:
        self._plan.losses.append({"stream": "", "what": what, "detail": detail})


def _stream_of(census: Census, finding: Finding) -> int | None:
    if match := _STREAM_PATH.match(finding.path):
        return int(match[1], 16)
    return census.names.get(finding.stream) if finding.stream else None


def _empty_directories(disk: Disk, plan: Plan, found: Survey, made: set[str]) -> None:
    """Note the directories of streams that will hold nothing once the plan is carried out."""
    gone = set(plan.out)
    filled = {path.rpartition("/")[0] for path in made}
    for stream in found.files:
        directory = fmt.stream_dir(stream)
        left = [n for n in disk.names(directory) if f"{directory}/{n}" not in gone]
        if not left and directory not in filled:
            plan.emptied.append(directory)
    emptied = set(plan.emptied)
    plan.out = [path for path in plan.out if path not in emptied]
