"""The catalogue: one row per stream and bucket, as of the last checkpoint, in one append-only file.

A checkpoint appends the rows that changed since the one before, in frames of ROWS, and then one
COMMIT frame; all in one write, then one sync. Rows count only once their commit frame verifies,
so a checkpoint is in the catalogue whole or not at all. When most rows in the file are outdated a
checkpoint writes everything to a new file instead and the old one is removed.

A commit says: every change up to ``lsn`` is in segments, indexes and rows; the journal is needed
from file ``journal_first`` on; ``next_id`` is the next stream id; and which directories and blobs
are to be removed (again, if a crash came first).

What follows the last valid commit was never relied on and is cut. The file itself is never
assumed: a data directory without a catalogue is damaged, not empty.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import cbor2

from durastreamd.errors import CorruptDataError, SyncFailedError, WriteFailedError
from durastreamd.storage import format as fmt, scan
from durastreamd.storage.checksum import digest, seed
from durastreamd.storage.disk import Disk, read_file, write_all, write_new_file
from durastreamd.storage.rows import Row, StrangeRow, StreamRow, decode_row, encode_row, latest
from durastreamd.storage.scan import Gap, Walk

_SUM_BYTES = fmt.CHECKSUM.size
ROWS_PER_FRAME = 512


class Commit(NamedTuple):
    """What a checkpoint established."""

    lsn: int
    journal_first: int
    next_id: int
    removals: list[str]


class Loaded(NamedTuple):
    """A catalogue as read: rows in order (later ones win), the last commit, spare bytes.

    ``last`` is the last checkpoint as it stands in the file, up to ``length``.
    """

    number: int
    length: int
    checkpoint: int
    rows: list[Row]
    commit: Commit
    last: bytes
    torn: bytes

    def streams(self) -> list[StreamRow]:
        """Return the row of each stream that is there."""
        return [row for row in latest(self.rows).values() if isinstance(row, StreamRow)]


def _frame(magic: bytes, checkpoint: int, body: bytes, base: int, position: int) -> bytes:
    bare = fmt.CATALOG_FRAME.pack(magic, len(body), checkpoint, 0)[:-_SUM_BYTES]
    return bare + fmt.CHECKSUM.pack(digest(bare + body, base, position)) + body


def file_header(uuid: bytes, number: int) -> bytes:
    """Return the header of a catalogue file."""
    fields = (fmt.CATALOG_MAGIC, fmt.FORMAT_VERSION, uuid, number)
    bare = fmt.CATALOG_HEADER.pack(*fields, 0)[:-_SUM_BYTES]
    return bare + fmt.CHECKSUM.pack(digest(bare, seed("catalog header")))


def file_seed(uuid: bytes, number: int) -> int:
    """Return the seed of all checksums in one catalogue file."""
    return seed("catalog", uuid, number)


def encode_file(
    uuid: bytes, number: int, checkpoint: int, rows: Iterable[Row], commit: Commit
) -> bytes:
    """Return a whole catalogue file of one checkpoint, the one after ``checkpoint``."""
    header = file_header(uuid, number)
    base = file_seed(uuid, number)
    return header + _encode(base, len(header), checkpoint + 1, list(encode_rows(rows)), commit)


def _encode(
    base: int, position: int, checkpoint: int, bodies: list[bytes], commit: Commit
) -> bytes:
    parts = []
    tagged = [(fmt.ROWS_MAGIC, body) for body in bodies]
    tagged.append((fmt.COMMIT_MAGIC, cbor2.dumps(list(commit))))
    for magic, body in tagged:
        part = _frame(magic, checkpoint, body, base, position)
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def encode_rows(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield bodies of ROWS frames; encoding is the costly part and may be done in slices."""
    slab: list[object] = []
    for row in rows:
        slab.append(encode_row(row))
        if len(slab) == ROWS_PER_FRAME:
            yield cbor2.dumps(slab)
            slab = []
    if slab:
        yield cbor2.dumps(slab)


