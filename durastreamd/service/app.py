"""The handler of every exchange: routes it, answers it, turns what went wrong into a problem."""

import logging
from collections.abc import Callable
from typing import NamedTuple

import trio

from durastreamd.errors import (
    DurastreamError,
    OutcomeUnknownError,
    StreamDamagedError,
)
from durastreamd.http.budget import Budget
from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Exchange, Phase, Reply, Request
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import problems
from durastreamd.protocol.names import PREFIX, Place, place_of
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.outcomes import Outcome
from durastreamd.protocol.requests import ProblemError, lookup_of, read_head
from durastreamd.service.access.gate import Gate, Permit
from durastreamd.service.access.grants import READ
from durastreamd.service.access.guard import SAFE, Guard
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.access.visitors import Visitors
from durastreamd.service.answers import Answer, answer_append
from durastreamd.service.bootstrap import Bootstrap
from durastreamd.service.buckets import READING, Buckets, not_allowed
from durastreamd.service.failures import FAILURES, Failure, problem_of, rendered
from durastreamd.service.limits import ReadLimits, WriteLimits
from durastreamd.service.live import LiveReads
from durastreamd.service.operating.access_log import AccessLog
from durastreamd.service.operating.counts import CATCH_UP, LONG_POLL, SSE, Counts
from durastreamd.service.operating.lag import LagMeter
from durastreamd.service.operating.operations import Operations, is_operation
from durastreamd.service.reader import Reader
from durastreamd.service.reads import Reads, metadata
from durastreamd.service.snapshots import Snapshots
from durastreamd.service.writes import Writes
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)

LAST_WORD_S = 1.0  # for an answer that is sent while the server goes down
METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"


class Limits(NamedTuple):
    """Everything the service bounds."""

    reads: ReadLimits = ReadLimits()
    writes: WriteLimits = WriteLimits()


