"""A data directory as of one moment, beside a daemon that goes on writing: what a backup copies.

A moment is the catalogue's last checkpoint and the journal after it. Both are read at once, the
catalogue first; so the journal holds everything acknowledged before, and whatever the catalogue
does not know. Segments and indexes are then needed only up to the lengths the catalogue gives, and
below those no byte ever changes.

Files may still go: a later checkpoint removes those of ended streams and of passed segments. So
what was copied is opened, in memory, and looked at; if something it needs had gone, the moment is
given up for a later one. Only what has changed since is copied then, so the next moment is much
shorter, and the second or third one holds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.errors import CorruptDataError, ReadFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import looks
from durastreamd.storage import catalog, datadir, format as fmt, journal, log
from durastreamd.storage.disk import NO_FAULTS, Disk, file_size, read_file
from durastreamd.storage.recovery import JournalWalk, Torn
from durastreamd.storage.scrub import FILE_COST

# Only the catalogue and the journal's names are read: shorter looks, and more of them.
LOOKS_MAX = 20
LOOK_AGAIN_S = 0.02


class Wanted(NamedTuple):
    """A file to copy, up to a length (-1: all of it); ``proof`` is the index with its sums."""

    path: str
    size: int
    proof: str = ""


class Moment(NamedTuple):
    """One moment: small files by content, the streams' files by name and length."""

    uuid: bytes
    lsn: int
    streams: int
    damaged: set[int]  # in the directory itself: a backup does not make them better
    contents: dict[str, bytes]
    wanted: list[Wanted]


def moment_of(disk: Disk, pause: Callable[[float], None] = time.sleep) -> Moment:
    """Look until catalogue and journal fit together; beside a daemon that may take a few looks."""
    for last in looks(LOOKS_MAX, LOOK_AGAIN_S, pause):
        try:
            return _look(disk)
        except (FileNotFoundError, CorruptDataError):
            if last:
                raise
    raise AssertionError  # the last look returns or raises


def _look(disk: Disk) -> Moment:
    identity = datadir.read_identity(disk)
    loaded = catalog.load(disk, identity.uuid)
    path = fmt.catalog_path(loaded.number)
    contents = {path: read_file(disk, path)[: loaded.length]}
    first, after = loaded.commit.journal_first, loaded.commit.lsn + 1
    numbers = [number for number in journal.journal_numbers(disk) if number >= first]
    if numbers[:1] != [first]:
        raise CorruptDataError(fmt.journal_path(first), 0, "the journal file is missing")
    files = [journal.read_journal_file(disk, identity.uuid, number) for number in numbers]
    walk = JournalWalk(identity.uuid, files, after, loaded.commit.lsn)
    ends = {file.number: len(file.data) for file in files}
    for step in walk.steps():
        if isinstance(step, Torn):  # a batch on its way: nobody was told of it
            ends = {number: end for number, end in ends.items() if number < step.number}
            if step.position:
                ends[step.number] = step.position
    for file in files:
        if file.number in ends:
            contents[fmt.journal_path(file.number)] = file.data[: ends[file.number]]
    # After the journal: an extension is named before the first record that needs it.
    contents[fmt.IDENTITY_FILE] = read_file(disk, fmt.IDENTITY_FILE)
    if disk.exists(fmt.KEYS_FILE):
        contents[fmt.KEYS_FILE] = read_file(disk, fmt.KEYS_FILE)
    rows = loaded.streams()
    places = {row.subject: row.placement for row in rows}
    damaged = {row.subject for row in rows if Stream.from_row(row.fields).damage}
    wanted = [*_stream_files(disk, places), *_aside(disk, damaged)]
    return Moment(identity.uuid, walk.next_lsn - 1, len(places), damaged, contents, wanted)


def _aside(disk: Disk, damaged: set[int]) -> Iterator[Wanted]:
    """Yield what a recovery set aside of streams that are marked as damaged: it may be whole."""
    for name in disk.names(fmt.QUARANTINE_DIR) if damaged else ():
        owner, _, end = name.partition("@")
        if end.endswith(".frames") and any(owner == f"{stream:016x}" for stream in damaged):
            yield Wanted(f"{fmt.QUARANTINE_DIR}/{name}", -1)


