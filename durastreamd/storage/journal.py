"""The journal: every change of every stream, in order, in one file at a time.

Write order and barriers
------------------------
1. A file is created with its header, synced, and its directory synced, before any frame goes in.
2. A batch is one write at the end of the file and one fdatasync. Only when that has returned are
   the batch's records committed; nothing is acknowledged, shown or flushed before.
3. A file is removed only after a catalogue commit that no longer needs it is durable.

A frame is valid at a position iff its checksum, seeded with directory, file and position, holds,
its lengths are sane and its sequence number (lsn) is the one expected there. It also says up to
which lsn everything was durable before its batch was written, and whose frame stands before it.
That makes two questions answerable after damage: was this byte ever acknowledged, and whose was
it. ``recovery`` asks them.

A failed or short write is cut back and the cut is synced before the failure is reported, so an
answered error cannot come back to life after a crash. A failed sync is final.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from durastreamd.errors import SyncFailedError, WriteFailedError
from durastreamd.storage import format as fmt, scan
from durastreamd.storage.checksum import digest, payload_sum, seed
from durastreamd.storage.disk import Disk, coalesce, read_file, write_all, write_parts
from durastreamd.storage.scan import Gap, Walk

_SUM_BYTES = fmt.CHECKSUM.size
_FRAME_BYTES = fmt.FRAME.size


class JournalFrame(NamedTuple):
    """A frame found in a file. ``payload_ok`` says whether its payload verifies, too."""

    position: int
    end: int
    durable_lsn: int
    previous: int
    payload_ok: bool
    frame: fmt.StoredFrame


def file_seed(uuid: bytes, number: int) -> int:
    """Return the seed of all checksums in one journal file."""
    return seed("journal", uuid, number)


class FileHead(NamedTuple):
    """What a journal file's header says: its first lsn, and what was durable when it was made."""

    first_lsn: int
    durable_lsn: int


def encode_header(uuid: bytes, number: int, head: FileHead) -> bytes:
    """Return the header of a journal file."""
    fields = (fmt.JOURNAL_MAGIC, fmt.FORMAT_VERSION, uuid, number, *head)
    bare = fmt.JOURNAL_HEADER.pack(*fields, 0)[:-_SUM_BYTES]
    return bare + fmt.CHECKSUM.pack(digest(bare, seed("journal header")))


def decode_header(data: bytes, uuid: bytes, number: int) -> FileHead | None:
    """Return what a journal file's header says, None where it does not verify."""
    if len(data) < fmt.JOURNAL_HEADER.size:
        return None
    raw = data[: fmt.JOURNAL_HEADER.size]
    magic, version, found_uuid, found_number, *head, check = fmt.JOURNAL_HEADER.unpack(raw)
    if check != digest(raw[:-_SUM_BYTES], seed("journal header")):
        return None
    expected = (fmt.JOURNAL_MAGIC, fmt.FORMAT_VERSION, uuid, number)
    if (magic, version, found_uuid, found_number) != expected:
        return None
    return FileHead(*head)


