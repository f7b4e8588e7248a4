"""Files kept open: bounded, never taken from who reads, and given back when others need them."""

import errno
import os
from pathlib import Path

import pytest

from durastreamd.storage.disk import RealDisk
from durastreamd.storage.handles import HandleTable


class FewDescriptors:
    """Stands in for ``os.open``: fails while as many are open as there may be."""

    def __init__(self, disk: RealDisk, most: int) -> None:
        self._open = os.open
        self._disk = disk
        self.most = most
        self.table: HandleTable | None = None
        self.refused = 0

    def __call__(self, path: str, flags: int, mode: int = 0o777) -> int:
        assert self.table is not None
        if len(self.table) >= self.most:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        return self._open(path, flags, mode)


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    for number in range(6):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    return RealDisk(str(tmp_path))


def only(
    count: int, disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> tuple[FewDescriptors, HandleTable]:
    """Have a disk run out of descriptors, and a table of open files that gives some back."""
    few = FewDescriptors(disk, count)
    table = few.table = HandleTable(disk, 100)
    disk.relief = table.give_back
    monkeypatch.setattr("durastreamd.storage.disk.os.open", few)
    return few, table


def test_who_finds_no_descriptor_has_unused_ones_given_back(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, table = only(3, disk, monkeypatch)
    with table.pinned("0") as kept:
        for number in range(1, 6):
            with table.pinned(str(number)) as handle:
                assert disk.pread(handle, 1, 0) == b"%d" % number
            assert disk.pread(kept, 1, 0) == b"0", "a file in use stays"
        assert few.refused == 2
        with table.pinned("1"):
            pass
        disk.sync_directory("")
        assert few.refused == 3, "a directory to be synced asks as well"
        assert len(table) == 1
    table.release()


def test_without_anything_to_give_back_it_fails_as_it_was(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _few, table = only(1, disk, monkeypatch)
    with table.pinned("0"), pytest.raises(OSError, match="Too many open files"):
        with table.pinned("1"):
            pass
    assert not HandleTable(disk, 1).give_back()
    with table.pinned("1") as handle:
        assert disk.pread(handle, 1, 0) == b"1", "and it passes by itself"
    table.release()


def test_the_least_used_goes_when_the_set_is_full(disk: RealDisk) -> None:
    table = HandleTable(disk, 2)
    for number in (0, 1, 0, 2):
        with table.pinned(str(number)):
            pass
    assert list(table._files) == ["0", "2"]
    table.forget("0")
    assert len(table) == 1
    table.release()
    assert len(table) == 0