def _stream_files(disk: Disk, places: dict[int, log.Placement]) -> Iterator[Wanted]:
    """Yield what the streams' directories hold of this moment."""
    for shard in disk.names(fmt.STREAMS_DIR):
        for name in _names_in(disk, f"{fmt.STREAMS_DIR}/{shard}"):
            path = f"{fmt.STREAMS_DIR}/{shard}/{name}"
            stream = fmt.stream_of(path)
            if stream is not None and fmt.stream_dir(stream) == path:
                yield from _files_of(disk, stream, places.get(stream))


def _names_in(disk: Disk, directory: str) -> list[str]:
    """Return the names in a directory; what cannot be listed is lacking, and told as such."""
    try:
        return disk.names(directory)
    except OSError as exc:
        if exc.errno in NO_FAULTS:
            raise
        return []


def _files_of(disk: Disk, stream: int, place: log.Placement | None) -> Iterator[Wanted]:
    directory = fmt.stream_dir(stream)
    names = _names_in(disk, directory)
    for name in names:
        if name.endswith(".snap"):
            yield Wanted(f"{directory}/{name}", -1)
    if place is None or not place.made:
        return  # all of it is in the journal
    for base in fmt.numbered(names, ".idx"):
        index = fmt.index_path(stream, base)
        if base < place.base:
            yield Wanted(index, -1, index)
        elif base == place.base:
            yield Wanted(index, place.index_bytes, index)
    for base in fmt.numbered(names, ".log"):
        path = fmt.segment_path(stream, base)
        if base < place.base:
            yield Wanted(path, -1, fmt.index_path(stream, base))
        elif base == place.base and place.segment_bytes:
            yield Wanted(path, place.segment_bytes, fmt.index_path(stream, base))


def lacking(engine: Engine) -> list[str]:
    """Return the files that an opened directory needs and does not have."""
    found: list[str] = []
    for stream in engine.namespace.by_id.values():
        if stream.damage:
            continue
        found += _segments_lacking(engine, stream.id, engine.namespace.retained_from(stream))
        found += [path for path in cp.blobs_kept(engine, stream) if not engine.disk.exists(path)]
    return found


def size_of(disk: Disk, moment: Moment) -> int:
    """Return how many bytes of files there are to copy."""
    total = 0
    for one in moment.wanted:
        with suppress(OSError):  # it has gone meanwhile, or cannot be copied
            total += one.size if one.size >= 0 else file_size(disk, one.path)
    return total


def cost_of(moment: Moment, size: int) -> int:
    """Return what verifying a moment costs in all, in the measure of ``unverified``."""
    checks = sum(not one.path.endswith((".log", ".frames")) for one in moment.wanted)
    return size + checks * FILE_COST


def unverified(engine: Engine, advance: Callable[[int], None]) -> Iterator[str]:
    """Read every file that an opened directory needs; yield what does not verify."""
    for stream in engine.namespace.by_id.values():
        if stream.damage:
            continue
        try:
            for cost in engine.check(stream):
                advance(cost)
        except (CorruptDataError, ReadFailedError) as exc:
            yield f"{stream.key}: {exc}"


def _segments_lacking(engine: Engine, stream: int, lowest: int) -> Iterator[str]:
    place = engine.placements[stream]
    if not place.made:
        return
    bases = log.bases(engine.disk, stream, place.base)
    if place.base not in bases or bases[0] > lowest:
        yield fmt.stream_dir(stream)
        return
    for base, end in zip(bases, [*bases[1:], place.flushed], strict=True):
        if end < lowest:
            continue
        if not engine.disk.exists(fmt.index_path(stream, base)):
            yield fmt.index_path(stream, base)
        if end > base and file_size(engine.disk, fmt.segment_path(stream, base)) < end - base:
            yield fmt.segment_path(stream, base)
