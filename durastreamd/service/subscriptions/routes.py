"""The routes under ``__ds``: subscriptions, their streams, claims and acknowledgements.

Who may do what: callback, ack and release are for whoever has the token of the wake, and for
nobody else; the set of keys is for everybody. Everything else passes the gate as streams do, with
whatever the subscription can reach: the literal part of its pattern, every stream it names, and its
wake stream. Errors are problems as everywhere, with the words that consumers of the protocol look
for in a member ``error``.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from durastreamd.errors import OutcomeUnknownError
from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Exchange, Request
from durastreamd.model.globs import Pattern
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription import Ack, Refused, Subscription
from durastreamd.model.subscription_records import WEBHOOK, SubscriptionConfig
from durastreamd.protocol import problems
from durastreamd.protocol.content_type import is_json
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import ProblemError, query_of
from durastreamd.service.access.gate import Caller, Gate
from durastreamd.service.access.grants import READ, WRITE
from durastreamd.service.admission import Admission
from durastreamd.service.answers import NOT_CACHED, RETRY_S
from durastreamd.service.buckets import METHODS, READING, not_allowed
from durastreamd.service.failures import FAILURES, rendered
from durastreamd.service.listings import LIMIT_MAX, limit_of
from durastreamd.service.reader import Reader
from durastreamd.service.subscriptions import bodies
from durastreamd.service.subscriptions.keys import CACHE_S
from durastreamd.service.subscriptions.policy import HookRefusedError
from durastreamd.service.subscriptions.webhooks import Webhooks
from durastreamd.streams.registry import Streams
from durastreamd.streams.subscribing import NOT_FOUND, Fenced, Subscribing

BODY_BYTES_MAX = 1024 * 1024
ID_BYTES_MAX = 256
_JSON = (b"Content-Type", b"application/json")
_JWKS = (
    (b"Content-Type", b"application/jwk-set+json"),
    (b"Cache-Control", b"public, max-age=%d" % CACHE_S),
)
# Refusals whose problem has another name than the word in ``error.code``.
_PROBLEMS = {"INVALID_OFFSET": problems.INVALID_ACK}
_POSTING, _UNLINKING = "POST, OPTIONS", "DELETE, OPTIONS"
_ACTIONS = ("callback", "claim", "ack", "release")

Object = bodies.Object
T = TypeVar("T")


class SubscriptionRoutes:
    """Everything under ``__ds`` of one root or another."""

    def __init__(
        self,
        streams: Streams,
        subscribing: Subscribing,
        webhooks: Webhooks,
        admission: Admission,
        reader: Reader,
    ) -> None:
        self._streams = streams
        self._subscribing = subscribing
        self._webhooks = webhooks
        self._admission = admission
        self._reader = reader

    # --- routing ---

    async def answer(self, exchange: Exchange, root: str, rest: list[str]) -> None:
        """Answer a request for a path under a root's ``__ds``, errors included."""
        request = exchange.request
        try:
            await self._route(exchange, root, rest)
        except OutcomeUnknownError:
            raise  # told in spite of the end that the server is near
        except FAILURES as exc:
            status, headers, body = self._admission.refusal(exc, request)
            await exchange.respond(status, headers, _with_error(body))
        except RefusedError as exc:
            problem = ProblemError(exc.problem, exc.detail)
            status, headers, body = rendered(problem, request.path)
            await exchange.respond(status, headers, _with_error(body))

    async def _route(self, exchange: Exchange, root: str, rest: list[str]) -> None:
        request = exchange.request
        if rest == ["jwks.json"]:
            await self._jwks(exchange)
        elif rest == ["subscriptions"]:
            await self._list(exchange, root)
        elif rest[:1] != ["subscriptions"] or not rest[1]:
            _nothing_here(self._admission.gate, request)
        elif rest[2:3] == ["streams"] and (len(rest) == 3 or rest[3]):
            await self._links(exchange, root, _id(rest[1]), rest[3:])
        elif len(rest) == 3 and rest[2] in _ACTIONS:
            await self._act(exchange, root, _id(rest[1]), rest[2])
        elif len(rest) == 2:
            await self._one(exchange, root, _id(rest[1]))
        else:
            _nothing_here(self._admission.gate, request)

    async def _one(self, exchange: Exchange, root: str, name: str) -> None:
        method = exchange.request.method
        if method == "PUT":
            await self._put(exchange, root, name)
        elif method in ("GET", "HEAD"):
            caller = self._identify(exchange.request)
            found = self._found(root, name)
            self._check(caller, found.root, found.config, READ)
            await self._send(exchange, 200, self._described(found))
        elif method == "DELETE":
            caller = self._writer(exchange.request)
            known = self._subscribing.held.find(root, name)
            if known is not None:
                self._check(caller, root, known.config, READ, WRITE)
                await self._subscribing.end(root, name)
            await exchange.respond(204, [NOT_CACHED])
        else:
            raise not_allowed(METHODS)

    async def _jwks(self, exchange: Exchange) -> None:
        if exchange.request.method not in ("GET", "HEAD"):
            raise not_allowed(READING)
        keys = [key.public for key in self._webhooks.keys.signing]
        await exchange.respond(200, _JWKS, json_body({"keys": keys}))

    # --- who ---

    def _identify(self, request: Request) -> Caller | None:
        gate = self._admission.gate
        return None if gate is None else gate.identify(request)

    def _writer(self, request: Request) -> Caller | None:
        """Return who asks for a change, if changes are served now."""
        caller = self._identify(request)
        self._refuse_read_only()
        return caller

    def _refuse_read_only(self) -> None:
        if self._subscribing.read_only:
            raise not_allowed(READING)

    def _check(
        self, caller: Caller | None, root: str, config: SubscriptionConfig, *scopes: str
    ) -> None:
        """Raise unless the caller has these scopes wherever a subscription reaches."""
        gate = self._admission.gate
        if gate is None or caller is None:
            return
        for key in _reach(root, config):
            for scope in scopes:
                gate.check(caller, scope, key)

    def _found(self, root: str, name: str) -> Subscription:
        found = self._subscribing.held.find(root, name)
        if found is None:
            raise _problem(NOT_FOUND)
        return found

    # --- making and looking ---

    async def _put(self, exchange: Exchange, root: str, name: str) -> None:
        request = exchange.request
        caller = self._writer(request)
        config = bodies.config_of(await _body(exchange))
        self._check(caller, root, config, READ, WRITE)
        if root and root not in self._streams.engine.namespace.buckets:
            raise ProblemError(problems.BUCKET_NOT_FOUND, "There is no such bucket.")
        known = self._subscribing.held.find(root, name)
        if known is None:
            self._refuse_without_room()
            await self._judge(config)
            await self._webhooks.need_keys()
        base = self._subscribing.limits.public_url.rstrip("/")
        base = base or f"{request.scheme}://{request.public or request.authority}"
        made = _unless_refused(await self._subscribing.put(root, name, config, base))
        found, new = made
        await self._send(exchange, 201 if new else 200, self._described(found))

    async def _judge(self, config: SubscriptionConfig) -> None:
        if config.type != WEBHOOK:
            return
        try:
            await self._webhooks.judged(config.url)
        except HookRefusedError as exc:
            detail = f"A webhook may not go to {quoted(config.url)}: {exc}."
            raise ProblemError(problems.WEBHOOK_URL_REJECTED, detail) from exc
        if not self._subscribing.limits.public_url and not self._webhooks.local:
            bodies.refuse(
                "Webhooks need subscriptions.public_url in the server's settings: a request's Host "
                "does not decide where tokens are sent back to."
            )

    def _refuse_without_room(self) -> None:
        space = self._admission.guard.space
        if space is not None and space.low:
            raise _later(problems.INSUFFICIENT_STORAGE, "The disk is nearly full.")

    def _described(self, found: Subscription) -> Object:
        keys = self._webhooks.keys
        return bodies.described(found, keys.signer().kid if keys.there else "")

    async def _list(self, exchange: Exchange, root: str) -> None:
        """Tell an operator which subscriptions there are, and how far behind they are."""
        if exchange.request.method not in ("GET", "HEAD"):
            raise not_allowed(READING)
        gate = self._admission.gate
        if gate is not None:
            gate.check_admin(gate.identify(exchange.request))
        asked = query_of(exchange.request.query)
        after = asked.get("after", [""])[0]
        limit = limit_of(asked.get("limit", [str(LIMIT_MAX)])[0])
        held = self._subscribing.held
        names = sorted(name for base, name in held.by_id if base == root and name > after)
        rows = [_listed(held.by_id[root, name]) for name in islice(names, limit)]
        more = len(names) > len(rows)
        body = {"subscriptions": rows, "next_cursor": rows[-1]["id"] if more else None}
        await self._send(exchange, 200, body)

    # --- links ---

    async def _links(self, exchange: Exchange, root: str, name: str, below: list[str]) -> None:
        method = exchange.request.method
        wanted = "DELETE" if below else "POST"
        if method != wanted:
            raise not_allowed(_UNLINKING if below else _POSTING)
        caller = self._writer(exchange.request)
        if below:
            paths: tuple[str, ...] = (bodies.path_of(_decoded("/".join(below)), "The stream"),)
        else:
            paths = bodies.paths_of((await _body(exchange)).get("streams"))
            self._refuse_without_room()
        found = self._found(root, name)
        self._check(caller, root, found.config, READ, WRITE)
        gate = self._admission.gate
        for path in paths if gate is not None and caller is not None else ():
            gate.check(caller, READ, f"{root}/{path}")  # type: ignore[union-attr,arg-type]
        refused = await self._subscribing.link(root, name, paths, there=not below)
        if refused is not None:
            raise _problem(refused)
        await exchange.respond(204, [NOT_CACHED])

    # --- holding ---

    async def _act(self, exchange: Exchange, root: str, name: str, action: str) -> None:
        if exchange.request.method != "POST":
            raise not_allowed(_POSTING)
        if action == "claim":
            await self._claim(exchange, root, name)
            return
        self._refuse_read_only()
        found, token = self._token(exchange.request, root, name)
        body = await _body(exchange)
        if found.webhook is not (action == "callback"):
            bodies.refuse(f"{action} is not for a {found.config.type} subscription.")
        said = bodies.holding_of(body, acks=action != "release")
        fenced = Fenced(token, said.generation, said.wake_id)
        refused = found.fence(*fenced, self._subscribing.now_ms())
        if refused is not None:
            self._subscribing.counts.acks["fenced"] += 1
            raise _problem(refused)
        await self._check_boundaries(found, said.acks)
        done = said.done or action == "release"
        result = await self._subscribing.settle(found, fenced, said.acks, done=done)
        next_wake = _unless_refused(result)
        if action == "release":
            await exchange.respond(204, [NOT_CACHED])
        else:
            await self._send(exchange, 200, {"ok": True, "next_wake": next_wake})

    async def _claim(self, exchange: Exchange, root: str, name: str) -> None:
        caller = self._writer(exchange.request)
        worker = (await _body(exchange)).get("worker")
        most = bodies.WORKER_CHARACTERS_MAX
        if not isinstance(worker, str) or not 1 <= len(worker) <= most:
            bodies.refuse(f"worker is a string of 1 to {most} characters.")
        self._check(caller, root, self._found(root, name).config, READ)
        await self._webhooks.need_keys()
        found = _unless_refused(await self._subscribing.claim(root, name, worker))
        body = {
            "wake_id": found.head.wake_id,
            "generation": found.head.generation,
            "token": self._webhooks.token(found),
            "streams": bodies.shown_streams(found),
            "lease_ttl_ms": found.config.lease_ttl_ms,
        }
        await self._send(exchange, 200, body)

    def _token(self, request: Request, root: str, name: str) -> tuple[Subscription, int]:
        """Return the subscription that a bearer may act on, and the generation of its token."""
        given = request.headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            detail = "This needs the token that came with the wake, as Authorization: Bearer."
            raise ProblemError(problems.TOKEN_INVALID, detail)
        found = self._found(root, name)
        subject = (root, name, found.incarnation)
        held = self._webhooks.keys.held(token.strip(), subject)
        if held is None:
            detail = "The token is not ours, or was made for another subscription."
            raise ProblemError(problems.TOKEN_INVALID, detail)
        if self._subscribing.now_ms() >= held.expires_ms:
            raise ProblemError(problems.TOKEN_EXPIRED, "The token has expired.")
        return found, held.generation

    async def _check_boundaries(self, found: Subscription, acks: list[Ack]) -> None:
        """Raise unless every offset is between two messages."""
        for path, position in acks:
            link = found.links.get(path)
            if link is None or link.stream is None or not link.cursor < position < link.tail:
                continue  # an end of a stream is a boundary; what else does not fit is told later
            if not await self._is_boundary(link.stream, position):
                detail = f"The offset of {quoted(path)} lies inside a message."
                raise _problem(Refused("INVALID_OFFSET", detail))

    async def _is_boundary(self, stream: Stream, position: int) -> bool:
        with self._streams.engine.reading(stream) as view:
            return await self._reader.look(view, lambda: view.is_boundary(position))

    async def _send(self, exchange: Exchange, status: int, body: Object) -> None:
        await exchange.respond(status, [_JSON, NOT_CACHED], json_body(body))


