"""The licences of everything in the tree, as one text: the tree's COPYRIGHT, Debian's copyright."""

import subprocess
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path

from tools.packing.interpreter import Interpreter
from tools.packing.tree import Library

FILE = "COPYRIGHT"
_APACHE = "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"
_HEAD = """\
durastreamd, a Durable Streams server
https://github.com/durable-streams/durable-streams describes the protocol.

Copyright 2026 the durastreamd authors

Licensed under the Apache License, Version 2.0; the whole text is in
/usr/share/common-licenses/Apache-2.0 on Debian systems, and at
https://www.apache.org/licenses/LICENSE-2.0 for everybody else.

It is distributed together with a Python interpreter, the Python packages and
the shared libraries it runs on. What follows are their licences.
"""
_POINTER = """\
Licensed under the Apache License, Version 2.0, see
/usr/share/common-licenses/Apache-2.0 on Debian systems.
"""


def _section(title: str, texts: Iterable[str]) -> str:
    return "\n".join((f"{'=' * 78}\n{title}\n{'=' * 78}\n", *texts))


def _shortened(text: str) -> str:
    return _POINTER if _APACHE in text else text


def _packages(packages: Path) -> Iterator[str]:
    for info in sorted(packages.glob("*.dist-info")):
        if info.name.startswith("durastreamd-"):
            continue
        told = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
        licence = told.get("License-Expression") or told.get("License") or "see below"
        found = [path for path in sorted(info.rglob("*")) if _is_licence(info, path)]
        texts = [_shortened(path.read_text(encoding="utf-8", errors="replace")) for path in found]
        title = f"{told['Name']} {told['Version']} ({licence.splitlines()[0]})"
        yield _section(title, texts)


def _is_licence(info: Path, path: Path) -> bool:
    names = ("LICENSE", "LICENCE", "COPYING", "AUTHORS", "NOTICE")
    inside = path.relative_to(info).parts[0] == "licenses"
    return path.is_file() and (inside or path.name.upper().startswith(names))


def _python(python: Interpreter) -> str:
    text = (python.stdlib / "LICENSE.txt").read_text(encoding="utf-8")
    return _section(f"Python {python.version} (PSF-2.0)", [text])


def _libraries(libraries: Iterable[Library]) -> Iterator[str]:
    """Yield what Debian says of each library's package; names alone where it does not know."""
    packages: dict[str, list[str]] = {}
    for library in libraries:
        # dpkg knows files by the name they had before /lib became a link to /usr/lib.
        names = {str(library.path), str(library.path.resolve())}
        names |= {name.removeprefix("/usr") for name in names}
        asked = ["dpkg-query", "-S", *sorted(names)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        package = done.stdout.partition(":")[0]
        packages.setdefault(package, []).append(library.name)
    for package, names_of in sorted(packages.items()):
        copyright_file = Path("/usr/share/doc", package, "copyright")
        if package and copyright_file.is_file():
            text = copyright_file.read_text(encoding="utf-8", errors="replace")
            yield _section(f"{', '.join(names_of)} (of {package})", [_shortened(text)])


def collect(python: Interpreter, libraries: Iterable[Library], tree: Path) -> None:
    """Write the licences of ``tree`` into it, and take the single files away."""
    packages = tree / "python" / "packages"
    parts = [_HEAD, _python(python), *_packages(packages), *_libraries(libraries)]
    (tree / FILE).write_text("\n".join(parts), encoding="utf-8")
    (tree / FILE).chmod(0o644)
    for info in packages.glob("*.dist-info"):
        for path in sorted(info.rglob("*"), reverse=True):
            if path.name != "METADATA":
                path.rmdir() if path.is_dir() else path.unlink()
