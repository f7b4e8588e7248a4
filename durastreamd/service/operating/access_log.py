"""One line of the log per request: who asked what, and how it was answered.

Never the query, a header's secret or a payload: the path, the kind of live read, sizes and times.
A client's ``X-Request-Id`` and ``traceparent`` are carried over if they look like such; a request
without an id is given one.

``errors`` writes a line for refused requests only and costs nothing for others: the service calls
``refused`` where it answers with a problem. ``all`` stands before the service and watches every
exchange, appends included, which then have no quick way: 80 microseconds more for each of those,
half of it the line itself.
"""

import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import trio

from durastreamd.http.budget import Claim
from durastreamd.http.errors import HungUpError, RefusedError
from durastreamd.http.exchange import CommonHeaders, Exchange, Handler, Headers, Phase, Request
from durastreamd.protocol.problems import Problem

logger = logging.getLogger("durastreamd.access")

Fields = dict[str, str | int | float | bool]

CLIENT_GONE = 499  # what nginx writes for it; no answer has this status
_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SERVER_ERROR = 500

# Ids are told apart within a process by a number, between processes by what is random.
_RUN = secrets.token_hex(4)
_numbers = itertools.count(1)


def request_id(request: Request) -> str:
    """Return the client's id of a request, or a new one."""
    given = request.headers.get(b"x-request-id", b"")
    if _ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_RUN}-{next(_numbers):x}"


def _common(request: Request, status: int) -> Fields:
    found: Fields = {
        "method": request.method,
        "path": request.path,
        "status": status,
        "remote": request.peer,
        "http": request.version,
        "req_id": request_id(request),
    }
    trace = request.headers.get(b"traceparent", b"")
    if _TRACE.fullmatch(trace):
        found["traceparent"] = trace.decode("ascii")
    for mode in ("sse", "long-poll"):
        if f"live={mode}" in request.query:
            found["live"] = mode
    return found


def _level(status: int) -> int:
    return logging.WARNING if status >= _SERVER_ERROR else logging.INFO


def _write(message: str, status: int, fields: Fields) -> None:
    # Made here: looking for the caller's place in the source is half the cost of a record.
    record = logging.LogRecord(logger.name, _level(status), "", 0, message, (), None)
    record.__dict__["fields"] = fields
    logger.handle(record)


class AccessLog:
    """Writes access lines: ``mode`` is off, errors or all."""

    def __init__(self, mode: str = "off") -> None:
        self.mode = mode

    @property
    def notes_all(self) -> bool:
        """Tell whether every request gets a line."""
        return self.mode == "all" and logger.isEnabledFor(logging.INFO)

    def refused(self, request: Request, problem: Problem) -> None:
        """Note a request that was answered with a problem."""
        status = problem.status
        if self.mode == "errors" and logger.isEnabledFor(_level(status)):
            fields = {**_common(request, status), "code": problem.code}
            if problem.reason:
                fields["reason"] = problem.reason
            _write("refused", status, fields)

    def around(self, handler: Handler) -> Handler:
        """Return what is to serve exchanges: the handler itself unless all of them are noted."""
        if not self.notes_all:
            return handler

        async def noting(exchange: Exchange) -> None:
            noted = _Noted(exchange)
            begun = time.perf_counter()
            try:
                await handler(noted)
            except RefusedError as refusal:
                noted.status = refusal.problem.status
                raise
            except (HungUpError, trio.Cancelled):
                noted.status = noted.status or CLIENT_GONE
                raise
            except Exception:
                noted.status = noted.status or _SERVER_ERROR
                raise
            finally:
                _note(noted, time.perf_counter() - begun)

        return noting


def _note(noted: "_Noted", seconds: float) -> None:
    status = noted.status or CLIENT_GONE
    fields = _common(noted.request, status)
    fields["bytes"] = noted.sent_bytes
    fields["dur_ms"] = round(seconds * 1000, 3)
    if noted.phase is Phase.ABORTED:
        fields["aborted"] = True
    _write("request", status, fields)


class _Noted(Exchange):
    """An exchange that remembers how it was answered."""

    __slots__ = ("_inner", "sent_bytes", "status")

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner
        self.request = inner.request
        self.status = 0
        self.sent_bytes = 0

    # Kept by the exchange itself, whose own methods change and use them.

    @property
    def phase(self) -> Phase:
        """How far the response is."""
        return self._inner.phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._inner.phase = phase

    @property
    def common(self) -> CommonHeaders:
        """The fields that every response carries."""
        return self._inner.common

    @common.setter
    def common(self, common: CommonHeaders) -> None:
        self._inner.common = common

    @property
    def claim(self) -> Claim:
        """See Exchange."""
        return self._inner.claim

    async def body(self, bytes_max: int) -> bytes | memoryview:
        """See Exchange."""
        return await self._inner.body(bytes_max)

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """See Exchange."""
        return self._inner.chunks()

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """See Exchange."""
        self.status = status
        self.sent_bytes = len(body)
        await self._inner.respond(status, headers, body)

    async def start(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """See Exchange."""
        self.status = status
        await self._inner.start(status, headers, length=length)

    async def send(self, data: bytes | memoryview) -> None:
        """See Exchange."""
        await self._inner.send(data)
        self.sent_bytes += len(data)

    def send_nowait(self, data: bytes) -> bool:
        """See Exchange."""
        taken = self._inner.send_nowait(data)
        self.sent_bytes += len(data) if taken else 0
        return taken

    async def finish(self) -> None:
        """See Exchange."""
        await self._inner.finish()

    def until_hang_up(self) -> AbstractAsyncContextManager[trio.CancelScope, bool]:
        """See Exchange."""
        return self._inner.until_hang_up()

    def abort(self) -> None:
        """See Exchange."""
        self._inner.abort()