class CatalogWriter:
    """Appends checkpoints. ``length`` is how much of the file is good."""

    def __init__(self, disk: Disk, uuid: bytes, number: int, length: int, checkpoint: int) -> None:
        self._disk = disk
        self._uuid = uuid
        self.number = number
        self.length = length
        self.checkpoint = checkpoint
        self._names_unsettled = False

    @classmethod
    def create(cls, disk: Disk, uuid: bytes, commit: Commit) -> "CatalogWriter":
        """Write the first catalogue of a new data directory."""
        writer = cls(disk, uuid, 0, 0, 0)
        writer.rewrite([], commit)
        return writer

    def _encode(self, number: int, position: int, bodies: list[bytes], commit: Commit) -> bytes:
        base = file_seed(self._uuid, number)
        return _encode(base, position, self.checkpoint + 1, bodies, commit)

    def append(self, bodies: list[bytes], commit: Commit) -> None:
        """Add a checkpoint and make it durable; on WriteFailedError nothing has changed."""
        data = self._encode(self.number, self.length, bodies, commit)
        try:
            self._settle_names()
            self._append(data)
        except OSError as exc:
            reason = f"cannot write the catalogue: {exc.strerror or exc}"
            raise WriteFailedError(reason) from exc
        self.length += len(data)
        self.checkpoint += 1

    def _append(self, data: bytes) -> None:
        handle = self._disk.open(fmt.catalog_path(self.number), write=True)
        try:
            if self._disk.size(handle) > self.length:
                # An attempt that failed, or was cut short, must not show behind this one.
                self._disk.truncate(handle, self.length)
            write_all(self._disk, handle, data, self.length)
            self._disk.sync(handle)
        finally:
            self._disk.release(handle)

    def _settle_names(self) -> None:
        """A new file that was taken back must be gone for good before the old one goes on."""
        if self._names_unsettled:
            self._disk.sync_directory(fmt.CATALOG_DIR)
            self._names_unsettled = False

    def rewrite(self, bodies: list[bytes], commit: Commit) -> None:
        """Put a checkpoint of all rows into a new file and make it durable; the old one goes.

        On WriteFailedError nothing has changed.
        """
        number = self.number + 1
        header = file_header(self._uuid, number)
        data = header + self._encode(number, len(header), bodies, commit)
        draft = f"{fmt.catalog_path(number)}.new"
        try:
            if self._disk.exists(draft):
                self._disk.unlink(draft)
            write_new_file(self._disk, draft, data)
            self._disk.rename(draft, fmt.catalog_path(number))
        except OSError as exc:
            reason = f"cannot write the catalogue: {exc.strerror or exc}"
            raise WriteFailedError(reason) from exc
        try:
            self._disk.sync_directory(fmt.CATALOG_DIR)
        except WriteFailedError:
            self._take_back(fmt.catalog_path(number))
            raise
        # From here on the new file is the catalogue, whether the old one can be removed or not.
        old, self.number, self.length = self.number, number, len(data)
        self.checkpoint += 1
        self._names_unsettled = False
        if old:
            with suppress(OSError):  # the next opening removes it
                self._disk.unlink(fmt.catalog_path(old))

    def _take_back(self, path: str) -> None:
        """Remove a new file that could not be made durable: by its number it would count."""
        self._names_unsettled = True
        try:
            self._disk.unlink(path)
        except OSError as exc:
            reason = f"a new catalogue could not be taken back: {exc.strerror or exc}"
            raise SyncFailedError(reason) from exc


def secure(disk: Disk, loaded: Loaded) -> None:
    """Make a catalogue durable that was found: write its last checkpoint once more, and sync it.

    After a sync that failed the kernel takes for written what never came to the disk. It is still
    there to be read, and syncing it again says nothing. Only the last checkpoint may be so: nothing
    is written after one whose sync has failed.
    """
    handle = disk.open(fmt.catalog_path(loaded.number), write=True)
    try:
        write_all(disk, handle, loaded.last, loaded.length - len(loaded.last))
        disk.sync(handle)
    finally:
        disk.release(handle)


def remove_superseded(disk: Disk, number: int) -> None:
    """Remove what is left of other catalogues than the one in use, and drafts of any."""
    for name in disk.names(fmt.CATALOG_DIR):
        ours = fmt.numbered([name.removesuffix(".new")], ".cat")
        if ours and name != f"{number:016d}.cat":
            disk.unlink(f"{fmt.CATALOG_DIR}/{name}")


