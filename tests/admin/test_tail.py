"""tail follows a stream over reconnects and restarts, and writes nothing twice."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from durastreamd.kit.status import CORRUPT, INTERRUPTED, NO_INPUT, NO_PERMISSION, UNAVAILABLE, USAGE
from durastreamd.protocol import problems
from durastreamd.protocol.problems import render
from tests.admin.harness import BYTES, ENVIRONMENT, JSON, TEXT, Result, run
from tests.admin.pages import Page, Pages
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

# One client for all, which keeps no connection: servers come and go here.
http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = {"reads.sse_s": 0.3, "reads.long_poll_s": 0.3}  # connections end often
    with Daemon(tmp_path_factory.mktemp("tail"), settings=settings) as running:
        yield running


class Tail(threading.Thread):
    """A tail that runs until the stream is closed."""

    def __init__(self, *arguments: str) -> None:
        super().__init__()
        self._arguments = arguments
        self.result: Result | None = None
        self.start()

    def run(self) -> None:
        self.result = run("tail", *self._arguments)

    def ended(self) -> Result:
        self.join(PATIENCE_S)
        assert self.result is not None, "still following"
        return self.result


def make(url: str, kind: str) -> None:
    http.put(url, headers={"Content-Type": kind}).raise_for_status()


def append(url: str, kind: str, body: bytes, *, closes: bool = False) -> None:
    headers = {"Content-Type": kind} | ({"Stream-Closed": "true"} if closes else {})
    http.post(url, content=body, headers=headers).raise_for_status()


@pytest.mark.parametrize("mode", ["auto", "sse", "long-poll"])
@pytest.mark.parametrize(
    ("kind", "bodies", "written"),
    [
        (JSON, [b'[{"a": 1}, 2]', b'"x"', b"123456789012345678901234567890"],
         b'{"a": 1}\n2\n"x"\n123456789012345678901234567890\n'),
        (TEXT, [b"one\n", b"two", b"\n\n three\n"], b"one\ntwo\n\n three\n"),
        (BYTES, [b"\0\xff", b"\r\n", bytes(range(256))], b"\0\xff\r\n" + bytes(range(256))),
    ],
)  # fmt: skip
def test_what_comes_is_written_until_the_stream_is_closed(
    server: Daemon, mode: str, kind: str, bodies: list[bytes], written: bytes
) -> None:
    url = server.stream(f"{mode}-{kind.replace('/', '-')}")
    make(url, kind)
    append(url, kind, bodies[0])
    tail = Tail(url, "--from", "-1", "--mode", mode)
    append(url, kind, bodies[1])
    append(url, kind, bodies[2], closes=True)
    found = tail.ended()
    assert (found.status, found.out, found.err) == (0, written, "")


def test_text_keeps_its_line_ends(server: Daemon) -> None:
    url = server.stream("crlf")
    make(url, TEXT)
    append(url, TEXT, b"a\r\nb\rc\n", closes=True)
    assert run("tail", url, "--from", "-1").out == b"a\r\nb\rc\n"


def test_it_begins_now_or_where_it_is_told(server: Daemon) -> None:
    url = server.stream("begin")
    make(url, JSON)
    append(url, JSON, b"[1, 2]")
    middle = http.head(url).headers["Stream-Next-Offset"]
    assert run("tail", url, "--no-follow").out == b""
    append(url, JSON, b"3")
    assert run("tail", url, "--no-follow", "--from", middle).out == b"3\n"
    assert run("tail", url, "--no-follow", "--from", "-1", "--mode", "sse").lines == ["1", "2", "3"]


def test_records_say_where_to_go_on(server: Daemon) -> None:
    for kind, body, member in (
        (JSON, b'[1, {"b": 2}]', {"json": [1, {"b": 2}]}),
        (TEXT, b"hi", {"text": "hi"}),
        (BYTES, b"\xff", {"base64": "/w=="}),
    ):
        url = server.stream(f"records-{kind.replace('/', '-')}")
        make(url, kind)
        append(url, kind, body)
        offset = http.head(url).headers["Stream-Next-Offset"]
        (record,) = run("tail", url, "--from", "-1", "--no-follow", "--json").records
        assert record == {"next_offset": offset, **member}


def test_a_restart_in_between_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        url = daemon.stream("numbers")
        make(url, JSON)
        tail = Tail(url, "--from", "-1")
        for n in range(30):
            append(url, JSON, b"%d" % n, closes=n == 29)
            if n == 15:
                daemon.kill9()
                daemon.restart()
        found = tail.ended()
    assert [json.loads(line) for line in found.lines] == list(range(30))
    assert "trying again from 00" in found.err


def test_each_reason_to_give_up_has_its_status(server: Daemon) -> None:
    nobody = run("tail", "http://127.0.0.1:9/v1/stream/x")
    assert (nobody.status, nobody.out) == (UNAVAILABLE, b"")
    assert "is the server running?" in nobody.err
    missing = run("tail", server.stream("missing"))
    assert (missing.status, "404" in missing.err) == (NO_INPUT, True)
    assert run("tail", "ftp://x/y").status == USAGE
    make(server.stream("folded"), TEXT)
    append(server.stream("folded"), TEXT, b"abc")
    place = http.head(server.stream("folded")).headers["Stream-Next-Offset"]
    http.put(f"{server.stream('folded')}/snapshot/{place}", content=b"x").raise_for_status()
    folded = run("tail", server.stream("folded"), "--from", "-1")
    assert (folded.status, f"--from {place} reads on" in folded.err) == (NO_INPUT, True)


@pytest.mark.parametrize("kind", [TEXT, JSON])
def test_a_damaged_stream_ends_it_and_a_failing_disk_does_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durastreamd.admin.watch.tail.RETRY_S_MIN", 0.001)
    control = b'event: control\ndata:{"streamNextOffset":"0000000000000003"}\n\n'
    first = b"[1]" if kind == TEXT else b"event: data\ndata:[1]\n\n" + control
    told: list[Page] = [
        (row.status, "application/problem+json", render(row, "so it is"))
        for row in (problems.DISK_FAILED, problems.INTERNAL_ERROR, problems.STREAM_DAMAGED)
    ]
    with Pages({"/s": [(200, kind, first), *told]}) as pages:
        found = Tail(f"{pages.url}/s", "--from", "-1").ended()
        assert len(pages.asked) == 4
    assert (found.status, found.text.strip()) == (CORRUPT, "[1]" if kind == TEXT else "1")
    assert "500 STREAM_DAMAGED: so it is; `dsadmin verify`" in found.err


def test_names_are_found_beside_stream_url(server: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    make(server.stream("by/name"), TEXT)
    append(server.stream("by/name"), TEXT, b"found", closes=True)
    monkeypatch.setenv("STREAM_URL", server.url)
    for name in ("by/name", "/v1/stream/by/name"):
        assert run("tail", name, "--from", "-1").out == b"found"
    monkeypatch.setenv("STREAM_URL", server.stream("by/name"))
    assert run("tail", "--from", "-1").out == b"found"


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    with Daemon(tmp_path, tls=True) as daemon:
        authority = daemon.certificates.authority if daemon.certificates else Path()
        trust = ssl.create_default_context(cafile=authority)
        httpx.put(daemon.stream("x"), content=b"x", verify=trust).raise_for_status()
        url = daemon.stream("x")
        trusted = run("tail", url, "--from", "-1", "--no-follow", "--cacert", authority)
        assert trusted.out == b"x"
        assert run("tail", url, "--no-follow").status == UNAVAILABLE


def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pages({"/s": [(401, "text/plain", b"no")]}) as pages:
        assert run("tail", f"{pages.url}/s").status == NO_PERMISSION
        monkeypatch.setenv("STREAM_AUTH", "secret")
        refused = run("tail", f"{pages.url}/s")
        monkeypatch.setenv("STREAM_AUTH", "Basic xyz")
        run("tail", f"{pages.url}/s")
        assert pages.tokens == [None, "Bearer secret", "Basic xyz"]
    assert refused.status == NO_PERMISSION
    assert "secret" not in refused.err


def test_what_was_cut_off_before_its_offset_came_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("durastreamd.admin.watch.tail.RETRY_S_MIN", 0.001)
    control = b'event: control\ndata:{"streamNextOffset":"%s"%s}\n\n'
    first = b"event: data\ndata:[1]\n\n" + control % (b"0000000000000003", b"")
    second = b"event: data\ndata:[2]\n\n"
    end = second + control % (b"0000000000000006", b',"streamClosed":true')
    bodies = [first + second, first[:-9], b"", end]
    answers = [(200, JSON, body) for body in bodies]
    with Pages({"/s": answers}) as pages:
        found = run("tail", f"{pages.url}/s", "--from", "-1", "--mode", "sse")
        offsets = [re.search(r"offset=([^&]+)", path)[1] for path in pages.asked]  # type: ignore[index]
    assert (found.status, found.lines) == (0, ["1", "2"])
    assert offsets == ["-1", *["0000000000000003"] * 3]


def test_an_interrupt_ends_it_without_a_traceback(server: Daemon) -> None:
    make(server.stream("quiet"), TEXT)
    append(server.stream("quiet"), TEXT, b"seen\n")
    command = [sys.executable, "-m", "durastreamd.admin.cli", "tail", "--from", "-1"]
    with subprocess.Popen(
        [*command, server.stream("quiet")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"seen\n"  # written at once, though to a pipe
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (INTERRUPTED, b"", b"")
