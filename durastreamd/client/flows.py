"""What to send for each thing that can be done with a stream, and what the answers mean.

Each is a generator that yields requests, is sent the answers and returns the result, so the
blocking and the asynchronous half are two ways to run the same flows (``stream``, ``aio``).
"""

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urljoin

from durastreamd.client.address import PATH_SURFACE, split
from durastreamd.client.client import Ask, Reply
from durastreamd.client.errors import AnswerError, CutShortError
from durastreamd.client.reading import Bookmark
from durastreamd.protocol.content_type import DEFAULT

T = TypeVar("T")
Flow = Generator[Ask, Reply, T]

REDIRECTS_MAX = 3  # the latest snapshot is one redirect away; a circle ends here
LISTED_MAX = 1000  # streams of one page of a listing


@dataclass(frozen=True)
class StreamHead:
    """A stream as its server describes it; None and empty is what it does not tell."""

    content_type: str
    next_offset: str
    closed: bool = False
    ttl_s: int | None = None
    expires_at: str = ""
    message_count: int | None = None
    byte_count: int | None = None
    snapshot_offset: str = ""
    incarnation: str = ""
    headers: Mapping[str, str] | None = None


class AppendResult(NamedTuple):
    """What became of an append: where the stream ends now, and whether it was there already."""

    next_offset: str
    closed: bool = False
    repeated: bool = False


class SnapshotBlob(NamedTuple):
    """A snapshot: what stands for everything before its offset."""

    offset: str
    content_type: str
    data: bytes


class BootstrapAnswer(NamedTuple):
    """All that a new reader needs: a snapshot or None, what came after it, where to go on."""

    snapshot: SnapshotBlob | None
    messages: list[bytes]
    next_offset: str
    closed: bool


class FoundPlace(NamedTuple):
    """A place that can be read from, and how many messages and bytes lie before it."""

    offset: str
    message: int
    byte: int


@dataclass(frozen=True)
class ListedStream:
    """A row of a listing; ``members`` is all that the server said."""

    name: str
    url: str
    content_type: str
    closed: bool
    next_offset: str
    message_count: int | None
    byte_count: int | None
    written_ms: int | None
    incarnation: str
    members: Mapping[str, object]


class ListPage(NamedTuple):
    """A page of a listing, and where the next one begins; empty at the end."""

    streams: list[ListedStream]
    after: str


# --- what goes into headers ---


def creation(
    content_type: str, *, ttl_s: int | None = None, expires_at: str = "", closed: bool = False
) -> dict[str, str]:
    """Return the headers that make a stream."""
    made = {"Content-Type": content_type}
    if ttl_s is not None:
        made["Stream-TTL"] = str(ttl_s)
    if expires_at:
        made["Stream-Expires-At"] = expires_at
    if closed:
        made["Stream-Closed"] = "true"
    return made


def forking(source: str, offset: str) -> dict[str, str]:
    """Return the headers that make a stream a fork of another, given by its URL."""
    made = {"Stream-Forked-From": split(source)[1]}
    if offset:
        made["Stream-Fork-Offset"] = offset
    return made


def appending(
    content_type: str, *, seq: str = "", expected: str = "", close: bool = False
) -> dict[str, str]:
    """Return the headers of an append; ``expected``: only if the stream still ends there."""
    made = {"Content-Type": content_type} if content_type else {}
    if seq:
        made["Stream-Seq"] = seq
    if expected:
        made["Stream-Expected-Offset"] = expected
    if close:
        made["Stream-Closed"] = "true"
    return made


