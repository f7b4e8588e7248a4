"""Opening a data directory: from whatever a stop left behind to a state that may be served.

The order, which is also the order of trust:

    1. the lock, then the identity file: is this directory ours?
    2. the catalogue's last commit: every stream as of the last checkpoint.
    3. the journal from the file the commit names: replayed in memory, by the table of
       ``storage.recovery``; a stream's files are cut back to the catalogue before its first record.
    4. what was torn or set aside is copied to quarantine/.
    5. a checkpoint: everything replayed is written to the files anew and synced, and the old
       journal goes. Nothing read from the page cache is taken for durable without that.

Only after 5 is anything served. Until the checkpoint's commit is durable nothing has been removed,
so a crash during recovery is met by the same recovery again.

After a kill what is read may be in the page cache alone. The catalogue, the journal and the names
of both are therefore synced as they are read: a later file must never speak of something that a
power cut can still take away. After a sync that failed even that says nothing, so the catalogue's
last checkpoint is written again; of the journal nothing needs to be there once 5 is done.

Damage that concerns one stream marks that stream, for good, in its row; its records are kept in
quarantine/ and every other stream is served. A stream that was met damaged while it was served
(``Stream.provisional``) is replayed like any other: that mark may be taken back, and then nothing
of the stream may be missing. A file of a stream that cannot be opened or read
refuses it, too, since a record must be folded into it now or not at all; but the mark says that all
of its records are set aside (``Stream.aside_lsn``), and the next opening takes them up if it can.
Errors of the machine (no more file handles, no room, an unreadable journal) stop the opening: they
say nothing about a stream.
"""

import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine, hot_cost
from durastreamd.engine.options import EngineOptions
from durastreamd.engine.view import record_of
from durastreamd.errors import CorruptDataError, ReadFailedError
from durastreamd.model.buckets import Bucket
from durastreamd.model.records import (
    MARK_STREAM,
    BucketChange,
    Create,
    Delete,
    Mark,
    Publish,
    Record,
    Retain,
    Touch,
    UnreadableRecordError,
)
from durastreamd.model.stream_state import Stream, aside_mark
from durastreamd.model.subscription_records import SubscriptionRecord
from durastreamd.storage import aside, catalog, datadir, format as fmt, journal, log, scan
from durastreamd.storage.disk import NO_FAULTS, Disk, sync_file, write_new_file
from durastreamd.storage.recovery import JournalWalk, Replay, SetAside, Torn
from durastreamd.storage.rows import BucketRow, FactRow, StreamRow, latest

logger = logging.getLogger(__name__)

# Told while opening goes on: what is being done, how much of it is done, of how much.
Progress = Callable[[str, int, int], None]
_PROGRESS_EVERY = 1024  # records


class Report(NamedTuple):
    """What opening found and did."""

    replayed: int
    replayed_bytes: int
    torn_bytes: int
    damaged: list[str]
    cases: list[str]


def open_engine(
    disk: Disk,
    options: EngineOptions,
    make_uuid: Callable[[], bytes],
    now_ms: int,
    *,
    create: bool = False,
    progress: Progress = lambda _what, _done, _total: None,
) -> tuple[Engine, Report]:
    """Open a data directory, making it first if asked and if it was never in use.

    The lock comes first: whoever has it makes the directory, and nobody else looks into it.
    """
    held = [disk.lock_directory()]
    # Replay makes many small objects that all stay; the collector would only walk them again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if create and datadir.is_new(disk):
            _make(disk, make_uuid())
        identity = datadir.read_identity(disk)
        # Older versions know of this lock alone.
        held.append(disk.lock(fmt.IDENTITY_FILE))
        engine = Engine(disk, options, identity, held)
        report = _Opening(engine, progress).run()
        _renew_lifetimes(engine, now_ms)
    except BaseException:
        for handle in held:
            disk.release(handle)
        raise
    finally:
        if collecting:
            gc.enable()
    return engine, report


