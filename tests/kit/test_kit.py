"""What the programs share: streams, options, pipes, sizes, times, tables."""

import argparse
import io
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.text import Text

from durastreamd.errors import CorruptDataError, DirectoryLockedError
from durastreamd.kit import show, status
from durastreamd.kit.command import Command, CommandError, Pairs, Parser, run
from durastreamd.kit.console import Console

PLAIN = status.by_kind(status.FAILURES)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ended(failure: BaseException) -> tuple[int, str]:
    def fail(*_: object) -> int:
        raise failure

    err = io.StringIO()
    commands = (Command("fail", "x", lambda _: None, fail),)
    chosen = argparse.Namespace(command="fail")
    return run(commands, chosen, Console(io.StringIO(), err, "dsx"), PLAIN), err.getvalue()


# --- how a command ends ---


def test_a_failure_that_was_foreseen_is_one_line_and_a_status() -> None:
    assert ended(CommandError(status.NO_INPUT, "so")) == (status.NO_INPUT, "dsx: so\n")
    assert ended(DirectoryLockedError("so")) == (status.LOCKED, "dsx: so\n")
    assert ended(CorruptDataError("f", 1, "so")) == (status.CORRUPT, "dsx: f:1: so\n")
    assert ended(KeyboardInterrupt()) == (status.INTERRUPTED, "")
    assert ended(BrokenPipeError()) == (status.BROKEN_PIPE, "")


def test_a_bug_is_a_traceback_and_a_status_of_its_own() -> None:
    code, text = ended(ZeroDivisionError())
    assert code == status.INTERNAL
    assert "Traceback" in text
    assert text.endswith("dsx: this is an error in dsx; please report it with the lines above\n")


def test_every_status_is_told_apart_and_named_as_sysexits_has_it() -> None:
    found = {
        name: code
        for name, code in vars(status).items()
        if name.isupper() and isinstance(code, int)
    }
    assert len(set(found.values())) == len(found)
    assert {code for code in found.values() if 64 <= code <= 78} | {0} == set(status.NAMES)


def test_a_wrong_command_line_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser("dsx", "x")
    made.add_commands((Command("go", "x", lambda _: None, lambda _, __: 0),), "WORD")
    for arguments, says in (
        (["no"], "invalid choice: 'no'"),
        (["go", "--al"], "unrecognized arguments: --al; see dsx --help"),
    ):
        with pytest.raises(SystemExit) as caught:
            made.parse_args(arguments)
        out, err = capsys.readouterr()
        assert (caught.value.code, out, err.count("\n")) == (status.USAGE, "", 1)
        assert says in err


def test_pairs_are_taken_apart_at_the_first_sign(capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser("dsx", "x")
    made.add_argument("--conf", metavar="KEY=VALUE", action=Pairs, default={})
    given = ["--conf", "a=1", "--conf", "b=c=d", "--conf=e=", "--conf", "a=2"]
    assert made.parse_args(given).conf == {"a": "2", "b": "c=d", "e": ""}
    assert made.parse_args([]).conf == {}
    with pytest.raises(SystemExit):
        made.parse_args(["--conf", "a"])
    assert "dsx: --conf takes KEY=VALUE, not 'a'; see dsx --help" in capsys.readouterr().err


def test_the_server_does_without_rich() -> None:
    program = "import sys, durastreamd.cli; sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- where a command writes ---


def test_progress_is_for_terminals() -> None:
    assert not Console(io.StringIO(), io.StringIO()).shows_progress
    assert Console(io.StringIO(), Terminal()).shows_progress
    assert not Console(io.StringIO(), Terminal(), progress="never").shows_progress
    out, err = io.StringIO(), io.StringIO()
    with Console(out, err, progress="always").working("reading", 3 * 2**20) as advance:
        advance(2**20)
        advance(2**20)
    assert out.getvalue() == ""
    assert "reading" in err.getvalue()
    assert "MB" not in err.getvalue(), "one kind of unit everywhere"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert Console(io.StringIO(), io.StringIO()).rich().no_color
    assert not Console(io.StringIO(), io.StringIO(), color="always").rich().no_color
    monkeypatch.delenv("NO_COLOR")
    assert Console(io.StringIO(), io.StringIO(), color="never").rich().no_color


def test_a_summary_is_words_or_json() -> None:
    out = io.StringIO()
    Console(out).summary("2 files", {"files": 2})
    Console(out, as_json=True).summary("2 files", {"files": 2})
    assert out.getvalue() == '2 files\n{"files": 2}\n'


# --- how things look ---


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (12.7, "13 B"),
        (1024, "1.0 KiB"),
        (2.5 * 2**20, "2.5 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_have_the_unit_that_leaves_few_digits(count: float, text: str) -> None:
    assert show.size(count) == text


def test_times_are_iso_8601_in_utc() -> None:
    assert show.moment(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert show.moment(1_700_000_000_123, "seconds") == "2023-11-14T22:13:20Z"
    assert show.moment(2**62) == f"{2**62}ms"
    lengths = (5, 119_900, 120_000, 3 * 3600_000, 10 * 86400_000)
    assert [show.duration(each) for each in lengths] == [
        "0.0 s", "119.9 s", "2.0 min", "3.0 h", "10.0 d",
    ]  # fmt: skip


def test_a_name_cannot_drive_a_terminal() -> None:
    assert show.name("a b/ö") == "a b/ö"
    assert show.name("a\x1b[31m\n") == "a\\x1b[31m\\n"


COLUMNS = (
    show.Column("NAME", least=6),
    show.Column("COUNT", number=True),
    show.Column("SINCE", spare=True),
    show.Column("TYPE", least=8),
)
ROWS = [["a", "10", "noon", "application/json"], ["longer", "7", "midday", "-"]]


def test_a_table_is_aligned() -> None:
    out = io.StringIO()
    show.table(Console(out), COLUMNS, ROWS)
    assert out.getvalue().splitlines() == [
        "NAME    COUNT  SINCE   TYPE",
        "a          10  noon    application/json",
        "longer      7  midday  -",
    ]


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, rows: list[list[str]]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    show.table(Console(out, color="always"), COLUMNS, rows, {"longer": "red"})
    return out.getvalue().splitlines()


def test_on_a_terminal_words_have_styles_and_columns_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = on_terminal(monkeypatch, 24, ROWS)
    assert "\x1b[31mlonger" in lines[2]
    assert "SINCE" not in lines[0], "what can be spared goes first"
    assert lines[1].endswith("applicat\N{HORIZONTAL ELLIPSIS}")
    assert "SINCE" in on_terminal(monkeypatch, 39, ROWS)[0]


@pytest.mark.parametrize("width", [*range(23, 60), 80, 120])
@pytest.mark.parametrize(
    "name", ["x" * 200, "/\u6f22\u5b57" * 40, "/\u05e9\u05dc\u05d5\u05dd" * 20, "a"]
)
def test_no_line_of_a_table_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    for line in on_terminal(monkeypatch, width, [[name, "1", "noon", "application/json"]]):
        plain = Text.from_ansi(line).plain
        assert cell_len(plain) <= width
        if "noon" in plain or "1" in plain:
            shown = plain.split()[0]
            assert name.startswith(shown.partition("\N{HORIZONTAL ELLIPSIS}")[0])
            assert name.endswith(shown.rpartition("\N{HORIZONTAL ELLIPSIS}")[2])
