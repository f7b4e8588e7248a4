"""The process from start to end: told to a service manager, drained, reloaded, stopped at once."""

import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon.manager import NotifySocket
from tests.support.daemon import ROOT, Daemon, make_certificates
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system]

TEXT = {"Content-Type": "text/plain"}
UNFINISHED = (
    "POST /v1/stream/s HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nContent-Length: 9\n\n"
)
# A body that does not come is not given up: only the end of the server can end such a request.
PATIENT = {"http.body_grace_s": 2 * PATIENCE_S, "http.body_idle_s_max": 2 * PATIENCE_S}


class Answer(NamedTuple):
    """A response, read to its end."""

    status: int
    fields: Mapping[str, str]
    body: bytes


def ask(
    daemon: Daemon, method: str, target: str, head: dict[str, str] | None = None, body: bytes = b""
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE_S)
    try:
        connection.request(method, target, body or None, head or {})
        reply = connection.getresponse()
        return Answer(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()


def begin(daemon: Daemon, request: str) -> socket.socket:
    """Send what may be a part of a request, and leave the connection open."""
    sock = socket.create_connection(("127.0.0.1", daemon.port), timeout=PATIENCE_S)
    sock.sendall(request.replace("\n", "\r\n").encode())
    return sock


def connects(port: int) -> bool:
    """Tell whether somebody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


def under_way(daemon: Daemon, exchanges: int, connections: int) -> None:
    """Wait until the server has so many, beside the connection that asks for the figures."""

    def told() -> bool:
        text = ask(daemon, "GET", "/-/metrics").body.decode()
        open_now = re.findall(r"^durastreamd_http_requests_open ([0-9.]+)$", text, re.MULTILINE)
        there = re.findall(r"^durastreamd_http_connections\{.*\} ([0-9.]+)$", text, re.MULTILINE)
        return sum(map(float, open_now)) > exchanges and sum(map(float, there)) > connections

    wait_until(told, f"there are not {exchanges} requests on {connections} connections")


def rest(sock: socket.socket) -> bytes:
    """Return all that comes until the server hangs up."""
    found = b""
    while data := sock.recv(65536):
        found += data
    sock.close()
    return found


# --- what the service manager hears ---


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_service_manager_is_told_everything(tmp_path: Path, *, abstract: bool) -> None:
    address = f"@durastreamd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    environment = {"WATCHDOG_USEC": "300000", "NOTIFY_SOCKET": address}
    with NotifySocket(address) as manager, Daemon(tmp_path, environment=environment) as daemon:
        ready = manager.until("READY")
        assert ready["STATUS"].startswith("serving 0 streams, 0 live readers")
        assert manager.until("WATCHDOG") == {"WATCHDOG": "1"}
        assert manager.until("WATCHDOG") == {"WATCHDOG": "1"}
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.signal(signal.SIGHUP)
        reloading = manager.until("RELOADING")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= before + 20_000_000
        assert manager.until("READY")["READY"] == "1"
        daemon.signal(signal.SIGTERM)
        assert manager.until("STOPPING")["STATUS"] == "draining"
        assert int(manager.until("EXTEND_TIMEOUT_USEC")["EXTEND_TIMEOUT_USEC"]) > 10_000_000
        assert daemon.wait() == 0


def test_a_watchdog_of_another_process_is_not_fed(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    environment = {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1", "NOTIFY_SOCKET": address}
    with NotifySocket(address) as manager, Daemon(tmp_path, environment=environment) as daemon:
        manager.until("READY")
        daemon.terminate()
        manager.until("STOPPING")
        assert not any("WATCHDOG" in said for said in manager.said)


# --- socket activation ---


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="not run: no systemd-socket-activate"
)
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_sockets_of_the_service_manager_are_served(tmp_path: Path, *, secure: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = make_certificates(tmp_path)
    command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}"]
    command += [f"--fdname={'https' if secure else 'http'}", "-E", f"PYTHONPATH={ROOT}"]
    command += [sys.executable, "-m", "durastreamd", "--data-dir", str(tmp_path / "data")]
    command += ["--set", f"tls.certificate={files.certificate}", "--set", f"tls.key={files.key}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_until(lambda: connects(port), "nobody listens")
        # The connection waits in the socket until the server, started by it, is ready.
        trusted = ssl.create_default_context(cafile=str(files.authority))
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=trusted)
            if secure
            else http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        )
        connection.request("PUT", "/v1/stream/s", b"x", TEXT)
        assert connection.getresponse().status == 201
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert (
        f"listening on {'https' if secure else 'http'}://127.0.0.1:{port}"
        in (tmp_path / "log").read_text()
    )


# --- the end ---


def test_a_drain_finishes_what_is_under_way_and_answers_who_waits(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"reads.long_poll_s": 60}) as daemon:
        made = ask(daemon, "PUT", "/v1/stream/s", TEXT, b"first")
        tail = made.fields.get("Stream-Next-Offset")
        host = "Host: localhost\n"
        polling = begin(daemon, f"GET /v1/stream/s?offset={tail}&live=long-poll HTTP/1.1\n{host}\n")
        following = begin(daemon, f"GET /v1/stream/s?offset={tail}&live=sse HTTP/1.1\n{host}\n")
        assert b"200 OK" in following.recv(65536)
        appending = begin(
            daemon,
            f"POST /v1/stream/s HTTP/1.1\n{host}Content-Type: text/plain\nContent-Length: 6\n\nsec",
        )
        idle = begin(daemon, "")
        daemon.wait_for("serving on")
        under_way(daemon, exchanges=3, connections=4)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("stopping on SIGTERM")
        assert rest(following).endswith(b"0\r\n\r\n"), "not cut: the client sees a complete answer"
        polled = rest(polling)
        assert b"204 No Content" in polled
        assert b"Connection: close" in polled
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", daemon.port))
        assert rest(idle) == b""
        appending.sendall(b"ond")
        assert b"204 No Content" in rest(appending)
        assert daemon.wait() == 0
        daemon.start()
        assert ask(daemon, "GET", "/v1/stream/s?offset=-1").body == b"firstsecond"


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Daemon]:
    """A server with a request that does not end by itself."""
    with Daemon(tmp_path, settings={"server.drain_s": 0.3, **PATIENT}) as daemon:
        assert ask(daemon, "PUT", "/v1/stream/s", TEXT, b"kept").status == 201
        sock = begin(daemon, UNFINISHED)
        under_way(daemon, exchanges=1, connections=1)
        yield daemon
        sock.close()


def test_a_drain_has_an_end(stuck: Daemon) -> None:
    stuck.signal(signal.SIGTERM)
    assert stuck.wait() == 0
    assert "1 requests did not end within server.drain_s" in stuck.stderr()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"server.drain_s": 2 * PATIENCE_S, **PATIENT}) as daemon:
        assert ask(daemon, "PUT", "/v1/stream/s", TEXT, b"kept").status == 201
        sock = begin(daemon, UNFINISHED)
        under_way(daemon, exchanges=1, connections=1)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("stopping on SIGTERM")
        daemon.signal(signal.SIGHUP)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        sock.close()
        assert "stopping at once on a second SIGTERM" in daemon.stderr()
        assert "reload" not in daemon.stderr()
        daemon.start()
        assert ask(daemon, "GET", "/v1/stream/s?offset=-1").body == b"kept"


# --- reloading and looking ---


def test_a_reload_changes_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[cors]\norigins = ['https://a']\n")
    with Daemon(tmp_path, arguments=["--config", str(file)]) as daemon:
        ask(daemon, "PUT", "/v1/stream/s", TEXT)
        origin = {"Origin": "https://b"}
        first = ask(daemon, "GET", "/v1/stream/s?offset=-1", origin)
        assert first.fields.get("Access-Control-Allow-Origin") is None
        file.write_text(
            "[cors]\norigins = ['https://b']\n[log]\naccess = 'all'\nformat = 'json'\n"
            "[writes]\nappend_bytes_max = 3\n[engine]\nhandles_max = 5\n"
        )
        daemon.signal(signal.SIGHUP)
        said = daemon.wait_for("need a restart")
        changed = "changed: log.format, log.access, writes.append_bytes_max, cors.origins"
        assert changed in said
        assert "these need a restart: engine.handles_max" in said
        second = ask(daemon, "GET", "/v1/stream/s?offset=-1", origin)
        assert second.fields.get("Access-Control-Allow-Origin") == "https://b"
        assert ask(daemon, "POST", "/v1/stream/s", TEXT, b"long").status == 413
        daemon.wait_for('"status": 413')
        file.write_text("[cors]\norigin = ['https://c']\n")
        daemon.signal(signal.SIGHUP)
        said = daemon.wait_for("reload failed, everything stays as it was")
        assert f"{file}:2: unknown setting cors.origin; did you mean cors.origins?" in said
        third = ask(daemon, "GET", "/v1/stream/s?offset=-1", origin)
        assert third.fields.get("Access-Control-Allow-Origin") == "https://b"


def test_a_reload_renews_the_keys_and_keeps_connections(tmp_path: Path) -> None:
    with Daemon(tmp_path, tls=True) as daemon:
        assert daemon.certificates is not None
        place = ("127.0.0.1", daemon.port)
        trusted = ssl.create_default_context(cafile=str(daemon.certificates.authority))
        old = http.client.HTTPSConnection(*place, timeout=PATIENCE_S, context=trusted)
        old.request("PUT", "/v1/stream/s", b"x", TEXT)
        assert old.getresponse().read() == b""
        first = ssl.get_server_certificate(place)
        make_certificates(tmp_path)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("reloaded")
        second = ssl.get_server_certificate(place)
        assert second != first
        assert second in daemon.certificates.certificate.read_text().replace("\r", "")
        daemon.certificates.key.write_text("nonsense")
        daemon.signal(signal.SIGHUP)
        said = daemon.wait_for("reload failed, everything stays as it was")
        assert "server.key cannot be used" in said
        assert ssl.get_server_certificate(place) == second
        old.request("GET", "/v1/stream/s?offset=-1")
        assert old.getresponse().read() == b"x"
        old.close()


def test_figures_are_written_on_request(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        ask(daemon, "PUT", "/v1/stream/s", TEXT, b"x")
        daemon.signal(signal.SIGUSR1)
        said = daemon.wait_for("status: disk")
    for words in ("uptime_s=", "connections_total=1", "streams=1", "free_bytes=", "low=false"):
        assert words in said
