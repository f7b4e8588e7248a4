"""Servers that are out of order, or none: what they send ends in words, soon, and holds nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from durastreamd.client import (
    AnswerError,
    ClientError,
    ClientSettings,
    DurableStream,
    ServerRefusedError,
    SettingsError,
    UnreachableError,
    UrlError,
    list_streams,
)
from tests.support.plain_server import Scripted, plain_server

QUICK = ClientSettings(retry_s=0.01, retry_interval_s=0.001, timeout_s=5, answer_bytes_max=10_000)
JSON = {"Content-Type": "application/json"}
TOLD = {**JSON, "Stream-Next-Offset": "tokb", "Stream-Up-To-Date": "true"}
PAGE = b"<html><body>" + b"x" * 5000

Work = Callable[[DurableStream], object]


def read(stream: DurableStream) -> object:
    return list(stream.messages())


def scripted_then(work: Work, *answers: Scripted) -> None:
    with plain_server() as server:
        server.streams["/v1/stream/x"] = ("application/json", [b"1"])
        with DurableStream(f"{server.url}/v1/stream/x", QUICK) as stream:
            stream.head()
            server.script += [each for answer in answers for each in [answer] * 4]
            work(stream)


@pytest.mark.parametrize(
    ("work", "answer", "kind", "text"),
    [
        (read, Scripted(200, {**TOLD, "Content-Type": "text/html"}, b""), None, ""),
        (read, Scripted(200, JSON, b"[]"), AnswerError, "no Stream-Next-Offset"),
        (read, Scripted(200, TOLD, b"<html>"), AnswerError, "not JSON"),
        (read, Scripted(200, TOLD, b'{"a": 1}'), AnswerError, "not an array"),
        (read, Scripted(200, TOLD, b"[1, 2"), AnswerError, "not JSON"),
        (read, Scripted(-1), AnswerError, "no Stream-Next-Offset"),
        (read, Scripted(-2, {**TOLD, "Content-Length": "90"}, b"[1"), UnreachableError, "88 bytes"),
        (read, Scripted(502, {}, PAGE), ServerRefusedError, "502 Bad Gateway"),
        (read, Scripted(302, {"Location": "/v1/stream/x"}), ServerRefusedError, "302 Found"),
        (
            DurableStream.head,
            Scripted(200, {"Content-Type": "text/html"}),
            AnswerError,
            "is this a",
        ),
        (DurableStream.close, Scripted(200, {}, PAGE), AnswerError, "is this a Durable Streams"),
        (DurableStream.bootstrap, Scripted(200, TOLD, b"[]"), AnswerError, "not multipart"),
        (
            DurableStream.bootstrap,
            Scripted(200, {**TOLD, "Content-Type": "multipart/mixed; boundary=b"}, b"--b\r\n\r\n"),
            ClientError,
            "ends before its end",
        ),
        (DurableStream.snapshot, Scripted(307, {"Location": "snapshot"}), AnswerError, "3 times"),
        (DurableStream.snapshot, Scripted(307, {}), AnswerError, "which is not followed"),
        (
            DurableStream.snapshot,
            Scripted(307, {"Location": "http://elsewhere.example/steal"}),
            AnswerError,
            "another server, which is not followed",
        ),
        (DurableStream.snapshot, Scripted(200, TOLD, b"x" * 20_000), AnswerError, "larger than"),
        (DurableStream.head, Scripted(200, {**TOLD, "X-Large": "x" * 70_000}), AnswerError, "HTTP"),
        (
            DurableStream.head,
            Scripted(200, {f"X-{number}": "1" for number in range(200)}),
            AnswerError,
            "does not answer as an HTTP server",
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(
    work: Work, answer: Scripted, kind: type[ClientError] | None, text: str
) -> None:
    if kind is None:
        scripted_then(work, answer)
    else:
        with pytest.raises(kind, match=text) as caught:
            scripted_then(work, answer)
        assert len(str(caught.value)) < 600, "a page of HTML is not shown whole"


@pytest.mark.parametrize(
    "rows",
    [
        b"[]",
        b"{}",
        b'{"streams": 7}',
        b'{"streams": [7]}',
        b'{"streams": [{}]}',
        b'{"streams": [], "has_more": true, "next_cursor": ""}',
        b"[" * 9000,
    ],
)
def test_a_listing_that_is_none_is_said_to_be_none(rows: bytes) -> None:
    with plain_server() as server:
        server.script += [Scripted(200, JSON, rows)] * 3
        with pytest.raises(AnswerError, match="listing"):
            list(list_streams(server.url, settings=QUICK))
        server.script.clear()


@contextmanager
def speaking(answer: bytes) -> Iterator[str]:
    """Lend the URL of something that sends these bytes to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(10_000)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/stream/x"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", AnswerError),
        (b"\x15\x03\x01\x00\x02\x02\x50", AnswerError),
        (b"HTTP/9.9 what\r\n\r\n", AnswerError),
        (b"", UnreachableError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ClientError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", AnswerError),
    ],
)
def test_what_does_not_speak_http_is_told_from_what_is_not_there(
    answer: bytes, kind: type[ClientError]
) -> None:
    with speaking(answer) as url, DurableStream(url, QUICK) as stream:
        with pytest.raises(kind):
            stream.append_json(1)


def test_what_cannot_be_sent_is_refused_before_it_is() -> None:
    with plain_server() as server:
        with DurableStream(f"{server.url}/v1/stream/x", QUICK) as stream:
            with pytest.raises(SettingsError, match="cannot be sent"):
                stream.create("text/plain\r\nX-Evil: 1")
            with pytest.raises(SettingsError, match="cannot be sent"):
                stream.create("text/\u4e2d")
        with DurableStream(f"{server.url}/v1/stream/a b", QUICK) as stream:
            with pytest.raises(UrlError, match="cannot be asked for"):
                stream.head()
        assert server.seen == []
