"""Proofs: that bytes taken from a file are the bytes that were written there.

Theory of operation
-------------------
A record's checksum stands in its index entry and a snapshot's in its row, so bytes can be verified
only in whole records, or as a whole. Readers want any range, quickly, on the event loop. Between
the two stands a table for each file: the sum of every block of 64 KiB that has been verified since
this process began. The first read of a block makes it: the records that touch the block are read
in a thread, record sums and block sums are taken from the same memory, and a block is entered only
when every record in it has verified. From then on a read takes whole blocks and compares them with
the table, which costs a thirtieth of reading them; so bytes that rot later, under a page that the
kernel dropped, are seen as well, by every reader.

Nothing rests on an index entry but what its own checksum proves: it is seeded with stream, base
and position, so entries of another stream, segment or place do not verify, nor do its payloads.

The active segment grows. Its last block is proven as far as the segment reached at the time; when
a reader knows of more, that block is proven anew. Bytes below the flushed end never change, so a
read that takes its sums and its end from one look at the table cannot mistake growth for damage.

What is amiss raises CorruptDataError: bytes that do not verify, a file that is missing, short, too
long or no file at all. A disk that fails says nothing about the bytes it does not hand out
(ReadFailedError), nor does running out of descriptors or memory, which is raised as it is.
"""

import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from durastreamd.errors import ColdReadError, CorruptDataError
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import BlobCheck, BlobFile
from durastreamd.storage.checksum import payload_seed, payload_sum
from durastreamd.storage.disk import Disk, faults_of
from durastreamd.storage.handles import HandleTable
from durastreamd.storage.index import IndexFile, IndexReader

# Small enough that a short read costs little more than itself, large enough for few sums.
BLOCK_BYTES = 64 * 1024
# Blocks read at once while a range is proven: what bounds its memory, however long a record is.
_CHUNK_BLOCKS = 4
# A reader that goes on where it left off will want more: one search of the index serves so much.
_AHEAD_BYTES = 4 * 1024 * 1024
# A segment of one block with an index of at most so much (a hundred entries, under a millisecond)
# is proven where the caller is, without a thread: most streams are small.
_INLINE_INDEX_BYTES = 8 * 1024
# What a table costs beside its sums: two objects, a path, a place in the dictionary.
_TABLE_BYTES = 400
_ANY_POSITION = 2**64


class Segment(NamedTuple):
    """A segment as a reader knows it: up to which length it and its index are whole.

    Of a segment that is not the active one the lengths are not known, and -1: it is at rest, and
    its index says where it ends.
    """

    stream: int
    base: int
    size: int = -1
    index_size: int = -1

    @property
    def path(self) -> str:
        """Return the path of the segment's file."""
        return fmt.segment_path(self.stream, self.base)

    @property
    def index_file(self) -> IndexFile:
        """Return the index beside it."""
        return IndexFile(self.stream, self.base)


