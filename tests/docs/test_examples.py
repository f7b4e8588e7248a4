"""The examples that need no Spark, run as their readers run them (the others: tests/spark)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.system


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lines_are_stored_once_however_often_they_are_sent(daemon: Daemon, tmp_path: Path) -> None:
    file, url = tmp_path / "journal.txt", daemon.stream("journal")
    file.write_text("first\nsecond\n")
    assert run("lines.py", file, url) == "2 lines are new\n"
    daemon.kill9()
    daemon.start()
    with file.open("a") as more:
        more.write("third\n")
    assert run("lines.py", file, url) == "1 lines are new\n"
    assert httpx.get(url).text == "first\nsecond\nthird\n" == file.read_text()


def test_every_example_is_run_by_a_test() -> None:
    others = ("spark/test_examples.py", "system/test_subscriptions.py")
    tested = Path(__file__).read_text()
    tested += "".join((ROOT / "tests" / other).read_text() for other in others)
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in tested, path
