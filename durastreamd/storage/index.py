"""A segment's index: the headers of the stream's records, each with the sum of its bytes.

An index file has a header and then entries, one per committed batch, and states: the stream's
whole folded state, at the head of every segment after the first and now and then between. Folding
the entries after a state gives the state at the end, so opening a stream reads one state and the
few entries after it, never its history.

Entries vary in length, so a search cannot jump to the middle one; it jumps to the middle *byte*
and looks for the next entry that verifies there. The checksum is seeded with stream, base and
position, so nothing else does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt, scan
from durastreamd.storage.checksum import digest, seed
from durastreamd.storage.disk import Disk, cut_file, write_at
from durastreamd.storage.scan import Walk

_SUM_BYTES = fmt.CHECKSUM.size
_ENTRY_BYTES = fmt.ENTRY.size
HEADER_BYTES = fmt.INDEX_HEADER.size

# A probe of a search reads this much: a few dozen ordinary entries, one page-cache hit.
PROBE_BYTES = 4096
# What is read at once of entries that are wanted one after the other.
_CHUNK_BYTES = 64 * 1024


class Entry(NamedTuple):
    """An index entry: where it stands in the file, and the record without its payload."""

    position: int
    end: int
    is_state: bool
    frame: fmt.StoredFrame


Read = Callable[[int, int], bytes]  # (size, position)


class IndexFile:
    """One index file: how it is named, written, read, walked through, added to and cut."""

    __slots__ = ("base", "path", "seed", "stream")

    def __init__(self, stream: int, base: int) -> None:
        self.stream = stream
        self.base = base
        self.path = fmt.index_path(stream, base)
        self.seed = seed("index", stream, base)  # of all checksums in it but its header's

    # --- bytes ---

    def header(self) -> bytes:
        """Return the header that the file begins with."""
        fields = (fmt.INDEX_MAGIC, fmt.FORMAT_VERSION, self.stream, self.base)
        bare = fmt.INDEX_HEADER.pack(*fields, 0)[:-_SUM_BYTES]
        return bare + fmt.CHECKSUM.pack(digest(bare, seed("index header")))

    def entry(self, frame: fmt.StoredFrame, position: int, *, is_state: bool = False) -> bytes:
        """Return a record's entry (or a state's) as it stands at ``position``."""
        bare = fmt.ENTRY.pack(
            fmt.STATE_MAGIC if is_state else fmt.ENTRY_MAGIC,
            len(frame.header),
            frame.size,
            frame.start,
            frame.time_ms,
            frame.ordinal,
            frame.payload_sum,
            frame.lsn,
            0,
        )[:-_SUM_BYTES]
        check = digest(bare + frame.header, self.seed, position)
        return b"".join((bare, fmt.CHECKSUM.pack(check), frame.header))

    def beginning(self, state: fmt.StoredFrame) -> bytes:
        """Return the bytes of a file that has its header and the state it begins with."""
        header = self.header()
        return header + self.entry(state, len(header), is_state=True)

    def parse(self, data: bytes, at: int, position: int) -> Entry | None:
        """Return the entry at ``data[at]``, at ``position`` of the file, if it verifies."""
        body = at + _ENTRY_BYTES
        if body > len(data):
            return None
        magic, header_size, size, start, time_ms, ordinal, total, lsn, check = (
            fmt.ENTRY.unpack_from(data, at)
        )
        if magic not in (fmt.ENTRY_MAGIC, fmt.STATE_MAGIC) or header_size > fmt.HEADER_BYTES_MAX:
            return None
        if body + header_size > len(data):
            return None
        header = data[body : body + header_size]
        if check != digest(data[at : body - _SUM_BYTES] + header, self.seed, position):
            return None
        frame = fmt.StoredFrame(self.stream, start, size, time_ms, ordinal, total, lsn, header, b"")
        end = position + _ENTRY_BYTES + header_size
        return Entry(position, end, magic == fmt.STATE_MAGIC, frame)

    def walk(self, data: bytes) -> Walk[Entry]:
        """Return the walk through the file's bytes."""

        def parse(position: int) -> Entry | None:
            return self.parse(data, position, position)

        return Walk(data, lambda: scan.INDEX, self.seed, parse)

    # --- the file ---

    def reader(self, read: Read, length: int) -> "IndexReader":
        """Return a reader of the file up to a length."""
        return IndexReader(self, read, length)

    @contextmanager
    def opened(
        self, disk: Disk, length: int | None = None, *, at_most: int | None = None
    ) -> Iterator["IndexReader"]:
        """Lend a reader of the file: up to ``length``, which it must have, or as far as it goes."""
        handle = disk.open(self.path)
        try:
            if length is None:
                length = disk.size(handle)
                if at_most is not None:
                    length = min(length, at_most)
            limit = length
            yield self.reader(
                lambda size, at: disk.pread(handle, max(min(size, limit - at), 0), at), limit
            )
        finally:
            disk.release(handle)

    def write(self, disk: Disk, data: bytes, position: int) -> None:
        """Put entries at a position, and nothing after them."""
        write_at(disk, self.path, [data], position)

    def cut(self, disk: Disk, length: int) -> None:
        """Bring the file back to a length; raise CorruptDataError where it is shorter."""
        cut_file(disk, self.path, length)


