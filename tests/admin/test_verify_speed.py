"""verify --deep keeps up with the disk: at least half as fast as cat, in little memory."""

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from durastreamd.admin.verification import Scope, in_turn, verify
from durastreamd.engine import checkpoint as cp
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.records import Append, Create
from durastreamd.storage.disk import RealDisk

RECORD, RECORDS = 64 * 1024, 4096
ROUNDS = 5


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


def _cat_s(files: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(["cat", *files], stdout=nowhere, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _verify_s(root: Path) -> float:
    disk = RealDisk(str(root))
    begun = time.process_time()
    assert verify(disk, Scope(deep=True), in_turn(disk)) == []
    return time.process_time() - begun


@pytest.mark.slow
def test_half_the_speed_of_cat_on_one_core(tmp_path: Path) -> None:
    """By processor time, so that a busy machine does not matter; two processes halve the rest."""
    fill(tmp_path)
    files = [str(path) for path in tmp_path.rglob("*") if path.is_file()]
    cat = min(_cat_s(files) for _ in range(ROUNDS))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mine = min(_verify_s(tmp_path) for _ in range(ROUNDS))
    assert mine < 2 * cat, f"{mine:.3f} s against {cat:.3f} s of cat"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 32 * 1024, f"{grown} KiB for {RECORD * RECORDS >> 20} MiB"
