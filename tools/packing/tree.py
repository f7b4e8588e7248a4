"""The tree: the program, a Python of its own, the packages, and the shared libraries of all.

    durastreamd            the program (python.c); dsadmin and ds are links to it
    lib/                   shared libraries, and the loader where the C library is brought along
    python/stdlib/         the standard library as bytecode, extension modules beside it
    python/packages/       durastreamd and what it depends on

Whole packages are copied, not the modules an analysis finds: what is imported late is there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.environment import ROOT
from tools.packing.interpreter import Interpreter

HERE = Path(__file__).resolve().parent
PROGRAM = "durastreamd"
LOADER = "lib/ld.so"
LIBRARIES = "lib"

# Of the standard library: what a server never runs, and what would bring big foreign libraries.
STDLIB_LEFT_OUT = (
    *("__pycache__", "config-*", "dist-packages", "site-packages", "test", "lib-dynload"),
    *("idlelib", "tkinter", "turtle*", "lib2to3", "ensurepip", "distutils", "venv", "pydoc*"),
    *("sqlite3", "curses", "dbm", "_sysconfigdata*", "LICENSE.txt", "sitecustomize.py"),
)
EXTENSIONS_LEFT_OUT = (
    *("_tkinter*", "_test*", "_xxtest*", "_xxsub*", "xx*", "_sqlite3*", "_curses*", "_dbm*"),
    *("_gdbm*", "readline*", "nis*", "ossaudiodev*", "_ctypes_test*"),
)
# Of the packages: Spark reads from outside, tests and sources for compilers are not run.
PACKAGES_LEFT_OUT = ("__pycache__", "_tests", "tests", "*.pyi", "*.c", "*.h", "*.pyx", "*.pxd")
SPARK = ("pyspark_durastream", "pyspark_durastream_segments", "durastreamd/spark")

# Parts of the C library: together or not at all.
_LIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|nss_\w+|anl))\.so[.\d]*")
_LDD = re.compile(r"(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)")


class BuildError(Exception):
    """Something could not be made; the text says what."""


@dataclass(frozen=True)
class Library:
    """A shared library: the name it is asked for by, and where it was found."""

    name: str
    path: Path

    @property
    def is_libc(self) -> bool:
        """Whether it belongs to the C library."""
        return _LIBC.fullmatch(self.name) is not None


def run(command: Iterable[str | Path], **more: str | Path) -> str:
    """Run a command; what it wrote, or an error that ends with it."""
    parts = [str(part) for part in command]
    # The caller's PYTHONPATH would put other modules before those that are packed.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ |= {key: str(value) for key, value in more.items() if key != "cwd"}
    cwd = str(more.get("cwd", ROOT))
    done = subprocess.run(parts, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = f"{' '.join(parts)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
        raise BuildError(text)
    return done.stdout


def gather(python: Interpreter, wheel: Path, tree: Path) -> None:
    """Fill ``tree`` with everything but the program and the shared libraries."""
    stdlib, packages = tree / "python" / "stdlib", tree / "python" / "packages"
    ignored = shutil.ignore_patterns(*STDLIB_LEFT_OUT, "tests", "*.so", "*.a")
    shutil.copytree(python.stdlib, stdlib, ignore=ignored)
    ignored = shutil.ignore_patterns(*EXTENSIONS_LEFT_OUT, "__pycache__")
    shutil.copytree(python.extensions, stdlib, ignore=ignored, dirs_exist_ok=True)
    # pip runs in the Python that is shipped, so that the wheels fit that one.
    pip = [sys.executable, "-m", "pip", "-q"]
    install = ["install", "--no-compile", "--target", str(packages), str(wheel)]
    run([*pip, "--python", python.executable, "--disable-pip-version-check", *install])
    for part in ("bin", *SPARK):
        shutil.rmtree(packages / part)
    for pattern in PACKAGES_LEFT_OUT:
        for path in list(packages.rglob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _compile(python, tree)
    for path in binaries(tree):
        path.chmod(0o644)
        _trim(path)


def _trim(binary: Path) -> None:
    """Drop symbols, and the builder's own directories from where libraries are looked for.

    A library with such a list would not look where the program that loads it says.
    """
    run(["strip", "--strip-unneeded", binary])
    told = run(["patchelf", "--print-rpath", binary]).strip()
    if told and not told.startswith("$ORIGIN"):
        run(["patchelf", "--remove-rpath", binary])


def _compile(python: Interpreter, tree: Path) -> None:
    """Turn every module into bytecode; the sources stay behind, line numbers do not."""
    options = ["-q", "-b", "-f", "-j", "2", "--invalidation-mode", "unchecked-hash"]
    names = ["-s", str(tree), "-p", PROGRAM]
    run([python.executable, "-I", "-m", "compileall", *options, *names, tree / "python"])
    for source in list((tree / "python").rglob("*.py")):
        source.unlink()


def binaries(tree: Path) -> Iterator[Path]:
    """Yield every program and library in ``tree``."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def libraries(tree: Path, python: Interpreter) -> list[Library]:
    """Return every library that the binaries of ``tree`` ask for, directly or not."""
    found: dict[str, Library] = {}
    for path in (python.library, *binaries(tree)):
        told = run(["ldd", path], LD_LIBRARY_PATH=python.library.parent)
        if "not found" in told:
            text = f"{path} asks for libraries that are not here:\n{told}"
            raise BuildError(text)
        for line in _LDD.findall(told):
            library = Library(Path(line).name, Path(line))
            if not library.path.is_relative_to(tree):
                found.setdefault(library.name, library)
    found[python.library.name] = Library(python.library.name, python.library)
    return sorted(found.values(), key=lambda library: library.name)


def add_libraries(tree: Path, wanted: Iterable[Library]) -> None:
    """Copy libraries into ``tree``, the loader under its fixed name."""
    (tree / LIBRARIES).mkdir(exist_ok=True)
    for library in wanted:
        is_loader = library.name.startswith("ld-linux")
        copy = tree / LOADER if is_loader else tree / LIBRARIES / library.name
        shutil.copyfile(library.path, copy)
        copy.chmod(0o755 if is_loader else 0o644)
        _trim(copy)


def compile_program(python: Interpreter, program: Path, *, rpath: str, loader: str = "") -> None:
    """Compile python.c; ``rpath`` says where its libraries will be."""
    chosen = [f"-Wl,--dynamic-linker={loader}"] if loader else []
    hardened = ["-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now"]
    link = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{rpath}", str(python.library), *chosen]
    base = ["gcc", "-O2", "-Wall", "-Wextra", "-D_FORTIFY_SOURCE=2", *hardened]
    run([*base, f"-I{python.include}", HERE / "python.c", "-s", "-o", program, *link])
