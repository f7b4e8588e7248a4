"""Checks of files at rest: whole ones pass and are paid for, no changed byte does."""

import pytest

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt, log
from durastreamd.storage.blobs import BlobFile, BlobWriter
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.scrub import FILE_COST, PIECE_BYTES, check_blob, check_stream
from tests.support.sim_disk import SimDisk

STREAM = 3
PAYLOADS = [b"first", b"x" * (PIECE_BYTES + 10), b"last"]


def written() -> tuple[SimDisk, log.Placement]:
    disk = SimDisk()
    disk.make_directory(fmt.STREAMS_DIR)
    frames, start = [], 0
    for lsn, data in enumerate(PAYLOADS, 1):
        total = payload_sum(data, STREAM, start)
        place = (STREAM, start, len(data), 1000, lsn - 1, total, lsn)
        frames.append(fmt.StoredFrame(*place, b"h", data))
        start += len(data)
    job = log.FlushJob(STREAM, log.placement_at(0), frames, None, rolls=False)
    return disk, log.flush(disk, job).placement


def checked(disk: SimDisk, place: log.Placement) -> int:
    try:
        return sum(check_stream(disk, STREAM, place, 0, []))
    finally:
        assert disk.open_handles == 0


def test_a_whole_stream_passes_and_costs_its_bytes() -> None:
    disk, place = written()
    assert checked(disk, place) == FILE_COST + place.index_bytes + place.segment_bytes


def test_no_piece_is_larger_than_a_piece() -> None:
    disk, place = written()
    pieces = list(check_stream(disk, STREAM, place, 0, []))
    assert len(pieces) == 3
    assert max(pieces[:-1]) == PIECE_BYTES


@pytest.mark.parametrize("at", [0, 4, 5, 300_000 % (PIECE_BYTES + 10), -1])
def test_a_changed_byte_of_the_segment_is_found(at: int) -> None:
    disk, place = written()

    def rot(data: bytearray) -> None:
        data[at] ^= 1

    disk.damage(fmt.segment_path(STREAM, 0), rot)
    with pytest.raises(CorruptDataError, match="does not verify"):
        checked(disk, place)


@pytest.mark.parametrize("path", [fmt.segment_path(STREAM, 0), fmt.index_path(STREAM, 0)])
def test_a_file_that_is_short_or_gone_is_found(path: str) -> None:
    disk, place = written()

    def cut(data: bytearray) -> None:
        del data[-1:]

    disk.damage(path, cut)
    with pytest.raises(CorruptDataError):
        checked(disk, place)
    disk.unlink(path)
    with pytest.raises(CorruptDataError):
        checked(disk, place)


def test_a_blob_is_checked_as_a_whole() -> None:
    disk = SimDisk()
    disk.make_directory(fmt.STREAMS_DIR)
    writer = BlobWriter(disk, STREAM, 5, 1)
    writer.write(b"folded")
    writer.finish()
    blob = BlobFile(STREAM, 5, 1, 6, writer.sum)
    assert sum(check_blob(disk, blob)) == FILE_COST + 6
    for wrong in (blob._replace(sum=writer.sum ^ 1), blob._replace(size=5)):
        with pytest.raises(CorruptDataError, match="the snapshot"):
            list(check_blob(disk, wrong))
    assert disk.open_handles == 0
