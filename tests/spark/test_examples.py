"""The examples of Spark do what they say, against a running server and its own log files."""

import subprocess
import sys

import httpx
import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EXAMPLES = ROOT / "examples"
JSON = {"Content-Type": "application/json"}


def run(name: str, *arguments: str) -> str:
    """Run an example as its reader would: a process of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_per_minute_reads_the_files_of_a_running_server_and_writes_once(
    server: Daemon, http: httpx.Client, java: None
) -> None:
    assert http.put(server.stream("ex/orders"), headers=JSON).status_code == 201
    http.post(server.stream("ex/orders"), headers=JSON, content=b"[1,2,3]")
    data = str(server.home / "data")
    for _ in range(2):
        out = run("per_minute.py", data, server.url, "ex/orders", "ex/counts")
        assert "minutes of ex/orders are in ex/counts" in out
    counts = http.get(server.stream("ex/counts")).json()
    assert sum(row["count"] for row in counts) == 3


def test_last_values_prints_the_newest_of_each_key(
    server: Daemon, http: httpx.Client, java: None
) -> None:
    assert http.put(server.stream("ex/keys"), headers=JSON).status_code == 201
    body = b'[{"k":"a","n":1},{"k":"b","n":2},{"k":"a","n":3}]'
    http.post(server.stream("ex/keys"), headers=JSON, content=body)
    out = run("last_values.py", server.stream("ex/keys"), "k")
    assert out.split("batch 0:\n")[1] == '  a\t{"k":"a","n":3}\n  b\t{"k":"b","n":2}\n'
