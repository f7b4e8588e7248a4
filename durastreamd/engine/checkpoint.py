"""Flushes and checkpoints: committed bytes on their way from memory and journal into the files.

Both are generators of *steps*. What runs between two yields touches state and is quick; what is
yielded is a job that touches only the disk and may take its time in a thread. A driver without an
event loop calls ``run``.

A checkpoint makes the journal behind it unnecessary:

    1. rotate the journal; C is the last lsn of the old file
    2. flush what is hot of every stream changed so far, a slice at a time
    3. sync those files and the names of new ones (one sync of the file system if they are many)
    4. append the changed rows and a commit to the catalogue, and sync it
    5. remove the journal files before the new one
    6. remove files of streams that ceased to exist, and segments that retention has passed

A crash between any two steps is harmless: until 4 is durable the old catalogue and the old
journal stand and describe everything; after it, 5 and 6 are repeated from the commit.

Rows are taken at slightly different moments while appends go on; each says with its lsn what it
includes, and replay leaves that out. Streams that began after step 1 are left to the next
checkpoint: an id below the commit's ``next_id`` that has no row is known to have ended.

A failed write anywhere leaves everything marked as it was, to be done again. A stream whose own
files refuse to be written is left behind after a few tries; nothing of it is lost (``parking``).
"""

import itertools
import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, TypeGuard

from durastreamd.engine import parking
from durastreamd.engine.engine import Engine, hot_cost
from durastreamd.engine.view import blob_of
from durastreamd.errors import WriteFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscriptions import live_facts
from durastreamd.storage import format as fmt, log
from durastreamd.storage.catalog import CatalogWriter, Commit, encode_rows, load
from durastreamd.storage.disk import Disk, sync_file
from durastreamd.storage.rows import (
    BucketEndRow,
    BucketRow,
    FactRow,
    Row,
    StreamEndRow,
    StreamRow,
    latest,
)

logger = logging.getLogger(__name__)

Job = Callable[[], object]
Steps = Generator[Job, object, None]
Flushing = Generator[Job, object, dict[int, WriteFailedError]]  # which streams were not written

# A catalogue with this many outdated rows per live one is written anew.
_OUTDATED_PER_LIVE = 3
_OUTDATED_MIN = 1000


def run(steps: Steps, on_step: Callable[[int], None] = lambda _: None) -> None:
    """Do every step here and now; ``on_step`` hears how many have been begun."""
    try:
        job = next(steps)
        for number in itertools.count(1):
            on_step(number)
            try:
                result = attempt(job)
            except WriteFailedError as exc:
                job = steps.throw(exc)
            else:
                job = steps.send(result)
    except StopIteration:
        return


def attempt(job: Job) -> object:
    """Do a job; what the disk refuses is a failed write, to be tried again with the next flush."""
    try:
        return job()
    except OSError as exc:
        reason = f"{exc.strerror or exc}" + (f": {exc.filename}" if exc.filename else "")
        raise WriteFailedError(reason) from exc


class _Cut(NamedTuple):
    """What a checkpoint takes on when it begins: everything changed up to ``lsn``."""

    lsn: int
    journal_first: int
    next_id: int
    dirty: list[int]
    removed: list[int]
    trimmed: list[int]
    buckets: list[BucketRow | BucketEndRow]
    facts: list[FactRow]


def _begin(engine: Engine) -> _Cut:
    cut = _Cut(
        engine.applied_lsn,
        engine.journal.number,
        engine.applied_id + 1,
        list(engine.dirty),
        list(engine.removed),
        list(engine.trimmed),
        [_bucket_row(engine, name) for name in engine.dirty_buckets],
        list(itertools.starmap(FactRow, engine.subscriptions.facts())),
    )
    assert engine.journal.next_lsn == cut.lsn + 1, "a checkpoint begins right after a rotation"
    engine.removed.clear()
    engine.trimmed.clear()
    engine.dirty_buckets.clear()
    return cut


def _bucket_row(engine: Engine, name: str) -> BucketRow | BucketEndRow:
    bucket = engine.namespace.buckets.get(name)
    return BucketRow(name, bucket.created_ms) if bucket else BucketEndRow(name)


