"""Which files ``dsadmin dump`` is about: found without opening the directory, which may be damaged.

Names are gathered from whatever still verifies: rows of the catalogue, creations in the journal and
in the indexes. A file is known by its first bytes, and where those are damaged by its name.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from durastreamd.admin.look.frames import (
    OK,
    Found,
    Read,
    catalog_frames,
    index_entries,
    journal_frames,
)
from durastreamd.errors import DataDirectoryError
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import NO_INPUT
from durastreamd.offline.names import id_of, keys_of, nearest
from durastreamd.offline.opening import in_use
from durastreamd.storage import datadir, format as fmt, log
from durastreamd.storage.disk import RealDisk, read_file

_MAGICS = {fmt.JOURNAL_MAGIC: ".jnl", fmt.INDEX_MAGIC: ".idx", fmt.CATALOG_MAGIC: ".cat"}
_TORN = re.compile(r"(\d{16})\.jnl@(\d+)\.torn")
# Beside a running daemon a file may be there while the one beside it is not.
LOOKS_MAX = 3
LOOK_AGAIN_S = 0.02

_HEX_ID = re.compile(r"[0-9a-f]{16}")


class _SourceFile(NamedTuple):
    """A file to be walked, and how: ``suffix`` tells what it is."""

    path: Path
    shown: str
    suffix: str
    data: bytes


# --- a directory ---


class Directory:
    """A data directory as its files are."""

    def __init__(self, disk: RealDisk, root: Path) -> None:
        self.disk = disk
        self.root = root
        self.running = in_use(disk)
        self.uuid = self._find_uuid()
        self.names: dict[int, str] = {}

    def _find_uuid(self) -> bytes:
        """Return the directory's uuid; every journal file and catalogue has it, too."""
        try:
            return datadir.read_identity(self.disk).uuid
        except DataDirectoryError:
            for path in (*self._paths(fmt.JOURNAL_DIR), *self._paths(fmt.CATALOG_DIR)):
                head = read_file(self.disk, path)[:32]
                if head[:8] in _MAGICS and len(head) == 32:
                    return head[16:32]
            return bytes(16)

    def _paths(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in self.disk.names(folder)]

    def journal(self) -> Iterator[Found]:
        """Yield every frame of every journal file."""
        self._learn_rows()
        for number in fmt.numbered(self.disk.names(fmt.JOURNAL_DIR), ".jnl"):
            path = fmt.journal_path(number)
            try:
                data = read_file(self.disk, path)
            except FileNotFoundError:
                continue  # a daemon is running, and its checkpoint came first
            yield from journal_frames(path, data, self.uuid, number, self.names)

    def _learn_rows(self) -> None:
        for number in fmt.numbered(self.disk.names(fmt.CATALOG_DIR), ".cat")[-1:]:
            path = fmt.catalog_path(number)
            for found in catalog_frames(path, read_file(self.disk, path), self.uuid, number):
                if found.kind == "stream-row":
                    self.names[int(str(found.fields["stream"]), 16)] = str(found.fields["key"])

    def stream(self, stream: int) -> Iterator[Found]:
        """Yield every entry of a stream's indexes, then what only the journal has of it."""
        last = -1
        for base in log.files(self.disk, stream):
            for found in self._index(stream, base):
                lsn = found.fields.get("lsn")
                last = max(last, lsn if isinstance(lsn, int) else -1)
                yield found
        for found in self.journal():
            if found.stream == stream and found.order > last and found.kind != "touch":
                yield found._replace(order=int(str(found.fields["offset"])))

    def _index(self, stream: int, base: int) -> Iterator[Found]:
        path, segment = fmt.index_path(stream, base), self.root / fmt.segment_path(stream, base)
        looks = 0
        while True:
            looks += 1
            # The segment first: a daemon writes bytes before their entry, and removes them first.
            with _segment(segment, base) as read:
                if not self.disk.exists(path):
                    if segment.exists():
                        detail = "the index is missing; `dsadmin reindex` makes it anew"
                        yield Found(path, 0, 0, "header", "bad-header", {}, base, b"", detail)
                    return
                data = read_file(self.disk, path)
                if read is not None or not self.running or looks == LOOKS_MAX:
                    yield from index_entries(path, data, stream, base, read)
                    return
            time.sleep(LOOK_AGAIN_S)  # it may be coming or going

    def find(self, name: str) -> int:
        """Return the id of the stream a user means."""
        for _ in self.journal():
            pass  # learns the names
        ids = {key: stream for stream, key in sorted(self.names.items())}
        for key in keys_of(name):
            if key in ids:
                return ids[key]
        number = id_of(name)
        if number and (number in self.names or self.disk.exists(fmt.stream_dir(number))):
            return number
        text = f"{name} is neither a file nor the name of a stream here{nearest(ids, name)}"
        raise CommandError(NO_INPUT, text)


