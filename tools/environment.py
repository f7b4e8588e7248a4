"""The private environments, each rebuilt when pyproject.toml changed.

.venv-run/ has what serves and nothing else, so that the first start is short; .venv/ what the tests
need; .venv-build/ what packs. Imported by the commands beside it, which run on whatever ``python3``
the host has; so this file uses the standard library alone and asks for Python 3.11 or newer in
words, not by a traceback.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
EXTRAS = "test,spark,delta"
RUN_HOME = ROOT / ".venv-run"  # tools/run's: a tenth of what the tests need
BUILD_HOME = ROOT / ".venv-build"  # tools/build's: what packs is not what is tested with
BUILD_EXTRAS = "build"


# Prints how long an interpreter takes for a little work, or what it lacks.
_PROBE = """
import sys, timeit
try:
    import ensurepip, venv
except ImportError:
    sys.exit("venv" if sys.version_info[:2] >= (3, 11) else "old")
if sys.version_info[:2] < (3, 11):
    sys.exit("old")
print(min(timeit.repeat("for i in range(200_000): x = i % 7", number=1, repeat=5)))
"""


def _interpreter() -> str:
    """Return the fastest Python that is new enough, or end the program with a plain sentence.

    Builds differ: one without profile-guided optimisation serves a third less.
    """
    names = ("/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11")
    speeds: dict[str, float] = {}
    lacking = set()
    for candidate in (sys.executable, *map(shutil.which, names)):
        if candidate is not None and candidate not in speeds:
            probe = [candidate, "-c", _PROBE]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip():
                speeds[candidate] = float(done.stdout)
            else:
                lacking.add(done.stderr.strip())
    if not speeds and "venv" in lacking:
        sys.exit(
            "this Python has no venv, which the private environment is made with: "
            "apt install python3-venv (Debian, Ubuntu), then run this again"
        )
    if not speeds:
        found = sys.version.split()[0]
        sys.exit(f"durastreamd needs Python 3.11 or newer; this is {found}")
    return min(speeds, key=speeds.__getitem__)


def _build(interpreter: str, extras: str, home: Path) -> None:
    print(f"building the environment in {home.name}/, once", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(home)], check=True)
    install = ["-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    package = f"{ROOT}[{extras}]" if extras else str(ROOT)
    command = [str(home / "bin" / "python"), *install, "-e", package]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        said = list(_told(pip.stdout))
    if pip.returncode != 0:
        print("", *said[-20:], sep="\n", file=sys.stderr)
        sys.exit("pip could not build the environment; its last words are above")


def _told(lines: Iterable[str]) -> Iterator[str]:
    """Pass pip's words on, and show of them what is on its way: a word for each package."""
    for line in lines:
        words = line.split()
        if words[:1] == ["Collecting"]:
            print(" ", re.split(r"[^\w.-]", words[1])[0], end="", file=sys.stderr, flush=True)
        elif words[:2] == ["Installing", "collected"]:
            print("\n  installing ...", file=sys.stderr, flush=True)
        yield line.rstrip()


def prepare(extras: str = EXTRAS, home: Path = HOME) -> Path:
    """Return the directory of the environment's commands, building it first where needed."""
    if not _is_current(extras, home):
        _build(_interpreter(), extras, home)
        (home / "built-from").write_text(_wanted(extras))
    return home / "bin"


def prepare_runtime() -> Path:
    """Return an environment that serves: the tests' one if it is there, else a small one."""
    return HOME / "bin" if _is_current(EXTRAS, HOME) else prepare("", RUN_HOME)


def _wanted(extras: str) -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + extras.encode()).hexdigest()


def _is_current(extras: str, home: Path) -> bool:
    stamp = home / "built-from"
    return stamp.exists() and stamp.read_text() == _wanted(extras)


def install_commands(wanted: dict[str, str]) -> None:
    """Install Debian packages for commands that are missing, where that can be done."""
    install_packages([package for command, package in wanted.items() if not shutil.which(command)])


def install_packages(packages: list[str]) -> None:
    """Install Debian packages, where that can be done; who needs them finds out if it could not."""
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("installing", *packages, "...", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "-y", "-q", "--no-install-recommends", *packages]
    for arguments in (["update", "-q"], install):
        subprocess.run(["apt-get", *arguments], env=quiet, capture_output=True, check=False)


def become(command: list[str]) -> None:
    """Replace this process by a command of an environment, run from the top, its commands first."""
    commands = Path(command[0]).parent
    path = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(ROOT)
    os.execve(
        command[0], command, {**os.environ, "PATH": path, "VIRTUAL_ENV": str(commands.parent)}
    )
