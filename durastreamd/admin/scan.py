"""Reading files that may be damaged: what verifies is returned, what does not is a ``Gap``.

These walks share structs and checksums with the server's readers and nothing else. A reader stops
at the first byte that does not verify; a scan looks for the next place at which something does,
and goes on. Checksums are seeded with file and position, so nothing verifies by accident.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import cbor2

from durastreamd.storage import format as fmt, index, journal
from durastreamd.storage.catalog import Commit, Row
from durastreamd.storage.checksum import digest, payload_sum, seed

_SUM_BYTES = fmt.CHECKSUM.size

# Client-given bytes may imitate the start of a frame with a huge header, and checking each would
# take for ever. What all checks in one file may hash together is bounded by this many times it.
_EFFORT = 32


class Gap(NamedTuple):
    """Bytes of a file that do not verify, up to where something does again (or the end)."""

    position: int
    end: int


# --- index ---

_ENTRY_START = re.compile(rb"\xff\xfeI[ES]")


def scan_index(
    raw: bytes, stream: int, base: int, position: int = index.HEADER_BYTES
) -> Iterator[index.Entry | Gap]:
    """Yield every entry of an index file that verifies, and the gaps between."""
    base_seed = index.file_seed(stream, base)
    while position < len(raw):
        entry = index.parse_entry(raw, position, stream, base_seed, position)
        if entry is not None:
            yield entry
            position = entry.end
            continue
        end = len(raw)
        for match in _ENTRY_START.finditer(raw, position + 1):
            at = match.start()
            if index.parse_entry(raw, at, stream, base_seed, at) is not None:
                end = at
                break
        yield Gap(position, end)
        position = end


def index_owner(raw: bytes) -> tuple[int, int] | None:
    """Return the stream and base that an index file's header names, if it verifies."""
    if len(raw) < index.HEADER_BYTES:
        return None
    _, _, stream, base, _ = fmt.INDEX_HEADER.unpack_from(raw)
    if raw[: index.HEADER_BYTES] != index.encode_header(stream, base):
        return None
    return stream, base


# --- journal ---


class Head(NamedTuple):
    """A journal frame's head, and where its payload lies; ``frame`` carries no payload."""

    number: int
    position: int
    end: int
    durable_lsn: int
    previous: int
    payload_ok: bool
    frame: fmt.StoredFrame

    @property
    def payload_at(self) -> int:
        """Return where the payload begins in its file."""
        return self.end - self.frame.size


def parse_head(data: memoryview, position: int, base_seed: int, number: int) -> Head | None:
    """Return the frame at ``position`` if its head verifies there."""
    body = position + fmt.FRAME.size
    if body > len(data):
        return None
    fields = fmt.FRAME.unpack_from(data, position)
    (
        magic,
        header_size,
        size,
        stream,
        start,
        time_ms,
        ordinal,
        total,
        lsn,
        durable,
        before,
        check,
    ) = fields
    if magic != fmt.FRAME_MAGIC or header_size > fmt.HEADER_BYTES_MAX:
        return None
    at = body + header_size
    if at > len(data):
        return None
    header = bytes(data[body:at])
    if check != digest(bytes(data[position : body - _SUM_BYTES]) + header, base_seed, position):
        return None
    payload = data[at : at + size]
    fits = len(payload) == size and payload_sum(payload, stream, start) == total
    frame = fmt.StoredFrame(stream, start, size, time_ms, ordinal, total, lsn, header, b"")
    return Head(number, position, at + size, durable, before, fits, frame)


def scan_journal(
    raw: bytes, uuid: bytes, number: int, position: int = fmt.JOURNAL_HEADER.size
) -> Iterator[Head | Gap]:
    """Yield every frame of a journal file whose head verifies, and the gaps between."""
    data = memoryview(raw)
    base_seed = journal.file_seed(uuid, number)
    while position < len(raw):
        found = parse_head(data, position, base_seed, number)
        if found is not None and (found.payload_ok or found.end <= len(raw)):
            yield found
            position = found.end
            continue
        following = _next_frame(data, raw, position + 1, base_seed, number)
        end = following.position if following is not None else len(raw)
        yield found if found is not None else Gap(position, end)
        position = end


