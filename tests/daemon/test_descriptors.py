"""Descriptors: as many as the process may have, settings that fit, and what happens beyond."""

import os
import resource
import socket
from pathlib import Path

import httpx
import pytest

from durastreamd.config import Config
from durastreamd.daemon.descriptors import RESERVED, fitted
from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

TEXT = {"Content-Type": "text/plain"}


class Limited(Daemon):
    """A daemon whose limits of descriptors are these."""

    soft = 100
    hard = 200

    def command(self) -> list[str]:
        limits = f"ulimit -S -n {self.soft}; ulimit -H -n {self.hard}"
        return ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh", *super().command()]


def limit_of(daemon: Daemon) -> int:
    rows = Path(f"/proc/{daemon.pid}/limits").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("Max open files")]
    return int(row.split()[3])


def needed(config: Config) -> int:
    http = config.http
    return http.connections_max + http.refusals_max + config.engine.handles_max


@pytest.mark.parametrize("descriptors", [0, 9, 100, 150, 256, 1024, 4096, 10_671, 10_672, 2**30])
def test_what_is_fitted_fits(descriptors: int) -> None:
    config = Config()
    found = fitted(config, descriptors)
    assert needed(found) <= max(descriptors - RESERVED, 16)
    assert found.http.connections_max >= 4
    assert found.engine.handles_max >= 4
    assert (found == config) == (descriptors >= needed(config) + RESERVED)
    assert fitted(found, descriptors) == found, "and it stays so at a reload"


def test_small_settings_are_left_alone() -> None:
    http = HttpLimits(connections_max=10, refusals_max=5)
    config = Config(http=http, engine=EngineOptions(handles_max=10))
    assert fitted(config, RESERVED + 25) is config
    assert fitted(config, RESERVED + 24) != config


def test_the_soft_limit_is_raised_and_what_does_not_fit_is_told(tmp_path: Path) -> None:
    with Limited(tmp_path) as daemon:
        assert limit_of(daemon) == Limited.hard
        said = daemon.wait_for("the limit of descriptors is 200")
        assert "http.connections_max is" in said
        daemon.signal(1)  # SIGHUP
        reloaded = daemon.wait_for("reloaded; changed: no setting")
        assert "need a restart" not in reloaded
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft <= hard


def held(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def allow(daemon: Daemon, descriptors: int) -> None:
    """Let the running process have so many and no more."""
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (descriptors, hard))


def test_out_of_descriptors_it_refuses_and_recovers(tmp_path: Path) -> None:
    names = [f"/v1/stream/s{number}" for number in range(12)]
    with Daemon(tmp_path) as daemon:
        with httpx.Client(base_url=daemon.url) as http:
            for name in names:
                assert http.put(name, headers=TEXT, content=b"x").status_code == 201
        daemon.restart()  # everything is in files, and none of them is open
        with httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as http:
            assert http.get("/health").status_code == 200
            allow(daemon, held(daemon))
            for name in names:
                refused = http.get(name, params={"offset": "-1"})
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            with socket.create_connection(
                ("127.0.0.1", daemon.port), timeout=PATIENCE_S
            ) as waiting:
                waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                daemon.wait_for("cannot accept")
                assert http.get("/health").status_code == 200, "who is connected is served"
                assert http.post(names[0], headers=TEXT, content=b"y").status_code == 204
                allow(daemon, held(daemon) + 8)
                assert b"200 OK" in waiting.recv(65536), "who waited is served by and by"
            # Files kept open give way to others, and to connections.
            allow(daemon, held(daemon) + 5)
            for name in names[1:]:
                assert http.get(name, params={"offset": "-1"}).content == b"x"
            allow(daemon, held(daemon))
            with httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as fresh:
                assert fresh.get("/health").status_code == 200
            assert http.get(names[0], params={"offset": "-1"}).content == b"xy"
            allow(daemon, 1000)
        said = daemon.stderr()
        assert said.count("cannot accept") == 1
        assert said.count("short of what the system lends") == 1
        assert "Traceback" not in said
