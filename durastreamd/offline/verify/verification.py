"""The verification of a data directory: a survey, every segment, and what only all of it shows.

Nothing is written and nothing is locked. Beside a running server files change while they are read;
``settled`` then looks again at what was found, and believes only what stays wrong.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from durastreamd.engine.view import blob_of
from durastreamd.errors import CorruptDataError
from durastreamd.model.records import Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import looks
from durastreamd.offline.verify.census import (
    Census,
    Readers,
    joined,
    take_census,
    without,
)
from durastreamd.offline.verify.findings import UNREADABLE, Finding, refusal
from durastreamd.offline.verify.scan import scan_catalog
from durastreamd.offline.verify.segments import (
    WINDOW_BYTES,
    SegmentReport,
    SegmentTask,
    check_segment,
    contradiction,
)
from durastreamd.offline.verify.subscribed import cursor_findings
from durastreamd.offline.verify.survey import (
    Catalogued,
    StreamFiles,
    Survey,
    list_names,
    read_catalog,
    read_identity,
    read_journal,
    read_numbered,
)
from durastreamd.storage import format as fmt, log
from durastreamd.storage.blobs import BlobFile, read_blob
from durastreamd.storage.disk import Disk, file_size
from durastreamd.storage.extensions import used_by
from durastreamd.storage.rows import encode_row
from durastreamd.storage.scan import Gap

# A checkpoint lasts well under a second; four looks this far apart outlast it.
LOOKS = 4
LOOK_AGAIN_S = 0.25

# Yields the report of every task, in the order of the tasks.
Runner = Callable[[list[SegmentTask]], Iterable[tuple[SegmentTask, SegmentReport]]]


class Scope(NamedTuple):
    """What to verify, and how: every payload byte, some streams only, beside a running server."""

    deep: bool = False
    live: bool = False
    only: frozenset[int] | None = None


def survey(disk: Disk) -> Survey:
    """Look at a data directory without trusting anything in it."""
    found = Survey(disk)
    list_names(found)
    catalogs = read_numbered(found, fmt.CATALOG_DIR, ".cat")
    journals = read_numbered(found, fmt.JOURNAL_DIR, ".jnl")
    read_identity(found, catalogs, journals)
    read_catalog(found, catalogs, set(journals))
    read_journal(found, journals)
    _set_orphans_apart(found)
    if found.extensions is None:
        found.extensions = _extensions_seen(found, catalogs)
    return found


def _extensions_seen(found: Survey, catalogs: dict[int, bytes]) -> frozenset[str]:
    """Return the extensions whose records or rows are there: the identity does not say."""
    frames = [
        frame
        for number, raw in catalogs.items()
        for frame in scan_catalog(raw, found.uuid or b"", number)
        if not isinstance(frame, Gap)
    ]
    rows = [encode_row(row) for frame in frames for row in frame.rows]
    return frozenset(used_by((head.frame.header for head in found.heads), rows))


def _set_orphans_apart(found: Survey) -> None:
    """Take indexes that cut a segment out of what the streams have; see ``storage.log``."""
    for stream, (state, place) in found.listed.items():
        files = found.files.get(stream)
        if files is None or not place.made:
            continue
        for base in log.orphan_indexes(found.disk, stream, place.base, *files[:2]):
            files.indexes.remove(base)
            path = fmt.index_path(stream, base)
            detail = "an index inside another's segment, left by a flush that failed"
            found.orphans.append(Finding(path, 0, "orphan", detail, state.key, harmless=True))


def in_turn(disk: Disk) -> Runner:
    """Return a runner that checks segments one after the other, here."""

    def run(tasks: list[SegmentTask]) -> Iterator[tuple[SegmentTask, SegmentReport]]:
        for task in tasks:
            yield task, check_segment(disk, task)

    return run


class Checked(NamedTuple):
    """How much a verification looked at."""

    streams: int
    segments: int
    bytes: int
    records: int  # of the journal, that no checkpoint covers


class Examination(NamedTuple):
    """A verification with what it was made from."""

    found: Survey
    census: Census
    findings: list[Finding]
    checked: Checked


def verify(disk: Disk, scope: Scope, run: Runner) -> list[Finding]:
    """Return everything that is not as it must be."""
    return examine(disk, scope, run).findings


def examine(disk: Disk, scope: Scope, run: Runner) -> Examination:
    """Verify a data directory; what was seen on the way is for a repair."""
    found = survey(disk)
    census = take_census(found)
    findings = [*found.findings, *census.findings, *found.orphans]
    listed = {row.stream.id: row for row in _chosen(found, census, scope)}
    tasks = [task for row in listed.values() for task in tasks_of(found, row, scope)]
    readers = Readers(census.streams)
    size = 0
    # In the order of the tasks, so that only one stream's reports are held at a time.
    for stream_id, group in groupby(run(tasks), key=lambda done: done[0].stream):
        reports = [report for _, report in group]
        size += sum(report.bytes_read for report in reports)
        findings += _own_findings(census, readers, listed[stream_id], reports)
        if not any(finding.kind == UNREADABLE for one in reports for finding in one.findings):
            findings += _join(found, census, readers, listed[stream_id], reports)
    only = [s for s in census.streams.values() if scope.only is None or s.id in scope.only]
    for stream in only:
        findings += _check_stream(disk, census, stream, scope)
    if scope.only is None:
        findings += cursor_findings(found, census.streams)
    findings += _leftovers(found, census, scope)
    checked = Checked(len(only), len(tasks), size, len(found.heads))
    return Examination(found, census, findings, checked)


def settled(
    disk: Disk,
    seen: Examination,
    scope: Scope,
    run: Runner,
    pause: Callable[[float], None] = time.sleep,
) -> list[Finding]:
    """Look again beside a daemon, until what is left was found at the same place each time."""
    foreign = [finding for finding in seen.findings if finding.kind == "foreign"]
    still = [finding for finding in seen.findings if finding.kind != "foreign"]
    again = looks(LOOKS, LOOK_AGAIN_S, pause)
    next(again)  # that was ``seen``
    while still and next(again, None) is not None:
        affected = {seen.census.names.get(f.stream, 0) for f in still}
        seen = examine(disk, scope._replace(only=frozenset(affected)), run)
        places = {finding.place for finding in seen.findings}
        still = [finding for finding in still if finding.place in places]
    return still + foreign


def _chosen(found: Survey, census: Census, scope: Scope) -> list[Catalogued]:
    """Return the catalogue's streams that are to be looked at; those that ended since are not."""
    wanted = census.streams.keys() if scope.only is None else census.streams.keys() & scope.only
    return [
        row
        for stream, row in found.listed.items()
        if stream in wanted and not found.refused(stream)
    ]


