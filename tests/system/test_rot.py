"""A real daemon on files that are rotten, odd or gone: those streams are refused, no other is."""

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import Daemon

pytestmark = [pytest.mark.system, pytest.mark.slow]

BODY = b"0123456789" * 20_000
BINARY = {"Content-Type": "application/octet-stream"}
Harm = Callable[[Path], None]


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def gone(path: Path) -> None:
    path.unlink()


def short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


HARMS: list[Harm] = [directory, dangling, pipe, gone, short, flipped, zeroed]


def name(harm: Harm, suffix: str) -> str:
    return f"{harm.__name__}-{suffix}"


CASES = {name(harm, suffix): (harm, suffix) for harm in HARMS for suffix in ("log", "idx")}


def fill(daemon: Daemon) -> None:
    for each in (*CASES, "whole"):
        made = httpx.put(daemon.stream(each), headers=BINARY, content=BODY)
        assert made.status_code == 201


def hurt(daemon: Daemon) -> None:
    """Damage a file of each stream; ids are given in order."""
    for number, (harm, suffix) in enumerate(CASES.values(), 1):
        (path,) = (daemon.home / "data/streams").glob(f"*/{number:016x}/*.{suffix}")
        harm(path)


def check(daemon: Daemon) -> None:
    for each in CASES:
        url = daemon.stream(each)
        for method, target in (
            ("GET", f"{url}?offset=-1"),
            ("GET", f"{url}/bootstrap"),
            ("POST", url),
        ):
            reply = httpx.request(method, target, headers=BINARY, content=b"x"[method == "GET" :])
            assert reply.status_code == 500, (each, reply)
            assert reply.json()["code"] == "STREAM_DAMAGED", each
        assert httpx.head(daemon.stream(each)).status_code == 200
    assert httpx.get(daemon.stream("whole") + "?offset=-1").content.startswith(BODY)
    notes = httpx.get(f"{daemon.url}/-/readyz").json()["notes"]
    assert f"{len(CASES)} streams are damaged" in notes[0]["detail"]
    page = httpx.get(f"{daemon.url}/-/metrics").text
    assert f"\ndurastreamd_damaged_streams {len(CASES)}.0\n" in page
    assert "Traceback" not in daemon.stderr()
    assert "INTERNAL_ERROR" not in daemon.stderr()


@pytest.mark.parametrize("replayed", [False, True], ids=["at rest", "with news in the journal"])
def test_odd_files_are_met_when_the_server_starts(tmp_path: Path, *, replayed: bool) -> None:
    with Daemon(tmp_path) as daemon:
        fill(daemon)
        daemon.terminate()
        if replayed:
            daemon.start()
            for each in CASES:
                reply = httpx.post(daemon.stream(each), headers=BINARY, content=b"more")
                assert reply.status_code == 204
            daemon.kill9()
        hurt(daemon)
        daemon.start()
        check(daemon)
        daemon.restart()  # the marks are in the catalogue
        check(daemon)


def test_files_that_go_bad_under_a_running_server_are_met(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"engine.handles_max": 1}) as daemon:
        fill(daemon)
        daemon.restart()
        for each in CASES:  # some are read before, and their proofs kept
            if "log" in each:
                assert httpx.get(daemon.stream(each) + "?offset=-1").content == BODY
        hurt(daemon)
        check(daemon)
