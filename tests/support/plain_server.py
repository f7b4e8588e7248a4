"""A server of the base protocol alone, in memory: no bounds, no counts, no look-ups, small pages.

What the source falls back to must be right on any such server. It also fails on request, for the
client's tests: ``script`` holds answers that go out before any other.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit


class Scripted(NamedTuple):
    """One answer; status 0 hangs up without any, -1 after half a body, -2 after this body."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012
    body: bytes = b""


class PlainServer(ThreadingHTTPServer):
    """Streams by path: a content type and messages. Tokens are letters, to be opaque."""

    daemon_threads = True

    def __init__(self, page: int = 3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = page
        self.streams: dict[str, tuple[str, list[bytes]]] = {}
        self.script: list[Scripted] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def token(number: int) -> str:
    return "tok" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def number_of(text: str) -> int:
    if text == "-1":
        return 0
    return int("".join(str(ord(each) - ord("a")) for each in text.removeprefix("tok")))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or Nagle's algorithm waits for an acknowledgement
    server: PlainServer  # type: ignore[mutable-override]  # the only one it is made by

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, *_: object) -> None:
        pass

    def _scripted(self) -> bool:
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.command, self.path, headers))
        if not self.server.script:
            return False
        answer = self.server.script.pop(0)
        if answer.status <= 0:
            if answer.status < 0:
                self.send_response(200)
                told = answer.headers if answer.status == -2 else {"Content-Length": "100"}
                for name, value in told.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body if answer.status == -2 else b"half")
            self.close_connection = True
            return True
        self._answer(answer.status, answer.headers, answer.body)
        return True

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        if not self._scripted():
            self._answer(204, {})

    def do_HEAD(self) -> None:
        if self._scripted():
            return
        found = self.server.streams.get(urlsplit(self.path).path)
        if found is None:
            self._answer(404, {})
        else:
            tail = token(len(found[1]))
            self._answer(200, {"Content-Type": found[0], "Stream-Next-Offset": tail})

    def do_GET(self) -> None:
        if self._scripted():
            return
        parts = urlsplit(self.path)
        found = self.server.streams.get(parts.path)
        if found is None:
            self._answer(404, {})
            return
        kind, messages = found
        start = number_of(parse_qs(parts.query).get("offset", ["-1"])[0])
        end = min(start + self.server.page, len(messages))
        headers = {"Content-Type": kind, "Stream-Next-Offset": token(end)}
        if end == len(messages):
            headers["Stream-Up-To-Date"] = "true"
        if kind == "application/json":
            body = b"[" + b", ".join(messages[start:end]) + b"]"
        else:
            body = b"".join(messages[start:end])
        self._answer(200, headers, body)


@contextmanager
def plain_server(page: int = 3) -> Iterator[PlainServer]:
    server = PlainServer(page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def as_json(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]
