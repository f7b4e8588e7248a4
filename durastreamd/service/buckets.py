"""Buckets: make, look, list, end (docs/extension.md)."""

from durastreamd.http.exchange import Exchange
from durastreamd.protocol import outcomes as oc, problems
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.names import ELSEWHERE, LISTING, Resource
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.gate import Permit
from durastreamd.service.answers import NOT_CACHED, Answer
from durastreamd.service.listings import Listings
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import BucketCommand

READING = "GET, HEAD, OPTIONS"
METHODS = "PUT, GET, HEAD, DELETE, OPTIONS"
_JSON = (b"Content-Type", b"application/json")


class Buckets:
    """The bucket surface's own resources."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._listings = Listings(streams)

    async def answer(self, exchange: Exchange, place: Resource, permit: Permit | None) -> None:
        """Answer a request for a bucket, its listing, or that of the path surface."""
        method = exchange.request.method
        name = place.key.removesuffix("/")
        if place.part == LISTING:
            if method not in ("GET", "HEAD"):
                raise not_allowed(READING)
            if name and name not in self._streams.engine.namespace.buckets:
                raise missing()
            query = exchange.request.query
            await self._send(exchange, await self._listings.page(place.key, query, permit))
        elif method == "PUT":
            outcome = await self._streams.ask(place.key, BucketCommand(exists=True))
            if isinstance(outcome, oc.BucketExists):
                raise ProblemError(problems.BUCKET_EXISTS, f"The bucket {name} exists already.")
            location = (b"Location", f"/{name}".encode())
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
            there, kept = outcome.streams - outcome.kept, outcome.kept
            detail = f"The bucket has {there} streams; delete them first."
            if kept:
                detail += f" {kept} more were deleted and have forks, which are to be deleted, too."
            raise ProblemError(problems.BUCKET_NOT_EMPTY, detail)
        if isinstance(outcome, oc.BucketMissing):
            raise missing()
        return Answer(204, [])

    def _metadata(self, name: str) -> bytes:
        bucket = self._streams.engine.namespace.buckets.get(name)
        if bucket is None:
            raise missing()
        shown = bucket.streams - bucket.kept
        body = {"bucket_id": name, "streams": shown, "created_at_ms": bucket.created_ms}
        return json_body(body)


def missing() -> ProblemError:
    """Return the problem of a bucket that is not there."""
    detail = f"There is no such bucket; create it with PUT. {ELSEWHERE}"
    return ProblemError(problems.BUCKET_NOT_FOUND, detail)


def not_allowed(methods: str) -> ProblemError:
    """Return the problem of a method that a resource does not have."""
    detail = f"This resource answers {methods}."
    return ProblemError(problems.METHOD_NOT_ALLOWED, detail, ((b"Allow", methods.encode()),))
