"""``python -m tools.packing``, started by tools/build in its environment."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.environment import ROOT
from tools.packing import deb, executable, tree
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


def _gather(work: Path) -> tuple[Interpreter, Path]:
    python = choose()
    print(f"shipping Python {python.version} of {python.executable}", flush=True)
    gathered = work / "gathered"
    tree.gather(python, _wheel(work, sdist=False), gathered)
    return python, gathered


def _build(kinds: list[str], work: Path, out: Path) -> None:
    began = time.monotonic()
    if "wheel" in kinds:
        _wheel(out, sdist=True)
        for path in sorted((*out.glob("*.whl"), *out.glob("*.tar.gz"))):
            _say(began, path)
    if kinds == ["wheel"]:
        return
    python, gathered = _gather(work)
    if "binary" in kinds:
        (work / "binary").mkdir()
        _say(began, executable.build(python, gathered, work / "binary", out))
    if "deb" in kinds:
        (work / "deb").mkdir()
        _say(began, deb.build(python, gathered, work / "deb", out))


def main() -> int:
    """Build what was asked for; 1 with a text when something could not be made."""
    parser = argparse.ArgumentParser(prog="tools/build", description="Build what is handed out.")
    parser.add_argument("--only", action="append", choices=KINDS, help="one kind; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    chosen = parser.parse_args()
    out: Path = chosen.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="durastreamd-build-"))
    try:
        _build(chosen.only or list(KINDS), work, out)
    except (BuildError, NoInterpreterError) as exc:
        print(f"tools/build: {exc}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
