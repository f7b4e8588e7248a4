"""What an exit status means: one table for durastreamd, dsadmin and dspipeline.

Numbers of sysexits.h where it has a word for it. The section EXIT STATUS of each manual page lists
those that its program ends with; a test holds them equal.
"""

from collections.abc import Callable

from durastreamd.errors import (
    ConfigError,
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    StorageError,
    StreamDamagedError,
    StreamNameError,
    UnknownStreamError,
)

OK = 0
FOUND = 1  # verify, repair: only what a crash leaves behind (torn ends)
USAGE = 64  # the command line or an option is wrong
CORRUPT = 65  # damage: found by who looked for it, or met on the way
NO_INPUT = 66  # no such data directory, stream, offset or file
UNAVAILABLE = 69  # no server there, an address that is taken, a Java that is missing
INTERNAL = 70  # a bug, or a failure that nobody foresaw: the traceback is on standard error
IO_ERROR = 74  # the disk or the file system failed
LOCKED = 75  # another process holds the data directory
NO_PERMISSION = 77  # of ours on this machine, or of the token at the server
CONFIG = 78  # a setting is wrong
INTERRUPTED = 130  # SIGINT
BROKEN_PIPE = 141  # whoever read standard output has gone, as `head` does

# As sysexits.h calls them.
NAMES = {
    OK: "EX_OK",
    USAGE: "EX_USAGE",
    CORRUPT: "EX_DATAERR",
    NO_INPUT: "EX_NOINPUT",
    UNAVAILABLE: "EX_UNAVAILABLE",
    INTERNAL: "EX_SOFTWARE",
    IO_ERROR: "EX_IOERR",
    LOCKED: "EX_TEMPFAIL",
    NO_PERMISSION: "EX_NOPERM",
    CONFIG: "EX_CONFIG",
}

Failures = tuple[tuple[type[Exception], int], ...]
Explain = Callable[[Exception], tuple[int, str] | None]

# What every program calls the same, by the first kind that fits; each adds its own behind.
FAILURES: Failures = (
    (ConfigError, CONFIG),
    (DirectoryLockedError, LOCKED),
    (DataDirectoryError, NO_INPUT),
    (UnknownStreamError, NO_INPUT),
    (StreamNameError, USAGE),
    (CorruptDataError, CORRUPT),
    (StreamDamagedError, CORRUPT),
    (StorageError, IO_ERROR),
)


def by_kind(failures: Failures) -> Explain:
    """Return what says of an exception how to exit and why; None for one that nobody foresaw."""

    def explain(exc: Exception) -> tuple[int, str] | None:
        found = next((status for kind, status in failures if isinstance(exc, kind)), None)
        return None if found is None else (found, _said(exc))

    return explain


def _said(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.filename and exc.strerror:
        return f"{exc.filename}: {exc.strerror}"
    return str(exc)
