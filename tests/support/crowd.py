"""Many clients of one server at once, synchronous and unfriendly."""

import re
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import h2.config
import h2.connection
import h2.events

from tests.support.patience import PATIENCE_S

STILL_S = 1.0  # nobody took a byte for so long: the server reads no more for now


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of the loopback network: each counts as a client of its own."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))
    sock.settimeout(PATIENCE_S)
    return sock


@contextmanager
def crowd(port: int, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Open connections, and hang up in the end."""
    made: list[socket.socket] = []
    try:
        while len(made) < count:
            made.append(connect(port, source))
        yield made
    finally:
        for sock in made:
            sock.close()


def push(sockets: Sequence[socket.socket], data: bytes) -> int:
    """Send ``data`` to all of them at once, until nobody takes any more; return what was taken."""
    views = {sock: memoryview(data) for sock in sockets}
    taken = 0
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            sock.setblocking(False)  # noqa: FBT003
            selector.register(sock, selectors.EVENT_WRITE, sock)
        while selector.get_map() and (ready := selector.select(STILL_S)):
            for key, _ in ready:
                sock = key.data
                try:
                    sent = sock.send(views[sock][: 1 << 20])
                except BlockingIOError:
                    continue
                except OSError:
                    sent = len(views[sock])  # it was refused, and hung up
                views[sock] = views[sock][sent:]
                taken += sent
                if not views[sock]:
                    selector.unregister(sock)
        for sock in sockets:
            sock.settimeout(PATIENCE_S)
    return taken


def status_of(sock: socket.socket) -> int:
    """Wait for a short answer, read it whole and return its status."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += _some(sock, 1)
    length = re.search(rb"content-length: ([0-9]+)", found.lower())
    left = int(length[1]) if length else 0
    while left:
        left -= len(_some(sock, left))
    return int(found.split()[1])


def _some(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    assert data, "the server hung up"
    return data


def head(method: str, target: str, *fields: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *fields, "", ""]
    return "\r\n".join(lines).encode()


class H2Upload:
    """One HTTP/2 connection, and uploads on it that never end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="ascii"))
        self.h2.initiate_connection()
        self.statuses: dict[int, int] = {}
        self.ended: set[int] = set()
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.h2.data_to_send())

    def begin(self, method: str, target: str, *fields: tuple[str, str], end: bool = False) -> int:
        number: int = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":path", target), (":scheme", "http")]
        self.h2.send_headers(number, [*pseudo, (":authority", "localhost"), *fields], end)
        self.flush()
        return number

    def read(self, wait_s: float) -> bool:
        """Take in what the server says; False if it says nothing for so long."""
        self.sock.settimeout(wait_s)
        try:
            data = self.sock.recv(65536)
        except (TimeoutError, ConnectionResetError):
            return False
        finally:
            self.sock.settimeout(PATIENCE_S)
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived(stream_id=int(number)):
                    self.statuses[number] = int((event.headers or [])[0][1])
                case h2.events.StreamEnded() | h2.events.StreamReset():
                    self.ended.add(event.stream_id or 0)
                case _:
                    pass
        self.flush()
        return bool(data)

    def send(self, number: int, data: bytes) -> int:
        """Send as much as the server opens its window for; return how much that was."""
        sent = 0
        while sent < len(data) and number not in self.ended:
            window = self.h2.local_flow_control_window(number)
            piece = data[sent : sent + min(window, self.h2.max_outbound_frame_size)]
            if piece:
                self.h2.send_data(number, piece)
                self.flush()
                sent += len(piece)
            elif not self.read(STILL_S):
                break
        return sent

    def status(self, number: int) -> int:
        """Wait for an answer and return its status."""
        until = time.monotonic() + PATIENCE_S
        while number not in self.statuses:
            assert self.read(PATIENCE_S), "the server hung up"
            assert time.monotonic() < until
        return self.statuses[number]