def produced(producer: str, epoch: int, seq: int) -> dict[str, str]:
    """Return the headers with which an append takes effect once."""
    return {"Producer-Id": producer, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


# --- the stream itself ---


def create(url: str, headers: Mapping[str, str], body: bytes | None = None) -> Flow[StreamHead]:
    """Make a stream, or find it made with the same configuration."""
    reply = yield Ask("PUT", url, headers, body)
    return described(url, reply)


def fork(url: str, source: str, at: Bookmark | str = "") -> Flow[StreamHead]:
    """Make a stream a fork of another one, at its end or at a place in it."""
    place = Bookmark.of(at) if isinstance(at, str) and at else at
    offset = ""
    if isinstance(place, Bookmark):
        offset = yield from offset_after(source, *place)
    return (yield from create(url, forking(source, offset)))


def head(url: str) -> Flow[StreamHead]:
    """Ask what a stream is and where it ends."""
    reply = yield Ask("HEAD", url)
    return described(url, reply)


def append(
    url: str, headers: Mapping[str, str], body: bytes | None, *, repeatable: bool = False
) -> Flow[AppendResult]:
    """Append bytes, or close, or both."""
    reply = yield Ask("POST", url, headers, body, (), repeatable)
    return appended(url, reply)


def delete(url: str) -> Flow[None]:
    """Delete a stream; one that went away while it was asked for twice is deleted as well."""
    reply = yield Ask("DELETE", url, {}, None, (404,))
    if reply.status == 404 and not reply.again:
        yield Ask("DELETE", url)  # says the server's words


def described(url: str, reply: Reply) -> StreamHead:
    """Return what an answer to PUT or HEAD says of a stream."""
    said = reply.headers
    return StreamHead(
        content_type=said.get("content-type", DEFAULT),
        next_offset=told_offset(url, reply),
        closed=said.get("stream-closed") == "true",
        ttl_s=_number(said.get("stream-ttl")),
        expires_at=said.get("stream-expires-at", ""),
        message_count=_number(said.get("stream-message-count")),
        byte_count=_number(said.get("stream-byte-count")),
        snapshot_offset=said.get("stream-snapshot-offset", ""),
        incarnation=said.get("stream-incarnation", ""),
        headers=said,
    )


def appended(url: str, reply: Reply) -> AppendResult:
    """Return what an answer to POST says."""
    said = reply.headers
    repeated = reply.status == 204 and "producer-seq" in said
    return AppendResult(told_offset(url, reply), said.get("stream-closed") == "true", repeated)


def told_offset(url: str, reply: Reply) -> str:
    """Return where the stream ends; an answer that does not say so is not one of such a server."""
    offset = reply.headers.get("stream-next-offset", "")
    if not offset:
        kind = reply.headers.get("content-type", "nothing")
        message = (
            f"{url}: the answer ({reply.status}, {kind}) has no Stream-Next-Offset; "
            "is this a Durable Streams server, and a stream?"
        )
        raise AnswerError(message)
    return offset


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


# --- places ---


def find(url: str, by: str, what: str) -> Flow[FoundPlace]:
    """Look a place up, by ``at`` (a time), ``at-message``, ``at-byte`` or ``at-offset``."""
    reply = yield Ask("HEAD", f"{url}?{urlencode({by: what})}")
    said = reply.headers
    message, byte = _number(said.get("stream-at-message")), _number(said.get("stream-at-byte"))
    offset = said.get("stream-at-offset")
    if message is None or byte is None or not offset:
        text = f"{url}: this server does not look up places in a stream; give an offset instead"
        raise AnswerError(text)
    return FoundPlace(offset, message, byte)


def offset_after(url: str, offset: str, skip: int) -> Flow[str]:
    """Return the offset so many messages after an offset."""
    if not skip:
        return offset
    by, what = ("at-message", "0") if offset == "-1" else ("at-offset", offset)
    begin = yield from find(url, by, what)
    found = yield from find(url, "at-message", str(begin.message + skip))
    return found.offset


# --- listings ---


def list_page(base: str, bucket: str, prefix: str, after: str) -> Flow[ListPage]:
    """Return a page of the streams of a server, or of one of its buckets."""
    place = f"{base}/{quote(bucket, safe='')}/streams" if bucket else f"{base}{PATH_SURFACE}/"
    query = {"prefix": prefix, "after": after, "limit": str(LISTED_MAX)}
    asked = urlencode({name: value for name, value in query.items() if value})
    reply = yield Ask("GET", f"{place}?{asked}")
    try:
        found = json.loads(reply.body)
        rows = [_listed(row, base, bucket) for row in found["streams"]]
        more, cursor = found.get("has_more") is True, str(found.get("next_cursor") or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        message = f"GET {place}: the answer is not a listing of streams; is this a durastreamd?"
        raise AnswerError(message) from exc
    if more and cursor <= after:
        message = f"GET {place}: the listing does not move on from {after!r}"
        raise AnswerError(message)
    return ListPage(rows, cursor if more else "")


def _listed(row: dict[str, object], base: str, bucket: str) -> ListedStream:
    name = str(row["stream_id"])
    known = f"/{bucket}/{quote(name, safe='')}" if bucket else f"{PATH_SURFACE}/{quote(name)}"
    path = str(row.get("path") or known)
    return ListedStream(
        name=f"{bucket}/{name}" if bucket else name,
        url=f"{base}{path}",
        content_type=str(row.get("content_type", "")),
        closed=row.get("status") == "Closed",
        next_offset=str(row.get("next_offset", "")),
        message_count=_whole(row.get("message_count")),
        byte_count=_whole(row.get("byte_count")),
        written_ms=_whole(row.get("last_write_at_ms")),
        incarnation=str(row.get("incarnation", "")),
        members=row,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- snapshots ---


def put_snapshot(url: str, offset: str, data: bytes, content_type: str) -> Flow[str]:
    """Publish a snapshot of everything before an offset; what lies before it is no longer kept."""
    where = f"{url}/snapshot/{quote(offset)}"
    reply = yield Ask("PUT", where, {"Content-Type": content_type}, data)
    return reply.headers.get("stream-snapshot-offset", offset)


def get_snapshot(url: str) -> Flow[SnapshotBlob | None]:
    """Return the latest snapshot, None without one."""
    where, redirects = f"{url}/snapshot", 0
    while True:
        reply = yield Ask("GET", where, {}, None, (301, 302, 307, 308, 404))
        said = reply.headers
        if reply.status == 404 and not redirects:
            yield from head(url)  # says if the stream itself is not there
            return None
        if reply.status < 300:
            offset = said.get("stream-snapshot-offset", "")
            if not offset:
                message = f"GET {where}: the answer has no Stream-Snapshot-Offset"
                raise AnswerError(message)
            return SnapshotBlob(offset, said.get("content-type", DEFAULT), reply.body)
        redirects += 1
        where = _redirected(where, said.get("location", ""), redirects)


def _redirected(where: str, location: str, redirects: int) -> str:
    if redirects > REDIRECTS_MAX:
        message = f"GET {where}: redirected more than {REDIRECTS_MAX} times"
        raise AnswerError(message)
    there = urljoin(_plain(where), location)
    # A token must not follow to wherever somebody points.
    if not location or split(there)[0] != split(_plain(where))[0]:
        message = f"GET {where}: redirected to {location!r}, another server, which is not followed"
        raise AnswerError(message)
    origin, target = split(there)
    if where.startswith("http+unix://"):
        return f"http+unix://{where.removeprefix('http+unix://').partition('/')[0]}{target}"
    return f"{origin}{target}"


def _plain(url: str) -> str:
    """Return a URL that urljoin knows: it has not heard of http+unix."""
    if url.startswith("http+unix://"):
        return f"http://localhost/{url.removeprefix('http+unix://').partition('/')[2]}"
    return url


def bootstrap(url: str) -> Flow[BootstrapAnswer]:
    """Return the snapshot and every message after it, of one moment."""
    reply = yield Ask("GET", f"{url}/bootstrap")
    said = reply.headers
    after = told_offset(url, reply)
    kind = Message()
    kind["Content-Type"] = said.get("content-type", "")
    boundary = kind.get_boundary()
    if kind.get_content_type() != "multipart/mixed" or not boundary:
        message = f"GET {url}/bootstrap: the answer is {kind.get_content_type()}, not multipart"
        raise AnswerError(message)
    parts = list(_parts(reply.body, boundary.encode()))
    if not parts:
        message = f"GET {url}/bootstrap: the answer has no parts"
        raise CutShortError(message)
    (first, blob), rest = parts[0], parts[1:]
    offset = said.get("stream-snapshot-offset", "-1")
    snapshot = None if offset == "-1" else SnapshotBlob(offset, first, blob)
    closed = said.get("stream-closed") == "true"
    return BootstrapAnswer(snapshot, [data for _, data in rest], after, closed)


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the content type and the bytes of each part."""
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        message = "a multipart answer ends before its end"
        raise CutShortError(message)
    for piece in pieces[1:-1]:
        headers, gap, data = piece.partition(b"\r\n\r\n")
        if not gap:
            message = "a part of a multipart answer has no headers"
            raise AnswerError(message)
        kinds = [
            line.partition(b":")[2].strip().decode("latin-1")
            for line in headers.split(b"\r\n")
            if line.lower().startswith(b"content-type:")
        ]
        yield (kinds[0] if kinds else DEFAULT), data


# --- JSON ---


def json_text(value: object) -> bytes:
    """Return a value as JSON; raise ValueError if it has no JSON form."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        message = f"this has no JSON form: {exc}"
        raise ValueError(message) from exc


def json_body(values: tuple[object, ...]) -> bytes:
    """Return an append's body in which each value is one message, whatever it is."""
    return b"[%s]" % b",".join(map(json_text, values))