def load(disk: Disk, uuid: bytes) -> Loaded:
    """Read the newest catalogue; raise CorruptDataError where it cannot be the whole of it."""
    numbers = fmt.numbered(disk.names(fmt.CATALOG_DIR), ".cat")
    if not numbers:
        reason = "the catalogue is missing; `dsadmin repair` can rebuild it from the streams"
        raise CorruptDataError(fmt.CATALOG_DIR, 0, reason)
    number = numbers[-1]
    path = fmt.catalog_path(number)
    data = read_file(disk, path)
    header = file_header(uuid, number)
    if data[: len(header)] != header:
        raise CorruptDataError(path, 0, "the catalogue's header is damaged; run `dsadmin repair`")
    loaded = _walk(data, len(header), number, file_seed(uuid, number))
    if loaded is None:
        raise CorruptDataError(path, len(header), "the catalogue holds no whole checkpoint")
    return loaded


def _walk(data: bytes, position: int, number: int, base: int) -> Loaded | None:
    rows: list[Row] = []
    pending: list[Row] = []
    loaded: Loaded | None = None
    path = fmt.catalog_path(number)
    begun = position
    while (found := parse_frame(data, position, base)) is not None:
        position = found.end
        if loaded is not None and found.checkpoint != loaded.checkpoint + 1:
            raise CorruptDataError(path, position, f"checkpoint {found.checkpoint} is out of order")
        if found.commit is None:
            pending += found.rows
        else:
            strange = next((row for row in pending if isinstance(row, StrangeRow)), None)
            if strange is not None:
                reason = f"a row cannot be understood: {strange.item!r:.80}; run `dsadmin verify`"
                raise CorruptDataError(path, found.position, reason)
            rows += pending
            pending = []
            last = data[begun:position]
            begun = position
            loaded = Loaded(number, position, found.checkpoint, rows, found.commit, last, b"")
    if loaded is None:
        return None
    if _commit_after(data, loaded, base):
        reason = "the catalogue is damaged before its last checkpoint; run `dsadmin repair`"
        raise CorruptDataError(path, loaded.length, reason)
    return loaded._replace(torn=data[loaded.length :])


class CatalogFrame(NamedTuple):
    """A frame of the catalogue that verifies: rows, or a commit."""

    position: int
    end: int
    checkpoint: int
    rows: list[Row]
    commit: Commit | None


def parse_frame(data: bytes, position: int, base: int) -> CatalogFrame | None:
    """Return the frame at ``position`` if one verifies there."""
    start = position + fmt.CATALOG_FRAME.size
    if start > len(data):
        return None
    magic, size, checkpoint, check = fmt.CATALOG_FRAME.unpack_from(data, position)
    end = start + size
    if magic not in (fmt.ROWS_MAGIC, fmt.COMMIT_MAGIC) or end > len(data):
        return None
    body = data[start:end]
    if check != digest(data[position : start - _SUM_BYTES] + body, base, position):
        return None
    try:
        fields = cbor2.loads(body)
        if magic == fmt.ROWS_MAGIC:
            return CatalogFrame(position, end, checkpoint, list(map(decode_row, fields)), None)
        return CatalogFrame(position, end, checkpoint, [], Commit(*fields))
    except (cbor2.CBORDecodeError, TypeError, ValueError):
        return None


def walk(data: bytes, base: int, checkpoint: int | None = None) -> Walk[CatalogFrame]:
    """Return the walk through a catalogue file's bytes.

    With ``checkpoint``, for frames of that one or later: each takes up a frame at least.
    """

    def could(position: int) -> bool:
        if checkpoint is None:
            return True
        found = fmt.CATALOG_FRAME.unpack_from(data, position)[2]
        return bool(0 <= found - checkpoint <= len(data) // fmt.CATALOG_FRAME.size)

    def parse(position: int) -> CatalogFrame | None:
        return parse_frame(data, position, base)

    return Walk(data, lambda: scan.CATALOG, base, parse, could)


def _commit_after(data: bytes, loaded: Loaded, base: int) -> bool:
    """Tell whether a later checkpoint than the next one is in the bytes after the last good one.

    The next one may be there in part: its write was cut short and never synced. One after that
    proves that the next one had been durable, and that its bytes rotted since.
    """
    return any(
        not isinstance(found, Gap)
        and found.commit is not None
        and found.checkpoint > loaded.checkpoint + 1
        for found in walk(data, base, loaded.checkpoint).items(loaded.length)
    )
