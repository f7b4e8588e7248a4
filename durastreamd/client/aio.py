"""A stream, for programs on trio or asyncio: what ``stream`` is for those that block.

    async with AsyncDurableStream("http://127.0.0.1:4437/v1/stream/readings") as stream:
        await stream.append_json({"celsius": 21.5})
        async for message in stream.messages(live=True):
            print(message.data, message.after)

The HTTP is httpx's, which runs on both by anyio; ``pip install 'durastreamd[client]'`` brings them.
What is asked and what answers mean is shared with the blocking half: ``flows``, ``reading``,
``retry``. Any number of tasks may use one stream.
"""

import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import anyio
import httpx

from durastreamd.client import flows
from durastreamd.client.address import Origin, resolve, server_of, split
from durastreamd.client.client import EXPLAINED_BYTES_MAX, Ask, Reply
from durastreamd.client.errors import (
    AnswerError,
    CutShortError,
    ServerRefusedError,
    SettingsError,
    UrlError,
)
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
from durastreamd.client.retry import Tries, is_unsure
from durastreamd.client.settings import ClientSettings
from durastreamd.client.stream import usual_settings
from durastreamd.protocol.content_type import JSON

T = TypeVar("T")

BROKEN = (httpx.TransportError, OSError, CutShortError)
# What httpx says of connections that ended; anything else it says of a peer is about its grammar.
_ENDED = ("disconnected", "closed", "reset")


class AsyncBody:
    """An answer whose body is read piece by piece; names of headers are lower-case."""

    def __init__(self, response: httpx.Response, bytes_max: int) -> None:
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._bytes_max = bytes_max

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body; raise CutShortError if it ends before its end."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except (httpx.TransportError, OSError) as exc:
            message = f"an answer was cut short: {str(exc) or type(exc).__name__}"
            raise CutShortError(message) from exc

    async def whole(self) -> bytes:
        """Return the body, unless it is larger than the settings allow."""
        found = bytearray()
        async for piece in self.pieces():
            found += piece
            if len(found) > self._bytes_max:
                message = f"an answer is larger than the {self._bytes_max} bytes that may be held"
                raise AnswerError(message)
        return bytes(found)


