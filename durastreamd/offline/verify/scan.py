"""Reading files that may be damaged, and that may be another's: what verifies, and the gaps.

A reader stops at the first byte that does not verify; a walk (``storage.scan``) goes on to the next
place at which something does. Checksums are seeded with file and position, so nothing verifies by
accident.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from durastreamd.storage import catalog, format as fmt, journal
from durastreamd.storage.catalog import CatalogFrame
from durastreamd.storage.checksum import digest, seed
from durastreamd.storage.scan import Gap

_SUM_BYTES = fmt.CHECKSUM.size


# --- journal ---


class JournalHead(NamedTuple):
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


def scan_journal(
    raw: bytes, uuid: bytes, number: int, position: int = fmt.JOURNAL_HEADER.size
) -> Iterator[JournalHead | Gap]:
    """Yield every frame of a journal file whose head verifies, and the gaps between."""
    header = journal_header(raw)
    first_lsn = header.head.first_lsn if header is not None else None
    walk = journal.walk(raw, journal.file_seed(uuid, number), first_lsn)
    for item in walk.items(position):
        yield item if isinstance(item, Gap) else JournalHead(number, *item)


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


def placed(
    heads: list[JournalHead], gaps: list[tuple[int, Gap]], covered: int
) -> Iterator[tuple[tuple[int, Gap], int]]:
    """Yield each gap, by number of its file, with the lsn of the first frame that it held."""
    ends = sorted((head.number, head.end, head.frame.lsn) for head in heads)
    highest = list(accumulate((lsn for _, _, lsn in ends), max, initial=covered))
    for number, gap in gaps:
        yield (number, gap), highest[bisect_right(ends, (number, gap.position, 2**64))] + 1


# --- catalogue ---


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
    return catalog.walk(raw, catalog.file_seed(uuid, number)).items(fmt.CATALOG_HEADER.size)