def _renew_lifetimes(engine: Engine, now_ms: int) -> None:
    """Give sliding lifetimes the fraction that reads before the stop may have earned them.

    Reads are journalled coarsely, so what is on disk may be older than the last read. A stream
    may live a little longer for it, never shorter.
    """
    for stream in engine.namespace.by_id.values():
        if stream.ttl_ms >= 0:
            earned = stream.accessed_ms + stream.ttl_ms // engine.options.touch_fraction
            stream.read_ms = max(stream.read_ms, min(earned, now_ms))


def _make(disk: Disk, uuid: bytes) -> None:
    """Lay out a new data directory; the identity file comes last and makes it one."""
    datadir.make_folders(disk)
    first = scan.first_lsn(uuid)
    journal.JournalWriter(disk, uuid, 1, journal.FileHead(first, first - 1)).release()
    catalog.CatalogWriter.create(disk, uuid, catalog.Commit(first - 1, 1, 1, []))
    datadir.write_identity(disk, uuid)


class _Opening:
    """The work of opening, step by step."""

    def __init__(self, engine: Engine, progress: Progress) -> None:
        self._engine = engine
        self._progress = progress
        self._disk = engine.disk
        self._touched: set[int] = set()
        self._suspects: set[int] = set()  # streams that may have blobs which nothing names
        self._lost: dict[int, list[fmt.StoredFrame]] = {}
        self._unread: dict[int, str] = {}  # streams whose files the disk did not hand out, and why
        self._torn: list[Torn] = []
        self._replayed = 0
        self._replayed_bytes = 0

    def run(self) -> Report:
        engine = self._engine
        self._progress("reading the catalogue", 0, 1)
        for directory in ("", fmt.CATALOG_DIR, fmt.JOURNAL_DIR):
            self._disk.sync_directory(directory)
        loaded = catalog.load(self._disk, engine.uuid)
        catalog.secure(self._disk, loaded)
        self._load_rows(loaded)
        for stream in list(engine.namespace.by_id.values()):
            if stream.aside_lsn is not None:
                self._take_up(stream, stream.aside_lsn)
        files = self._journal_files(loaded.commit)
        engine.applied_lsn = loaded.commit.lsn
        walk = JournalWalk(engine.uuid, files, loaded.commit.lsn + 1, loaded.commit.lsn)
        total = sum(len(file.data) for file in files)
        for number, step in enumerate(walk.steps()):
            if number % _PROGRESS_EVERY == 0:
                self._progress("replaying the journal (bytes)", self._replayed_bytes, total)
            match step:
                case Replay():
                    self._replay(step, loaded.commit)
                case SetAside():
                    self._set_aside(step, loaded.commit)
                case Torn():
                    self._torn.append(step)
        engine.subscriptions.settle()
        self._quarantine()
        self._finish(loaded, files, walk.next_lsn)
        damaged = [stream.damage for stream in engine.namespace.by_id.values() if stream.damage]
        torn = sum(len(step.data) for step in self._torn)
        return Report(self._replayed, self._replayed_bytes, torn, damaged, walk.cases)

    # --- 2: the catalogue ---

    def _load_rows(self, loaded: catalog.Loaded) -> None:
        engine = self._engine
        rows = latest(loaded.rows)
        for row in rows.values():
            if isinstance(row, BucketRow):
                engine.namespace.buckets[row.subject] = Bucket(row.created_ms)
        for row in rows.values():
            if isinstance(row, StreamRow):
                stream = Stream.from_row(row.fields)
                engine.namespace.add(stream)
                if stream.damage:
                    engine.damaged[stream.id] = None
                engine.placements[stream.id] = row.placement
        facts = [row for row in rows.values() if isinstance(row, FactRow)]
        engine.subscriptions.load((row.name, row.fields) for row in facts if row.fields is not None)
        engine.namespace.next_id = max(engine.namespace.next_id, loaded.commit.next_id)
        engine.applied_id = loaded.commit.next_id - 1
        live = len(engine.namespace.by_id) + engine.subscriptions.link_count
        engine.outdated_rows = max(len(loaded.rows) - live, 0)
        engine.catalog = catalog.CatalogWriter(
            self._disk, engine.uuid, loaded.number, loaded.length, loaded.checkpoint
        )
        if loaded.torn:
            logger.warning("catalogue: %d bytes of an unfinished checkpoint cut", len(loaded.torn))

    def _journal_files(self, commit: catalog.Commit) -> list[journal.JournalFile]:
        numbers = [n for n in journal.journal_numbers(self._disk) if n >= commit.journal_first]
        if numbers[:1] != [commit.journal_first]:
            path = fmt.journal_path(commit.journal_first)
            raise CorruptDataError(path, 0, "the journal file is missing; run `dsadmin verify`")
        files: list[journal.JournalFile] = []
        for number in numbers:
            if files and number != files[-1].number + 1:
                path = fmt.journal_path(files[-1].number + 1)
                raise CorruptDataError(path, 0, "the journal file is missing; run `dsadmin verify`")
            files.append(journal.read_journal_file(self._disk, self._engine.uuid, number))
            sync_file(self._disk, fmt.journal_path(number))
        return files

    # --- 3: the journal ---

    def _replay(self, step: Replay, commit: catalog.Commit) -> None:
        engine = self._engine
        frame = step.found.frame
        if frame.lsn <= commit.lsn:
            return
        where = f"{fmt.journal_path(step.number)}:{step.found.position}"
        try:
            record = record_of(frame)
        except UnreadableRecordError as exc:
            self._mark_damaged(frame.stream, f"{where}: {exc}")
            self._skip(frame)
            return
        stream = engine.namespace.by_id.get(frame.stream)
        if isinstance(record, Touch | Publish | Retain):
            self._suspects.add(frame.stream)
        if not self._applies(record, stream, frame.lsn, commit):
            self._skip(frame, keep=False)
            return
        if isinstance(record, Create) and not self._clear(frame):
            self._skip(frame)
            return
        if not self._prepare(stream, record, where):
            self._skip(frame)
            return
        self._replayed += 1
        self._replayed_bytes += step.found.end - step.found.position
        before = stream.lsn if stream is not None else 0
        engine.applied(record, frame)
        if stream is not None and frame.stream in self._lost:
            stream.lsn = before  # a deletion: what is set aside of the stream comes after its row
        if engine.hot_bytes > engine.options.hot_bytes_max:
            cp.run(cp.flush(engine))

    def _applies(
        self, record: Record, stream: Stream | None, lsn: int, commit: catalog.Commit
    ) -> bool:
        """Tell whether a record is news: rows are taken at different moments of a checkpoint."""
        if isinstance(record, BucketChange | Mark | SubscriptionRecord):
            return True
        if isinstance(record, Create):
            return record.stream >= commit.next_id
        return stream is not None and lsn > stream.lsn

    def _prepare(self, stream: Stream | None, record: Record, where: str) -> bool:
        """Make a stream ready for its first record since the checkpoint; False if it is damaged."""
        if stream is None or (isinstance(record, Delete) and not record.soft):
            return True
        always = isinstance(record, Delete)  # deleted stays deleted, whatever became of its files
        if stream.damage and not stream.provisional:
            return always
        if not self._wake(stream):
            return always
        if record.start != stream.tail:
            detail = f"the record starts at {record.start}, the tail is {stream.tail}"
            self._mark_damaged(stream.id, f"{where}: {detail}")
            return always
        return True

    def _clear(self, frame: fmt.StoredFrame) -> bool:
        """Remove what a flush before the crash left of a new stream: the journal has it, too.

        What cannot be removed is in its way; then the stream is there by its name, and damaged.
        """
        self._touched.add(frame.stream)
        try:
            log.cut_back(self._disk, frame.stream, log.placement_at(frame.start))
        except (CorruptDataError, ReadFailedError) as exc:
            self._restore_name(frame)
            self._mark_damaged(frame.stream, str(exc))
            return False
        return True

    def _wake(self, stream: Stream) -> bool:
        """Cut a stream's files back to the catalogue, once, and have its detail loaded."""
        engine = self._engine
        try:
            if stream.id not in self._touched:
                self._touched.add(stream.id)
                if log.cut_back(self._disk, stream.id, engine.placements[stream.id]):
                    engine.unsynced_directories[fmt.stream_dir(stream.id)] = None
            if engine.needs_loading(stream):
                stream.detail = engine.load_detail(stream)
        except CorruptDataError as exc:
            self._mark_damaged(stream.id, str(exc))
            return False
        except ReadFailedError as exc:
            self._mark_damaged(stream.id, str(exc))
            self._unread[stream.id] = str(exc)
            return False
        return True

    def _skip(self, frame: fmt.StoredFrame, *, keep: bool = True) -> None:
        """Pass a record by; one that cannot be applied is kept."""
        self._engine.applied_lsn = frame.lsn
        if keep:
            self._lost.setdefault(frame.stream, []).append(frame)

    def _take_up(self, stream: Stream, last: int) -> None:
        """Apply the records of a stream that were set aside until its files could be used again.

        All of them, or none: then it is refused as before.
        """
        engine, place = self._engine, self._engine.placements[stream.id]
        mark, stream.damage = stream.damage, ""
        # A stream that has no files yet is in its row from its first record on, which is not there.
        bare = not place.made
        try:
            frames = aside.read(self._disk, engine.uuid, stream.id, stream.lsn - bare, last)
            if frames[0].start != (place.base if bare else stream.tail):
                path = aside.path_of(stream.id, last)
                raise CorruptDataError(path, 0, f"the records do not begin at {stream.tail}")
            if not self._wake(stream):
                raise ReadFailedError(fmt.stream_dir(stream.id), stream.damage)
            records = [(record_of(frame), frame) for frame in frames]
        except (CorruptDataError, ReadFailedError, UnreadableRecordError) as exc:
            logger.warning("stream %016x stays refused: %s", stream.id, exc)
            self._unread.pop(stream.id, None)
            stream.damage = mark
            return
        logger.warning("stream %016x is served again: %s", stream.id, mark)
        engine.damaged.pop(stream.id, None)
        engine.dirty[stream.id] = None
        if bare:
            engine.keep(frames[0])
        for record, frame in records[bare:]:
            engine.fold_in(record, frame)

    def _set_aside(self, step: SetAside, commit: catalog.Commit) -> None:
        engine = self._engine
        where = fmt.journal_path(step.number)
        reason = f"frame {step.lsn} does not verify (case {step.case})"
        if step.frame is not None and step.stream not in engine.namespace.by_id:
            self._restore_name(step.frame)
        engine.applied_lsn = step.lsn
        if step.stream in engine.namespace.by_id:
            self._mark_damaged(step.stream, f"{where}:{step.position}: {reason}")
        elif step.stream == MARK_STREAM:
            return
        elif step.stream >= commit.next_id or not step.stream:
            # The frame that made a stream or a bucket: its name is lost, so it cannot be refused.
            raise CorruptDataError(where, step.position, f"{reason} and made a stream or bucket")

    def _restore_name(self, frame: fmt.StoredFrame) -> None:
        """A stream whose first bytes are lost but whose head is good is there, and damaged."""
        record = record_of(frame)
        if isinstance(record, Create):
            empty = frame._replace(payload=b"\0" * frame.size)
            self._engine.applied(record, empty)
            self._engine.hot_bytes -= hot_cost(frame)
            del self._engine.hot[frame.stream]

    def _mark_damaged(self, stream_id: int, reason: str) -> None:
        stream = self._engine.namespace.by_id.get(stream_id)
        if stream is not None:
            self._engine.mark_damaged(stream, reason)
        else:
            logger.error("stream %016x is damaged: %s", stream_id, reason)

    # --- 4: quarantine ---

    def _quarantine(self) -> None:
        if self._torn or self._lost:
            self._disk.make_directory(fmt.QUARANTINE_DIR)
        for step in self._torn:
            logger.warning(
                "%s:%d: torn end, %d bytes never acknowledged (case %s)",
                fmt.journal_path(step.number),
                step.position,
                len(step.data),
                step.case,
            )
            if step.data:
                self._keep(f"{step.number:016d}.jnl@{step.position}.torn", step.data)
        for stream, frames in self._lost.items():
            aside.write(self._disk, self._engine.uuid, frames)
            self._mark_aside(stream, frames[-1].lsn)
        if self._torn or self._lost:
            self._disk.sync_directory(fmt.QUARANTINE_DIR)

    def _mark_aside(self, stream_id: int, last: int) -> None:
        """Let a later start take up what was set aside, unless more than that is amiss."""
        stream = self._engine.namespace.by_id.get(stream_id)
        if stream is None:
            return
        if stream.aside_lsn is not None:  # from before, and still so
            reason = stream.damage.partition(": ")[2].rpartition("; ")[0]
            stream.damage = aside_mark(last, reason)
            self._engine.dirty[stream_id] = None
        elif stream_id in self._unread and self._unread[stream_id] in stream.damage:
            stream.damage = aside_mark(last, self._unread[stream_id])

    def _keep(self, name: str, data: bytes) -> None:
        path = f"{fmt.QUARANTINE_DIR}/{name}"
        if self._disk.exists(path):
            self._disk.unlink(path)  # an earlier recovery was cut short while writing it
        write_new_file(self._disk, path, data)

    # --- 5: the checkpoint ---

    def _finish(
        self, loaded: catalog.Loaded, files: list[journal.JournalFile], next_lsn: int
    ) -> None:
        engine = self._engine
        number = files[-1].number + 1
        if not scan.is_drawn(next_lsn):
            next_lsn = scan.first_lsn(engine.uuid)  # numbered from 1, by an older version
        # Nothing replayed is claimed to be durable in the journal: the checkpoint makes it so.
        head = journal.FileHead(next_lsn, loaded.commit.lsn)
        engine.journal = journal.JournalWriter(self._disk, engine.uuid, number, head)
        engine.applied_lsn = next_lsn - 1
        for removal in loaded.commit.removals:
            self._repeat(removal)
        for stream in self._suspects & engine.namespace.by_id.keys():
            engine.trimmed[stream] = None
        self._find_orphans()
        steps = len(engine.dirty) // engine.options.slice_streams + 4  # about
        told = partial(self._progress, "writing a checkpoint (steps)")
        cp.run(cp.checkpoint(engine), lambda number: told(number, max(number, steps)))
        catalog.remove_superseded(self._disk, engine.catalog.number)
        engine.superseded.clear()
        engine.opening = False

    def _find_orphans(self) -> None:
        """Have directories removed whose streams have ended; this looks at no stream's own files.

        An id that was never given out is somebody's mistake, not a crash's: it is left alone, and
        no new stream gets it.
        """
        space, below = self._engine.namespace, self._engine.namespace.next_id
        for shard in self._disk.names(fmt.STREAMS_DIR):
            for name in self._names_of(f"{fmt.STREAMS_DIR}/{shard}"):
                path = f"{fmt.STREAMS_DIR}/{shard}/{name}"
                stream = fmt.stream_of(path)
                if stream is None or stream in space.by_id or fmt.stream_dir(stream) != path:
                    continue
                if stream < below:
                    self._engine.removed[stream] = None
                else:
                    logger.warning("stream %016x was never made, but has a directory", stream)
                    space.next_id = max(space.next_id, stream + 1)

    def _names_of(self, shard: str) -> list[str]:
        try:
            return self._disk.names(shard)
        except NotADirectoryError:
            return []  # not ours
        except OSError as exc:
            if exc.errno in NO_FAULTS:
                raise
            logger.warning("%s cannot be read: %s", shard, exc.strerror or exc)
            return []  # what has ended in it is removed by a later start

    def _repeat(self, removal: str) -> None:
        """Do a removal again that the last commit ordered; a crash may have come first."""
        kind, stream, *_ = removal.split()
        if kind == "stream" and int(stream) not in self._engine.namespace.by_id:
            self._engine.removed[int(stream)] = None
        elif int(stream) in self._engine.namespace.by_id:
            self._engine.trimmed[int(stream)] = None
