"""Small file systems of their own, so that a test can fill a disk for real."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(point: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size for the length of a with block, or skip and say why not."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to mount a tmpfs")
    point.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=False, capture_output=True)
