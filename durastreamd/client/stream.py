"""A stream, for programs that block: the standard library is all it needs.

    stream = DurableStream("http://127.0.0.1:4437/v1/stream/readings")
    stream.create("application/json")
    stream.append_json({"celsius": 21.5})
    for message in stream.messages(live=True):
        print(message.data, message.after)

``aio`` has the same for trio and asyncio.
"""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from durastreamd.client import flows
from durastreamd.client.address import environment_token, resolve, server_of
from durastreamd.client.client import Client
from durastreamd.client.errors import CutShortError
from durastreamd.client.flows import (
    AppendResult,
    BootstrapAnswer,
    Flow,
    FoundPlace,
    ListedStream,
    SnapshotBlob,
    StreamHead,
)
from durastreamd.client.reading import Bookmark, MessageReader, StreamMessage
from durastreamd.client.retry import Patience
from durastreamd.client.settings import ClientSettings
from durastreamd.protocol.content_type import JSON

T = TypeVar("T")

# Longer than any long-poll and than the heartbeat of events: silence beyond it is a lost peer.
SILENCE_S_MAX = 90.0


def usual_settings() -> ClientSettings:
    """Return how a stream is talked to if nobody says otherwise, with the environment's token."""
    return ClientSettings(token=environment_token(), timeout_s=SILENCE_S_MAX)


def drive(client: Client, flow: Flow[T]) -> T:
    """Send what a flow asks for, until it has its result."""
    try:
        ask = next(flow)
        while True:
            ask = flow.send(client.ask(ask))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what a Flow[T] returns is a T


class DurableStream:
    """One stream of a server, by its URL, or its name beside $STREAM_URL.

    Not for use by two threads at once. ``with`` hangs up at the end; a client that was handed in
    stays as it is.
    """

    def __init__(
        self, url: str, settings: ClientSettings | None = None, *, client: Client | None = None
    ) -> None:
        self.url = resolve(url)
        self.client = client or Client(settings or usual_settings())
        self._own = client is None
        self._kind = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Drop the connection; the next request makes a new one."""
        if self._own:
            self.client.hang_up()

    # --- the stream itself ---

    def create(
        self,
        content_type: str = JSON,
        *,
        ttl_s: int | None = None,
        expires_at: str = "",
        body: bytes | None = None,
        closed: bool = False,
    ) -> StreamHead:
        """Make the stream; one that is there with the same configuration is as good."""
        headers = flows.creation(content_type, ttl_s=ttl_s, expires_at=expires_at, closed=closed)
        return self._known(drive(self.client, flows.create(self.url, headers, body)))

    def fork(self, source: str, at: Bookmark | str = "") -> StreamHead:
        """Make this stream a fork of another one on the server, at its end or at a place in it."""
        return self._known(drive(self.client, flows.fork(self.url, resolve(source), at)))

    def head(self) -> StreamHead:
        """Ask what the stream is and where it ends."""
        return self._known(drive(self.client, flows.head(self.url)))

    def delete(self) -> None:
        """Delete it."""
        self._kind = ""
        drive(self.client, flows.delete(self.url))

    def close(self) -> AppendResult:
        """Close it: it can be read, and takes no more."""
        headers = flows.appending("", close=True)
        return drive(self.client, flows.append(self.url, headers, None, repeatable=True))

    @property
    def content_type(self) -> str:
        """What it holds; asked for once."""
        return self._kind or self.head().content_type

    def _known(self, found: StreamHead) -> StreamHead:
        self._kind = found.content_type
        return found

    # --- appending ---

    def append(
        self, data: bytes | str, *, seq: str = "", expected: str = "", close: bool = False
    ) -> AppendResult:
        """Append one body and return where the stream ends.

        It is sent once: if the connection breaks, nobody knows whether it was stored. Use
        ``producer`` where that matters. ``expected`` is compare-and-append: refused unless the
        stream ends at that offset.
        """
        body = data.encode() if isinstance(data, str) else data
        headers = flows.appending(self.content_type, seq=seq, expected=expected, close=close)
        return drive(self.client, flows.append(self.url, headers, body))

    def append_json(self, *values: object, expected: str = "", close: bool = False) -> AppendResult:
        """Append values to a stream of JSON, each one message, all of them or none."""
        headers = flows.appending(JSON, expected=expected, close=close)
        return drive(self.client, flows.append(self.url, headers, flows.json_body(values)))

    # --- reading ---

    def messages(
        self,
        start: Bookmark | str = "-1",
        *,
        live: bool = False,
        end: str = "",
        incarnation: str = "",
    ) -> Iterator[StreamMessage]:
        """Yield messages from a place on: what is there, then, with ``live``, what comes.

        ``start`` is an offset, -1, now, or the ``after`` of a message: reading goes on behind it.
        It ends when the stream is closed. Connections that break are made anew, for as long as the
        settings say; nothing comes twice and nothing is left out. With the ``incarnation`` that
        ``head`` told, another stream of the same name is refused.
        """
        reader = MessageReader(
            self.url,
            Bookmark.of(start) if isinstance(start, str) else start,
            content_type=self.content_type,
            live=live,
            end=end,
            incarnation=incarnation,
        )
        patience = Patience(self.client.settings)
        while not reader.ended:
            before = reader.at
            try:
                yield from self._page(reader)
            except CutShortError as exc:
                self.client.connections.drop(self.url)
                if reader.at != before:
                    patience = Patience(self.client.settings)
                patience.after_failure("GET", reader.url(), exc)
                continue
            patience = Patience(self.client.settings)
            time.sleep(reader.pause_s(came=reader.at != before))

    def _page(self, reader: MessageReader) -> Iterator[StreamMessage]:
        with self.client.reading(reader.url(), reader.headers(), accept=(200, 204)) as body:
            reader.begin(body.status, body.headers)
            for piece in body.pieces():
                yield from reader.feed(piece)
        yield from reader.end()

    def find(self, by: str, what: str | int) -> FoundPlace:
        """Look a place up: ``at`` a time, ``at-message``, ``at-byte``, ``at-offset``."""
        return drive(self.client, flows.find(self.url, by, str(what)))

    def offset_of(self, place: Bookmark) -> str:
        """Return the offset that a bookmark stands for, as forks and snapshots need it."""
        return drive(self.client, flows.offset_after(self.url, *place))

    # --- snapshots ---

    def put_snapshot(self, offset: str, data: bytes, content_type: str = JSON) -> str:
        """Publish what stands for everything before an offset; the server drops what it covers."""
        return drive(self.client, flows.put_snapshot(self.url, offset, data, content_type))

    def snapshot(self) -> SnapshotBlob | None:
        """Return the latest snapshot, None without one."""
        return drive(self.client, flows.get_snapshot(self.url))

    def bootstrap(self) -> BootstrapAnswer:
        """Return the latest snapshot and every message after it, of one moment."""
        return drive(self.client, flows.bootstrap(self.url))


def list_streams(
    server: str | None = None,
    *,
    prefix: str = "",
    bucket: str = "",
    settings: ClientSettings | None = None,
    client: Client | None = None,
) -> Iterator[ListedStream]:
    """Yield the streams of a server in the order of their names; of a bucket, if it is given."""
    asking = client or Client(settings or usual_settings())
    base, after = server_of(resolve(server)), ""
    try:
        while True:
            page = drive(asking, flows.list_page(base, bucket, prefix, after))
            yield from page.streams
            after = page.after
            if not after:
                return
    finally:
        if client is None:
            asking.hang_up()
