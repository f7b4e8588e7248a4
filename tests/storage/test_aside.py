"""Records set aside: all of them come back as they were, or none does."""

import pytest

from durastreamd.errors import CorruptDataError
from durastreamd.storage import aside, format as fmt
from durastreamd.storage.checksum import payload_sum
from tests.support.sim_disk import SimDisk

UUID = b"\x07" * 16
STREAM = 3


def frame(lsn: int, start: int, payload: bytes) -> fmt.StoredFrame:
    total = payload_sum(payload, STREAM, start)
    return fmt.StoredFrame(STREAM, start, len(payload), 5, 1, total, lsn, b"\x81\0", payload)


FRAMES = [frame(7, 10, b"abc"), frame(9, 13, b""), frame(12, 13, b"defg")]


def kept() -> SimDisk:
    disk = SimDisk()
    aside.write(disk, UUID, FRAMES[:2])
    aside.write(disk, UUID, FRAMES[2:])
    return disk


def test_records_come_back_in_order_from_all_files() -> None:
    disk = kept()
    assert aside.read(disk, UUID, STREAM, 0, 12) == FRAMES
    assert aside.read(disk, UUID, STREAM, 7, 9) == FRAMES[1:2]
    aside.write(disk, UUID, FRAMES[:2])  # again, after an attempt that was cut short
    assert aside.read(disk, UUID, STREAM, 0, 12) == FRAMES


def test_one_that_is_missing_or_later_than_all_is_told() -> None:
    disk = kept()
    disk.unlink(aside.path_of(STREAM, 9))
    assert aside.read(disk, UUID, STREAM, 9, 12) == FRAMES[2:]
    for last, disk in ((13, kept()), (12, SimDisk())):
        with pytest.raises(CorruptDataError, match="is not there"):
            aside.read(disk, UUID, STREAM, 0, last)
    with pytest.raises(CorruptDataError):
        aside.read(kept(), b"\x08" * 16, STREAM, 0, 12)


def test_a_hole_between_two_is_told() -> None:
    disk = SimDisk()
    aside.write(disk, UUID, [FRAMES[0]])
    aside.write(disk, UUID, [frame(12, 14, b"x")])
    with pytest.raises(CorruptDataError, match="between 7 and 12"):
        aside.read(disk, UUID, STREAM, 0, 12)


def test_no_bit_of_them_flips_unnoticed() -> None:
    path = aside.path_of(STREAM, 12)
    size = fmt.FRAME.size + 2 + 4
    # A sum vouches for all but two fields that say nothing here and are summed as well.
    for bit in range(0, size * 8, 3):
        disk = kept()

        def flip(data: bytearray, bit: int = bit) -> None:
            data[bit // 8] ^= 1 << bit % 8

        disk.damage(path, flip)
        with pytest.raises(CorruptDataError):
            aside.read(disk, UUID, STREAM, 0, 12)
