"""Who may do what: the gate that every exchange passes when access is restricted or limited.

A request is first *identified*: its token, sent as ``Authorization: Bearer``, becomes a grant, and
its caller's bucket pays for it. Then it is *permitted* for the key that routes it. Where nothing is
configured there is no gate at all, and an exchange costs one look at an attribute.

A live reader holds a *lease*: a cancel scope that ends with its token. A reload makes a new gate
from the files as they are now and asks it about every lease again; those it refuses end, too.

Tokens are compared by their SHA-256, so the time of a comparison says nothing about a token. They
are kept only by leases, for the next reload, and appear in no message.
"""

import hashlib
import hmac
import math
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

import trio

from durastreamd.http.exchange import Request
from durastreamd.protocol import problems
from durastreamd.protocol.requests import ProblemError, query_of
from durastreamd.service.access.grants import (
    ADMIN,
    EXPIRED,
    FORBIDDEN,
    INVALID,
    MISSING,
    NO_SUBJECT,
    READ,
    SCOPES,
    WRITE,
    Grant,
    KeySpan,
    TokenError,
    rate_of,
    spans,
)
from durastreamd.service.access.options import AccessOptions, read_jwt, read_tokens
from durastreamd.service.access.rate import Limiter, caller_of, whole_seconds
from durastreamd.service.access.tokens import FINDING_BYTES

VERIFIED_MAX = 4096  # JWTs whose signature need not be checked again
END_S = 2.0  # for a live response to end in order: what is being sent is sent whole
_TOKEN_BYTES_MAX = 8192
_READING = ("GET", "HEAD")


class Caller(NamedTuple):
    """Who asks: the grant, the token it came with, and whose bucket pays."""

    grant: Grant
    token: bytes = b""

    @property
    def anonymous(self) -> bool:
        """Tell whether no token was sent."""
        return not self.token


class Permit:
    """A request's right to go on: asked again for other keys, and held while it is live."""

    __slots__ = ("_gate", "_identity", "_key", "_scope")

    def __init__(self, gate: "Gate", identity: Caller, scope: str, key: str) -> None:
        self._gate = gate
        self._identity = identity
        self._scope = scope
        self._key = key

    def check_read(self, key: str) -> None:
        """Raise unless the same caller may read another key as well."""
        self._gate.check(self._identity, READ, key)

    def covers(self, key: str) -> bool:
        """Tell whether the same caller's places hold another key."""
        return self._identity.grant.covers(key)

    def listed(self, low: str) -> list[KeySpan]:
        """Return what the caller may see of all keys that begin so; raise if that is nothing."""
        return self._gate.listed(self._identity, low)

    def lease(self, wake: Callable[[], None] | None = None) -> "Lease":
        """Return the right to go on until the token ends; see ``Lease`` for ``wake``."""
        return Lease(self._gate, self._identity, self._scope, self._key, wake)


