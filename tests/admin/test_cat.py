"""cat writes what a client gets, to the byte, whoever has the directory open."""

import base64
import json
import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from durastreamd.engine.view import View
from durastreamd.errors import CorruptDataError
from durastreamd.kit.status import CORRUPT, NO_INPUT, USAGE
from durastreamd.protocol.offsets import mint
from durastreamd.storage.disk import RealDisk
from tests.admin.harness import JSON, ROUNDS, SMALL, run, tree, whole
from tests.support.daemon import Daemon

NAMES = ("orders/1", "blob", "fork", "part", "cut", "none")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_a_client_gets_beside_the_daemon(daemon: Daemon, name: str) -> None:
    found = run("--data-dir", daemon.home / "data", "cat", name)
    assert found.status == 0
    assert found.out == whole(daemon.stream(name))
    assert "a daemon is running" in found.err


def test_it_is_what_a_client_gets_from_any_message_on(daemon: Daemon) -> None:
    url, data = daemon.stream("orders/1"), daemon.home / "data"
    listed = run("--data-dir", data, "cat", "orders/1", "--json").records
    assert len(listed) == 1 + 2 * ROUNDS
    for message in listed[::25]:
        start = str(message["offset"])
        assert run("--data-dir", data, "cat", "orders/1", "--from", start).out == whole(url, start)
    low, high = str(listed[3]["offset"]), str(listed[5]["offset"])
    between = run("--data-dir", data, "cat", "orders/1", "--from", low, "--to", high)
    assert json.loads(between.out) == [listed[3]["json"], listed[4]["json"]]


def test_lines_are_what_a_client_gets_who_asks_for_lines(daemon: Daemon) -> None:
    found = run("--data-dir", daemon.home / "data", "cat", "fork", "--lines")
    accept = {"Accept": "application/x-ndjson"}
    assert found.out == httpx.get(daemon.stream("fork"), headers=accept).content
    refused = run("--data-dir", daemon.home / "data", "cat", "blob", "--lines")
    assert (refused.status, refused.out) == (USAGE, b"")


def test_a_stream_with_a_snapshot_is_written_from_there_on(daemon: Daemon) -> None:
    data, url = daemon.home / "data", daemon.stream("log")
    gone = httpx.get(url, params={"offset": "-1"})
    first = gone.headers["Stream-Next-Offset"]
    assert gone.status_code == 410
    found = run("--data-dir", data, "cat", "log")
    assert found.out == whole(url, first)
    assert first in found.err
    assert b"\r\n" in found.out
    refused = run("--data-dir", data, "cat", "log", "--from", "-1")
    assert (refused.status, refused.out) == (NO_INPUT, b"")
    assert first in refused.err
    blob = run("--data-dir", data, "cat", "log", "--snapshot")
    assert blob.out == httpx.get(f"{url}/snapshot", follow_redirects=True).content == b"folded"


@pytest.mark.parametrize("name", [*NAMES, "log", "team/a b"])
def test_what_only_the_journal_has_is_there_after_a_kill(
    daemon: Daemon, original: Path, name: str
) -> None:
    before = tree(original)
    killed = run("--data-dir", original, "cat", name)
    assert killed.out == run("--data-dir", daemon.home / "data", "cat", name).out
    assert killed.out or name == "none"
    assert tree(original) == before


def test_messages_as_records_hold_the_bytes(original: Path) -> None:
    found = run("--data-dir", original, "cat", "part", "--json").records
    joined = b"".join(base64.b64decode(str(record["base64"])) for record in found)
    assert joined == run("--data-dir", original, "cat", "part").out
    assert [r["next_offset"] for r in found[:-1]] == [r["offset"] for r in found[1:]]
    assert found[0]["offset"] == mint(0)


def test_places_without_a_message_are_refused_and_those_beyond_the_end_are_the_end(
    original: Path,
) -> None:
    inside = run("--data-dir", original, "cat", "orders/1", "--from", "3")
    assert (inside.status, inside.out) == (NO_INPUT, b"")
    assert "inside a message" in inside.err
    assert run("--data-dir", original, "cat", "orders/1", "--from", "now").out == b"[]"
    assert run("--data-dir", original, "cat", "orders/1", "--from", "9" * 16).out == b"[]"
    assert run("--data-dir", original, "cat", "orders/1", "--from", "x").status == USAGE


