"""The engine: the state of every stream in memory, the journal behind it, the files behind that.

The path of a change: somebody decided a record (``model``), ``stage`` prepares its bytes,
``journal`` makes a batch of them durable, ``applied`` folds them into the state. Only then does
anyone see it. Committed bytes wait in ``hot`` until a flush writes them to segments.

Nothing here knows an event loop. What is slow (files) and what must be atomic (state) are apart:
methods that touch state never touch the disk, and jobs that touch the disk never touch state, so a
caller may run the jobs in threads and the rest wherever it likes, one at a time.
"""

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

import cbor2

from durastreamd.engine.options import EngineOptions
from durastreamd.engine.parking import Unwritable, is_of_one_file
from durastreamd.engine.view import Level, View, blob_of, record_of
from durastreamd.errors import (
    CorruptDataError,
    ReadFailedError,
    StreamDamagedError,
    WriteFailedError,
)
from durastreamd.model.namespace import Namespace
from durastreamd.model.records import (
    Append,
    BucketChange,
    Create,
    Delete,
    Publish,
    Record,
    Retain,
    Snapshot,
    Touch,
)
from durastreamd.model.stream_state import MET, Detail, Stream, apply
from durastreamd.model.subscription_records import SubscriptionRecord
from durastreamd.model.subscriptions import Subscriptions
from durastreamd.protocol import Data
from durastreamd.storage import format as fmt, log, scrub
from durastreamd.storage.catalog import CatalogWriter
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.datadir import Identity, replace_identity
from durastreamd.storage.disk import Disk, faults_of
from durastreamd.storage.handles import HandleTable
from durastreamd.storage.index import HEADER_BYTES, IndexFile, IndexReader
from durastreamd.storage.journal import JournalWriter
from durastreamd.storage.proofs import Proofs

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What a record in memory takes beside its bytes and its header: 327 bytes were measured with both
# of a few. Without it a flood of tiny appends would take five times what is allowed before any
# flush, and a flush of one stream would have more records than a turn of the loop may count.
HOT_RECORD_BYTES = 320


def hot_cost(frame: fmt.StoredFrame) -> int:
    """Return what a record counts of ``hot_bytes_max``."""
    return HOT_RECORD_BYTES + len(frame.header) + frame.size


