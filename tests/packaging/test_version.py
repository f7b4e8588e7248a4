"""The version stands in one place, and the change log knows of it."""

import re
import tomllib
from pathlib import Path

from durastreamd import __version__

TOP = Path(__file__).parents[2]


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "durastreamd/__init__.py"
    written = [
        path
        for package in ("durastreamd", "tools", "man", "systemd")
        for path in (TOP / package).rglob("*")
        if path.suffix in (".py", "") or path.suffix[1:].isdigit()
        if path.is_file() and f'"{__version__}"' in path.read_text(errors="replace")
    ]
    assert written == [TOP / "durastreamd" / "__init__.py"]


def test_the_version_has_three_numbers() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", __version__)


def test_the_change_log_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", (TOP / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    for heading in headings[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+, \d{4}-\d{2}-\d{2}", heading), heading


def test_the_change_log_has_one_form() -> None:
    """Each version: some of four parts, in this order, each a list of entries and nothing else."""
    parts = ["Added", "Changed", "Removed", "Fixed"]
    for version in (TOP / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        above, *found = version.split("\n### ")
        assert above.strip().count("\n") == 0, "an entry stands above the parts"
        names = [part.partition("\n")[0] for part in found]
        assert names == [name for name in parts if name in names]
        for part in found:
            entries = part.partition("\n")[2].strip("\n").splitlines()
            assert entries
            assert all(re.match(r"\* [A-Z`]|  \S", line) for line in entries), part


def test_the_types_are_for_others_too() -> None:
    assert (TOP / "durastreamd" / "py.typed").exists()
