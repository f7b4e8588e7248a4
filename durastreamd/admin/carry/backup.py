"""``dsadmin backup`` and ``dsadmin restore``: a whole data directory, carried elsewhere and back.

A backup is taken beside a running daemon without disturbing it, and is a data directory itself:
every read command of dsadmin looks into it. It is made as a new tree beside an older backup of the
same name, of which it links what has not changed; two renames then put it in its place. Whatever
interrupts that, one whole backup is there, and the next run tidies up. What does not verify lies in
the backup's quarantine/ (``apart``), and such a backup does not take the place of a whole one.
"""

import argparse
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from durastreamd.admin.carry.apart import set_apart
from durastreamd.admin.carry.manifest import (
    OWN_FILES,
    About,
    BackupManifest,
    Kept,
    check_files,
    digest_of,
    read_manifest,
)
from durastreamd.admin.carry.moment import (
    Moment,
    cost_of,
    lacking,
    moment_of,
    size_of,
    unverified,
)
from durastreamd.admin.carry.tree import FOLDERS, Tree, create_file, make_parents
from durastreamd.admin.mend.plans import streams_told
from durastreamd.admin.place import (
    disk_of,
    give,
    options_of,
    owner_of,
    owner_of_backup,
    root_of,
)
from durastreamd.engine.options import EngineOptions
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, IO_ERROR, LOCKED, NO_INPUT, OK, USAGE
from durastreamd.offline.opening import in_use, now_ms, recovered
from durastreamd.offline.repair.plan import Plan
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import DIRECTORY_MODE, FILE_MODE, Disk, RealDisk

# Each moment copies what changed since the one before; a third is rarely needed.
MOMENTS_MAX = 20


# --- backup ---


def add_backup_arguments(made: argparse.ArgumentParser) -> None:
    """Add what ``backup`` takes."""
    made.add_argument("directory", metavar="DIR", help="where the backup is, or is to be")
    made.add_argument(
        "--verify", action="store_true", help="read a backup through and compare; write nothing"
    )


def run_backup(args: argparse.Namespace, console: Console) -> int:
    """Take a backup, or verify one."""
    target = Path(os.path.abspath(args.directory))
    if args.verify:
        return _verify(target, console)
    disk, root = disk_of(args), root_of(args).resolve()
    old = _prepare_target(target, root)
    running = in_use(disk)
    began_ms = now_ms()
    draft = _beside(target, "partial")
    tree = Tree(draft, root, target, old)
    try:
        first = moment_of(disk)
        total = size_of(disk, first)
        with console.working("backup", total) as advance:
            moment, amiss = take(disk, tree, draft, options_of(args), first, advance)
        if not amiss:
            with console.working("verify", cost_of(moment, total)) as advance:
                amiss = _rotten(RealDisk(str(draft)), options_of(args), advance)
        apart = set_apart(draft, tree, console) if amiss or moment.damaged else None
        unverified = max(len(apart.findings), len(amiss)) if apart is not None else 0
        place = _place_for(target, root, old, whole=not unverified)
        about = tree.finish(moment, began_ms, now_ms(), unverified)
        give(draft, owner_of_backup(root))
        _swap(draft, place)
    except BaseException:
        tree.remove()
        raise
    beside = ", beside the running daemon" if running else ""
    _tell(console, about, tree.copied_bytes, f"backed up to {place}{beside}")
    if apart is not None:
        _tell_apart(console, apart, amiss, place)
        if place != target:
            console.note(f"{target} is the last backup in which everything verified; it stays")
    return CORRUPT if unverified else OK


def _tell_apart(console: Console, apart: Plan, amiss: list[str], place: Path) -> None:
    """Say what did not verify, and what the backup has of it."""
    for text in amiss:
        console.note(f"damaged in the data directory itself: {show.name(text)}")
    for line in streams_told(apart):
        console.note(f"of the backup: {line}")
    where = place / fmt.QUARANTINE_DIR
    console.note(f"what does not verify is in {where}; everything else in the backup does")


def _place_for(target: Path, root: Path, old: BackupManifest | None, *, whole: bool) -> Path:
    """Return where a backup goes: one that is not whole never takes the place of one that is."""
    if whole or old is None or old.about.unverified:
        return target
    place = _beside(target, "damaged")
    _prepare_target(place, root)
    return place


