"""The single executable: launcher.c, linked statically, around a compressed tree."""

import hashlib
import shutil
import stat
from pathlib import Path

from tools import environment
from tools.packing import tree as trees
from tools.packing.interpreter import Interpreter
from tools.packing.tree import BuildError, run

# Room for an absolute path in the program: it becomes that of the unpacked tree's loader or
# library directory. Two marks, so that each is found once.
SETTLED_SIZE = 240
MARKS = {
    trees.LOADER: "/" + "I" * (SETTLED_SIZE - 2),
    trees.LIBRARIES: "/" + "R" * (SETTLED_SIZE - 2),
}


def _add_program(python: Interpreter, tree: Path) -> None:
    wanted = trees.libraries(tree, python)
    if not any(library.name.startswith("ld-linux") for library in wanted):
        text = "no loader named ld-linux* here: the single executable is for glibc"
        raise BuildError(text)
    trees.add_libraries(tree, wanted)
    program = tree / trees.PROGRAM
    trees.compile_program(python, program, rpath=MARKS[trees.LIBRARIES], loader=MARKS[trees.LOADER])


def _offset(program: bytes, mark: str) -> int:
    wanted = mark.encode() + b"\0"
    if program.count(wanted) != 1:
        text = f"the program names {mark[:8]}... {program.count(wanted)} times, not once"
        raise BuildError(text)
    return program.index(wanted)


def _list(tree: Path, contents: Path) -> str:
    """Write the files of ``tree`` one after another; return the C text that lists them."""
    rows, digest = [], hashlib.sha256()
    with contents.open("wb") as out:
        for path in sorted(tree.rglob("*")):
            name = path.relative_to(tree).as_posix()
            mode = path.stat().st_mode
            if path.is_dir():
                rows.append(f'    {{"{name}", S_IFDIR, 0}},')
                continue
            data = path.read_bytes()
            out.write(data)
            permissions = 0o700 if mode & stat.S_IXUSR else 0o600
            rows.append(f'    {{"{name}", S_IFREG | 0{permissions:o}, {len(data)}}},')
            digest.update(data)
    digest.update("\n".join(rows).encode())
    program = (tree / trees.PROGRAM).read_bytes()
    settled = [f'    {{{_offset(program, mark)}, "{name}"}},' for name, mark in MARKS.items()]
    lines = [
        f'#define KEY "{digest.hexdigest()[:24]}"',
        f'#define PROGRAM "{trees.PROGRAM}"',
        f"#define SETTLED_SIZE {SETTLED_SIZE}",
        f'#define TREE_FILE "{contents}.zst"',
        *("static const struct {", "    off_t offset;", "    const char *name;", "} SETTLED[] = {"),
        *settled,
        *("};", "static const struct entry ENTRIES[] = {", *rows, "};"),
    ]
    return "\n".join(lines) + "\n"


def build(python: Interpreter, gathered: Path, work: Path, out: Path, *, quick: bool) -> Path:
    """Make the executable from a gathered tree, and return where it is."""
    if not list(Path("/usr/lib").glob("*/libzstd.a")):
        environment.install_packages(["libzstd-dev"])
    tree, contents = work / "tree", work / "contents"
    shutil.copytree(gathered, tree, copy_function=_link)
    _add_program(python, tree)
    (work / "tree.h").write_text(_list(tree, contents))
    run(["zstd", "-q", "-f", "-3" if quick else "-19", "-T2", contents, "-o", f"{contents}.zst"])
    made = out / trees.PROGRAM
    base = ["gcc", "-O2", "-static", "-Wall", "-Wextra", "-D_FORTIFY_SOURCE=2", "-s"]
    run([*base, f"-I{work}", trees.HERE / "launcher.c", "-o", made, "-lzstd"])
    made.chmod(0o755)
    return made


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
