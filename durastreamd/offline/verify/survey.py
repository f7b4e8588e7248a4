"""A look at a whole data directory that trusts nothing: what is there, and what it claims.

Order of trust, as in ``engine.opening``: identity, catalogue, journal. Each is scanned to its end
whatever is damaged on the way, so that a repair has everything that is left. Streams' own files
are only listed here; reading them is the larger part of the work and is done elsewhere.

The catalogue: frames are grouped by the number of their checkpoint. A checkpoint that is not whole
is the torn end of the file, if it is the last and the journal still goes on from the one before;
otherwise it was durable, and the file is damaged: then rows that verify are evidence, and no longer
the whole truth.

The journal: lost is a frame that something later says was durable: a later frame, a later file's
header or the catalogue. A frame that does not verify and that nothing vouches for is the torn end
of the last write, of which no client was told. The rules are those of ``storage.recovery``.
"""

import re
from typing import NamedTuple

from durastreamd.errors import DataDirectoryError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify import scan
from durastreamd.offline.verify.findings import Finding, refusal
from durastreamd.storage import datadir, format as fmt, log
from durastreamd.storage.catalog import Commit
from durastreamd.storage.disk import NO_FILE, Disk, read_file
from durastreamd.storage.rows import (
    BucketRow,
    FactRow,
    Row,
    StrangeRow,
    StreamEndRow,
    StreamRow,
    latest,
)
from durastreamd.storage.scan import Gap

_SNAPSHOT = re.compile(r"(\d{16})-([0-9a-f]{16})\.snap")
_SEGMENT = re.compile(r"(\d{16})\.(log|idx)")
# Every ext4 mount point has the first; the other is a draft a crash may leave.
_ROOT_NAMES = {
    "lost+found",
    fmt.IDENTITY_FILE,
    f"{fmt.IDENTITY_FILE}.new",
    fmt.KEYS_FILE,
    f"{fmt.KEYS_FILE}.new",
    fmt.BACKUP_FILE,
    fmt.SUMS_FILE,
    fmt.RESTORING_FILE,
}
NEVER = 2**64  # no lsn, no stream id
DURABLE = "which was durable"
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
        self.extensions: frozenset[str] | None = None  # of the format; None: nobody says
        self.files: dict[int, StreamFiles] = {}
        self.leftovers: list[str] = []  # files of ours that nothing refers to any more
        self.foreign: list[str] = []
        self.unlisted: set[str] = set()  # directories whose names the disk does not hand out
        self.orphans: list[Finding] = []  # indexes that would cut a segment in two
        # the catalogue
        self.listed: dict[int, Catalogued] = {}
        self.buckets: dict[str, int] = {}
        self.ended: set[int] = set()
        self.facts: dict[str, list[object] | None] = {}  # of extensions; None: ended
        self.commit: Commit | None = None
        self.catalog_trusted = False  # every row of its last checkpoint was read
        self.catalog_number = 0
        self.checkpoint = 0
        # the journal
        self.headers: dict[int, scan.JournalHeader] = {}
        self.heads: list[scan.JournalHead] = []  # by lsn, those the catalogue does not cover
        self.journal_number = 0
        self.durable_lsn = 0  # something says that all up to here was durable
        self.missing: list[tuple[int, int]] = []  # (first, last) lsns of frames lost though durable
        self.top_lsn = 0  # the highest lsn anything speaks of

    def found(
        self, path: str, position: int, kind: str, detail: str, *, harmless: bool = False
    ) -> None:
        """Report something."""
        self.findings.append(Finding(path, position, kind, detail, "", harmless))

    def refused(self, stream: int) -> bool:
        """Tell whether the disk does not say which files a stream has."""
        directory = fmt.stream_dir(stream)
        return directory in self.unlisted or directory.rpartition("/")[0] in self.unlisted

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


def read_numbered(found: Survey, folder: str, suffix: str) -> dict[int, bytes]:
    """Return the numbered files of a folder by number; what is no file is damage, and empty."""
    raws = {}
    for number in fmt.numbered(found.disk.names(folder), suffix):
        path = f"{folder}/{number:016d}{suffix}"
        try:
            raws[number] = _read(found.disk, path)
        except FileNotFoundError:
            continue  # a running server was done with it
        except OSError as exc:
            if exc.errno not in NO_FILE:
                raise
            found.found(path, 0, "no-file", "something that is no file has its name")
            raws[number] = b""
    return raws


