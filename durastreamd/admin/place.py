"""Which data directory a command works on, and in which way it may be opened."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from durastreamd.engine.options import EngineOptions
from durastreamd.kit.command import CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, USAGE
from durastreamd.offline import opening
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk

if TYPE_CHECKING:
    from durastreamd.config import Config

DYNAMIC_USERS = range(61184, 65520)  # systemd.exec(5) has them for DynamicUser=


def root_of(args: argparse.Namespace) -> Path:
    """Return the data directory named by --data-dir or by the configuration."""
    if args.data_dir is not None:
        root = Path(args.data_dir)
    elif args.config is not None:
        root = Path(_settings(args.config).server.data_dir)
    else:
        text = "say which data directory: --data-dir DIR, or --config FILE of the server"
        raise CommandError(USAGE, text)
    if not root.is_dir():
        text = f"{root} is not a directory; is the volume mounted?"
        raise CommandError(NO_INPUT, text)
    return root


def disk_of(args: argparse.Namespace) -> RealDisk:
    """Return the data directory as a disk, not locked."""
    root = root_of(args)
    disk = RealDisk(str(root))
    disk.names("")  # a directory that may not be read raises here, and is not called another's
    if not disk.exists(fmt.IDENTITY_FILE) and not disk.exists(fmt.CATALOG_DIR):
        text = f"{root} is not a durastreamd data directory: it has no {fmt.IDENTITY_FILE} file"
        raise CommandError(NO_INPUT, text)
    disk.owner = owner_of(root)
    return disk


def owner_of(root: Path) -> tuple[int, int] | None:
    """Return whom root gives what it makes in a directory: its owner. None for anybody else."""
    if os.geteuid() != 0:
        return None
    found = root.stat()
    return found.st_uid, found.st_gid


def owner_of_backup(root: Path) -> tuple[int, int] | None:
    """Return whom root gives a backup: the owner of the data directory, who may have to serve it.

    A number that systemd lends to a service (DynamicUser=) may be another service's tomorrow, which
    nobody may find a backup under: then it stays root's.
    """
    owner = owner_of(root)
    return None if owner is not None and owner[0] in DYNAMIC_USERS else owner


def give(target: Path, owner: tuple[int, int] | None) -> None:
    """Give a directory, and all that is in it, to somebody."""
    if owner is not None:
        for place in (target, *target.rglob("*")):
            os.chown(place, *owner, follow_symlinks=False)


def options_of(args: argparse.Namespace) -> EngineOptions:
    """Return the engine's options: the configuration's, or the defaults."""
    return _settings(args.config).engine if args.config is not None else EngineOptions()


@contextmanager
def opened(args: argparse.Namespace, console: Console) -> Iterator[opening.Opened]:
    """Lend the data directory that the arguments name, recovered in memory and left as it is."""
    with opening.opened(disk_of(args), options_of(args), console.note) as found:
        if found.running:
            console.note("a daemon is running here; this is the data as of this moment")
        yield found


def _settings(file: str) -> "Config":
    # Here, because it brings the event loop along: half of the time a short command takes.
    from durastreamd.config import load

    return load(file, [])


def confirm(args: argparse.Namespace, what: str) -> None:
    """Have the operator type YES, unless --yes was said."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(USAGE, "there is no terminal to confirm on; add --yes")
    sys.stderr.write(f"dsadmin: type YES to {what}: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != "YES":
        raise CommandError(USAGE, "nothing was changed")
