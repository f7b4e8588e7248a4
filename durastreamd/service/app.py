"""The handler of every exchange: routes it, answers it, turns what went wrong into a problem."""

import json
import logging
from typing import NamedTuple

from durastreamd.errors import (
    CorruptDataError,
    OverloadedError,
    StorageError,
    StreamDamagedError,
    StreamStoppedError,
    WriteFailedError,
)
from durastreamd.http.exchange import CommonHeaders, Exchange, Phase
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import problems
from durastreamd.protocol.names import PREFIX, Place, place_of
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.requests import ProblemError, lookup_of, read_head
from durastreamd.service.answers import RETRY_S, Fields
from durastreamd.service.bootstrap import Bootstrap
from durastreamd.service.buckets import READING, Buckets, not_allowed
from durastreamd.service.lag import LagMeter
from durastreamd.service.limits import CorsOptions, ReadLimits, WriteLimits
from durastreamd.service.live import LiveReads
from durastreamd.service.reader import Reader
from durastreamd.service.reads import NOT_CACHED, Reads, metadata
from durastreamd.service.snapshots import Snapshots
from durastreamd.service.writes import Writes
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)

HEALTH = ("/health", "/-/healthz", "/-/readyz")
METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_ALLOWED = (
    "Authorization, Content-Type, If-None-Match, Last-Event-ID, Stream-Seq, Stream-TTL, "
    "Stream-Expires-At, Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, "
    "Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq"
)
_EXPOSED = (
    "Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, "
    "Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Snapshot-Offset, Producer-Epoch, "
    "Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, ETag, Location, Retry-After, "
    "Content-Encoding, Vary, Cache-Control, Stream-Message-Count, Stream-Byte-Count, "
    "Stream-At-Offset, Stream-At-Message, Stream-At-Byte"
)


class Limits(NamedTuple):
    """Everything the service bounds."""

    reads: ReadLimits = ReadLimits()
    writes: WriteLimits = WriteLimits()
    cors: CorsOptions = CorsOptions()


