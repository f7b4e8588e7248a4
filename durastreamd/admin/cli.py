"""The command line of the offline tool: ``dsadmin [--data-dir DIR | --config FILE] COMMAND``.

Every command is a ``Command`` in a module of its own; this module only knows their list.
"""

import argparse
import sys
from functools import partial

from durastreamd.admin.carry import backup, exporting, importing
from durastreamd.admin.look import cat, decode_offset, dump, info, ls, verify
from durastreamd.admin.mend import gc, repair
from durastreamd.admin.watch import tail, top
from durastreamd.kit.command import Command, Parser, run
from durastreamd.kit.console import Console
from durastreamd.kit.status import FAILURES, IO_ERROR, NO_PERMISSION, by_kind

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

EXPLAIN = by_kind((*FAILURES, (PermissionError, NO_PERMISSION), (OSError, IO_ERROR)))

WHEN = ("auto", "always", "never")


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


def parser() -> Parser:
    """Return the parser of every command."""
    made = Parser("dsadmin", "Look into a durastreamd data directory, and mend it.")
    made.add_version()
    _add_common(made, below=False)
    made.add_commands(COMMANDS, "COMMAND", partial(_add_common, below=True))
    return made


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one command; the exit status says what it found."""
    chosen = parser().parse_args(arguments)
    console = console or Console()
    console.program = "dsadmin"
    console.as_json, console.color, console.progress = chosen.json, chosen.color, chosen.progress
    return run(COMMANDS, chosen, console, EXPLAIN)


if __name__ == "__main__":
    sys.exit(main())
