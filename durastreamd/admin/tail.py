"""``dsadmin tail``: follow a stream of a running server.

The offset to go on from is known at any moment: what arrived is written only together with the
server's word on where it ends. A connection that breaks in between is made anew, and nothing is
written twice or left out.

Events would change the line ends of a text, so text is followed by long-polls.
"""

import argparse
import base64
import http.client
import json
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from durastreamd.admin import client as net
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK, UNAVAILABLE
from durastreamd.protocol.content_type import is_json
from durastreamd.protocol.sse import needs_base64

RETRY_S_MIN, RETRY_S_MAX = 0.1, 5.0
MODES = ("auto", "sse", "long-poll")

_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


class Piece(NamedTuple):
    """Bytes of the stream (a JSON array for JSON), where they end, and whether that is the end."""

    data: bytes
    next_offset: str
    closed: bool
    cursor: str


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    net.add_arguments(parser, "a stream: its URL, or its path or name on the server")
    parser.add_argument(
        "--from", dest="start", default="now", metavar="OFFSET", help="-1: all there is (now)"
    )
    parser.add_argument("--mode", choices=MODES, default="auto", help="how to follow (auto)")
    parser.add_argument("--no-follow", action="store_true", help="end when up to date")


def _run(args: argparse.Namespace, console: Console) -> int:
    target = net.target_of(args.url)
    follower = _Follower(net.Client(target, args.cacert), args, console)
    try:
        follower.run()
    except net.TryAgainError as exc:
        raise CommandError(UNAVAILABLE, f"{exc}; is the server running?") from exc
    return OK


class _Follower:
    """Follows one stream over as many connections as it takes."""

    def __init__(self, client: net.Client, args: argparse.Namespace, console: Console) -> None:
        self._client = client
        self._console = console
        self._offset = args.start
        self._cursor = ""
        self._mode = args.mode
        self._once = args.no_follow
        self._kind = ""
        self._pause_s = RETRY_S_MIN

    def run(self) -> None:
        """Follow until the stream is closed; raise TryAgainError if it was never reached."""
        head = self._client.ask("HEAD", self._client.target.path)
        self._kind = head.header("Content-Type")
        head.hang_up()
        if self._mode == "auto":
            text = not is_json(self._kind) and not needs_base64(self._kind)
            self._mode = "long-poll" if text else "sse"
        ended = False
        while not ended:
            try:
                events = self._mode == "sse" and not self._once
                ended = self._listen() if events else self._poll()
            except (net.TryAgainError, OSError, http.client.HTTPException) as exc:
                self._wait(exc)

    def _wait(self, why: Exception) -> None:
        if self._pause_s == RETRY_S_MIN:
            self._console.note(f"{why}; trying again from {self._offset}")
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)

    def _query(self) -> dict[str, str]:
        query = {"offset": self._offset}
        if not self._once:
            query["live"] = self._mode
            if self._cursor:
                query["cursor"] = self._cursor
        return query

    # --- long-poll ---

    def _poll(self) -> bool:
        """Ask once; tell whether the stream has ended."""
        answer = self._client.ask("GET", self._client.target.path, self._query())
        try:
            data = answer.response.read()
        finally:
            answer.hang_up()
        closed = answer.header("Stream-Closed") == "true"
        cursor = answer.header("Stream-Cursor")
        self._take(Piece(data, answer.header("Stream-Next-Offset"), closed, cursor))
        return closed or (self._once and answer.header("Stream-Up-To-Date") == "true")

    # --- server-sent events ---

    def _listen(self) -> bool:
        answer = self._client.ask("GET", self._client.target.path, self._query())
        encoded = answer.header("Stream-SSE-Data-Encoding") == "base64"
        came = False
        try:
            for piece in pieces(answer.response, encoded=encoded):
                came = True
                self._take(piece)
                if piece.closed:
                    return True
        finally:
            answer.hang_up()
        if not came:
            text = f"{self._client.target} sent no events"
            raise net.TryAgainError(text)
        return False

    def _take(self, piece: Piece) -> None:
        """Write what came and go on after it."""
        self._pause_s = RETRY_S_MIN
        if piece.data:
            self._write(piece)
            self._console.flush()
        self._offset = piece.next_offset or self._offset
        self._cursor = piece.cursor or self._cursor

    def _write(self, piece: Piece) -> None:
        console = self._console
        if is_json(self._kind):
            messages = [bytes(raw).decode() for raw in _MESSAGES.decode(piece.data)]
            if console.as_json:
                joined = ", ".join(messages)
                console.line(f'{{"next_offset": "{piece.next_offset}", "json": [{joined}]}}')
                return
            for message in messages:
                console.line(message)
        elif not console.as_json:
            console.raw(piece.data)
        elif needs_base64(self._kind):
            text = base64.b64encode(piece.data).decode()
            console.record({"next_offset": piece.next_offset, "base64": text})
        else:
            text = piece.data.decode("utf-8", "replace")
            console.record({"next_offset": piece.next_offset, "text": text})


def pieces(response: http.client.HTTPResponse, *, encoded: bool) -> Iterator[Piece]:
    """Yield what events bring, each piece once its control event is there."""
    held: list[bytes] = []
    for event, data in events(response):
        if event == "data":
            held.append(base64.b64decode(data) if encoded else data)
        elif event == "control":
            control = json.loads(data)
            yield Piece(
                b"".join(held),
                control["streamNextOffset"],
                control.get("streamClosed", False),
                control.get("streamCursor", ""),
            )
            held = []


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
    """Yield the events of a response; one that is cut short is left out."""
    event = ""
    lines: list[bytes] = []
    while line := response.readline():
        line = line.rstrip(b"\r\n")
        if not line:
            if event or lines:
                yield event, b"\n".join(lines)
            event, lines = "", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            event = value.decode("latin-1")
        elif field == b"data":
            lines.append(value)


COMMAND = Command("tail", "follow a stream of a running server", _add_arguments, _run)
