"""``dspipeline audit``: every checksum of a data directory, compared on every core.

The work of ``dsadmin verify`` in tasks: a task takes some segments and calls the same verifier on
each, as if it were a stream of its own that ends where the next one begins. So the seams between
segments are checked, too, and one long stream keeps all cores busy.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from durastreamd.engine.view import blob_of
from durastreamd.errors import CorruptDataError
from durastreamd.kit import show
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, OK
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened, disk_at, with_directory
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.segments import SegmentTask, check_segment
from durastreamd.spark.jobs.job import progress_of, session_of
from durastreamd.spark.segments.source import name_of
from durastreamd.storage import catalog, datadir, format as fmt, log
from durastreamd.storage.blobs import BlobFile, read_blob
from durastreamd.storage.disk import RealDisk, file_size

PIECE_BYTES = 4 * 1024 * 1024
TASK_BYTES = 32 * 1024 * 1024


class AuditPart(NamedTuple):
    """A segment with its index, or a snapshot's blob: what one call of the verifier looks at."""

    name: str
    stream: int
    place: log.Placement
    size: int
    blob: BlobFile | None = None

    @property
    def path(self) -> str:
        """Return the file it is about."""
        if self.blob is not None:
            return self.blob.path
        return fmt.segment_path(self.stream, self.place.base)


def findings(root: str, part: AuditPart) -> Iterator[Finding]:
    """Verify one part; runs in an executor."""
    disk = disk_at(root)
    try:
        if part.blob is None:
            yield from _check_segment(disk, part)
        else:
            for _ in read_blob(disk, part.blob, PIECE_BYTES):
                pass
    except FileNotFoundError:
        yield Finding(part.path, 0, "missing", "the file is not there")
    except CorruptDataError as exc:
        yield Finding(exc.file, exc.position, "snapshot", exc.reason)


def _check_segment(disk: RealDisk, part: AuditPart) -> Iterator[Finding]:
    place = part.place
    # A server may be writing: what lies past the lengths is its work.
    lengths = (place.index_bytes, place.segment_bytes)
    task = SegmentTask(part.stream, place.base, "", *lengths, deep=True, live=True)
    report = check_segment(disk, task)
    yield from report.findings
    if not report.findings and report.end != place.flushed:
        path = fmt.index_path(part.stream, place.base)
        detail = f"its records end at {report.end}, the next one begins at {place.flushed}"
        yield Finding(path, place.index_bytes, "short", detail)


# --- the plan ---


class Audit(NamedTuple):
    """What is to be looked at, and what opening the directory has found already."""

    parts: list[AuditPart]
    streams: int
    found: list[tuple[str, Finding]]
    torn_bytes: int


def plan(root: str) -> Audit:
    """List every file the catalogue relies on; the journal is verified by opening it."""
    return with_directory(root, _plan)


def _plan(found: Opened) -> Audit:
    loaded = catalog.load(found.disk, found.engine.uuid)
    rows = loaded.streams()
    parts: list[AuditPart] = []
    already = []
    for row in rows:
        stream = Stream.from_row(row.fields)
        parts += _parts(found, stream, row.placement)
        if stream.id in found.engine.namespace.by_id:
            stream = found.engine.namespace.by_id[stream.id]
        if stream.damage:
            at = Finding(fmt.stream_dir(stream.id), 0, "damaged", stream.damage)
            already.append((_name(stream), at))
    return Audit(parts, len(rows), already, found.report.torn_bytes)


def _name(stream: Stream) -> str:
    return name_of(stream.key) or stream.key


def _parts(found: Opened, stream: Stream, place: log.Placement) -> Iterator[AuditPart]:
    name = _name(stream)
    bases = log.bases(found.disk, stream.id, place.base)
    if place.made and place.base not in bases:
        bases.append(place.base)  # the verifier says that it is missing
    for base, following in pairwise([*bases, place.flushed]) if place.made else ():
        length = file_size(found.disk, fmt.index_path(stream.id, base))
        sealed = log.Placement(base, following - base, length, 0, made=True)
        this = place if base == place.base else sealed
        yield AuditPart(name, stream.id, this, this.segment_bytes + this.index_bytes)
    blob = stream.snapshot
    if blob is not None and blob.owner == stream.id:
        yield AuditPart(name, stream.id, place, blob.size, blob_of(blob))


def tasks_of(parts: list[AuditPart], task_bytes: int = TASK_BYTES) -> list[list[AuditPart]]:
    """Share parts out; the largest first, so that no core is left with one of them at the end."""
    tasks: list[list[AuditPart]] = []
    size = task_bytes
    for part in sorted(parts, key=lambda part: -part.size):
        if size + part.size > task_bytes or len(tasks[-1]) >= 1000:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.size
    return tasks


# --- the job ---


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory")


def _run(args: argparse.Namespace, console: Console) -> int:
    root: str = args.data_dir
    datadir.read_identity(disk_at(root))
    audit = plan(root)
    tasks = tasks_of(audit.parts)
    found = list(audit.found)
    spark = session_of(args) if tasks else None
    begin = time.monotonic()
    if spark is not None:
        with progress_of(spark, console):
            work = spark.sparkContext.parallelize(tasks, len(tasks))
            found += work.mapPartitions(lambda batches: _verify(root, batches)).collect()
    seconds = time.monotonic() - begin
    found = _still_there(root, found)
    for name, finding in () if console.as_json else found:
        console.line(f"{name}: {finding}")
    size = sum(part.size for part in audit.parts)
    blobs = sum(part.blob is not None for part in audit.parts)
    segments = len(audit.parts) - blobs
    text = (
        f"audited {audit.streams} streams, {segments} segments, {blobs} snapshots, "
        f"{show.size(size)} in {seconds:.1f} s ({show.size(size / max(seconds, 1e-9))}/s), "
        f"{audit.torn_bytes} torn bytes: {len(found)} findings"
    )
    members: dict[str, object] = {
        "streams": audit.streams,
        "segments": segments,
        "snapshots": blobs,
        "bytes": size,
        "seconds": round(seconds, 3),
        "torn_bytes": audit.torn_bytes,
        "findings": [
            {
                "stream": name,
                "path": f.path,
                "position": f.position,
                "kind": f.kind,
                "detail": f.detail,
            }
            for name, f in found
        ],
    }
    console.summary(text, members)
    return CORRUPT if found else OK


def _verify(root: str, batches: Iterable[list[AuditPart]]) -> Iterator[tuple[str, Finding]]:
    for parts in batches:
        for part in parts:
            yield from ((part.name, finding) for finding in findings(root, part))


def _still_there(root: str, found: list[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Leave out what a running server has meanwhile removed on purpose: look again, here."""
    if not found:
        return []
    audit = plan(root)
    suspects = {finding.path.rpartition("/")[0] for _, finding in found}
    again = list(audit.found)
    for part in audit.parts:
        if fmt.stream_dir(part.stream) in suspects:
            again += [(part.name, finding) for finding in findings(root, part)]
    return again


COMMAND = Command(
    "audit", "verify every checksum of a data directory in parallel", _arguments, _run
)
