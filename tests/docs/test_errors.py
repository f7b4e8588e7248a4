"""docs/errors.md has every error code, and nothing else has another."""

import re
from pathlib import Path

import pytest

from durastreamd.protocol import problems
from tools.reference import errors_page

TOP = Path(__file__).parent.parent.parent
VARIABLES = ("STREAM_AUTH", "STREAM_URL")  # of the environment
PAGES = sorted((TOP / "docs").glob("*.md"))


def test_the_page_is_the_table() -> None:
    assert (TOP / "docs" / "errors.md").read_text() == errors_page(), "run tools/reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_codes_that_are_named_exist_with_the_status_that_is_named(page: Path) -> None:
    text = page.read_text()
    for code in re.findall(r"`([A-Z]{3,}(?:_[A-Z]+)+)`", text):
        if code not in VARIABLES:
            problems.by_name(code)
    for status, code in re.findall(r"\b([45]\d\d) `([A-Z_]+)`", text):
        assert problems.by_name(code).status == int(status), code


STATUSES = re.findall(
    r"^\| ([\d, ]+) \| (.*) \|$", (TOP / "docs" / "http.md").read_text(), re.MULTILINE
)


def test_the_table_of_statuses_has_every_code_under_its_own() -> None:
    told = {
        (int(status), code)
        for status, text in STATUSES
        for code in re.findall(r"`([A-Z_]{4,})`", text)
    }
    assert told == {(row.status, row.name) for row in problems.problems()}


def test_the_table_of_statuses_has_every_status_that_is_answered() -> None:
    code = "\n".join(
        path.read_text()
        for package in ("service", "http")
        for path in sorted((TOP / "durastreamd" / package).rglob("*.py"))
    )
    answered = set(re.findall(r"(?:respond|Answer|reply|begin)\(\s*([23]\d\d)\b", code))
    told = {each for statuses, _ in STATUSES for each in statuses.split(", ")}
    assert answered <= told
    assert {each for each in told if each < "400"} == {"200", "201", "204", "304", "307"}
    assert len(answered) >= 4
