"""Snapshot blobs: durable before anybody is told of them, and gone if nobody ever is."""

import pytest

from durastreamd.errors import WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import BlobWriter
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
