"""``dsadmin gc``: remove what nothing refers to any more. A plan by default; ``--apply`` removes.

That is: files of streams that ended, snapshots nobody shows, journal and catalogue files that are
superseded, drafts a crash left, and on request what lies in quarantine for longer than some days.
Foreign files are never touched, nor is anything while the catalogue or the journal is damaged.
"""

import argparse
import time
from contextlib import suppress
from pathlib import Path

from durastreamd.admin.place import confirm, disk_of, root_of
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, LOCKED, OK
from durastreamd.offline.opening import in_use
from durastreamd.offline.repair.apply import Repair, mark_of
from durastreamd.offline.verify.verification import Examination, Scope, examine, in_turn, orphans
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk

_DAY_S = 86_400


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="remove what the plan names")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--quarantine-older-than", type=float, metavar="DAYS", help="also old quarantine entries"
    )


def _run(args: argparse.Namespace, console: Console) -> int:
    disk = disk_of(args)
    if not args.apply:
        if in_use(disk):
            raise CommandError(LOCKED, f"{root_of(args)} is in use; stop the daemon first")
        _tell(_garbage(disk, args), console)
        console.note("nothing was removed; --apply removes it")
        return OK
    confirm(args, "remove what nothing refers to")
    with Repair(disk):
        found = _garbage(disk, args)
        for path in found:
            _remove(disk, path)
        for folder in sorted({path.rpartition("/")[0] for path in found}, reverse=True):
            _sync(disk, folder)
    _tell(found, console)
    console.note(f"{len(found)} files removed")
    return OK


def _garbage(disk: RealDisk, args: argparse.Namespace) -> list[str]:
    if mark_of(disk) is not None:
        raise CommandError(CORRUPT, "a repair was cut short; run `dsadmin repair --apply` first")
    seen = examine(disk, Scope(), in_turn(disk))
    if any(not finding.harmless for finding in seen.findings):
        text = "the data directory is damaged, and what looks like garbage may be all that is left "
        text += "of something; run `dsadmin repair` first"
        raise CommandError(CORRUPT, text)
    return [*_unreferenced(seen), *_quarantined(disk, args)]


def _unreferenced(seen: Examination) -> list[str]:
    cutting = [finding.path for finding in seen.found.orphans]
    return [*seen.found.leftovers, *cutting, *orphans(seen.found, seen.census)]


def _quarantined(disk: RealDisk, args: argparse.Namespace) -> list[str]:
    """Return all of the quarantine entries that are older than asked for."""
    if args.quarantine_older_than is None:
        return []
    before = time.time() - args.quarantine_older_than * _DAY_S
    root = Path(root_of(args))
    old: list[str] = []
    for name in disk.names(fmt.QUARANTINE_DIR):
        entry = root / fmt.QUARANTINE_DIR / name
        below = sorted(entry.rglob("*"), reverse=True)  # what a directory holds comes before it
        # A move keeps a file's times but one: when its name changed.
        newest = max(path.lstat().st_ctime for path in (entry, *below))
        if newest < before:
            old += [str(path.relative_to(root)) for path in (*below, entry)]
    return old


def _remove(disk: RealDisk, path: str) -> None:
    """Remove a file, and the directories below streams/ and quarantine/ that it leaves empty."""
    folder = path
    if not disk.exists(path):
        return  # a directory that went with the last file in it
    with suppress(IsADirectoryError):
        disk.unlink(path)
        folder = path.rpartition("/")[0]
    while folder.count("/") and not disk.names(folder):
        disk.remove_directory(folder)
        folder = folder.rpartition("/")[0]


def _sync(disk: RealDisk, folder: str) -> None:
    while folder and not disk.exists(folder):
        folder = folder.rpartition("/")[0]
    disk.sync_directory(folder)


def _tell(found: list[str], console: Console) -> None:
    for path in found:
        if console.as_json:
            console.record({"type": "remove", "file": path})
        else:
            console.line(path)


COMMAND = Command("gc", "remove what nothing refers to any more", _add_arguments, _run)
