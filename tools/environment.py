"""The private environment: a virtual environment in .venv/, rebuilt when pyproject.toml changed.

Imported by the commands beside it, which run on whatever ``python3`` the host has; so this file
uses the standard library alone and asks for Python 3.11 or newer in words, not by a traceback.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
STAMP = HOME / "built-from"
OLDEST = (3, 11)


def _interpreter() -> str:
    """Return a Python that is new enough, or end the program with a plain sentence."""
    if sys.version_info[:2] >= OLDEST:
        return sys.executable
    for name in ("python3.14", "python3.13", "python3.12", "python3.11"):
        found = shutil.which(name)
        if found:
            return found
    sys.exit("durastreamd needs Python 3.11 or newer; found only " + sys.version.split()[0])


def _build(interpreter: str, extras: str) -> None:
    print("building the environment in .venv/ ...", file=sys.stderr, flush=True)
    shutil.rmtree(HOME, ignore_errors=True)
    if interpreter == sys.executable:
        venv.create(HOME, with_pip=True, symlinks=True)
    else:
        subprocess.run([interpreter, "-m", "venv", str(HOME)], check=True)
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "-e", f"{ROOT}[{extras}]"], check=True, cwd=ROOT)


def prepare(extras: str) -> Path:
    """Return the directory of the environment's commands, building it first where needed."""
    interpreter = _interpreter()
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + extras.encode()).hexdigest()
    if not STAMP.exists() or STAMP.read_text() != wanted:
        _build(interpreter, extras)
        STAMP.write_text(wanted)
    return HOME / "bin"


def install_commands(wanted: dict[str, str]) -> None:
    """Install Debian packages for commands that are missing, where that can be done."""
    packages = [package for command, package in wanted.items() if not shutil.which(command)]
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("installing", *packages, "...", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "-y", "-q", "--no-install-recommends", *packages]
    for arguments in (["update", "-q"], install):
        subprocess.run(["apt-get", *arguments], env=quiet, capture_output=True, check=False)


def become(command: list[str]) -> None:
    """Replace this process by ``command``, run from the top with the environment first."""
    path = f"{HOME / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(ROOT)
    os.execve(command[0], command, {**os.environ, "PATH": path, "VIRTUAL_ENV": str(HOME)})
