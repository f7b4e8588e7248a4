"""Every struct, magic and file name on disk. FORMAT.md describes these same bytes in prose.

All integers are little-endian. A checksum is the last field of its struct and covers the struct
up to itself and the variable part that follows it.
"""

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from durastreamd.storage.checksum import digest, seed

FORMAT_VERSION = 1

IDENTITY_FILE = "DURASTREAMD"
IDENTITY_MAGIC = b"durastreamd\n"
JOURNAL_DIR = "journal"
CATALOG_DIR = "catalog"
STREAMS_DIR = "streams"
QUARANTINE_DIR = "quarantine"
KEYS_FILE = "KEYS"  # of subscriptions: what tokens and webhooks are signed with

# Beside these, what dsadmin leaves at the root of a backup, and of a restore that is not whole.
BACKUP_FILE = "BACKUP"
SUMS_FILE = "SHA256SUMS"
RESTORING_FILE = "RESTORING"

# Magics begin with FF FE: no UTF-8 text holds those bytes, so no client-given string in a CBOR
# header can look like the start of an entry.
FRAME_MAGIC = b"\xff\xfeJF"
ENTRY_MAGIC = b"\xff\xfeIE"
STATE_MAGIC = b"\xff\xfeIS"
ROWS_MAGIC = b"\xff\xfeCR"
COMMIT_MAGIC = b"\xff\xfeCC"
JOURNAL_MAGIC = b"DSJOURN1"
INDEX_MAGIC = b"DSINDEX1"
CATALOG_MAGIC = b"DSCATAL1"

# A header longer than this is damage, not data: the largest real one is an append of a few
# thousand messages or the state of a stream with all its producers.
HEADER_BYTES_MAX = 16 * 1024 * 1024

# --- journal ---
# magic, version, directory uuid, file number, first lsn, lsn durable by then, checksum
JOURNAL_HEADER = struct.Struct("<8sI4x16sQQQQ")
# magic, header length, payload length, stream, start, time, ordinal, payload sum, lsn, durable lsn,
# stream of the frame before, checksum (of all this and the header; the payload has its own sum)
FRAME = struct.Struct("<4sIQQQQQQQQQQ")
FRAME_BARE = struct.Struct("<4sIQQQQQQQQQ")  # without its checksum

# --- index ---
# magic, version, stream, base position, checksum
INDEX_HEADER = struct.Struct("<8sI4xQQQ")
# magic, header length, payload length, start, time, ordinal, payload sum, lsn, checksum
ENTRY = struct.Struct("<4sIQQQQQQQ")

# --- catalogue ---
# magic, version, directory uuid, file number, checksum
CATALOG_HEADER = struct.Struct("<8sI4x16sQQ")
# magic, body length, checkpoint number, checksum
CATALOG_FRAME = struct.Struct("<4sIQQ")

CHECKSUM = struct.Struct("<Q")


class StoredFrame(NamedTuple):
    """A record as storage sees it: an address, sums, and two opaque byte strings."""

    stream: int
    start: int
    size: int
    time_ms: int
    ordinal: int
    payload_sum: int
    lsn: int
    header: bytes
    payload: bytes | memoryview


@lru_cache(maxsize=4096)
def incarnation(uuid: bytes, stream: int, created_ms: int, key: str) -> str:
    """Return what tells this life of a name from any other, made of what never changes in it.

    The id alone begins anew with each directory, and after a restore ids are given once more: so
    the directory and the moment of creation are in it, too.
    """
    return f"{digest(key.encode(), seed('incarnation', uuid, stream, created_ms)):016x}"


_STREAM_NAME = re.compile("[0-9a-f]{16}")


def stream_dir(stream: int) -> str:
    """Return the directory of a stream; the last byte of the id spreads them over 256 shards."""
    return f"{STREAMS_DIR}/{stream & 0xFF:02x}/{stream:016x}"


def stream_of(path: str) -> int | None:
    """Return the stream that a path is of; None for files that are of no stream."""
    top, _, rest = path.partition("/")
    name = rest[3:19]
    if top != STREAMS_DIR or not _STREAM_NAME.fullmatch(name):
        return None
    return int(name, 16)


def segment_path(stream: int, base: int) -> str:
    """Return the path of a segment: exactly the bytes a reader gets, from ``base`` on."""
    return f"{stream_dir(stream)}/{base:016d}.log"


def index_path(stream: int, base: int) -> str:
    """Return the path of a segment's index."""
    return f"{stream_dir(stream)}/{base:016d}.idx"


def snapshot_path(stream: int, position: int, serial: int) -> str:
    """Return the path of a snapshot's blob."""
    return f"{stream_dir(stream)}/{position:016d}-{serial:016x}.snap"


def journal_path(number: int) -> str:
    """Return the path of a journal file."""
    return f"{JOURNAL_DIR}/{number:016d}.jnl"


def catalog_path(number: int) -> str:
    """Return the path of a catalogue file."""
    return f"{CATALOG_DIR}/{number:016d}.cat"


def numbered(names: list[str], suffix: str) -> list[int]:
    """Return the numbers of the files called ``<16 digits><suffix>``, in order."""
    found = []
    for name in names:
        stem = name.removesuffix(suffix)
        if stem != name and len(stem) == 16 and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found)
