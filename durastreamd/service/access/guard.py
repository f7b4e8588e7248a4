"""Whether a request that writes may be served at all, before anything else is asked about it."""

from durastreamd.http.exchange import Request
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import problems
from durastreamd.protocol.names import Resource
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.buckets import READING
from durastreamd.service.operating.space import Space
from durastreamd.streams.registry import Streams

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))  # never asked about
FULL_RETRY_S = 10  # room does not come back within a second


class Guard:
    """Who may not write: everybody in read-only mode, whoever adds data when there is no room."""

    def __init__(self, space: Space | None = None, *, read_only: bool = False) -> None:
        self.space = space
        self.read_only = read_only

    def check(self, request: Request, place: Resource, streams: Streams) -> None:
        """Raise the problem of a request that is not to be served now."""
        if self.read_only:
            detail = f"This server is read-only: it serves a copy and answers {READING}."
            allow = ((b"Allow", READING.encode()),)
            raise ProblemError(problems.METHOD_NOT_ALLOWED, detail, allow)
        space = self.space
        if space is None or not space.low or not _adds(request, place, streams):
            return
        space.refused_total += 1
        detail = "The disk is nearly full; nothing was stored. Try again later."
        later = ((b"Retry-After", b"%d" % FULL_RETRY_S),)
        raise ProblemError(problems.INSUFFICIENT_STORAGE, detail, later, retryAfter=FULL_RETRY_S)


def _adds(request: Request, place: Resource, streams: Streams) -> bool:
    """Tell whether a request would add data: not a closure, not a PUT of what is there."""
    if request.method == "POST":
        return request.has_body
    if request.method == "PUT" and not request.has_body:
        return not isinstance(streams.find(place.key), Stream)
    return request.method == "PUT"