class App:
    """Serves streams over exchanges."""

    def __init__(
        self,
        streams: Streams,
        limits: Limits | None = None,
        guard: Guard | None = None,
        access_log: AccessLog | None = None,
        visitors: Visitors | None = None,
    ) -> None:
        limits = limits or Limits()
        self._streams = streams
        self._counts = counts = Counts()
        self.lag = LagMeter()
        self.guard = guard or Guard()
        self.access_log = access_log or AccessLog()
        self.visitors = visitors or Visitors()
        self.budget = Budget(limits.writes.budget)
        reader = self._reader = Reader(streams)
        self._writes = Writes(streams, reader, limits.writes, counts)
        self._reads = Reads(streams, reader, limits.reads, counts)
        self._buckets = Buckets(streams)
        self._snapshots = Snapshots(streams, reader, limits.writes)
        self._bootstrap = Bootstrap(streams)
        self.live = LiveReads(streams, reader, self._reads, limits.reads, counts)
        self.operations = Operations(streams, self.live, counts, self.lag)
        self.gate: Gate | None = None
        self._private = False  # no cache between may keep answers

    def reconfigure(self, limits: Limits) -> None:
        """Serve new requests by these limits; those under way go on by theirs."""
        streams, reader, counts = self._streams, self._reader, self._counts
        self.budget.adjust(limits.writes.budget)
        self._writes = Writes(streams, reader, limits.writes, counts)
        self._snapshots = Snapshots(streams, reader, limits.writes)
        self._reads = Reads(streams, reader, limits.reads, counts)
        self._reads.share(private=self._private)
        self.live.reconfigure(self._reads, limits.reads)

    def prepare_access(
        self, options: AccessOptions, *, mutual_tls: bool = False
    ) -> Callable[[], None]:
        """Read the files these options name; what is returned admits requests by them.

        Raises ConfigError if they do not fit. Live readers that are not permitted any more are
        ended when it is called.
        """
        before, gate = self.gate, None
        if options.restricted or options.rate:
            limiter = before.limiter if before is not None else None
            gate = Gate(options, self._streams.clock, self.operations.access, limiter)
        hidden = options.restricted and READ not in options.anonymous

        def apply() -> None:
            self.gate = gate
            self._private = hidden or mutual_tls
            self._reads.share(private=self._private)
            if before is not None:
                before.retire(gate)

        return apply

    def restrict(self, options: AccessOptions, *, mutual_tls: bool = False) -> None:
        """Admit requests by these options and the files they name, from now on."""
        self.prepare_access(options, mutual_tls=mutual_tls)()

    # --- the handler ---

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one exchange."""
        try:
            common = self.visitors.admit(exchange.request)
            if common is not None:
                exchange.common = common
            if self.gate is None:
                await self._route(exchange)
            else:
                await self._route_guarded(exchange, self.gate)
        except FAILURES as exc:
            if exchange.phase is not Phase.UNANSWERED:
                if isinstance(exc, OSError):
                    problem_of(exc, exchange.request)  # for the log: nobody else hears of it
                exchange.abort()
                return
            answer = self._refusal(exc, exchange.request)
            if not isinstance(exc, OutcomeUnknownError):
                await exchange.respond(*answer)
                return
            # The server is going down and everything is being cancelled, but the client must hear
            # this: a hang-up it would take for permission to repeat.
            with trio.CancelScope(deadline=trio.current_time() + LAST_WORD_S, shield=True):
                await exchange.respond(*answer)
        except RefusedError as exc:
            self.access_log.refused(exchange.request, exc.problem.status, exc.problem.code)
            raise

    def _refusal(self, exc: Failure, request: Request) -> Answer:
        """Return the answer that says what went wrong, and note it."""
        problem = problem_of(exc, request)
        self.access_log.refused(request, problem.problem.status, problem.problem.code)
        return rendered(problem, request.path)

    def quick(self, request: Request, body: bytes, reply: Reply) -> bool:
        """Take an append that is all there and leaves nothing to wait for but its commit.

        Declines whatever it does not like the look of: the ordinary way says what is wrong.
        """
        path = request.path
        if not path.startswith(PREFIX) or self.access_log.notes_all:
            return False
        if not self.visitors.passes(request):
            return False
        counts = self._counts
        begun = counts.begin_append()

        def told(result: Outcome | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                counts.end_append(result, begun)
                answer = answer_append(result)
            except FAILURES as exc:
                answer = self._refusal(exc, request)
            except Exception:
                # Runs in the turn of the committer, which must go on to everybody else's.
                logger.exception("unexpected failure in POST %s", path)
                detail = "The server failed while answering; its log has the reason."
                answer = rendered(ProblemError(problems.INTERNAL_ERROR, detail), path)
            reply(*answer)

        try:
            place = place_of(path)
            if place.part or place.is_bucket or self.guard.watchful:
                return False
            if self.gate is not None and not self.gate.passes(request, place.key):
                return False
            return self._writes.append_quickly(request, place.key, body, told)
        except (ProblemError, DurastreamError):
            return False

    async def _route(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if request.method not in SAFE:
            self.guard.check(request, self._streams)
        if request.method == "OPTIONS":
            await self._preflight(exchange)
        elif path.startswith(PREFIX):
            await self._place(exchange, place_of(path))
        elif is_operation(path):
            await self.operations.answer(exchange, None)
        else:
            await self._place(exchange, place_of(path))

    async def _route_guarded(self, exchange: Exchange, gate: Gate) -> None:
        """Route as ``_route`` does, for those who may; judged by the key that is routed to."""
        request = exchange.request
        if request.method == "OPTIONS":
            await self._preflight(exchange)  # browsers send no token with it
        elif is_operation(request.path):
            await self.operations.answer(exchange, gate)
        else:
            identity = gate.identify(request)
            place = place_of(request.path)
            permit = gate.permit(identity, request.method, place.key)
            if request.method not in SAFE:
                self.guard.check(request, self._streams)
            await self._place(exchange, place, permit)

    async def _place(self, exchange: Exchange, place: Place, permit: Permit | None = None) -> None:
        if not place.part and not place.is_bucket:
            await self._stream(exchange, exchange.request.method, place.key, permit)
        elif place.is_bucket:
            await self._buckets.answer(exchange, place)
        elif place.part == "snapshot":
            await self._snapshots.answer(exchange, self._readable(place.key), place)
        elif exchange.request.method in ("GET", "HEAD"):
            await self._bootstrap.answer(exchange, self._readable(place.key))
        else:
            raise not_allowed(READING)

    async def _stream(
        self, exchange: Exchange, method: str, key: str, permit: Permit | None
    ) -> None:
        if method == "POST":
            answer = await self._writes.append(exchange, key)
            await exchange.respond(answer.status, answer.headers)
        elif method == "GET":
            await self._read(exchange, key, permit)
        elif method == "PUT":
            answer = await self._writes.create(exchange, key, permit)
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

    async def _read(self, exchange: Exchange, key: str, permit: Permit | None) -> None:
        request = exchange.request
        head = read_head(request.query, request.headers)
        stream = self._readable(key)
        if head.live is None:
            self._counts.reads[CATCH_UP] += 1
            await self._reads.catch_up(exchange, stream, head)
        elif head.live == "sse":
            self._counts.reads[SSE] += 1
            await self.live.events(exchange, stream, head, permit)
        else:
            self._counts.reads[LONG_POLL] += 1
            await self.live.long_poll(exchange, stream, head, permit)

    def _readable(self, key: str) -> Stream:
        """Return a stream that is there and whole, or raise the problem."""
        stream = self._writes.head(key)
        if stream.damage:
            raise StreamDamagedError(stream.damage)
        return stream

    async def _preflight(self, exchange: Exchange) -> None:
        methods = READING if self.guard.read_only else METHODS
        await exchange.respond(204, self.visitors.preflight(methods))
