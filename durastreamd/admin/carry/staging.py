"""Writing streams into a data directory from outside the journal: all of them at once, or none.

What comes in may be larger than memory and than any journal, so it goes straight to segments and
indexes, the same bytes that a flush would write; one commit of the catalogue then makes all of it
visible. Until that commit nothing refers to the new files, and whatever ends the process before it
leaves a directory in which nothing was imported:

    new streams     their ids are reserved by a commit of the catalogue that also orders their
                    removal; the next start of anything that opens the directory carries it out
    longer streams  a touch of the stream is journalled first; so the next start cuts its files back
                    to what the catalogue says, as after any crash during a flush

Records need lsns, which the journal numbers without a gap. So an import writes *marks*, the records
that say nothing, as many as it has records, and takes their lsns.
"""

from collections.abc import Iterator
from typing import NamedTuple

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.errors import StorageError, WriteFailedError
from durastreamd.model.buckets import Bucket, bucket_of
from durastreamd.model.records import Append, Create, Mark, Record, Touch
from durastreamd.model.stream_state import Detail, Stream, apply
from durastreamd.protocol import Data
from durastreamd.storage import format as fmt, log
from durastreamd.storage.catalog import Commit
from durastreamd.storage.checksum import payload_sum

# Marks are written in batches that grow to this: six megabytes of journal, a tenth of a second.
_MARKS_MIN, _MARKS_MAX = 16, 65536
# What a stream gathers before it is written.
_GATHERED_BYTES_MAX = 4 * 1024 * 1024
_GATHERED_RECORDS_MAX = 4096


class Totals(NamedTuple):
    """How much was brought in."""

    streams: int
    messages: int
    records: int
    data_bytes: int


class Staging:
    """An import under way, in a directory that was just opened and that nobody else has."""

    def __init__(self, engine: Engine, now_ms: int) -> None:
        self.engine = engine
        self._now_ms = now_ms
        self._reserved: list[int] = []
        self._free_ids: Iterator[int] = iter(())
        self._lsns: Iterator[int] = iter(())
        self._marks = _MARKS_MIN
        self._made: list[StreamWriter] = []
        self._longer: list[StreamWriter] = []
        self._buckets: dict[str, int] = {}
        self._finishing = False
        self.messages = 0
        self.records = 0
        self.data_bytes = 0

    # --- numbers ---

    def reserve(self, count: int) -> None:
        """Take ids for so many new streams, durably: they will never be given again."""
        space = self.engine.namespace
        self._reserved = list(range(space.next_id, space.next_id + count))
        self._free_ids = iter(self._reserved)
        space.next_id += count
        self._protect()

    def _protect(self) -> None:
        """Have the catalogue order the removal of what was not finished.

        Touches come before the commit and lie past it: at no moment is there none to be replayed.
        """
        engine = self.engine
        lsn = engine.applied_lsn
        for writer in self._longer:
            self._touch(writer)
        removals = [f"stream {number}" for number in self._reserved]
        commit = Commit(lsn, engine.journal.number, engine.namespace.next_id, removals)
        engine.catalog.append([], commit)

    def _touch(self, writer: "StreamWriter") -> None:
        """Journal that a stream is at work, so that the next start looks at its files."""
        stream = self.engine.namespace.by_id[writer.stream.id]
        touch = Touch(stream.id, stream.tail, stream.accessed_ms, stream.messages)
        self.engine.commit([(touch, b"")])

    def next_lsn(self) -> int:
        """Return an lsn for a record: that of a mark."""
        lsn = next(self._lsns, 0)
        if not lsn:
            self._lsns = iter(self._write_marks())
            lsn = next(self._lsns)
        return lsn

    def _write_marks(self) -> list[int]:
        engine = self.engine
        if engine.rotation_due():
            engine.journal.rotate()
            self._protect()
            cp.retire_journal(engine.disk, engine.journal.number)
        first = engine.journal.next_lsn
        marks: list[tuple[Record, Data]] = [(Mark(self._now_ms), b"")]
        engine.commit(marks * self._marks)
        self._marks = min(self._marks * 2, _MARKS_MAX)
        return list(range(first, engine.journal.next_lsn))

    # --- streams ---

    def make(self, stream: Stream) -> "StreamWriter":
        """Begin a new stream; its id is given here."""
        stream.id = next(self._free_ids)
        writer = StreamWriter(self, stream, log.placement_at(stream.fork_position), begun=False)
        self._made.append(writer)
        return writer

    def lengthen(self, stream: Stream) -> "StreamWriter":
        """Go on after the tail of a stream that is there."""
        engine = self.engine
        copy = Stream.from_row(stream.row())
        copy.detail = Detail() if stream.plain else engine.load_detail(stream)
        writer = StreamWriter(self, copy, engine.placements[stream.id], begun=True)
        self._longer.append(writer)
        self._touch(writer)
        return writer

    def make_bucket(self, name: str, created_ms: int) -> bool:
        """Have a bucket, old or new; tell whether it is new."""
        new = name not in self.engine.namespace.buckets and name not in self._buckets
        if new:
            self._buckets[name] = created_ms
        return new

    # --- the end ---

    def finish(self) -> Totals:
        """Make everything durable and visible: one commit of the catalogue."""
        self._finishing = True
        engine = self.engine
        space = engine.namespace
        for name, created_ms in self._buckets.items():
            space.buckets[name] = Bucket(created_ms)
            engine.dirty_buckets[name] = None
        for writer in self._made:
            assert not bucket_of(writer.stream.key) or bucket_of(writer.stream.key) in space.buckets
            space.add(writer.stream)
        for writer in self._longer:
            space.by_id[writer.stream.id] = space.by_key[writer.stream.key] = writer.stream
        for writer in (*self._made, *self._longer):
            engine.placements[writer.stream.id] = writer.placement
            engine.dirty[writer.stream.id] = None
        engine.applied_id = max(engine.applied_id, space.next_id - 1)
        engine.journal.rotate()
        before = engine.catalog.checkpoint
        try:
            cp.run(cp.checkpoint(engine))
        except WriteFailedError:
            # What comes after the commit (old journal files go) is left to the next start.
            if engine.catalog.checkpoint == before:
                raise
        streams = len(self._made) + len(self._longer)
        return Totals(streams, self.messages, self.records, self.data_bytes)

    def abandon(self) -> None:
        """Take everything back; if that fails, too, the next start does it.

        Not once the end has begun: the state in memory then includes what was to be imported.
        """
        engine = self.engine
        if self._finishing:
            return
        try:
            for writer in self._longer:
                log.cut_back(engine.disk, writer.stream.id, engine.placements[writer.stream.id])
            engine.unsynced_files.clear()
            engine.unsynced_directories.clear()
            engine.removed.update(dict.fromkeys(self._reserved))
            engine.applied_id = max(engine.applied_id, engine.namespace.next_id - 1)
            engine.journal.rotate()
            cp.run(cp.checkpoint(engine))
        except (StorageError, OSError):
            return


