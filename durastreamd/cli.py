"""The command line of the server: arguments, environment, exit status. The only reader of them."""

import argparse
import gc
import logging
import os
import sys
from functools import partial
from pathlib import Path

import trio

from durastreamd import __version__, logs
from durastreamd.config import LoadedConfig, config_text, defaults_text, find_file, read
from durastreamd.daemon import Launch, check_config, serve
from durastreamd.errors import ListenError
from durastreamd.kit.command import Parser
from durastreamd.kit.status import (
    FAILURES,
    INTERNAL,
    IO_ERROR,
    NAMES,
    NO_PERMISSION,
    OK,
    UNAVAILABLE,
    USAGE,
    Failures,
)
from durastreamd.notify import manager_of
from durastreamd.service.access.tokens import made_token

logger = logging.getLogger(__name__)


# In this order: the first kind that fits what was raised decides.
ENDS: Failures = (
    *FAILURES,
    (ListenError, UNAVAILABLE),
    (PermissionError, NO_PERMISSION),
    (OSError, IO_ERROR),
)
STATUSES = sorted({OK, USAGE, INTERNAL, *(status for _, status in ENDS)})


def parser() -> Parser:
    """Return the parser of the server's arguments."""
    made = Parser("durastreamd", "A Durable Streams server.")
    made.add_version()
    add = made.add_argument
    add("--config", metavar="FILE", help="settings, as --print-defaults shows them")
    add("-t", "--check-config", action="store_true", help="check the settings and exit")
    add("--print-config", action="store_true", help="print the settings in force and exit")
    add("--print-defaults", action="store_true", help="print a file of every default and exit")
    where = "host:port, unix:/path, fd:number; may be given several times"
    add("--listen", action="append", default=[], metavar="ADDR", help=where)
    add("--data-dir", metavar="DIR", help="where the streams are kept")
    change = "change a setting; may be given several times"
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=change)
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    add("--log-format", metavar="FORMAT", help="auto, journal, logfmt, json or text")
    add("--init", action="store_true", help="make an empty directory a data directory")
    add("--read-only", action="store_true", help="serve a backup or a copy; write nothing")
    add("--hints", action="store_true", help="after the addresses, print commands to try")
    token = "make a token: its line for access.tokens_file; the token itself goes to standard error"
    add("--gen-token", nargs="+", metavar=("NAME", "FIELD=VALUE"), help=token)
    return made


def flags_of(chosen: argparse.Namespace) -> list[tuple[str, str]]:
    """Return every setting the command line changes, with the option that changes it."""
    flags = [(setting, "--set") for setting in chosen.set]
    if chosen.listen:
        flags.append(("server.listen=" + ",".join(chosen.listen), "--listen"))
    for option, name in (
        ("data_dir", "server.data_dir"),
        ("log_level", "log.level"),
        ("log_format", "log.format"),
    ):
        value = getattr(chosen, option)
        if value is not None:
            flags.append((f"{name}={value}", "--" + option.replace("_", "-")))
    if chosen.read_only:
        flags.append(("server.read_only=true", "--read-only"))
    return flags


def tune_collector() -> None:
    """Have the cycle collector look seldom, and never at what lives as long as the process.

    Requests leave no cycles behind; at the default threshold it runs every few dozen of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def announce(names: list[str], *, hints: bool = False) -> None:
    """Say on standard output where the server listens."""
    for name in names:
        sys.stdout.write(f"durastreamd {__version__} listening on {name}\n")
    if hints and names:
        sys.stdout.write(hints_text(names[0], Path(sys.executable).parent))
    sys.stdout.flush()
    tune_collector()


def hints_text(name: str, commands: Path) -> str:
    """Return commands to try on a server at this address, and where its other commands are."""
    scheme, unix, path = name.partition("+unix:")
    curl, base = ("curl -k", name) if name.startswith("https") else ("curl", name)
    if unix:
        curl, base = f"{curl} --unix-socket {path}", f"{scheme}://localhost"
    stream = f"{base}/v1/stream/hello"
    lines = [
        "try:",
        f"  {curl} -X PUT {stream} -H 'Content-Type: application/json'",
        f"  {curl} {stream} -H 'Content-Type: application/json' -d '{{\"n\": 1}}'",
        f"  {curl} '{stream}?offset=-1'",
        f"  {curl} -N '{stream}?offset=-1&live=sse'",
    ]
    found = [str(commands / each) for each in ("ds", "dsadmin") if (commands / each).exists()]
    if found:
        lines.append(f"commands: {', '.join(found)}")
    return "\n".join(lines) + "\n"


def gen_token(name: str, *fields: str) -> int:
    """Print a line for the file of tokens, and to whoever sits there the token, this once."""
    try:
        token, line = made_token(name, fields)
    except ValueError as exc:
        sys.stderr.write(f"durastreamd: --gen-token: {exc} ({NAMES[USAGE]}, {USAGE})\n")
        return USAGE
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    sys.stderr.write(f"the token, shown this once: {token}\n")
    return OK


def main(arguments: list[str] | None = None) -> int:
    """Run the server; the exit status says why it ended."""
    chosen = parser().parse_args(arguments)
    if chosen.print_defaults:
        sys.stdout.write(defaults_text())
        return OK
    if chosen.gen_token:
        return gen_token(*chosen.gen_token)
    environment = dict(os.environ)
    logs.set_up("auto", "info", environment)

    def load() -> LoadedConfig:
        path = chosen.config or find_file(environment)
        return read(path, environment, flags_of(chosen))

    try:
        loaded = load()
        if chosen.print_config:
            sys.stdout.write(config_text(loaded))
            return OK
        if chosen.check_config:
            check_config(loaded.config)
            sys.stdout.write(f"durastreamd: {loaded.file or 'no file'}: the settings are valid\n")
            return OK
        logs.set_up(loaded.config.log.format, loaded.config.log.level, environment)
        manager = manager_of(environment)
        told = partial(announce, hints=chosen.hints)
        trio.run(serve, Launch(loaded, load, told, manager, environment, init=chosen.init))
    except BaseException as exc:  # noqa: BLE001  # turned into a status, or raised again
        return _failed(exc)
    return OK


def _leaves(exc: BaseException) -> list[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for part in exc.exceptions for leaf in _leaves(part)]
    return [exc]


def _failed(exc: BaseException) -> int:
    """Return the exit status for what ended the server, and say it."""
    leaves = _leaves(exc)
    for kind, status in ENDS:
        for leaf in leaves:
            if isinstance(leaf, kind):
                text = leaf.strerror if isinstance(leaf, OSError) and leaf.strerror else str(leaf)
                named = getattr(leaf, "filename", None)
                said = f"{named}: {text}" if named else text
                for line in f"{said} ({NAMES[status]}, {status})".splitlines():
                    sys.stderr.write(f"durastreamd: {line}\n")
                return status
    if not all(isinstance(leaf, Exception) for leaf in leaves):
        raise exc  # not ours to judge: an interrupt, an exit
    logger.critical("the server failed", exc_info=exc)
    return INTERNAL


if __name__ == "__main__":
    sys.exit(main())
