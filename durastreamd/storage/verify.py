"""The verifier of a stream's files: reads every byte, trusts nothing, never writes.

It shares structs and checksums with the reader and nothing else: no shortcut of the reader, no
search, no placement. What it is given is what the catalogue claims; what it looks at is what the
files hold.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from durastreamd.storage import format as fmt, index
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import Disk, read_file
from durastreamd.storage.log import Placement


class Finding(NamedTuple):
    """Something that is not as it must be, and where."""

    path: str
    position: int
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.position}: {self.kind}: {self.detail}"


class _Chain(NamedTuple):
    """Where the records of a stream have come to: the next one must go on from here."""

    tail: int
    lsn: int
    ordinal: int


def verify_files(disk: Disk, stream: int, place: Placement) -> Iterator[Finding]:
    """Check the indexes and segments of one stream against each other and the catalogue."""
    if not place.made:
        return
    names = disk.names(fmt.stream_dir(stream))
    bases = fmt.numbered(names, ".idx")
    if place.base not in bases:
        path = fmt.index_path(stream, place.base)
        yield Finding(path, 0, "missing", "the active index is not there")
    segments = set(fmt.numbered(names, ".log"))
    chain: _Chain | None = None
    for number, base in enumerate(bases):
        last = number + 1 == len(bases)
        length = place.index_bytes if base == place.base else None
        if chain is not None and chain.tail != base:
            path = fmt.index_path(stream, base)
            yield Finding(path, 0, "gap", f"the segment before ends at {chain.tail}")
            chain = None
        data = read_file(disk, fmt.segment_path(stream, base)) if base in segments else b""
        chain = yield from _verify_segment(disk, stream, base, data, length, chain)
        if last and base == place.base and chain is not None and chain.tail != place.flushed:
            path = fmt.index_path(stream, base)
            detail = f"its records end at {chain.tail}, the catalogue says {place.flushed}"
            yield Finding(path, place.index_bytes, "short", detail)


def _verify_segment(
    disk: Disk, stream: int, base: int, data: bytes, length: int | None, chain: _Chain | None
) -> Generator[Finding, None, _Chain | None]:
    """Check one segment with its index; the generator's value is where the records have come to."""
    path = fmt.index_path(stream, base)
    raw = read_file(disk, path)
    if length is not None and len(raw) < length:
        yield Finding(path, len(raw), "short", f"the file ends here, {length} bytes were durable")
    raw = raw if length is None else raw[:length]
    if raw[: index.HEADER_BYTES] != index.encode_header(stream, base):
        yield Finding(path, 0, "header", "the index header does not verify")
    seed = index.file_seed(stream, base)
    position = index.HEADER_BYTES
    while position < len(raw):
        entry = index.parse_entry(raw, position, stream, seed, position)
        if entry is None:
            yield Finding(path, position, "entry", "the index entry does not verify")
            return None
        if not entry.is_state:
            yield from _verify_entry(path, entry, chain)
            yield from _verify_payload(stream, base, data, entry.frame)
            frame = entry.frame
            chain = _Chain(frame.start + frame.size, frame.lsn, frame.ordinal)
        elif chain is None:
            chain = _Chain(entry.frame.start, entry.frame.lsn, entry.frame.ordinal)
        position = entry.end
    return chain


def _verify_entry(path: str, entry: index.Entry, chain: _Chain | None) -> Iterator[Finding]:
    frame = entry.frame
    if chain is None:
        return
    if frame.start != chain.tail:
        detail = f"the record starts at {frame.start}, the one before ends at {chain.tail}"
        yield Finding(path, entry.position, "gap", detail)
    if frame.lsn <= chain.lsn or frame.ordinal < chain.ordinal:
        detail = f"record {frame.lsn} does not follow record {chain.lsn}"
        yield Finding(path, entry.position, "order", detail)


def _verify_payload(
    stream: int, base: int, data: bytes, frame: fmt.StoredFrame
) -> Iterator[Finding]:
    if not frame.size:
        return
    at = frame.start - base
    payload = data[at : at + frame.size]
    path = fmt.segment_path(stream, base)
    if len(payload) < frame.size:
        detail = f"record {frame.lsn} needs {frame.size} bytes at {at}"
        yield Finding(path, len(data), "short", detail)
    elif payload_sum(payload, stream, frame.start) != frame.payload_sum:
        yield Finding(path, at, "payload", f"record {frame.lsn} does not verify")
