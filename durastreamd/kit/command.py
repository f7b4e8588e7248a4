"""What a command is made of, and how it is run: its errors become one line and an exit status."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from durastreamd import __version__
from durastreamd.kit.console import Console
from durastreamd.kit.status import BROKEN_PIPE, INTERNAL, INTERRUPTED, USAGE, Explain


class CommandError(Exception):
    """A command cannot go on; the text says why and what to do, ``status`` how to exit."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Command(NamedTuple):
    """One word after the name of a program."""

    name: str
    summary: str  # the line of ``--help``
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and exits as sysexits.h has it."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what was wrong with the command line and end."""
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def add_version(self) -> None:
        """Add --version."""
        self.add_argument("--version", action="version", version=f"{self.prog} {__version__}")

    def add_commands(
        self,
        commands: Sequence[Command],
        metavar: str,
        add_common: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    ) -> None:
        """Add the commands, each with the options that may also stand before it."""
        words = self.add_subparsers(dest="command", metavar=metavar, required=True)
        for command in commands:
            summary = command.summary
            below = words.add_parser(command.name, help=summary, description=summary)
            command.add_arguments(below)
            add_common(below)


class Pairs(argparse.Action):
    """An option that takes KEY=VALUE and may be repeated; a later one of a key wins."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """See argparse."""
        key, equals, value = str(values).partition("=")
        if not equals:
            parser.error(f"{option_string} takes {self.metavar}, not {values!r}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), key: value})


def run(
    commands: Sequence[Command], chosen: argparse.Namespace, console: Console, explain: Explain
) -> int:
    """Run the chosen command; the exit status says how it went, and one line why."""
    command = next(command for command in commands if command.name == chosen.command)
    try:
        status = command.run(chosen, console)
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
    except Exception as exc:  # noqa: BLE001  # Python's own status would mean something else
        told = explain(exc)
        if told is None:
            traceback.print_exc(file=console.err)
            program = console.program
            console.note(f"this is an error in {program}; please report it with the lines above")
            return INTERNAL
        console.note(told[1])
        return told[0]


def _give_up_output(console: Console) -> None:
    """Have what is still buffered go nowhere, or the interpreter would complain at its end."""
    if console.out is sys.stdout:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
