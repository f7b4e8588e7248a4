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

A body is `application/problem+json` (RFC 9457). A program looks at `code` and, where it needs to
know more, at `reason`, which stands only where the table has one; `detail` is for people and says
what was wrong with this very request. The rows marked *shared* are of a proposal for all servers of
the protocol: where one of its codes is true of an error, that is the error's code, with the `type`
and the title of the proposal. The others are ours: the proposal has none for that status, or none
that would be true. Of the statuses, 429, 503 and 507 mean *later* and
say when in `Retry-After`; 408 and other 5xx may be tried again; every other 4xx needs another
request.
`OUTCOME_UNKNOWN` and `OUTCOME_UNKNOWN_REPEAT` are the errors after which a change may be stored.

| status | code | reason | | meaning, and what to do |
|---|---|---|---|---|
"""


def errors_page() -> str:
    """Return the text of docs/errors.md."""
    rows = sorted(problems.problems(), key=lambda row: (row.status, row.code, row.reason))
    return HEAD + "".join(_line(row) for row in rows)


def _line(row: problems.Problem) -> str:
    reason = f"`{row.reason}`" if row.reason else ""
    whose = "shared" if row.code in problems.SHARED else "ours"
    return f"| {row.status} | `{row.code}` | {reason} | {whose} | {row.description} |\n"


def main() -> None:
    """Write the page."""
    (TOP / "docs" / "errors.md").write_text(errors_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