def _read(disk: Disk, path: str) -> bytes:
    """Read a file that speaks of every stream.

    What the disk does not hand out may be whole. Without it nothing can be judged, so nothing is.
    """
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        raise
    except OSError as exc:
        reason = f"{exc.strerror or exc}; nothing can be said or repaired without it"
        raise OSError(exc.errno, reason, exc.filename or path) from exc


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
    shard_names = _names_in(found, path)
    if not shard_names and not _is_directory(found, path):
        return
    for name in shard_names:
        if not re.fullmatch("[0-9a-f]{16}", name) or not name.endswith(shard):
            found.foreign.append(f"{path}/{name}")
            continue
        names = _names_in(found, f"{path}/{name}")
        if not names and not _is_directory(found, f"{path}/{name}"):
            continue
        files = StreamFiles([], [], [])
        for file in names:
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
        return []
    except OSError as exc:
        found.unlisted.add(path)
        found.findings.append(refusal(path, exc))
        return []


def _is_directory(found: Survey, path: str) -> bool:
    """Tell whether an empty directory has a name, and nothing else: a file, a link to nowhere."""
    if path in found.unlisted:
        return False
    try:
        found.disk.release(found.disk.open(path))
    except (IsADirectoryError, FileNotFoundError):
        return True
    except OSError as exc:
        if exc.errno not in NO_FILE:
            found.unlisted.add(path)
            found.findings.append(refusal(path, exc))
            return False
    found.foreign.append(path)
    return False


# --- identity ---


def read_identity(found: Survey, catalogs: dict[int, bytes], journals: dict[int, bytes]) -> None:
    """Take the uuid from the identity file, or from the headers that carry it, too."""
    there = found.disk.exists(fmt.IDENTITY_FILE)
    text = _read(found.disk, fmt.IDENTITY_FILE) if there else b""
    try:
        found.uuid, _, found.extensions = datadir.read_identity(found.disk)
    except DataDirectoryError as exc:
        if datadir.of_another_version(text):
            raise
        found.found(fmt.IDENTITY_FILE, 0, "damaged" if there else "missing", str(exc))
    else:
        return
    votes = []
    for raw in (*catalogs.values(), *journals.values()):
        if (header := scan.catalog_header(raw)) is not None:
            votes.append(header[0])
        elif (named := scan.journal_header(raw)) is not None:
            votes.append(named.uuid)
    if votes:
        found.uuid = max(set(votes), key=votes.count)


# --- the catalogue ---


class _Checkpoint(NamedTuple):
    number: int
    position: int
    rows: list[Row]
    commit: Commit | None
    gap: int  # where its first bytes that do not verify stand, -1 if all do


def read_catalog(found: Survey, raws: dict[int, bytes], journals: set[int]) -> None:
    """Scan the catalogue files; the newest counts, older ones are evidence if it is damaged."""
    if found.uuid is None:
        return
    if not raws:
        found.found(fmt.CATALOG_DIR, 0, "missing", "the catalogue is not there")
        return
    newest = max(raws)
    found.catalog_number = newest
    for number in sorted(raws, reverse=True):
        path = fmt.catalog_path(number)
        good = scan.catalog_header(raws[number]) == (found.uuid, number)
        if number == newest and not good:
            found.found(path, 0, "header", "the catalogue's header does not verify")
        if number != newest:
            found.leftovers.append(path)
        if number == newest or not found.catalog_trusted:
            points = _checkpoints(found.uuid, number, raws[number])
            if number == newest:
                _judge_catalog(found, path, points, journals)
                found.catalog_trusted = found.catalog_trusted and good
            _take_rows(found, [row for point in points for row in point.rows])


