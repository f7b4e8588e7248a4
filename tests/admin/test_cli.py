"""The frame of dsadmin: statuses, streams, options, pipes, completions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.admin import cli
from durastreamd.config import ConfigError
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    StreamDamagedError,
    SyncFailedError,
)
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.status import (
    BROKEN_PIPE,
    CONFIG,
    CORRUPT,
    INTERNAL,
    INTERRUPTED,
    IO_ERROR,
    LOCKED,
    NO_INPUT,
    USAGE,
)
from tests.admin.harness import ENVIRONMENT, run
from tests.golden.test_golden import HERE as GOLDEN
from tests.support.patience import PATIENCE_S
from tools import completions

V1 = GOLDEN / "v1"
PROGRAM = [sys.executable, "-m", "durastreamd.admin.cli"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (CommandError(NO_INPUT, "so"), NO_INPUT),
        (ConfigError("so"), CONFIG),
        (DirectoryLockedError("so"), LOCKED),
        (DataDirectoryError("so"), NO_INPUT),
        (CorruptDataError("a", 1, "so"), CORRUPT),
        (StreamDamagedError("so"), CORRUPT),
        (SyncFailedError("so"), IO_ERROR),
        (OSError("so"), IO_ERROR),
    ],
)
def test_each_failure_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int
) -> None:
    def fail(*_: object) -> int:
        raise failure

    monkeypatch.setattr(cli, "COMMANDS", (Command("fail", "x", lambda _: None, fail),))
    found = run("fail")
    assert (found.status, found.out) == (status, b"")
    assert found.err.startswith("dsadmin: ")
    assert found.err.endswith("so\n")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: COMMAND"),
        (["lss"], "invalid choice: 'lss'"),
        (["ls", "--stat", "open"], "unrecognized arguments"),
        (["ls", "--sort", "size"], "invalid choice: 'size'"),
        (["--data-dir", "a", "--config", "b", "ls"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_usage(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (USAGE, "")
    assert says in err


def test_the_directory_must_be_named_and_be_one(tmp_path: Path) -> None:
    assert run("ls").status == USAGE
    for name, says in (("absent", "is not a directory"), ("", "is not a durastreamd data dir")):
        found = run("--data-dir", tmp_path / name, "ls")
        assert (found.status, says in found.err) == (NO_INPUT, True)
    (tmp_path / "DURASTREAMD").write_text("rot")
    found = run("--data-dir", tmp_path, "ls")
    assert (found.status, "`dsadmin repair`" in found.err) == (NO_INPUT, True)


def test_the_configuration_names_the_directory(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'[server]\ndata_dir = "{V1}"\n')
    assert run("--config", file, "ls").lines == run("--data-dir", V1, "ls").lines
    file.write_text("[server\n")
    assert run("--config", file, "ls").status == CONFIG
    assert run("--config", tmp_path / "absent", "ls").status == CONFIG


def test_common_options_stand_before_and_after_the_command() -> None:
    before = run("--data-dir", V1, "--json", "ls")
    assert before.records
    assert run("ls", "--json", "--data-dir", V1).out == before.out
    assert "\x1b" in run("--color", "always", "ls", "--data-dir", V1).text
    assert "\x1b" not in run("--color", "always", "ls", "--color", "never", "--data-dir", V1).text


# Much, and so little that it is still buffered when the command is done.
@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "--format", "hex", str(V1 / "journal/0000000000000003.jnl")],
        ["decode-offset", "5"],
    ],
)
def test_a_reader_that_goes_ends_the_writer_quietly(arguments: list[str]) -> None:
    command = [*PROGRAM, *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            command,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_S,
            env=ENVIRONMENT,
        )
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


def test_an_interrupt_has_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "COMMANDS", (Command("fail", "x", lambda _: None, fail),))
    assert run("fail") == (INTERRUPTED, b"", "")


def test_a_bug_does_not_end_with_the_status_of_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "COMMANDS", (Command("fail", "x", lambda _: None, fail),))
    found = run("fail")
    assert (found.status, "ZeroDivisionError" in found.err) == (INTERNAL, True)


# --- completions ---


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("completions")
    assert completions.main([str(home)]) == 0
    return home


def test_completions_are_made_for_each_shell_and_program(completed: Path) -> None:
    found = {str(path.relative_to(completed)) for path in completed.rglob("*") if path.is_file()}
    assert found == {
        "bash/dsadmin", "bash/durastreamd", "zsh/_dsadmin", "zsh/_durastreamd",
        "fish/dsadmin.fish", "fish/durastreamd.fish", "bash/ds", "zsh/_ds", "fish/ds.fish",
    }  # fmt: skip
    for path in completed.rglob("*sadmin*"):
        text = path.read_text()
        for command in cli.COMMANDS:
            assert command.name in text, (path, command.name)
    assert completions.main([]) == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["dsadmin", "d"], {"dump", "decode-offset"}),
        (["dsadmin", "ls", "--st"], {"--state"}),
        (["dsadmin", "ls", "--state", "o"], {"open"}),
        (["dsadmin", "--d"], {"--data-dir"}),
        (["durastreamd", "--in"], {"--init"}),
        (["ds", "c"], {"create", "cat", "close"}),
        (["ds", "append", "--no"], {"--no-state"}),
    ],
)
def test_bash_offers_what_can_follow(completed: Path, words: list[str], offered: set[str]) -> None:
    program = words[0]
    file = completed / "bash" / program
    subprocess.run(["bash", "-n", str(file)], check=True)
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"source {file}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        f'_shtab_{program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered, done.stderr