class Engine:
    """One data directory, opened. Made by ``opening.open_engine``."""

    def __init__(
        self, disk: Disk, options: EngineOptions, identity: Identity, locks: list[int]
    ) -> None:
        self.disk = disk
        self.options = options
        self.uuid = identity.uuid
        self.extensions = identity.extensions  # of the format, as the identity file names them
        self.wanted: set[str] = set()  # those that a record waits for
        self.namespace = Namespace(options.fork_depth_max)
        self.subscriptions = Subscriptions(self.namespace.by_key)
        self.handles = HandleTable(disk, options.handles_max)
        self.proofs = Proofs(disk, self.handles, options.proof_bytes_max)
        self.journal: JournalWriter
        self.catalog: CatalogWriter
        self._locks = locks
        self.applied_lsn = 0
        self.applied_id = 0
        self.placements: dict[int, log.Placement] = {}
        self.hot: dict[int, list[fmt.StoredFrame]] = {}
        self.hot_bytes = 0
        # What the next checkpoint has to record.
        self.dirty: dict[int, None] = {}
        self.removed: dict[int, None] = {}
        self.trimmed: dict[int, None] = {}
        self.dirty_buckets: dict[str, None] = {}
        self.outdated_rows = 0
        self.unsynced_files: dict[str, None] = {}
        self.unsynced_directories: dict[str, None] = {}
        # Blobs that others took the place of, by stream; and whether nobody writes any yet.
        self.superseded: dict[int, list[str]] = {}
        self.opening = True
        # How many blobs are on their way that no record names yet, by stream.
        self.uploads: dict[int, int] = {}
        # Streams that must keep their detail (an actor is at work), and readers' claims on files.
        self.awake: set[int] = set()
        self.damaged: dict[int, None] = {}  # streams that are refused
        self.unwritable: dict[int, Unwritable] = {}  # take no records: their files take none
        self.failed_reads = 0  # the disk did not hand out bytes; nobody is refused for it
        self.pins: dict[int, int] = {}

    # --- writing ---

    def stage(self, record: Record, payload: Data, lsn: int) -> fmt.StoredFrame:
        """Prepare a decided record for the journal: the record ``lsn`` of all that there are."""
        stream, start = record.stream, record.start
        return fmt.StoredFrame(
            stream,
            start,
            record.size,
            record.time_ms,
            record.ordinal,
            payload_sum(payload, stream, start),
            lsn,
            record.header(),
            payload,
        )

    def commit(self, batch: list[tuple[Record, Data]]) -> None:
        """Make a batch durable and apply it, all at once: for callers without an event loop."""
        self.declare()
        first = self.journal.next_lsn
        frames = [self.stage(*drafted, lsn) for lsn, drafted in enumerate(batch, first)]
        self.journal.commit(frames, self.journal.encode(frames))
        for (record, _), frame in zip(batch, frames, strict=True):
            self.applied(record, frame)

    def extend(self, extension: str) -> None:
        """Have an extension of the format named before the next batch is written."""
        if extension not in self.extensions:
            self.wanted.add(extension)

    def declare(self) -> None:
        """Name the extensions that are wanted, durably; in the thread that writes the journal."""
        if not self.wanted:
            return
        names = self.extensions | self.wanted
        self._locks.append(replace_identity(self.disk, self.uuid, names))
        self.disk.sync_directory("")
        self.extensions = names
        self.wanted -= names

    def applied(self, record: Record, frame: fmt.StoredFrame) -> list[Stream]:
        """Fold a committed record into the state; readers may see it from here on.

        Returns the streams that ceased to exist by it.
        """
        assert frame.lsn == self.applied_lsn + 1, "records are applied in the order of their lsn"
        self.applied_lsn = frame.lsn
        return self.fold_in(record, frame)

    def fold_in(self, record: Record, frame: fmt.StoredFrame) -> list[Stream]:
        """Fold a record into the state that is the next one of its stream."""
        lsn = frame.lsn
        if type(record) is Append:  # nearly always; and isinstance is slow where it says no
            stream_id = record.stream
            stream = self.namespace.by_id[stream_id]
            apply(stream, record, lsn)
            self.dirty[stream_id] = None
            self.keep(frame)
            if stream.links is not None and record.size:
                self.subscriptions.appended(stream)
            return []
        if isinstance(record, SubscriptionRecord):
            self.subscriptions.apply(record)
            return []
        before = None
        if isinstance(record, Publish | Delete):
            before = self.namespace.by_id[record.stream].snapshot
        ended = self.namespace.apply(record, lsn)
        for stream in ended:
            self._forget(stream)
            self.subscriptions.ended(stream)
        if record.stream in self.namespace.by_id:
            self.dirty[record.stream] = None
            if not isinstance(record, Touch):
                self._keep_rare(record, frame, before)
        elif isinstance(record, BucketChange):
            self.dirty_buckets[record.bucket] = None
        return ended

    def keep(self, frame: fmt.StoredFrame) -> None:
        """Keep a frame in memory until it is in the stream's files."""
        frames = self.hot.get(frame.stream)
        if frames is None:
            self.hot[frame.stream] = [frame]
        else:
            frames.append(frame)
        self.hot_bytes += hot_cost(frame)

    def _keep_rare(self, record: Record, frame: fmt.StoredFrame, before: Snapshot | None) -> None:
        stream = record.stream
        if isinstance(record, Create):
            self.subscriptions.created(self.namespace.by_id[stream])
            self.applied_id = max(self.applied_id, stream)
            self.placements[stream] = log.placement_at(record.start)
        elif isinstance(record, Publish | Delete | Retain):
            # A deletion that is kept for forks: what none of them reads goes, too.
            self.trimmed[stream] = None
            self._pass_over(before)
            self._read_less(self.namespace.by_id[stream])
            if isinstance(record, Delete):
                self.subscriptions.ended(self.namespace.by_id[stream])
        self.keep(frame)

    def _pass_over(self, blob: Snapshot | None) -> None:
        """Note that one stream less shows a blob; the next checkpoint sees whether any still does.

        Its owner need not be the stream: a fork shows its source's.
        """
        if blob is not None and blob.owner in self.namespace.by_id:
            path = blob_of(blob).path
            self.superseded.setdefault(blob.owner, []).append(path)
            self.trimmed[blob.owner] = None

    def _forget(self, stream: Stream) -> None:
        """Drop what is kept of a stream that ceased to exist; its files go with a checkpoint."""
        for frame in self.hot.pop(stream.id, ()):
            self.hot_bytes -= hot_cost(frame)
        self.placements.pop(stream.id, None)
        self.dirty.pop(stream.id, None)
        self.removed[stream.id] = None
        self.damaged.pop(stream.id, None)
        self.unwritable.pop(stream.id, None)
        self._pass_over(stream.snapshot)
        self._read_less(stream)

    def _read_less(self, stream: Stream) -> None:
        """Note that a stream reads less of those it was forked from: they may keep less for it.

        One that is there and has never been cut keeps all that is its own or above it, anyway.
        """
        by_id = self.namespace.by_id
        source = by_id.get(stream.source)
        while source is not None:
            self.trimmed[source.id] = None
            if not source.gone and source.floor == 0:
                return
            source = by_id.get(source.source)

    def begin_upload(self, stream: int) -> None:
        """Note that a blob is on its way. The journal has spoken of the stream just before.

        So a crash cannot leave a blob that nobody looks for: a replay finds the record, and a
        checkpoint that passes it names the stream in its commit.
        """
        self.uploads[stream] = self.uploads.get(stream, 0) + 1

    def end_upload(self, stream: int, discarded: str | None = None) -> None:
        """Note that a blob is named by a record, or that this file is of no use to anybody."""
        self.uploads[stream] -= 1
        if not self.uploads[stream]:
            del self.uploads[stream]
        if discarded is None:
            return
        if stream in self.namespace.by_id:
            self.superseded.setdefault(stream, []).append(discarded)
            self.trimmed[stream] = None
        else:
            self.removed[stream] = None  # the upload may have made its directory once more

    def rotation_due(self) -> bool:
        """Tell whether the journal file is full."""
        return self.journal.length >= self.options.journal_bytes_max

    # --- detail ---

    def needs_loading(self, stream: Stream) -> bool:
        """Tell whether the stream's detail is on disk only."""
        return stream.detail is None and not stream.plain

    def load_detail(self, stream: Stream) -> Detail:
        """Read a stream's detail from its index; blocks. The caller gives it to the stream."""
        place = self.placements[stream.id]
        detail, tail = read_detail(self.disk, stream.id, place)
        if tail != place.flushed:
            path = fmt.index_path(stream.id, place.base)
            raise CorruptDataError(
                path, place.index_bytes, f"the index ends at {tail}, not {place.flushed}"
            )
        return detail

    def rest(self, stream: Stream) -> None:
        """Let a stream go to rest: its index keeps what only writers need."""
        if stream.id not in self.awake and not self.hot.get(stream.id):
            stream.detail = None

    # --- reading ---

    def incarnation(self, stream: Stream) -> str:
        """Return the id of this life of the stream's name: the same over restarts and restores."""
        return fmt.incarnation(self.uuid, stream.id, stream.created_ms, stream.key)

    def view(self, stream: Stream) -> View:
        """Return the stream's committed bytes as of now."""
        if stream.damage:
            raise StreamDamagedError(stream.damage)
        hot, places = self.hot, self.placements
        if not stream.source:
            key, low = stream.id, stream.fork_position
            own = Level(key, low, stream.tail, places[key], tuple(hot.get(key, ())))
            return View(self.disk, self.proofs, [own], stream)
        levels = [
            Level(holder.id, low, high, places[holder.id], tuple(hot.get(holder.id, ())))
            for holder, low, high in self.namespace.lineage.parts(stream)
        ]
        levels.reverse()
        return View(self.disk, self.proofs, levels, stream)

    def reading(self, stream: Stream) -> AbstractContextManager[View]:
        """Lend a view whose files stay until the with block ends, whatever is deleted meanwhile."""
        view = self.view(stream)
        held = {level.stream for level in view.levels}
        if stream.snapshot is not None:
            held.add(stream.snapshot.owner)
        return _Holding(self, held, view)

    def holding(self, held: Collection[int]) -> AbstractContextManager[None]:
        """Keep the files of streams until the with block ends; damage met in it is marked.

        A disk that fails is counted, and that is all: what it did not hand out may be whole.
        """
        return _Holding(self, held, None)

    # --- damage ---

    def note_damage(self, found: CorruptDataError) -> None:
        """Refuse the stream whose file does not verify, from now on, until it does.

        That stream may be an ancestor of the one that was read. Only the first finding is told.
        """
        stream = self.namespace.by_id.get(fmt.stream_of(found.file) or 0)
        if stream is not None and not stream.damage:
            self._refuse(stream, f"{MET}{found}")

    def mark_damaged(self, stream: Stream, reason: str) -> None:
        """Refuse a stream from now on until a repair: something of it may be lost."""
        if not stream.damage or stream.provisional or stream.aside_lsn is not None:
            self._refuse(stream, reason)

    def _refuse(self, stream: Stream, reason: str) -> None:
        """Refuse a stream; its row keeps why."""
        logger.error("stream %016x is damaged: %s", stream.id, reason)
        stream.damage = f"{reason}; run `dsadmin verify` and `dsadmin repair`"
        self.damaged[stream.id] = None
        self.dirty[stream.id] = None

    def note_unwritable(self, stream: int, error: WriteFailedError) -> int:
        """Note that a stream's files refused a checkpoint; return how many they refused so far."""
        if not is_of_one_file(error):
            return 0
        before = self.unwritable.get(stream)
        if before is None:
            logger.error("stream %016x takes no writes: %s", stream, error)
            self.unwritable[stream] = Unwritable(error)
        else:
            self.unwritable[stream] = before._replace(error=error, tries=before.tries + 1)
        return self.unwritable[stream].tries

    def check(self, stream: Stream) -> scrub.Check:
        """Return the check of all that anybody may read of a stream's files, piece by piece."""
        blobs = {blob_of(blob) for blob in self.namespace.snapshots_of(stream.id)}
        low, place = self.namespace.retained_from(stream), self.placements[stream.id]
        return scrub.check_stream(self.disk, stream.id, place, low, blobs)

    def take_back_damage(self, stream: Stream) -> None:
        """Serve a stream again whose damage was provisional: all of its files have verified."""
        assert stream.provisional, "only a repair mends what was set aside"
        logger.warning("stream %016x verifies again and is served: %s", stream.id, stream.damage)
        stream.damage = ""
        del self.damaged[stream.id]
        self.dirty[stream.id] = None
        self.handles.forget(fmt.stream_dir(stream.id))  # its files may have been put back

    # --- state for the files ---

    def state_frame(self, stream: Stream) -> fmt.StoredFrame:
        """Return the state of a stream whose detail is at hand."""
        return state_frame(stream, stream.loaded())

    def release(self) -> None:
        """Give every handle back; nothing is written."""
        self.handles.release()
        self.journal.release()
        for handle in self._locks:
            self.disk.release(handle)


