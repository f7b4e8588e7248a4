"""The other commands of ``ds``: what they print, where they begin and end, what they refuse."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from durastreamd.client import DurableStream
from durastreamd.ds.cursor import CursorFile
from tests.ds.conftest import Ds
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.plain_server import Scripted, as_json, plain_server

DS = [sys.executable, "-m", "durastreamd.ds.cli"]


def started(*words: str, **more: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*DS, *words], cwd=ROOT, stdout=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


def test_ls_and_info_show_what_there_is(ds: Ds) -> None:
    ds("create", "--json", "shown/b")
    ds("create", "--type", "image/png", "--ttl", "60", "shown/a")
    ds("append", "shown/b", "1", "2")
    ds("close", "shown/b")
    rows = [line.split() for line in ds("ls", "shown/").lines]
    assert [row[:4] for row in rows] == [
        ["NAME", "STATE", "BYTES", "MESSAGES"],
        ["shown/a", "open", "0", "0"],
        ["shown/b", "closed", "6", "2"],
    ]
    told = [json.loads(line) for line in ds("ls", "--json", "shown/").lines]
    assert [row["stream_id"] for row in told] == ["shown/a", "shown/b"]
    info = json.loads(ds("info", "--json", "shown/a").out)
    assert (info["content_type"], info["ttl_s"], info["state"]) == ("image/png", 60, "open")
    assert ds("rm", "shown/a", "shown/b").status == 0
    assert ds("ls", "shown/").out == b""
    assert ds("info", "shown/a").status == 66


def test_cat_begins_and_ends_where_it_is_told(ds: Ds) -> None:
    ds("create", "--json", "places")
    for number in range(5):
        ds("append", "places", str(number))
    rows = [json.loads(line) for line in ds("cat", "--json", "places").lines]
    assert [row["json"] for row in rows] == [0, 1, 2, 3, 4]
    assert ds("cat", "-n", "2", "places").lines == ["3", "4"]
    assert ds("cat", "--last", "0", "places").lines == []
    assert ds("cat", "--from", rows[1]["after"], "places").lines == ["2", "3", "4"]
    offset = json.loads(ds("info", "--json", "places").out)["next_offset"]
    assert ds("cat", "--to", offset, "places").lines == ["0", "1", "2", "3", "4"]
    assert ds("cat", "--from", offset, "--to", offset, "places").lines == []
    assert ds("cat", "--since", "2020-01-01T00:00:00Z", "places").lines == list("01234")
    assert ds("cat", "--until", "2020-01-01T00:00:00Z", "places").lines == []
    assert ds("cat", "--from", "nonsense here", "places").status == 64
    assert ds("cat", "-n", "-3", "places").status == 64
    assert ds("cat", "--from", "7", "places").status == 65


def test_cat_passes_over_what_a_snapshot_stands_for(ds: Ds) -> None:
    ds("create", "folded")
    ds("append", "folded", "one")
    assert ds("snapshot", "folded").status == 66
    assert ds("snapshot", "--put", "-", "folded", stdin=b"{}").status == 0
    ds("append", "folded", "two")
    found = ds("cat", "folded")
    assert (found.status, found.lines) == (0, ["two"])
    assert "no longer kept" in found.err
    assert ds("cat", "--from", "-1", "folded").status == 66, "it was asked for"
    assert ds("snapshot", "folded").out == b"{}"


def test_a_server_that_counts_nothing_is_read_all_the_same() -> None:
    from tests.ds.conftest import run

    with plain_server(page=3) as server:
        server.streams["/v1/stream/x"] = ("application/json", as_json(*range(8)))
        url = f"{server.url}/v1/stream/x"
        assert run("cat", url).lines == [str(number) for number in range(8)]
        assert run("cat", "-n", "3", url).lines == ["5", "6", "7"]
        refused = run("cat", "--since", "2020-01-01T00:00:00Z", url)
        assert (refused.status, "does not look up" in refused.err) == (69, True)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Scripted(200, {"Content-Type": "text/html"}, b"<html>"), 69),
        (Scripted(502, {"Content-Type": "text/html"}, b"<html>Bad Gateway"), 69),
        (Scripted(302, {"Location": "/v1/stream/x"}), 65),
        (Scripted(401), 77),
        (Scripted(403, {}, b'{"code": "PERMISSION_DENIED", "detail": "no"}'), 77),
        (Scripted(404), 66),
        (Scripted(200, {"X": "x" * 70_000}), 69),
    ],
)
def test_answers_of_no_such_server_are_one_line(answer: Scripted, status: int) -> None:
    from tests.ds.conftest import run

    with plain_server() as server:
        for command in ("cat", "tail", "info", "append"):
            server.script += [answer] * 2
            ran = run("--retry", "0", command, f"{server.url}/v1/stream/x")
            assert (ran.status, ran.out) == (status, b""), command
            assert ran.err.count("\n") == 1
            server.script.clear()


def test_tail_keeps_its_place_and_goes_on(ds: Ds, tmp_path: Path, daemon: Daemon) -> None:
    state = tmp_path / "place"
    ds("create", "--json", "kept")
    ds("append", "kept", "1", "2")
    with started("tail", "--state", str(state), daemon.stream("kept")) as follower:
        assert follower.stdout is not None
        assert [follower.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        ds("append", "kept", "3")
        assert follower.stdout.readline() == b"3\n"
        busy = ds("tail", "--state", str(state), "kept")
        assert (busy.status, "in use by another" in busy.err) == (75, True)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(PATIENCE_S) == 130
    ds("append", "kept", "4")
    ds("close", "kept")
    assert ds("tail", "--state", str(state), "kept").lines == ["4"]
    assert ds("tail", "--state", str(state), "kept").lines == []
    assert ds("tail", "--state", str(state), "elsewhere").status == 66
    whole = state.read_bytes()
    state.write_bytes(whole[:100])
    damaged = ds("tail", "--state", str(state), "kept")
    assert (damaged.status, "is damaged" in damaged.err) == (74, True)
    state.write_bytes(whole)
    ds("rm", "kept")
    ds("create", "--json", "kept")
    replaced = ds("tail", "--state", str(state), "kept")
    assert (replaced.status, "made anew" in replaced.err) == (66, True)


def test_a_place_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("not run: no /dev/full")
    cursor = CursorFile("/dev/full", "http://x/")
    from durastreamd.client import Bookmark, StateError

    with pytest.raises(StateError, match="No space left"):
        cursor.save(Bookmark("-1"), "")
    cursor.release()


def test_a_reader_that_goes_away_ends_it_quietly(ds: Ds, daemon: Daemon) -> None:
    ds("create", "long")
    with DurableStream(daemon.stream("long")) as stream:
        for _ in range(20):
            stream.append("x" * 99_999 + "\n")
    with started("cat", stream.url, stderr=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        assert cat.stderr is not None
        cat.stdout.read(10)
        cat.stdout.close()
        assert cat.wait(PATIENCE_S) == 141
        assert cat.stderr.read() == b""


def test_pipe_streams_a_program_and_ends_as_it_does(ds: Ds, daemon: Daemon) -> None:
    program = ["sh", "-c", "echo out; echo err >&2; printf rest; exit 3"]
    ran = ds("pipe", "--json", "--close", "piped", "--", *program)
    assert (ran.status, json.loads(ran.out)["exit"]) == (3, 3)
    found = [json.loads(line) for line in ds("cat", "piped").lines]
    assert found[-1] == {"exit": 3}
    assert sorted(map(str, found[:-1])) == ["{'err': 'err'}", "{'out': 'out'}", "{'out': 'rest'}"]
    assert json.loads(ds("info", "--json", "piped").out)["state"] == "closed"
    assert ds("pipe", "--quiet", "ended", "--", "sh", "-c", "kill -TERM $$").status == 128 + 15
    assert ds("cat", "ended").lines == ["ended by signal 15"]
    assert ds("pipe", "ended", "--", "/no/such/program").status == 66
    with started("pipe", daemon.stream("shown-too"), "--", "echo", "hello") as shown:
        assert shown.communicate(timeout=PATIENCE_S)[0] == b"hello\n"


def test_fork_at_a_message(ds: Ds) -> None:
    ds("create", "--json", "source")
    ds("append", "source", "1", "2", "3")
    after = json.loads(ds("cat", "--json", "source").lines[1])["after"]
    assert ds("fork", "--at", after, "source", "copy").status == 0
    assert ds("cat", "copy").lines == ["1", "2"]


def test_bench_verifies_what_it_reads(ds: Ds, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = ds("bench", "--json", "--streams", "2", "--messages", "20", "tried")
    told = json.loads(ran.out)
    assert (ran.status, told["verified"]) == (0, 40)
    assert ds("ls", "tried").out == b"", "nothing is left"
    assert ds("bench", "--size", "5").status == 64
    from durastreamd.ds import bench

    original = bench._Stream._message
    monkeypatch.setattr(
        bench._Stream,
        "_message",
        lambda self, number, chain: original(self, number + (number == 7), chain),
    )
    wrong = ds("bench", "--streams", "1", "--messages", "20", "--keep", "wrong")
    assert (wrong.status, "message 7 of" in wrong.err) == (65, True)


def test_lines_go_out_when_nothing_more_comes_for_now(ds: Ds, daemon: Daemon) -> None:
    ds("create", "slow")
    with started("append", "--no-state", daemon.stream("slow"), stdin=subprocess.PIPE) as append:
        assert append.stdin is not None
        append.stdin.write(b"first\nsecond\n")
        append.stdin.flush()
        wait_until(lambda: ds("cat", "slow").lines == ["first", "second"], "they do not come")
        append.stdin.close()
        assert append.wait(PATIENCE_S) == 0


def test_a_terminal_gets_words_and_tables(ds: Ds, daemon: Daemon) -> None:
    ds("create", "--type", "application/octet-stream", "binary")

    def on_terminal(*words: str) -> str:
        lead, follow = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        with subprocess.Popen(
            [*DS, *words], cwd=ROOT, stdout=follow, stderr=follow, env=environ
        ) as process:
            os.close(follow)
            found = bytearray()
            reader = threading.Thread(target=lambda: _drain(lead, found))
            reader.start()
            process.wait(PATIENCE_S)
            reader.join()
        os.close(lead)
        return re.sub(r"\x1b\[[0-9;]*m", "", found.decode()).replace("\r\n", "\n")

    assert "1 message; the stream ends at" in on_terminal("append", "binary", "x")
    assert on_terminal("ls", "binary").endswith("1 stream\n")
    assert "not for a terminal" in on_terminal("cat", "binary")


def _drain(lead: int, found: bytearray) -> None:
    while True:
        try:
            piece = os.read(lead, 10_000)
        except OSError:
            return
        if not piece:
            return
        found += piece
