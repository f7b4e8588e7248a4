"""A server for the length of a block, whose tasks must all have gone by themselves in the end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from durastreamd.http.exchange import Handler
from durastreamd.http.server import Server
from tests.support.patience import PATIENCE_S


class Connected(Protocol):
    """A client of the server."""

    def hang_up(self) -> None:
        """Leave."""


@asynccontextmanager
async def served(
    server: Server, handler: Handler, clients: Sequence[Connected]
) -> AsyncIterator[None]:
    """Serve; in the end the clients leave, whoever has come meanwhile, and nobody is cancelled."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, handler)
        try:
            yield
        except BaseException:
            nursery.cancel_scope.cancel()
            raise
        finally:
            for client in clients:
                client.hang_up()
            server.drain()
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
    assert not nursery.cancel_scope.cancelled_caught, "a task was left behind"
    assert server.statistics.exchanges_open == 0
