"""The h2 library of one connection and the bytes it wants to send.

Everything that leaves the connection goes through one queue, in the order in which h2 produced it,
sent by one task. The queue is bounded: ``room`` makes both the reader and the senders of bodies
wait while it is above ``h2_outbound_bytes_max``, so a client that does not read cannot make us
remember what we would tell it. h2's exceptions about gone exchanges become ``HungUpError`` here.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from durastreamd.http.budget import TINY_BYTES
from durastreamd.http.errors import HungUpError
from durastreamd.http.h2.flood import GOAWAY, Allowance
from durastreamd.http.limits import HttpLimits
from durastreamd.http.transport import Transport

_DEFAULT_WINDOW_BYTES: Final = 65_535  # RFC 9113 6.9.2; a connection's can only be raised from it.
_CONFIG: Final = h2.config.H2Configuration(
    client_side=False,
    header_encoding=None,
    # Our own writer has checked and lower-cased them.
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class H2Wire:
    """h2 on top, a transport below, one bounded queue between."""

    def __init__(
        self,
        transport: Transport,
        limits: HttpLimits,
        bucket: Allowance,
        broken: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._bucket = bucket
        self.tiny_left = TINY_BYTES  # Of bodies on this connection: what needs no claim.
        self._broken = broken  # Called once, when the transport takes no more.
        self._queue = bytearray()
        self._in_flight = 0
        self._ending = False
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._h2 = h2.connection.H2Connection(_CONFIG)
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.h2_exchanges_max,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.h2_exchange_window_bytes,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes_max,
                SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self._h2.decoder.max_header_list_size = limits.h2_header_list_bytes_max

    def open(self) -> None:
        """Send our settings and open the connection's window."""
        self._h2.initiate_connection()
        more = self._limits.h2_connection_window_bytes - _DEFAULT_WINDOW_BYTES
        if more > 0:
            self._h2.increment_flow_control_window(more)
        self.flush()

    def receive(self, data: bytes) -> list[h2.events.Event]:
        """Let h2 take frames apart; its GOAWAY is queued when it raises ``ProtocolError``."""
        return self._h2.receive_data(data)

    # --- Frames out: each may find the exchange gone ---

    def headers(
        self, exchange_id: int, headers: Sequence[tuple[bytes, bytes]], *, end: bool = False
    ) -> None:
        """Queue a header block."""
        try:
            self._h2.send_headers(exchange_id, headers, end_stream=end)
        except h2.exceptions.ProtocolError as exc:
            msg = "the exchange was reset"
            raise HungUpError(msg) from exc

    def data(self, exchange_id: int, data: bytes, *, end: bool = False) -> None:
        """Queue one DATA frame; it must fit the window."""
        try:
            self._h2.send_data(exchange_id, data, end_stream=end)
        except h2.exceptions.ProtocolError as exc:
            msg = "the exchange was reset"
            raise HungUpError(msg) from exc
        self._bucket.earn(self._limits.h2_control_frames_per_data)

    def reset(self, exchange_id: int, code: ErrorCodes) -> None:
        """Queue RST_STREAM; harmless when the exchange is gone."""
        try:
            self._h2.reset_stream(exchange_id, code)
        except h2.exceptions.ProtocolError:
            pass  # Reset by the client, or the whole connection is over.

    def acknowledge(self, exchange_id: int, count: int) -> None:
        """Give the client ``count`` bytes of its windows back."""
        if count:
            try:
                self._h2.acknowledge_received_data(count, exchange_id)
            except h2.exceptions.ProtocolError:
                pass  # The connection is over; there is no window to give back.

    def window(self, exchange_id: int) -> int:
        """Tell how many bytes the client takes of this exchange now."""
        try:
            return self._h2.local_flow_control_window(exchange_id)
        except h2.exceptions.ProtocolError as exc:
            msg = "the exchange was reset"
            raise HungUpError(msg) from exc

    def frame_bytes_max(self) -> int:
        """Tell how many bytes one DATA frame may have, whatever the client would take."""
        return min(self._h2.max_outbound_frame_size, self._limits.h2_outbound_bytes_max)

    def announce_end(self, last_id: int) -> None:
        """Queue a GOAWAY that lets running exchanges go on.

        Written by hand: after its own, h2 sends nothing more (python-hyper/h2 issue 1181).
        """
        self.flush()
        frame = struct.pack(">IBI", 8, 0, 0)[1:]
        frame = frame[:3] + bytes((GOAWAY,)) + frame[3:]
        self._enqueue(frame + struct.pack(">II", last_id, ErrorCodes.NO_ERROR))

    def go_away(self, code: ErrorCodes) -> None:
        """Queue a GOAWAY that ends everything."""
        try:
            self._h2.close_connection(code)
        except h2.exceptions.ProtocolError:
            pass  # It has ended already.
        self.flush()

    # --- Bytes out ---

    def flush(self) -> None:
        """Take from h2 what it wants to send, and send it at once where the kernel lets us."""
        data = self._h2.data_to_send()
        if data:
            self._enqueue(data)

    def _enqueue(self, data: bytes) -> None:
        if not self._queue and not self._in_flight:
            try:
                data = data[self._transport.send_nowait(data) :]
            except HungUpError:
                pass  # The sender will meet the same error where it can be dealt with.
        if data:
            self._queue += data
            self._wake.set()

    def has_room(self) -> bool:
        """Tell whether the queue is below its bound."""
        return len(self._queue) + self._in_flight <= self._limits.h2_outbound_bytes_max

    async def room(self) -> None:
        """Wait until the queue is below its bound."""
        while not self.has_room():
            await self._sent.wait()

    def end(self) -> None:
        """Let the sender stop once the queue is empty."""
        self._ending = True
        self._wake.set()

    async def run_sender(self) -> None:
        """Send the queue until ``end``; reports a transport that takes no more."""
        try:
            while True:
                if self._queue:
                    data = bytes(self._queue)
                    self._queue.clear()
                    self._in_flight = len(data)
                    await self._transport.send(data)
                    self._in_flight = 0
                    self._sent.set()
                    self._sent = trio.Event()
                elif self._ending:
                    return
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        except HungUpError:
            self._broken()
        finally:
            # Nobody may wait for room that never comes; what they queue is never sent.
            self._queue.clear()
            self._in_flight = 0
            self._sent.set()
