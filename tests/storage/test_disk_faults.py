"""What becomes of an error of the disk: a write to be tried again, or the end. Never a surprise."""

import ctypes
import errno
import os
import random
from pathlib import Path

import pytest

from durastreamd.errors import SyncFailedError, WriteFailedError
from durastreamd.storage import catalog, format as fmt
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.disk import RealDisk, read_file, write_new_file
from tests.support.crashes import catalogue_rewritten_at, recovered
from tests.support.fault_disk import FaultDisk
from tests.support.sim_disk import crash_images
from tests.support.world import World, dump


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    disk = RealDisk(str(tmp_path))
    disk.make_directory("journal")
    return disk


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refusing(path: str, *_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize("path", ["journal", ""])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_directory_without_a_descriptor_is_synced_later(
    disk: RealDisk, path: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was lost by not trying; this ended the server."""
    refuse_to_open(monkeypatch, number)
    with pytest.raises(WriteFailedError):
        disk.sync_directory(path)
    with pytest.raises(WriteFailedError):
        disk.sync_everything()
    monkeypatch.undo()
    disk.sync_directory(path)
    disk.sync_everything()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ELOOP])
def test_a_directory_that_cannot_be_opened_cannot_be_made_durable(
    disk: RealDisk, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_open(monkeypatch, number)
    with pytest.raises(SyncFailedError):
        disk.sync_directory("journal")
    with pytest.raises(SyncFailedError):
        disk.sync_everything()


def test_no_error_of_a_sync_is_passed_over(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def syncfs(_: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    handle = disk.open("a", create=True, write=True)
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(SyncFailedError):
        disk.sync(handle)
    disk.release(handle)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SyncFailedError):
        disk.sync_directory("journal")
    monkeypatch.setattr(disk._libc, "syncfs", syncfs)
    with pytest.raises(SyncFailedError, match="syncfs failed: Input/output error"):
        disk.sync_everything()


def test_a_new_file_that_cannot_be_made_is_a_failed_write(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_open(monkeypatch, errno.EMFILE)
    with pytest.raises(WriteFailedError):
        write_new_file(disk, "a", b"")
    writer = BlobWriter(disk, 1, 0, 1)
    with pytest.raises(WriteFailedError):
        writer.write(b"x")
    writer.discard()


def short_of_descriptors(disk: FaultDisk, *operations: str) -> None:
    disk.fail_at, disk.period, disk.fault, disk.only = 1, 1, errno.EMFILE, operations


def test_a_rotation_without_a_descriptor_is_done_later() -> None:
    """And whatever the power leaves of the file that was taken back, it is in nobody's way."""
    disk = FaultDisk()
    world = World(disk)
    world.create("/a")
    rng = random.Random(0)
    for operations in (("open",), ("sync_directory",)):
        short_of_descriptors(disk, *operations)
        with pytest.raises(WriteFailedError):
            world.checkpoint()
        disk.fail_at = 0
        world.append("/a", b"after a rotation that failed")
        expected = dump(world.engine)
        for image in crash_images(disk, rng, cap=8, weak=True):
            assert recovered(image, "cut") == expected
        assert recovered(disk.survivor(), "kill") == expected
    expected = dump(world.engine)
    world.checkpoint()
    assert recovered(disk.survivor(), "kill") == expected


def test_a_catalogue_that_could_not_be_written_anew_never_counts() -> None:
    """By its number it would: the old one went on, and what it held later would be lost."""
    disk = FaultDisk()
    with catalogue_rewritten_at(0):
        world = World(disk)
        world.create("/a")
        world.append("/a", b"1")
        world.engine.outdated_rows = 1000
        original = catalog.CatalogWriter.rewrite

        def rewrite(self: catalog.CatalogWriter, *arguments: object) -> None:
            short_of_descriptors(disk, "sync_directory")
            try:
                original(self, *arguments)  # type: ignore[arg-type]
            finally:
                disk.fail_at = 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog.CatalogWriter, "rewrite", rewrite)
            with pytest.raises(WriteFailedError):
                world.checkpoint()
    world.engine.outdated_rows = -1000
    world.append("/a", b"2")
    world.checkpoint()
    world.append("/a", b"3")
    expected = dump(world.engine)
    for image in crash_images(disk, random.Random(1), cap=16, weak=True):
        assert recovered(image, "cut") == expected
    assert recovered(disk.survivor(), "kill") == expected


def test_superseded_catalogues_go_when_the_directory_is_opened() -> None:
    world = World()
    current = world.engine.catalog.number
    for name in (f"{current - 1:016d}.cat", f"{current + 1:016d}.cat.new"):
        write_new_file(world.disk, f"{fmt.CATALOG_DIR}/{name}", b"left over")
    world.reopen()
    assert world.disk.names(fmt.CATALOG_DIR) == [f"{world.engine.catalog.number:016d}.cat"]


def test_a_read_that_a_bad_sector_ends_is_no_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hands out what lies before the sector, and fails the next read."""
    disk = RealDisk(str(tmp_path))
    write_new_file(disk, "a", b"0123456789")
    real, real_vector = os.pread, os.preadv

    def pread(handle: int, size: int, position: int) -> bytes:
        if position >= 4:
            raise OSError(errno.EIO, "bad sector")
        return real(handle, min(size, 4 - position), position)

    def preadv(handle: int, buffers: list[memoryview], position: int) -> int:
        if position >= 4:
            raise OSError(errno.EIO, "bad sector")
        return real_vector(handle, [buffers[0][: 4 - position]], position)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="bad sector: 'a'"):
        read_file(disk, "a")
    handle = disk.open("a")
    with pytest.raises(OSError, match="bad sector"):
        disk.pread_into(handle, memoryview(bytearray(10)), 0)
    assert disk.pread(handle, 4, 0) == b"0123"
    disk.release(handle)
