"""An HTTP/2 client for tests: h2 on the client side, and a raw one that obeys nobody."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import hpack
import hyperframe.frame as frames
import trio
from h2.settings import SettingCodes

from tests.http.harness import Client

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class Answer:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    interim: list[int] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None


class H2Client:
    """A well-behaved client; gives windows back as it reads unless told otherwise."""

    def __init__(
        self, client: Client, *, window: int | None = None, gives_back: bool = True
    ) -> None:
        self.client = client
        self.gives_back = gives_back
        self.answers: dict[int, Answer] = {}
        self.terminated: int | None = None
        config = h2.config.H2Configuration(header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(
                initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window}
            )
        self.h2.initiate_connection()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.client.send(data)

    async def request(
        self,
        method: bytes = b"GET",
        target: bytes = b"/",
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes | None = None,
        *,
        end: bool = True,
    ) -> int:
        exchange_id = self.h2.get_next_available_stream_id()
        pseudo = [
            (b":method", method),
            (b":path", target),
            (b":scheme", b"http"),
            (b":authority", b"x"),
        ]
        self.answers[exchange_id] = Answer()
        self.h2.send_headers(exchange_id, [*pseudo, *headers], end_stream=end and body is None)
        if body is not None:
            self.h2.send_data(exchange_id, body, end_stream=end)
        await self.flush()
        return exchange_id

    async def read(self) -> bool:
        """Take in one receive; False when the server hung up."""
        data = await self.client.receive()
        if not data:
            return False
        for event in self.h2.receive_data(data):
            self._note(event)
        await self.flush()
        return True

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=int(number)):
                answer = self.answers[number]
                fields = dict((bytes(k), bytes(v)) for k, v in event.headers or ())  # noqa: C402
                answer.status = int(fields[b":status"])
                answer.headers = fields
            case h2.events.InformationalResponseReceived(stream_id=int(number)):
                fields = dict((bytes(k), bytes(v)) for k, v in event.headers or ())  # noqa: C402
                self.answers[number].interim.append(int(fields[b":status"]))
            case h2.events.DataReceived(stream_id=int(number)):
                self.answers[number].body += event.data or b""
                if self.gives_back and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            case h2.events.StreamEnded(stream_id=int(number)):
                self.answers[number].ended = True
            case h2.events.StreamReset(stream_id=int(number)):
                if number in self.answers:
                    self.answers[number].reset = int(event.error_code or 0)
            case h2.events.ConnectionTerminated():
                self.terminated = int(event.error_code or 0)
            case _:
                pass

    async def answer(self, exchange_id: int) -> Answer:
        """Read until the exchange has ended one way or the other."""
        answer = self.answers[exchange_id]
        while not answer.ended and answer.reset is None and self.terminated is None:
            if not await self.read():
                break
        return answer

    async def until_terminated(self) -> int | None:
        while self.terminated is None and await self.read():
            pass
        return self.terminated


class RawClient:
    """Sends any frames in any order and watches for GOAWAY."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.encoder = hpack.Encoder()

    async def open(self) -> None:
        await self.client.send(PREFACE + frames.SettingsFrame(0).serialize())

    def headers(self, exchange_id: int, method: bytes = b"GET", *flags: str) -> bytes:
        fields = [
            (b":method", method),
            (b":path", b"/"),
            (b":scheme", b"http"),
            (b":authority", b"x"),
        ]
        frame = frames.HeadersFrame(exchange_id, self.encoder.encode(fields))
        frame.flags.add("END_HEADERS")
        for flag in flags:
            frame.flags.add(flag)
        return frame.serialize()

    async def flood(self, data: bytes, rounds: int) -> int | None:
        """Send ``data`` again and again until the server says GOAWAY; give its code."""
        code: list[int | None] = []

        async def send() -> None:
            for _ in range(rounds):
                if not await self.client.try_send(data):
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            code.append(await self.goaway())
            nursery.cancel_scope.cancel()
        return code[0]

    async def goaway(self) -> int | None:
        """Read until the server hangs up; give the code of the GOAWAY it said."""
        data = b""
        found: int | None = None
        while more := await self.client.receive():
            data += more
            while len(data) >= 9:
                frame, length = frames.Frame.parse_frame_header(memoryview(data[:9]))
                if len(data) < 9 + length:
                    break
                frame.parse_body(memoryview(data[9 : 9 + length]))
                data = data[9 + length :]
                if isinstance(frame, frames.GoAwayFrame):
                    found = frame.error_code
        return found
