"""Server-sent events, to the byte as the public clients read them.

``event: data`` has a space, ``data:`` has none, lines end in LF. Payloads are split at CR LF, CR
and LF, so nothing a client wrote can begin a field of its own. A reader strips one space after
``data:``, so a line that begins with a space gets one more.
"""

import base64
import re
from typing import NamedTuple

from durastreamd.protocol import json_mode
from durastreamd.protocol.content_type import is_json, media_type
from durastreamd.protocol.offsets import mint

_LINE_END = re.compile(rb"\r\n|\r|\n")
HEARTBEAT = b": still here\n\n"


def needs_base64(content_type: str) -> bool:
    """Tell whether a stream's bytes must be encoded to pass through events."""
    return not (is_json(content_type) or media_type(content_type).startswith("text/"))


def data_event(content_type: str, wire: bytes) -> bytes:
    """Return the event that carries a range of a stream's bytes, on message boundaries."""
    if is_json(content_type):
        payload = json_mode.page(wire)
    elif needs_base64(content_type):
        payload = base64.b64encode(wire)
    else:
        payload = wire
    lines = _LINE_END.split(payload)
    fields = [b"data:" + (b" " if line.startswith(b" ") else b"") + line for line in lines]
    return b"event: data\n" + b"\n".join(fields) + b"\n\n"


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
