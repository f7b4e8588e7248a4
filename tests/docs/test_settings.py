"""durastreamd.toml, the manual pages and the program say the same."""

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from durastreamd.cli import STATUSES, parser
from durastreamd.config import SETTINGS, Config, defaults_text, load
from durastreamd.kit.status import NAMES
from tools.settings import manual

TOP = Path(__file__).parent.parent.parent
MAN = TOP / "man"
PAGES = sorted(MAN.iterdir())


def test_the_shipped_file_is_what_the_program_prints() -> None:
    text = (TOP / "durastreamd.toml").read_text()
    assert text == defaults_text(), "run tools/settings.py"


def test_the_shipped_file_is_the_defaults_to_the_last_key() -> None:
    path = TOP / "durastreamd.toml"
    assert load(str(path), []) == load(None, [])
    found = tomllib.loads(path.read_text())
    wanted = asdict(Config())
    assert {name: list(keys) for name, keys in found.items()} == {
        name: list(keys) for name, keys in wanted.items()
    }


def test_the_manual_page_of_the_settings_is_made_from_them() -> None:
    text = (MAN / "durastreamd.toml.5").read_text()
    assert text == manual(), "run tools/settings.py"
    section, found = "", []
    for line in text.splitlines():
        if match := re.fullmatch(r"\.Ss \[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r"\.It Va (\w+) ", line):
            found.append(f"{section}.{match[1]}")
    assert found == list(SETTINGS)


def test_settings_named_in_manual_pages_exist() -> None:
    for page in ("durastreamd.7", "durastreamd.8"):
        for name in re.findall(r"\.Va ([a-z_.]+)", (MAN / page).read_text()):
            assert name in SETTINGS, (page, name)


def test_the_manual_page_has_every_option() -> None:
    text = (MAN / "durastreamd.8").read_text()
    options = {option[1:] for action in parser()._actions for option in action.option_strings}
    assert set(re.findall(r"Fl (-?[a-z-]+)", text)) == options
    listed = re.findall(r"^\.It (Fl .*)$", text, re.MULTILINE)
    assert {name for line in listed for name in re.findall(r"Fl (-?[a-z-]+)", line)} == options


def test_the_manual_page_has_every_status() -> None:
    text = (MAN / "durastreamd.8").read_text()
    found = re.findall(r"^\.It (\d+) (EX_\w+)$", text, re.MULTILINE)
    assert found == [(str(code), NAMES[code]) for code in STATUSES]


def test_the_quick_start_is_that_of_the_readme() -> None:
    lines = re.findall(r"^\.Dl (curl .*)$", (MAN / "durastreamd.7").read_text(), re.MULTILINE)
    assert len(lines) >= 4
    readme = (TOP / "README.md").read_text().splitlines()
    assert [line for line in lines if line not in readme] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="not run: no groff")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_manual_page_renders_without_a_warning(page: Path) -> None:
    command = ["groff", "-mdoc", "-ww", "-z", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="not run: no man")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_manual_page_is_shown_as_it_is_meant(page: Path) -> None:
    environment = {**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "-l", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    for line in re.findall(r"^\.Dl (.*)$", page.read_text(), re.MULTILINE):
        assert line in done.stdout


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="not run: no mandoc")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_has_nothing_against_a_manual_page(page: Path) -> None:
    command = ["mandoc", "-Tlint", "-Wwarning", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not run: no systemd-analyze")
def test_the_unit_is_hardened() -> None:
    unit = TOP / "systemd" / "durastreamd.service"
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