def take(
    disk: Disk,
    tree: Tree,
    draft: Path,
    options: EngineOptions,
    moment: Moment,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Moment, list[str]]:
    """Copy one moment of a directory, the first that holds; return which, and what it lacks.

    What is missing though nothing has changed is not on its way: it is damage, older than this.
    """
    missing = [""]
    for _ in range(MOMENTS_MAX):
        tree.take(moment, advance)
        missing, streams = _missing(RealDisk(str(draft)), options, moment)
        later = moment_of(disk) if missing else moment
        if later == moment:
            return moment._replace(streams=streams), missing
        moment = later
    text = (
        f"files went as fast as they were copied, at last {missing[0]}; "
        f"gave up after {MOMENTS_MAX} moments. Try again when fewer streams are deleted"
    )
    raise CommandError(IO_ERROR, text)


def _rotten(disk: Disk, options: EngineOptions, advance: Callable[[int], None]) -> list[str]:
    """Verify what was copied, byte by byte; return what fails."""
    with recovered(disk, options) as engine:
        return list(unverified(engine, advance))


def _missing(disk: Disk, options: EngineOptions, moment: Moment) -> tuple[list[str], int]:
    """Open what was copied, in memory; return what it lacks and how many streams it has."""
    with recovered(disk, options) as engine:
        hurt = [
            stream.damage
            for stream in engine.namespace.by_id.values()
            if stream.damage and stream.id not in moment.damaged
        ]
        return hurt + lacking(engine), len(engine.namespace.by_id)


def _prepare_target(target: Path, root: Path) -> BackupManifest | None:
    """Refuse a place that is not for a backup of this directory; return the backup it has."""
    if target == root or root in target.parents or target in root.parents:
        text = f"{target} is inside the data directory or holds it; name a place outside"
        raise CommandError(USAGE, text)
    if target.is_mount():
        text = f"{target} is a mount point, which cannot be renamed; name a directory inside it"
        raise CommandError(USAGE, text)
    if not target.parent.is_dir():
        raise CommandError(NO_INPUT, f"{target.parent} is not a directory; is the volume mounted?")
    _tidy(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not (target / fmt.BACKUP_FILE).is_file():
        text = f"{target} holds something that is no backup; name another directory"
        raise CommandError(USAGE, text)
    if RealDisk(str(target)).locked(fmt.IDENTITY_FILE):
        raise CommandError(LOCKED, f"{target} is being served; stop that daemon first")
    found = read_manifest(target)
    here = (root / fmt.IDENTITY_FILE).read_text(errors="replace")
    if f"uuid {found.about.uuid}" not in here:
        text = f"{target} is the backup of another data directory, {uuid.UUID(found.about.uuid)}"
        raise CommandError(USAGE, text)
    return found


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f"{target.name}.{what}")


def _tidy(target: Path) -> None:
    """Clear away what an interrupted run left; the last whole backup gets its name back."""
    previous, draft = _beside(target, "previous"), _beside(target, "partial")
    if previous.exists() and not target.exists():
        previous.rename(target)
    for left in (previous, draft):
        if left.exists():
            strangers = {place.name for place in left.iterdir()} - {
                *FOLDERS,
                *OWN_FILES,
                fmt.IDENTITY_FILE,
            }
            if strangers:
                text = f"{left} is in the way and holds {min(strangers)}, which is not ours"
                raise CommandError(USAGE, text)
            shutil.rmtree(left)


def _swap(draft: Path, target: Path) -> None:
    """Put the new backup in the place of the old one; both are whole, whatever happens between."""
    previous = _beside(target, "previous")
    if target.exists():
        target.rename(previous)
    draft.rename(target)
    RealDisk(str(target.parent)).sync_directory("")
    if previous.exists():
        shutil.rmtree(previous)


def _tell(console: Console, about: About, copied: int, what: str) -> None:
    if console.as_json:
        members = {name: getattr(about, name) for name in about.__struct_fields__}
        console.record({**members, "copied_bytes": copied})
        return
    streams, files = show.counted(about.streams, "stream"), show.counted(about.files, "file")
    sizes = f"{show.size(about.bytes)} ({show.size(copied)} copied)"
    console.note(f"{what}: {streams}, {files}, {sizes}, everything up to lsn {about.lsn}")


def _verify(target: Path, console: Console) -> int:
    manifest = read_manifest(target)
    found = 0
    with console.working("verify", manifest.about.bytes) as advance:
        for finding in check_files(target, manifest, advance):
            found += 1
            if console.as_json:
                console.record(finding._asdict())
            else:
                console.line(str(finding))
    if found:
        text = "if a daemon served the backup, it has changed it: serve a restored copy instead"
        console.note(
            f"{found} of {len(manifest.files)} files are not as they were backed up; {text}"
        )
        return CORRUPT
    console.note(f"{target}: all {manifest.about.files} files are as they were backed up")
    return OK