def owner_of(data: bytes) -> tuple[int, int] | None:
    """Return the stream and base that an index file's header names, if it verifies."""
    if len(data) < HEADER_BYTES:
        return None
    _, _, stream, base, _ = fmt.INDEX_HEADER.unpack_from(data)
    if data[:HEADER_BYTES] != IndexFile(stream, base).header():
        return None
    return stream, base


class IndexReader:
    """Reads one index file up to a known length through a ``read(size, position)`` function."""

    def __init__(self, file: IndexFile, read: Read, length: int) -> None:
        self._read = read
        self._file = file
        self.path = file.path
        self.length = length

    def entries(
        self,
        position: int = HEADER_BYTES,
        *,
        passing_over: int = 0,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> Iterator[Entry]:
        """Yield the entries from the one at ``position`` on; raise where one does not verify.

        The entry at ``passing_over`` is left out: it is known to be damaged.
        """
        while position < self.length:
            if position == passing_over:
                position = self._after(position)
                continue
            chunk = self._read(min(self.length - position, chunk_bytes), position)
            at = 0
            while position < self.length and position != passing_over:
                entry = self._file.parse(chunk, at, position)
                if entry is None:
                    break
                yield entry
                at += entry.end - position
                position = entry.end
            if at == 0 and position != passing_over:
                entry = self._large_entry(position)
                yield entry
                position = entry.end

    def _after(self, position: int) -> int:
        """Return where the next entry that verifies begins, or the end."""
        data = self._read(self.length - position, position)

        def parse(at: int) -> Entry | None:
            return self._file.parse(data, at, position + at)

        base = self._file.seed + position
        found = Walk(data, lambda: scan.INDEX, base, parse).next_frame(1)
        return found.position if found is not None else self.length

    def _large_entry(self, position: int) -> Entry:
        """Return an entry that no chunk holds, or raise: then it is none."""
        chunk = self._read(_ENTRY_BYTES, position)
        if len(chunk) == _ENTRY_BYTES:
            _, header_size, *_ = fmt.ENTRY.unpack(chunk)
            size = _ENTRY_BYTES + min(header_size, fmt.HEADER_BYTES_MAX)
            chunk = self._read(min(self.length - position, size), position)
        entry = self._file.parse(chunk, 0, position)
        if entry is None:
            raise CorruptDataError(self.path, position, "the index entry does not verify")
        return entry

    def verify_header(self) -> None:
        """Raise where the file's header is not the one it must have."""
        if self._read(HEADER_BYTES, 0) != self._file.header():
            raise CorruptDataError(self.path, 0, "the index header is damaged")

    def last_at_or_before(self, key: Callable[[fmt.StoredFrame], int], wanted: int) -> Entry | None:
        """Return the last record entry whose ``key`` is <= ``wanted``; keys never decrease.

        The answer is proven: the record entry after it verifies, follows it directly, and is
        beyond. So an entry that is damaged, and hides from the search, is never passed over.
        """
        low, high = HEADER_BYTES, self.length
        best: Entry | None = None
        while low < high:
            middle = (low + high) // 2 if high - low > PROBE_BYTES else low
            probe = self._first_from(middle, high)
            if probe is None or key(probe.frame) > wanted:
                if middle == low:
                    break
                high = middle
            else:
                best = probe
                low = probe.end
        after = HEADER_BYTES if best is None else best.end
        entries = self.entries(after, chunk_bytes=PROBE_BYTES)
        following = next((each for each in entries if not each.is_state), None)
        if following is not None and key(following.frame) <= wanted:
            raise CorruptDataError(self.path, following.position, "the entries are out of order")
        return best

    def _first_from(self, position: int, high: int) -> Entry | None:
        """Return the first record entry that starts in [position, high)."""
        while position < high:
            chunk = self._read(PROBE_BYTES, position)
            at = chunk.find(fmt.ENTRY_MAGIC)
            if at < 0:
                position += max(len(chunk) - len(fmt.ENTRY_MAGIC) + 1, 1)
                continue
            if position + at >= high:
                return None
            found = self._file.parse(chunk, at, position + at)
            if found is None and at + _ENTRY_BYTES <= len(chunk):
                _, header_size, *_ = fmt.ENTRY.unpack_from(chunk, at)
                whole = self._read(
                    _ENTRY_BYTES + min(header_size, fmt.HEADER_BYTES_MAX), position + at
                )
                found = self._file.parse(whole, 0, position + at)
            elif found is None and at:
                position += at  # the chunk ends inside the entry's fixed part: read again from it
                continue
            if found is not None:
                return found
            position += at + 1
        return None
