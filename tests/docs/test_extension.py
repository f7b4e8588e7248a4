"""The lines of docs/extension.md, run as they stand there."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_readme import run
from tests.support.daemon import Daemon

LINES = re.findall(
    r"^curl .*$", (Path(__file__).parents[2] / "docs" / "extension.md").read_text(), re.MULTILINE
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("curl") is None, reason="not run: no curl"),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


def test_every_line_does_what_the_page_says(daemon: Daemon) -> None:
    answers = [run(line, daemon) for line in LINES]
    assert len(answers) == 9
    assert not [answer for answer in answers if "/errors/" in answer]
    assert '"streams": 1' in answers[2]
    assert '"stream_id": "run-1"' in answers[3]
    assert answers[6] == answers[7] == '{"sum": 5}'
    assert '{"sum": 5}' in answers[8]
