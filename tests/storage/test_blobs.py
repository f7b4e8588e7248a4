"""Snapshot blobs: durable before anybody is told of them, and gone if nobody ever is."""

import pytest

from durastreamd.errors import CorruptDataError, WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import BlobFile, BlobWriter, read_blob
from durastreamd.storage.checksum import payload_sum
from tests.support.sim_disk import SimDisk

STREAM, POSITION, SERIAL = 9, 40, 7
PATH = fmt.snapshot_path(STREAM, POSITION, SERIAL)


def writer_on(disk: SimDisk) -> BlobWriter:
    disk.make_directory(fmt.STREAMS_DIR)
    return BlobWriter(disk, STREAM, POSITION, SERIAL)


def test_a_finished_blob_has_its_bytes_its_size_and_its_sum() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    for piece in (b"fol", b"", b"ded"):
        writer.write(piece)
    writer.finish()
    assert disk.read(PATH) == b"folded"
    assert (writer.path, writer.size) == (PATH, 6)
    assert writer.sum == payload_sum(b"folded", STREAM, POSITION)
    assert disk.open_handles == 0


def test_a_discarded_blob_leaves_nothing() -> None:
    disk = SimDisk()
    for finished in (False, True):
        writer = BlobWriter(disk, STREAM, POSITION, SERIAL) if finished else writer_on(disk)
        writer.write(b"x")
        if finished:
            writer.finish()
        writer.discard()
        writer.discard()
        assert not disk.exists(PATH)
    assert disk.open_handles == 0


def test_a_blob_whose_stream_went_meanwhile_is_refused() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    writer.write(b"x")
    disk.unlink(PATH)
    with pytest.raises(WriteFailedError, match="was removed with its stream"):
        writer.finish()
    assert disk.open_handles == 0


def published(data: bytes) -> tuple[SimDisk, BlobFile]:
    disk = SimDisk()
    writer = writer_on(disk)
    writer.write(data)
    writer.finish()
    return disk, BlobFile(STREAM, POSITION, SERIAL, len(data), writer.sum)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8])
def test_a_blob_is_read_in_pieces(size: int) -> None:
    data = bytes(range(size))
    disk, blob = published(data)
    pieces = list(read_blob(disk, blob, 4))
    assert b"".join(pieces) == data
    assert [len(piece) for piece in pieces] == [4] * (size // 4) + [size % 4] * bool(size % 4)
    assert disk.open_handles == 0


def test_no_last_piece_comes_of_a_blob_that_does_not_verify() -> None:
    for at in range(9):
        disk, blob = published(b"ninebytes")

        def rot(data: bytearray, at: int = at) -> None:
            data[at] ^= 1

        disk.damage(PATH, rot)
        found: list[bytes] = []
        with pytest.raises(CorruptDataError, match="does not verify"):
            found.extend(read_blob(disk, blob, 4))
        assert disk.open_handles == 0
        assert len(found) <= 2


def test_a_blob_of_another_length_is_refused_before_its_first_piece() -> None:
    disk, blob = published(b"ninebytes")
    for size in (8, 10):
        with pytest.raises(CorruptDataError, match=f"has 9 bytes, not {size}"):
            next(read_blob(disk, blob._replace(size=size), 4))
    with pytest.raises(CorruptDataError, match="does not verify"):
        list(read_blob(*published(b"")[:1], BlobFile(STREAM, POSITION, SERIAL, 0, 1), 4))
    assert disk.open_handles == 0
