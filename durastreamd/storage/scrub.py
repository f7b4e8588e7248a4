"""Verifying files at rest: every byte of a stream's segments, indexes and snapshots, once through.

A check is a generator: it yields what each piece cost, so that whoever drives it can wait between
two. It shares the records' verification with readers, and neither their tables nor their handles:
what readers have at hand is left as it is. The kernel's page cache is left, too: what had to come
from the disk is given back at once. What is in that cache is verified there, since readers would
get it from there; once the kernel has dropped it, the next round meets the disk.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt, log
from durastreamd.storage.blobs import BlobCheck, BlobFile
from durastreamd.storage.disk import Disk, faults_of
from durastreamd.storage.proofs import Records, Segment

PIECE_BYTES = 256 * 1024
# Finding, opening and asking a file costs as much as reading so many bytes; small files count too.
FILE_COST = 64 * 1024

Check = Generator[int, None, None]


def check_stream(
    disk: Disk, stream: int, place: log.Placement, low: int, blobs: Iterable[BlobFile]
) -> Check:
    """Check what a stream has on disk from the position ``low`` on, and these snapshots."""
    if place.made:
        directory = fmt.stream_dir(stream)
        with faults_of(directory):
            bases = log.bases(disk, stream, place.base)
        if place.base not in bases:
            raise CorruptDataError(fmt.index_path(stream, place.base), 0, "the file is missing")
        if low < min(bases[0], place.flushed):
            raise CorruptDataError(directory, low, "no segment holds this position")
        for base, end in pairwise(bases):
            if end > low:
                yield from check_segment(disk, Segment(stream, base), end - base)
        active = Segment(stream, place.base, place.segment_bytes, place.index_bytes)
        yield from check_segment(disk, active, place.segment_bytes)
    for blob in blobs:
        yield from check_blob(disk, blob)


def check_segment(disk: Disk, segment: Segment, length: int) -> Check:
    """Check a segment and its index against each other; one at rest ends where the next begins."""
    file = segment.index_file
    with _opened(disk, file.path) as (read_index, index_found):
        index_size = segment.index_size if segment.index_size >= 0 else index_found
        reader = file.reader(_reader(read_index, index_size), index_size)
        records = Records(reader, segment)
        if segment.size == 0:
            records.finish(0)
        else:
            with _opened(disk, segment.path) as (read_bytes, found):
                if segment.size < 0 and found != length:
                    reason = f"the segment has {found} bytes, and the next begins after {length}"
                    raise CorruptDataError(segment.path, min(found, length), reason)
                yield from _pieces(read_bytes, segment.path, length, records.feed)
            records.finish(length)
    yield FILE_COST + index_size


def check_blob(disk: Disk, blob: BlobFile) -> Check:
    """Check a snapshot's file."""
    with _opened(disk, blob.path) as (read, found):
        check = BlobCheck(blob, found)
        yield from _pieces(read, blob.path, blob.size, lambda piece, _at: check.add(piece))
    check.finish()
    yield FILE_COST


_Read = Callable[[memoryview, int], int]


@contextmanager
def _opened(disk: Disk, path: str) -> Iterator[tuple[_Read, int]]:
    """Lend a way to read a file, and its length."""
    with faults_of(path):
        handle = disk.open(path)

    def read(buffer: memoryview, position: int) -> int:
        with faults_of(path):
            return disk.pread_once(handle, buffer, position)

    try:
        with faults_of(path):
            size = disk.size(handle)
        yield read, size
    finally:
        disk.release(handle)


def _reader(read: _Read, limit: int) -> Callable[[int, int], bytes]:
    def sized(size: int, position: int) -> bytes:
        buffer = memoryview(bytearray(max(min(size, limit - position), 0)))
        return bytes(buffer[: read(buffer, position)])

    return sized


def _pieces(read: _Read, path: str, size: int, take: Callable[[memoryview, int], object]) -> Check:
    """Hand over a file piece by piece; yield what each one cost."""
    buffer = memoryview(bytearray(min(PIECE_BYTES, size)))
    at = 0
    while at < size:
        got = read(buffer[: size - at], at)
        if not got:
            raise CorruptDataError(path, at, "the file ends here")
        take(buffer[:got], at)
        at += got
        yield got
