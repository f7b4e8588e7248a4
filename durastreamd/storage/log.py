"""One stream's files: segments of wire bytes, and beside each its index.

Theory of operation
-------------------
A segment ``<base>.log`` is exactly the bytes a reader gets from position ``base`` on; its index
``<base>.idx`` has one entry per committed batch. Both are written only with records that the
journal has made durable, so they never hold a byte that could vanish, and no sync is needed
before they are read. They are made durable by checkpoints; until then the journal keeps what they
hold.

``Placement`` says how much of a stream is in its files. The catalogue keeps the placement of the
last checkpoint; after a crash files are first cut back to it (what is beyond will be written
again from the journal) and then replay goes on as if nothing had been flushed since. A file
*shorter* than its placement has lost durable bytes: that is damage.

Flushing writes at fixed positions and changes the placement only when everything was taken, so a
flush that fails (a full disk) is simply done again later. What the failed one left beyond is cut
off then: a file that was flushed ends where its placement says.

A segment begins with its index; its bytes follow with the next flush. So the active segment may
have an index alone. Any other index without a segment that lies inside the segment before it is an
orphan: a flush of an older version failed after writing it, and the segment really began later.
"""

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from durastreamd.errors import SyncFailedError, WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import Disk, coalesce, cut_file, faults_of, file_size, write_at
from durastreamd.storage.index import HEADER_BYTES, IndexFile


class Placement(NamedTuple):
    """How much of a stream its files hold: the active segment, the lengths, the last state.

    ``state_at`` is where the last state stands in the active index, 0 if it has none;
    ``made`` tells whether there are files at all.
    """

    base: int
    segment_bytes: int
    index_bytes: int
    state_at: int
    made: bool

    @property
    def flushed(self) -> int:
        """Return the position up to which the stream's bytes are in its files."""
        return self.base + self.segment_bytes


class FlushJob(NamedTuple):
    """Records to write, then perhaps a state, then perhaps the beginning of a new segment."""

    stream: int
    placement: Placement
    frames: list[fmt.StoredFrame]
    state: fmt.StoredFrame | None
    rolls: bool


class Flushed(NamedTuple):
    """What a flush left: the new placement, and what a checkpoint must sync."""

    placement: Placement
    files: list[str]
    new_directory: bool


def placement_at(start: int) -> Placement:
    """Return the placement of a stream that has no files yet and starts at ``start``."""
    return Placement(start, 0, 0, 0, made=False)


def flush(disk: Disk, job: FlushJob) -> Flushed:
    """Write a job's records to its stream's files."""
    stream, place = job.stream, job.placement
    base = place.base
    index = IndexFile(stream, base)
    files: list[str] = []
    payload = coalesce([frame.payload for frame in job.frames if frame.size])
    try:
        if not place.made:
            make_directories(disk, stream)
        if payload:
            write_at(disk, fmt.segment_path(stream, base), payload, place.segment_bytes)
            files.append(fmt.segment_path(stream, base))
        entries, state_at, end = _encode_entries(job, index)
        if entries:
            index.write(disk, entries, place.index_bytes)
            files.append(index.path)
        segment_bytes = place.segment_bytes + sum(map(len, payload))
        after = Placement(base, segment_bytes, end, state_at, made=True)
        if job.rolls:
            assert job.state is not None
            after = begin_segment(disk, stream, after.flushed, job.state)
            files.append(fmt.index_path(stream, after.base))
    except OSError as exc:
        reason = f"cannot write the files of stream {stream:016x}: {exc.strerror or exc}"
        raise WriteFailedError(reason) from exc
    # A new name in the directory must be made durable as well as the file.
    return Flushed(after, files, not place.made or job.rolls or not place.segment_bytes)


def make_directories(disk: Disk, stream: int) -> None:
    """Make a stream's directory, and the one above it."""
    directory = fmt.stream_dir(stream)
    disk.make_directory(directory.rpartition("/")[0])
    disk.make_directory(directory)


def _encode_entries(job: FlushJob, file: IndexFile) -> tuple[bytes, int, int]:
    """Return the index bytes to write, where the last state stands, and the length after them."""
    place = job.placement
    parts: list[bytes] = []
    position = place.index_bytes
    if position == 0:
        parts.append(file.header())
        position = HEADER_BYTES
    for frame in job.frames:
        part = file.entry(frame, position)
        parts.append(part)
        position += len(part)
    state_at = place.state_at
    if job.state is not None and not job.rolls:
        state_at = position
        part = file.entry(job.state, position, is_state=True)
        parts.append(part)
        position += len(part)
    return b"".join(parts), state_at, position


