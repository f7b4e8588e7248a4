"""What can happen to the files of a data directory: kinds of damage, each a name and a deed.

A deed is done to a copy of a directory on a real file system. It says which streams it hurt, by
id, and which parts of the directory that all streams share.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = 4096


class Hurt(NamedTuple):
    """What was hurt: streams by id, the journal, and a file the disk hands out no more."""

    streams: frozenset[int]
    journal: bool = False
    unreadable: int = 0  # its inode
    errno: str = ""


class Kind(NamedTuple):
    """One kind of damage."""

    name: str
    do: Callable[[Path, random.Random], Hurt]


def _stream_of(path: Path) -> int:
    return int(path.parent.name, 16)


def _files(root: Path, suffix: str) -> list[Path]:
    return sorted(root.glob(f"streams/*/*/*{suffix}"))


def _large(paths: list[Path]) -> list[Path]:
    """Return those with enough in them to be damaged in the middle."""
    return [path for path in paths if path.stat().st_size > 600] or paths


# --- to one file ---

Change = Callable[[Path, random.Random], None]


def _flip(place: float) -> Change:
    def change(path: Path, rng: random.Random) -> None:
        data = bytearray(path.read_bytes())
        at = min(int(len(data) * place), len(data) - 1)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    return change


def _zero(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(max(len(data) // PAGE, 1)) * PAGE
    end = min(at + PAGE, len(data))
    data[at:end] = bytes(end - at)
    path.write_bytes(data)


def _garbage(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    size = min(200, len(data) - at)
    data[at : at + size] = rng.randbytes(size)
    path.write_bytes(data)


def _cut(share: float) -> Change:
    def change(path: Path, _rng: random.Random) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return change


def _cut_end(path: Path, _rng: random.Random) -> None:
    os.truncate(path, max(path.stat().st_size - 7, 0))


def _grow(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(300))


def _zeros_behind(path: Path, _rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + bytes(PAGE))


def _double(path: Path, _rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def _remove(path: Path, _rng: random.Random) -> None:
    path.unlink()


def _directory(path: Path, _rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, _rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _pipe(path: Path, _rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, Change] = {
    "bit flipped near the start": _flip(0.02),
    "bit flipped in the middle": _flip(0.5),
    "bit flipped at the end": _flip(1.0),
    "page of zeros": _zero,
    "garbage written over it": _garbage,
    "cut to half": _cut(0.5),
    "cut to nothing": _cut(0),
    "last bytes cut": _cut_end,
    "garbage behind it": _grow,
    "zeros behind it": _zeros_behind,
    "doubled": _double,
    "removed": _remove,
    "a directory instead": _directory,
    "a dangling link instead": _link,
    "a pipe instead": _pipe,
}


def _of_streams(suffix: str, change: Change) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        path = rng.choice(_large(_files(root, suffix)))
        change(path, rng)
        return Hurt(frozenset((_stream_of(path),)))

    return do


def _unreadable(suffix: str, errno: str) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        path = rng.choice(_large(_files(root, suffix)))
        return Hurt(frozenset((_stream_of(path),)), unreadable=path.stat().st_ino, errno=errno)

    return do


def _of_two(suffix: str, *, both: bool) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        one, other = rng.sample(_large(_files(root, suffix)), 2)
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        if both:
            other.write_bytes(first)
        hurt = {_stream_of(one)} | ({_stream_of(other)} if both else set())
        return Hurt(frozenset(hurt))

    return do


# --- to directories of streams ---


def _homes(root: Path) -> list[Path]:
    there = [path for path in root.glob("streams/*/*") if path.is_dir()]
    return sorted(path for path in there if len(list(path.iterdir())) > 1)


def _home(change: Change) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        home = rng.choice(_homes(root))
        change(home, rng)
        return Hurt(frozenset((int(home.name, 16),)))

    return do


def _home_unreadable(root: Path, rng: random.Random) -> Hurt:
    home = rng.choice(_homes(root))
    inode = home.stat().st_ino
    return Hurt(frozenset((int(home.name, 16),)), unreadable=inode, errno="EACCES")


def _homes_swapped(root: Path, rng: random.Random) -> Hurt:
    one, other = rng.sample(_homes(root), 2)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return Hurt(frozenset((int(one.name, 16), int(other.name, 16))))


def _home_file(home: Path, _rng: random.Random) -> None:
    shutil.rmtree(home)
    home.write_bytes(b"not a directory")


def _home_link(home: Path, _rng: random.Random) -> None:
    shutil.rmtree(home)
    home.symlink_to("nowhere")


def _home_emptied(home: Path, _rng: random.Random) -> None:
    for path in home.iterdir():
        path.unlink()


def _home_renamed(home: Path, _rng: random.Random) -> None:
    home.rename(home.with_name("x" + home.name))


def _all_of_one(suffix: str) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        home = rng.choice([path for path in _homes(root) if list(path.glob(f"*{suffix}"))])
        for path in home.glob(f"*{suffix}"):
            path.unlink()
        return Hurt(frozenset((int(home.name, 16),)))

    return do


def _all_indexes(root: Path, _rng: random.Random) -> Hurt:
    paths = _files(root, ".idx")
    for path in paths:
        path.unlink()
    return Hurt(frozenset(map(_stream_of, paths)))


def _source_of_forks(root: Path, _rng: random.Random) -> Hurt:
    """The first stream is the source of forks: its segments cut, and their indexes."""
    home = root / "streams/01/0000000000000001"
    for path in home.iterdir():
        os.truncate(path, path.stat().st_size // 2)
    return Hurt(frozenset((1,)))


def _shard(root: Path, rng: random.Random) -> Hurt:
    shard = rng.choice(sorted((root / "streams").iterdir()))
    hurt = frozenset(int(path.name, 16) for path in shard.iterdir())
    shutil.rmtree(shard)
    return Hurt(hurt)


def _both(segment: Change, index: Change) -> Callable[[Path, random.Random], Hurt]:
    """A segment and its own index: nothing is left that would say which bytes are right."""

    def do(root: Path, rng: random.Random) -> Hurt:
        path = rng.choice(_large(_files(root, ".log")))
        segment(path, rng)
        index(path.with_suffix(".idx"), rng)
        return Hurt(frozenset((_stream_of(path),)))

    return do


def _many(root: Path, rng: random.Random) -> Hurt:
    hurt = set()
    for path in rng.sample(_large(_files(root, ".log")), 6):
        rng.choice([_flip(0.5), _zero, _cut(0.5)])(path, rng)
        hurt.add(_stream_of(path))
    for path in rng.sample(_large(_files(root, ".idx")), 6):
        rng.choice([_flip(0.5), _garbage, _cut(0.5)])(path, rng)
        hurt.add(_stream_of(path))
    return Hurt(frozenset(hurt))


def _all_pairs(root: Path, rng: random.Random) -> Hurt:
    paths = _files(root, ".log")
    for path in paths:
        _flip(rng.random())(path, rng)
        path.with_suffix(".idx").unlink()
    return Hurt(frozenset(map(_stream_of, paths)))


# --- to what all streams share ---


def _shared(
    pattern: str, change: Change, *, journal: bool
) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, rng: random.Random) -> Hurt:
        change(max(root.glob(pattern), key=lambda path: path.stat().st_size), rng)
        return Hurt(frozenset(), journal=journal)

    return do


def _shared_unreadable(pattern: str, errno: str) -> Callable[[Path, random.Random], Hurt]:
    def do(root: Path, _rng: random.Random) -> Hurt:
        path = max(root.glob(pattern), key=lambda path: path.stat().st_size)
        return Hurt(frozenset(), unreadable=path.stat().st_ino, errno=errno)

    return do


def _strays(root: Path, rng: random.Random) -> Hurt:
    for place in ("note.txt", "journal/x", "catalog/y.new", "streams/zz", "streams/01/alien"):
        (root / place).write_bytes(rng.randbytes(100))
    (root / "DURASTREAMD.new").write_bytes(b"a draft")
    home = rng.choice(_homes(root))
    (home / "copy.log").write_bytes(rng.randbytes(100))
    return Hurt(frozenset())


def kinds() -> Iterator[Kind]:
    """Yield every kind, in the order of the table."""
    for suffix in (".log", ".idx", ".snap"):
        for name, change in CHANGES.items():
            yield Kind(f"{suffix}: {name}", _of_streams(suffix, change))
        for errno in ("EACCES", "EIO"):
            yield Kind(f"{suffix}: {errno}", _unreadable(suffix, errno))
        yield Kind(f"{suffix}: two swapped", _of_two(suffix, both=True))
        yield Kind(f"{suffix}: another's copied over it", _of_two(suffix, both=False))
    yield Kind("all .log of a stream removed", _all_of_one(".log"))
    yield Kind("all .idx of a stream removed", _all_of_one(".idx"))
    yield Kind("all .idx removed", _all_indexes)
    yield Kind("files of a source of forks cut", _source_of_forks)
    yield Kind(".log and its .idx: a bit flipped in each", _both(_flip(0.5), _flip(0.5)))
    yield Kind(".log flipped, its .idx removed", _both(_flip(0.5), _remove))
    yield Kind(".log with a page of zeros, its .idx cut", _both(_zero, _cut(0.5)))
    yield Kind("every .log flipped, every .idx removed", _all_pairs)
    yield Kind("twelve files hurt", _many)
    yield Kind("stream directory: removed", _home(lambda home, _: shutil.rmtree(home)))
    yield Kind("stream directory: emptied", _home(_home_emptied))
    yield Kind("stream directory: renamed", _home(_home_renamed))
    yield Kind("stream directory: a file instead", _home(_home_file))
    yield Kind("stream directory: a dangling link instead", _home(_home_link))
    yield Kind("stream directory: EACCES", _home_unreadable)
    yield Kind("stream directory: two swapped", _homes_swapped)
    yield Kind("shard directory removed", _shard)
    for name, change in CHANGES.items():
        yield Kind(f"journal: {name}", _shared("journal/*.jnl", change, journal=True))
    for name, change in CHANGES.items():
        yield Kind(f"catalogue: {name}", _shared("catalog/*.cat", change, journal=False))
    for name in ("bit flipped in the middle", "cut to half", "cut to nothing", "removed"):
        yield Kind(f"identity: {name}", _shared("DURASTREAMD", CHANGES[name], journal=False))
    for pattern, what in (("journal/*.jnl", "journal"), ("catalog/*.cat", "catalogue")):
        for errno in ("EACCES", "EIO"):
            yield Kind(f"{what}: {errno}", _shared_unreadable(pattern, errno))
    yield Kind("stray files", _strays)
