"""The data directory: is it ours, of a version we read, and ours alone right now?

The identity file is written last when a directory is made, so a directory without one was never
in use: made anew if it holds nothing but our own empty folders, refused if it holds anything else
(a mistyped path), and refused if it is empty and was not asked to be made (a missing mount).
"""

import re
from typing import NamedTuple

from durastreamd.errors import DataDirectoryError
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import Disk, read_file, write_new_file

_FOLDERS = (fmt.JOURNAL_DIR, fmt.CATALOG_DIR, fmt.STREAMS_DIR, fmt.QUARANTINE_DIR)
_IDENTITY = re.compile(r"durastreamd\nformat (\d{1,9})\nuuid ([0-9a-f]{32})\nsum ([0-9a-f]{16})\n")
_DRAFT = fmt.IDENTITY_FILE + ".new"


class Identity(NamedTuple):
    """Who a data directory is."""

    uuid: bytes
    version: int


def text_of(uuid: bytes) -> str:
    """Return what the identity file of a directory holds."""
    body = f"durastreamd\nformat {fmt.FORMAT_VERSION}\nuuid {uuid.hex()}\n"
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
    if match is None or text != _matching(match):
        version = re.match(r"durastreamd\nformat (\d+)\n", text)
        if version and int(version[1]) != fmt.FORMAT_VERSION:
            reason = (
                f"the data directory has format {version[1]}, this durastreamd reads format "
                f"{fmt.FORMAT_VERSION}; use the version that wrote it"
            )
            raise DataDirectoryError(reason)
        reason = f"{fmt.IDENTITY_FILE} is damaged; `dsadmin repair` can restore it"
        raise DataDirectoryError(reason)
    return Identity(bytes.fromhex(match[2]), int(match[1]))


def _matching(match: re.Match[str]) -> str:
    """Return the text this version would have written for the same uuid."""
    return text_of(bytes.fromhex(match[2]))
