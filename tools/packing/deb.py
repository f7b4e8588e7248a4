"""The Debian package: the tree in /usr/lib, on the host's C library, and what belongs around it."""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from tools.environment import ROOT
from tools.packing import licences, tree as trees
from tools.packing.interpreter import Interpreter
from tools.packing.tree import run

TEMPLATES = trees.HERE / "debian"
HOME = "usr/lib/durastreamd"
SCRIPTS = ("postinst", "prerm", "postrm")
MAINTAINER = "durastreamd maintainers <maintainers@durastreamd.example>"
CONFFILE = "etc/durastreamd/durastreamd.toml"


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _compress(text: bytes, target: Path) -> None:
    """Write gzip as Debian's policy asks for: best, and without name or time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text, 9, mtime=0))
    target.chmod(0o644)


def _changelog(version: str) -> bytes:
    """Return CHANGELOG.md's newest part in Debian's form, dated by the commit it belongs to."""
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    items = re.findall(r"^\* (.*?)(?=\n\* |\n\n|\Z)", newest, re.DOTALL | re.MULTILINE)
    entries = [
        textwrap.fill(
            " ".join(item.replace("`", "").split()),
            width=78,
            initial_indent="  * ",
            subsequent_indent="    ",
        )
        for item in items
    ]
    lines = [f"durastreamd ({version}) unstable; urgency=medium", "", *entries, ""]
    lines.append(f" -- {MAINTAINER}  {format_datetime(_date())}\n")
    return "\n".join(lines).encode()


def _date() -> datetime:
    """Return SOURCE_DATE_EPOCH, else the date of the last commit, else the changelog's own."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not seconds:
        asked = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = done.stdout.strip()
    told = float(seconds) if seconds else (ROOT / "CHANGELOG.md").stat().st_mtime
    return datetime.fromtimestamp(int(told), UTC)


def _install_tree(python: Interpreter, gathered: Path, root: Path) -> None:
    home = root / HOME
    shutil.copytree(gathered, home)
    wanted = [library for library in trees.libraries(home, python) if not library.is_libc]
    trees.add_libraries(home, wanted)
    trees.compile_program(python, home / trees.PROGRAM, rpath="$ORIGIN/lib")
    commands = root / "usr" / "bin"
    commands.mkdir(parents=True)
    for name in ("durastreamd", "dsadmin", "ds"):
        (commands / name).symlink_to(f"../lib/durastreamd/{trees.PROGRAM}")
    doc = root / "usr" / "share" / "doc" / "durastreamd"
    _put(home / licences.FILE, doc / "copyright")
    (home / licences.FILE).unlink()


def _completion(path: Path) -> str:
    """Return where the shell that a completion is for will look for it."""
    if path.suffix == ".fish":
        return f"usr/share/fish/vendor_completions.d/{path.name}"
    if path.name.startswith("_"):
        return f"usr/share/zsh/vendor-completions/{path.stem}"
    return f"usr/share/bash-completion/completions/{path.stem}"


def _install_around(version: str, root: Path, work: Path) -> None:
    share = root / "usr" / "share"
    for unit in sorted((ROOT / "systemd").glob("durastreamd.*")):
        _put(unit, root / "usr" / "lib" / "systemd" / "system" / unit.name)
    for page in sorted((ROOT / "man").glob("*.[1-8]")):
        _compress(page.read_bytes(), share / "man" / f"man{page.suffix[1:]}" / f"{page.name}.gz")
    _put(ROOT / "durastreamd.toml", root / CONFFILE)
    _compress(_changelog(version), share / "doc" / "durastreamd" / "changelog.gz")
    for name in ("README.md", "FORMAT.md"):
        _put(ROOT / name, share / "doc" / "durastreamd" / name)
    run([sys.executable, "tools/completions.py", work / "completions"])
    for path in sorted((work / "completions").rglob("*")):
        if path.is_file():
            _put(path, root / _completion(path))
    _put(TEMPLATES / "lintian-overrides", share / "lintian" / "overrides" / "durastreamd")


def _libc_version(root: Path) -> str:
    """Return the oldest C library that has every function the binaries ask for."""
    found = {(2, 34)}
    for path in trees.binaries(root):
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", run(["readelf", "-V", path])):
            found.add((int(major), int(minor)))
    return "{}.{}".format(*max(found))


def _write_control(version: str, root: Path) -> None:
    control = root / "DEBIAN"
    control.mkdir()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    kilobytes = sum(path.stat().st_size // 1024 + 1 for path in files)
    text = (TEMPLATES / "control").read_text(encoding="utf-8")
    filled = text.format(
        version=version,
        architecture=run(["dpkg", "--print-architecture"]).strip(),
        maintainer=MAINTAINER,
        kilobytes=kilobytes,
        libc=_libc_version(root),
    )
    (control / "control").write_text(filled, encoding="utf-8")
    (control / "conffiles").write_text(f"/{CONFFILE}\n")
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {name}\n"
        for path in files
        if (name := path.relative_to(root).as_posix()) != CONFFILE
    ]
    (control / "md5sums").write_text("".join(sums))
    for path in control.iterdir():
        path.chmod(0o644)
    for script in SCRIPTS:
        shutil.copyfile(TEMPLATES / script, control / script)
        (control / script).chmod(0o755)


def build(
    python: Interpreter, version: str, gathered: Path, work: Path, out: Path, *, quick: bool
) -> Path:
    """Make the package from a gathered tree, and return where it is."""
    root = work / "root"
    root.mkdir(mode=0o755)
    _install_tree(python, gathered, root)
    _install_around(version, root, work)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    _write_control(version, root)
    epoch = str(int(_date().timestamp()))
    architecture = run(["dpkg", "--print-architecture"]).strip()
    made = out / f"durastreamd_{version}_{architecture}.deb"
    options = ["--root-owner-group", "-Zxz", "-z1" if quick else "-z6", "--threads-max=2"]
    run(["dpkg-deb", *options, "--build", root, made], SOURCE_DATE_EPOCH=epoch)
    return made
