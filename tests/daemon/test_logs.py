"""The four forms of the log: one line per event, whatever a client sends."""

import json
import logging
import os
import re
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.logs import (
    JournalFormatter,
    JsonFormatter,
    LogfmtFormatter,
    TextFormatter,
    formatter,
    logfmt,
)

FORBIDDEN = {chr(code) for code in (*range(32), 127, 0x85, 0x9B, 0x2028)}


def record(
    message: str, level: int = logging.INFO, **fields: str | float | bool
) -> logging.LogRecord:
    made = logging.LogRecord("a.b", level, "f", 1, message, (), None)
    made.created, made.msecs = 1_700_000_000.25, 250
    made.__dict__["fields"] = fields
    return made


def test_each_form_is_as_its_readers_expect() -> None:
    made = record("it went", logging.WARNING, path="/a b", n=3, f=0.5, ok=True, plain="x/y-z")
    words = 'msg="it went" logger=a.b path="/a b" n=3 f=0.5 ok=true plain=x/y-z'
    assert LogfmtFormatter().format(made) == (f"ts=2023-11-14T22:13:20.250Z level=warning {words}")
    assert JournalFormatter().format(made) == f"<4>{words}"
    assert json.loads(JsonFormatter().format(made)) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "msg": "it went",
        "logger": "a.b",
        "path": "/a b",
        "n": 3,
        "f": 0.5,
        "ok": True,
        "plain": "x/y-z",
    }
    text = TextFormatter(coloured=False).format(made)
    assert re.fullmatch(r'\d\d:\d\d:\d\d\.250 WARNING it went path="/a b" n=3 .*', text)
    coloured = TextFormatter(coloured=True).format(made)
    assert "\x1b[33mWARNING\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text


def test_priorities_are_those_of_syslog() -> None:
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    assert [JournalFormatter().format(record("", level))[:3] for level in levels] == [
        "<7>",
        "<6>",
        "<4>",
        "<3>",
        "<2>",
    ]


@settings(max_examples=60)
@given(st.text(max_size=30), st.text(max_size=30))
def test_nothing_that_is_logged_makes_a_second_line_or_moves_a_cursor(
    message: str, value: str
) -> None:
    made = record(message.replace("%", "%%"), v=value)
    for form in (LogfmtFormatter(), JournalFormatter(), JsonFormatter()):
        line = form.format(made)
        assert len(line.splitlines()) == 1
        assert not set(line) & FORBIDDEN
    assert TextFormatter(coloured=False).format(made).isprintable()
    assert json.loads(JsonFormatter().format(made))["v"] == value


def test_a_traceback_is_one_line_but_for_eyes() -> None:
    made = record("failed", logging.ERROR)
    try:
        raise ValueError("why\x1b[2J")  # noqa: EM101
    except ValueError as exc:
        made.exc_info = (type(exc), exc, exc.__traceback__)
    assert len(LogfmtFormatter().format(made).splitlines()) == 1
    assert "ValueError: why" in json.loads(JsonFormatter().format(made))["exception"]
    text = TextFormatter(coloured=False).format(made)
    assert "\n  ValueError: why\\x1b[2J" in text


def test_numbers_and_words_are_bare_and_all_else_is_quoted() -> None:
    assert logfmt("a", "") == 'a=""'
    assert logfmt("a", 'x"y') == 'a="x\\"y"'
    assert logfmt("a", "x=y") == 'a="x=y"'
    assert logfmt("a", "é") == "a=é"


def test_auto_looks_at_where_the_log_goes(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        found = os.fstat(file.fileno())
        journal = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert type(formatter("auto", file, journal)) is JournalFormatter
        other = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}
        assert type(formatter("auto", file, other)) is LogfmtFormatter
        assert type(formatter("auto", file, {})) is LogfmtFormatter
        assert type(formatter("json", file, journal)) is JsonFormatter
        assert type(formatter("journal", file, {})) is JournalFormatter
    assert type(formatter("auto", StringIO(), {"JOURNAL_STREAM": "1:2"})) is LogfmtFormatter


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_it_says_no(
    environment: dict[str, str], *, coloured: bool
) -> None:
    parent, child = os.openpty()
    with os.fdopen(child, "w") as terminal:
        form = formatter("auto", terminal, environment)
        assert type(form) is TextFormatter
        assert ("\x1b[" in form.format(record("x"))) is coloured
    os.close(parent)
