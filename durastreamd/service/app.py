"""The handler of every exchange: routes it, answers it, turns what went wrong into a problem."""

import logging
from collections.abc import Callable
from dataclasses import replace

import trio

from durastreamd.errors import OutcomeUnknownError, StorageError
from durastreamd.http.budget import Budget
from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Exchange, Phase, Reply, Request
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import problems
from durastreamd.protocol.names import PREFIX, Resource, place_of, reserved_place
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.outcomes import Outcome
from durastreamd.protocol.requests import ProblemError, lookup_of, read_head
from durastreamd.service.access.gate import Permit
from durastreamd.service.access.grants import READ
from durastreamd.service.access.guard import Guard
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.access.visitors import Visitor, Visitors
from durastreamd.service.admission import Admission
from durastreamd.service.answers import NOT_CACHED
from durastreamd.service.bootstrap import Bootstrap
from durastreamd.service.buckets import READING, Buckets, not_allowed
from durastreamd.service.failures import FAILURES, problem_of, rendered
from durastreamd.service.limits import Limits
from durastreamd.service.live import LiveReads
from durastreamd.service.operating.access_log import AccessLog
from durastreamd.service.operating.counts import CATCH_UP, LONG_POLL, SSE, Counts
from durastreamd.service.operating.lag import LagMeter
from durastreamd.service.operating.operations import INSPECTOR, Operations, is_operation
from durastreamd.service.reader import Reader
from durastreamd.service.reads import Reads
from durastreamd.service.retention import Retention
from durastreamd.service.snapshots import Snapshots
from durastreamd.service.subscriptions.routes import SubscriptionRoutes
from durastreamd.service.subscriptions.webhooks import Webhooks
from durastreamd.service.writes import Writes
from durastreamd.streams.limits import SubscriptionLimits
from durastreamd.streams.registry import Streams
from durastreamd.streams.subscribing import Subscribing

logger = logging.getLogger(__name__)

LAST_WORD_S = 1.0  # for an answer that is sent while the server goes down
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


