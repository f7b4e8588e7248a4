"""The data directory: is it ours, of a version we read, and ours alone right now?

The identity file is written last when a directory is made, so a directory without one was never
in use: made anew if it holds nothing but our own empty folders, refused if it holds anything else
(a mistyped path), and refused if it is empty and was not asked to be made (a missing mount).

It also names the extensions of the format that the directory uses (``extensions``). Naming one more
replaces the file while it is locked; the new one is locked before it takes the name.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from durastreamd.errors import DataDirectoryError, WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import Disk, read_file, write_new_file
from durastreamd.storage.extensions import EXTENSIONS

_FOLDERS = (fmt.JOURNAL_DIR, fmt.CATALOG_DIR, fmt.STREAMS_DIR, fmt.QUARANTINE_DIR)
_IDENTITY = re.compile(
    r"durastreamd\nformat (\d{1,9})\nuuid ([0-9a-f]{32})\n(?:extensions ([a-z -]+)\n)?"
    r"sum ([0-9a-f]{16})\n"
)
# What the identity of a directory with extensions says. Readers that know of none refuse it.
_EXTENDED_VERSION = fmt.FORMAT_VERSION + 1
_VERSION = re.compile(rb"(durastreamd\nformat (\d{1,9})\n(?:[^\n]*\n)*)sum ([0-9a-f]{16})\n")
_DRAFT = fmt.IDENTITY_FILE + ".new"


class Identity(NamedTuple):
    """Who a data directory is."""

    uuid: bytes
    version: int
    extensions: frozenset[str] = frozenset()


def text_of(uuid: bytes, extensions: Collection[str] = ()) -> str:
    """Return what the identity file of a directory holds."""
    version = _EXTENDED_VERSION if extensions else fmt.FORMAT_VERSION
    body = f"durastreamd\nformat {version}\nuuid {uuid.hex()}\n"
    if extensions:
        body += f"extensions {' '.join(sorted(extensions))}\n"
    return f"{body}sum {digest(body.encode(), 0):016x}\n"


def is_new(disk: Disk) -> bool:
    """Tell whether the directory has never been in use; raise where it is somebody else's."""
    if disk.exists(fmt.IDENTITY_FILE):
        return False
    foreign = [name for name in disk.names("") if name not in (*_FOLDERS, _DRAFT)]
    foreign += [f"{fmt.STREAMS_DIR}/{name}" for name in disk.names(fmt.STREAMS_DIR)]
    if foreign:
        reason = (
            f"not a durastreamd data directory: it has no {fmt.IDENTITY_FILE} file but holds "
            f"{foreign[0]!r}; point the data directory at an empty one"
        )
        raise DataDirectoryError(reason)
    return True


def make_folders(disk: Disk) -> None:
    """Make the folders of a new directory; leftovers of an attempt cut short go first."""
    for folder in _FOLDERS:
        disk.make_directory(folder)
        for name in disk.names(folder):
            disk.unlink(f"{folder}/{name}")
    if disk.exists(_DRAFT):
        disk.unlink(_DRAFT)
    disk.sync_directory("")


def write_identity(disk: Disk, uuid: bytes) -> None:
    """Make the directory ours, for good: the last step of making one."""
    write_new_file(disk, _DRAFT, text_of(uuid).encode())
    disk.rename(_DRAFT, fmt.IDENTITY_FILE)
    disk.sync_directory("")


def replace_identity(disk: Disk, uuid: bytes, extensions: Collection[str]) -> int:
    """Name the extensions in use; return the new file's lock, which the caller keeps.

    They are named durably once the caller has synced the directory.
    """
    try:
        if disk.exists(_DRAFT):
            disk.unlink(_DRAFT)
        write_new_file(disk, _DRAFT, text_of(uuid, extensions).encode())
        handle = disk.lock(_DRAFT)
        disk.rename(_DRAFT, fmt.IDENTITY_FILE)
    except OSError as exc:
        reason = f"cannot replace {fmt.IDENTITY_FILE}: {exc.strerror or exc}"
        raise WriteFailedError(reason) from exc
    return handle


def read_identity(disk: Disk) -> Identity:
    """Return who the directory is, or say plainly why it cannot be used."""
    if not disk.exists(fmt.IDENTITY_FILE):
        reason = (
            f"no durastreamd data directory here: {fmt.IDENTITY_FILE} is missing "
            "(is the volume mounted?); --init makes an empty directory a data directory"
        )
        raise DataDirectoryError(reason)
    text = read_file(disk, fmt.IDENTITY_FILE).decode("utf-8", "replace")
    match = _IDENTITY.fullmatch(text)
    extensions = match[3].split(" ") if match and match[3] else []
    if match is None or text != text_of(bytes.fromhex(match[2]), extensions):
        version = re.match(r"durastreamd\nformat (\d+)\n", text)
        if version and int(version[1]) not in (fmt.FORMAT_VERSION, _EXTENDED_VERSION):
            reason = (
                f"the data directory has format {version[1]}, this durastreamd reads format "
                f"{fmt.FORMAT_VERSION}; use the version that wrote it"
            )
            raise DataDirectoryError(reason)
        reason = f"{fmt.IDENTITY_FILE} is damaged; `dsadmin repair` can restore it"
        raise DataDirectoryError(reason)
    unknown = [name for name in extensions if name not in EXTENSIONS]
    if unknown:
        reason = (
            f"the data directory uses the extension {unknown[0]!r} of the format, which this "
            "durastreamd does not know; use the version that wrote it, or a newer one"
        )
        raise DataDirectoryError(reason)
    return Identity(bytes.fromhex(match[2]), int(match[1]), frozenset(extensions))


def of_another_version(text: bytes) -> bool:
    """Tell a whole identity file that we do not read from a damaged one of ours."""
    match = _VERSION.fullmatch(text)
    return match is not None and digest(match[1], 0) == int(match[3], 16)