# --- parts ---


def _id(segment: str) -> str:
    name = _decoded(segment)
    if not 1 <= len(name.encode()) <= ID_BYTES_MAX or not name.isprintable():
        bodies.refuse(f"A subscription's id has 1 to {ID_BYTES_MAX} bytes, all printable.")
    return name


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        bodies.refuse("The path is not UTF-8.")


def _nothing_here(gate: Gate | None, request: Request) -> NoReturn:
    if gate is not None:
        gate.identify(request)
    raise ProblemError(problems.NOT_FOUND, "Names under __ds are the server's own; none is this.")


def _reach(root: str, config: SubscriptionConfig) -> Iterator[str]:
    """Yield the keys whose rights are rights on everything a subscription can reach."""
    if config.pattern:
        prefix = "/".join(Pattern(config.pattern).prefix)
        yield f"{root}/{prefix}" if prefix else root
    for path in (*config.streams, *([config.wake_stream] if config.wake_stream else ())):
        yield f"{root}/{path}"


def _listed(found: Subscription) -> Object:
    lag = sum(link.tail - link.cursor for link in found.pending.values())
    return {
        "id": found.id,
        "type": found.config.type,
        **bodies.standing(found),
        "streams": len(found.links),
        "pending_streams": len(found.pending),
        "pending_bytes": lag,
    }


