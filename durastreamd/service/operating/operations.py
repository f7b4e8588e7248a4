"""What is for operators rather than for clients of streams.

Health, readiness, metrics, the meaning of errors, and the inspector with what it asks for.
"""

from collections.abc import Mapping

import trio

from durastreamd.http.exchange import Exchange
from durastreamd.protocol import problems
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.names import PREFIX
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.gate import Gate, GateCounts
from durastreamd.service.answers import NOT_CACHED
from durastreamd.service.buckets import READING, not_allowed
from durastreamd.service.live import LiveReads
from durastreamd.service.operating.counts import Counts
from durastreamd.service.operating.inspection import STREAMS, Inspection
from durastreamd.service.operating.inspector import inspector_page
from durastreamd.service.operating.lag import LagMeter
from durastreamd.service.operating.metrics import CONTENT_TYPE, Metrics
from durastreamd.service.operating.readiness import Readiness
from durastreamd.streams.registry import Streams

STUCK_S = 10.0  # a sync that takes longer than this is not going to be good
ERRORS = "/errors/"
ALIVE = ("/health", "/-/healthz")
READY = "/-/readyz"
INSPECTOR = "/-/inspector"
OPEN = (*ALIVE, READY, INSPECTOR)  # the page itself shows nothing; what it asks for needs a token
JSON_FIELDS = [(b"Content-Type", b"application/json"), NOT_CACHED]


def is_operation(path: str) -> bool:
    """Tell whether a path is one of these."""
    return path.startswith(("/-/", ERRORS)) or path in ALIVE or path == ERRORS[:-1]


class Operations:
    """``/health``, ``/-/...`` and ``/errors/...``."""

    def __init__(
        self,
        streams: Streams,
        live: LiveReads,
        counts: Counts,
        refusals: GateCounts,
        lag: LagMeter,
    ) -> None:
        self._streams = streams
        self._lag = lag
        self.readiness = Readiness()
        self.readiness.watch("draining", lambda: "The server is stopping." if live.ending else None)
        self.readiness.watch("journal", self._stuck)
        self.readiness.notice("damaged", self._damaged)
        self.readiness.notice("unwritable", self._unwritable)
        self.metrics = Metrics(streams, counts, refusals, lag, self.readiness)
        self.inspection = Inspection(streams, counts, lag, self.readiness, self.metrics)

    def _stuck(self) -> str | None:
        since = self._streams.committer.busy_since
        busy_s = trio.current_time() - since if since is not None else 0.0
        return f"The journal has not been synced for {busy_s:.0f} s." if busy_s > STUCK_S else None

    def _damaged(self) -> str | None:
        count = len(self._streams.engine.damaged)
        if not count:
            return None
        verb = "stream is" if count == 1 else "streams are"
        return f"{count} {verb} damaged and refused; `dsadmin verify` says which."

    def _unwritable(self) -> str | None:
        count = len(self._streams.engine.unwritable)
        if not count:
            return None
        verb = "stream takes" if count == 1 else "streams take"
        return f"{count} {verb} no writes: the files cannot be written; the log says which and why."

    async def answer(self, exchange: Exchange, gate: Gate | None) -> None:
        """Answer, or raise the problem; what is not for everybody needs the scope admin."""
        request = exchange.request
        path = ERRORS if request.path == ERRORS[:-1] else request.path
        of_streams = path == STREAMS or path.startswith(f"{STREAMS}/")
        if gate is not None and not (of_streams or path in OPEN or path.startswith(ERRORS)):
            gate.check_admin(gate.identify(request))
        if request.method not in ("GET", "HEAD"):
            raise not_allowed(READING)
        if of_streams:  # shows what its caller may read
            body = await self.inspection.about_streams(request, gate)
            await exchange.respond(200, JSON_FIELDS, body)
            return
        if path in ALIVE:
            # How busy the server is, is for those who may know more than that it lives.
            figures = self._figures() if gate is None else {}
            await _respond_json(exchange, 200, {"status": "ok", **figures})
        elif path == READY:
            await self._answer_ready(exchange)
        elif path == "/-/metrics":
            page = await self.metrics.page()
            await exchange.respond(200, [(b"Content-Type", CONTENT_TYPE), NOT_CACHED], page)
        elif path.startswith(ERRORS):
            await _respond_json(exchange, 200, _error(path.removeprefix(ERRORS)))
        elif path == INSPECTOR:
            await exchange.respond(200, *inspector_page())
        else:
            await self._answer_facts(exchange, path)

    async def _answer_facts(self, exchange: Exchange, path: str) -> None:
        facts = self.inspection.about_server(path)
        if facts is None:
            detail = f"Nothing is here; streams are under {PREFIX}."
            raise ProblemError(problems.NOT_FOUND, detail)
        await _respond_json(exchange, 200, facts)

    async def _answer_ready(self, exchange: Exchange) -> None:
        reasons = self.readiness.reasons()
        body: dict[str, object] = {"status": "not ready" if reasons else "ready"}
        for name, found in (("reasons", reasons), ("notes", self.readiness.notes())):
            if found:
                body[name] = [{"reason": word, "detail": text} for word, text in found.items()]
        await _respond_json(exchange, 503 if reasons else 200, body)

    def _figures(self) -> dict[str, int | float]:
        """Return what tells at a glance how the server is doing."""
        streams = self._streams
        return {
            "streams": len(streams.engine.namespace.by_id),
            "live": streams.actor_count,
            "followers": streams.follower_count(),
            "hot_bytes": streams.engine.hot_bytes,
            "loop_lag_p50_ms": self._lag.percentile_ms(50),
            "loop_lag_p99_ms": self._lag.percentile_ms(99),
        }


def _error(slug: str) -> dict[str, object]:
    """Return what a problem type means, or all of them where none is named."""
    if not slug:
        return {"errors": [_explained(row) for row in problems.problems() if not row.reason]}
    row = problems.by_slug(slug)
    if row is None:
        detail = f"There is no error of this name; {ERRORS} lists them."
        raise ProblemError(problems.NOT_FOUND, detail)
    return _explained(row)


def _explained(row: problems.Problem) -> dict[str, object]:
    said: dict[str, object] = {
        "type": row.type,
        "code": row.code,
        "status": row.status,
        "title": row.title,
        "description": row.description,
    }
    finer = problems.reasons_of(row)
    if finer:
        said["reasons"] = {each.reason: each.description for each in finer}
    return said


async def _respond_json(exchange: Exchange, status: int, body: Mapping[str, object]) -> None:
    await exchange.respond(status, JSON_FIELDS, json_body(body))