class _Holding(Generic[T]):
    """Keeps the files of streams for a with block, which is given ``lent``.

    A class and not a generator: every read comes by here.
    """

    __slots__ = ("_engine", "_held", "_lent")

    def __init__(self, engine: Engine, held: Collection[int], lent: T) -> None:
        self._engine = engine
        self._held = held
        self._lent = lent

    def __enter__(self) -> T:
        pins = self._engine.pins
        for held_id in self._held:
            pins[held_id] = pins.get(held_id, 0) + 1
        return self._lent

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pins = self._engine.pins
        for held_id in self._held:
            pins[held_id] -= 1
            if not pins[held_id]:
                del pins[held_id]
        if exc is None:
            return
        if isinstance(exc, CorruptDataError):
            self._engine.note_damage(exc)
        elif isinstance(exc, ReadFailedError):
            self._engine.failed_reads += 1


def state_frame(stream: Stream, detail: Detail) -> fmt.StoredFrame:
    """Return a stream's whole state as an index keeps it."""
    blob = cbor2.dumps([stream.row(), detail.row()])
    return fmt.StoredFrame(
        stream.id, stream.tail, 0, stream.written_ms, stream.messages, 0, stream.lsn, blob, b""
    )


def read_detail(disk: Disk, stream: int, place: log.Placement) -> tuple[Detail, int]:
    """Return a stream's detail and tail, folded from its index's last state and what follows."""
    if not place.made:
        return Detail(), place.base
    file = IndexFile(stream, place.base)
    with faults_of(file.path), file.opened(disk, place.index_bytes) as reader:
        try:
            folded = fold(reader, place.state_at)
        except CorruptDataError as exc:
            # The state may be all that is damaged, and it says nothing the records do not.
            folded = fold(reader, 0, without_state=place.state_at)
            logger.warning("%s; the state was rebuilt from the records before it", exc)
    return folded.loaded(), folded.tail


def fold(reader: IndexReader, state_at: int, *, without_state: int = 0) -> Stream:
    """Return the stream an index describes, from the state at ``state_at`` (0: from the head).

    The state at ``without_state`` is passed over, verified or not.
    """
    folded: Stream | None = None
    start = state_at or HEADER_BYTES
    for entry in reader.entries(start, passing_over=without_state):
        if entry.is_state:
            row, detail = cbor2.loads(entry.frame.header)
            folded = Stream.from_row(row)
            folded.detail = Detail.from_row(detail)
            continue
        record = record_of(entry.frame)
        if isinstance(record, Create):
            folded = Stream(record)
            folded.lsn = entry.frame.lsn
            folded.detail = Detail()
        elif folded is not None and isinstance(record, Append | Publish | Touch | Retain):
            apply(folded, record, entry.frame.lsn)
        elif folded is not None and isinstance(record, Delete):
            folded.gone = True
            folded.lsn = entry.frame.lsn
    if folded is None:
        raise CorruptDataError(reader.path, state_at, "the index holds no state")
    return folded
