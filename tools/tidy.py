"""House rules no linter has: lengths, banned words, names defined twice, dead code, missing tests.

Every package has tests of its own; of the packages at the bottom every module has. Run as
``python tools/tidy.py``; also collected by tests/test_tidy.py.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
BANNED = ("XXX", "FIXME", "TODO", "# type: ignore\n")
# Of these each module has its own test file; what they promise is too much to test from above.
MIRRORED = ("protocol", "model", "storage", "offline")
# Used by nobody here, on purpose: what tests hold states to, what makes their Java start fast, and
# methods that others call (logging, Spark).
FOR_OTHERS = {"main", "DefaultSource", "check_invariants", "make_class_archive"}
CALLED_BY_OTHERS = {"emit", "streamReader"}

Modules = dict[Path, ast.Module]
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def findings(path: Path, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield one line of text for each rule ``path`` breaks by itself."""
    lines = text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{path}:1: {lines} lines, more than {MODULE_LINES_MAX}"
    for word in BANNED:
        if word in text and path.name != "tidy.py":
            yield f"{path}:1: contains {word!r}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines"


def untested(package: Path, tests: Path) -> Iterator[str]:
    """Yield packages without tests, and modules of the lowest packages without a test file."""
    for child in sorted(package.iterdir()):
        if not (child / "__init__.py").exists():
            continue
        if not any((tests / child.name).rglob("test_*.py")):
            yield f"{child}:1: no tests in {tests / child.name}/"
        for path in sorted(child.rglob("*.py")) if child.name in MIRRORED else ():
            place = tests / path.relative_to(package).parent
            if path.stem != "__init__" and not any(place.glob(f"test_{path.stem}*.py")):
                yield f"{path}:1: no {place}/test_{path.stem}.py"


def twice(modules: Modules) -> Iterator[str]:
    """Yield classes whose name another class has, too: one word, one meaning."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    for name, places in sorted(found.items()):
        if len(places) > 1:
            yield f"{places[0]}: class {name} is defined again at {', '.join(places[1:])}"


def definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines at its top, and where."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list or isinstance(node, ast.ClassDef):
                yield node.name, node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def dead(modules: Modules, users: Iterable[str]) -> Iterator[str]:
    """Yield what is defined and named nowhere else but in tests."""
    words: Counter[str] = Counter()
    for text in users:
        words.update(_WORD.findall(text))
    for path, tree in modules.items():
        for name, line in definitions(tree):
            if words[name] < 2 and name not in FOR_OTHERS and not name.startswith("__"):
                yield f"{path}:{line}: {name} is used by nothing but tests"


def methods(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of a module's methods, and where they are."""
    for found in ast.walk(tree):
        if isinstance(found, ast.ClassDef):
            for node in found.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name, node.lineno


def uncalled(modules: Modules, users: Iterable[str]) -> Iterator[str]:
    """Yield methods that nothing names but the line that defines them, tests included."""
    words: Counter[str] = Counter()
    for text in users:
        words.update(_WORD.findall(text))
    for path, tree in modules.items():
        for name, line in methods(tree):
            if words[name] < 2 and name not in CALLED_BY_OTHERS and not name.startswith("__"):
                yield f"{path}:{line}: method {name} is called by nothing"


def main() -> int:
    """Print every finding; exit 1 when there is one."""
    top = Path(__file__).resolve().parent.parent
    paths = sorted(
        path for part in ("durastreamd", "tests", "tools") for path in (top / part).rglob("*.py")
    )
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    package = {path: tree for path, tree in trees.items() if top / "durastreamd" in path.parents}
    others = [
        path.read_text(encoding="utf-8")
        for pattern in ("pyspark_*/*.py", "examples/*.py", "tools/[a-z]*", "pyproject.toml")
        for path in sorted(top.glob(pattern))
        if path.is_file() and path not in texts
    ]
    everyone = [*others, *texts.values()]
    others += [text for path, text in texts.items() if top / "tests" not in path.parents]
    found = [line for path, tree in trees.items() for line in findings(path, texts[path], tree)]
    found += untested(top / "durastreamd", top / "tests")
    found += twice(package)
    found += dead(package, others)
    found += uncalled(package, everyone)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
