"""From a request's head to what it asks for. Pure; every refusal says what was wrong.

Header values are bytes as they came; names are lower-case. Nothing here looks at a stream.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_plus, unquote_to_bytes

from durastreamd.protocol import offsets, problems
from durastreamd.protocol.problems import Member, Problem, quoted

NAME_BYTES_MAX = 1024
PRODUCER_ID_MAX = 256
RESERVED_PRODUCERS = b"__ds/"  # of subscriptions, which announce their wakes
SEQ_MAX = 256
CONTENT_TYPE_MAX = 256
NUMBER_MAX = 2**53 - 1
TTL_MAX_S = 10**11  # some three thousand years: a bound, so that no date overflows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NUMBER = re.compile(rb"[0-9]+")
_PLAIN_NUMBER = re.compile(rb"0|[1-9][0-9]*")
_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:(?P<second>\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})",
    re.ASCII,
)
_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?", re.ASCII)
_LIKE = "2030-01-31T12:00:00Z"
_CONTENT_TYPE = re.compile(
    rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+([\t ]*;[\t -~]*)?"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

Headers = Mapping[bytes, bytes]


class ProblemError(Exception):
    """The request is answered with a problem, perhaps with headers and members of its own."""

    def __init__(
        self,
        problem: Problem,
        detail: str,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        **members: Member | None,
    ) -> None:
        super().__init__(f"{problem.name}: {detail}")
        self.problem = problem
        self.detail = detail
        self.headers = headers
        self.members = members


def check_escapes(text: str) -> None:
    """Raise if a percent sign in a path or query is not followed by two hexadecimal digits."""
    broken = _BROKEN_ESCAPE.search(text)
    if broken is not None:
        shown = quoted(text[broken.start() : broken.start() + 3])
        detail = f"{shown} is not a percent-escape; a percent sign itself is written %25."
        raise ProblemError(problems.BAD_REQUEST, detail)


def stream_name(path: str) -> str:
    """Return the name that a percent-encoded path stands for: one spelling per stream."""
    raw = unquote_to_bytes(path)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError(problems.BAD_REQUEST, "The stream's name is not UTF-8.") from None
    if not name or len(raw) > NAME_BYTES_MAX:
        detail = f"A stream's name has 1 to {NAME_BYTES_MAX} bytes, this one {len(raw)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    segments = name.split("/")
    if path.count("/") + 1 != len(segments):
        raise ProblemError(problems.BAD_REQUEST, "A slash in a stream's name cannot be encoded.")
    if any(segment in ("", ".", "..") for segment in segments) or "\\" in name:
        detail = f"The stream's name {quoted(name)} has an empty or a dot segment, or a backslash."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if _CONTROL.search(name):
        raise ProblemError(problems.BAD_REQUEST, "The stream's name has control characters.")
    return name


def query_of(query: str) -> dict[str, list[str]]:
    """Return the parameters of a query, each with all its values."""
    if "%" in query:
        check_escapes(query)
    found: dict[str, list[str]] = {}
    try:
        for pair in query.split("&") if query else ():
            name, _, value = pair.partition("=")
            value = unquote_plus(value, errors="strict")
            found.setdefault(unquote_plus(name, errors="strict"), []).append(value)
    except UnicodeDecodeError:
        raise ProblemError(problems.BAD_REQUEST, "The query is not UTF-8.") from None
    return found


def single(found: Mapping[str, list[str]], name: str) -> str | None:
    """Return the value of a parameter, None where it is not given; twice is a contradiction."""
    given = found.get(name)
    if given is None:
        return None
    if len(given) > 1:
        detail = f"The query names {name} more than once; name it once."
        problem = problems.INVALID_OFFSET if name in ("offset", "end") else problems.BAD_REQUEST
        raise ProblemError(problem, detail)
    return given[0]


# --- writing ---


class Producer(NamedTuple):
    """The three producer headers."""

    name: str
    epoch: int
    seq: int


class ConditionHead(NamedTuple):
    """On what an append depends beside the producer and Stream-Seq, as asked for."""

    incarnation: str | None
    expected: int | None  # a position
    strict: bool = False  # a repeat with other bytes is to be refused


class AppendHead(NamedTuple):
    """What the head of an append says."""

    content_type: str | None
    closes: bool
    producer: Producer | None
    seq: str | None
    conditions: ConditionHead | None = None


class Fields(dict[bytes, bytes]):
    """The fields of a head, by their names in lower case.

    Requests that came with the same ones may share them, so they are read only. ``append`` is what
    they say of an append, once somebody has read that.
    """

    append: AppendHead | None = None


class ForkHead(NamedTuple):
    """A fork as asked for: the source's path, the offset as given, the sub-offset."""

    source: str
    offset: str | None
    sub: int


