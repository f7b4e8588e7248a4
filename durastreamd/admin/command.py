"""What a command of dsadmin is made of, and what its exit status means."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from durastreamd.admin.console import Console

# In the manual page as a table; sysexits.h where it has a word for it.
OK = 0
FOUND = 1  # verify, repair: only what a crash leaves behind (torn ends)
USAGE = 64
CORRUPT = 65  # verify, repair: damage
NO_INPUT = 66  # no such data directory, stream or file
UNAVAILABLE = 69  # tail, top: no server there
IO_ERROR = 74
LOCKED = 75  # another process holds the data directory
CONFIG = 78


class CommandError(Exception):
    """A command cannot go on; the text says why and what to do, ``status`` how to exit."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Command(NamedTuple):
    """One word after ``dsadmin``."""

    name: str
    summary: str  # the line of ``dsadmin --help``
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]
