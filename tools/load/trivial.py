"""Servers that do nothing, to measure the generator and the HTTP layer alone.

``python -m tools.load.trivial constant PORT`` sends the same bytes for every receive; ``lane`` and
``h11`` are the project's HTTP layer with a handler that answers 204.
"""

import select
import socket
import sys

import trio

from durastreamd.http.exchange import Exchange
from durastreamd.http.listener import open_tcp
from durastreamd.http.server import Server

ANSWER = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0000000000000000\r\n\r\n"
LIFE_S = 600.0  # It is ended long before; if its parent dies it must not stay.


def constant() -> None:
    """Answer every receive with the same bytes, from one epoll loop."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=256)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    sockets: dict[int, socket.socket] = {}
    while True:
        for number, _ in epoll.poll(LIFE_S):
            sock = sockets.get(number)
            if sock is None:
                sock, _ = listener.accept()
                sockets[sock.fileno()] = sock
                epoll.register(sock, select.EPOLLIN)
            elif not _answered(sock):
                sockets.pop(number).close()


def _answered(sock: socket.socket) -> bool:
    """Answer what came; False when the client is gone."""
    try:
        return bool(sock.recv(65536) and sock.send(ANSWER))
    except OSError:
        return False


async def _handler(exchange: Exchange) -> None:
    await exchange.body(65536)
    await exchange.respond(204, [(b"Stream-Next-Offset", b"0000000000000000")])


async def _serve(*, lane: bool) -> None:
    server = Server(open_tcp("127.0.0.1", int(sys.argv[2]), 256), lane=lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, _handler)
        await trio.sleep(LIFE_S)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "constant":
        constant()
    else:
        trio.run(lambda: _serve(lane=sys.argv[1] == "lane"))