def _give_back(engine: Engine, cut: _Cut) -> None:
    """Mark everything of a failed checkpoint again: losing the marks would lose the changes."""
    for stream in cut.dirty:
        if stream in engine.namespace.by_id:
            engine.dirty[stream] = None
    engine.removed.update(dict.fromkeys(cut.removed))
    engine.trimmed.update(dict.fromkeys(cut.trimmed))
    engine.dirty_buckets.update((row.subject, None) for row in cut.buckets)
    engine.subscriptions.dirty.update((row.name, None) for row in cut.facts)


def _nothing() -> None:
    """A job that does nothing."""


def checkpoint(engine: Engine) -> Steps:
    """Steps 2 to 6; the caller has just rotated the journal (or opened a new one)."""
    cut = _begin(engine)
    # Whoever drives this may have to let a flush end first; what is covered is settled already.
    yield _nothing
    try:
        rows = yield from _flush_streams(engine, cut)
        yield from _sync(engine)
        yield from _record(engine, cut, rows)
    except WriteFailedError:
        _give_back(engine, cut)
        raise
    try:
        yield partial(retire_journal, engine.disk, cut.journal_first)
        yield from _remove_files(engine, cut)
    except WriteFailedError:
        engine.removed.update(dict.fromkeys(cut.removed))
        engine.trimmed.update(dict.fromkeys(cut.trimmed))
        if not engine.opening:  # then it is left to the next checkpoint: the commit stands
            raise


def _flush_streams(engine: Engine, cut: _Cut) -> Generator[Job, object, list[Row]]:
    """Step 2: return a row for every stream that was changed and is still there."""
    rows: list[Row] = []
    failed: dict[int, WriteFailedError] = {}
    size = engine.options.slice_streams
    for at in range(0, len(cut.dirty), size):
        part = cut.dirty[at : at + size]
        alive = [
            engine.namespace.by_id[stream] for stream in part if stream in engine.namespace.by_id
        ]
        for stream in alive:
            engine.dirty.pop(stream.id, None)
        taken = {stream.id: stream.row() for stream in alive}
        refused = yield from flush_slice(engine, alive)
        failed |= refused
        for stream_id in part:
            if stream_id not in taken or stream_id in refused:
                continue
            if stream_id in engine.namespace.by_id:
                rows.append(StreamRow(taken[stream_id], engine.placements[stream_id]))
    if failed:
        rows += yield from _park(engine, cut, failed)
    return rows


def _park(
    engine: Engine, cut: _Cut, failed: dict[int, WriteFailedError]
) -> Generator[Job, object, list[Row]]:
    """Return the rows of streams whose files refuse to be written; see ``parking``.

    Raises the first failure that is to be tried again.
    """
    enough = 1 if engine.opening else parking.TRIES_MAX
    tries = {stream: engine.note_unwritable(stream, failed[stream]) for stream in failed}
    for stream, error in failed.items():
        if tries[stream] < enough:
            raise error
    wanted = {stream: engine.unwritable[stream] for stream in failed}
    passing = parking.Range(cut.journal_first, cut.lsn)
    done = yield partial(parking.park, engine.disk, engine.uuid, passing, wanted)
    assert isinstance(done, dict)
    rows: list[Row] = []
    for stream, parked in done.items():
        if stream in engine.namespace.by_id:
            if wanted[stream].parked is None:
                logger.error("stream %016x is parked: what is new of it is set aside", stream)
            engine.unwritable[stream] = engine.unwritable[stream]._replace(parked=parked)
            engine.dirty[stream] = None  # to be tried again
            rows.append(parked.row)
    return rows


def flush(engine: Engine) -> Steps:
    """Write the largest hot tails to their files until half the budget is free again."""
    size = engine.options.slice_streams
    while engine.hot_bytes > engine.options.hot_bytes_max // 2:
        weights = {
            stream: sum(map(hot_cost, frames))
            for stream, frames in engine.hot.items()
            if stream not in engine.unwritable  # a checkpoint tries those
        }
        if not weights:
            return
        largest = sorted(weights, key=weights.__getitem__, reverse=True)[:size]
        failed = yield from flush_slice(engine, [engine.namespace.by_id[s] for s in largest])
        for error in failed.values():
            raise error


