"""What a command of dsadmin is made of, and what its exit status means."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from durastreamd.kit.console import Console

# The table EXIT STATUS of the manual page; sysexits.h where it has a word for it.
OK = 0
FOUND = 1  # verify, repair: only what a crash leaves behind (torn ends)
USAGE = 64  # the command line is wrong
CORRUPT = 65  # damage: found by verify or repair, or met on the way
NO_INPUT = 66  # no such data directory, stream, offset or file
UNAVAILABLE = 69  # tail, top: no server there
INTERNAL = 70  # a bug: the traceback is on standard error
IO_ERROR = 74  # the disk or the file system failed
LOCKED = 75  # another process holds the data directory
REFUSED = 77  # tail, top: the server wants another token
CONFIG = 78  # the configuration file is wrong
INTERRUPTED = 130  # SIGINT
BROKEN_PIPE = 141  # whoever read standard output has gone, as `head` does


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
