"""A real power cut: an ext4 image whose file system is shut down under the writer.

FS_IOC_SHUTDOWN without a flush of the log makes every later operation fail and leaves on the
image what had reached it, as a cut does; the next mount replays ext4's own journal.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.system import writer_process
from tests.system.test_kill import ACKS_BYTES, spawn, wait_for_acks

_FS_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # _IOR('X', 125, u32)
_NO_LOG_FLUSH = 2
CUTS = 4


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def make_image(path: Path) -> None:
    """Make an ext4 image, or skip and say what is missing."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to mount a loop device")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4 (package e2fsprogs)")
    if not Path("/dev/loop-control").exists():
        pytest.skip("needs a kernel with loop devices: /dev/loop-control is missing")
    with path.open("wb") as image:
        image.truncate(48 * 1024 * 1024)
    made = run("mkfs.ext4", "-q", "-F", str(path))
    assert made.returncode == 0, made.stderr


@contextmanager
def mounted(image: Path, point: Path) -> Iterator[None]:
    """Mount the image for the length of a with block; its loop device goes with the mount."""
    found = run("mount", "-t", "ext4", "-o", "loop", str(image), str(point))
    if found.returncode != 0:
        pytest.skip(f"needs the right to mount a loop device: {found.stderr.strip()}")
    try:
        yield
    finally:
        for _ in range(20):
            if run("umount", str(point)).returncode == 0:
                break
            time.sleep(0.1)
        else:
            run("umount", "-l", str(point))


def cut_power(point: Path) -> None:
    handle = os.open(point, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    except OSError as exc:
        pytest.skip(f"needs an ext4 with FS_IOC_SHUTDOWN: {exc.strerror}")
    finally:
        os.close(handle)


@pytest.mark.slow
@pytest.mark.system
def test_acknowledged_appends_survive_power_cuts(tmp_path: Path) -> None:
    image, point, acks = tmp_path / "image", tmp_path / "mount", tmp_path / "acks"
    point.mkdir()
    make_image(image)
    rng = random.Random(2026)
    data = point / "data"
    checked = writer_process.Checked(0, 0, 0)
    for life in range(CUTS):
        with mounted(image, point):
            if not data.exists():
                data.mkdir()
                os.sync()
            size = acks.stat().st_size if acks.exists() else 0
            process = spawn(data, acks, life)
            try:
                wait_for_acks(process, acks, size + rng.randrange(ACKS_BYTES))
                promised = acks.stat().st_size
                cut_power(point)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.3)  # it finds out by itself, mostly
            finally:
                process.kill()
                process.communicate(timeout=PATIENCE_S)
            # A real cut stops the process, too. Here it goes on, and an fdatasync that was under
            # way returns success for what never reached the image: only earlier promises count.
            os.truncate(acks, promised)
        with mounted(image, point):
            checked = writer_process.check(data, acks)
            assert checked.acknowledged > 0
    assert checked.stored > 50, "too little was written to prove anything"