@contextmanager
def _segment(path: Path, base: int) -> Iterator[Read | None]:
    """Lend what reads a segment, None where there is none."""
    if not path.exists():
        yield None
        return
    with path.open("rb") as file:

        def read(size: int, position: int) -> bytes:
            file.seek(max(position - base, 0))
            return file.read(size)

        yield read


# --- a file ---


def file_frames(path: Path, shown: str, directory: Directory | None) -> Iterator[Found]:
    """Yield what a file holds."""
    data = path.read_bytes() if path.suffix != ".log" else b""
    file = _SourceFile(path, shown, _MAGICS.get(data[:8], path.suffix), data)
    torn = _TORN.fullmatch(path.name)
    if torn is not None:
        yield from _torn_frames(file, int(torn[1]), int(torn[2]), directory)
    elif file.suffix == ".jnl":
        uuid, number = _of_directory(file, directory)
        names = directory.names if directory is not None else {}
        yield from journal_frames(shown, data, uuid, number, names)
    elif file.suffix == ".cat":
        uuid, number = _of_directory(file, directory)
        yield from catalog_frames(shown, data, uuid, number)
    elif file.suffix in (".idx", ".log"):
        yield from _index_frames(file)
    elif path.name == fmt.IDENTITY_FILE:
        yield _identity(file)
    else:
        text = (
            f"{shown} is not a file of durastreamd's that has frames: dump reads .jnl, .idx, .cat, "
            f".log (by the index beside it), .torn and {fmt.IDENTITY_FILE}"
        )
        raise CommandError(NO_INPUT, text)


def _of_directory(file: _SourceFile, directory: Directory | None) -> tuple[bytes, int]:
    """Return uuid and number of a file: its own word, or where it stands if that is damaged."""
    stem = file.path.name.partition(".")[0]
    named = int(stem) if stem.isdigit() else int.from_bytes(file.data[32:40], "little")
    uuid = directory.uuid if directory is not None else file.data[16:32].ljust(16, b"\0")
    return uuid, named


def _torn_frames(
    file: _SourceFile, number: int, position: int, directory: Directory | None
) -> Iterator[Found]:
    """Walk the end of a journal file that was cut off, at the place it had there."""
    uuid = directory.uuid if directory is not None else bytes(16)
    whole = bytes(position) + file.data
    for found in journal_frames(file.shown, whole, uuid, number, {}):
        if found.end > position:
            start = max(found.position, position)
            yield found._replace(position=start - position, end=found.end - position)


def _index_frames(file: _SourceFile) -> Iterator[Found]:
    index = file.path.with_suffix(".idx")
    if not index.exists():
        text = f"{file.shown} has no index beside it; `dsadmin reindex` makes it anew"
        raise CommandError(NO_INPUT, text)
    data = index.read_bytes()
    stream, base = int.from_bytes(data[16:24], "little"), int.from_bytes(data[24:32], "little")
    # Where a file stands counts more than what it says of itself, unless it was copied away.
    if _HEX_ID.fullmatch(index.parent.name):
        stream = int(index.parent.name, 16)
    if index.stem.isdigit():
        base = int(index.stem)
    shown = file.shown.removesuffix(file.path.suffix) + ".idx"
    with _segment(file.path.with_suffix(".log"), base) as read:
        yield from index_entries(shown, data, stream, base, read)


def _identity(file: _SourceFile) -> Found:
    text = file.data.decode("utf-8", "replace")
    fields: dict[str, object] = {
        key: value for key, _, value in (line.partition(" ") for line in text.splitlines()) if value
    }
    try:
        datadir.read_identity(RealDisk(str(file.path.parent)))
    except DataDirectoryError as exc:
        return Found(file.shown, 0, len(file.data), "identity", "bad-header", {}, detail=str(exc))
    return Found(file.shown, 0, len(file.data), "identity", OK, fields)