def begin_segment(disk: Disk, stream: int, base: int, state: fmt.StoredFrame) -> Placement:
    """Write the index of a new segment: its header and the state it starts from."""
    file = IndexFile(stream, base)
    beginning = file.beginning(state)
    try:
        file.write(disk, beginning, 0)
    except (OSError, WriteFailedError):
        # The segment may begin elsewhere next time; an index here would be taken for its own.
        _take_back(disk, file.path)
        raise
    return Placement(base, 0, len(beginning), HEADER_BYTES, made=True)


def _take_back(disk: Disk, path: str) -> None:
    try:
        if disk.exists(path):
            disk.unlink(path)
    except OSError as exc:
        reason = f"a new index could not be taken back: {exc.strerror or exc}"
        raise SyncFailedError(reason) from exc


def files(disk: Disk, stream: int) -> list[int]:
    """Return the base positions that a stream's files name, in order."""
    names = disk.names(fmt.stream_dir(stream))
    return sorted({*fmt.numbered(names, ".idx"), *fmt.numbered(names, ".log")})


def bases(disk: Disk, stream: int, active: int) -> list[int]:
    """Return the base positions of a stream's segments up to the active one, in order.

    A segment whose index is lost still counts: its bytes can be read without it.
    """
    names = disk.names(fmt.stream_dir(stream))
    segments, indexes = fmt.numbered(names, ".log"), fmt.numbered(names, ".idx")
    orphans = set(orphan_indexes(disk, stream, active, indexes, segments))
    found = {*segments, *indexes} - orphans
    return sorted(base for base in found if base <= active)


def orphan_indexes(
    disk: Disk, stream: int, active: int, indexes: list[int], segments: list[int]
) -> list[int]:
    """Return the indexes among a stream's files that lie inside another's segment.

    One whose segment is lost is none: the segment before it ends where it begins.
    """
    whole = sorted(segments)
    bare = sorted(base for base in {*indexes} - {*segments} if base < active)
    found = []
    for base in bare:
        before = bisect_right(whole, base) - 1
        if before >= 0:
            path = fmt.segment_path(stream, whole[before])
            if whole[before] + file_size(disk, path) > base:
                found.append(base)
    return found


def cut_back(disk: Disk, stream: int, place: Placement) -> bool:
    """Bring a stream's files back to a placement; raise CorruptDataError where bytes are missing.

    Files of later segments hold nothing the journal does not: they go. Tells whether any did.
    """
    directory = fmt.stream_dir(stream)
    removed = False
    with faults_of(directory):
        names = disk.names(directory)
        for suffix in (".log", ".idx"):
            for base in fmt.numbered(names, suffix):
                if base > place.base or not place.made:
                    disk.unlink(f"{directory}/{base:016d}{suffix}")
                    removed = True
    if not place.made:
        return removed
    IndexFile(stream, place.base).cut(disk, place.index_bytes)
    if place.segment_bytes or f"{place.base:016d}.log" in names:
        cut_file(disk, fmt.segment_path(stream, place.base), place.segment_bytes)
    return removed


def remove(disk: Disk, stream: int) -> None:
    """Remove a stream's directory with all it holds; what is gone already is fine.

    A directory in it, or a file in its place, is not ours and stays.
    """
    directory = fmt.stream_dir(stream)
    try:
        for name in disk.names(directory):
            with suppress(IsADirectoryError):
                disk.unlink(f"{directory}/{name}")
        if disk.exists(directory) and not disk.names(directory):
            disk.remove_directory(directory)
    except NotADirectoryError:
        return


def remove_below(disk: Disk, stream: int, active: int, position: int) -> None:
    """Remove segments that lie wholly below a position, and orphans among them."""
    passed = [after for _, after in pairwise(bases(disk, stream, active)) if after <= position]
    for base in files(disk, stream) if passed else ():
        if base < passed[-1]:
            for path in (fmt.segment_path(stream, base), fmt.index_path(stream, base)):
                if disk.exists(path):
                    disk.unlink(path)
