"""The command line of the server: arguments, exit status. The only reader of either."""

import argparse
import gc
import logging
import sys
from functools import partial

import trio

from durastreamd import __version__
from durastreamd.config import ConfigError, load
from durastreamd.daemon import serve
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    StorageError,
)

# sysexits.h, as systemd and shells know them.
EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL, EX_CONFIG = 65, 66, 69, 74, 75, 78
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (ConfigError, EX_CONFIG),
    (DirectoryLockedError, EX_TEMPFAIL),
    (DataDirectoryError, EX_NOINPUT),
    (CorruptDataError, EX_DATAERR),
    (StorageError, EX_IOERR),
    (OSError, EX_UNAVAILABLE),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the server's arguments."""
    made = argparse.ArgumentParser(
        prog="durastreamd", description="A Durable Streams server.", allow_abbrev=False
    )
    made.add_argument("--version", action="version", version=f"durastreamd {__version__}")
    made.add_argument("--config", metavar="FILE", help="settings, as durastreamd.toml shows them")
    made.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDR",
        help="host:port, unix:/path, fd:number",
    )
    made.add_argument("--data-dir", metavar="DIR", help="where the streams are kept")
    made.add_argument(
        "--init", action="store_true", help="make an empty directory a data directory"
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a setting"
    )
    return made


def tune_collector() -> None:
    """Have the cycle collector look seldom, and never at what lives as long as the process.

    Requests leave no cycles behind; at the default threshold it runs every few dozen of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def announce(names: list[str]) -> None:
    """Say on standard output where the server listens."""
    for name in names:
        sys.stdout.write(f"durastreamd {__version__} listening on {name}\n")
    sys.stdout.flush()
    tune_collector()


def main(arguments: list[str] | None = None) -> int:
    """Run the server; the exit status says why it ended."""
    chosen = parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    settings = list(chosen.set)
    if chosen.listen:
        settings.append("server.listen=" + ",".join(chosen.listen))
    if chosen.data_dir:
        settings.append(f"server.data_dir={chosen.data_dir}")
    try:
        trio.run(partial(serve, init=chosen.init), load(chosen.config, settings), announce)
    except BaseException as exc:  # noqa: BLE001  # turned into a status, or raised again
        return _status(exc)
    return 0


def _leaves(exc: BaseException) -> list[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for part in exc.exceptions for leaf in _leaves(part)]
    return [exc]


def _status(exc: BaseException) -> int:
    """Return the exit status for what ended the server; a bug is raised again."""
    leaves = _leaves(exc)
    for kind, status in STATUSES:
        for leaf in leaves:
            if isinstance(leaf, kind):
                sys.stderr.write(f"durastreamd: {leaf}\n")
                return status
    raise exc


if __name__ == "__main__":
    sys.exit(main())
