"""The command line for everybody: ``ds COMMAND STREAM``.

Every command is a ``Command``; this module only knows their list and the options of all.
"""

import argparse
import sys
from functools import partial

from durastreamd.client import ServerRefusedError
from durastreamd.ds import append, bench, cat, look, manage, pipe, sub, tail
from durastreamd.ds.server import FAILURES, RETRY_S, failure
from durastreamd.kit.command import Command, Parser, run
from durastreamd.kit.console import Console
from durastreamd.kit.status import IO_ERROR, by_kind

COMMANDS: tuple[Command, ...] = (
    manage.CREATE,
    manage.REMOVE,
    look.LIST,
    look.INFO,
    append.COMMAND,
    cat.COMMAND,
    tail.COMMAND,
    pipe.COMMAND,
    manage.FORK,
    manage.CLOSE,
    manage.SNAPSHOT,
    sub.COMMAND,
    bench.COMMAND,
)

WHEN = ("auto", "always", "never")


def _add_common(made: argparse.ArgumentParser, *, below: bool) -> None:
    """Add the options that may stand before the command as well as after it."""

    def default(*, value: object) -> object:
        return argparse.SUPPRESS if below else value

    add = (made.add_argument_group("common options") if below else made).add_argument
    none = default(value=None)
    add("--server", metavar="URL", default=none, help="where names lead ($STREAM_URL)")
    add("--token", metavar="TOKEN", default=none, help="better: --token-file, $STREAM_AUTH")
    add("--token-file", metavar="FILE", default=none, help="a file that holds the token")
    add("--cacert", metavar="FILE", default=none, help="authority of the server's certificate")
    add(
        "--retry",
        metavar="SECONDS",
        type=float,
        default=default(value=RETRY_S),
        help="how long a request is tried (60)",
    )
    add("--json", action="store_true", default=default(value=False), help="JSON, one to a line")
    add("--color", choices=WHEN, default=default(value="auto"), help="colours, tables (auto)")


def parser() -> Parser:
    """Return the parser of every command."""
    made = Parser("ds", "Write, read and manage durable streams.")
    made.add_version()
    _add_common(made, below=False)
    made.add_commands(COMMANDS, "COMMAND", partial(_add_common, below=True))
    return made


def explain(exc: Exception) -> tuple[int, str] | None:
    """Return status and text of an error."""
    if isinstance(exc, ServerRefusedError):
        told = failure(exc)
        return told.status, str(told)
    return by_kind((*FAILURES, (OSError, IO_ERROR)))(exc)


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one command; the exit status says how it went."""
    made = parser()
    chosen, rest = made.parse_known_args(arguments)
    # Messages may stand behind options; argparse looks for all of them in one place.
    if rest and (chosen.command != append.COMMAND.name or any(each[:1] == "-" for each in rest)):
        made.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        chosen.messages += rest
    console = console or Console()
    console.program = "ds"
    console.as_json, console.color = chosen.json, chosen.color
    return run(COMMANDS, chosen, console, explain)


if __name__ == "__main__":
    sys.exit(main())
