"""Listings: which streams there are, in order, a page at a time, on both surfaces alike.

A page tells of each stream what HEAD would, so that whoever plans over thousands of streams asks a
few times and not thousands. It shows what its caller may read and nothing else.

A page is gathered in turns of ``TURN_STREAMS``. Between two of them streams come and go, so each
turn begins behind the last key it looked at, and a page is no picture of one moment.
"""

import heapq
from collections.abc import Callable
from urllib.parse import quote

import trio

from durastreamd.model.stream_state import Stream
from durastreamd.protocol import problems
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.names import PREFIX
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import ProblemError, query_of, single
from durastreamd.service.access.gate import Permit
from durastreamd.service.access.grants import KeySpan
from durastreamd.streams.registry import Streams

LIMIT_MAX = 1000  # streams of a page, and how many it has if nobody says
PAGE_BYTES_MAX = 1024 * 1024  # a page of long names ends sooner: it is in memory whole
RANKED_STREAMS = 1000  # compared in one turn; a comparison is a tenth of a row
TURN_STREAMS = 100  # looked at in one turn of the event loop, a millisecond or two
# Streams that are deleted or expired are passed over, but a page ends after looking at so many.
LOOKED_MAX = 20_000
EVERYWHERE = ""  # the place of an operator's listing: both surfaces

# What an operator's listing may be sorted by, the largest first.
_SORTS: dict[str, Callable[[Stream], int]] = {
    "bytes": lambda stream: stream.tail - max(stream.floor, stream.fork_position),
    "messages": lambda stream: stream.messages,
    "written": lambda stream: stream.written_ms,
    "created": lambda stream: stream.created_ms,
}


class _Page:
    """The rows gathered so far, and behind which key the next page begins."""

    def __init__(self, limit: int, after: str) -> None:
        self.rows: list[bytes] = []
        self.looked = 0
        self.after = after
        self.more = False
        self.limit = limit
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Tell whether another row would be too many."""
        return len(self.rows) >= self.limit or self._bytes >= PAGE_BYTES_MAX

    def add(self, row: bytes) -> None:
        """Take a row in."""
        self.rows.append(row)
        self._bytes += len(row)


class Listings:
    """Pages of the table of streams."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def page(self, place: str, query: str, permit: Permit | None) -> bytes:
        """Return a page of the streams below a place: ``bucket/``, or ``/`` for the path surface.

        Raises the problem of a query that makes no sense, and of a caller who may see nothing.
        """
        asked = query_of(query)
        prefix, after = single(asked, "prefix") or "", single(asked, "after") or ""
        limit = single(asked, "limit")
        page = _Page(LIMIT_MAX if limit is None else limit_of(limit), place + after)
        low = place + prefix
        if place == EVERYWHERE and "sort" in asked:
            await self._rank(page, asked["sort"][0], low, permit)
            return _written({"prefix": prefix}, page, None)
        for span in permit.listed(low) if permit is not None else [KeySpan(low)]:
            await trio.lowlevel.checkpoint()
            await self._gather(page, span, permit)
            if page.more:
                break
        head = {"bucket_id": place[:-1]} if place not in (EVERYWHERE, "/") else {}
        cursor = page.after.removeprefix(place) if page.more else None
        return _written({**head, "prefix": prefix}, page, cursor)

    async def _rank(self, page: _Page, sort: str, low: str, permit: Permit | None) -> None:
        """Fill a page with the largest of all streams by some measure: one page, no next one."""
        measure = _SORTS.get(sort)
        if measure is None:
            detail = f"sort is one of {', '.join(_SORTS)}, not {quoted(sort)}."
            raise ProblemError(problems.BAD_REQUEST, detail)
        best: list[tuple[int, int]] = []
        now_ms, by_id = self._streams.clock(), self._streams.engine.namespace.by_id
        ids = list(by_id)
        for at in range(0, len(ids), RANKED_STREAMS):
            for each in ids[at : at + RANKED_STREAMS]:
                stream = by_id.get(each)
                if stream is None or stream.gone or stream.expired(now_ms):
                    continue
                if stream.key.startswith(low) and (permit is None or permit.covers(stream.key)):
                    best.append((measure(stream), each))
            best = heapq.nlargest(page.limit, best)
            await trio.lowlevel.checkpoint()
        for _, each in best:
            stream = by_id.get(each)
            if stream is not None and not page.full:
                page.add(json_body(self.row(stream, permit)))

    async def _gather(self, page: _Page, span: KeySpan, permit: Permit | None) -> None:
        """Add the streams of a span to a page, until it is full and one more is there."""
        namespace, after = self._streams.engine.namespace, page.after
        while True:
            now_ms = self._streams.clock()
            limit = 1 if span.alone else TURN_STREAMS
            turn = list(namespace.listing(span.start, after, limit))
            for stream in turn:
                after = stream.key
                if stream.gone or stream.expired(now_ms) or not span.holds(after):
                    continue
                if page.full:
                    page.more = True
                    return
                page.add(json_body(self.row(stream, permit)))
                page.after = after
            if len(turn) < limit or span.alone:
                return
            page.looked += len(turn)
            if page.looked >= LOOKED_MAX:
                page.more, page.after = True, page.after if page.full else after
                return
            await trio.lowlevel.checkpoint()

    def row(self, stream: Stream, permit: Permit | None) -> dict[str, object]:
        """Return what a page tells of one stream."""
        name = stream.key.partition("/")[2]
        row: dict[str, object] = {
            "stream_id": name,
            "status": "Closed" if stream.closed else "Open",
            "content_type": stream.content_type,
            "tail_offset": stream.tail,
            "created_at_ms": stream.created_ms,
            "last_write_at_ms": stream.written_ms,
            "path": path_of(stream.key),
            "incarnation": self._streams.engine.incarnation(stream),
            "first_offset": mint(stream.floor),
            "next_offset": mint(stream.tail),
            "message_count": stream.messages,
            "byte_count": stream.tail,
            "reader_count": self._streams.reader_count(stream),
        }
        if stream.ttl_ms >= 0:
            row["ttl_ms"] = stream.ttl_ms
        if (deadline_ms := stream.deadline_ms()) is not None:
            row["expires_at_ms"] = deadline_ms
        if stream.snapshot is not None and stream.whole:
            row["snapshot_offset"] = mint(stream.snapshot.position)
        source = self._streams.engine.namespace.by_id.get(stream.source)
        if source is not None and (permit is None or permit.covers(source.key)):
            row["forked_from"] = path_of(source.key)
            row["fork_offset"] = mint(stream.fork_position)
        if stream.damage:
            row["damaged"] = True
        return row


def _written(head: dict[str, str], page: _Page, cursor: str | None) -> bytes:
    begun = json_body({**head, "stream_count": len(page.rows)})
    ended = json_body({"next_cursor": cursor, "has_more": page.more})
    return b'%s, "streams": [%s], %s' % (begun[:-1], b", ".join(page.rows), ended[1:])


def path_of(key: str) -> str:
    """Return the path of a stream on this server, in percent-encoding."""
    bucket, _, name = key.partition("/")
    return f"/{bucket}/{quote(name, safe='')}" if bucket else PREFIX + quote(name, safe="/")


def limit_of(text: str) -> int:
    """Return how many rows of a listing are asked for."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= LIMIT_MAX:
        detail = f"limit is a number from 1 to {LIMIT_MAX}, not {quoted(text)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return int(text)
