"""Whose a data directory is: the lock comes before anything is looked at or made."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.engine.opening import open_engine
from durastreamd.errors import DataDirectoryError, DirectoryLockedError
from durastreamd.storage import datadir, format as fmt
from durastreamd.storage.disk import RealDisk
from tests.support.world import NOW, TINY

SERVERS = 5


def opened(disk: RealDisk, *, create: bool = True) -> object:
    engine, _ = open_engine(disk, TINY, lambda: os.urandom(16), NOW, create=create)
    return engine


class InterruptedDisk(RealDisk):
    """While one server makes the directory another one comes."""

    others = 0

    def make_directory(self, path: str) -> None:
        if not self.others:
            self.others += 1
            with pytest.raises(DirectoryLockedError):
                opened(RealDisk(self._root))
        super().make_directory(path)


def test_nobody_looks_into_a_directory_that_is_being_made(tmp_path: Path) -> None:
    """Two servers with --init: the second removed what the first had made, and both served."""
    disk = InterruptedDisk(str(tmp_path))
    engine = opened(disk)
    assert disk.others == 1
    with pytest.raises(DirectoryLockedError):
        opened(RealDisk(str(tmp_path)))
    engine.release()  # type: ignore[attr-defined]
    opened(RealDisk(str(tmp_path))).release()  # type: ignore[attr-defined]


def test_a_refused_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError):
        opened(RealDisk(str(tmp_path)), create=False)
    opened(RealDisk(str(tmp_path))).release()  # type: ignore[attr-defined]


def test_an_older_version_and_this_one_keep_each_other_out(tmp_path: Path) -> None:
    """Older versions lock the identity alone."""
    opened(RealDisk(str(tmp_path))).release()  # type: ignore[attr-defined]
    disk = RealDisk(str(tmp_path))
    older = disk.lock(fmt.IDENTITY_FILE)
    with pytest.raises(DirectoryLockedError):
        opened(RealDisk(str(tmp_path)))
    disk.release(older)
    engine = opened(RealDisk(str(tmp_path)))
    with pytest.raises(DirectoryLockedError):
        disk.lock(fmt.IDENTITY_FILE)
    engine.release()  # type: ignore[attr-defined]


def test_a_lock_on_a_file_that_lost_its_name_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path))
    datadir.make_folders(disk)
    datadir.write_identity(disk, b"1" * 16)
    original = fcntl.flock

    def flock(handle: int, how: int) -> None:
        original(handle, how)
        datadir.write_identity(disk, b"2" * 16)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(DirectoryLockedError):
        disk.lock(fmt.IDENTITY_FILE)


def test_a_file_system_that_locks_no_directories_has_the_lock_of_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock

    def flock(handle: int, how: int) -> None:
        if os.path.samestat(os.fstat(handle), tmp_path.stat()):
            raise OSError(9, "Bad file descriptor")
        original(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    engine = opened(RealDisk(str(tmp_path)))
    with pytest.raises(DirectoryLockedError):
        opened(RealDisk(str(tmp_path)))
    engine.release()  # type: ignore[attr-defined]


def test_of_servers_started_at_once_on_a_new_directory_one_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "durastreamd", "--init", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path / "data")]
    servers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(SERVERS)
    ]
    try:
        serving = []
        for server in servers:
            assert server.stdout is not None
            if b"listening on" in server.stdout.readline():
                serving.append(server)
        assert len(serving) == 1
        assert [s.wait() for s in servers if s not in serving] == [75] * (SERVERS - 1)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


def test_an_error_of_the_disk_under_the_lock_is_the_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output error"):
        opened(RealDisk(str(tmp_path)))
