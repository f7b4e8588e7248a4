"""The command line of the offline tool: ``dsadmin [--data-dir DIR | --config FILE] COMMAND``.

Every command is a ``Command`` in a module of its own; this module only knows their list.
"""

import argparse
import os
import sys
import traceback
from typing import NoReturn

from durastreamd import __version__
from durastreamd.admin import (
    backup,
    cat,
    decode_offset,
    dump,
    exporting,
    gc,
    importing,
    info,
    ls,
    repair,
    tail,
    top,
    verify,
)
from durastreamd.errors import (
    ConfigError,
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    StorageError,
    StreamDamagedError,
)
from durastreamd.kit.command import (
    BROKEN_PIPE,
    CONFIG,
    CORRUPT,
    INTERNAL,
    INTERRUPTED,
    IO_ERROR,
    LOCKED,
    NO_INPUT,
    USAGE,
    Command,
    CommandError,
)
from durastreamd.kit.console import Console

COMMANDS: tuple[Command, ...] = (
    ls.COMMAND,
    info.COMMAND,
    cat.COMMAND,
    dump.COMMAND,
    decode_offset.COMMAND,
    verify.COMMAND,
    repair.REPAIR,
    repair.REINDEX,
    gc.COMMAND,
    exporting.COMMAND,
    importing.COMMAND,
    backup.BACKUP,
    backup.RESTORE,
    tail.COMMAND,
    top.COMMAND,
)

# By the first kind that fits.
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (ConfigError, CONFIG),
    (DirectoryLockedError, LOCKED),
    (DataDirectoryError, NO_INPUT),
    (CorruptDataError, CORRUPT),
    (StreamDamagedError, CORRUPT),
    (StorageError, IO_ERROR),
    (OSError, IO_ERROR),
)

WHEN = ("auto", "always", "never")


class _Parser(argparse.ArgumentParser):
    """A parser that ends with sysexits' status for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def _add_common(made: argparse.ArgumentParser, *, below: bool) -> None:
    """Add the options that may stand before the command as well as after it."""

    def default(*, value: object) -> object:
        return argparse.SUPPRESS if below else value

    group = made.add_argument_group("common options") if below else made
    place = group.add_mutually_exclusive_group()
    place.add_argument(
        "--data-dir", metavar="DIR", default=default(value=None), help="the data directory"
    )
    place.add_argument(
        "--config", metavar="FILE", default=default(value=None), help="the server's configuration"
    )
    group.add_argument(
        "--json", action="store_true", default=default(value=False), help="one JSON object per line"
    )
    group.add_argument(
        "--color", choices=WHEN, default=default(value="auto"), help="colours and tables (auto)"
    )
    group.add_argument(
        "--progress", choices=WHEN, default=default(value="auto"), help="progress on stderr (auto)"
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    made = _Parser(
        prog="dsadmin",
        description="Look into a durastreamd data directory, and mend it.",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"dsadmin {__version__}")
    _add_common(made, below=False)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        below = commands.add_parser(
            command.name, help=command.summary, description=command.summary, allow_abbrev=False
        )
        command.add_arguments(below)
        _add_common(below, below=True)
    return made


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one command; the exit status says what it found."""
    chosen = parser().parse_args(arguments)
    console = console or Console()
    console.as_json, console.color, console.progress = chosen.json, chosen.color, chosen.progress
    run = next(command.run for command in COMMANDS if command.name == chosen.command)
    try:
        status = run(chosen, console)
        console.flush()
        return status
    except CommandError as exc:
        console.note(str(exc))
        return exc.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output(console)
        return BROKEN_PIPE
    except tuple(kind for kind, _ in STATUSES) as exc:
        console.note(str(exc))
        return next(status for kind, status in STATUSES if isinstance(exc, kind))
    except Exception:  # noqa: BLE001  # a bug: Python's own status would mean something else
        traceback.print_exc(file=console.err)
        console.note("this is an error in dsadmin; please report it with the lines above")
        return INTERNAL


def _give_up_output(console: Console) -> None:
    """Have what is still buffered go nowhere, or the interpreter would complain at its end."""
    if console.out is sys.stdout:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
