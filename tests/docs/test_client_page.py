"""The page on the client library: its examples run, and it names what there is."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from durastreamd import client
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

TEXT = (ROOT / "docs" / "client.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


@pytest.mark.system
def test_the_examples_run_one_after_the_other(daemon: Daemon, tmp_path: Path) -> None:
    program = "\n".join(BLOCKS).replace("http://127.0.0.1:4437", daemon.url)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("b'{\"celsius\": 21.5}'")
    assert len(lines) == 2 + 2 + 1000 + 1
    assert lines[-1] == "b'{\"celsius\": 22}'"


def test_every_error_is_on_the_page() -> None:
    kinds = {name for name in client.__all__ if name.endswith("Error")} - {"CutShortError"}
    assert kinds <= set(re.findall(r"`(\w+Error)`", TEXT))


def test_every_method_of_a_stream_is_on_the_page() -> None:
    methods = {name for name in vars(client.DurableStream) if not name.startswith("_")}
    assert {name for name in methods - {"hang_up", "content_type"} if name not in TEXT} == set()