class Lease:
    """A cancel scope that ends when the token does; a context manager, used once.

    Who can end in order gives ``wake``: it is called when ``end_s`` has moved, and only what is
    still under way ``END_S`` after the end is cancelled.
    """

    def __init__(
        self,
        gate: "Gate",
        identity: Caller,
        scope: str,
        key: str,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._gate = gate
        self._identity = identity
        self._scope = scope
        self._key = key
        self._wake = wake
        self._cancel = trio.CancelScope()
        self.end_s = math.inf  # by trio's clock
        self.ended = False  # what it was held for was cut short

    @property
    def over(self) -> bool:
        """Tell whether the token has ended."""
        return trio.current_time() >= self.end_s

    def refusal(self) -> ProblemError:
        """Return the problem of a token that ended."""
        return self._gate.invalid(EXPIRED, "The token has expired or was revoked.")

    def __enter__(self) -> None:
        self._cancel.__enter__()
        self._end_at(self._gate.deadline(self._identity.grant))
        self._gate.leases.add(self)
        while self._gate.retired and not self.over:
            # The request was permitted before a reload and comes to its live part after it.
            self.move(self._gate.successor)
            if self._gate.successor is None:
                break

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._gate.leases.discard(self)
        swallowed = self._cancel.__exit__(kind, exc, trace)
        self.ended = self._cancel.cancelled_caught or (self._wake is not None and self.over)
        if self.ended:
            self._gate.counts.leases_ended += 1
        return bool(swallowed)

    def move(self, gate: "Gate | None") -> None:
        """Go on under another gate, or under none; end if it does not permit this."""
        self._gate.leases.discard(self)
        if gate is None:
            self._end_at(math.inf)
            return
        identity = gate.still_known(self._identity.token, self._scope, self._key)
        if identity is None:
            self._end_at(trio.current_time())
            return
        self._gate, self._identity = gate, identity
        self._end_at(gate.deadline(identity.grant))
        gate.leases.add(self)

    def _end_at(self, end_s: float) -> None:
        self.end_s = end_s
        if self._wake is None:
            self._cancel.deadline = end_s
            return
        self._cancel.deadline = end_s + END_S
        self._wake()


class GateCounts:
    """What was refused; lives as long as the server."""

    def __init__(self) -> None:
        self.failures = dict.fromkeys((MISSING, INVALID, EXPIRED, FORBIDDEN), 0)
        self.rate_limited = 0
        self.leases_ended = 0


class Gate:
    """Identifies and permits requests by one state of the configuration and its files."""

    def __init__(
        self,
        options: AccessOptions,
        clock: Callable[[], int],
        counts: GateCounts | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        """Read every file the options name; raises ConfigError, and then nothing has changed."""
        self._clock = clock
        self.options = options
        self.counts = counts or GateCounts()
        self.limiter = limiter or Limiter()
        self.leases: set[Lease] = set()
        self.retired = False
        self.successor: Gate | None = None
        self._verified: dict[bytes, Grant] = {}
        self._rate = rate_of(options.rate) if options.rate else None
        scopes = options.anonymous if options.restricted else SCOPES
        self._anonymous = Caller(Grant("anonymous", frozenset(scopes)))
        self._table = read_tokens(options)
        self._jwt = read_jwt(options)

    def retire(self, successor: "Gate | None") -> None:
        """Hand over to the gate of a later configuration: it decides who may stay."""
        self.retired, self.successor = True, successor
        for lease in list(self.leases):
            lease.move(successor)

    # --- identifying ---

    def identify(self, request: Request) -> Caller:
        """Return who asks, or raise the problem; the caller's bucket pays."""
        if not self.options.restricted:
            self._pay(self._anonymous.grant, request.peer)
            return self._anonymous
        given = request.headers.get(b"authorization")
        if given is None:
            self._refuse_query(request.query)
            self._pay(self._anonymous.grant, request.peer)
            if not self._anonymous.grant.scopes:
                raise self._missing()
            return self._anonymous
        scheme, _, token = given.partition(b" ")
        token = token.strip(b" ")
        if scheme.lower() != b"bearer" or not token:
            self._pay(self._anonymous.grant, request.peer)
            raise self.invalid(INVALID, "The Authorization header is not Bearer and a token.")
        identity = self._familiar(token)
        if identity is None:
            # A guess, or the first use of a JWT: its address pays for the work.
            self._pay(self._anonymous.grant, request.peer)
            return self.known(token)
        self._pay(identity.grant, "")
        return identity

    def known(self, token: bytes) -> Caller:
        """Return who a token belongs to, or raise the problem; nobody pays."""
        if not token:
            return self._anonymous
        found = self._familiar(token)
        if found is not None:
            return found
        if self._jwt is None or token.count(b".") != 2:
            raise self.invalid(INVALID, "The token is not known here.")
        try:
            grant = self._jwt.grant(token.decode("latin-1"), self._clock() / 1000)
        except TokenError as exc:
            raise self.invalid(exc.reason, str(exc)) from exc
        digest = hashlib.sha256(token).digest()
        if grant.name == NO_SUBJECT:
            grant = grant._replace(name=NO_SUBJECT + digest.hex()[:8])  # a bucket of its own
        if len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = grant
        return Caller(grant, token)

    def _familiar(self, token: bytes) -> Caller | None:
        """Return who a token belongs to if it is in the file or was verified before."""
        if len(token) > _TOKEN_BYTES_MAX:
            raise self.invalid(INVALID, f"A token has at most {_TOKEN_BYTES_MAX} bytes.")
        digest = hashlib.sha256(token).digest()
        grant = self._found(digest)
        if grant is None:
            return None
        if self._clock() / 1000 >= grant.expires_s:
            self._verified.pop(digest, None)
            raise self.invalid(EXPIRED, "The token has expired.")
        return Caller(grant, token)

    def _found(self, digest: bytes) -> Grant | None:
        line = self._table.get(digest[:FINDING_BYTES])
        if line is not None and hmac.compare_digest(line[0], digest):
            return line[1]
        return self._verified.get(digest)

    def _refuse_query(self, query: str) -> None:
        if "access_token" in query and "access_token" in query_of(query):
            detail = "A token in a URL ends up in logs; send it in the Authorization header."
            fields = ((b"WWW-Authenticate", _challenge("invalid_request")),)
            raise ProblemError(problems.BAD_REQUEST, detail, fields)

    def _pay(self, grant: Grant, peer: str) -> None:
        """Take a request from the token's bucket, or from the address's where there is no token."""
        rate = grant.rate or self._rate
        if rate is None:
            return
        caller = caller_of(peer) if peer else f"token {grant.name}"
        if not caller:
            return  # a unix socket: whoever is behind it, it is not one caller
        wait_s = self.limiter.take(caller, rate, trio.current_time())
        if wait_s > 0:
            self.counts.rate_limited += 1
            seconds = whole_seconds(wait_s)
            detail = f"This caller may ask {rate.per_s:g} times a second; wait a little."
            fields = ((b"Retry-After", b"%d" % seconds),)
            raise ProblemError(problems.RATE_LIMITED, detail, fields, retryAfter=seconds)

    # --- permitting ---

    def permit(self, identity: Caller, method: str, key: str) -> Permit:
        """Return the right to use a method on a key, or raise the problem."""
        scope = READ if method in _READING else WRITE
        self.check(identity, scope, key)
        return Permit(self, identity, scope, key)

    def still_known(self, token: bytes, scope: str, key: str) -> Caller | None:
        """Return whom an earlier gate let in with this token, or None if this one would not.

        Nobody asked, so nobody was refused: the failures stay those of requests.
        """
        before = dict(self.counts.failures)
        try:
            identity = self.known(token)
            self.check(identity, scope, key)
        except ProblemError:
            self.counts.failures.update(before)
            return None
        return identity

    def check(self, identity: Caller, scope: str, key: str) -> None:
        """Raise unless the caller has the scope for the key."""
        grant = identity.grant
        if scope in grant.scopes and grant.covers(key):
            return
        raise self._lacking(identity, scope)

    def permit_listing(self, identity: Caller, key: str) -> Permit:
        """Return the right to list a place: whoever may read any of it sees that part."""
        self.listed(identity, key)
        return Permit(self, identity, READ, key)

    def listed(self, identity: Caller, low: str) -> list[KeySpan]:
        """Return what a caller may read of all keys that begin so, or raise if that is nothing."""
        grant = identity.grant
        found = spans(grant.prefixes, low) if READ in grant.scopes else []
        if not found:
            raise self._lacking(identity, READ)
        return found

    def check_admin(self, identity: Caller) -> None:
        """Raise unless the caller may see how the server itself is doing."""
        if ADMIN not in identity.grant.scopes:
            raise self._lacking(identity, ADMIN)

    def deadline(self, grant: Grant) -> float:
        """Return when a grant ends, by trio's clock."""
        return trio.current_time() + grant.expires_s - self._clock() / 1000

    # --- refusing ---

    def _missing(self) -> ProblemError:
        self.counts.failures[MISSING] += 1
        detail = "This needs a token; send it as Authorization: Bearer."
        return ProblemError(
            problems.UNAUTHENTICATED, detail, ((b"WWW-Authenticate", _challenge()),)
        )

    def invalid(self, reason: str, detail: str) -> ProblemError:
        """Return the problem of a token that is not accepted."""
        self.counts.failures[reason] += 1
        fields = ((b"WWW-Authenticate", _challenge("invalid_token")),)
        return ProblemError(problems.UNAUTHENTICATED, detail, fields)

    def _lacking(self, identity: Caller, scope: str) -> ProblemError:
        if identity.anonymous:
            return self._missing()
        self.counts.failures[FORBIDDEN] += 1
        fields = ((b"WWW-Authenticate", _challenge("insufficient_scope", scope)),)
        if scope not in identity.grant.scopes:
            detail = f"The token does not have the scope {scope}."
        else:
            detail = "The token is for other places; this one is under none of its prefixes."
        return ProblemError(problems.PERMISSION_DENIED, detail, fields)


def _challenge(error: str = "", scope: str = "") -> bytes:
    """Return the value of WWW-Authenticate (RFC 6750, section 3)."""
    text = 'Bearer realm="durastreamd"'
    if error:
        text += f', error="{error}"'
    if scope:
        text += f', scope="{scope}"'
    return text.encode()
