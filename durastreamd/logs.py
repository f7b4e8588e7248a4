"""The log's four forms, all on standard error: for journald, for programs (two), for eyes.

A record is a message and, by ``extra={"fields": {...}}``, values with names. Whatever a client
could have put into either is escaped, so a line of the log is one event and no terminal obeys it.
"""

import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

# Priorities of syslog(3), as journald reads them from the start of a line.
_PRIORITIES: Final = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_PLAIN: Final = re.compile(r"[^\s\"=\\]+")

RECENT_MAX = 200  # records that are kept in memory, and of each at most ...
RECENT_CHARACTERS_MAX = 1000  # ... so much of its message

Value = str | int | float | bool


class Recent(logging.Handler):
    """Keeps the last records of the process, for whoever looks at the server without its log."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[dict[str, object]] = deque(maxlen=RECENT_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what a line would say, and nothing that the record holds on to."""
        said = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            said += f": {record.exc_info[1]!r}"
        self._kept.append(
            {
                "time_ms": int(record.created * 1000),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": said[:RECENT_CHARACTERS_MAX],
                "fields": {name: str(value)[:200] for name, value in fields_of(record).items()},
            }
        )

    def lines(self) -> list[dict[str, object]]:
        """Return what was kept, the oldest first."""
        return list(self._kept)


recent = Recent()


def set_up(form: str, level: str, environment: Mapping[str, str]) -> None:
    """Send every record of this level and above to standard error, in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, sys.stderr, environment))
    # Which thread or process wrote a record is in no form; finding out costs more than formatting.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler, recent]
    root.setLevel(level.upper())


def formatter(form: str, stream: TextIO, environment: Mapping[str, str]) -> logging.Formatter:
    """Return the formatter of a form; ``auto`` looks at where the stream leads."""
    if form == "auto":
        if _is_journal(stream, environment.get("JOURNAL_STREAM", "")):
            form = "journal"
        else:
            form = "text" if stream.isatty() else "logfmt"
    if form == "text":
        dumb = environment.get("TERM") == "dumb" or bool(environment.get("NO_COLOR"))
        return TextFormatter(coloured=stream.isatty() and not dumb)
    return {"journal": JournalFormatter, "json": JsonFormatter}.get(form, LogfmtFormatter)()


def _is_journal(stream: TextIO, journal: str) -> bool:
    """Tell whether the stream is the very one that systemd connected to the journal."""
    device, _, inode = journal.partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def fields_of(record: logging.LogRecord) -> dict[str, Value]:
    """Return the named values of a record."""
    found: dict[str, Value] = getattr(record, "fields", {})
    return found


def escaped(text: str) -> str:
    """Return text in which nothing can end a line or move a cursor."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def logfmt(name: str, value: Value) -> str:
    """Return name=value, quoted where it must be."""
    if isinstance(value, bool):
        return f"{name}={'true' if value else 'false'}"
    if not isinstance(value, str):
        return f"{name}={value}"
    if value.isprintable() and _PLAIN.fullmatch(value):
        return f"{name}={value}"
    return f"{name}={json.dumps(value)}"


class LogfmtFormatter(logging.Formatter):
    """Words of name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        words = [f"ts={_moment(record)}", f"level={record.levelname.lower()}"]
        return " ".join([*words, *self.words(record)])

    def words(self, record: logging.LogRecord) -> list[str]:
        """Return the message and its values, without time and level."""
        found = [logfmt("msg", record.getMessage()), logfmt("logger", record.name)]
        found += [logfmt(name, value) for name, value in fields_of(record).items()]
        if record.exc_info:
            found.append(logfmt("exception", self.formatException(record.exc_info)))
        return found


class JournalFormatter(LogfmtFormatter):
    """For journald: it has the time already, and takes the level from the start of the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        return f"<{_PRIORITIES.get(record.levelname, 6)}>" + " ".join(self.words(record))


class JsonFormatter(logging.Formatter):
    """One JSON object to a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        found: dict[str, Value] = {
            "ts": _moment(record),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "logger": record.name,
        }
        for name, value in fields_of(record).items():
            found.setdefault(name, value)
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


class TextFormatter(logging.Formatter):
    """For eyes: time of day, level, message, values."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and a traceback below it."""
        level = f"{record.levelname:<7}"
        words = [logfmt(name, value) for name, value in fields_of(record).items()]
        values = (" " + " ".join(words)) if words else ""
        if self._coloured:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
            values = f"\x1b[2m{values}\x1b[0m" if values else ""
        moment = datetime.fromtimestamp(record.created).astimezone()
        line = f"{moment:%H:%M:%S}.{int(record.msecs):03d} {level} {escaped(record.getMessage())}"
        text = line + values
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            text += "".join("\n  " + escaped(each) for each in trace)
        return text


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
