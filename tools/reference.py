"""Writes docs/errors.md from the table of problems; ``tests/docs/test_errors.py`` holds them equal.

Run as ``python tools/reference.py`` after a change of ``durastreamd/protocol/problems.py``.
"""

import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from durastreamd.protocol import problems  # noqa: E402 - found only with the line above

HEAD = """\
# Error codes

Every error durastreamd answers, by status. Made by `tools/reference.py` from
`durastreamd/protocol/problems.py`; a code that is not here does not exist. A running server
explains each one at the `type` of the error, for example `GET /errors/invalid-offset`.

A body is `application/problem+json` (RFC 9457). A program looks at `code`; `detail` is for people
and says what was wrong with this very request. Of the statuses, 429, 503 and 507 mean *later* and
say when in `Retry-After`; 408 and other 5xx may be tried again; every other 4xx needs another
request.
`OUTCOME_UNKNOWN` is the one error after which an append may be stored.

| status | code | meaning, and what to do |
|---|---|---|
"""


def errors_page() -> str:
    """Return the text of docs/errors.md."""
    rows = sorted(problems.problems(), key=lambda row: (row.status, row.code))
    lines = [f"| {row.status} | `{row.code}` | {row.description} |" for row in rows]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    (TOP / "docs" / "errors.md").write_text(errors_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
