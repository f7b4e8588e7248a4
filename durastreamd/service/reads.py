"""Catch-up reads and metadata."""

from datetime import timedelta

from durastreamd.engine.view import View
from durastreamd.http.exchange import Exchange
from durastreamd.model.records import Policy
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import json_mode, offsets
from durastreamd.protocol.accept import accepts_gzip, prefers
from durastreamd.protocol.content_type import media_type
from durastreamd.protocol.requests import EPOCH, ReadHead
from durastreamd.service import forms
from durastreamd.service.answers import CLOSED, NOT_CACHED, Fields, next_offset, typed
from durastreamd.service.limits import Limits
from durastreamd.service.operating.counts import CATCH_UP, Counts
from durastreamd.service.reader import Page, Reader, array_length
from durastreamd.streams.registry import Streams

CACHED = b"max-age=60, stale-while-revalidate=300"
FOR_EVER = b"max-age=31536000, immutable"
CHECKED = b"no-cache"
# On what a page may depend, the same for all of them: a cache that finds another list with each
# answer of a URL keeps them apart badly, or not at all.
VARY = b"Accept, Accept-Encoding, Origin"
VARY_PRIVATE = b"Accept, Accept-Encoding, Authorization, Origin"
NDJSON = b"application/x-ndjson"
# Streams that are not JSON have no separators: each message after its length, 4 bytes, big-endian.
FRAMED = b"application/vnd.durastream.messages"
UP_TO_DATE = (b"Stream-Up-To-Date", b"true")
_COMPRESSIBLE = ("text/", "application/json", "application/xml", "application/x-ndjson")