class AsyncClient:
    """Talks to servers; connections are kept, and any number of tasks may use it."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.settings = settings or usual_settings()
        self._kept: dict[Origin, httpx.AsyncClient] = {}

    async def ask(self, ask: Ask) -> Reply:
        """Return the answer; raise unless it is a success or one of those that are accepted."""
        tries, again = Tries(self.settings, repeatable=ask.repeatable), False
        while True:
            try:
                async with self._sent(ask) as body:
                    reply = Reply(body.status, body.headers, await body.whole(), again)
            except BROKEN as exc:
                await anyio.sleep(tries.wait_after_failure(ask.method, ask.url, exc))
                again = True
                continue
            if 200 <= reply.status < 300 or reply.status in ask.accept:
                return reply
            explained = reply.body[:EXPLAINED_BYTES_MAX]
            refused = ServerRefusedError.of(
                ask.method, ask.url, reply.status, reply.headers, explained
            )
            again = again or is_unsure(refused)
            await anyio.sleep(tries.wait_after_refusal(refused))

    @asynccontextmanager
    async def reading(
        self, url: str, headers: Mapping[str, str], accept: tuple[int, ...]
    ) -> AsyncIterator[AsyncBody]:
        """GET with the body left to read; trouble with the head of the answer is tried again."""
        tries, ask = Tries(self.settings), Ask("GET", url, headers)
        while True:
            try:
                async with self._sent(ask) as body:
                    if body.status in accept:
                        yield body
                        return
                    said = ("GET", url, body.status, body.headers)
                    refused = ServerRefusedError.of(
                        *said, (await body.whole())[:EXPLAINED_BYTES_MAX]
                    )
            except (httpx.TransportError, OSError) as exc:
                await anyio.sleep(tries.wait_after_failure("GET", url, exc))
                continue
            await anyio.sleep(tries.wait_after_refusal(refused))

    @asynccontextmanager
    async def _sent(self, ask: Ask) -> AsyncIterator[AsyncBody]:
        origin, target = split(ask.url)
        headers = {**self.settings.request_headers(), **ask.headers, "Accept-Encoding": "identity"}
        if ask.body is None and ask.method in ("POST", "PUT"):
            headers["Content-Length"] = "0"
        http = self._client(origin)
        base = "http://localhost" if origin.scheme == "http+unix" else str(origin)
        try:
            request = http.build_request(
                ask.method, base + target, headers=headers, content=ask.body
            )
        except httpx.InvalidURL as exc:
            message = f"{ask.url!r} cannot be asked for: {exc}"
            raise UrlError(message) from exc
        except ValueError as exc:
            message = f"a header of this request cannot be sent: {exc}"
            raise SettingsError(message) from exc
        try:
            response = await http.send(request, stream=True)
        except httpx.LocalProtocolError as exc:
            message = f"a header of this request cannot be sent: {exc}"
            raise SettingsError(message) from exc
        except httpx.RemoteProtocolError as exc:
            if any(word in str(exc) for word in _ENDED):
                raise
            message = f"{origin} does not answer as an HTTP server does: {exc}"
            raise AnswerError(message) from exc
        except httpx.ConnectError as exc:
            raise _cause(exc) from exc
        try:
            yield AsyncBody(response, self.settings.answer_bytes_max)
        finally:
            await response.aclose()

    def _client(self, origin: Origin) -> httpx.AsyncClient:
        if origin not in self._kept:
            tls = self.settings.tls() if origin.scheme == "https" else False
            uds = origin.host if origin.scheme == "http+unix" else None
            self._kept[origin] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(verify=tls, uds=uds, limits=_LIMITS),
                timeout=self.settings.timeout_s,
                trust_env=False,
            )
        return self._kept[origin]

    async def list_streams(
        self, server: str | None = None, *, prefix: str = "", bucket: str = ""
    ) -> list[ListedStream]:
        """Return the streams of a server in the order of their names; or of one of its buckets."""
        base, after, found = server_of(resolve(server)), "", []
        while True:
            page = await adrive(self, flows.list_page(base, bucket, prefix, after))
            found += page.streams
            after = page.after
            if not after:
                return found

    async def aclose(self) -> None:
        """Drop every connection."""
        for kept in self._kept.values():
            await kept.aclose()
        self._kept.clear()


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=16)


def _cause(exc: BaseException) -> Exception:
    """Return what a failure to connect was at its root: a certificate that is wrong stays wrong."""
    root: BaseException | None = exc
    while root is not None:
        if isinstance(root, ssl.SSLCertVerificationError):
            return root
        root = root.__cause__ or root.__context__
    return exc if isinstance(exc, Exception) else OSError(str(exc))


async def adrive(client: AsyncClient, flow: Flow[T]) -> T:
    """Send what a flow asks for, until it has its result."""
    try:
        ask = next(flow)
        while True:
            ask = flow.send(await client.ask(ask))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what a Flow[T] returns is a T


class AsyncDurableStream:
    """One stream of a server, by its URL, or its name beside $STREAM_URL; see ``DurableStream``."""

    def __init__(
        self, url: str, settings: ClientSettings | None = None, *, client: AsyncClient | None = None
    ) -> None:
        self.url = resolve(url)
        self.client = client or AsyncClient(settings)
        self._own = client is None
        self._kind = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    async def aclose(self) -> None:
        """Drop the connections."""
        if self._own:
            await self.client.aclose()

    # --- the stream itself ---

    async def create(
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
        return self._known(await adrive(self.client, flows.create(self.url, headers, body)))

    async def fork(self, source: str, at: Bookmark | str = "") -> StreamHead:
        """Make this stream a fork of another one on the server, at its end or at a place in it."""
        return self._known(await adrive(self.client, flows.fork(self.url, resolve(source), at)))

    async def head(self) -> StreamHead:
        """Ask what the stream is and where it ends."""
        return self._known(await adrive(self.client, flows.head(self.url)))

    async def delete(self) -> None:
        """Delete it."""
        self._kind = ""
        await adrive(self.client, flows.delete(self.url))

    async def close(self) -> AppendResult:
        """Close it: it can be read, and takes no more."""
        headers = flows.appending("", close=True)
        return await adrive(self.client, flows.append(self.url, headers, None, repeatable=True))

    async def content_type(self) -> str:
        """Return what it holds; asked for once."""
        return self._kind or (await self.head()).content_type

    def _known(self, found: StreamHead) -> StreamHead:
        self._kind = found.content_type
        return found

    # --- appending ---

    async def append(
        self, data: bytes | str, *, seq: str = "", expected: str = "", close: bool = False
    ) -> AppendResult:
        """Append one body, once, and return where the stream ends."""
        body = data.encode() if isinstance(data, str) else data
        kind = await self.content_type()
        headers = flows.appending(kind, seq=seq, expected=expected, close=close)
        return await adrive(self.client, flows.append(self.url, headers, body))

    async def append_json(
        self, *values: object, expected: str = "", close: bool = False
    ) -> AppendResult:
        """Append values to a stream of JSON, each one message, all of them or none."""
        headers = flows.appending(JSON, expected=expected, close=close)
        return await adrive(self.client, flows.append(self.url, headers, flows.json_body(values)))

    # --- reading ---

    def messages(
        self,
        start: Bookmark | str = "-1",
        *,
        live: bool = False,
        end: str = "",
        incarnation: str = "",
    ) -> "AsyncMessages":
        """Iterate over messages from a place on: what is there, then, with ``live``, what comes."""
        place = Bookmark.of(start) if isinstance(start, str) else start
        reader = MessageReader(self.url, place, live=live, end=end, incarnation=incarnation)
        return AsyncMessages(self, reader)

    async def find(self, by: str, what: str | int) -> FoundPlace:
        """Look a place up: ``at`` a time, ``at-message``, ``at-byte``, ``at-offset``."""
        return await adrive(self.client, flows.find(self.url, by, str(what)))

    async def offset_of(self, place: Bookmark) -> str:
        """Return the offset that a bookmark stands for, as forks and snapshots need it."""
        return await adrive(self.client, flows.offset_after(self.url, *place))

    # --- snapshots ---

    async def put_snapshot(self, offset: str, data: bytes, content_type: str = JSON) -> str:
        """Publish what stands for everything before an offset; the server drops what it covers."""
        return await adrive(self.client, flows.put_snapshot(self.url, offset, data, content_type))

    async def snapshot(self) -> SnapshotBlob | None:
        """Return the latest snapshot, None without one."""
        return await adrive(self.client, flows.get_snapshot(self.url))

    async def bootstrap(self) -> BootstrapAnswer:
        """Return the latest snapshot and every message after it, of one moment."""
        return await adrive(self.client, flows.bootstrap(self.url))


class AsyncMessages:
    """Messages of a stream, one after the other.

    A page is held while its messages are handed out, so whoever stops in the midst leaves no
    answer open and nothing to clean up.
    """

    def __init__(self, stream: AsyncDurableStream, reader: MessageReader) -> None:
        self._stream = stream
        self._reader = reader
        self._found: deque[StreamMessage] = deque()
        self._tries = Tries(stream.client.settings)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamMessage:
        while not self._found:
            if self._reader.ended:
                raise StopAsyncIteration
            await self._page()
        return self._found.popleft()

    async def _page(self) -> None:
        reader, client = self._reader, self._stream.client
        reader.content_type = await self._stream.content_type()
        try:
            async with client.reading(reader.url(), reader.headers(), (200, 204)) as body:
                reader.begin(body.status, body.headers)
                async for piece in body.pieces():
                    self._found += reader.feed(piece)
            self._found += reader.end()
        except CutShortError as exc:
            if self._found:
                self._tries = Tries(client.settings)
            await anyio.sleep(self._tries.wait_after_failure("GET", reader.url(), exc))
            return
        self._tries = Tries(client.settings)
        await anyio.sleep(reader.pause_s(came=bool(self._found)))
