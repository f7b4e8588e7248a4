"""Every error a client can see: one table, and the one renderer of RFC 9457 bodies.

The service answers with these, the connection layer answers with these, ``GET /errors/{slug}``
shows them and the documentation lists them; a code that is not in this table does not exist. Pure.

The codes, types and titles that a proposal for all servers of the protocol names come first. Where
one of them is true of an error it is the error's code, and what is finer goes into ``reason``, a
member of its own; a code of ours stands only where none of that proposal's is true.

Text that came from a client goes through ``quoted`` before it enters a detail, so that an answer
never echoes more than a line of it and never a control character.
"""

import codecs
from dataclasses import dataclass
from typing import Final

from durastreamd.protocol.json_writing import json_compact

ECHO_CHARACTERS_MAX: Final = 200  # Enough to recognise one's own input; too short to be a mirror.
DETAIL_CHARACTERS_MAX: Final = 600  # Our sentence around at most two quoted values.
CONTENT_TYPE: Final = b"application/problem+json"

Member = str | int

# Found now: the first use would load it from a file, and a server that is out of descriptors or
# whose disk fails has an error to tell just then.
_escape = codecs.getencoder("unicode_escape")


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the table: what went wrong in general, whose turn it is to do what."""

    code: str
    status: int
    title: str
    description: str
    reason: str = ""  # what it is within its code; a row without one is the code in general

    @property
    def name(self) -> str:
        """The finest word there is for it, by which a program decides."""
        return self.reason or self.code

    @property
    def slug(self) -> str:
        """The last path segment of ``type``: the code in lower case with hyphens."""
        return self.code.lower().replace("_", "-")

    @property
    def type(self) -> str:
        """The problem type as a path-absolute reference; it can be fetched from this server."""
        return f"/errors/{self.slug}"


_TABLE: Final[dict[str, Problem]] = {}
_BY_SLUG: Final[dict[str, Problem]] = {}


def _row(code: str, status: int, title: str, description: str) -> Problem:
    problem = Problem(code, status, title, description)
    _TABLE[code] = problem
    _BY_SLUG[problem.slug] = problem
    return problem


def _finer(code: Problem, reason: str, description: str) -> Problem:
    """Add a row that shares code, type, status and title with another, and says more."""
    problem = Problem(code.code, code.status, code.title, description, reason)
    _TABLE[reason] = problem
    return problem


# Codes, statuses and titles as a proposal for all servers of the protocol has them.
BAD_REQUEST = _row(
    "BAD_REQUEST", 400, "Bad Request",
    "The request is malformed or contradicts itself; correct it before sending it again.",
)  # fmt: skip
INVALID_OFFSET = _row(
    "INVALID_OFFSET", 400, "Invalid Offset",
    "The offset is not one this server issued; start from -1 or from the last Stream-Next-Offset.",
)  # fmt: skip
INVALID_JSON = _row(
    "INVALID_JSON", 400, "Invalid JSON",
    "The stream holds JSON and the body is not valid JSON; correct the body.",
)  # fmt: skip
EMPTY_BODY = _row(
    "EMPTY_BODY", 400, "Empty Body",
    "An append needs at least one byte; send a body, or Stream-Closed: true to close only.",
)  # fmt: skip
EMPTY_ARRAY = _row(
    "EMPTY_ARRAY", 400, "Empty Array",
    "An empty JSON array holds no message to append; send at least one element.",
)  # fmt: skip
UNAUTHENTICATED = _row(
    "UNAUTHENTICATED", 401, "Unauthenticated",
    "The request carries no valid credentials; send them in the Authorization header.",
)  # fmt: skip
PERMISSION_DENIED = _row(
    "PERMISSION_DENIED", 403, "Permission Denied",
    "The credentials are valid but do not allow this operation; ask for wider permission.",
)  # fmt: skip
NOT_FOUND = _row(
    "NOT_FOUND", 404, "Stream Not Found",
    "There is no stream at this URL; create it with PUT or check the name.",
)  # fmt: skip
ALREADY_EXISTS = _row(
    "ALREADY_EXISTS", 409, "Stream Already Exists",
    "A stream with another configuration exists at this URL; use its configuration or another URL.",
)  # fmt: skip
SEQUENCE_CONFLICT = _row(
    "SEQUENCE_CONFLICT", 409, "Sequence Conflict",
    "Stream-Seq is not greater than the last one appended; another writer may be ahead.",
)  # fmt: skip
CONTENT_TYPE_MISMATCH = _row(
    "CONTENT_TYPE_MISMATCH", 409, "Content Type Mismatch",
    "The Content-Type is not the one the stream was created with; send that one.",
)  # fmt: skip
OFFSET_EXPIRED = _row(
    "OFFSET_EXPIRED", 410, "Offset Expired",
    "The offset lies before the retained part of the stream; go on from Stream-Next-Offset.",
)  # fmt: skip
PAYLOAD_TOO_LARGE = _row(
    "PAYLOAD_TOO_LARGE", 413, "Payload Too Large",
    "The body is larger, or holds more messages, than is accepted; split it into several requests.",
)  # fmt: skip
RATE_LIMITED = _row(
    "RATE_LIMITED", 429, "Rate Limited",
    "Too many requests in a short time; wait for the time in Retry-After.",
)  # fmt: skip
NOT_IMPLEMENTED = _row(
    "NOT_IMPLEMENTED", 501, "Not Implemented",
    "This server does not support the operation or coding that was asked for.",
)  # fmt: skip
UNAVAILABLE = _row(
    "UNAVAILABLE", 503, "Service Unavailable",
    "The server cannot take the request now; wait for the time in Retry-After and repeat it.",
)  # fmt: skip

SHARED: Final = frozenset(_TABLE)  # the codes that any server of the protocol may answer

# Finer than that proposal, and true under one of its codes.
MISSING_CONTENT_TYPE = _finer(
    BAD_REQUEST, "MISSING_CONTENT_TYPE",
    "A request with a body needs a Content-Type; send the one of the stream.",
)  # fmt: skip
INVALID_TTL = _finer(
    BAD_REQUEST, "INVALID_TTL",
    "Stream-TTL or Stream-Expires-At is malformed, or both were given; send one of them.",
)  # fmt: skip
INVALID_PRODUCER = _finer(
    BAD_REQUEST, "INVALID_PRODUCER",
    "Producer-Id, Producer-Epoch and Producer-Seq belong together and the last two are integers.",
)  # fmt: skip
INVALID_FORK = _finer(
    BAD_REQUEST, "INVALID_FORK",
    "The fork headers name no valid place in a source stream; correct them.",
)  # fmt: skip
STALE_EPOCH = _finer(
    PERMISSION_DENIED, "STALE_EPOCH",
    "A newer epoch of this producer has written; claim the epoch after Producer-Epoch.",
)  # fmt: skip
FOREIGN_PAGE = _finer(
    PERMISSION_DENIED, "FOREIGN_PAGE",
    "A web page of this origin may not use this server; its operator can name it in cors.origins.",
)  # fmt: skip
BUCKET_NOT_FOUND = _finer(
    NOT_FOUND, "BUCKET_NOT_FOUND",
    "There is no bucket of this name; create it with PUT or check the name.",
)  # fmt: skip
SNAPSHOT_NOT_FOUND = _finer(
    NOT_FOUND, "SNAPSHOT_NOT_FOUND",
    "The stream has no snapshot, or none at this offset; read from the start instead.",
)  # fmt: skip
BUCKET_EXISTS = _finer(
    ALREADY_EXISTS, "BUCKET_EXISTS",
    "A bucket of this name exists already; use it or choose another name.",
)  # fmt: skip
SEQUENCE_GAP = _finer(
    SEQUENCE_CONFLICT, "SEQUENCE_GAP",
    "An earlier sequence number of this producer is missing; send Producer-Expected-Seq first.",
)  # fmt: skip
REPEAT_DIFFERS = _finer(
    SEQUENCE_CONFLICT, "REPEAT_DIFFERS",
    "The producer has appended something else under this number; what is stored stays, and this "
    "was not stored. Find out why it is not the same again.",
)  # fmt: skip
REPEAT_UNKNOWN = _finer(
    SEQUENCE_CONFLICT, "REPEAT_UNKNOWN",
    "The producer has appended under this number, but whether it was the same is not known any "
    "more, or was never asked to be; nothing was stored. Read the stream to find out.",
)  # fmt: skip
OFFSET_CONFLICT = _finer(
    SEQUENCE_CONFLICT, "OFFSET_CONFLICT",
    "The stream does not end at Stream-Expected-Offset, so somebody else has written; read from "
    "there and decide anew. Stream-Next-Offset is its end.",
)  # fmt: skip
RETENTION_PASSED = _finer(
    OFFSET_EXPIRED, "RETENTION_PASSED",
    "The stream is kept only so far back, by its policy or its owner; Stream-Next-Offset is the "
    "first offset that can be read.",
)  # fmt: skip
DATA_LOST = _finer(
    OFFSET_EXPIRED, "DATA_LOST",
    "Stored bytes of this stream were lost, and its operator had it repaired without them; "
    "Stream-Next-Offset is the first offset that can be read.",
)  # fmt: skip
DISK_FAILED = _finer(
    UNAVAILABLE, "DISK_FAILED",
    "The disk failed under this request, and nothing was stored; repeat it, and tell the operator "
    "if it goes on.",
)  # fmt: skip
OUTCOME_UNKNOWN_REPEAT = _finer(
    UNAVAILABLE, "OUTCOME_UNKNOWN_REPEAT",
    "The server failed while it stored the change, which may be there or not; repeat the request "
    "as it was, it takes effect once.",
)  # fmt: skip
TOO_MANY_PRODUCERS = _finer(
    RATE_LIMITED, "TOO_MANY_PRODUCERS",
    "The stream knows as many producers as it may; use a Producer-Id that it knows.",
)  # fmt: skip

# Ours: the proposal has no code for that status, or none that is true.
STREAM_CLOSED = _row(
    "STREAM_CLOSED", 409, "Stream Closed",
    "The stream was closed and takes no more data; it can still be read.",
)  # fmt: skip
MISDIRECTED = _row(
    "MISDIRECTED", 421, "Misdirected Request",
    "The server does not go by the name in Host; call it by another or add it to server.hosts.",
)  # fmt: skip
GONE = _row(
    "GONE", 410, "Stream Gone",
    "The stream was deleted or has expired, and its name is still held by forks of it.",
)  # fmt: skip
OUTCOME_UNKNOWN = _row(
    "OUTCOME_UNKNOWN", 409, "Outcome Unknown",
    "The server failed while it stored the append, which may be there or not; read the end of the "
    "stream before sending it again.",
)  # fmt: skip
BUCKET_NOT_EMPTY = _row(
    "BUCKET_NOT_EMPTY", 409, "Bucket Not Empty",
    "The bucket still holds streams; delete them first.",
)  # fmt: skip
SNAPSHOT_CONFLICT = _row(
    "SNAPSHOT_CONFLICT", 409, "Snapshot Conflict",
    "The stream does not allow this change of its snapshot; look at its latest one first.",
)  # fmt: skip
PRECONDITION_FAILED = _row(
    "PRECONDITION_FAILED", 412, "Precondition Failed",
    "The stream is not the one that Stream-Incarnation names: it was deleted and made anew; forget "
    "what is known of the old one.",
)  # fmt: skip
METHOD_NOT_ALLOWED = _row(
    "METHOD_NOT_ALLOWED", 405, "Method Not Allowed",
    "The URL exists but does not know this method; the Allow header lists those it knows.",
)  # fmt: skip
REQUEST_TIMEOUT = _row(
    "REQUEST_TIMEOUT", 408, "Request Timeout",
    "The request did not arrive completely in time; send it again on a new connection.",
)  # fmt: skip
URI_TOO_LONG = _row(
    "URI_TOO_LONG", 414, "URI Too Long",
    "The request target is longer than this server accepts; shorten it.",
)  # fmt: skip
UNSUPPORTED_ENCODING = _row(
    "UNSUPPORTED_ENCODING", 415, "Unsupported Encoding",
    "The body has a Content-Encoding that this server does not decode; send it plain.",
)  # fmt: skip
HEADERS_TOO_LARGE = _row(
    "HEADERS_TOO_LARGE", 431, "Request Header Fields Too Large",
    "The header fields are too many or too long; send fewer or shorter ones.",
)  # fmt: skip
HTTP_VERSION_NOT_SUPPORTED = _row(
    "HTTP_VERSION_NOT_SUPPORTED", 505, "HTTP Version Not Supported",
    "This server speaks HTTP/1.0, HTTP/1.1 and HTTP/2; use one of them.",
)  # fmt: skip
INTERNAL_ERROR = _row(
    "INTERNAL_ERROR", 500, "Internal Error",
    "The server failed in a way it does not know; its log has the reason.",
)  # fmt: skip
STREAM_DAMAGED = _row(
    "STREAM_DAMAGED", 500, "Stream Damaged",
    "The stored bytes of this stream fail their check; an operator has to run dsadmin verify.",
)  # fmt: skip
INSUFFICIENT_STORAGE = _row(
    "INSUFFICIENT_STORAGE", 507, "Insufficient Storage",
    "The disk is full or the quota is used up; nothing was stored.",
)  # fmt: skip
STREAM_FULL = _finer(
    INSUFFICIENT_STORAGE, "STREAM_FULL",
    "The stream has no offset left for these bytes, and never will; go on in another stream.",
)  # fmt: skip
FORK_CONFLICT = _row(
    "FORK_CONFLICT", 409, "Fork Conflict",
    "The source of the fork was deleted; fork a stream that is still there.",
)  # fmt: skip
FORK_TOO_DEEP = _row(
    "FORK_TOO_DEEP", 409, "Fork Too Deep",
    "Too many generations of forks led to the source; fork one of its ancestors.",
)  # fmt: skip


UNSUPPORTED_MEDIA_TYPE = _row(
    "UNSUPPORTED_MEDIA_TYPE", 415, "Unsupported Media Type",
    "The body has a Content-Type that this resource does not take; send application/json.",
)  # fmt: skip

# Subscriptions: the words that consumers of the protocol go by, which also stand in ``error.code``.
INVALID_REQUEST = _finer(
    BAD_REQUEST, "INVALID_REQUEST",
    "The body of a request about a subscription does not say what it must; correct it.",
)  # fmt: skip
WEBHOOK_URL_REJECTED = _finer(
    BAD_REQUEST, "WEBHOOK_URL_REJECTED",
    "A webhook may not go to this URL: it must be https and lead to public addresses alone.",
)  # fmt: skip
TOKEN_INVALID = _finer(
    UNAUTHENTICATED, "TOKEN_INVALID",
    "The token of a wake is missing, not ours, or made for another subscription; use the one that "
    "came with the wake.",
)  # fmt: skip
TOKEN_EXPIRED = _finer(
    UNAUTHENTICATED, "TOKEN_EXPIRED",
    "The token of a wake has expired; claim again, or wait to be woken.",
)  # fmt: skip
SUBSCRIPTION_NOT_FOUND = _finer(
    NOT_FOUND, "SUBSCRIPTION_NOT_FOUND",
    "There is no subscription of this id; create it with PUT or check the id.",
)  # fmt: skip
SUBSCRIPTION_ALREADY_EXISTS = _finer(
    ALREADY_EXISTS, "SUBSCRIPTION_ALREADY_EXISTS",
    "A subscription with another configuration has this id; use its configuration or delete it.",
)  # fmt: skip
FENCED = _row(
    "FENCED", 409, "Fenced",
    "The wake is not the current one any more, or its lease is over; stop, and do not repeat it.",
)  # fmt: skip
ALREADY_CLAIMED = _row(
    "ALREADY_CLAIMED", 409, "Already Claimed",
    "Another worker holds the lease; wait for the next wake event, or until the lease ends.",
)  # fmt: skip
NO_PENDING_WORK = _row(
    "NO_PENDING_WORK", 409, "No Pending Work",
    "Every cursor is at the end of its stream; wait for the next wake event.",
)  # fmt: skip
INVALID_ACK = _row(
    "INVALID_ACK", 409, "Invalid Acknowledgement",
    "A cursor cannot be moved there: the stream is not linked, or the offset is before the cursor, "
    "past the end or inside a message. None was moved.",
)  # fmt: skip


def problems() -> tuple[Problem, ...]:
    """Give the whole table, in the order in which it is written above."""
    return tuple(_TABLE.values())


def by_name(name: str) -> Problem:
    """Look up a reason or a code; an unknown one is a programming error, a ``KeyError``."""
    return _TABLE[name]


def reasons_of(code: Problem) -> tuple[Problem, ...]:
    """Give the finer rows that share a code, in the order in which they are written above."""
    return tuple(row for row in _TABLE.values() if row.reason and row.code == code.code)


def by_slug(slug: str) -> Problem | None:
    """Look up the last segment of a problem type, as ``GET /errors/{slug}`` does."""
    return _BY_SLUG.get(slug)


def quoted(text: str) -> str:
    """Give ``text`` from a client fit for a detail: quoted, escaped, at most a line of it."""
    clipped = text[:ECHO_CHARACTERS_MAX]
    escaped = _escape(clipped)[0].decode("ascii")[:ECHO_CHARACTERS_MAX]
    return f"'{escaped}...'" if len(text) > len(clipped) else f"'{escaped}'"


def render(
    problem: Problem | str, detail: str, instance: str | None = None, **members: Member | None
) -> bytes:
    """Give the JSON body for ``problem``, a row of the table or its name.

    ``instance`` is the target of the request. ``members`` are what this problem adds
    (streamSeq, expectedContentType, actualContentType, retryAfter); None leaves one out. They can
    add to the body but never replace what the table says.
    """
    row = _TABLE[problem] if isinstance(problem, str) else problem
    body: dict[str, Member] = {
        "type": row.type,
        "title": row.title,
        "status": row.status,
        "code": row.code,
    }
    if row.reason:
        body["reason"] = row.reason
    body["detail"] = _visible(detail, DETAIL_CHARACTERS_MAX)
    if instance is not None:
        body["instance"] = _visible(instance, ECHO_CHARACTERS_MAX)
    for name, value in members.items():
        if value is not None:
            clipped = _visible(value, ECHO_CHARACTERS_MAX) if isinstance(value, str) else value
            body.setdefault(name, clipped)
    return json_compact(body)


def _visible(text: str, characters_max: int) -> str:
    """Clip ``text`` and put U+FFFD for what JSON would escape but a terminal would obey."""
    clipped = text[:characters_max]
    if clipped.isprintable():
        return clipped
    return "".join(each if each.isprintable() else "\ufffd" for each in clipped)
