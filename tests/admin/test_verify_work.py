"""verify --deep reads what there is once, in little memory; how fast: tools/bench bounds."""

import os
import resource
from pathlib import Path

import pytest

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.records import Append, Create
from durastreamd.offline.verify.verification import Scope, in_turn, verify
from durastreamd.storage.disk import RealDisk

RECORD, RECORDS = 64 * 1024, 4096


class UnsyncedDisk(RealDisk):
    """A disk for data that only has to be there for a moment."""

    def sync(self, handle: int) -> None:
        """Nothing has to last."""

    def sync_directory(self, path: str) -> None:
        """Nothing has to last."""

    def sync_everything(self) -> None:
        """Nothing has to last."""


def fill(root: Path) -> None:
    disk = UnsyncedDisk(str(root))
    engine, _ = open_engine(disk, EngineOptions(), lambda: os.urandom(16), 1000, create=True)
    create = Create(1, 0, 0, 1000, 0, 0, [], "/big", "application/octet-stream")
    engine.commit([(create, b"")])
    body = os.urandom(RECORD)
    for number in range(RECORDS):
        record = Append(1, number * RECORD, RECORD, 1000, number, 1, [RECORD])
        engine.commit([(record, body)])
        if engine.hot_bytes > engine.options.hot_bytes_max:
            cp.run(cp.flush(engine))
        if engine.rotation_due():
            engine.journal.rotate()
            cp.run(cp.checkpoint(engine))
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))
    engine.release()


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
    fill(tmp_path)
    disk = CountingDisk(str(tmp_path))
    there = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert verify(disk, Scope(deep=True), in_turn(disk)) == []
    assert RECORD * RECORDS < disk.read_bytes < 1.1 * there, "its time is that of one reading"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 64 * 1024, f"{grown} KiB for {RECORD * RECORDS >> 20} MiB"
