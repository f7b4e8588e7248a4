"""Carrying out a plan so that it can be killed at any step, finished, and undone.

A repair has a directory of its own, ``quarantine/repair-<n>``:

    1. every new file is written to ``new/`` and synced; then the manifest, which lists every move
    2. the identity file is replaced by one that no server starts with and that names the repair
    3. the moves: originals to ``old/``, then new files to their places; directories synced
    4. the identity file is written again, and the repair is done

A kill before 2 leaves the data as it was, and copies nobody refers to. A kill after it leaves a
directory that the server refuses; ``dsadmin repair --apply`` reads the manifest and goes on: a move
whose source is gone was done. Undoing is the same with the moves turned round. It is possible as
long as nobody has written: a server that only started has begun a new journal and perhaps a new
catalogue, which go to ``since/``, but every stream ends with the record that it ended with.

Nothing is written in place, and nothing is removed but empty directories.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from durastreamd.errors import DataDirectoryError
from durastreamd.offline.repair.layout import FileRange, NewFile
from durastreamd.offline.repair.plan import Plan
from durastreamd.offline.verify.census import Ranges, take_census
from durastreamd.offline.verify.verification import survey
from durastreamd.storage import datadir, format as fmt
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import Disk, read_file, write_all, write_new_file

_REPAIR = re.compile(r"repair-(\d{4,})")
_MARK = re.compile(rb"durastreamd\nrepair (repair-\d+) (forward|back)\nuuid ([0-9a-f]{32})\n")
_UNDONE = "manifest.undone.json"
_DRAFT = f"{fmt.IDENTITY_FILE}.new"
_COPY_BYTES = 1024 * 1024


@dataclass
class RepairMark:
    """What the identity file says while a repair is carried out."""

    name: str
    direction: str
    uuid: bytes


@dataclass
class RepairManifest:
    """What a repair did: moves in order, each from where to where."""

    uuid: str
    moves: list[list[str]]
    installed: dict[str, int]  # checksum of every new file, to tell whether it was changed since
    emptied: list[str]
    losses: list[dict[str, object]]
    findings: list[dict[str, object]]
    # What there was after it, to tell whether anything was written since.
    lsn: int = 0
    streams: list[int] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    # What is served though nothing proves it, because the operator said so.
    unproven: dict[str, Ranges] = field(default_factory=dict)


class Repair:
    """Holds the directory for a repair; a context manager that gives it back."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handles: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._take_lock()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            self._disk.release(handle)

    def _take_lock(self) -> None:
        """Lock what a server, or another repair, would lock."""
        disk = self._disk
        self._handles.append(disk.lock_directory())
        if disk.exists(fmt.IDENTITY_FILE):
            self._handles.append(disk.lock(fmt.IDENTITY_FILE))
            return
        # Without an identity no server starts; the draft of one keeps other repairs out.
        if not disk.exists(_DRAFT):
            write_new_file(disk, _DRAFT, b"")
        self._handles.append(disk.lock(_DRAFT))

    # --- carrying out ---

    def apply(self, plan: Plan) -> str:
        """Carry a plan out; return the name of the repair."""
        disk = self._disk
        name = _next_name(disk)
        home = f"{fmt.QUARANTINE_DIR}/{name}"
        disk.make_directory(fmt.QUARANTINE_DIR)
        for directory in (home, f"{home}/new", f"{home}/old"):
            disk.make_directory(directory)
        moves = [[path, f"{home}/old/{path}"] for path in plan.out]
        if disk.exists(fmt.IDENTITY_FILE):
            _copy(disk, fmt.IDENTITY_FILE, f"{home}/old/{fmt.IDENTITY_FILE}")
        installed: dict[str, int] = {}
        for number, file in enumerate(plan.made):
            staged = f"{home}/new/{number:06d}"
            installed[file.path] = _stage(disk, file, staged)
            moves.append([staged, file.path])
        manifest = RepairManifest(
            plan.uuid.hex(),
            moves,
            installed,
            plan.emptied,
            plan.losses,
            [finding.members() for finding in plan.findings],
            plan.lsn,
            plan.ids,
            plan.buckets,
            plan.extensions,
            {told.stream: told.unproven for told in plan.affected if told.unproven},
        )
        _write(disk, f"{home}/manifest.json", _dumped(manifest))
        for directory in (f"{home}/new", f"{home}/old", home, fmt.QUARANTINE_DIR):
            disk.sync_directory(directory)
        self._mark(name, "forward", plan.uuid)
        self._finish(name, manifest, "forward")
        return name

    def resume(self, mark: RepairMark) -> None:
        """Finish a repair, or an undoing, that was cut short."""
        self._finish(mark.name, read_manifest(self._disk, mark.name), mark.direction)

    def undo(self, name: str) -> None:
        """Take a repair back: its files go to its directory again, the originals return."""
        manifest = read_manifest(self._disk, name)
        if self._disk.exists(f"{fmt.QUARANTINE_DIR}/{name}/{_UNDONE}"):
            return
        changed = _changed_since(self._disk, manifest)
        if changed:
            text = f"{name} cannot be undone: {changed}; "
            text += f"the originals stay in {fmt.QUARANTINE_DIR}/{name}/old"
            raise DataDirectoryError(text)
        self._set_newer_apart(name, manifest)
        self._mark(name, "back", bytes.fromhex(manifest.uuid))
        self._finish(name, manifest, "back")

    def _set_newer_apart(self, name: str, manifest: RepairManifest) -> None:
        """Have what a server has begun since moved away, too: the manifest says so, durably."""
        disk, home = self._disk, f"{fmt.QUARANTINE_DIR}/{name}"
        if not manifest.installed:
            return
        since = [
            f"{folder}/{file}"
            for folder in (fmt.CATALOG_DIR, fmt.JOURNAL_DIR)
            for file in disk.names(folder)
            if f"{folder}/{file}" not in manifest.installed
        ]
        if since:
            disk.make_directory(f"{home}/since")
            manifest.moves += [[f"{home}/since/{path}", path] for path in since]
            _write(disk, f"{home}/manifest.new", _dumped(manifest))
            disk.rename(f"{home}/manifest.new", f"{home}/manifest.json")
            disk.sync_directory(home)

    def _mark(self, name: str, direction: str, uuid: bytes) -> None:
        """Step 2: from here on no server starts, until step 4."""
        text = f"durastreamd\nrepair {name} {direction}\nuuid {uuid.hex()}\n"
        self._replace_identity(text.encode())

    def _replace_identity(self, text: bytes) -> None:
        disk = self._disk
        if disk.exists(_DRAFT):
            disk.unlink(_DRAFT)
        write_new_file(disk, _DRAFT, text)
        # Locked before it takes the place of the file whose lock we hold: nobody comes between.
        self._handles.append(disk.lock(_DRAFT))
        disk.rename(_DRAFT, fmt.IDENTITY_FILE)
        disk.sync_directory("")

    def _finish(self, name: str, manifest: RepairManifest, direction: str) -> None:
        """Steps 3 and 4; done again from the start if they were cut short."""
        disk = self._disk
        home = f"{fmt.QUARANTINE_DIR}/{name}/"
        moves = [(source, target) for source, target in manifest.moves]
        if direction == "back":
            moves = [(target, source) for source, target in reversed(moves)]
        # First all that goes to the repair's directory; durable before anything takes its place.
        _move(disk, [move for move in moves if move[1].startswith(home)])
        rest = [move for move in moves if not move[1].startswith(home)]
        if direction == "back":
            _clear_away(disk, rest)
        _move(disk, rest)
        if direction == "forward":
            _remove_empty(disk, manifest.emptied)
            text = datadir.text_of(bytes.fromhex(manifest.uuid), manifest.extensions)
            self._replace_identity(text.encode())
            return
        _note_undone(disk, name)
        original = f"{home}old/{fmt.IDENTITY_FILE}"
        if disk.exists(original):
            self._replace_identity(read_file(disk, original))
        else:
            disk.unlink(fmt.IDENTITY_FILE)
            disk.sync_directory("")


