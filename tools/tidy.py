"""House rules no linter has: module and function length, banned words, a test for each module.

Run as ``python tools/tidy.py``; also collected by tests/test_tidy.py.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
BANNED = ("XXX", "FIXME", "TODO", "# type: ignore\n")


def findings(path: Path) -> Iterator[str]:
    """Yield one line of text for each rule ``path`` breaks."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{path}:1: {lines} lines, more than {MODULE_LINES_MAX}"
    for word in BANNED:
        if word in text and path.name != "tidy.py":
            yield f"{path}:1: contains {word!r}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines"


def unmirrored(package: Path, tests: Path) -> Iterator[str]:
    """Yield the packages of ``package`` that have no directory of the same name in ``tests``."""
    for child in sorted(package.iterdir()):
        if (child / "__init__.py").exists() and not any((tests / child.name).glob("test_*.py")):
            yield f"{child}:1: no tests in {tests / child.name}/"


def main() -> int:
    """Print every finding; exit 1 when there is one."""
    top = Path(__file__).resolve().parent.parent
    paths = [
        path for part in ("durastreamd", "tests", "tools") for path in (top / part).rglob("*.py")
    ]
    found = [line for path in sorted(paths) for line in findings(path)]
    found += unmirrored(top / "durastreamd", top / "tests")
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
