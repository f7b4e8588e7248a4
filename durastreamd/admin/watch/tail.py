"""``dsadmin tail``: follow a stream of a running server.

The offset to go on from is known at any moment: what arrived is written only together with the
server's word on where it ends. A connection that breaks in between is made anew, and nothing is
written twice or left out.

Events would change the line ends of a text, so text is followed by long-polls.
"""

import argparse
import base64
import time
from urllib.parse import urlencode

import msgspec

from durastreamd.admin import server
from durastreamd.client import (
    Client,
    ClientError,
    CutShortError,
    Delivery,
    deliveries,
)
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK
from durastreamd.protocol.content_type import is_json
from durastreamd.protocol.sse import needs_base64

RETRY_S_MIN, RETRY_S_MAX = 0.1, 5.0
MODES = ("auto", "sse", "long-poll")

_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    server.add_arguments(parser, "a stream: its URL, or its path or name on the server")
    parser.add_argument(
        "--from", dest="start", default="now", metavar="OFFSET", help="-1: all there is (now)"
    )
    parser.add_argument("--mode", choices=MODES, default="auto", help="how to follow (auto)")
    parser.add_argument("--no-follow", action="store_true", help="end when up to date")


def _run(args: argparse.Namespace, console: Console) -> int:
    client, url = server.connect(args)
    try:
        _Follower(client, url, args, console).run()
    except ClientError as exc:
        raise server.failure(exc) from exc
    finally:
        client.hang_up()
    return OK


class _Follower:
    """Follows one stream over as many connections as it takes."""

    def __init__(
        self, client: Client, url: str, args: argparse.Namespace, console: Console
    ) -> None:
        self._client = client
        self._url = url
        self._console = console
        self._offset = args.start
        self._cursor = ""
        self._mode = args.mode
        self._once = args.no_follow
        self._kind = ""
        self._pause_s = RETRY_S_MIN

    def run(self) -> None:
        """Follow until the stream is closed; raise if it was never reached or is refused."""
        self._kind = self._client.head(self._url).headers.get("content-type", "")
        if self._mode == "auto":
            text = not is_json(self._kind) and not needs_base64(self._kind)
            self._mode = "long-poll" if text else "sse"
        ended = False
        while not ended:
            try:
                events = self._mode == "sse" and not self._once
                ended = self._listen() if events else self._poll()
            except ClientError as exc:
                if not server.may_pass(exc):
                    raise
                self._wait(exc)

    def _wait(self, why: Exception) -> None:
        if self._pause_s == RETRY_S_MIN:
            self._console.note(f"{why}; trying again from {self._offset}")
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)

    def _asked(self) -> str:
        """Return the URL of what comes next."""
        query = {"offset": self._offset}
        if not self._once:
            query["live"] = self._mode
            if self._cursor:
                query["cursor"] = self._cursor
        return f"{self._url}?{urlencode(query)}"

    # --- long-poll ---

    def _poll(self) -> bool:
        """Ask once; tell whether the stream has ended."""
        reply = self._client.get(self._asked())
        said = reply.headers.get
        closed = said("stream-closed") == "true"
        next_offset, cursor = said("stream-next-offset", ""), said("stream-cursor", "")
        self._take(Delivery(reply.body, next_offset, closed, cursor))
        return closed or (self._once and said("stream-up-to-date") == "true")

    # --- server-sent events ---

    def _listen(self) -> bool:
        came = False
        with self._client.reading(self._asked()) as body:
            for delivery in deliveries(body):
                came = True
                self._take(delivery)
                if delivery.closed:
                    return True
        if not came:
            message = f"{self._url} sent no events"
            raise CutShortError(message)
        return False

    def _take(self, came: Delivery) -> None:
        """Write what came and go on after it."""
        self._pause_s = RETRY_S_MIN
        if came.data:
            self._write(came)
            self._console.flush()
        self._offset = came.next_offset or self._offset
        self._cursor = came.cursor or self._cursor

    def _write(self, came: Delivery) -> None:
        console = self._console
        if is_json(self._kind):
            messages = [bytes(raw).decode() for raw in _MESSAGES.decode(came.data)]
            if console.as_json:
                joined = ", ".join(messages)
                console.line(f'{{"next_offset": "{came.next_offset}", "json": [{joined}]}}')
                return
            for message in messages:
                console.line(message)
        elif not console.as_json:
            console.raw(came.data)
        elif needs_base64(self._kind):
            text = base64.b64encode(came.data).decode()
            console.record({"next_offset": came.next_offset, "base64": text})
        else:
            text = came.data.decode("utf-8", "replace")
            console.record({"next_offset": came.next_offset, "text": text})


COMMAND = Command("tail", "follow a stream of a running server", _add_arguments, _run)