def _changed_since(disk: Disk, manifest: RepairManifest) -> str:
    """Say what was written since a repair, "" if nothing was."""
    for path, known in manifest.installed.items():
        if path.startswith(f"{fmt.STREAMS_DIR}/") and _sum_of(disk, path) != known:
            return f"{path} was changed since by a running server"
    if not manifest.installed:
        return ""
    found = survey(disk)
    census = take_census(found)
    for finding in (*found.findings, *census.findings):
        if not finding.harmless:
            return f"it cannot be told whether anything was written since: {finding}"
    for stream in census.streams.values():
        if stream.lsn > manifest.lsn:
            return f"{stream.key} was written to since"
    if sorted(census.streams) != manifest.streams or sorted(census.buckets) != manifest.buckets:
        return "streams or buckets were made or removed since"
    return ""


def _move(disk: Disk, moves: list[tuple[str, str]]) -> None:
    """Do the moves that were not done yet, and make them durable."""
    directories: dict[str, None] = {}
    for source, target in moves:
        for path in (source, target):
            directories[path.rpartition("/")[0]] = None
        # What stands at the target already was moved there before a kill; what stands at the
        # source again, if anything, took its place since.
        if disk.exists(source) and not disk.exists(target):
            _make_parents(disk, target, directories)
            disk.rename(source, target)
    _sync(disk, directories)


