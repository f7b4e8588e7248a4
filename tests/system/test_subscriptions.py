"""Subscriptions of the real daemon: example workers, and kills of the server and of a receiver."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.system
STREAMS = 12
ROUNDS = 3


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def worker(daemon: Daemon, pattern: str, port: int, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = str(ROOT / "examples" / "webhook_worker.py")
    with out.open("ab") as to:
        command = [sys.executable, script, f"{daemon.url}/v1/stream", pattern, str(port)]
        process = subprocess.Popen(command, stdout=to)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def look(daemon: Daemon, name: str) -> dict[str, Any]:
    url = f"{daemon.url}/v1/stream/__ds/subscriptions/{name}"
    answer = httpx.get(url)
    return dict(answer.json()) if answer.status_code == 200 else {"streams": []}


def until(daemon: Daemon, tails: dict[str, str]) -> None:
    """Wait until every cursor is at the end of its stream."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look(daemon, "webhook-worker")["streams"]
        if {one["path"]: one["acked_offset"] for one in found} == tails:
            return
        time.sleep(0.05)
    pytest.fail(f"{look(daemon, 'webhook-worker')} has not come to {tails}")


@pytest.mark.slow
def test_every_acknowledged_message_is_worked_on_whatever_is_killed(
    daemon: Daemon, tmp_path: Path
) -> None:
    out, port, tails = tmp_path / "worked", free_port(), {}
    head = {"Content-Type": "application/json"}
    written: set[str] = set()
    for turn in range(ROUNDS):
        with worker(daemon, "jobs/*", port, out):
            if turn == 0:
                deadline = time.monotonic() + PATIENCE_S
                while not look(daemon, "webhook-worker").get("id"):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            for number in range(STREAMS):
                said, url = f"job-{turn}-{number}", daemon.stream(f"jobs/{number}")
                send = httpx.put if turn == 0 else httpx.post
                answer = send(url, headers=head, content=json.dumps([said]))
                assert answer.status_code in (201, 204), answer.text
                tails[f"jobs/{number}"] = answer.headers["Stream-Next-Offset"]
                written.add(said)
                if number == STREAMS // 2:
                    daemon.kill9()
                    daemon.start()
            if turn == ROUNDS - 1:
                until(daemon, tails)
        # The receiver is gone, in the middle of whatever it was at.
    worked = out.read_text()
    assert {said for said in written if f'"{said}"' not in worked} == set()
    generation = look(daemon, "webhook-worker")["generation"]
    daemon.kill9()
    daemon.start()
    after = look(daemon, "webhook-worker")
    assert {one["path"]: one["acked_offset"] for one in after["streams"]} == tails
    assert after["generation"] == generation


def test_a_worker_claims_what_is_pending_once(daemon: Daemon) -> None:
    script = str(ROOT / "examples" / "pull_worker.py")

    def run() -> list[str]:
        command = [sys.executable, script, f"{daemon.url}/v1/stream", "jobs/**"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout.splitlines()

    assert run() == []
    head = {"Content-Type": "application/json"}
    httpx.put(daemon.stream("jobs/a"), headers=head, content="[1]")
    daemon.kill9()
    daemon.start()
    assert run() == ["jobs/a [1]"]
    assert run() == []
    events = httpx.get(daemon.stream("wakes?offset=-1")).json()
    assert [event["generation"] for event in events] == sorted({e["generation"] for e in events})


def test_a_token_and_a_key_outlive_a_restart(daemon: Daemon) -> None:
    """B3: with the reference every callback after a restart is refused."""
    base = f"{daemon.url}/v1/stream"
    config = {"type": "pull-wake", "streams": ["a"], "wake_stream": "w"}
    httpx.put(f"{base}/__ds/subscriptions/s", json=config)
    httpx.put(f"{base}/a", headers={"Content-Type": "text/plain"}, content="x")
    claimed = httpx.post(f"{base}/__ds/subscriptions/s/claim", json={"worker": "w"}).json()
    keys = httpx.get(f"{base}/__ds/jwks.json").json()
    assert daemon.home.joinpath("data", "KEYS").stat().st_mode & 0o777 == 0o600
    daemon.kill9()
    daemon.start()
    assert httpx.get(f"{base}/__ds/jwks.json").json() == keys
    again = httpx.post(f"{base}/__ds/subscriptions/s/claim", json={"worker": "v"}).json()
    assert again["error"]["code"] == "ALREADY_CLAIMED"
    body = {
        "wake_id": claimed["wake_id"],
        "generation": claimed["generation"],
        "acks": [{"stream": "a", "offset": claimed["streams"][0]["tail_offset"]}],
        "done": True,
    }
    token = {"Authorization": f"Bearer {claimed['token']}"}
    done = httpx.post(f"{base}/__ds/subscriptions/s/ack", json=body, headers=token)
    assert done.json() == {"ok": True, "next_wake": False}
