"""The page ds(1), the parser and the exit statuses say the same, and its examples run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.ds.cli import COMMANDS, parser
from tests.admin.test_manual import below as commands_below, options
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

MAN = ROOT / "man" / "ds.1"
TEXT = MAN.read_text()
LINES = re.findall(r"^\.Dl (.*)$", TEXT, re.MULTILINE)
# Commands whose work is all they do.
QUIET = {"create", "append", "fork", "close", "rm", "--put", "put"}


def section(title: str) -> str:
    found = re.search(rf"^\.S[hs] {title}\n(.*?)(?=^\.S[hs] |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def documented(title: str) -> set[str]:
    return {f"-{name}" for name in re.findall(r"Fl (-[a-z-]+)", section(title))}


def test_the_page_has_the_options_that_every_command_takes() -> None:
    assert documented("OPTIONS") == options(parser())
    assert documented("SYNOPSIS") == options(parser())


@pytest.mark.parametrize("name", [each.name for each in COMMANDS])
def test_the_page_has_the_options_of_a_command(name: str) -> None:
    common = options(parser())
    assert documented(name) - common == options(commands_below(parser())[name]) - common


def test_every_command_has_an_example() -> None:
    words = {word for line in LINES for word in line.split()}
    assert {each.name for each in COMMANDS} <= words


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


@pytest.mark.slow
def test_the_examples_do_what_they_are_there_for(daemon: Daemon, tmp_path: Path) -> None:
    command = f'ds() {{ {sys.executable} -m durastreamd.ds.cli "$@"; }}; '
    environ = {
        **os.environ,
        "STREAM_URL": daemon.url,
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    told = {}
    for line in LINES:
        done = subprocess.run(
            ["/bin/sh", "-c", command + line],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert (done.returncode, done.stderr) == (0, ""), (line, done.stderr)
        assert done.stdout or QUIET & set(line.split()), line
        told[line] = done.stdout
    assert told["ds cat logs"] == "one message\nand another\n1\n2\n3\n"
    assert told["ds cat -n 2 logs"] == "2\n3\n"
    assert told["ds tail --from -1 build"] == "compiling\ndone\nexit status 0\n"
    assert told["ds snapshot logs-2"] == '{"lines": 5}\n'
