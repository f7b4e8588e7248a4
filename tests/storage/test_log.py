"""A stream's files: what a flush leaves, whole or cut short, and which files are its segments."""

import errno

import pytest

from durastreamd.errors import WriteFailedError
from durastreamd.storage import format as fmt, log
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import file_size, write_at
from durastreamd.storage.index import IndexFile
from tests.support.fault_disk import SHORT, FaultDisk
from tests.support.sim_disk import SimDisk

STREAM = 7


def frame(start: int, payload: bytes, lsn: int, header: bytes = b"h") -> fmt.StoredFrame:
    total = payload_sum(payload, STREAM, start)
    return fmt.StoredFrame(STREAM, start, len(payload), lsn, 0, total, lsn, header, payload)


def state(position: int, size: int) -> fmt.StoredFrame:
    return fmt.StoredFrame(STREAM, position, 0, 1, 0, 0, 1, b"s" * size, b"")


def disk_with(cls: type[SimDisk] = SimDisk) -> SimDisk:
    disk = cls()
    disk.make_directory(fmt.STREAMS_DIR)
    return disk


def size_of(disk: SimDisk, path: str) -> int:
    return file_size(disk, path)


def test_a_flush_after_a_failed_one_leaves_no_byte_of_it() -> None:
    """The failed one had a long state to write; the next rolls and writes less to this index."""
    disk = disk_with(FaultDisk)
    assert isinstance(disk, FaultDisk)
    first = frame(0, b"x" * 10, 1)
    place = log.flush(
        disk, log.FlushJob(STREAM, log.placement_at(0), [first], None, rolls=False)
    ).placement
    second = frame(10, b"y" * 10, 2)
    disk.fault, disk.only = SHORT, ("pwrite",)
    disk.fail_at, disk.period = disk.calls + 4, 1  # open, bytes, release, open, entries
    failing = log.FlushJob(STREAM, place, [second], state(20, 4000), rolls=False)
    with pytest.raises(WriteFailedError):
        log.flush(disk, failing)
    disk.fail_at = 0
    assert size_of(disk, fmt.index_path(STREAM, 0)) > place.index_bytes
    rolling = log.FlushJob(STREAM, place, [second], state(20, 100), rolls=True)
    after = log.flush(disk, rolling).placement
    assert after.base == 20
    length = size_of(disk, fmt.index_path(STREAM, 0))
    with IndexFile(STREAM, 0).opened(disk, length) as reader:
        assert [entry.frame.lsn for entry in reader.entries()] == [1, 2]


def test_an_index_inside_another_segment_is_none() -> None:
    disk = disk_with()
    log.make_directories(disk, STREAM)
    for base, size in ((0, 100), (100, 50)):
        write_at(disk, fmt.segment_path(STREAM, base), [b"x" * size], 0)
        write_at(disk, fmt.index_path(STREAM, base), [b"i"], 0)
    for orphan in (30, 60, 120):
        write_at(disk, fmt.index_path(STREAM, orphan), [b"i"], 0)
    write_at(disk, fmt.index_path(STREAM, 150), [b"i"], 0)  # the active one has no bytes yet
    assert log.bases(disk, STREAM, 150) == [0, 100, 150]
    assert log.bases(disk, STREAM, 100) == [0, 100]
    assert log.files(disk, STREAM) == [0, 30, 60, 100, 120, 150]


def test_a_lost_segment_is_not_taken_for_an_orphan() -> None:
    disk = disk_with()
    log.make_directories(disk, STREAM)
    write_at(disk, fmt.segment_path(STREAM, 0), [b"x" * 100], 0)
    for base in (0, 100, 150):
        write_at(disk, fmt.index_path(STREAM, base), [b"i"], 0)
    assert log.bases(disk, STREAM, 150) == [0, 100, 150]


def test_what_retention_passed_goes_with_its_orphans_and_nothing_else() -> None:
    disk = disk_with()
    log.make_directories(disk, STREAM)
    for base, size in ((0, 100), (100, 50), (150, 10)):
        write_at(disk, fmt.segment_path(STREAM, base), [b"x" * size], 0)
        write_at(disk, fmt.index_path(STREAM, base), [b"i"], 0)
    for orphan in (30, 120):
        write_at(disk, fmt.index_path(STREAM, orphan), [b"i"], 0)
    log.remove_below(disk, STREAM, 150, 130)  # an orphan at 120 ends no segment
    assert log.files(disk, STREAM) == [100, 120, 150]
    log.remove_below(disk, STREAM, 150, 99)
    assert log.files(disk, STREAM) == [100, 120, 150]
    log.remove_below(disk, STREAM, 150, 150)
    assert log.files(disk, STREAM) == [150]


def test_a_new_index_that_could_not_be_written_is_taken_back() -> None:
    disk = disk_with(FaultDisk)
    assert isinstance(disk, FaultDisk)
    log.make_directories(disk, STREAM)
    disk.fault, disk.only, disk.period = errno.ENOSPC, ("pwrite",), 1
    disk.fail_at = disk.calls + 1
    with pytest.raises(WriteFailedError):
        log.begin_segment(disk, STREAM, 50, state(50, 10))
    assert log.files(disk, STREAM) == []
