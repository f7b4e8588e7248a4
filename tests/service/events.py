"""Server-sent events as a browser reads them: the parser of the WHATWG standard, and a client."""

import base64
import json
import re
from typing import Any, NamedTuple

from tests.service.harness import Connection

_LINE = re.compile("\r\n|\r|\n")


class Event(NamedTuple):
    """A dispatched event."""

    kind: str
    data: str
    last_id: str


class Parser:
    """Fed with bytes, gives events (HTML standard, 9.2.6); comments are kept for the tests."""

    def __init__(self) -> None:
        self._bytes = b""
        self._kind = ""
        self._data: list[str] = []
        self._last_id = ""
        self.comments: list[str] = []

    def feed(self, data: bytes) -> list[Event]:
        """Take whole lines; a CR at the end may be half of a CR LF and waits."""
        self._bytes += data
        end = max(self._bytes.rfind(b"\n"), self._bytes.rfind(b"\r", 0, -1)) + 1
        text, self._bytes = self._bytes[:end].decode("utf-8"), self._bytes[end:]
        found: list[Event] = []
        for line in _LINE.split(text)[:-1]:
            self._line(line, found)
        return found

    def _line(self, line: str, found: list[Event]) -> None:
        if not line:
            if self._data:
                found.append(Event(self._kind or "message", "\n".join(self._data), self._last_id))
            self._kind, self._data = "", []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments.append(value)
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._last_id = value


class Follow:
    """An SSE response, read by event."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parser = Parser()
        self.events: list[Event] = []
        self._taken = 0

    async def event(self) -> Event | None:
        """Return the next event, None at the end."""
        while self._taken == len(self.events):
            if self.connection.reply.ended:
                return None
            self.events += self.parser.feed(await self.connection.step())
        self._taken += 1
        return self.events[self._taken - 1]

    async def pair(self) -> tuple[bytes, dict[str, Any]]:
        """Return the next control and the data before it, b"" if there was none."""
        data = b""
        event = await self.event()
        if event is not None and event.kind == "data":
            data = decoded(self.connection, event.data)
            event = await self.event()
        assert event is not None, "the events ended"
        assert event.kind == "control"
        control: dict[str, Any] = json.loads(event.data)
        assert event.last_id == control["streamNextOffset"]
        return data, control

    async def to_the_end(self) -> list[Event]:
        """Read until the response ends; returns every event of it."""
        while await self.event() is not None:
            pass
        return self.events


def decoded(connection: Connection, data: str) -> bytes:
    """Return the bytes an event's data stands for."""
    if connection.reply.get("Stream-SSE-Data-Encoding") == "base64":
        return base64.b64decode(data, validate=True)
    return data.encode()
