"""docs/errors.md has every error code, and nothing else has another."""

import re
from pathlib import Path

import pytest

from durastreamd.protocol import problems
from tools.reference import errors_page

TOP = Path(__file__).parent.parent.parent
PAGES = sorted((TOP / "docs").glob("*.md"))


def test_the_page_is_the_table() -> None:
    assert (TOP / "docs" / "errors.md").read_text() == errors_page(), "run tools/reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_codes_that_are_named_exist_with_the_status_that_is_named(page: Path) -> None:
    text = page.read_text()
    for code in re.findall(r"`([A-Z]{3,}(?:_[A-Z]+)+)`", text):
        problems.by_code(code)
    for status, code in re.findall(r"\b([45]\d\d) `([A-Z_]+)`", text):
        assert problems.by_code(code).status == int(status), code