def _clear_away(disk: Disk, moves: list[tuple[str, str]]) -> None:
    """Remove directories that the repair made where something else had the name."""
    for source, target in moves:
        if disk.exists(source) and disk.exists(target):
            with suppress(OSError):  # not empty, or no directory: then it is not the repair's
                disk.remove_directory(target)


def _remove_empty(disk: Disk, emptied: list[str]) -> None:
    directories: dict[str, None] = {}
    for directory in emptied:
        if disk.exists(directory) and not disk.names(directory):
            disk.remove_directory(directory)
            directories[directory.rpartition("/")[0]] = None
    _sync(disk, directories)


def _sync(disk: Disk, directories: Iterable[str]) -> None:
    for directory in directories:
        if disk.exists(directory) or not directory:
            disk.sync_directory(directory)


def _note_undone(disk: Disk, name: str) -> None:
    """An undone repair keeps its files; its manifest says that it was undone."""
    done = f"{fmt.QUARANTINE_DIR}/{name}/manifest.json"
    if disk.exists(done):
        disk.rename(done, f"{fmt.QUARANTINE_DIR}/{name}/{_UNDONE}")
        disk.sync_directory(f"{fmt.QUARANTINE_DIR}/{name}")


def mark_of(disk: Disk) -> RepairMark | None:
    """Return what repair was cut short, if the identity file says so."""
    if not disk.exists(fmt.IDENTITY_FILE):
        return None
    match = _MARK.fullmatch(read_file(disk, fmt.IDENTITY_FILE))
    if match is None:
        return None
    return RepairMark(match[1].decode(), match[2].decode(), bytes.fromhex(match[3].decode()))


def read_manifest(disk: Disk, name: str) -> RepairManifest:
    """Return what a repair did."""
    for file in ("manifest.json", _UNDONE):
        path = f"{fmt.QUARANTINE_DIR}/{name}/{file}"
        if disk.exists(path):
            try:
                return RepairManifest(**json.loads(read_file(disk, path)))
            except (ValueError, TypeError) as exc:
                text = f"{path} is damaged: {exc}"
                raise DataDirectoryError(text) from exc
    text = f"there is no repair {name} in {fmt.QUARANTINE_DIR}/"
    raise DataDirectoryError(text)


def repairs(disk: Disk) -> list[str]:
    """Return the names of the repairs in quarantine, in order."""
    names = [name for name in disk.names(fmt.QUARANTINE_DIR) if _REPAIR.fullmatch(name)]
    return sorted(names, key=lambda name: int(name.partition("-")[2]))


def _next_name(disk: Disk) -> str:
    last = repairs(disk)[-1:]
    return f"repair-{int(last[0].partition('-')[2]) + 1 if last else 1:04d}"


def _dumped(manifest: RepairManifest) -> bytes:
    return json.dumps(vars(manifest), indent=1).encode()  # names of files may be no text at all


def _write(disk: Disk, path: str, data: bytes) -> None:
    if disk.exists(path):
        disk.unlink(path)
    write_new_file(disk, path, data)


def _copy(disk: Disk, source: str, target: str) -> None:
    _write(disk, target, read_file(disk, source))


def _make_parents(disk: Disk, path: str, touched: dict[str, None]) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        directory = "/".join(parts[:depth])
        if not disk.exists(directory):
            disk.make_directory(directory)
            touched["/".join(parts[: depth - 1])] = None


def _stage(disk: Disk, file: NewFile, staged: str) -> int:
    """Write a new file and make it durable; return its checksum."""
    handle = disk.open(staged, create=True, write=True)
    position = 0
    try:
        for part in file.parts:
            for data in _read_part(disk, part):
                write_all(disk, handle, data, position)
                position += len(data)
        disk.sync(handle)
    finally:
        disk.release(handle)
    known = _sum_of(disk, staged)
    assert known is not None
    return known


def _read_part(disk: Disk, part: bytes | FileRange) -> Iterator[bytes]:
    if isinstance(part, bytes):
        yield part
        return
    handle = disk.open(part.path)
    try:
        for at in range(0, part.size, _COPY_BYTES):
            yield disk.pread(handle, min(_COPY_BYTES, part.size - at), part.at + at)
    finally:
        disk.release(handle)


def _sum_of(disk: Disk, path: str) -> int | None:
    """Return a checksum over a whole file, None if it is not there."""
    if not disk.exists(path):
        return None
    handle = disk.open(path)
    try:
        size = disk.size(handle)
        total = size
        for at in range(0, size, _COPY_BYTES):
            total = digest(disk.pread(handle, _COPY_BYTES, at), total)
        return total
    finally:
        disk.release(handle)