def _metadata(stream: Stream, life: tuple[bytes, bytes]) -> Fields:
    fields = [
        *typed(stream.content_type.encode()),
        next_offset(stream.tail),
        life,
        NOT_CACHED,
        (b"ETag", etag(life[1], 0, stream.tail, closed=stream.closed)),
    ]
    if stream.ttl_ms >= 0:
        fields.append((b"Stream-TTL", b"%d" % (stream.ttl_ms // 1000)))
    if stream.expires_ms >= 0:
        fields.append((b"Stream-Expires-At", _timestamp(stream.expires_ms).encode()))
    # Extensions that a client of the base protocol ignores: all ever appended, retained or not.
    fields += [
        (b"Stream-First-Offset", offsets.mint(stream.floor).encode()),
        *policy_fields(stream.policy),
        (b"Stream-Message-Count", b"%d" % stream.messages),
        (b"Stream-Byte-Count", b"%d" % stream.tail),
    ]
    # Told as a place to begin at: not with a loss between it and what can be read.
    if stream.snapshot is not None and stream.whole:
        token = offsets.mint(stream.snapshot.position)
        fields.append((b"Stream-Snapshot-Offset", token.encode()))
    if stream.closed:
        fields.append(CLOSED)
    return fields


def policy_fields(policy: Policy) -> Fields:
    """Return the headers that say what of a stream is kept."""
    age_ms, size, messages = policy
    named = (
        (b"Stream-Retention-Age", age_ms // 1000 if age_ms >= 0 else -1),
        (b"Stream-Retention-Bytes", size),
        (b"Stream-Retention-Messages", messages),
    )
    return [(name, b"%d" % number) for name, number in named if number >= 0]


def _timestamp(moment_ms: int) -> str:
    moment = EPOCH + timedelta(milliseconds=moment_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def etag(life: bytes, start: int, end: int, *, closed: bool, encoding: str = "") -> bytes:
    """Return the tag of a range: of this life of the name, so a stream made anew never matches."""
    return f'"{life.decode()}:{start}:{end}{":c" if closed else ""}{encoding}"'.encode()


class Reads:
    """GET without ``live``, and the pages that long-polls are answered with."""

    def __init__(self, streams: Streams, reader: Reader, limits: Limits, counts: Counts) -> None:
        self._streams = streams
        self._reader = reader
        self._limits = limits
        self._counts = counts
        self.share(private=False)

    def share(self, *, private: bool) -> None:
        """Say whether a cache between client and server may keep answers for other clients."""
        kind = b"private, " if private else b"public, "
        self._cached = (b"Cache-Control", kind + CACHED)
        self._for_ever = (b"Cache-Control", kind + FOR_EVER)
        self._checked = (b"Cache-Control", kind + CHECKED)
        # A browser's own cache must not show one user what another one was sent.
        self._vary = VARY_PRIVATE if private else VARY

    def metadata(self, stream: Stream) -> Fields:
        """Return the headers of HEAD."""
        return _metadata(stream, self._reader.life(stream))

    async def catch_up(self, exchange: Exchange, stream: Stream, head: ReadHead) -> None:
        """Answer a catch-up read."""
        self._streams.touch(stream)
        start = self._reader.position_of(stream, head.offset)
        lasting = head.offset != offsets.NOW
        bound = head.incarnation is not None
        sent = await self.send_page(
            exchange, stream, start, lasting=lasting, stop=head.end, bound=bound
        )
        self._counts.read_bytes[CATCH_UP] += sent

    async def send_page(
        self,
        exchange: Exchange,
        stream: Stream,
        start: int,
        *,
        lasting: bool,
        stop: int | None = None,
        bound: bool = False,
        extra: Fields | None = None,
    ) -> int:
        """Answer with the page from ``start``, streamed from wherever its bytes are.

        ``lasting``: the URL means this very place later, too, so that a cache may keep the page.
        ``bound``: and this very stream, even if its name is given to another one.
        Returns how many bytes of the stream were sent.
        """
        limits = self._limits.reads
        limit = limits.page_bytes_max
        if stream.json:
            limit = min(limit, limits.json_page_bytes_max)
        with self._streams.engine.reading(stream) as view:
            page = await self._reader.page(view, stream, start, limit, stop)
            own = stream.content_type.encode()
            form = _form(exchange, own, json=stream.json)
            encoding = "gzip" if not form and self._compresses(exchange, stream, page) else ""
            life = self._reader.life(stream)
            fields = [*typed(form or own), next_offset(page.end), life, *(extra or ())]
            fixed = lasting and page.end == stop
            fields.append(self._kept(page, lasting=lasting, fixed=fixed, bound=bound))
            exchange.common = exchange.common.varying(self._vary)
            # What a cache may keep for ever must not say how far the stream was at the time.
            if page.up_to_date and not fixed:
                fields.append(UP_TO_DATE)
            if page.final and not fixed:
                fields.append(CLOSED)
            if lasting:
                mark = "-gzip" if encoding else _MARKS[form]
                tag = etag(life[1], page.start, page.end, closed=page.final, encoding=mark)
                fields.append((b"ETag", tag))
                if _matches(exchange, tag):
                    await exchange.respond(304, fields)
                    return 0
            if form:
                made = forms.Lines if form == NDJSON else forms.Prefixed
                apart = made(self._reader, view, page, self._limits.reads.piece_bytes)
                await forms.send(exchange, fields, apart)
            elif encoding:
                await self._send_compressed(exchange, stream, view, page, fields)
            else:
                await self._send_plain(exchange, stream, view, page, fields)
            return page.end - page.start

    def _kept(self, page: Page, *, lasting: bool, fixed: bool, bound: bool) -> tuple[bytes, bytes]:
        """Return for how long a cache may keep a page."""
        if not lasting:
            return NOT_CACHED
        if fixed and bound:
            return self._for_ever  # from a fixed start to a fixed end: these bytes never change
        if not fixed and page.start == page.end and not page.final:
            # Nothing but where the end is: the next append moves it, a closure makes it final.
            return self._checked
        return self._cached

    async def _send_plain(
        self, exchange: Exchange, stream: Stream, view: View, page: Page, fields: Fields
    ) -> None:
        size, most = page.end - page.start, self._limits.reads.piece_bytes
        if size <= most:
            data = await self._reader.read(view, page.start, page.end) if size else b""
            await exchange.respond(200, fields, json_mode.page(data) if stream.json else data)
            return
        form = forms.Plain(self._reader, view, page, most, json=stream.json)
        length = array_length(page) if stream.json else size
        await forms.send(exchange, fields, form, length)

    def _compresses(self, exchange: Exchange, stream: Stream, page: Page) -> bool:
        return self._compressible(stream, page) and accepts_gzip(exchange.request.headers)

    def _compressible(self, stream: Stream, page: Page) -> bool:
        size, limits = page.end - page.start, self._limits.reads
        fits = limits.gzip_bytes_min <= size <= limits.gzip_bytes_max
        return fits and media_type(stream.content_type).startswith(_COMPRESSIBLE)

    async def _send_compressed(
        self, exchange: Exchange, stream: Stream, view: View, page: Page, fields: Fields
    ) -> None:
        most = self._limits.reads.piece_bytes
        form = forms.Packed(self._streams, view, page, most, json=stream.json)
        fields.append((b"Content-Encoding", b"gzip"))
        if page.end - page.start <= most:
            await exchange.respond(200, fields, await forms.packed(form))
        else:
            await forms.send(exchange, fields, form)


_MARKS = {b"": "", NDJSON: "-lines", FRAMED: "-framed"}


def _form(exchange: Exchange, kind: bytes, *, json: bool) -> bytes:
    """Return the media type that was asked for where it shows messages apart, else nothing."""
    accept = exchange.request.headers.get(b"accept")
    form = NDJSON if json else FRAMED
    if accept is None or form not in accept.lower():
        return b""
    return form if prefers(accept, form, kind) else b""


def _matches(exchange: Exchange, tag: bytes) -> bool:
    given = exchange.request.headers.get(b"if-none-match")
    if given is None:
        return False
    # Weak comparison (RFC 9110, 13.1.2): a cache may have weakened the tag.
    found = [each.strip().removeprefix(b"W/") for each in given.split(b",")]
    return given.strip() == b"*" or tag in found
