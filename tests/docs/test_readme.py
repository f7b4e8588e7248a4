"""The README and the guide: their lines, run as they stand there, and the benchmark's figures."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

TOP = Path(__file__).parent.parent.parent
TEXT = (TOP / "README.md").read_text() + (TOP / "docs" / "guide.md").read_text()
FIGURES = (TOP / "docs" / "speed.md").read_text()
LINES = re.findall(r"^curl .*$", TEXT, re.MULTILINE)
DSADMIN_LINES = re.findall(r"^dsadmin .*$", TEXT, re.MULTILINE)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("curl") is None, reason="not run: no curl"),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings={"reads.sse_s": 1}) as running:
        yield running


def run(line: str, daemon: Daemon) -> str:
    """Run one line of the README against a server of the test's own."""
    command = line.replace("http://127.0.0.1:4437", daemon.url).replace("curl ", "curl -sS ", 1)
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_every_curl_line_does_what_the_readme_says(daemon: Daemon) -> None:
    answers = {line: run(line, daemon) for line in LINES}
    assert len(answers) >= 11
    for line, answer in answers.items():
        assert "/errors/" not in answer, (line, answer)
    found = {line.rsplit("/", 1)[-1]: answer for line, answer in answers.items()}
    assert found["hello?offset=-1'"] == '[{"n": 1}]'
    assert 'data:[{"n": 1}]' in found["hello?offset=-1&live=sse'"]
    assert '"stream_id": "run-1"' in found["streams?prefix=run-'"]
    assert found["snapshot"] == '{"sum": 5}'
    assert '{"sum": 5}' in found["bootstrap"]


def test_the_dsadmin_lines_work_beside_the_server(daemon: Daemon, tmp_path: Path) -> None:
    for line in LINES[:2]:
        run(line, daemon)
    close = f"curl -X POST {daemon.stream('hello')} -H 'Stream-Closed: true'"
    run(close, daemon)  # so that tail ends
    answers = [run_dsadmin(line, daemon, tmp_path) for line in DSADMIN_LINES[:-1]]
    assert "hello" in answers[0]
    assert answers[-1] == '{"n": 1}\n'
    daemon.terminate()
    assert run_dsadmin(DSADMIN_LINES[-1], daemon, tmp_path) == ""  # nothing is damaged
    assert (tmp_path / "backups" / "tonight" / "DURASTREAMD").exists()


def run_dsadmin(line: str, daemon: Daemon, home: Path) -> str:
    """Run one of dsadmin's lines on the files of that server."""
    command = line.partition("#")[0].replace("http://127.0.0.1:4437", daemon.url)
    command = command.replace("durastream-data", str(daemon.home / "data"))
    command = command.replace("/backups", str(home / "backups"))
    (home / "backups").mkdir(exist_ok=True)
    words = [sys.executable, "-m", "durastreamd.admin.cli", *command.split()[1:]]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=TOP
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_the_curl_lines_of_the_architecture_are_among_those() -> None:
    shown = re.findall(r"`(curl [^`]*)`", (TOP / "ARCHITECTURE.md").read_text())
    assert shown
    assert set(shown) <= set(LINES)


def test_the_data_directory_is_for_its_owner_alone(daemon: Daemon) -> None:
    root = daemon.home / "data"
    assert root.stat().st_mode & 0o777 == 0o700
    for path in root.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


# --- figures ---

# A row's name: the workload it shows, the figure of it, its unit.
ROWS = {
    "appends/s, 1 stream": ("append-1", "per_s", ""),
    "appends/s, 100 streams": ("append-100", "per_s", ""),
    "appends/s, 10,000 streams": ("append-10k", "per_s", ""),
    "creates/s, 1,000 at once": ("create", "per_s", ""),
    "catch-up of 16 MiB, 8 readers, MB/s": ("catch-up-binary-8", "mb_per_s", ""),
    "SSE delivery, 1,000 readers, p50": ("sse-1000", "p50_ms", " ms"),
    "memory, 1,000 readers": ("sse-1000", "peak_mb", " MB"),
    "restart after a crash, 10,000 streams": ("restart", "restart_s", " s"),
}
MISSING = {"fails", "nothing left"}  # what a server could not do


def test_the_figures_are_those_of_the_benchmark() -> None:
    workloads = json.loads((TOP / "bench" / "results.json").read_text())["workloads"]
    lines = re.findall(r"^\|(.*)\|$", FIGURES, re.MULTILINE)
    (_, *servers), _, *rows = [[part.strip() for part in line.split("|")] for line in lines]
    assert [name for name, *_ in rows] == list(ROWS)
    for name, *figures in rows:
        workload, figure, unit = ROWS[name]
        for server, text in zip(servers, figures, strict=True):
            found = workloads[workload].get(server)
            if found is None:
                assert text in MISSING, (name, server)
            else:
                small = unit in (" ms", " s") and found[figure] < 100
                digits = f"{found[figure]:,.{1 if small else 0}f}"
                assert text == digits + unit, (name, server)
