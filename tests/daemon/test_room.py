"""Room on a real, small disk: refused before it is full, given back while the server runs."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import Daemon
from tests.support.file_systems import small_file_system
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system]

MIB = 1024 * 1024
TEXT = {"Content-Type": "text/plain"}
PIECE = b"x" * (256 * 1024)
# A small server for a small disk; everything that gives room back comes soon.
SETTINGS = {
    "disk.free_bytes_min": 6 * MIB,
    "disk.free_bytes_resume": 10 * MIB,
    "disk.check_s": 0.02,
    "engine.journal_bytes_max": MIB,
    "engine.segment_bytes_max": MIB,
    "engine.hot_bytes_max": MIB,
    "streams.checkpoint_s": 0.1,
    "streams.sweep_s": 0.1,
}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Daemon]:
    """A server whose disk has 24 MiB."""
    with (
        small_file_system(tmp_path / "data", "24m"),
        Daemon(tmp_path, settings=SETTINGS) as daemon,
    ):
        yield daemon


def fill(client: httpx.Client, path: str) -> tuple[int, httpx.Response]:
    """Append until it is refused; return how many were not, and the refusal."""
    assert client.put(path, headers=TEXT).status_code in (200, 201)
    taken = 0

    def refused() -> httpx.Response | None:
        nonlocal taken
        reply = client.post(path, headers=TEXT, content=PIECE)
        taken += reply.status_code == 204
        # 503: too much waits for the flusher.
        return None if reply.status_code in (204, 503) else reply

    last = wait_until(refused, "the disk takes whatever comes")
    return taken, last


def free(daemon: Daemon) -> int:
    found = os.statvfs(daemon.home / "data")
    return found.f_bavail * found.f_frsize


def figures(daemon: Daemon) -> dict[str, int]:
    """Return what the server says of the disk."""
    since = (daemon.home / "durastreamd.stderr").stat().st_size
    daemon.signal(signal.SIGUSR1)
    said = daemon.wait_for("status: disk", since)
    return {name: int(value) for name, value in re.findall(r" (\w+_bytes|\w+_total)=(\d+)", said)}


def test_appends_are_refused_before_the_disk_is_full_and_taken_again_when_it_is_not(
    small: Daemon,
) -> None:
    with httpx.Client(base_url=small.url, timeout=PATIENCE_S) as client:
        assert client.put("/v1/stream/open", headers=TEXT, content=b"x").status_code == 201
        taken, refusal = fill(client, "/v1/stream/big")
        assert taken > 5
        assert (refusal.status_code, refusal.json()["code"]) == (507, "INSUFFICIENT_STORAGE")
        assert int(refusal.headers["retry-after"]) >= 1
        assert free(small) > MIB, "refused before it is full"
        assert "write failed" not in small.stderr()
        assert len(client.get("/v1/stream/big?offset=-1").content) == taken * len(PIECE)
        closing = client.post("/v1/stream/open", headers={"Stream-Closed": "true"})
        assert closing.status_code == 204
        assert client.delete("/v1/stream/big").status_code == 204
        wait_until(
            lambda: client.put("/v1/stream/small", headers=TEXT, content=b"y").status_code == 201,
            "room came back, and nobody noticed",
        )
    said = small.stderr()
    assert said.count("appends are refused") == 1
    assert said.count("appends are taken again") == 1


@pytest.mark.parametrize("how", ["deleted", "expired", "snapshotted"])
def test_room_comes_back_while_the_server_runs(small: Daemon, how: str) -> None:
    with httpx.Client(base_url=small.url, timeout=PATIENCE_S) as client:
        client.put("/agents")
        head = {**TEXT, "Stream-TTL": "10"} if how == "expired" else TEXT
        assert client.put("/agents/run", headers=head).status_code == 201
        tail = ""
        for _ in range(24):
            reply = client.post("/agents/run", headers=TEXT, content=PIECE)
            assert reply.status_code == 204, reply.text
            tail = reply.headers["stream-next-offset"]
            time.sleep(0.02)
        wait_until(lambda: used(small) >= 5 * MIB, "six MiB were appended and are not in the files")
        if how == "deleted":
            assert client.delete("/agents/run").status_code == 204
        elif how == "snapshotted":
            done = client.put(f"/agents/run/snapshot/{tail}", headers=TEXT, content=b"folded")
            assert done.status_code == 204
        wait_until(lambda: used(small) <= 2 * MIB, "the room did not come back")
        wait_until(lambda: figures(small)["reclaimed_bytes"] >= 4 * MIB, "and is not counted")
        wait_until(
            lambda: abs(figures(small)["free_bytes"] - free(small)) < 2 * MIB,
            "what the server says is free, is not",  # a journal file may go between the two looks
        )
        if how == "snapshotted":
            assert client.get(f"/agents/run?offset={tail}").status_code == 200
            assert client.get("/agents/run/bootstrap").content.count(b"folded") == 1


def used(daemon: Daemon) -> int:
    """Return how much the streams' files hold."""
    found = 0
    for path in (daemon.home / "data" / "streams").rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            pass  # it went between the two looks
    return found