def tasks_of(found: Survey, row: Catalogued, scope: Scope) -> Iterator[SegmentTask]:
    """Yield the segments of a stream that its placement covers."""
    stream, place = row
    files = found.files.get(stream.id, StreamFiles([], [], []))
    if not place.made:
        return
    for base in sorted({*(b for b in files.bases if b <= place.base), place.base}):
        active = base == place.base
        yield SegmentTask(
            stream.id,
            base,
            stream.key,
            place.index_bytes if active else None,
            place.segment_bytes if active else None,
            scope.deep,
            scope.live,
        )


# --- a stream's segments together ---


def _own_findings(
    census: Census, readers: Readers, row: Catalogued, reports: list[SegmentReport]
) -> Iterator[Finding]:
    """What is wrong with a segment that retention has passed hurts nobody: it is being removed."""
    now = census.streams.get(row.stream.id)
    read = readers.ranges(now) if now is not None else []
    ends = [report.base for report in reports[1:]] + [row.placement.flushed]
    for report, end in zip(reports, ends, strict=True):
        unread = not any(low < max(end, report.end) and report.base < high for low, high in read)
        passed = unread and report.base != row.placement.base
        for finding in report.findings:
            yield finding._replace(harmless=True) if passed else finding


def _join(
    found: Survey, census: Census, readers: Readers, row: Catalogued, reports: list[SegmentReport]
) -> Iterator[Finding]:
    stream, place = row
    for before, report in pairwise(reports):
        path = fmt.index_path(stream.id, report.base)
        if report.head is None or before.tail is None or before.end != report.base:
            continue
        wrong = contradiction(report.head, before.tail)
        if wrong and not before.findings:
            yield Finding(path, 0, "state", wrong, stream.key)
    yield from _coverage(census, readers, row, reports)
    if reports and reports[-1].tail is not None and not reports[-1].findings:
        folded = reports[-1].tail[0]
        wrong = _row_differs(stream, folded)
        if wrong:
            path = fmt.catalog_path(found.catalog_number)
            yield Finding(path, 0, "row", wrong, stream.key)
    if place.made and stream.tail != place.flushed and not stream.damage:
        path = fmt.catalog_path(found.catalog_number)
        detail = f"the stream's tail is {stream.tail}, its files end at {place.flushed}"
        yield Finding(path, 0, "row", detail, stream.key)


def _row_differs(row: Stream, folded: Stream) -> str:
    if row.damage:
        return ""
    for name in ("key", "content_type", "tail", "messages", "closed", "floor", "snapshot", "gone"):
        claimed, held = getattr(row, name), getattr(folded, name)
        if claimed != held:
            return f"the catalogue says {name} {claimed!r}, the index {held!r}"
    return ""


def _coverage(
    census: Census, readers: Readers, row: Catalogued, reports: list[SegmentReport]
) -> Iterator[Finding]:
    """Everything that anybody reads, and that the files are to hold, is in some segment."""
    now = census.streams.get(row.stream.id)
    if now is None or not row.placement.made:
        return
    flushed = row.placement.flushed
    needed = [(low, min(high, flushed)) for low, high in readers.ranges(now)]
    held = [(report.base, report.end) for report in reports]
    for low, high in without(needed, joined(held)):
        path = fmt.segment_path(row.stream.id, low)
        yield Finding(path, 0, "gap", f"no segment holds {low} to {high}", row.stream.key)


