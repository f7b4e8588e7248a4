"""Writes shell completions of durastreamd, dsadmin and ds, made from their parsers.

Run as ``python tools/completions.py OUTDIR``. Below it: ``bash/dsadmin``, ``zsh/_dsadmin``,
``fish/dsadmin.fish`` and the same for durastreamd and ds, under the names the shells look for.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab

from durastreamd import cli as server
from durastreamd.admin import cli as admin
from durastreamd.ds import cli as streams

NAMES = {"bash": "{}", "zsh": "_{}", "fish": "{}.fish"}
# What is completed is known by how the argument is called in the help text.
KINDS = {"FILE": shtab.FILE, "STREAM|FILE": shtab.FILE, "DIR": shtab.DIRECTORY}


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument of a parser and of the commands below it."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from actions(below)


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion file of a program for a shell."""
    for action in actions(parser):
        metavar = action.metavar
        if isinstance(metavar, str) and metavar in KINDS:
            action.complete = KINDS[metavar]  # type: ignore[attr-defined]  # what shtab looks for
    return shtab.complete(parser, shell)


def main(arguments: list[str]) -> int:
    """Write every file; the only argument says where."""
    if len(arguments) != 1:
        sys.stderr.write("usage: completions.py OUTDIR\n")
        return 2
    for shell, name in NAMES.items():
        for made in (server.parser(), admin.parser(), streams.parser()):
            path = Path(arguments[0]) / shell / name.format(made.prog)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(completion(made, shell), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
