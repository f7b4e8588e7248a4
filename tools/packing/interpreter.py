"""Which Python is shipped: the fastest on this machine that can be embedded.

It need not be the one that builds: Debian's, made with profile-guided optimisation, often has no
pip of its own, and needs none.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import environment

# Prints, as JSON, what an interpreter that can be embedded consists of, and how fast it is.
_PROBE = """
import json, pathlib, sys, sysconfig, timeit
library = sysconfig.get_config_var("INSTSONAME") or ""
places = [sysconfig.get_config_var("LIBDIR"), sys.base_prefix + "/lib"]
found = [f"{place}/{library}" for place in places if pathlib.Path(f"{place}/{library}").is_file()]
include = sysconfig.get_path("include", vars={"installed_base": sys.base_prefix})
headers = pathlib.Path(include, "Python.h").is_file()
if sys.version_info[:2] >= (3, 11) and ".so" in library and found and headers:
    print(json.dumps({
        "executable": sys.executable,
        "version": sys.version.split()[0],
        "library": found[0],
        "include": include,
        "stdlib": sysconfig.get_path("stdlib"),
        "extensions": sysconfig.get_config_var("DESTSHARED"),
        "seconds": min(timeit.repeat("for i in range(200_000): i % 7", number=1, repeat=5)),
    }))
"""
_NAMES = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")


class NoInterpreterError(Exception):
    """No Python here can be shipped; the text says what to install."""


@dataclass(frozen=True)
class Interpreter:
    """Where the parts of a Python are."""

    executable: str
    version: str
    library: Path
    include: Path
    stdlib: Path
    extensions: Path
    seconds: float


def _probe(executable: str) -> Interpreter | None:
    command = [executable, "-I", "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        return None
    told = json.loads(done.stdout)
    paths = {name: Path(told[name]) for name in ("library", "include", "stdlib", "extensions")}
    return Interpreter(
        executable=told["executable"],
        version=told["version"],
        seconds=float(told["seconds"]),
        **paths,
    )


def _search() -> Interpreter | None:
    base = str(Path(sys.base_prefix, "bin", "python3"))
    candidates = {base, "/usr/bin/python3", *filter(None, map(shutil.which, _NAMES))}
    found = [known for known in map(_probe, sorted(candidates)) if known is not None]
    return min(found, key=lambda known: known.seconds, default=None)


def choose() -> Interpreter:
    """Return the Python to ship, installing Debian's headers where none can be embedded."""
    found = _search()
    if found is None:
        environment.install_packages(["libpython3-dev"])
        found = _search()
    if found is None:
        text = (
            "no Python 3.11 or newer with Python.h and a shared libpython here;"
            " on Debian: apt-get install libpython3-dev"
        )
        raise NoInterpreterError(text)
    return found