class CreateHead(NamedTuple):
    """What the head of a create says."""

    content_type: str | None
    ttl_ms: int | None
    expires_ms: int | None
    closes: bool
    fork: ForkHead | None


def closes(headers: Headers) -> bool:
    """Tell whether the stream is to be closed; any value but ``true`` is no request for it."""
    value = headers.get(b"stream-closed")
    return value is not None and value.lower() == b"true"


def content_type_of(headers: Headers) -> str | None:
    """Return the content type, which will be echoed as it is and so must be a sane one."""
    value = headers.get(b"content-type")
    return None if value is None else _content_type(value)


@lru_cache(maxsize=256)
def _content_type(value: bytes) -> str | None:
    value = value.strip()
    if not value:
        return None
    if len(value) > CONTENT_TYPE_MAX or not _CONTENT_TYPE.fullmatch(value):
        detail = f"The Content-Type {quoted(value.decode('latin-1'))} is not a media type."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return value.decode("ascii")


def append_head(headers: Headers) -> AppendHead:
    """Read the head of an append."""
    seq = headers.get(b"stream-seq")
    if seq is not None and not 0 < len(seq) <= SEQ_MAX:
        detail = f"Stream-Seq has 1 to {SEQ_MAX} bytes, this one {len(seq)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return AppendHead(
        content_type_of(headers),
        closes(headers),
        producer_of(headers),
        None if seq is None else seq.decode("latin-1"),
    )


# What few appends have; whoever has none of them does not pay for looking for each.
SELDOM = frozenset(
    (b"content-encoding", b"stream-incarnation", b"stream-expected-offset", b"producer-strict")
)


def conditions_of(headers: Headers) -> ConditionHead:
    """Read what an append depends on."""
    given = headers.get(b"stream-expected-offset")
    expected: int | None = None
    if given is not None:
        token = given.decode("latin-1")
        expected = 0 if token == offsets.START else offsets.parse(token)
        if expected is None:
            detail = f"Stream-Expected-Offset {quoted(token)} is not an offset of this server."
            raise ProblemError(problems.INVALID_OFFSET, detail)
    return ConditionHead(incarnation_of(headers), expected, _strict(headers))


def _strict(headers: Headers) -> bool:
    value = headers.get(b"producer-strict", b"false").lower()
    if value not in (b"true", b"false"):
        detail = f"Producer-Strict is true or false, not {quoted(value.decode('latin-1'))}."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    if value == b"true" and b"producer-id" not in headers:
        detail = "Producer-Strict is about the repeats of a producer; send the producer headers."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    return value == b"true"


def incarnation_of(headers: Headers) -> str | None:
    """Return the life of the name that a request is for, None where any will do."""
    value = headers.get(b"stream-incarnation")
    return None if value is None else value.decode("latin-1")


def producer_of(headers: Headers) -> Producer | None:
    """Read the producer headers: all three or none."""
    name = headers.get(b"producer-id")
    epoch = headers.get(b"producer-epoch")
    seq = headers.get(b"producer-seq")
    if name is epoch is seq is None:
        return None
    if name is None or epoch is None or seq is None:
        detail = "Producer-Id, Producer-Epoch and Producer-Seq come together or not at all."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    if not 0 < len(name) <= PRODUCER_ID_MAX:
        detail = f"Producer-Id has 1 to {PRODUCER_ID_MAX} bytes, this one {len(name)}."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    if name.startswith(RESERVED_PRODUCERS):
        detail = "A Producer-Id that begins with __ds/ is the server's own; choose another."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    return Producer(
        name.decode("latin-1"), _producer_number(epoch, "Epoch"), _producer_number(seq, "Seq")
    )


