"""Server-sent events, taken apart as they come."""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from durastreamd.client.client import Body
from durastreamd.client.errors import AnswerError


class ServerEvent(NamedTuple):
    """One event: its name, and its lines of data joined."""

    name: str
    data: bytes


class Delivery(NamedTuple):
    """Bytes of a stream (a JSON array for JSON), where they end, and whether that is the end."""

    data: bytes
    next_offset: str
    closed: bool = False
    cursor: str = ""


def events(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Yield the events of an answer; one that is cut short is left out."""
    name = ""
    data: list[bytes] = []
    for line in lines:
        line = line.rstrip(b"\r\n")
        if not line:
            if name or data:
                yield ServerEvent(name, b"\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode("latin-1")
        elif field == b"data":
            data.append(value)


def deliveries(body: Body) -> Iterator[Delivery]:
    """Yield what events bring of a stream, each once its control event says where it ends."""
    encoded = body.headers.get("stream-sse-data-encoding") == "base64"
    held: list[bytes] = []
    size = 0
    for event in events(body.lines()):
        if event.name == "data":
            size += len(event.data)
            if size > body.bytes_max:
                message = f"events without an offset are larger than {body.bytes_max} bytes"
                raise AnswerError(message)
            held.append(base64.b64decode(event.data) if encoded else event.data)
        elif event.name == "control":
            yield _delivery(b"".join(held), event.data)
            held, size = [], 0


def _delivery(data: bytes, control: bytes) -> Delivery:
    try:
        match json.loads(control):
            case {"streamNextOffset": str(offset), **rest}:
                closed, cursor = rest.get("streamClosed"), rest.get("streamCursor")
                return Delivery(data, offset, bool(closed), str(cursor or ""))
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    message = f"a control event does not say where the stream stands: {control[:200]!r}"
    raise AnswerError(message)
