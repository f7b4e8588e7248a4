"""The command line of the offline tool: ``dsadmin [--data-dir DIR | --config FILE] COMMAND``.

Every command is a ``Command`` in a module of its own; this module only knows their list.
"""

import argparse
import sys

from durastreamd import __version__
from durastreamd.admin.command import (
    CORRUPT,
    IO_ERROR,
    LOCKED,
    NO_INPUT,
    Command,
    CommandError,
)
from durastreamd.admin.console import Console
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    StorageError,
)

COMMANDS: tuple[Command, ...] = ()

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (DirectoryLockedError, LOCKED),
    (DataDirectoryError, NO_INPUT),
    (CorruptDataError, CORRUPT),
    (StorageError, IO_ERROR),
    (OSError, IO_ERROR),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    made = argparse.ArgumentParser(
        prog="dsadmin", description="Look into a durastreamd data directory, and mend it."
    )
    made.add_argument("--version", action="version", version=f"dsadmin {__version__}")
    place = made.add_mutually_exclusive_group()
    place.add_argument("--data-dir", metavar="DIR", help="the data directory")
    place.add_argument("--config", metavar="FILE", help="the server's configuration")
    made.add_argument("--json", action="store_true", help="one JSON object per line")
    made.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_arguments(
            commands.add_parser(command.name, help=command.summary, description=command.summary)
        )
    return made


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one command; the exit status says what it found."""
    chosen = parser().parse_args(arguments)
    console = console or Console()
    console.as_json, console.color = chosen.json, chosen.color
    run = next(command.run for command in COMMANDS if command.name == chosen.command)
    try:
        return run(chosen, console)
    except CommandError as exc:
        console.note(str(exc))
        return exc.status
    except (StorageError, DataDirectoryError, OSError) as exc:
        console.note(str(exc))
        return next(status for kind, status in STATUSES if isinstance(exc, kind))


if __name__ == "__main__":
    sys.exit(main())
