"""Server-sent events, to the byte as the public clients read them.

``event: data`` has a space, ``data:`` has none, lines end in LF. Payloads are split at CR LF, CR
and LF, so nothing a client wrote can begin a field of its own. A reader strips one space after
``data:``, so a line that begins with a space gets one more. Lines are found by whole passes of C
over a piece, never one by one: a message of nothing but line ends is no dearer than others.
"""

import base64
from typing import NamedTuple

from durastreamd.protocol import json_mode
from durastreamd.protocol.content_type import is_json, media_type
from durastreamd.protocol.offsets import mint

HEARTBEAT = b": still here\n\n"


def needs_base64(content_type: str) -> bool:
    """Tell whether a stream's bytes must be encoded to pass through events."""
    return not (is_json(content_type) or media_type(content_type).startswith("text/"))


class DataEvent:
    """The event that carries a range of a stream's bytes, made of pieces of it as they come.

    What the calls return, one after the other, is the event: ``begin``, any number of ``add``,
    ``end``. A large message is sent without being in memory as a whole.
    """

    __slots__ = ("_base64", "_fresh", "_held", "_json")

    def __init__(self, content_type: str) -> None:
        self._json = is_json(content_type)
        self._base64 = needs_base64(content_type)
        self._held = b""  # bytes that depend on the next ones: of a base64 group, of a line end
        self._fresh = not self._json  # nothing stands after the last ``data:`` yet

    def begin(self) -> bytes:
        """Return how the event begins."""
        return b"event: data\ndata:[" if self._json else b"event: data\ndata:"

    def add(self, piece: bytes) -> bytes:
        """Return the next bytes, as the event has them; of JSON without the last separator."""
        payload = self._held + piece
        if self._base64:
            whole = len(payload) - len(payload) % 3
            self._held = payload[whole:]
            return base64.b64encode(payload[:whole])
        self._held = b"\r" if payload.endswith(b"\r") else b""
        return self._lines(payload.removesuffix(self._held))

    def _lines(self, payload: bytes) -> bytes:
        if not payload:
            return b""
        spaced = b" " if self._fresh and payload.startswith(b" ") else b""
        if b"\r" in payload:
            payload = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" in payload:
            payload = payload.replace(b"\n", _FIELD).replace(_FIELD + b" ", _FIELD + b"  ")
        self._fresh = payload.endswith(_FIELD)
        return spaced + payload

    def end(self) -> bytes:
        """Return how the event ends."""
        if self._base64:
            return base64.b64encode(self._held) + b"\n\n"
        return (b"]" if self._json else self._held and _FIELD) + b"\n\n"


_FIELD = b"\ndata:"


def payload_end(content_type: str, end: int) -> int:
    """Return where the bytes that ``DataEvent.add`` is given end, of a range that ends there."""
    return end - len(json_mode.SEPARATOR) if is_json(content_type) else end


def data_event(content_type: str, wire: bytes) -> bytes:
    """Return the event that carries a range of a stream's bytes, on message boundaries."""
    event = DataEvent(content_type)
    wire = wire[: payload_end(content_type, len(wire))]
    return event.begin() + event.add(wire) + event.end()


class Control(NamedTuple):
    """What follows each data event: where the reader stands now."""

    position: int
    cursor: int
    up_to_date: bool
    closed: bool

    def event(self) -> bytes:
        """Return the control event; the id lets a browser resume by itself."""
        token = mint(self.position)
        fields = f'{{"streamNextOffset":"{token}"'
        if self.closed:
            fields += ',"streamClosed":true'
        else:
            fields += f',"streamCursor":"{self.cursor}"'
        if self.up_to_date:
            fields += ',"upToDate":true'
        return f"event: control\ndata:{fields}}}\nid: {token}\n\n".encode()