class App:
    """Serves streams over exchanges."""

    def __init__(self, streams: Streams, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._streams = streams
        self.lag = LagMeter()
        self._cors = limits.cors
        reader = self._reader = Reader(streams)
        self._writes = Writes(streams, reader, limits.writes)
        self._reads = Reads(streams, reader, limits.reads)
        self._buckets = Buckets(streams)
        self._snapshots = Snapshots(streams, reader, limits.writes)
        self._bootstrap = Bootstrap(streams)
        self.live = LiveReads(streams, reader, self._reads, limits.reads)
        self._restricted = "*" not in limits.cors.origins

    # --- headers that every answer has ---

    def common_headers(self, origin: bytes | None = None) -> Fields:
        """Return the headers of every answer to a page of this origin."""
        fields: Fields = [
            (b"X-Content-Type-Options", b"nosniff"),
            (b"Cross-Origin-Resource-Policy", b"cross-origin"),
        ]
        allowed = b"*"
        if self._restricted:
            fields.append((b"Vary", b"Origin"))
            if origin is None or origin.decode("latin-1") not in self._cors.origins:
                return fields
            allowed = origin
        fields.append((b"Access-Control-Allow-Origin", allowed))
        fields.append((b"Access-Control-Expose-Headers", _EXPOSED.encode()))
        return fields

    # --- the handler ---

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one exchange."""
        if self._restricted:
            origin = exchange.request.headers.get(b"origin")
            exchange.common = CommonHeaders(self.common_headers(origin))
        try:
            await self._route(exchange)
        except ProblemError as exc:
            await self._refuse(exchange, exc)
        except OverloadedError as exc:
            await self._refuse(exchange, _busy(f"{_sentence(exc)} Come back in a moment."))
        except StreamStoppedError:
            await self._refuse(exchange, _busy("The server is going down; come back in a moment."))
        except StorageError as exc:
            await self._refuse(exchange, _storage_problem(exc))

    async def _refuse(self, exchange: Exchange, exc: ProblemError) -> None:
        if exchange.phase is not Phase.UNANSWERED:
            exchange.abort()
            return
        request = exchange.request
        body = problems.render(exc.problem, exc.detail, request.path, **exc.members)
        fields: Fields = [(b"Content-Type", problems.CONTENT_TYPE), NOT_CACHED, *exc.headers]
        await exchange.respond(exc.problem.status, fields, body)

    async def _route(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if request.method == "OPTIONS":
            await self._preflight(exchange)
        elif path.startswith(PREFIX):
            await self._place(exchange, place_of(path))
        elif path in HEALTH or path.startswith(("/-/", "/errors/")):
            await self._other(exchange)
        else:
            await self._place(exchange, place_of(path))

    async def _place(self, exchange: Exchange, place: Place) -> None:
        if not place.part and not place.is_bucket:
            await self._stream(exchange, exchange.request.method, place.key)
        elif place.is_bucket:
            await self._buckets.answer(exchange, place)
        elif place.part == "snapshot":
            await self._snapshots.answer(exchange, self._readable(place.key), place)
        elif exchange.request.method in ("GET", "HEAD"):
            await self._bootstrap.answer(exchange, self._readable(place.key))
        else:
            raise not_allowed(READING)

    async def _stream(self, exchange: Exchange, method: str, key: str) -> None:
        if method == "POST":
            answer = await self._writes.append(exchange, key)
            await exchange.respond(answer.status, answer.headers)
        elif method == "GET":
            await self._read(exchange, key)
        elif method == "PUT":
            answer = await self._writes.create(exchange, key)
            await exchange.respond(answer.status, answer.headers)
        elif method == "HEAD":
            await self._head(exchange, key)
        elif method == "DELETE":
            answer = await self._writes.delete(key)
            await exchange.respond(answer.status, answer.headers)
        else:
            raise not_allowed(METHODS)

    async def _head(self, exchange: Exchange, key: str) -> None:
        stream = self._writes.head(key)
        fields = metadata(stream)
        lookup = lookup_of(exchange.request.query)
        if lookup is not None:
            position, ordinal = await self._reader.find(self._readable(key), lookup)
            fields += [
                (b"Stream-At-Offset", mint(position).encode()),
                (b"Stream-At-Message", b"%d" % ordinal),
                (b"Stream-At-Byte", b"%d" % position),
            ]
        await exchange.respond(200, fields)

    async def _read(self, exchange: Exchange, key: str) -> None:
        request = exchange.request
        head = read_head(request.query, request.headers)
        stream = self._readable(key)
        if head.live is None:
            await self._reads.catch_up(exchange, stream, head)
        elif head.live == "sse":
            await self.live.events(exchange, stream, head)
        else:
            await self.live.long_poll(exchange, stream, head)

    def _readable(self, key: str) -> Stream:
        """Return a stream that is there and whole, or raise the problem."""
        stream = self._writes.head(key)
        if stream.damage:
            raise StreamDamagedError(stream.damage)
        return stream

    # --- everything that is not a stream ---

    def _figures(self) -> dict[str, int | float]:
        """Return what tells at a glance how the server is doing."""
        streams = self._streams
        return {
            "streams": len(streams.engine.namespace.by_id),
            "live": streams.actor_count,
            "followers": streams.follower_count(),
            "hot_bytes": streams.engine.hot_bytes,
            "loop_lag_p50_ms": self.lag.percentile_ms(50),
            "loop_lag_p99_ms": self.lag.percentile_ms(99),
        }

    async def _preflight(self, exchange: Exchange) -> None:
        fields: Fields = [
            (b"Access-Control-Allow-Methods", METHODS.encode()),
            (b"Access-Control-Allow-Headers", _ALLOWED.encode()),
            (b"Access-Control-Max-Age", b"%d" % self._cors.max_age_s),
            (b"Allow", METHODS.encode()),
        ]
        await exchange.respond(204, fields)

    async def _other(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path in HEALTH:
            _only_reading(request.method)
            await _respond_json(exchange, {"status": "ok", **self._figures()})
        elif request.path.startswith("/errors/"):
            _only_reading(request.method)
            row = problems.by_slug(request.path.removeprefix("/errors/"))
            if row is None:
                raise ProblemError(problems.NOT_FOUND, "There is no error of this name.")
            await _respond_json(
                exchange,
                {
                    "type": row.type,
                    "code": row.code,
                    "status": row.status,
                    "title": row.title,
                    "description": row.description,
                },
            )
        else:
            detail = f"Nothing is here; streams are under {PREFIX}."
            raise ProblemError(problems.NOT_FOUND, detail)


async def _respond_json(exchange: Exchange, body: dict[str, str | int | float]) -> None:
    fields = [(b"Content-Type", b"application/json"), NOT_CACHED]
    await exchange.respond(200, fields, json.dumps(body).encode())


def _only_reading(method: str) -> None:
    if method not in ("GET", "HEAD"):
        raise not_allowed(READING)


def _sentence(exc: Exception) -> str:
    text = str(exc)
    return text[:1].upper() + text[1:] + "."


def _busy(detail: str) -> ProblemError:
    fields = ((b"Retry-After", b"%d" % RETRY_S),)
    return ProblemError(problems.UNAVAILABLE, detail, fields, retryAfter=RETRY_S)


def _storage_problem(exc: StorageError) -> ProblemError:
    """Say what the client needs to know; the log has the rest, with paths."""
    logger.error("%s: %s", type(exc).__name__, exc)
    if isinstance(exc, WriteFailedError):
        detail = "The disk did not take the data; nothing was stored. Try again later."
        fields = ((b"Retry-After", b"%d" % RETRY_S),)
        return ProblemError(problems.INSUFFICIENT_STORAGE, detail, fields, retryAfter=RETRY_S)
    if isinstance(exc, StreamDamagedError | CorruptDataError):
        detail = "The stream's data on disk is damaged; its operator has to repair it."
        return ProblemError(problems.STREAM_DAMAGED, detail)
    return ProblemError(
        problems.INTERNAL_ERROR, "The disk failed; the server's log has the reason."
    )