async def _body(exchange: Exchange) -> Object:
    """Return the JSON object of a request."""
    kind = exchange.request.headers.get(b"content-type", b"application/json").decode("latin-1")
    if not is_json(kind):
        detail = f"A request about a subscription is application/json, not {quoted(kind)}."
        raise ProblemError(problems.UNSUPPORTED_MEDIA_TYPE, detail)
    raw = await exchange.body(BODY_BYTES_MAX) if exchange.request.has_body else b""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        bodies.refuse(f"The body is not JSON: {exc}.")
    if not isinstance(found, dict):
        bodies.refuse("The body is not a JSON object.")
    return found


def _unless_refused(result: T | Refused) -> T:
    if isinstance(result, Refused):
        raise _problem(result)
    return result


def _problem(refused: Refused) -> ProblemError:
    if refused.code == "UNAVAILABLE":
        return _later(problems.UNAVAILABLE, refused.detail)
    row = _PROBLEMS.get(refused.code) or problems.by_name(refused.code)
    if not refused.holder:
        return ProblemError(row, refused.detail)
    return ProblemError(
        row, refused.detail, current_holder=refused.holder, generation=refused.generation
    )


def _later(row: problems.Problem, detail: str) -> ProblemError:
    return ProblemError(row, detail, ((b"Retry-After", b"%d" % RETRY_S),), retryAfter=RETRY_S)


def _with_error(body: bytes) -> bytes:
    """Add to a problem what consumers of this part of the protocol look at."""
    said = json.loads(body)
    word = said.get("reason") or said["code"]
    if said["status"] in (503, 507):
        word = problems.UNAVAILABLE.code
    elif word == problems.INVALID_ACK.code:
        word = problems.INVALID_OFFSET.code
    error = {"code": word, "message": said["detail"]}
    for member in ("current_holder", "generation"):
        if member in said:
            error[member] = said[member]
    return json_body({**said, "error": error})