def _producer_number(value: bytes, which: str) -> int:
    if not _NUMBER.fullmatch(value) or len(value) > 16 or int(value) > NUMBER_MAX:
        shown = quoted(value.decode("latin-1"))
        detail = f"Producer-{which} is a whole number from 0 to {NUMBER_MAX}, not {shown}."
        raise ProblemError(problems.INVALID_PRODUCER, detail)
    return int(value)


def create_head(headers: Headers) -> CreateHead:
    """Read the head of a create."""
    ttl, expires = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
    if ttl is not None and expires is not None:
        detail = "Stream-TTL and Stream-Expires-At exclude each other; send one of them."
        raise ProblemError(problems.INVALID_TTL, detail)
    if any(name in headers for name in RETENTION_HEADERS):
        detail = "How far back a stream is kept is said by PATCH, once the stream is there."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return CreateHead(
        content_type_of(headers),
        None if ttl is None else _ttl_ms(ttl),
        None if expires is None else _expires_ms(expires.decode("latin-1")),
        closes(headers),
        _fork_head(headers),
    )


def _ttl_ms(value: bytes) -> int:
    shown = quoted(value.decode("latin-1"))
    if not _PLAIN_NUMBER.fullmatch(value):
        detail = (
            f"Stream-TTL is a whole number of seconds without sign or leading zero, not {shown}."
        )
        raise ProblemError(problems.INVALID_TTL, detail)
    if len(value) > 12 or int(value) > TTL_MAX_S:
        detail = f"Stream-TTL is at most {TTL_MAX_S} seconds, not {shown}; leave it out for ever."
        raise ProblemError(problems.INVALID_TTL, detail)
    return int(value) * 1000