class JournalWriter:
    """The one writer. Not thread-safe: its owner hands it one batch at a time."""

    def __init__(self, disk: Disk, uuid: bytes, number: int, head: FileHead) -> None:
        self._disk = disk
        self._uuid = uuid
        self.number = number
        self.next_lsn = head.first_lsn
        self.length = 0
        self._handle = -1
        self._seed = 0
        self._previous = 0
        self._create(head)

    def _create(self, head: FileHead) -> None:
        """Create the file ``self.number``: step 1 above."""
        header = encode_header(self._uuid, self.number, head)
        path = fmt.journal_path(self.number)
        try:
            handle = self._disk.open(path, create=True, write=True)
        except OSError as exc:
            reason = f"cannot create {path}: {exc.strerror or exc}"
            raise WriteFailedError(reason) from exc
        try:
            write_all(self._disk, handle, header, 0)
            self._disk.sync(handle)
            self._disk.sync_directory(fmt.JOURNAL_DIR)
        except WriteFailedError:
            self._undo(handle, path)
            raise
        self._handle = handle
        self._seed = file_seed(self._uuid, self.number)
        self.length = len(header)

    def _undo(self, handle: int, path: str) -> None:
        """Take a file back that could not be written.

        If there is no descriptor to sync its removal with, its name may turn up again after a
        power cut; it holds no frame, and recovery passes it by (case K).
        """
        try:
            self._disk.release(handle)
            self._disk.unlink(path)
        except OSError as exc:
            reason = f"a journal file could not be taken back: {exc.strerror or exc}"
            raise SyncFailedError(reason) from exc
        with suppress(WriteFailedError):
            self._disk.sync_directory(fmt.JOURNAL_DIR)

    def rotate(self) -> None:
        """Go on in a new file. On WriteFailedError the old one stays in use."""
        before = (self.number, self._handle, self._seed, self.length)
        try:
            self.number += 1
            self._create(FileHead(self.next_lsn, self.next_lsn - 1))
        except WriteFailedError:
            self.number, self._handle, self._seed, self.length = before
            raise
        with suppress(OSError):  # all of it is durable
            self._disk.release(before[1])

    def encode(self, batch: list[fmt.StoredFrame]) -> list[bytes | memoryview]:
        """Return a batch as it will stand in the file, in pieces."""
        assert batch[0].lsn == self.next_lsn, "frames are written in the order of their lsn"
        durable = self.next_lsn - 1
        position = self.length
        previous = self._previous
        base = self._seed
        pack, pack_sum = fmt.FRAME_BARE.pack, fmt.CHECKSUM.pack
        parts: list[bytes | memoryview] = []
        for stream, start, size, time_ms, ordinal, total, lsn, header, payload in batch:
            bare = pack(
                fmt.FRAME_MAGIC,
                len(header),
                size,
                stream,
                start,
                time_ms,
                ordinal,
                total,
                lsn,
                durable,
                previous,
            )
            check = pack_sum(digest(bare + header, base, position))
            parts += (bare, check, header, payload)
            position += _FRAME_BYTES + len(header) + size
            previous = stream
        return coalesce(parts)

    def commit(self, batch: list[fmt.StoredFrame], data: list[bytes | memoryview]) -> None:
        """Write and sync an encoded batch: step 2 above. Returns only when it is durable."""
        try:
            write_parts(self._disk, self._handle, data, self.length)
        except WriteFailedError:
            self._cut_back()
            raise
        self._disk.sync(self._handle)
        self.length += sum(map(len, data))
        self.next_lsn = batch[-1].lsn + 1
        self._previous = batch[-1].stream

    def _cut_back(self) -> None:
        try:
            self._disk.truncate(self._handle, self.length)
        except OSError as exc:
            reason = f"a failed journal write could not be cut back: {exc.strerror or exc}"
            raise SyncFailedError(reason) from exc
        self._disk.sync(self._handle)

    def release(self) -> None:
        """Give the file handle back."""
        self._disk.release(self._handle)


def parse_frame(
    data: memoryview, position: int, base: int, *, payload: bool = True
) -> JournalFrame | None:
    """Return the frame at ``position`` if one verifies there; on request without its payload."""
    if position + _FRAME_BYTES > len(data):
        return None
    prefix = data[position : position + _FRAME_BYTES]
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
        previous,
        check,
    ) = fmt.FRAME.unpack(prefix)
    if magic != fmt.FRAME_MAGIC or header_size > fmt.HEADER_BYTES_MAX:
        return None
    body = position + _FRAME_BYTES + header_size
    if body > len(data):
        return None
    header = bytes(data[position + _FRAME_BYTES : body])
    if check != digest(bytes(prefix[:-_SUM_BYTES]) + header, base, position):
        return None
    end = body + size
    held = data[body:end]
    payload_ok = len(held) == size and payload_sum(held, stream, start) == total
    kept = bytes(held) if payload else b""
    frame = fmt.StoredFrame(stream, start, size, time_ms, ordinal, total, lsn, header, kept)
    return JournalFrame(position, end, durable, previous, payload_ok, frame)


def walk(
    data: bytes, base: int, first_lsn: int | None = None, *, payloads: bool = False
) -> Walk[JournalFrame]:
    """Return the walk through a journal file's bytes; its header's ``first_lsn`` makes it quicker.

    ``base`` is the file's seed (plus where ``data`` begins in it).
    """
    view = memoryview(data)

    def parse(position: int) -> JournalFrame | None:
        return parse_frame(view, position, base, payload=payloads)

    def shape() -> scan.Shape:
        return scan.journal_shape(len(data), first_lsn)

    return Walk(data, shape, base, parse)


def frames(
    data: bytes, position: int, base: int, first_lsn: int | None = None, *, payloads: bool = False
) -> Iterator[JournalFrame]:
    """Yield every frame that verifies from ``position`` on, finding a way through damage."""
    for item in walk(data, base, first_lsn, payloads=payloads).items(position):
        if not isinstance(item, Gap):
            yield item


class JournalFile(NamedTuple):
    """A journal file as found: its number, its header's words (None if it is bad) and bytes."""

    number: int
    head: FileHead | None
    data: bytes


def read_journal_file(disk: Disk, uuid: bytes, number: int) -> JournalFile:
    """Read one journal file whole."""
    data = read_file(disk, fmt.journal_path(number))
    return JournalFile(number, decode_header(data, uuid, number), data)


def journal_numbers(disk: Disk) -> list[int]:
    """Return the numbers of the journal files that are there, in order."""
    return fmt.numbered(disk.names(fmt.JOURNAL_DIR), ".jnl")
