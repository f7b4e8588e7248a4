"""One request and its response as handlers see it; HTTP/1 and HTTP/2 look the same from here.

``Request`` is what was asked, ``Exchange`` is how to read the body and how to answer. The
connection layer owns the rest: framing, limits, deadlines, what follows on the connection.
``run_handler`` is the frame around every handler: whatever one does, the client gets a well-formed
answer or a broken connection, never a truncated body that looks complete.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from typing import Final

import trio
from msgspec import Struct

from durastreamd.errors import OverloadedError
from durastreamd.http.budget import Claim
from durastreamd.http.errors import HungUpError, RefusedError, ResponseError
from durastreamd.protocol import problems
from durastreamd.protocol.requests import Fields

log = logging.getLogger("durastreamd.http")

Headers = Sequence[tuple[bytes, bytes]]


class Request(Struct, gc=False):
    """What the client asked. Read only; built once per exchange, so it is kept cheap."""

    method: str
    target: str
    path: str
    query: str
    headers: Fields
    authority: str
    content_length: int | None
    has_body: bool
    version: str = "1.1"
    # Known to the transport only; it fills them in.
    scheme: str = "http"
    peer: str = ""
    # Where a trusted proxy speaks for its client: who it is, and the name that the client used.
    via: str = ""
    public: str = ""

    @classmethod
    def to(
        cls,
        method: str,
        target: str,
        headers: dict[bytes, bytes],
        version: str,
        authority: str,
        content_length: int | None,
        *,
        has_body: bool,
    ) -> "Request":
        """Make a request to a target as it was sent."""
        path, _, query = target.partition("?")
        fields = Fields(headers)
        return cls(
            method, target, path, query, fields, authority, content_length, has_body, version
        )

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.target} HTTP/{self.version} from {self.peer}>"


class Phase(Enum):
    """How far the response is."""

    UNANSWERED = auto()  # Nothing was sent; any response is still possible.
    STREAMING = auto()  # The head is out, the body goes on.
    FINISHED = auto()  # Complete.
    ABORTED = auto()  # Broken on purpose; nothing more can be sent.


class CommonHeaders:
    """Fields that every response of a server carries, rendered once.

    An answer to a page's request may need others (its origin); a handler then replaces the
    exchange's before it answers.
    """

    __slots__ = ("_varying", "block", "fields")

    def __init__(self, fields: Headers) -> None:
        self.fields = tuple(fields)
        self.block = b"".join([b"%b: %b\r\n" % field for field in fields])
        self._varying: dict[bytes, CommonHeaders] = {}

    def varying(self, value: bytes) -> "CommonHeaders":
        """Return the same fields with this ``Vary``, one of few, in place of their own.

        An answer has one field line of that name: there are caches that heed only the last.
        """
        found = self._varying.get(value)
        if found is None:
            others = [field for field in self.fields if field[0] != b"Vary"]
            found = self._varying[value] = CommonHeaders([*others, (b"Vary", value)])
        return found


class Exchange(ABC):
    """One request and its response."""

    __slots__ = ("common", "phase", "request", "status")

    def __init__(self, request: Request, common: CommonHeaders) -> None:
        self.request = request
        self.common = common
        self.phase = Phase.UNANSWERED
        self.status = 0  # Of the response, once it has begun.

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """What this exchange holds of the budget; given back when its handler has returned.

        A handler that keeps bytes in memory for its client takes them from here first.
        """

    @abstractmethod
    async def body(self, bytes_max: int) -> bytes | memoryview:
        """Read the whole request body; a large one is a view of where it was received to.

        It is counted against the budget until the handler returns. Raises ``BodyTooLargeError``
        above ``bytes_max`` (by Content-Length before anything is read), ``OverloadedError`` if
        there is no room for it, ``BodyTooSlowError`` and ``HungUpError``; a handler need not catch
        them.
        """

    @abstractmethod
    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the request body piece by piece as it arrives. Raises what ``body`` raises.

        A piece is not counted against the budget; who keeps several of them takes them from
        ``claim``.
        """

    @abstractmethod
    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response. Content-Length is added here; HEAD, 204 and 304 get no body."""

    @abstractmethod
    async def start(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin a streamed response of ``length`` bytes, or of as many as will be sent."""

    @abstractmethod
    async def send(self, data: bytes | memoryview) -> None:
        """Send a piece of a streamed response; waits while the client does not take it."""

    @abstractmethod
    def send_nowait(self, data: bytes) -> bool:
        """Hand over the whole of ``data`` now, or nothing.

        True: every byte will go out, in order, before anything sent later. False: nothing was
        taken; use ``send``. May be called from a task that is not the handler's.
        """

    @abstractmethod
    async def finish(self) -> None:
        """End a streamed response."""

    @abstractmethod
    def until_hang_up(self) -> AbstractAsyncContextManager[trio.CancelScope, bool]:
        """Run the block and cancel it when the client goes away.

        The block ends quietly then; ``cancelled_caught`` of the scope tells that it happened.
        """

    @abstractmethod
    def abort(self) -> None:
        """Break the exchange so that the client cannot take it for complete."""


Handler = Callable[[Exchange], Awaitable[None]]

# The part of a handler that needs no waiting of its own: given a whole request it either declines
# (False, and nothing has happened) or sees to it that ``Reply`` is called once, now or later.
Reply = Callable[[int, Headers, bytes], None]
QuickHandler = Callable[[Request, bytes, Reply], bool]


# The fields of an error response of the connection layer.
PROBLEM_HEADERS: Headers = (
    (b"Content-Type", problems.CONTENT_TYPE),
    (b"Cache-Control", b"no-store"),
)


RETRY_AFTER: Final = b"1"  # of a refusal for want of room


async def run_handler(handler: Handler, exchange: Exchange) -> None:
    """Run ``handler`` and see to it that the exchange is answered or aborted afterwards."""
    try:
        await handler(exchange)
        if exchange.phase is Phase.UNANSWERED:
            msg = "the handler returned without answering"
            raise ResponseError(msg)
        if exchange.phase is Phase.STREAMING:
            msg = "the handler returned in the middle of a streamed response"
            raise ResponseError(msg)
    except HungUpError:
        exchange.abort()
    except RefusedError as refusal:
        await answer_problem(exchange, refusal.problem, refusal.detail)
    except OverloadedError:
        detail = "The server has too many bytes of other requests in memory; come back later."
        await answer_problem(exchange, problems.UNAVAILABLE, detail, retry_after=RETRY_AFTER)
    except Exception:
        # The outermost frame of a handler: its failure must not take the connection's others along.
        log.exception("unexpected failure in %r", exchange.request)
        detail = "The server failed while answering; its log has the reason."
        await answer_problem(exchange, problems.INTERNAL_ERROR, detail)


async def answer_problem(
    exchange: Exchange, problem: problems.Problem, detail: str, retry_after: bytes = b""
) -> None:
    """Answer with ``problem``, or abort when the response has begun or cannot be sent."""
    if exchange.phase is not Phase.UNANSWERED:
        if exchange.phase is Phase.STREAMING:
            exchange.abort()
        return
    body = problems.render(problem, detail, exchange.request.target)
    headers = list(PROBLEM_HEADERS)
    if retry_after:
        headers.append((b"Retry-After", retry_after))
    try:
        await exchange.respond(problem.status, headers, body)
    except HungUpError:
        exchange.abort()