def _expires_ms(value: str) -> int:
    found = _TIMESTAMP.fullmatch(value)
    try:
        if found is None:
            raise ValueError(value)
        # A leap second is the one before it and one more; Python's calendar has none.
        leap = found["second"] == "60"
        text = value[:17] + "59" + value[19:] if leap else value
        moment = datetime.fromisoformat(text.upper()).astimezone(UTC)
        moment += timedelta(seconds=1) if leap else timedelta()
        return max((moment - EPOCH) // timedelta(milliseconds=1), 0)
    except (ValueError, OverflowError):
        detail = f"Stream-Expires-At is an RFC 3339 time like {_LIKE}, not {quoted(value)}."
        if found is not None:
            detail = (
                f"Stream-Expires-At {quoted(value)} has the form of an RFC 3339 time, but there is "
                "no such day, hour or offset, or it is not of the years 1 to 9999."
            )
        elif _LOCAL.fullmatch(value):
            detail = (
                f"Stream-Expires-At {quoted(value)} does not say of which place it is; "
                f"end it with Z, or with an offset like +01:00, as in {_LIKE}."
            )
        raise ProblemError(problems.INVALID_TTL, detail) from None


def _fork_head(headers: Headers) -> ForkHead | None:
    source = headers.get(b"stream-forked-from")
    sub = headers.get(b"stream-fork-sub-offset")
    if source is None:
        if sub is not None:
            detail = "Stream-Fork-Sub-Offset needs Stream-Forked-From."
            raise ProblemError(problems.INVALID_FORK, detail)
        return None
    offset = headers.get(b"stream-fork-offset")
    if sub is not None and (not _PLAIN_NUMBER.fullmatch(sub) or len(sub) > offsets.DIGITS):
        shown = quoted(sub.decode("latin-1"))
        detail = (
            f"Stream-Fork-Sub-Offset is a whole number without sign or leading zero, not {shown}."
        )
        raise ProblemError(problems.INVALID_FORK, detail)
    count = int(sub) if sub is not None else 0
    if count and offset is None:
        detail = "Stream-Fork-Sub-Offset counts from Stream-Fork-Offset; send that, too."
        raise ProblemError(problems.INVALID_FORK, detail)
    path = source.decode("latin-1").partition("?")[0]
    return ForkHead(path, None if offset is None else offset.decode("latin-1"), count)


class RetentionHead(NamedTuple):
    """How far back a stream is to be kept; None leaves things as they are, -1 is no limit."""

    start: str | None
    age_ms: int | None
    size: int | None
    messages: int | None


RETENTION_HEADERS = (
    b"stream-retention-age",
    b"stream-retention-bytes",
    b"stream-retention-messages",
)


def retention_head(headers: Headers) -> RetentionHead:
    """Read what a PATCH asks for."""
    start = headers.get(b"stream-retain-from")
    age_s, size, messages = (_kept(headers, name) for name in RETENTION_HEADERS)
    if start is None and age_s is size is messages is None:
        detail = "PATCH changes how far back a stream is kept: send Stream-Retain-From, or one of "
        detail += "Stream-Retention-Age, Stream-Retention-Bytes and Stream-Retention-Messages."
        raise ProblemError(problems.BAD_REQUEST, detail)
    age_ms = age_s * 1000 if age_s is not None and age_s > 0 else age_s
    return RetentionHead(None if start is None else start.decode("latin-1"), age_ms, size, messages)


def _kept(headers: Headers, name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if value.lower() == b"none":
        return -1
    if not _PLAIN_NUMBER.fullmatch(value) or len(value) > 12 or int(value) > TTL_MAX_S:
        shown = quoted(value.decode("latin-1"))
        detail = (
            f"{name.decode().title()} is a whole number up to {TTL_MAX_S}, or none, not {shown}."
        )
        raise ProblemError(problems.BAD_REQUEST, detail)
    return int(value)


# --- reading ---


class ReadHead(NamedTuple):
    """What a read asks for. ``offset`` is None where none was given."""

    offset: str | None
    live: str | None
    cursor: str | None
    end: int | None = None
    incarnation: str | None = None


def read_head(query: str, headers: Headers) -> ReadHead:
    """Read the parameters of a read."""
    found = query_of(query)
    offset, live = single(found, "offset"), single(found, "live")
    if live is not None and live not in ("long-poll", "sse"):
        detail = f"live is long-poll or sse, not {quoted(live)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if live is not None and offset is None:
        detail = f"live={live} needs an offset: -1 for the start, now for the end, or a token."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if live == "sse" and b"last-event-id" in headers:
        # A browser's EventSource reconnects to the first URL; the id says where it really is.
        resumed = headers[b"last-event-id"].decode("latin-1")
        offset = resumed if offsets.parse(resumed) is not None else offset
    cursor, life = single(found, "cursor"), single(found, "incarnation")
    return ReadHead(offset, live, cursor, _end_of(found, live), life)


def _end_of(found: dict[str, list[str]], live: str | None) -> int | None:
    """Read ``end``, an extension: a catch-up read stops there."""
    given = single(found, "end")
    if given is None:
        return None
    end = offsets.parse(given)
    if end is None or live is not None:
        detail = "end is one offset of this server, and goes with reads that are not live."
        raise ProblemError(problems.INVALID_OFFSET, detail)
    return end


class Lookup(NamedTuple):
    """A place that HEAD is asked for: by time, by messages or bytes before it, or by its offset."""

    by: str
    number: int = 0
    offset: str = ""


def lookup_of(query: str) -> Lookup | None:
    """Read what HEAD looks up, an extension: one of ``at`` and its kind, None without any."""
    if "at" not in query:
        return None
    asked = query_of(query)
    given = [(name, value) for name in _LOOKUPS for value in asked.get(name, ())]
    if len(given) > 1:
        detail = f"HEAD looks up one place: one of {', '.join(_LOOKUPS)}, once."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if not given:
        return None
    name, value = given[0]
    if name == "at":
        return Lookup(name, _moment(value))
    if name == "at-offset":
        return Lookup(name, offset=value)
    if not value.isascii() or not value.isdigit() or len(value) > offsets.DIGITS:
        detail = f"{name} is a whole number, not {quoted(value)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return Lookup(name, int(value))


_LOOKUPS = ("at", "at-message", "at-byte", "at-offset")
_SPACED_OFFSET = re.compile(r" (\d{2}:\d{2})$")


def _moment(text: str) -> int:
    """Read a time: milliseconds since 1970, or RFC 3339."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        # A plus that was not escaped is a space by now.
        return _expires_ms(_SPACED_OFFSET.sub(r"+\1", text))
    except ProblemError:
        detail = f"at is a time in milliseconds or like 2030-01-31T12:00:00Z, not {quoted(text)}."
        raise ProblemError(problems.BAD_REQUEST, detail) from None
