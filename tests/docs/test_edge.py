"""docs/edge.md shows the very files that are run."""

import re
from pathlib import Path

TOP = Path(__file__).parent.parent.parent
FILES = sorted((TOP / "examples" / "edge").iterdir())


def test_every_file_is_shown_as_it_is() -> None:
    text = (TOP / "docs" / "edge.md").read_text()
    shown = re.findall(r"(?ms)^```(?!toml)\w+\n(.*?)^```$", text)
    assert sorted(shown) == sorted(path.read_text() for path in FILES)
    assert len(FILES) == 4
