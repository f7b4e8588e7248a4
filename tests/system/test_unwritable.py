"""A real daemon whose stream has a file that nobody may write: that stream waits, no other does."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from durastreamd.storage import format as fmt
from tests.support.daemon import Daemon
from tests.support.patience import wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

BINARY = {"Content-Type": "application/octet-stream"}
SETTINGS = {"streams.checkpoint_s": 0.1, "streams.retry_s": 0.05}


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    done = subprocess.run(["chattr", "+i", path], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def append(daemon: Daemon, name: str, body: bytes) -> httpx.Response:
    return httpx.post(daemon.stream(name), headers=BINARY, content=body)


def notes(daemon: Daemon) -> str:
    return httpx.get(f"http://127.0.0.1:{daemon.port}/-/readyz").text


def test_a_file_that_cannot_be_written_holds_up_its_stream_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings=SETTINGS) as daemon:
        journal = tmp_path / "data" / fmt.JOURNAL_DIR
        segment = tmp_path / "data" / fmt.segment_path(1, 0)
        for name in ("stuck", "other"):
            assert httpx.put(daemon.stream(name), headers=BINARY).status_code == 201
        assert append(daemon, "stuck", b"one,").status_code == 204
        wait_until(segment.exists, "no checkpoint came")
        with immutable(segment):
            told = append(daemon, "stuck", b"two,")
            kept = b"one,two,"
            while told.status_code == 204:  # until the first checkpoint has met it
                told = append(daemon, "stuck", b"more,")
                kept += b"more," * (told.status_code == 204)
            assert (told.status_code, told.json()["reason"]) == (503, "DISK_FAILED")
            wait_until(lambda: "is parked" in daemon.stderr(), "it was not parked")
            assert "1 stream takes no writes" in notes(daemon)
            for number in range(20):
                assert append(daemon, "other", b"%d" % number).status_code == 204
            wait_until(lambda: len(list(journal.iterdir())) <= 2, "the journal is not emptied")
            assert httpx.get(daemon.stream("stuck")).content == kept
            daemon.kill9()
            daemon.restart()  # it may still not be written
            assert httpx.get(daemon.stream("stuck")).status_code == 500
            assert append(daemon, "other", b"!").status_code == 204
        daemon.restart()
        assert httpx.get(daemon.stream("stuck")).content == kept
        assert append(daemon, "stuck", b"end").status_code == 204
        assert httpx.get(daemon.stream("stuck")).content == kept + b"end"
