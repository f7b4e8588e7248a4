"""The man page of dsadmin, its parser and its exit statuses say the same, and its examples run."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.admin import command, frames, ls
from durastreamd.admin.cli import COMMANDS, parser
from tests.admin.harness import run
from tests.support.daemon import Daemon

MAN = Path(__file__).parent.parent.parent / "man" / "dsadmin.8"
TEXT = MAN.read_text()
KNOWN = {made.name for made in COMMANDS}
EXAMPLES = [
    line.removeprefix(".Dl ") for line in TEXT.splitlines() if line.startswith(".Dl dsadmin")
]
# What grep and dump say when there is nothing wrong to show; a backup speaks on standard error.
QUIET = ("damaged", "grep -v", " backup ")


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


def below() -> dict[str, argparse.ArgumentParser]:
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError


def test_the_page_has_the_options_that_every_command_takes() -> None:
    assert documented("OPTIONS") == options(parser())
    assert documented("SYNOPSIS") == options(parser())


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_page_has_the_options_of_a_command(name: str) -> None:
    own = options(below()[name]) - options(parser())
    # Another command's option may be spoken of, as import speaks of export's.
    assert documented(name) == own


def test_the_page_has_every_exit_status() -> None:
    statuses = {
        value for name, value in vars(command).items() if name.isupper() and isinstance(value, int)
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


@pytest.mark.parametrize(
    "example", [line for line in EXAMPLES if KNOWN & set(shlex.split(line.partition("|")[0]))]
)
def test_an_example_does_what_it_is_there_for(
    example: str, original: Path, daemon: Daemon, tmp_path: Path
) -> None:
    shutil.copytree(original, tmp_path / "streams")
    if "--verify" in example:  # of what the example before it made
        assert run("--data-dir", tmp_path / "streams", "backup", tmp_path / "backup").status == 0
    line = example.replace("/srv/", f"{tmp_path}/").replace("http://127.0.0.1:4437", daemon.url)
    if "|" in line:
        program = f'dsadmin() {{ {sys.executable} -m durastreamd.admin.cli "$@"; }}; {line}'
        done = subprocess.run(
            ["/bin/sh", "-c", program], capture_output=True, text=True, check=False, timeout=30
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        found = run(*shlex.split(line)[1:])
        status, out, err = found.status, found.text, found.err
    assert status == 0, (line, err)
    quiet = any(word in line for word in QUIET)
    assert quiet or out, line


def test_examples_are_there_for_every_command_to_look_and_watch() -> None:
    shown = {word for line in EXAMPLES for word in shlex.split(line.partition("|")[0])}
    wanted = {"ls", "info", "cat", "dump", "decode-offset", "tail", "top"}
    assert wanted <= shown