def test_a_piece_border_inside_a_separator_does_not_show(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_array = run("--data-dir", original, "cat", "orders/1").out
    lines = run("--data-dir", original, "cat", "orders/1", "--lines").out
    for size in (1, 2, 3, 7, 1000):
        monkeypatch.setattr("durastreamd.admin.look.cat.PIECE_BYTES", size)
        assert run("--data-dir", original, "cat", "orders/1").out == whole_array
        assert run("--data-dir", original, "cat", "orders/1", "--lines").out == lines


def test_a_file_that_goes_while_it_is_read_is_found_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_array = run("--data-dir", data, "cat", "orders/1").out
    monkeypatch.setattr("durastreamd.admin.look.cat.PIECE_BYTES", 1000)
    real, failing = View.read, [3, 4, 9]

    def read(self: View, start: int, end: int) -> bytes:
        failing[:] = [left - 1 for left in failing]
        if 0 in failing:
            raise CorruptDataError(self.__class__.__name__, start, "the file is missing")
        return real(self, start, end)

    disk = RealDisk(str(data))
    held = disk.lock("DURASTREAMD")
    open_before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(View, "read", read)
    twice = run("--data-dir", data, "cat", "orders/1")  # the same place again: damage
    assert twice.status == CORRUPT
    failing[:] = [3, 9]
    assert run("--data-dir", data, "cat", "orders/1").out == whole_array
    assert len(os.listdir("/proc/self/fd")) <= open_before
    disk.release(held)
    failing[:] = [3]
    assert run("--data-dir", data, "cat", "orders/1").status == CORRUPT


@pytest.mark.parametrize("form", [(), ("--lines",), ("--json",)])
def test_no_byte_of_a_record_that_does_not_verify_is_written(
    data: Path, form: tuple[str, ...]
) -> None:
    true = run("--data-dir", data, "cat", "orders/1", *form)
    assert true.status == 0
    paths = [path for path in sorted(data.rglob("*.log")) if b'"' in path.read_bytes()[:200]]
    hurt = 0
    for path in paths:
        before = path.read_bytes()
        content = bytearray(before)
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        found = run("--data-dir", data, "cat", "orders/1", *form)
        path.write_bytes(before)
        if found.status:
            hurt += 1
            assert found.status == CORRUPT
            assert true.out.startswith(found.out)
            assert str(path.relative_to(data)) in found.err
        else:
            assert found.out == true.out
    assert hurt


def test_a_damaged_snapshot_and_a_missing_segment_are_named(data: Path) -> None:
    (blob,) = data.glob("streams/*/*/*.snap")
    blob.write_bytes(b"Folded")
    found = run("--data-dir", data, "cat", "log", "--snapshot")
    assert found.status == CORRUPT
    assert f"{blob.relative_to(data)}:0: the snapshot does not verify" in found.err
    (data / "streams/01/0000000000000001/0000000000000000.log").unlink()
    found = run("--data-dir", data, "cat", "orders/1")
    assert found.status == CORRUPT
    assert "the file is missing" in found.err


def test_every_acknowledged_message_is_there_under_write_load(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings=SMALL) as daemon:
        url = daemon.stream("load")
        httpx.put(url, headers={"Content-Type": JSON}).raise_for_status()
        acknowledged, ending = [0], threading.Event()
        thread = threading.Thread(target=_load, args=(daemon, acknowledged, ending))
        thread.start()
        try:
            while acknowledged[0] < 150 and thread.is_alive():
                at_least = acknowledged[0]
                found = run("--data-dir", tmp_path / "data", "cat", "load")
                assert found.status == 0, found.err
                numbers = [message["n"] for message in json.loads(found.out)]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= at_least
                listed = run("--data-dir", tmp_path / "data", "ls", "--state", "damaged")
                assert listed.lines[1:] == []
                time.sleep(0.05)  # this process writes, too
        finally:
            ending.set()
            thread.join()
        assert acknowledged[0] >= 150


def _load(daemon: Daemon, acknowledged: list[int], ending: threading.Event) -> None:
    """Append, fold and delete, so that journal files, segments and streams come and go."""
    with httpx.Client(headers={"Content-Type": JSON}) as client:
        while not ending.is_set():
            n = acknowledged[0]
            body = json.dumps({"n": n, "pad": "x" * 1000})
            client.post(daemon.stream("load"), content=body).raise_for_status()
            acknowledged[0] = n + 1
            short = daemon.stream(f"short-{n % 5}")
            if n % 10 < 5:
                client.put(short, content=body).raise_for_status()
            else:
                client.delete(short)