class StreamWriter:
    """Writes one stream. ``stream`` is a state of its own that nobody else sees until the end."""

    def __init__(
        self, staging: Staging, stream: Stream, placement: log.Placement, *, begun: bool
    ) -> None:
        self._staging = staging
        self._engine = staging.engine
        self.stream = stream
        self.placement = placement
        self._begun = begun
        self._frames: list[fmt.StoredFrame] = []
        self._gathered = 0
        limit = self._engine.options.segment_bytes_max
        self._gathered_max = min(_GATHERED_BYTES_MAX, limit)

    def append(self, record: Append, payload: bytes) -> None:
        """Add a record, which must go on where the stream ends."""
        if not self._begun:
            self._begin(record.time_ms)
        lsn = self._staging.next_lsn()
        apply(self.stream, record, lsn)
        self._gather(record, payload, lsn)
        self._staging.messages += record.count
        self._staging.records += 1
        self._staging.data_bytes += record.size
        full = len(self._frames) >= _GATHERED_RECORDS_MAX
        if full or self._gathered >= self._gathered_max:
            self._flush(last=False)

    def _gather(self, record: Append | Create, payload: bytes, lsn: int) -> None:
        total = payload_sum(payload, record.stream, record.start)
        place = (record.stream, record.start, record.size, record.time_ms, record.ordinal)
        self._frames.append(fmt.StoredFrame(*place, total, lsn, record.header(), payload))
        self._gathered += record.size

    def _begin(self, time_ms: int) -> None:
        """Write how the stream begins: its create record, or the state its records go on from."""
        stream = self.stream
        self._begun = True
        stream.lsn = self._staging.next_lsn()
        written, stream.written_ms = stream.written_ms, time_ms
        if stream.tail == stream.fork_position:
            self._gather(_create(stream, min(time_ms, stream.created_ms)), b"", stream.lsn)
        else:
            state = self._engine.state_frame(stream)
            log.make_directories(self._engine.disk, stream.id)
            self.placement = log.begin_segment(self._engine.disk, stream.id, stream.tail, state)
            self._written([fmt.index_path(stream.id, stream.tail)])
        stream.written_ms = written

    def end(self) -> None:
        """Write what is left, and the stream's state as it is now."""
        if not self._begun:
            self._begin(self.stream.written_ms)
        self._flush(last=True)

    def _flush(self, *, last: bool) -> None:
        place = self.placement
        rolls = not last and (
            place.segment_bytes + self._gathered >= self._engine.options.segment_bytes_max
        )
        state = self._engine.state_frame(self.stream) if last or rolls else None
        job = log.FlushJob(self.stream.id, place, self._frames, state, rolls)
        flushed = log.flush(self._engine.disk, job)
        self.placement = flushed.placement
        self._written(flushed.files)
        self._frames, self._gathered = [], 0

    def _written(self, files: list[str]) -> None:
        directory = fmt.stream_dir(self.stream.id)
        above = directory.rpartition("/")[0]
        self._engine.unsynced_files.update(dict.fromkeys(files))
        self._engine.unsynced_directories.update(dict.fromkeys((directory, above, fmt.STREAMS_DIR)))


def _create(stream: Stream, time_ms: int) -> Create:
    """Return a create record without bytes that begins a stream as it is."""
    return Create(
        stream.id,
        stream.tail,
        0,
        time_ms,
        stream.messages,
        0,
        None if stream.json else [],
        stream.key,
        stream.content_type,
        stream.ttl_ms,
        stream.expires_ms,
        source=stream.source,
        anchor=stream.anchor,
        sub=stream.sub,
        floor=stream.floor,
        snapshot=stream.snapshot,
    )
