"""Byte pipes to one client: a plain socket, or TLS over one.

Both kinds translate what the operating system says into two outcomes: b"" from ``receive`` (the
client sends no more) and ``HungUpError`` from ``send`` (it takes no more). ``send`` bounds the time
without progress itself; everything else is bounded by the caller's cancel scope.

The plain kind works on the standard library's socket directly. trio's own wrappers pass through
the scheduler on every call; here a send that the kernel takes at once costs one system call.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import trio
from trio.lowlevel import checkpoint, notify_closing, wait_readable, wait_writable

from durastreamd.http.errors import HungUpError

RECEIVE_BYTES: Final = 64 * 1024  # One receive; also what may be read ahead of an exchange.
TLS_PIECE_BYTES: Final = 64 * 1024  # trio's TLS send reports no progress; this is its unit.

_RESET_ON_RELEASE: Final = struct.pack("ii", 1, 0)


class Transport(ABC):
    """One client's byte pipe."""

    scheme: str
    half_closes: bool  # Can say "I send no more" and still receive.
    answers_at_once: bool  # ``receive_nowait`` and ``send_nowait`` can do something.

    def __init__(self, sock: socket.socket, peer: str, write_s_max: float) -> None:
        self.peer = peer
        self.released = False
        self.stalled = False  # Its client took nothing for too long.
        self._socket = sock
        self._write_s_max = write_s_max

    def fileno(self) -> int:
        """The descriptor of the socket, -1 once it is released."""
        return self._socket.fileno()

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for bytes; b"" when the client sends no more or is gone."""

    @abstractmethod
    def receive_nowait(self) -> bytes | None:
        """Give bytes that are here already; b"" as ``receive`` does, None if there are none yet."""

    @abstractmethod
    async def send(self, *pieces: bytes | memoryview) -> None:
        """Send all ``pieces`` in order; raises ``HungUpError``.

        Cancelled or failed, some of the bytes may be out: the caller must not send others.
        """

    @abstractmethod
    def send_nowait(self, data: bytes) -> int:
        """Give the kernel what it takes of ``data`` right now and tell how much that was."""

    @abstractmethod
    async def hang_up(self) -> None:
        """End the connection in an orderly way; does not wait for the client."""

    async def linger(self, bytes_max: int) -> None:
        """Stop sending and swallow up to ``bytes_max``, until the client hangs up.

        Releasing a socket with unread bytes resets the connection, and a reset overtakes the answer
        that explains it. The caller bounds the time.
        """
        self._stop_sending()
        swallowed = 0
        while swallowed < bytes_max:
            data = await self.receive()
            if not data:
                return
            swallowed += len(data)

    def break_off(self) -> None:
        """End the connection with a reset, so that no truncated body looks complete."""
        if self.released:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_RELEASE)
        except OSError:
            pass  # The peer may have torn it down already; then there is nothing to reset.
        self._release()

    def _stop_sending(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # Not connected any more.

    def _release(self) -> None:
        self.released = True
        notify_closing(self._socket)
        self._socket.close()


class PlainTransport(Transport):
    """A TCP or unix socket."""

    scheme = "http"
    half_closes = True
    answers_at_once = True

    async def receive(self) -> bytes:
        """Wait for bytes."""
        while not self.released:
            try:
                await wait_readable(self._socket)
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return b""
        return b""

    def receive_nowait(self) -> bytes | None:
        """Give bytes that are here already."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send_nowait(self, data: bytes) -> int:
        """Give the kernel what it takes."""
        return self._offer(data)

    async def send(self, *pieces: bytes | memoryview) -> None:
        """Send all ``pieces``; returns without a checkpoint if the kernel takes them at once."""
        if len(pieces) == 1:
            whole = pieces[0]
            sent = self._offer(whole)
            if sent == len(whole):
                return
        else:
            # One packet for the framing and the data in it, without copying them together.
            sent = self._offer_all(pieces)
            if sent == sum(map(len, pieces)):
                return
            whole = b"".join(pieces)
        await self._send_rest(memoryview(whole)[sent:])

    def _offer(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as exc:
            msg = "the client is gone"
            raise HungUpError(msg) from exc

    def _offer_all(self, pieces: Sequence[bytes | memoryview]) -> int:
        try:
            return self._socket.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError as exc:
            msg = "the client is gone"
            raise HungUpError(msg) from exc

    async def _send_rest(self, rest: memoryview) -> None:
        with trio.CancelScope() as scope:
            while rest:
                scope.deadline = trio.current_time() + self._write_s_max
                try:
                    await wait_writable(self._socket)
                except (OSError, trio.ClosedResourceError) as exc:
                    msg = "the connection was broken off"
                    raise HungUpError(msg) from exc
                rest = rest[self._offer(rest) :]
        if scope.cancelled_caught:
            self.stalled = True
            msg = f"the client took nothing for {self._write_s_max} s"
            raise HungUpError(msg)

    async def hang_up(self) -> None:
        """Send what the kernel holds, then end."""
        if not self.released:
            self._stop_sending()
            self._release()
        await checkpoint()


class TlsTransport(Transport):
    """TLS over a TCP or unix socket; the record layer is trio's.

    ``send_nowait`` takes nothing: whether the kernel takes a record is known only after it has been
    encrypted, and then it cannot be taken back.
    """

    scheme = "https"
    answers_at_once = False
    half_closes = False  # Ending TLS one way looks like a truncation attack to the client.

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        write_s_max: float,
        stream: trio.SSLStream[trio.SocketStream],
    ) -> None:
        super().__init__(sock, peer, write_s_max)
        self._stream = stream

    async def receive(self) -> bytes:
        """Wait for bytes."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def receive_nowait(self) -> None:
        """Give nothing: a record may be here in part only."""

    def send_nowait(self, data: bytes) -> int:
        """Take nothing."""
        return 0

    async def send(self, *pieces: bytes | memoryview) -> None:
        """Send all ``pieces``."""
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        with trio.CancelScope() as scope:
            for at in range(0, len(data), TLS_PIECE_BYTES):
                scope.deadline = trio.current_time() + self._write_s_max
                try:
                    await self._stream.send_all(data[at : at + TLS_PIECE_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                    msg = "the client is gone"
                    raise HungUpError(msg) from exc
        if scope.cancelled_caught:
            self.stalled = True
            msg = f"the client took nothing for {self._write_s_max} s"
            raise HungUpError(msg)

    def _stop_sending(self) -> None:
        pass  # See half_closes. The answer's Connection: close makes the client hang up.

    async def hang_up(self) -> None:
        """Say goodbye on the TLS layer, briefly, then end."""
        if not self.released:
            self.released = True
            with trio.move_on_after(self._write_s_max):
                try:
                    await self._stream.aclose()
                except trio.BrokenResourceError:
                    pass  # It hung up first.

    def _release(self) -> None:
        self.released = True
        self._stream.transport_stream.socket.close()
