"""The streams of a query as their server knows them: which there are, how far they go.

One HEAD tells of a stream where it ends, where it begins and whether the server numbers messages
(``Stream-At-Message``); see ``offsets`` for what follows from that.
"""

import json
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from durastreamd.client import Client, Reply, ServerRefusedError, shared_client
from durastreamd.protocol.content_type import DEFAULT, is_json
from durastreamd.protocol.offsets import mint
from durastreamd.spark.errors import ContentError, OptionError
from durastreamd.spark.options import SourceOptions, names_of, pattern_of
from durastreamd.spark.server.answers import elements, ended_lines
from durastreamd.spark.server.offsets import StreamPlace

LISTED_MAX = 1000  # of a bucket, in one answer

_TEXTUAL = re.compile(r"text/|application/(json|xml|x-ndjson|javascript)\b|[^;]*\+(json|xml)\b")


@dataclass(frozen=True)
class StreamInfo:
    """A stream at one moment."""

    first: StreamPlace  # the first that can be read
    tail: StreamPlace
    content_type: str
    snapshot: str = ""  # the offset of its latest snapshot
    closed: bool = False
    mortal: bool = False  # it has a lifetime

    @property
    def incarnation(self) -> str:
        """Return which life of its name it is."""
        return self.tail.incarnation


class Listed(NamedTuple):
    """What a listing tells of a stream without a request of its own."""

    byte: int = -1  # where it ends; -1 if nobody said
    closed: bool = False
    info: StreamInfo | None = None  # all there is to know; None: ask the stream itself


def is_textual(content_type: str) -> bool:
    """Tell whether values of this content type are text."""
    return _TEXTUAL.match(content_type.lower()) is not None


