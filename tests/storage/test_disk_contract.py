"""The simulated disk and the overlay behave as the real disk does: the same checks run on all."""

from pathlib import Path

import pytest

from durastreamd.errors import DirectoryLockedError
from durastreamd.storage.disk import Disk, RealDisk, read_file, write_all, write_new_file
from durastreamd.storage.overlay import OverlayDisk
from tests.support.sim_disk import SimDisk


@pytest.fixture(params=["real", "simulated", "overlay"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "simulated":
        return SimDisk()
    real = RealDisk(str(tmp_path))
    return real if request.param == "real" else OverlayDisk(real)


def test_a_file_reads_back_as_written(disk: Disk) -> None:
    write_new_file(disk, "a", b"hello")
    assert read_file(disk, "a") == b"hello"
    assert disk.exists("a")
    assert disk.names("") == ["a"]


def test_a_write_past_the_end_leaves_zeros(disk: Disk) -> None:
    handle = disk.open("a", create=True, write=True)
    write_all(disk, handle, b"x", 3)
    assert disk.size(handle) == 4
    assert disk.pread(handle, 10, 0) == b"\0\0\0x"
    assert disk.pread(handle, 10, 4) == b""
    assert disk.pread(handle, 2, 0, wait=False) == b"\0\0"
    disk.release(handle)


def test_truncate_cuts_and_grows(disk: Disk) -> None:
    write_new_file(disk, "a", b"hello")
    handle = disk.open("a", write=True)
    disk.truncate(handle, 2)
    disk.truncate(handle, 4)
    assert disk.pread(handle, 9, 0) == b"he\0\0"
    disk.release(handle)


def test_create_refuses_an_existing_file(disk: Disk) -> None:
    write_new_file(disk, "a", b"")
    with pytest.raises(FileExistsError):
        disk.open("a", create=True, write=True)


def test_open_refuses_a_missing_file(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.open("no/a", create=True, write=True)


def test_rename_replaces(disk: Disk) -> None:
    write_new_file(disk, "a", b"new")
    write_new_file(disk, "b", b"old")
    disk.rename("a", "b")
    assert disk.names("") == ["b"]
    assert read_file(disk, "b") == b"new"


def test_directories(disk: Disk) -> None:
    disk.make_directory("d")
    disk.make_directory("d")
    disk.make_directory("d/e")
    write_new_file(disk, "d/e/f", b"1")
    disk.sync_directory("d/e")
    disk.sync_everything()
    assert disk.names("d") == ["e"]
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory("d/e")
    disk.unlink("d/e/f")
    disk.remove_directory("d/e")
    assert disk.names("d/e") == []
    assert not disk.exists("d/e")
    with pytest.raises(FileNotFoundError):
        disk.unlink("d/e/f")


def test_a_handle_outlives_its_name(disk: Disk) -> None:
    write_new_file(disk, "a", b"hello")
    handle = disk.open("a")
    disk.unlink("a")
    assert disk.pread(handle, 5, 0) == b"hello"
    disk.release(handle)


def test_a_lock_excludes_a_second_one(disk: Disk) -> None:
    if isinstance(disk, OverlayDisk):
        return  # locks nothing, see tests/storage/test_overlay.py
    write_new_file(disk, "a", b"")
    handle = disk.lock("a")
    with pytest.raises(DirectoryLockedError):
        disk.lock("a")
    disk.release(handle)
    disk.release(disk.lock("a"))
