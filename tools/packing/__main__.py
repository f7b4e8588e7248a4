"""``python -m tools.packing``, started by tools/build in its environment."""

import argparse
import importlib.metadata
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.environment import ROOT
from tools.packing import deb, executable, licences, tree
from tools.packing.interpreter import Interpreter, NoInterpreterError, choose
from tools.packing.tree import BuildError, run

KINDS = ("binary", "deb", "wheel")


def _say(began: float, path: Path) -> None:
    took, size = time.monotonic() - began, path.stat().st_size
    print(f"{path.name}: {size / 1e6:.1f} MB, {took:.0f} s after the start", flush=True)


def _wheel(out: Path, *, sdist: bool) -> Path:
    """Build the wheel, and the sdist with it when asked; return the wheel."""
    chosen = [] if sdist else ["--wheel"]
    run([sys.executable, "-m", "build", "--outdir", out, *chosen, ROOT])
    return max(out.glob("durastreamd-*.whl"), key=lambda path: path.stat().st_mtime)


def _gather(python: Interpreter, wheel: Path, work: Path) -> Path:
    print(f"shipping Python {python.version} of {python.executable}", flush=True)
    gathered = work / "gathered"
    tree.gather(python, wheel, gathered)
    licences.collect(python, tree.libraries(gathered, python), gathered)
    return gathered


def _build(chosen: argparse.Namespace, work: Path, out: Path) -> None:
    began, quick = time.monotonic(), bool(chosen.quick)
    kinds = chosen.only or list(KINDS)
    sdist = "wheel" in kinds
    wheel = _wheel(out if sdist else work, sdist=sdist)
    if sdist:
        for path in (wheel, *out.glob("*.tar.gz")):
            _say(began, path)
    if kinds == ["wheel"]:
        return
    python = choose(chosen.python)
    gathered = _gather(python, wheel, work)
    if "binary" in kinds:
        (work / "binary").mkdir()
        made = executable.build(python, gathered, work / "binary", out, quick=quick)
        _say(began, made)
    if "deb" in kinds:
        (work / "deb").mkdir()
        version = importlib.metadata.version("durastreamd")
        made = deb.build(python, version, gathered, work / "deb", out, quick=quick)
        _say(began, made)


def main() -> int:
    """Build what was asked for; 1 with a text when something could not be made."""
    parser = argparse.ArgumentParser(prog="tools/build", description="Build what is handed out.")
    parser.add_argument("--only", action="append", choices=KINDS, help="one kind; may be repeated")
    parser.add_argument("--python", metavar="FILE", help="the Python to ship")
    parser.add_argument("--quick", action="store_true", help="compress little: for trying it out")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    chosen = parser.parse_args()
    out: Path = chosen.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="durastreamd-build-"))
    try:
        _build(chosen, work, out)
    except (BuildError, NoInterpreterError) as exc:
        print(f"tools/build: {exc}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
