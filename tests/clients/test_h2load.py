"""h2load, as people measure an HTTP/2 server: nothing may fail while it asks as fast as it can."""

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.system]

TEXT = {"Content-Type": "text/plain"}
CLIENTS, AT_ONCE = 4, 16
READS, APPENDS = 2000, 1000
MESSAGE = b"as fast as it goes\n"
NONE_FAILED = "0 failed, 0 errored, 0 timeout"


@pytest.fixture(scope="module", autouse=True)
def _h2load_is_there() -> None:
    if shutil.which("h2load") is None:
        pytest.skip("not run: no h2load; on Debian: apt-get install nghttp2-client")


def h2load(url: str, requests: int, *arguments: str) -> str:
    """Run so many requests over HTTP/2 without asking for it first; return the report."""
    command = ["h2load", "-n", str(requests), "-c", str(CLIENTS), "-m", str(AT_ONCE)]
    done = subprocess.run(
        [*command, *arguments, url],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Application protocol: h2c" in done.stdout, done.stdout
    return done.stdout


def check_all_succeeded(report: str, requests: int) -> None:
    everything = f"{requests} total, {requests} started, {requests} done, {requests} succeeded"
    assert f"requests: {everything}, {NONE_FAILED}" in report, report
    assert f"status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx" in report, report


def test_reads_all_succeed_and_are_whole(daemon: Daemon) -> None:
    body = MESSAGE * 500
    assert httpx.put(daemon.stream("s"), headers=TEXT, content=body).status_code == 201
    report = h2load(f"{daemon.stream('s')}?offset=-1", READS)
    check_all_succeeded(report, READS)
    found = re.search(r"traffic: .* \((\d+)\) data$", report, re.MULTILINE)
    assert found is not None, report
    assert int(found[1]) == READS * len(body), "every read brought the whole stream"


def test_appends_all_succeed_and_are_all_there(daemon: Daemon, tmp_path: Path) -> None:
    assert httpx.put(daemon.stream("s"), headers=TEXT).status_code == 201
    message = tmp_path / "message"
    message.write_bytes(MESSAGE)
    report = h2load(
        daemon.stream("s"), APPENDS, "-d", str(message), "-H", "Content-Type: text/plain"
    )
    check_all_succeeded(report, APPENDS)
    assert httpx.get(f"{daemon.stream('s')}?offset=-1").content == MESSAGE * APPENDS
    said = httpx.get(f"{daemon.url}/-/metrics").text
    assert f'durastreamd_append_requests_total{{result="new"}} {APPENDS}.0' in said
