"""What a backup says of itself: two text files at its root, beside the data directory it is.

``SHA256SUMS`` has one line per file, as ``sha256sum -c SHA256SUMS`` reads it. ``BACKUP`` is a JSON
object: whose backup, of which moment, and the sum of the sums. It is written last.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import msgspec

from durastreamd.kit.command import CommandError
from durastreamd.kit.status import CORRUPT, NO_INPUT
from durastreamd.storage import format as fmt

OWN_FILES = (fmt.BACKUP_FILE, fmt.SUMS_FILE)
FORMAT = "durastreamd backup 1"
BLOCK_BYTES = 1024 * 1024


class About(msgspec.Struct, frozen=True):
    """The contents of ``BACKUP``. ``lsn`` is the last change that is in it."""

    format: str
    uuid: str
    began_ms: int
    ended_ms: int
    lsn: int
    streams: int
    files: int
    bytes: int
    sums: str  # the SHA-256 of SHA256SUMS
    unverified: int = 0  # things that did not verify when it was taken; see ``apart``


class Readable(Protocol):
    """What can be read piece by piece."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""


class Kept(NamedTuple):
    """One file of a backup."""

    size: int
    sha256: str


class BackupManifest(NamedTuple):
    """A backup as it says it is."""

    about: About
    files: dict[str, Kept]


class Mismatch(NamedTuple):
    """A file of a backup that is not as the manifest says."""

    path: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: {self.detail}"


def encode_sums(files: dict[str, Kept]) -> bytes:
    """Return the text of SHA256SUMS."""
    return "".join(f"{files[path].sha256}  {path}\n" for path in sorted(files)).encode()


def read_manifest(root: Path) -> BackupManifest:
    """Return what a backup says of itself, or say why it is none."""
    if not (root / fmt.BACKUP_FILE).is_file():
        text = f"{root} is no whole backup: it has no {fmt.BACKUP_FILE} file; run the backup again"
        raise CommandError(NO_INPUT, text)
    try:
        about = msgspec.json.decode((root / fmt.BACKUP_FILE).read_bytes(), type=About)
        sums = (root / fmt.SUMS_FILE).read_bytes()
        if about.format != FORMAT or hashlib.sha256(sums).hexdigest() != about.sums:
            raise CommandError(CORRUPT, f"{root / fmt.SUMS_FILE} is not the one of this backup")
        lines = [line.split("  ", 1) for line in sums.decode().splitlines()]
    except (msgspec.MsgspecError, FileNotFoundError, UnicodeDecodeError) as exc:
        raise CommandError(CORRUPT, f"{root}: the manifest is damaged: {exc}") from exc
    files = {}
    for total, path in lines:
        place = root / path
        files[path] = Kept(place.stat().st_size if place.is_file() else -1, total)
    return BackupManifest(about, files)


def digest_of(
    source: Readable, advance: Callable[[int], None], out: BinaryIO | None = None
) -> Kept:
    """Return size and sum of the rest of a file, writing it to another one on the way."""
    found = hashlib.sha256()
    size = 0
    while block := source.read(BLOCK_BYTES):
        found.update(block)
        size += len(block)
        if out is not None:
            out.write(block)
        advance(len(block))
    return Kept(size, found.hexdigest())


def check_files(
    root: Path, manifest: BackupManifest, advance: Callable[[int], None]
) -> Iterator[Mismatch]:
    """Yield what is missing, changed or not of the backup; reads every byte."""
    for path, kept in sorted(manifest.files.items()):
        if kept.size < 0:
            yield Mismatch(path, "missing", "the file is not there")
            continue
        with open(root / path, "rb") as source:
            found = digest_of(source, advance)
        if found.sha256 != kept.sha256:
            yield Mismatch(path, "changed", "its bytes are not those that were backed up")
    for place in sorted(root.rglob("*")):
        path = str(place.relative_to(root))
        if place.is_file() and path not in manifest.files and path not in OWN_FILES:
            yield Mismatch(path, "foreign", "the backup did not write this file")
