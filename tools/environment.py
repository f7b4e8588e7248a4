"""The private environments: .venv/ and .venv-build/, rebuilt when pyproject.toml changed.

Imported by the commands beside it, which run on whatever ``python3`` the host has; so this file
uses the standard library alone and asks for Python 3.11 or newer in words, not by a traceback.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
EXTRAS = "test,spark,delta"
BUILD_HOME = ROOT / ".venv-build"  # tools/build's: what packs is not what is tested with
BUILD_EXTRAS = "build"


# Prints how long an interpreter takes for a little work, if it can be used at all.
_PROBE = """
import ensurepip, sys, timeit, venv
if sys.version_info[:2] >= (3, 11):
    print(min(timeit.repeat("for i in range(200_000): x = i % 7", number=1, repeat=5)))
"""


def _interpreter() -> str:
    """Return the fastest Python that is new enough, or end the program with a plain sentence.

    Builds differ: one without profile-guided optimisation serves a third less.
    """
    names = ("/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11")
    speeds: dict[str, float] = {}
    for candidate in (sys.executable, *map(shutil.which, names)):
        if candidate is not None and candidate not in speeds:
            probe = [candidate, "-c", _PROBE]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip():
                speeds[candidate] = float(done.stdout)
    if not speeds:
        found = sys.version.split()[0]
        sys.exit(f"durastreamd needs Python 3.11 or newer with venv; this is {found}")
    return min(speeds, key=speeds.__getitem__)


def _build(interpreter: str, extras: str, home: Path) -> None:
    print(f"building the environment in {home.name}/ ...", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "-e", f"{ROOT}[{extras}]"], check=True, cwd=ROOT)


def prepare(extras: str = EXTRAS, home: Path = HOME) -> Path:
    """Return the directory of the environment's commands, building it first where needed."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + extras.encode()).hexdigest()
    stamp = home / "built-from"
    if not stamp.exists() or stamp.read_text() != wanted:
        _build(_interpreter(), extras, home)
        stamp.write_text(wanted)
    return home / "bin"


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


def become(command: list[str], home: Path = HOME) -> None:
    """Replace this process by ``command``, run from the top with the environment first."""
    path = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(ROOT)
    os.execve(command[0], command, {**os.environ, "PATH": path, "VIRTUAL_ENV": str(home)})
