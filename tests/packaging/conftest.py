"""tools/build run once for all of these tests, whichever worker comes first.

``PACKED_IN=dist`` tests what is there, as before a release, instead of building it.
"""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.packaging.built import ROOT, Built

BUILD_S_MAX = 900  # Half a minute on an idle machine; the first time pip fetches packages.


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Everything tools/build makes."""
    if "PACKED_IN" in os.environ:
        return Built(Path(os.environ["PACKED_IN"]).absolute())
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    home = shared / "built"
    with (shared / "built.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "whole").exists():
            _build(home)
    return Built(home)


def _build(home: Path) -> None:
    command = [str(ROOT / "tools" / "build"), "--quick", "--out", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    (home / "whole").touch()