class App:
    """Serves streams over exchanges."""

    def __init__(
        self,
        streams: Streams,
        limits: Limits | None = None,
        guard: Guard | None = None,
        access_log: AccessLog | None = None,
        visitors: Visitors | None = None,
        subscriptions: SubscriptionLimits | None = None,
    ) -> None:
        limits = self._limits = replace(limits) if limits is not None else Limits()
        self._streams = streams
        self._counts = counts = Counts()
        self.lag = LagMeter()
        self.admission = Admission(streams, guard, access_log, visitors)
        self.budget = Budget(limits.writes.budget)
        reader = self._reader = Reader(streams)
        self._writes = Writes(streams, reader, limits, counts)
        self._reads = Reads(streams, reader, limits, counts)
        self._buckets = Buckets(streams)
        self._snapshots = Snapshots(streams, reader, limits)
        self._bootstrap = Bootstrap(streams, reader)
        self._retention = Retention(streams, reader)
        self.live = LiveReads(streams, reader, self._reads, limits, counts)
        self.subscribing = Subscribing(
            streams,
            subscriptions or SubscriptionLimits(),
            read_only=self.admission.guard.read_only,
        )
        self.webhooks = Webhooks(self.subscribing, streams)
        self.subscriptions = SubscriptionRoutes(
            streams, self.subscribing, self.webhooks, self.admission, reader
        )
        self.operations = Operations(streams, self.live, counts, self.admission.counts, self.lag)
        self.operations.metrics.subscriptions = self.webhooks
        self._private = False  # no cache between may keep answers

    def reconfigure(self, limits: Limits) -> None:
        """Serve by these limits; what is in memory already stays counted."""
        self._limits.reads, self._limits.writes = limits.reads, limits.writes
        self.budget.adjust(limits.writes.budget)

    def prepare_access(
        self, options: AccessOptions, *, mutual_tls: bool = False
    ) -> Callable[[], None]:
        """Read the files these options name; what is returned admits requests by them.

        Raises ConfigError if they do not fit. Live readers that are not permitted any more are
        ended when it is called.
        """
        admit = self.admission.prepare(options)
        hidden = options.restricted and READ not in options.anonymous

        def apply() -> None:
            self._private = hidden or mutual_tls
            self._reads.share(private=self._private)
            admit()

        return apply

    def restrict(self, options: AccessOptions, *, mutual_tls: bool = False) -> None:
        """Admit requests by these options and the files they name, from now on."""
        self.prepare_access(options, mutual_tls=mutual_tls)()

    # --- the handler ---

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one exchange."""
        try:
            await self._route(exchange)
        except FAILURES as exc:
            if exchange.phase is not Phase.UNANSWERED:
                if isinstance(exc, OSError | StorageError):
                    problem_of(exc, exchange.request)  # for the log: nobody else hears of it
                exchange.abort()
                return
            answer = self.admission.refusal(exc, exchange.request)
            if not isinstance(exc, OutcomeUnknownError):
                await exchange.respond(*answer)
                return
            # The server is going down and everything is being cancelled, but the client must hear
            # this: a hang-up it would take for permission to repeat.
            with trio.CancelScope(deadline=trio.current_time() + LAST_WORD_S, shield=True):
                await exchange.respond(*answer)
        except RefusedError as exc:
            self.admission.access_log.refused(exchange.request, exc.problem)
            raise

    async def _route(self, exchange: Exchange) -> None:
        request, admission = exchange.request, self.admission
        if admission.proxies is not None:
            admission.proxies.adopt(request)
        page = admission.visitors.admit(request)
        if page is not None:
            exchange.common = page.common
        if request.method == "OPTIONS":
            await self._preflight(exchange)  # browsers send no token with it
        elif request.path == "/" and b"text/html" in request.headers.get(b"accept", b""):
            await exchange.respond(307, [(b"Location", INSPECTOR.encode()), NOT_CACHED])
        elif not request.path.startswith(PREFIX) and is_operation(request.path):
            await self.operations.answer(exchange, admission.gate)
        elif (reserved := reserved_place(request.path)) is not None:
            await self.subscriptions.answer(exchange, *reserved)
        else:
            place, permit = admission.admit(request)
            await self._place(exchange, place, permit)

    def quick(self, request: Request, body: bytes, reply: Reply) -> bool:
        """Take an append that is all there and leaves nothing to wait for but its commit.

        It is the same append, let in by the same door and answered in the same words: all that is
        decided here is that no task waits for it.
        """
        path, writes, admission = request.path, self._writes, self.admission
        if admission.access_log.notes_all or (not path.startswith(PREFIX) and is_operation(path)):
            return False
        try:
            place = place_of(path)
        except ProblemError:
            return False  # said on the ordinary way, to those who may know
        long = len(body) > self._limits.writes.parse_inline_bytes
        if long or place.part or place.is_bucket:
            return False
        page: Visitor | None = None
        begun = self._counts.begin_append()

        def told(result: Outcome | Exception) -> None:
            try:
                answer = writes.appended(result, begun)
            except FAILURES as exc:
                answer = admission.refusal(exc, request)
            except Exception:
                # Runs in the turn of the committer, which must go on to everybody else's.
                logger.exception("unexpected failure in POST %s", path)
                detail = "The server failed while answering; its log has the reason."
                answer = rendered(ProblemError(problems.INTERNAL_ERROR, detail), path)
            status, headers, content = answer
            reply(status, [*headers, *page.fields] if page else headers, content)

        try:
            if admission.proxies is not None:
                admission.proxies.adopt(request)
            page = admission.visitors.admit(request)
            admission.admit_to(request, place)
            ticket = writes.post(request, place.key, body)
        except FAILURES as exc:
            told(exc)
        else:
            ticket.tell(told)
        return True

    async def _place(self, exchange: Exchange, place: Resource, permit: Permit | None) -> None:
        if not place.part and not place.is_bucket:
            await self._stream(exchange, exchange.request.method, place.key, permit)
        elif place.is_bucket:
            await self._buckets.answer(exchange, place, permit)
        elif place.part == "snapshot":
            stream = self._owner(exchange.request, place)
            await self._snapshots.answer(exchange, stream, place)
        elif exchange.request.method in ("GET", "HEAD"):
            await self._bootstrap.answer(exchange, self._owner(exchange.request, place))
        else:
            raise not_allowed(READING)

    def _owner(self, request: Request, place: Resource) -> Stream:
        """Return the stream that a part is asked of, or raise the problem."""
        try:
            return self._reader.asked(request, place.key)
        except ProblemError as exc:
            if exc.problem is not problems.NOT_FOUND:
                raise
            detail = (
                f"{place.part} is a part of a stream, and that stream does not exist; create it "
                "with PUT at the path before. No stream has a name that ends so."
            )
            raise ProblemError(problems.NOT_FOUND, detail) from None

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
        elif method == "PATCH":
            await self._retention.answer(exchange, self._reader.asked(exchange.request, key))
        elif method == "DELETE":
            answer = await self._writes.delete(exchange, key)
            await exchange.respond(answer.status, answer.headers)
        else:
            raise not_allowed(METHODS)

    async def _head(self, exchange: Exchange, key: str) -> None:
        stream = self._reader.asked(exchange.request, key, whole=False)
        fields = self._reads.metadata(stream)
        lookup = lookup_of(exchange.request.query)
        if lookup is not None:
            position, ordinal = await self._reader.find(self._reader.readable(key), lookup)
            fields += [
                (b"Stream-At-Offset", mint(position).encode()),
                (b"Stream-At-Message", b"%d" % ordinal),
                (b"Stream-At-Byte", b"%d" % position),
            ]
        await exchange.respond(200, fields)

    async def _read(self, exchange: Exchange, key: str, permit: Permit | None) -> None:
        request = exchange.request
        head = read_head(request.query, request.headers)
        stream = self._reader.asked(request, key)
        if head.live is None:
            self._counts.reads[CATCH_UP] += 1
            await self._reads.catch_up(exchange, stream, head)
        elif head.live == "sse":
            self._counts.reads[SSE] += 1
            await self.live.events(exchange, stream, head, permit)
        else:
            self._counts.reads[LONG_POLL] += 1
            await self.live.long_poll(exchange, stream, head, permit)

    async def _preflight(self, exchange: Exchange) -> None:
        methods = READING if self.admission.guard.read_only else METHODS
        await exchange.respond(204, self.admission.visitors.preflight(methods))