def flush_slice(engine: Engine, streams: list[Stream]) -> Flushing:
    """Write the hot records of a few streams to their files; return which could not be.

    What succeeded is recorded whatever became of the streams beside it: the files have it.
    """
    jobs = [job for stream in streams if (job := _prepare(engine, stream)) is not None]
    if not jobs:
        return {}
    done = yield partial(_flush_jobs, engine.disk, jobs)
    assert isinstance(done, list)
    failed: dict[int, WriteFailedError] = {}
    for job, flushed in zip(jobs, done, strict=True):
        if not isinstance(flushed, WriteFailedError):
            _record_flushed(engine, job, flushed)
        elif job.stream in engine.namespace.by_id:  # nobody needs the files of others
            failed[job.stream] = flushed
    return failed


def _record_flushed(engine: Engine, job: log.FlushJob, flushed: log.Flushed) -> None:
    """Note what a job left in the files; its stream may have ended meanwhile."""
    engine.unsynced_files.update(dict.fromkeys(flushed.files))
    if flushed.new_directory:
        _mark_directories(engine, job)
    stream = engine.namespace.by_id.get(job.stream)
    if stream is None:
        return
    engine.placements[stream.id] = flushed.placement
    if engine.unwritable.pop(stream.id, None) is not None:
        logger.warning("stream %016x takes writes again", stream.id)
    if job.rolls and engine.namespace.retained_from(stream) >= flushed.placement.base:
        engine.trimmed[stream.id] = None  # retention had passed what was the active segment
    frames = engine.hot[stream.id]
    for frame in frames[: len(job.frames)]:
        engine.hot_bytes -= hot_cost(frame)
    del frames[: len(job.frames)]
    if not frames:
        del engine.hot[stream.id]
    engine.rest(stream)


def _mark_directories(engine: Engine, job: log.FlushJob) -> None:
    directory = fmt.stream_dir(job.stream)
    engine.unsynced_directories[directory] = None
    if not job.placement.made:
        engine.unsynced_directories[directory.rpartition("/")[0]] = None
        engine.unsynced_directories[fmt.STREAMS_DIR] = None


def _prepare(engine: Engine, stream: Stream) -> log.FlushJob | None:
    frames = engine.hot.get(stream.id)
    if not frames:
        return None
    place = engine.placements[stream.id]
    options = engine.options
    segment = place.segment_bytes + sum(frame.size for frame in frames)
    # A stream at rest may have changed without its detail being at hand (a snapshot, a deletion):
    # then a state, and with it a new segment, is left to the next flush after an append.
    known = stream.plain or stream.detail is not None
    rolls = known and segment >= options.segment_bytes_max
    since = place.index_bytes - place.state_at + sum(len(frame.header) + 64 for frame in frames)
    states = rolls or (known and not stream.plain and since > options.state_every_bytes)
    state = engine.state_frame(stream) if states else None
    return log.FlushJob(stream.id, place, list(frames), state, rolls)


def _flush_jobs(disk: Disk, jobs: list[log.FlushJob]) -> list[log.Flushed | WriteFailedError]:
    done: list[log.Flushed | WriteFailedError] = []
    for job in jobs:
        try:
            done.append(log.flush(disk, job))
        except WriteFailedError as exc:
            done.append(exc)
    return done


def _sync(engine: Engine) -> Steps:
    """Step 3: make every flushed byte durable."""
    files, directories = list(engine.unsynced_files), list(engine.unsynced_directories)
    yield partial(_sync_job, engine.disk, files, directories, engine.options.syncs_max)
    for file in files:
        engine.unsynced_files.pop(file, None)
    for directory in directories:
        engine.unsynced_directories.pop(directory, None)


def _sync_job(disk: Disk, files: list[str], directories: list[str], limit: int) -> None:
    if len(files) + len(directories) > limit:
        disk.sync_everything()
        return
    for file in files:
        if not disk.exists(file):
            continue  # the stream ceased to exist while it was flushed
        sync_file(disk, file)
    for directory in directories:
        if disk.exists(directory):
            disk.sync_directory(directory)