def _checkpoints(uuid: bytes, number: int, raw: bytes) -> list[_Checkpoint]:
    points: list[_Checkpoint] = []
    gap = -1
    for frame in scan.scan_catalog(raw, uuid, number):
        if isinstance(frame, Gap):
            gap = frame.position if gap < 0 else gap
            continue
        if not points or points[-1].number != frame.checkpoint or points[-1].commit is not None:
            points.append(_Checkpoint(frame.checkpoint, frame.position, [], None, -1))
        last = points[-1]
        last.rows.extend(frame.rows)
        points[-1] = last._replace(commit=frame.commit, gap=gap if last.gap < 0 else last.gap)
        gap = -1
    if gap >= 0:
        # What follows the last frame is a checkpoint of its own, or the end of the last one.
        if points and points[-1].commit is None:
            points[-1] = points[-1]._replace(gap=gap)
        else:
            points.append(_Checkpoint(0, gap, [], None, gap))
    return points


def _judge_catalog(found: Survey, path: str, points: list[_Checkpoint], journals: set[int]) -> None:
    """Find the checkpoint that counts; take the torn end off ``points``."""
    broken = [point for point in points if point.gap >= 0 or point.commit is None]
    if broken and broken[0] is points[-1] and len(points) > 1:
        before = points[-2].commit
        if before is not None and before.journal_first in journals:
            torn = points.pop()
            position = torn.position if torn.gap < 0 else min(torn.position, torn.gap)
            detail = "a checkpoint that was not finished"
            found.found(path, position, "torn", detail, harmless=True)
            broken = []
    for point in broken:
        if point.gap >= 0:
            found.found(path, point.gap, "frame", "the catalogue's frame does not verify")
        else:
            found.found(path, point.position, "frame", "the checkpoint has no commit")
    whole = [point for point in points if point.commit is not None]
    if not whole:
        if not broken:
            found.found(path, fmt.CATALOG_HEADER.size, "short", "it holds no checkpoint")
        return
    found.commit, found.checkpoint = whole[-1].commit, whole[-1].number
    numbers = [point.number for point in points]
    ordered = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if not ordered and not broken:
        found.found(path, points[-1].position, "order", "a checkpoint is missing before this one")
    found.catalog_trusted = not broken and ordered


def _take_rows(found: Survey, rows: list[Row]) -> None:
    """Take rows over; those of a newer file, taken before, stand."""
    for row in latest(rows).values():
        match row:
            case BucketRow(name, created_ms):
                found.buckets.setdefault(name, created_ms)
            case StreamEndRow(stream_id) if stream_id not in found.listed:
                found.ended.add(stream_id)
            case StreamRow(fields, placement) if row.subject not in found.ended:
                try:
                    stream = Stream.from_row(fields)
                except (TypeError, ValueError):
                    _not_understood(found, fields)
                    continue
                held = found.listed.get(stream.id)
                if held is None or held.stream.lsn < stream.lsn:
                    found.listed[stream.id] = Catalogued(stream, placement)
            case FactRow(name, said):
                found.facts.setdefault(name, said)
            case StrangeRow(item):
                _not_understood(found, item)
            case _:
                pass


def _not_understood(found: Survey, item: object) -> None:
    path = fmt.catalog_path(found.catalog_number)
    found.found(path, 0, "row", f"a row cannot be understood: {item!r:.80}")
    found.catalog_trusted = False


# --- the journal ---

_Gaps = list[tuple[int, Gap]]


def read_journal(found: Survey, raws: dict[int, bytes]) -> None:
    """Scan every journal file, and tell what is wrong with them."""
    if found.uuid is None:
        return
    found.journal_number = max([*raws, found.commit.journal_first if found.commit else 0])
    first = found.commit.journal_first if found.commit is not None else min(raws, default=0)
    heads: dict[int, scan.JournalHead] = {}
    gaps: _Gaps = []
    for number, raw in sorted(raws.items()):
        if number < first:
            found.leftovers.append(fmt.journal_path(number))
        _read_journal_file(found, number, raw, heads, gaps)
    found.heads = [heads[lsn] for lsn in sorted(heads) if lsn > found.covered_lsn]
    _durable(found, heads)
    _report_files(found, raws, first)
    placed = dict(scan.placed(found.heads, gaps, found.covered_lsn))
    for (number, gap), lsn in placed.items():
        if number >= first:
            _report_gap(found, number, gap, lsn)
    _report_lost(found, {lsn for (number, _), lsn in placed.items() if number >= first})


