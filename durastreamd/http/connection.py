"""Finds out which HTTP version a new connection speaks and serves it.

TLS clients say so by ALPN. Without ALPN the first bytes decide: HTTP/2 by prior knowledge starts
with a fixed preface that no HTTP/1 request line can be a part of beyond its first word.
"""

from typing import Final, Protocol

import trio

from durastreamd.http.context import ServeContext
from durastreamd.http.h1.connection import H1Connection
from durastreamd.http.h2.connection import H2Connection
from durastreamd.http.transport import Transport

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Served(Protocol):
    """A connection of either version."""

    def drain(self) -> None:
        """Hang up as soon as no exchange is running."""

    async def serve(self) -> None:
        """Serve until one side hangs up."""


async def choose_version(
    transport: Transport, context: ServeContext, alpn: str | None
) -> Served | None:
    """Give the connection that speaks the client's version; None if it never said a word."""
    if alpn == "h2":
        return H2Connection(transport, context, b"")
    if alpn == "http/1.1":
        return H1Connection(transport, context, b"")
    first = b""
    with trio.move_on_after(context.limits.idle_s_max) as scope:
        first = await transport.receive()
        scope.deadline = trio.current_time() + context.limits.head_s_max
        while first and len(first) < len(PREFACE) and PREFACE.startswith(first):
            more = await transport.receive()
            if not more:
                break
            first += more
    if not first:
        await transport.hang_up()
        return None
    if first.startswith(PREFACE):
        return H2Connection(transport, context, first)
    return H1Connection(transport, context, first)
