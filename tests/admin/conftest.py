"""A running daemon with data of every kind, and a copy of its directory after a kill."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from durastreamd.storage import format as fmt
from tests.admin.harness import SMALL, fill
from tests.support.daemon import Daemon
from tests.support.patience import wait_until


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("admin"), settings=SMALL) as running:
        fill(running)
        yield running


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a daemon that was killed."""
    home = tmp_path_factory.mktemp("killed")
    with Daemon(home, settings=SMALL) as running:
        fill(running)
        first = home / "data" / fmt.journal_path(1)
        wait_until(lambda: not first.exists(), "no checkpoint came by")  # then segments are there
        running.kill9()
    return home / "data"


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"
