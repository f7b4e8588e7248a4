"""The man page of dsadmin, its parser and its exit statuses say the same, and its examples run."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.admin.cli import COMMANDS, parser
from durastreamd.admin.look import frames, ls
from durastreamd.kit import status
from tests.admin.harness import run
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

MAN = Path(__file__).parent.parent.parent / "man" / "dsadmin.8"
TEXT = MAN.read_text()
KNOWN = {made.name for made in COMMANDS}
# Lines that stand together are run together, in order.
GROUPS = [
    [line.removeprefix(".Dl ") for line in run_of_lines.splitlines()]
    for run_of_lines in re.findall(r"(?:^\.Dl dsadmin.*\n)+", TEXT, re.MULTILINE)
]
LOOKING = {"ls", "info", "cat", "dump", "decode-offset", "tail", "top"}
# What grep and dump say when there is nothing wrong to show.
QUIET = ("damaged", "grep -v")


def section(title: str) -> str:
    """Return a section or a command's part of the page."""
    found = re.search(rf"^\.S[hs] {title}\n(.*?)(?=^\.S[hs] |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def documented(title: str) -> set[str]:
    return {f"-{name}" for name in re.findall(r"Fl (-[a-z-]+)", section(title))}


def options(made: argparse.ArgumentParser) -> set[str]:
    return {
        option
        for action in made._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def below(made: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError


def test_the_page_has_the_options_that_every_command_takes() -> None:
    assert documented("OPTIONS") == options(parser())
    assert documented("SYNOPSIS") == options(parser())


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_page_has_the_options_of_a_command(name: str) -> None:
    own = options(below(parser())[name]) - options(parser())
    # Another command's option may be spoken of, as import speaks of export's.
    assert documented(name) == own


def test_the_page_has_every_exit_status() -> None:
    statuses = {
        value for name, value in vars(status).items() if name.isupper() and isinstance(value, int)
    }
    assert statuses == {
        int(number) for number in re.findall(r"\.It (\d+)\n", section("EXIT STATUS"))
    }


def test_the_page_has_every_verdict_and_state() -> None:
    verdicts = re.findall(r"^    ([a-z-]+) {2,}", frames.__doc__ or "", re.MULTILINE)
    assert len(verdicts) == 8
    for word in verdicts:
        assert f".Cm {word}" in section("dump"), word
    for state in ls.STATES:
        assert f".Cm {state}" in section("ls"), state


def test_the_page_names_every_member_of_json_records(original: Path) -> None:
    text = section("JSON")
    for arguments in (["ls"], ["ls", "--buckets"], ["info", "log"], ["decode-offset", "0", "fork"]):
        for record in run("--data-dir", original, *arguments, "--json").records:
            for member in record:
                assert re.search(rf"\b{member}\b", text), (arguments, member)


@pytest.mark.skipif(shutil.which("groff") is None, reason="not run: no groff")
def test_the_page_renders_without_a_warning() -> None:
    done = subprocess.run(
        ["groff", "-mdoc", "-ww", "-z", str(MAN)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="not run: no mandoc")
def test_the_page_is_clean_to_mandoc() -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", str(MAN)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


# --- the examples ---


def words(line: str) -> set[str]:
    return set(shlex.split(line.partition("|")[0]))


@pytest.mark.parametrize(
    "lines", [group for group in GROUPS if all(KNOWN & words(line) for line in group)]
)
def test_examples_do_what_they_are_there_for(
    lines: list[str], original: Path, daemon: Daemon, tmp_path: Path
) -> None:
    shutil.copytree(original, tmp_path / "streams")
    for example in lines:
        line = example.replace("/srv/", f"{tmp_path}/").replace("http://127.0.0.1:4437", daemon.url)
        status, out, err = execute(line)
        assert status == 0, (line, err)
        quiet = not LOOKING & words(line) or any(word in line for word in QUIET)
        assert quiet or out, line


def execute(line: str) -> tuple[int, str, str]:
    """Run a line: here if it is one command, by a shell if it is several."""
    if "|" not in line:
        found = run(*shlex.split(line)[1:])
        return found.status, found.text, found.err
    program = f'dsadmin() {{ {sys.executable} -m durastreamd.admin.cli "$@"; }}; {line}'
    done = subprocess.run(
        ["/bin/sh", "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def test_every_command_to_look_and_watch_has_an_example() -> None:
    assert {word for group in GROUPS for line in group for word in words(line)} >= LOOKING