def _read_journal_file(
    found: Survey, number: int, raw: bytes, heads: dict[int, scan.JournalHead], gaps: _Gaps
) -> None:
    assert found.uuid is not None
    header = scan.journal_header(raw)
    seeded = number
    if header is not None and header.uuid == found.uuid:
        found.headers[number] = header
        seeded = header.number  # a file under another's name is read as what it is
    for item in scan.scan_journal(raw, found.uuid, seeded):
        if isinstance(item, Gap):
            gaps.append((number, item))
            continue
        held = heads.get(item.frame.lsn)
        if held is None or (item.payload_ok and not held.payload_ok):
            heads[item.frame.lsn] = item._replace(number=number)


def _durable(found: Survey, heads: dict[int, scan.JournalHead]) -> None:
    headers = [header.head for header in found.headers.values()]
    found.durable_lsn = max(
        [
            found.covered_lsn,
            *(head.durable_lsn for head in heads.values()),
            *(head.durable_lsn for head in headers),
        ]
    )
    found.top_lsn = max(
        [found.durable_lsn, *heads, *(head.first_lsn - 1 for head in headers)],
    )


def _report_files(found: Survey, raws: dict[int, bytes], first: int) -> None:
    for number in range(first, found.journal_number + 1):
        path = fmt.journal_path(number)
        header = found.headers.get(number)
        if number not in raws:
            found.found(path, 0, "missing", "the journal file is not there")
        elif header is None:
            unfinished = number == max(raws) and len(raws[number]) <= fmt.JOURNAL_HEADER.size
            if unfinished:
                detail = "a journal file that was not finished"
                found.found(path, 0, "torn", detail, harmless=True)
            else:
                found.found(path, 0, "header", "the journal file's header does not verify")
        elif header.number != number:
            found.found(path, 0, "misplaced", f"this is journal file {header.number}")
    for head in found.heads:
        if not head.payload_ok:
            harmless = head.frame.lsn > found.durable_lsn
            detail = f"the payload of frame {head.frame.lsn} does not verify"
            kind = "torn" if harmless else "payload"
            path = fmt.journal_path(head.number)
            found.found(path, head.payload_at, kind, detail, harmless=harmless)


def _report_gap(found: Survey, number: int, gap: Gap, lsn: int) -> None:
    """Report bytes that do not verify, of which the first were the frame ``lsn``."""
    path = fmt.journal_path(number)
    if number not in found.headers:
        # Nothing in such a file is known to be torn: its header was durable before any frame.
        detail = f"frame {lsn} does not verify, nor does the file's header"
        found.found(path, gap.position, "frame", detail)
    elif lsn <= found.durable_lsn:
        found.found(path, gap.position, "frame", f"frame {lsn}, {DURABLE}, does not verify")
    elif gap.passed:
        detail = f"{gap.end - gap.position} bytes that may be of a batch never acknowledged, but "
        detail += f"{gap.passed} places in them imitate frames and were not all checked"
        found.found(path, gap.position, "frame", detail)
    else:
        detail = f"{gap.end - gap.position} bytes of a batch that was never acknowledged"
        found.found(path, gap.position, "torn", detail, harmless=True)


def _report_lost(found: Survey, placed: set[int]) -> None:
    """Note which frames are in no file; those that no gap accounts for are reported here."""
    low = found.covered_lsn + 1
    if found.commit is None:
        # Without the catalogue nobody knows what came before the first file.
        begun = [header.head.first_lsn for header in found.headers.values()]
        low = min([found.top_lsn + 1, *begun, *(head.frame.lsn for head in found.heads)])
    for lsn in [*(head.frame.lsn for head in found.heads), found.top_lsn + 1]:
        if lsn > low:
            if low <= found.durable_lsn:
                found.missing.append((low, min(lsn - 1, found.durable_lsn)))
            if low not in placed:
                what = f"frame {low} is" if lsn - 1 == low else f"frames {low} to {lsn - 1} are"
                detail = f"{what} in no journal file"
                if low > found.durable_lsn:  # a recovery that was cut short had counted it
                    detail += ", and never was durable"
                    found.found(fmt.JOURNAL_DIR, 0, "torn", detail, harmless=True)
                else:
                    found.found(fmt.JOURNAL_DIR, 0, "lost", detail)
        low = max(low, lsn + 1)