def _record(engine: Engine, cut: _Cut, rows: list[Row]) -> Steps:
    """Step 4: the catalogue."""
    # Also those that ended since the checkpoint began: older rows of theirs must not stand, for
    # the changes in between are about to leave the journal.
    rows += map(StreamEndRow, {**dict.fromkeys(cut.removed), **engine.removed})
    rows += cut.buckets
    rows += cut.facts
    commit = Commit(cut.lsn, cut.journal_first, cut.next_id, removals_of(engine, cut))
    engine.outdated_rows += len(rows)
    live = len(engine.namespace.by_id) + engine.subscriptions.link_count
    if engine.outdated_rows > _OUTDATED_MIN + _OUTDATED_PER_LIVE * live:
        yield partial(_rewrite, engine.disk, engine.uuid, engine.catalog, rows, commit)
        engine.outdated_rows = 0
    else:
        yield lambda: engine.catalog.append(list(encode_rows(rows)), commit)


def _rewrite(
    disk: Disk, uuid: bytes, writer: CatalogWriter, fresh: list[Row], commit: Commit
) -> None:
    """Write a new catalogue of what the old one and this checkpoint say together.

    The old rows are read back from the file: those in memory may be ahead of what is durable.
    """
    current = latest(load(disk, uuid).rows + fresh)
    rows: list[Row] = [row for row in current.values() if isinstance(row, StreamRow | BucketRow)]
    rows += live_facts({row.name: row for row in current.values() if _said(row)})
    writer.rewrite(list(encode_rows(rows)), commit)


def _said(row: Row) -> TypeGuard[FactRow]:
    """Tell whether a row is something an extension keeps."""
    return isinstance(row, FactRow) and row.fields is not None


def retire_journal(disk: Disk, first: int) -> None:
    """Step 5: remove journal files before ``first``."""
    for number in fmt.numbered(disk.names(fmt.JOURNAL_DIR), ".jnl"):
        if number < first:
            disk.unlink(fmt.journal_path(number))


def removals_of(engine: Engine, cut: _Cut) -> list[str]:
    """Return what is to be removed once the commit is durable; the commit keeps it as text.

    Also what came up since the checkpoint began: its rows may say already what a replay would have
    found out, and then nothing but this commit tells the next opening to look.
    """
    gone = [f"stream {stream}" for stream in {**dict.fromkeys(cut.removed), **engine.removed}]
    trimmed = {**dict.fromkeys(cut.trimmed), **engine.trimmed, **dict.fromkeys(engine.uploads)}
    kept = [engine.namespace.by_id.get(stream) for stream in trimmed]
    below = [
        f"below {stream.id} {engine.namespace.retained_from(stream)}"
        for stream in kept
        if stream is not None
    ]
    return gone + below


def _remove_files(engine: Engine, cut: _Cut) -> Steps:
    """Step 6; what readers still hold is left to the next checkpoint."""
    for stream in cut.removed:
        if stream in engine.pins:
            engine.removed[stream] = None
            continue
        engine.handles.forget(fmt.stream_dir(stream))
        yield partial(log.remove, engine.disk, stream)
        # The next commit forgets this removal, so it must be durable by then.
        engine.unsynced_directories[fmt.stream_dir(stream).rpartition("/")[0]] = None
    for stream in cut.trimmed:
        found = engine.namespace.by_id.get(stream)
        if found is None:
            continue
        if stream in engine.pins:
            engine.trimmed[stream] = None
            continue
        engine.handles.forget(fmt.stream_dir(stream))
        keep = blobs_kept(engine, found)
        below = engine.namespace.retained_from(found)
        # While the server runs a blob may be on its way that no record names yet; so only those
        # that are known to be superseded go. When opening, every blob without a record does.
        drop = None if engine.opening else engine.superseded.pop(stream, [])
        if drop and (shown := [path for path in drop if path in keep]):
            engine.superseded[stream] = shown  # a fork shows it still
        active = engine.placements[stream].base
        yield partial(trim, engine.disk, stream, active, below, keep, drop)
        engine.unsynced_directories[fmt.stream_dir(stream)] = None


def blobs_kept(engine: Engine, stream: Stream) -> set[str]:
    """Return the snapshot files of a stream that it or a fork of it still shows."""
    return {blob_of(blob).path for blob in engine.namespace.snapshots_of(stream.id)}


def trim(
    disk: Disk, stream: int, active: int, below: int, keep: set[str], drop: list[str] | None
) -> None:
    """Remove segments wholly below a position, and snapshot files that nobody shows any more."""
    log.remove_below(disk, stream, active, below)
    directory = fmt.stream_dir(stream)
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        if name.endswith(".snap") and path not in keep and (drop is None or path in drop):
            disk.unlink(path)
