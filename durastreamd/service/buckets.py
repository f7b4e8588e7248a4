"""Buckets: make, look, list, end (docs/extension.md)."""

from durastreamd.http.exchange import Exchange
from durastreamd.protocol import outcomes as oc, problems
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.names import LISTING, Resource
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import ProblemError, query_of
from durastreamd.service.answers import NOT_CACHED, Answer
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import BucketCommand

LIMIT_MAX = 1000
READING = "GET, HEAD, OPTIONS"
METHODS = "PUT, GET, HEAD, DELETE, OPTIONS"
_JSON = (b"Content-Type", b"application/json")


class Buckets:
    """The bucket surface's own resources."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def answer(self, exchange: Exchange, place: Resource) -> None:
        """Answer a request for a bucket or its listing."""
        method = exchange.request.method
        name = place.key.removesuffix("/")
        if place.part == LISTING:
            if method not in ("GET", "HEAD"):
                raise not_allowed(READING)
            await self._send(exchange, self._listing(name, exchange.request.query))
        elif method == "PUT":
            outcome = await self._streams.ask(place.key, BucketCommand(exists=True))
            if isinstance(outcome, oc.BucketExists):
                raise ProblemError(problems.BUCKET_EXISTS, f"The bucket {name} exists already.")
            location = (b"Location", exchange.request.path.encode())
            await exchange.respond(201, [location, _JSON], self._metadata(name))
        elif method in ("GET", "HEAD"):
            await self._send(exchange, self._metadata(name))
        elif method == "DELETE":
            answer = self._deleted(await self._streams.ask(place.key, BucketCommand(exists=False)))
            await exchange.respond(answer.status, answer.headers)
        else:
            raise not_allowed(METHODS)

    async def _send(self, exchange: Exchange, body: bytes) -> None:
        await exchange.respond(200, [_JSON, NOT_CACHED], body)

    def _deleted(self, outcome: oc.Outcome) -> Answer:
        if isinstance(outcome, oc.BucketNotEmpty):
            detail = f"The bucket has {outcome.streams} streams; delete them first."
            raise ProblemError(problems.BUCKET_NOT_EMPTY, detail)
        if isinstance(outcome, oc.BucketMissing):
            raise missing()
        return Answer(204, [])

    def _metadata(self, name: str) -> bytes:
        bucket = self._streams.engine.namespace.buckets.get(name)
        if bucket is None:
            raise missing()
        body = {"bucket_id": name, "streams": bucket.streams, "created_at_ms": bucket.created_ms}
        return json_body(body)

    def _listing(self, name: str, query: str) -> bytes:
        if name not in self._streams.engine.namespace.buckets:
            raise missing()
        asked = query_of(query)
        prefix, after = asked.get("prefix", [""])[0], asked.get("after", [""])[0]
        limit = _limit(asked.get("limit", [str(LIMIT_MAX)])[0])
        namespace, now_ms = self._streams.engine.namespace, self._streams.clock()
        rows: list[dict[str, object]] = []
        more = False
        # Deleted and expired streams are passed over, so more than a page may have to be looked at.
        for stream in namespace.listing(name, prefix, after, len(namespace.by_key)):
            if stream.gone or stream.expired(now_ms):
                continue
            if len(rows) == limit:
                more = True
                break
            rows.append(
                {
                    "stream_id": stream.key.partition("/")[2],
                    "status": "Closed" if stream.closed else "Open",
                    "content_type": stream.content_type,
                    "tail_offset": stream.tail,
                    "created_at_ms": stream.created_ms,
                    "last_write_at_ms": stream.written_ms,
                }
            )
        body = {
            "bucket_id": name,
            "prefix": prefix,
            "stream_count": len(rows),
            "streams": rows,
            "next_cursor": rows[-1]["stream_id"] if more else None,
            "has_more": more,
        }
        return json_body(body)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= LIMIT_MAX:
        detail = f"limit is a number from 1 to {LIMIT_MAX}, not {quoted(text)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return int(text)


def missing() -> ProblemError:
    """Return the problem of a bucket that is not there."""
    return ProblemError(problems.BUCKET_NOT_FOUND, "There is no such bucket; create it with PUT.")


def not_allowed(methods: str) -> ProblemError:
    """Return the problem of a method that a resource does not have."""
    detail = f"This resource answers {methods}."
    return ProblemError(problems.METHOD_NOT_ALLOWED, detail, ((b"Allow", methods.encode()),))
