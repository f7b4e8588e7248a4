"""What a token allows: scopes, places, an end, a pace. Pure.

A place is judged by the key that routes the request (``protocol.names``), never by the path it was
spelled as, so no spelling of a path is allowed more than another. A prefix is made from a path by
the same routine, and covers the place it names and everything below, by whole segments.
"""

import math
from typing import NamedTuple, Protocol

from durastreamd.protocol.names import PREFIX, place_of
from durastreamd.protocol.requests import ProblemError

READ, WRITE, ADMIN = "read", "write", "admin"
SCOPES = (READ, WRITE, ADMIN)
MISSING, INVALID, EXPIRED, FORBIDDEN = "missing", "invalid", "expired", "forbidden"
NO_SUBJECT = "jwt:"  # what the names of those begin with that a JWT was made for

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_RATE_MAX = 1_000_000


class TokenError(Exception):
    """A token that is not accepted; ``reason`` is a word for the metrics."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Rate(NamedTuple):
    """So many requests at once, and so many a second afterwards."""

    burst: float
    per_s: float


class Grant(NamedTuple):
    """What the bearer of one token may do. ``prefixes`` None is everywhere, () nowhere."""

    name: str
    scopes: frozenset[str]
    prefixes: tuple[str, ...] | None = None
    expires_s: float = math.inf  # seconds since 1970
    rate: Rate | None = None

    def covers(self, key: str) -> bool:
        """Tell whether a key is one of the prefixes or lies below one."""
        if self.prefixes is None:
            return True
        for prefix in self.prefixes:
            if key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] in ("", "/"):
                return True
        return False


class KeySpan(NamedTuple):
    """Keys that lie together in the table of streams: those that begin so, or this one alone."""

    start: str
    alone: bool = False

    def holds(self, key: str) -> bool:
        """Tell whether a key is one of them."""
        return key == self.start if self.alone else key.startswith(self.start)


def spans(prefixes: tuple[str, ...] | None, low: str) -> list[KeySpan]:
    """Return, in order and apart, what begins with ``low`` and is covered by a grant's prefixes."""
    whole = KeySpan(low)
    if prefixes is None:
        return [whole]
    found: set[KeySpan] = set()
    for prefix in prefixes:
        below = KeySpan(f"{prefix}/")
        if below.holds(low):
            return [whole]
        if whole.holds(below.start):
            found.add(below)
        if prefix and whole.holds(prefix):
            found.add(KeySpan(prefix, alone=True))
    return sorted(
        span
        for span in found
        if not any(other.holds(span.start) and not other.alone for other in found - {span})
    )


class Verifier(Protocol):
    """What knows the tokens that are made elsewhere; ``service.access.jwt_tokens`` has it."""

    def grant(self, token: str, now_s: float) -> Grant:
        """Return what a token allows; raises TokenError."""


def prefix_of(path: str) -> str | None:
    """Return the key that a prefix given as a path stands for, None for all; raises ValueError."""
    if path == "/":
        return None
    if path in (PREFIX, PREFIX.removesuffix("/")):
        return ""  # every key of this surface begins with a slash, none of the other does
    if not path.startswith("/"):
        message = f"the prefix {path!r} does not begin with a slash"
        raise ValueError(message)
    try:
        place = place_of(path.removesuffix("/"))
    except ProblemError as exc:
        message = f"the prefix {path!r} can name nothing: {exc.detail}"
        raise ValueError(message) from exc
    if place.part:
        message = f"the prefix {path!r} names a part of a stream or bucket, not the thing itself"
        raise ValueError(message)
    return place.key.removesuffix("/")


def prefixes_of(paths: list[str]) -> tuple[str, ...] | None:
    """Return the keys of several prefixes, None if one of them is everything."""
    found = [prefix_of(path) for path in paths]
    return None if None in found else tuple(key for key in found if key is not None)


def scopes_of(words: list[str]) -> frozenset[str]:
    """Return scopes by their names; raises ValueError for another word, or for none."""
    for word in words:
        if word not in SCOPES:
            message = f"{word!r} is no scope; there are {', '.join(SCOPES)}"
            raise ValueError(message)
    return frozenset(words)


def rate_of(text: str) -> Rate:
    """Return the rate of words like 100/s or 600/m; raises ValueError."""
    count, _, unit = text.partition("/")
    if not (count.isascii() and count.isdigit() and len(count) < 9 and unit in _SECONDS):
        message = f"{text!r} is no rate; write 100/s, 600/m or 1000/h"
        raise ValueError(message)
    if not 1 <= int(count) <= _RATE_MAX:
        message = f"a rate is a number from 1 to {_RATE_MAX}, not {count}"
        raise ValueError(message)
    return Rate(int(count), int(count) / _SECONDS[unit])
