"""verify --deep reads what there is once, in little memory; how fast: tools/bench bounds."""

import resource
from pathlib import Path

import pytest

from durastreamd.offline.verify.verification import Scope, in_turn, verify
from durastreamd.storage.disk import RealDisk
from tests.support.unsynced import UnsyncedDisk
from tools.load.subjects import RECORD_BYTES, fill

RECORDS = 4096


class CountingDisk(RealDisk):
    """Counts the bytes that are read."""

    read_bytes = 0

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        data = super().pread(handle, size, position, wait=wait)
        self.read_bytes += len(data)
        return data

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        taken = super().pread_into(handle, buffer, position, wait=wait)
        self.read_bytes += taken
        return taken


@pytest.mark.slow
def test_every_byte_is_read_about_once_and_little_is_kept(tmp_path: Path) -> None:
    fill(UnsyncedDisk(str(tmp_path)), RECORDS)
    disk = CountingDisk(str(tmp_path))
    there = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert verify(disk, Scope(deep=True), in_turn(disk)) == []
    assert RECORD_BYTES * RECORDS < disk.read_bytes < 1.1 * there, "its time is that of one reading"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 64 * 1024, f"{grown} KiB for {RECORD_BYTES * RECORDS >> 20} MiB"
