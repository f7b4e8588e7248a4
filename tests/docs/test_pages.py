"""What the documents name is there: files, modules, settings, other pages."""

import re
from pathlib import Path

import pytest

from durastreamd.config import SETTINGS

TOP = Path(__file__).parents[2]
PAGES = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").glob("*.md"))]
NAMED = re.compile(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+(?:\.(?:py|md|json|toml|5|7|8))?)?)`")
# What is in a data directory, what is made by building, names of streams, media types.
ELSEWHERE = (
    *("quarantine", "streams", "journal", "catalog", "old", "dist", "bucket"),
    *("multipart", "application"),
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


@every_page
def test_files_that_are_named_are_there(page: Path) -> None:
    for name in NAMED.findall(page.read_text()):
        first = name.partition("/")[0]
        if first in ELSEWHERE and not name.endswith(".py"):
            continue
        places = [TOP / name, TOP / "durastreamd" / name, TOP / "durastreamd" / f"{name}.py"]
        assert any(place.exists() for place in places), f"{page.name} names {name}"


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^):#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@every_page
def test_settings_that_are_named_exist(page: Path) -> None:
    sections = {name.partition(".")[0] for name in SETTINGS}
    for name in re.findall(r"`([a-z]+\.[a-z0-9_]+)`", page.read_text()):
        section, _, key = name.partition(".")
        if section in sections and key not in ("py", "md"):
            assert name in SETTINGS, f"{page.name} names {name}"