# --- a stream as it is by now ---


def _check_stream(disk: Disk, census: Census, stream: Stream, scope: Scope) -> Iterator[Finding]:
    directory = fmt.stream_dir(stream.id)
    if stream.damage:
        yield Finding(directory, 0, "damaged", stream.damage, stream.key)
    if not 0 <= stream.floor <= stream.tail or stream.fork_position > stream.tail:
        detail = f"floor {stream.floor}, tail {stream.tail}, forked at {stream.fork_position}"
        yield Finding(directory, 0, "row", detail, stream.key)
    if stream.source and stream.floor < stream.fork_position and not stream.gone:
        source = census.streams.get(stream.source)
        if source is None:
            detail = f"its source {stream.source:016x} is gone, and with it what lies below "
            yield Finding(directory, 0, "fork", f"{detail}{stream.fork_position}", stream.key)
        elif source.tail < stream.fork_position:
            detail = f"it was forked at {stream.fork_position}, its source ends at {source.tail}"
            yield Finding(directory, 0, "fork", detail, stream.key)
    if stream.snapshot is not None and not stream.gone:
        yield from check_snapshot(disk, stream.snapshot, stream.key, deep=scope.deep)
        if stream.snapshot.owner not in census.streams:
            detail = "the snapshot is a stream's that is gone, and would go with its directory"
            yield Finding(blob_of(stream.snapshot).path, 0, "fork", detail, stream.key)


def check_snapshot(disk: Disk, blob: Snapshot, key: str, *, deep: bool) -> Iterator[Finding]:
    """Check that a snapshot's blob is there, whole, and (deep) what was published."""
    file = blob_of(blob)
    try:
        size = file_size(disk, file.path, missing=-1)
    except OSError as exc:
        yield refusal(file.path, exc, key)
        return
    if size < 0:
        yield Finding(file.path, 0, "missing", f"the snapshot of {blob.size} bytes is gone", key)
    elif size != blob.size:
        detail = f"the snapshot has {size} bytes, {blob.size} were published"
        yield Finding(file.path, min(size, blob.size), "short", detail, key)
    elif deep:
        yield from _check_blob(disk, file, key)


def _check_blob(disk: Disk, file: BlobFile, key: str) -> Iterator[Finding]:
    try:
        for _ in read_blob(disk, file, WINDOW_BYTES):
            pass
    except CorruptDataError:
        yield Finding(file.path, 0, "payload", "the snapshot does not verify", key)
    except OSError as exc:
        yield refusal(file.path, exc, key)


# --- what nobody refers to ---


def _leftovers(found: Survey, census: Census, scope: Scope) -> Iterator[Finding]:
    if scope.only is not None:
        return
    for path in found.foreign:
        detail = "not a file of durastreamd"
        yield Finding(path, 0, "foreign", detail, harmless=True)
    if scope.live:
        return  # a server at work has files that no checkpoint knows yet
    # A stream that a damaged catalogue does not know may be alive all the same.
    unreferenced = orphans(found, census) if found.catalog_trusted else ()
    for path in [*found.leftovers, *unreferenced]:
        yield Finding(path, 0, "orphan", "nothing refers to it", harmless=True)
    for path, key in _unplaced(found, census):
        detail = "a segment begun since the last checkpoint; the journal has it, too"
        yield Finding(path, 0, "unplaced", detail, key, harmless=True)


def orphans(found: Survey, census: Census) -> Iterator[str]:
    """Yield files below streams/ that no stream of now refers to."""
    shown = {
        blob_of(blob).path
        for stream in census.streams.values()
        if (blob := stream.snapshot) is not None
    }
    for stream, files in found.files.items():
        directory = fmt.stream_dir(stream)
        alive = stream in census.streams
        if stream in found.listed and not alive:
            continue  # it ended since the last checkpoint: the next one removes it
        if not alive and not (files.bases or files.snapshots):
            yield directory
        if not alive:
            yield from (fmt.index_path(stream, base) for base in sorted(files.indexes))
            yield from (fmt.segment_path(stream, base) for base in sorted(files.segments))
        for position, serial in sorted(files.snapshots):
            path = fmt.snapshot_path(stream, position, serial)
            if path not in shown:
                yield path


def _unplaced(found: Survey, census: Census) -> Iterator[tuple[str, str]]:
    for stream, (state, place) in found.listed.items():
        if stream in census.streams and place.made and stream in found.files:
            files = found.files[stream]
            for base in files.indexes:
                if base > place.base:
                    yield fmt.index_path(stream, base), state.key
            for base in files.segments:
                if base > place.base:
                    yield fmt.segment_path(stream, base), state.key