class _Table:
    """What is known of one file: how long it is, and the sum of each block; 0 if not proven."""

    __slots__ = ("closed", "index_size", "size", "sums")

    def __init__(self) -> None:
        self.size = 0
        self.index_size = 0
        self.closed = False  # at rest: its lengths are final
        self.sums = array("Q")

    def grow(self, size: int, index_size: int, block: int) -> None:
        """Know of more bytes; a last block that was proven only in part is not proven any more."""
        if size <= self.size:
            return
        if self.size % block and self.size // block < len(self.sums):
            self.sums[self.size // block] = 0
        self.size, self.index_size = size, index_size
        missing = -(-size // block) - len(self.sums)
        self.sums.extend([0] * missing)


class _Taken(NamedTuple):
    """Whole blocks to be read, and what their sums must be; from one look at a table."""

    low: int
    high: int
    sums: "array[int]"


class Proofs:
    """Reads files of one data directory, and verifies what it read. For any thread."""

    checking = True  # off only to measure what that costs

    def __init__(self, disk: Disk, handles: HandleTable, bytes_max: int) -> None:
        self._disk = disk
        self._handles = handles
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._bytes = 0
        self.block_bytes = BLOCK_BYTES

    def __len__(self) -> int:
        return len(self._tables)

    # --- reading ---

    def read(self, file: Segment | BlobFile, start: int, stop: int, *, wait: bool = True) -> bytes:
        """Return the bytes of [start, stop) of a file, verified.

        With ``wait`` False, ColdReadError is raised where the disk, or a longer proof, is needed.
        """
        path = file.path
        taken = self._taken(file, path, start, stop, wait=wait)
        size = taken.high - taken.low
        with faults_of(path), self._handles.pinned(path) as handle:
            data = self._disk.pread(handle, size, taken.low, wait=wait)
            while len(data) < size:
                at = taken.low + len(data)
                more = self._disk.pread(handle, size - len(data), at, wait=wait)
                if not more:
                    raise CorruptDataError(path, at, "the file ends here")
                data += more
        self._compare(path, memoryview(data), taken)
        if size == stop - start:
            return data
        return data[start - taken.low : stop - taken.low]

    def lend(
        self,
        file: Segment | BlobFile,
        start: int,
        stop: int,
        buffer: memoryview,
        *,
        wait: bool = True,
    ) -> memoryview | None:
        """Read as ``read`` does into a buffer; None if the blocks do not fit into it."""
        path = file.path
        taken = self._taken(file, path, start, stop, wait=wait)
        if taken.high - taken.low > len(buffer):
            return None
        part = buffer[: taken.high - taken.low]
        self._fill(path, part, taken.low, wait=wait)
        self._compare(path, part, taken)
        return part[start - taken.low : stop - taken.low]

    def prove(self, file: Segment | BlobFile, start: int, stop: int) -> None:
        """Have the proof of a range at hand; blocks."""
        self._taken(file, file.path, start, stop, wait=True)

    def _compare(self, path: str, data: memoryview, taken: _Taken) -> None:
        block = self.block_bytes
        for number, expected in enumerate(taken.sums):
            at = number * block
            if xxh3_64_intdigest(data[at : at + block]) != expected:
                reason = "the bytes are not those that were verified before"
                raise CorruptDataError(path, taken.low + at, reason)

    def _fill(self, path: str, buffer: memoryview, position: int, *, wait: bool) -> None:
        """Read exactly so much as the buffer holds."""
        with faults_of(path), self._handles.pinned(path) as handle:
            got = 0
            while got < len(buffer):
                part = buffer[got:]
                more = self._disk.pread_into(handle, part, position + got, wait=wait)
                if not more:
                    raise CorruptDataError(path, position + got, "the file ends here")
                got += more

    # --- tables ---

    def _taken(
        self, file: Segment | BlobFile, path: str, start: int, stop: int, *, wait: bool
    ) -> _Taken:
        """Return the blocks of a range with their sums, which are proven first if need be."""
        if not self.checking:
            return _Taken(start, stop, array("Q"))
        table = self._known(file, path)
        while table is None or (found := self._take(table, path, start, stop)) is None:
            if not wait and not self._is_quick(file):
                raise ColdReadError
            if isinstance(file, BlobFile):
                table = self._prove_blob(file, path)
            else:
                table = table or self._learn(file, path, wait=wait)
                self._prove(file, path, table, (start, stop), wait=wait)
        return found

    def _is_quick(self, file: Segment | BlobFile) -> bool:
        if isinstance(file, BlobFile):
            return False
        return 0 <= file.size <= self.block_bytes and file.index_size <= _INLINE_INDEX_BYTES

    def _known(self, file: Segment | BlobFile, path: str) -> _Table | None:
        """Return a file's table, None where there is none or it does not know where it ends."""
        with self._lock:
            table = self._tables.get(path)
            if table is None:
                return None
            self._tables.move_to_end(path)
            if isinstance(file, Segment):
                if file.size > table.size:
                    before = len(table.sums)
                    table.grow(file.size, file.index_size, self.block_bytes)
                    self._bytes += 8 * (len(table.sums) - before)
                elif file.size < 0 and not table.closed:
                    return None
            return table

    def _take(self, table: _Table, path: str, start: int, stop: int) -> _Taken | None:
        block = self.block_bytes
        with self._lock:
            if stop > table.size:
                raise CorruptDataError(path, table.size, "the segment's records end here")
            high = min(-(-stop // block) * block, table.size)
            sums = table.sums[start // block : -(-high // block)]
        return None if 0 in sums else _Taken(start - start % block, high, sums)

    def _keep(self, path: str, table: _Table) -> _Table:
        """Enter a table, at the cost of those that were not used for the longest time."""
        with self._lock:
            known = self._tables.setdefault(path, table)
            if known is not table:
                known.closed = known.closed or table.closed
                before = len(known.sums)
                known.grow(table.size, table.index_size, self.block_bytes)
                self._bytes += 8 * (len(known.sums) - before)
            else:
                self._bytes += _TABLE_BYTES + 8 * len(table.sums)
            self._tables.move_to_end(path)
            while self._bytes > self._bytes_max and len(self._tables) > 1:
                _, old = self._tables.popitem(last=False)
                self._bytes -= _TABLE_BYTES + 8 * len(old.sums)
            return known

    # --- segments ---

    def index_size(self, segment: Segment, *, wait: bool = True) -> int:
        """Return how long a segment's index is, which of one at rest is looked up once."""
        if segment.index_size >= 0:
            return segment.index_size
        path = segment.path
        table = self._known(segment, path)
        if table is None:
            if not wait:
                raise ColdReadError
            table = self._learn(segment, path, wait=wait)
        return table.index_size

    def index_reader(self, segment: Segment, size: int, *, wait: bool = True) -> IndexReader:
        """Return a reader of a segment's index up to a length."""
        file = segment.index_file
        path = file.path

        def read(wanted: int, position: int) -> bytes:
            with faults_of(path), self._handles.pinned(path) as handle:
                return self._disk.pread(handle, min(wanted, size - position), position, wait=wait)

        return file.reader(read, size)

    def _file_size(self, path: str) -> int:
        with faults_of(path), self._handles.pinned(path) as handle:
            return self._disk.size(handle)

    def _learn(self, segment: Segment, path: str, *, wait: bool) -> _Table:
        """Make the table of a segment; the length of one at rest must be what its index says."""
        table = _Table()
        if segment.size >= 0:
            table.grow(segment.size, segment.index_size, self.block_bytes)
            return self._keep(path, table)
        index_size = self._file_size(segment.index_file.path)
        reader = self.index_reader(segment, index_size, wait=wait)
        last = reader.last_at_or_before(lambda frame: frame.start, _ANY_POSITION)
        end = 0 if last is None else last.frame.start + last.frame.size - segment.base
        found = self._file_size(path)
        if found != end:
            reason = f"the segment has {found} bytes, its index speaks of {end}"
            raise CorruptDataError(path, min(found, end), reason)
        table.grow(end, index_size, self.block_bytes)
        table.closed = True
        return self._keep(path, table)

    def _prove(
        self, segment: Segment, path: str, table: _Table, extent: tuple[int, int], *, wait: bool
    ) -> None:
        """Verify the records that touch a range, and enter the blocks they cover."""
        block = self.block_bytes
        low = extent[0] - extent[0] % block
        with self._lock:
            end, index_size = table.size, table.index_size
            goes_on = low > 0 and table.sums[low // block - 1] != 0
        wanted = max(extent[1], low + _AHEAD_BYTES) if goes_on else extent[1]
        high = min(-(-wanted // block) * block, end)
        reader = self.index_reader(segment, index_size, wait=wait)
        records = Records(reader, segment, low)
        at = records.first - records.first % block
        first, sums = at // block, array("Q")
        buffer = memoryview(bytearray(min(_CHUNK_BLOCKS * block, end - at)))
        while records.proven < high:
            piece = buffer[: min(len(buffer), end - at)]
            if not piece:
                reason = "no entry of the index holds this position"
                raise CorruptDataError(reader.path, segment.base + records.proven, reason)
            self._fill(path, piece, at, wait=wait)
            for start in range(0, len(piece), block):
                sums.append(xxh3_64_intdigest(piece[start : start + block]))
            records.feed(piece, at)
            at += len(piece)
        with self._lock:
            for number, total in enumerate(sums, first):
                stop = min((number + 1) * block, end)
                # A last block that has grown meanwhile would be entered with the sum of its part.
                whole = stop % block == 0 or table.size == end
                if number * block >= records.first and stop <= records.proven and whole:
                    table.sums[number] = total

    # --- snapshots ---

    def _prove_blob(self, blob: BlobFile, path: str) -> _Table:
        """Verify a snapshot, which has one checksum; block by block, in bounded memory."""
        check = BlobCheck(blob, self._file_size(path))
        table = _Table()
        table.grow(blob.size, 0, self.block_bytes)
        buffer = memoryview(bytearray(self.block_bytes))
        for number in range(len(table.sums)):
            at = number * self.block_bytes
            piece = buffer[: min(self.block_bytes, blob.size - at)]
            self._fill(path, piece, at, wait=True)
            check.add(piece)
            table.sums[number] = xxh3_64_intdigest(piece)
        check.finish()
        return self._keep(path, table)


class Records:
    """Verifies the records of a segment, one after the other, as its bytes go by.

    Positions are those of the file. ``first`` is where the first record begins that is looked at,
    the one that holds ``low``; up to ``proven`` every record from there on has verified.
    """

    def __init__(self, reader: IndexReader, segment: Segment, low: int = 0) -> None:
        self._segment = segment
        self._path = segment.path
        self._index_path = reader.path
        found = None
        if low:
            found = reader.last_at_or_before(lambda frame: frame.start, segment.base + low)
        entries = reader.entries() if found is None else reader.entries(found.position)
        self._entries = (entry for entry in entries if not entry.is_state and entry.frame.size)
        self._entry = next(self._entries, None)
        self.first = low if self._entry is None else self._entry.frame.start - segment.base
        if self.first > low:
            self._refuse(low)
        self.proven = self.first
        self._hash: xxh3_64 | None = None

    def _refuse(self, position: int) -> None:
        reason = "no entry of the index holds this position"
        raise CorruptDataError(self._index_path, self._segment.base + position, reason)

    def feed(self, data: memoryview, at: int) -> None:
        """Take the bytes at a position: those after the ones before, or from ``first`` on."""
        stop = at + len(data)
        position = max(at, self.first)
        while position < stop and self._entry is not None:
            frame = self._entry.frame
            start = frame.start - self._segment.base
            if start != self.proven:
                self._refuse(self.proven)
            end = min(start + frame.size, stop)
            part = data[position - at : end - at]
            position = end
            if len(part) == frame.size:
                self._judge(payload_sum(part, frame.stream, frame.start))
                continue
            if self._hash is None:
                self._hash = xxh3_64(seed=payload_seed(frame.stream, frame.start))
            self._hash.update(part)
            if end == start + frame.size:
                self._judge(self._hash.intdigest())
                self._hash = None

    def finish(self, size: int) -> None:
        """Verify the entries after the last record with bytes; the segment must end with it."""
        if self._entry is not None or self.proven != size:
            reason = f"the index speaks of other bytes than the segment's {size}"
            raise CorruptDataError(self._path, min(self.proven, size), reason)

    def _judge(self, total: int) -> None:
        assert self._entry is not None
        frame = self._entry.frame
        at = frame.start - self._segment.base
        if total != frame.payload_sum:
            raise CorruptDataError(self._path, at, f"record {frame.lsn} does not verify")
        self.proven = at + frame.size
        self._entry = next(self._entries, None)
