"""Streams that a repair leaves alone, because the disk does not hand out a file of theirs.

What cannot be read may be whole, so nothing of it is given up: not its bytes, and not what the
journal has of the stream, which goes to quarantine/ as a recovery would put it there. The stream is
refused until its files can be read; the next repair then brings all of it together. A fork of such
a stream is left alone, too, if it may need what was put aside.
"""

from durastreamd.errors import ReadFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.layout import FileRange, NewFile
from durastreamd.offline.verify.findings import UNREADABLE
from durastreamd.offline.verify.scan import JournalHead
from durastreamd.offline.verify.survey import Catalogued
from durastreamd.offline.verify.verification import Examination
from durastreamd.storage import format as fmt


def unreadable(seen: Examination) -> dict[int, str]:
    """Return which streams are to be left alone, each with the file that cannot be read."""
    left: dict[int, str] = {}
    for finding in seen.findings:
        if finding.kind != UNREADABLE or not finding.path.startswith(f"{fmt.STREAMS_DIR}/"):
            continue
        why = f"{finding.path}: {finding.detail}"
        owner = fmt.stream_of(finding.path)
        if owner is not None:
            left.setdefault(owner, why)
        else:  # a shard: whatever is in it
            left |= {
                s: why for s in seen.census.streams if fmt.stream_dir(s).startswith(finding.path)
            }
        if finding.stream in seen.census.names:  # a snapshot may be shown by another stream
            left.setdefault(seen.census.names[finding.stream], why)
    waiting = {head.frame.stream for head in seen.found.heads}
    streams = seen.census.streams
    for stream in sorted(streams):  # a source is older than its forks
        source = streams[stream].source
        if source in left and (source in waiting or stream in waiting):
            left.setdefault(stream, left[source])
    return left


def leave(
    row: Catalogued | None, fresh: list[JournalHead], why: str, *, trusted: bool
) -> tuple[Stream, list[NewFile]]:
    """Return a stream as its row has it, and what puts its newer records aside."""
    path, _, reason = why.partition(": ")
    if row is None or not trusted:
        reason += "; without a whole catalogue nothing can be repaired until it can be read"
        raise ReadFailedError(path, reason)
    state = Stream.from_row(row.stream.row())
    if not fresh:
        return state, []
    state.damage = f"{why}; make it readable, then run `dsadmin repair`"
    ranges: list[bytes | FileRange] = [
        FileRange(fmt.journal_path(head.number), head.position, head.end - head.position)
        for head in fresh
    ]
    name = f"{state.id:016x}@{fresh[-1].frame.lsn}.frames"
    return state, [NewFile(f"{fmt.QUARANTINE_DIR}/{name}", ranges)]