def _next_frame(
    data: memoryview, raw: bytes, position: int, base_seed: int, number: int
) -> Head | None:
    effort = _EFFORT * len(raw)
    at = raw.find(fmt.FRAME_MAGIC, position)
    while at >= 0:
        if at + fmt.FRAME.size <= len(raw):
            header_size = fmt.FRAME.unpack_from(raw, at)[1]
            fits = at + fmt.FRAME.size + header_size <= len(raw)
            effort -= header_size if fits else 0
            if fits and effort > 0:
                found = parse_head(data, at, base_seed, number)
                if found is not None:
                    return found
        at = raw.find(fmt.FRAME_MAGIC, at + 1)
    return None


class JournalHeader(NamedTuple):
    """What a journal file's own header says, whoever's it is."""

    uuid: bytes
    number: int
    head: journal.FileHead


def journal_header(raw: bytes) -> JournalHeader | None:
    """Return a journal file's header if it verifies; its checksum depends on nothing else."""
    if len(raw) < fmt.JOURNAL_HEADER.size:
        return None
    _, _, uuid, number, first, durable, _ = fmt.JOURNAL_HEADER.unpack_from(raw)
    head = journal.FileHead(first, durable)
    if raw[: fmt.JOURNAL_HEADER.size] != journal.encode_header(uuid, number, head):
        return None
    return JournalHeader(uuid, number, head)


# --- catalogue ---


class CatalogFrame(NamedTuple):
    """A frame of the catalogue that verifies: rows, or a commit."""

    position: int
    end: int
    checkpoint: int
    rows: list[Row]
    commit: Commit | None


_CATALOG_START = re.compile(rb"\xff\xfeC[RC]")


def catalog_header(raw: bytes) -> tuple[bytes, int] | None:
    """Return the uuid and number that a catalogue file's header names, if it verifies."""
    size = fmt.CATALOG_HEADER.size
    if len(raw) < size:
        return None
    magic, version, uuid, number, check = fmt.CATALOG_HEADER.unpack_from(raw)
    if magic != fmt.CATALOG_MAGIC or version != fmt.FORMAT_VERSION:
        return None
    if check != digest(raw[: size - _SUM_BYTES], seed("catalog header")):
        return None
    return uuid, number


def scan_catalog(raw: bytes, uuid: bytes, number: int) -> Iterator[CatalogFrame | Gap]:
    """Yield every frame of a catalogue file that verifies, and the gaps between."""
    base_seed = seed("catalog", uuid, number)
    position = fmt.CATALOG_HEADER.size
    while position < len(raw):
        found = _catalog_frame(raw, position, base_seed)
        if found is not None:
            yield found
            position = found.end
            continue
        end = len(raw)
        for match in _CATALOG_START.finditer(raw, position + 1):
            if _catalog_frame(raw, match.start(), base_seed) is not None:
                end = match.start()
                break
        yield Gap(position, end)
        position = end


def _catalog_frame(raw: bytes, position: int, base_seed: int) -> CatalogFrame | None:
    body = position + fmt.CATALOG_FRAME.size
    if body > len(raw):
        return None
    magic, size, checkpoint, check = fmt.CATALOG_FRAME.unpack_from(raw, position)
    if magic not in (fmt.ROWS_MAGIC, fmt.COMMIT_MAGIC) or body + size > len(raw):
        return None
    data = raw[body : body + size]
    if check != digest(raw[position : body - _SUM_BYTES] + data, base_seed, position):
        return None
    try:
        fields = cbor2.loads(data)
        if magic == fmt.ROWS_MAGIC:
            return CatalogFrame(position, body + size, checkpoint, list(fields), None)
        return CatalogFrame(position, body + size, checkpoint, [], Commit(*fields))
    except (cbor2.CBORDecodeError, TypeError, ValueError):
        return None