# --- restore ---


def add_restore_arguments(made: argparse.ArgumentParser) -> None:
    """Add what ``restore`` takes."""
    made.add_argument("backup", metavar="BACKUP", help="a directory that `backup` made")


def run_restore(args: argparse.Namespace, console: Console) -> int:
    """Make a new data directory of a backup; every byte is compared on the way."""
    if args.data_dir is None:
        raise CommandError(USAGE, "say where to: --data-dir NEW, an empty or missing directory")
    source, target = Path(args.backup), Path(args.data_dir)
    manifest = read_manifest(source)
    with _locked(target):
        _restore(source, target, manifest, console)
    _tell(console, manifest.about, manifest.about.bytes, f"restored to {target}")
    if not console.as_json:
        console.note(
            f"its identity is that of the original, {uuid.UUID(manifest.about.uuid)}: "
            "serve one of the two, not both"
        )
    return OK


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the directory, as a server would: nobody makes another one of it meanwhile."""
    if not target.exists():
        target.mkdir(mode=DIRECTORY_MODE, parents=False)
    if not target.is_dir():
        raise CommandError(USAGE, f"{target} is not a directory")
    disk = RealDisk(str(target))
    handle = disk.lock_directory()
    try:
        yield
    finally:
        disk.release(handle)


def _restore(source: Path, target: Path, manifest: BackupManifest, console: Console) -> None:
    done = _prepare_restore(target, manifest)
    with _restoring(target, manifest):
        with console.working("restore", manifest.about.bytes) as advance:
            for path in sorted(manifest.files):
                if path != fmt.IDENTITY_FILE:
                    _restore_file(source, target, path, manifest.files[path], advance, done=done)
        give(target, owner_of(target))
        RealDisk(str(target)).sync_everything()
        # The identity comes last: without it this is not a data directory.
        identity = fmt.IDENTITY_FILE
        _restore_file(source, target, identity, manifest.files[identity], lambda _: None, done=done)
        give(target, owner_of(target))


def _prepare_restore(target: Path, manifest: BackupManifest) -> bool:
    """Refuse a directory that holds anything; tell whether an interrupted restore is to go on."""
    marker = target / fmt.RESTORING_FILE
    if marker.is_file():
        if marker.read_text(errors="replace").strip() == manifest.about.sums:
            return True
        text = f"{target} holds a part of another backup; empty it, or restore that one"
        raise CommandError(USAGE, text)
    held = [place.name for place in target.iterdir() if place.name != "lost+found"]
    if held:
        text = f"{target} is not empty: it holds {min(held)}; restore into an empty directory"
        raise CommandError(USAGE, text)
    return False


@contextmanager
def _restoring(target: Path, manifest: BackupManifest) -> Iterator[None]:
    """Mark the directory while it is not whole; the same command then goes on where it stopped."""
    marker = target / fmt.RESTORING_FILE
    if not marker.exists():
        with create_file(marker) as out:
            out.write(f"{manifest.about.sums}\n".encode())
    for folder in FOLDERS:
        (target / folder).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    yield
    RealDisk(str(target)).sync_everything()
    marker.unlink()
    RealDisk(str(target)).sync_directory("")


def _restore_file(
    source: Path,
    target: Path,
    path: str,
    kept: Kept,
    advance: Callable[[int], None],
    *,
    done: bool,
) -> None:
    place = target / path
    if done and place.is_file():
        with open(place, "rb") as found:
            if digest_of(found, advance).sha256 == kept.sha256:
                return
        place.unlink()
    make_parents(target, path)
    try:
        with open(source / path, "rb") as found, create_file(place) as out:
            copied = digest_of(found, advance, out)
    except FileNotFoundError as exc:
        text = f"the backup lacks {path}; {_unfinished(target)}"
        raise CommandError(CORRUPT, text) from exc
    if copied.sha256 != kept.sha256:
        place.unlink()
        text = f"{source / path} is not as it was backed up; {_unfinished(target)}"
        raise CommandError(CORRUPT, text)
    place.chmod(FILE_MODE)


def _unfinished(target: Path) -> str:
    return f"{target} is not a data directory yet: `backup --verify` shows what else is amiss"


BACKUP = Command(
    "backup", "copy a data directory, beside its daemon", add_backup_arguments, run_backup
)
RESTORE = Command(
    "restore", "make a data directory of a backup", add_restore_arguments, run_restore
)
