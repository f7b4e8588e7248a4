"""A look at a whole data directory that trusts nothing: what is there, and what it claims.

Order of trust, as in ``engine.opening``: identity, catalogue, journal. Each is scanned to its end
whatever is damaged on the way, so that a repair has everything that is left. Streams' own files
are only listed here; reading them is the larger part of the work and is done elsewhere.
"""

import re
from typing import NamedTuple

from durastreamd.errors import DataDirectoryError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.scan import (
    JournalHead,
    JournalHeader,
    catalog_header,
    journal_header,
)
from durastreamd.storage import datadir, format as fmt, log
from durastreamd.storage.catalog import Commit
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import Disk, read_file

_SNAPSHOT = re.compile(r"(\d{16})-([0-9a-f]{16})\.snap")
_SEGMENT = re.compile(r"(\d{16})\.(log|idx)")
# Every ext4 mount point has the first; the other is a draft a crash may leave.
_ROOT_NAMES = {
    "lost+found",
    fmt.IDENTITY_FILE,
    f"{fmt.IDENTITY_FILE}.new",
    fmt.BACKUP_FILE,
    fmt.SUMS_FILE,
    fmt.RESTORING_FILE,
}
NEVER = 2**64  # no lsn, no stream id
_FOLDERS = (fmt.JOURNAL_DIR, fmt.CATALOG_DIR, fmt.STREAMS_DIR, fmt.QUARANTINE_DIR)


class StreamFiles(NamedTuple):
    """The names in one stream's directory."""

    indexes: list[int]
    segments: list[int]
    snapshots: list[tuple[int, int]]  # position, serial

    @property
    def bases(self) -> list[int]:
        """Return where its segments begin; one without its index, or the reverse, counts."""
        return sorted({*self.indexes, *self.segments})


class Catalogued(NamedTuple):
    """A stream as the catalogue knows it."""

    stream: Stream
    placement: log.Placement


class Survey:
    """What a data directory holds and claims. ``findings`` are what is wrong with it so far."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.findings: list[Finding] = []
        self.uuid: bytes | None = None
        self.files: dict[int, StreamFiles] = {}
        self.leftovers: list[str] = []  # files of ours that nothing refers to any more
        self.foreign: list[str] = []
        self.orphans: list[Finding] = []  # indexes that would cut a segment in two
        # the catalogue
        self.listed: dict[int, Catalogued] = {}
        self.buckets: dict[str, int] = {}
        self.ended: set[int] = set()
        self.commit: Commit | None = None
        self.catalog_trusted = False  # every row of its last checkpoint was read
        self.catalog_number = 0
        self.checkpoint = 0
        # the journal
        self.headers: dict[int, JournalHeader] = {}
        self.heads: list[JournalHead] = []  # by lsn, those the catalogue does not cover
        self.journal_number = 0
        self.durable_lsn = 0  # something says that all up to here was durable
        self.missing: list[tuple[int, int]] = []  # (first, last) lsns of frames lost though durable
        self.top_lsn = 0  # the highest lsn anything speaks of

    def found(
        self, path: str, position: int, kind: str, detail: str, *, harmless: bool = False
    ) -> None:
        """Report something."""
        self.findings.append(Finding(path, position, kind, detail, "", harmless))

    @property
    def torn_lsn(self) -> int:
        """Return the first lsn that was never acknowledged and is lost: the server cuts there.

        NEVER where the journal ends whole.
        """
        good = {head.frame.lsn for head in self.heads if head.payload_ok}
        above = range(self.durable_lsn + 1, self.top_lsn + 1)
        return next((lsn for lsn in above if lsn not in good), NEVER)

    @property
    def covered_lsn(self) -> int:
        """Return up to where the catalogue's last checkpoint has everything."""
        return self.commit.lsn if self.commit is not None else 0


def read_numbered(disk: Disk, folder: str, suffix: str) -> dict[int, bytes]:
    """Return the numbered files of a folder by number."""
    raws = {}
    for number in fmt.numbered(disk.names(folder), suffix):
        try:
            raws[number] = read_file(disk, f"{folder}/{number:016d}{suffix}")
        except FileNotFoundError:
            continue  # a running server was done with it
        except OSError:
            raws[number] = b""  # it cannot be read: damage like any other
    return raws


# --- names ---


def list_names(found: Survey) -> None:
    """Note every name below the data directory: ours, left over, or foreign."""
    disk = found.disk
    for name in disk.names(""):
        if name not in _ROOT_NAMES and name not in _FOLDERS:
            found.foreign.append(name)
    if disk.exists(f"{fmt.IDENTITY_FILE}.new"):
        found.leftovers.append(f"{fmt.IDENTITY_FILE}.new")
    for folder, suffix in ((fmt.JOURNAL_DIR, ".jnl"), (fmt.CATALOG_DIR, ".cat")):
        for name in disk.names(folder):
            if not fmt.numbered([name], suffix):
                draft = bool(fmt.numbered([name.removesuffix(".new")], suffix))
                (found.leftovers if draft else found.foreign).append(f"{folder}/{name}")
    for shard in disk.names(fmt.STREAMS_DIR):
        _shard(found, shard)


def _shard(found: Survey, shard: str) -> None:
    path = f"{fmt.STREAMS_DIR}/{shard}"
    if not re.fullmatch("[0-9a-f]{2}", shard):
        found.foreign.append(path)
        return
    for name in _names_in(found, path):
        if not re.fullmatch("[0-9a-f]{16}", name) or not name.endswith(shard):
            found.foreign.append(f"{path}/{name}")
            continue
        files = StreamFiles([], [], [])
        for file in _names_in(found, f"{path}/{name}"):
            if match := _SEGMENT.fullmatch(file):
                (files.segments if match[2] == "log" else files.indexes).append(int(match[1]))
            elif match := _SNAPSHOT.fullmatch(file):
                files.snapshots.append((int(match[1]), int(match[2], 16)))
            else:
                found.foreign.append(f"{path}/{name}/{file}")
        found.files[int(name, 16)] = files


def _names_in(found: Survey, path: str) -> list[str]:
    try:
        return found.disk.names(path)
    except NotADirectoryError:
        found.foreign.append(path)
        return []


# --- identity ---


_VERSION = re.compile(rb"(durastreamd\nformat (\d{1,9})\n(?:[^\n]*\n)*)sum ([0-9a-f]{16})\n")


def read_identity(found: Survey, catalogs: dict[int, bytes], journals: dict[int, bytes]) -> None:
    """Take the uuid from the identity file, or from the headers that carry it, too."""
    try:
        found.uuid = datadir.read_identity(found.disk).uuid
    except DataDirectoryError as exc:
        there = found.disk.exists(fmt.IDENTITY_FILE)
        if there and _of_another_version(read_file(found.disk, fmt.IDENTITY_FILE)):
            raise
        found.found(fmt.IDENTITY_FILE, 0, "damaged" if there else "missing", str(exc))
    else:
        return
    votes = []
    for raw in (*catalogs.values(), *journals.values()):
        if (header := catalog_header(raw)) is not None:
            votes.append(header[0])
        elif (named := journal_header(raw)) is not None:
            votes.append(named.uuid)
    if votes:
        found.uuid = max(set(votes), key=votes.count)


def _of_another_version(text: bytes) -> bool:
    """Tell a whole identity file of a version we do not read from a damaged one of ours."""
    match = _VERSION.fullmatch(text)
    return match is not None and digest(match[1], 0) == int(match[3], 16)