class ServerStreams:
    """Finds streams and places in them."""

    def __init__(self, options: SourceOptions, client: Client | None = None) -> None:
        self.options = options
        self.site = options.site()
        self.client = client or shared_client(options.client_settings())

    # --- which there are ---

    def names(self) -> dict[str, Listed]:
        """Return the streams to read, in order, with what a listing tells of them."""
        options = self.options
        if self.site.name:
            return {self.site.name: Listed()}
        if options.subscribe:
            return dict.fromkeys(sorted(names_of(options)), Listed())
        pattern, listed = pattern_of(options), self._listed()
        return {name: listed[name] for name in sorted(listed) if pattern.fullmatch(name)}

    def _listed(self) -> dict[str, Listed]:
        found: dict[str, Listed] = {}
        url = f"{self.site.base}/streams?limit={LISTED_MAX}"
        after = ""
        while True:
            listing = self.client.get_json(url + (f"&after={quote(after)}" if after else ""))
            rows = listing.get("streams")
            for row in rows if isinstance(rows, list) else ():
                found[str(row["stream_id"])] = _row(row)
            after = str(listing.get("next_cursor") or "")
            if not listing.get("has_more") or not after:
                return found

    # --- how far they go ---

    def url(self, name: str) -> str:
        """Return the URL of a stream."""
        return self.site.stream(name)

    def look(self, name: str) -> StreamInfo | None:
        """Return a stream as it is now, None if it is not there."""
        reply = self.client.head(f"{self.url(name)}?at-message=0", accept=(404, 410))
        if reply.status != 200:
            return None
        headers = reply.headers
        kind = headers.get("content-type", DEFAULT)
        tail = headers.get("stream-next-offset", "")
        snapshot = headers.get("stream-snapshot-offset", "")
        first = _found(reply)
        closed = headers.get("stream-closed") == "true"
        if first is None:
            return StreamInfo(
                StreamPlace("-1", 0, token_number=0), StreamPlace(tail, -1), kind, closed=closed
            )
        count, size = int(headers["stream-message-count"]), int(headers["stream-byte-count"])
        end = StreamPlace(tail, count, size, incarnation=first.incarnation)
        mortal = "stream-ttl" in headers or "stream-expires-at" in headers
        return StreamInfo(first, end, kind, snapshot, closed, mortal)

    def find(self, name: str, by: str, what: str | int, life: str = "") -> StreamPlace | None:
        """Look a place up, by ``at``, ``at-message``, ``at-byte`` or ``at-offset``.

        With a ``life`` of the name only there: another one answers 412.
        """
        only = f"&incarnation={quote(life)}" if life else ""
        return _found(self.client.head(f"{self.url(name)}?{by}={quote(str(what))}{only}"))

    def find_told(self, name: str, by: str, what: str | int, life: str = "") -> StreamPlace:
        """Look a place up on a server that is known to tell."""
        found = self.find(name, by, what, life)
        if found is None:
            message = (
                f"The server of stream {name} does not look up places; "
                "give startingOffsets as earliest, latest or offsets."
            )
            raise OptionError(message)
        return found

    def place_of(self, name: str, look: StreamInfo, given: str | int) -> StreamPlace:
        """Return the place that an option names: an offset, or the number of a message."""
        if isinstance(given, int):
            return self.find_told(name, "at-message", given)
        if given in ("earliest", "-1"):
            return look.first
        if given in ("latest", "now"):
            return look.tail if look.tail.told else StreamPlace(look.tail.token, 0, token_number=0)
        if not look.first.told:
            return StreamPlace(given, 0, token_number=0)
        try:
            return self.find_told(name, "at-offset", given)
        except ServerRefusedError as exc:
            if exc.status == 410:
                return StreamPlace(given, -1, 0)  # below what is retained: the caller's question
            message = f"{given!r} is no offset of stream {name}."
            raise OptionError(message) from exc

    # --- counting, where nobody tells ---

    def page(self, name: str, token: str) -> tuple[list[bytes], Reply]:
        """Return the messages of a page of a server that does not show them apart."""
        reply = self.client.get(f"{self.url(name)}?offset={quote(token)}")
        if is_json(reply.headers.get("content-type", "")):
            try:
                return elements(reply.body), reply
            except json.JSONDecodeError as exc:
                message = f"Stream {name}: the server's answer is not JSON: {exc}"
                raise ContentError(message) from exc
        separator = self.options.line_sep.encode()
        if not separator:
            message = (
                f"The server of stream {name} does not show where messages that are not JSON end; "
                "set option lineSep to read lines."
            )
            raise OptionError(message)
        found, rest = ended_lines(reply.body, separator)
        if rest:
            # The line is not complete, so the page is read again from the same token.
            return found, reply._replace(headers={**reply.headers, "stream-next-offset": token})
        return found, reply

    def advance(self, name: str, begin: StreamPlace, rows_max: int, bytes_max: int) -> StreamPlace:
        """Return the place so many messages or bytes on, or the tail; 0 is no limit."""
        token, before, size = begin.token, begin.token_number, 0
        wanted = begin.number + rows_max if rows_max else None
        while True:
            messages, reply = self.page(name, token)
            number = before
            for message in messages:
                if number == wanted or (bytes_max and size >= bytes_max):
                    return StreamPlace(token, number, token_number=before)
                if number >= begin.number:
                    size += len(message)
                number += 1
            after = reply.headers.get("stream-next-offset", token)
            if after == token or not messages:
                return StreamPlace(token, number, token_number=before)
            token, before = after, number
            if reply.headers.get("stream-up-to-date") == "true":
                return StreamPlace(token, number, token_number=before)


def _found(reply: Reply) -> StreamPlace | None:
    headers = reply.headers
    number, byte = headers.get("stream-at-message"), headers.get("stream-at-byte")
    if number is None or byte is None:
        return None
    life = headers.get("stream-incarnation", "")
    return StreamPlace(headers["stream-at-offset"], int(number), int(byte), incarnation=life)


def _row(row: dict[str, object]) -> Listed:
    """Return what a row of a listing tells; an older server tells less."""
    closed = row.get("status") == "Closed"
    match row:
        case {
            "content_type": str(kind),
            "incarnation": str(life),
            "first_offset": str(first),
            "next_offset": str(token),
            "byte_count": int(byte),
            "message_count": int(count),
        }:
            info = None
            if first == mint(0):  # else only the stream knows which message is its first one now
                begin = StreamPlace(first, 0, 0, incarnation=life)
                end = StreamPlace(token, count, byte, incarnation=life)
                mortal = "ttl_ms" in row or "expires_at_ms" in row
                snapshot = str(row.get("snapshot_offset", ""))
                info = StreamInfo(begin, end, kind, snapshot, closed, mortal)
            return Listed(byte, closed, info)
        case {"tail_offset": int(byte)}:
            return Listed(byte, closed)
        case _:
            return Listed(closed=closed)
