"""One request to another server: over a connection of its own, to an address that was chosen.

Written by hand on h11, which the server speaks anyway. Of the libraries that were looked at
httpcore keeps every rule as well (its network backend can be replaced, so that an address is
pinned), but what it is for, pools and their locks, is what is not wanted here: a connection serves
one request. It would bring two packages and be called through an adapter of this length.

The rules: the address is the caller's, and no name is resolved here; TLS is checked against the
name; no proxy and no redirect is followed, whatever the environment or the answer says; the
answer's head and body have a most; and whoever calls bounds the time.
"""

import ssl
from typing import NamedTuple

import h11
import trio

HEAD_BYTES_MAX = 16 * 1024
_PIECE_BYTES = 16 * 1024


class OutboundError(Exception):
    """The other server could not be reached, or did not answer as HTTP has it."""


class Destination(NamedTuple):
    """Where a request goes: an address that was judged, and the name it is asked for by."""

    address: str
    port: int
    host: str
    target: str
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """Return the value of Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 80 if self.tls is None else 443
        return host if self.port == usual else f"{host}:{self.port}"


class Answered(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def post(
    place: Destination, headers: list[tuple[str, str]], body: bytes, answer_bytes_max: int
) -> Answered:
    """Send a body and return the answer; raises OutboundError."""
    try:
        raw = await trio.open_tcp_stream(place.address, place.port)
    except OSError as exc:
        message = f"cannot connect: {exc.strerror or exc}"
        raise OutboundError(message) from exc
    stream: trio.abc.Stream = raw
    if place.tls is not None:
        stream = trio.SSLStream(raw, place.tls, server_hostname=place.host, https_compatible=True)
    try:
        return await _exchange(stream, place, headers, body, answer_bytes_max)
    except (h11.RemoteProtocolError, trio.BrokenResourceError, ssl.SSLError, OSError) as exc:
        cause = exc.__cause__ if isinstance(exc, trio.BrokenResourceError) else exc
        message = f"{_word(exc)}: {cause}" if cause else _word(exc)
        raise OutboundError(message) from exc
    finally:
        # Whatever was not read does not matter any more; nobody waits for a farewell.
        await trio.aclose_forcefully(stream)


def _word(exc: BaseException) -> str:
    if isinstance(exc, h11.RemoteProtocolError):
        return "the answer is not HTTP"
    return "TLS failed" if isinstance(exc.__cause__, ssl.SSLError) else "the connection broke"


async def _exchange(
    stream: trio.abc.Stream,
    place: Destination,
    headers: list[tuple[str, str]],
    body: bytes,
    answer_bytes_max: int,
) -> Answered:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    fields = [
        ("Host", place.authority),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *headers,
    ]
    request = h11.Request(method="POST", target=place.target, headers=fields)
    parts = (request, h11.Data(data=body), h11.EndOfMessage())
    await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))
    status, answered, received = 0, {}, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(_PIECE_BYTES)))
        elif isinstance(event, h11.Response):
            status = event.status_code
            answered = {bytes(name): bytes(value) for name, value in event.headers}
        elif isinstance(event, h11.Data):
            received += event.data
            if len(received) > answer_bytes_max:
                message = f"the answer has more than {answer_bytes_max} bytes"
                raise OutboundError(message)
        elif isinstance(event, h11.EndOfMessage):
            return Answered(status, answered, bytes(received))
        elif isinstance(event, h11.ConnectionClosed):
            message = "it hung up without an answer"
            raise OutboundError(message)
