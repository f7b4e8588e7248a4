"""The damage table: every kind of damage, every choice of a repair, compared with the truth.

A directory with about thirty streams is made once by a real server: JSON, bytes and text, forks,
snapshots, producers, closed ones, a bucket, and a journal whose end is not in segments yet. For
each kind (``damage_kinds``) a copy is damaged and served; then for each choice of ``--keep`` a copy
of the same damage is repaired, verified, planned again and served. Five figures must be 0:

    wrong before     a byte served from the damaged directory that is not the truth's
    wrong after      the same from the repaired one
    altered          a stream that was not damaged and is not what it was after the repair
    unclean          a repair that fails, or leaves findings, or something for the next repair to do
    tracebacks       in the log of a server or from dsadmin

Bytes that nothing proves are dropped. With ``--unproven take`` they are served, and where a segment
is hurt together with its index "wrong after" is what the manual warns of.

What the disk does not hand out (EACCES, EIO) is neither lost nor proven: there a repair may end
with 74 or 77, and verify says so again; what is repaired without it is held to the same figures.

Every program runs in a child forked from this process, so a table takes minutes and not hours.
"""

import argparse
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import durastreamd.admin.cli
import durastreamd.cli
from durastreamd.admin.carry import backup, exporting, importing  # noqa: F401  # children need not
from durastreamd.admin.look import verify  # noqa: F401
from durastreamd.admin.mend import repair  # noqa: F401
from durastreamd.offline.repair.losses import DROP, PROOFLESS, SIDES
from durastreamd.storage.disk import RealDisk
from tools.damage_kinds import Hurt, Kind, kinds
from tools.damage_truth import JSON, PATH, PATIENCE_S, Client, Maker, Truth, make_end, make_streams

FIGURES = ("wrong before", "wrong after", "altered", "unclean", "tracebacks")
SETTINGS = {
    "engine.segment_bytes_max": 8192,
    "engine.state_every_bytes": 1024,
    "streams.checkpoint_s": 3600,
    "disk.free_bytes_min": 0,
    "disk.free_bytes_resume": 0,
    "scrub.start_s": 3600,
}


# --- children ---


def _refuse(inode: int, name: str) -> None:
    """Have this process's disk refuse one file or directory, whatever it is called by now."""
    number = getattr(errno, name)
    opened, listed = RealDisk.open, RealDisk.names

    def check(path: str) -> None:
        if os.path.lexists(path) and os.lstat(path).st_ino == inode:
            raise OSError(number, os.strerror(number), path)

    def open_it(disk: RealDisk, path: str, *, create: bool = False, write: bool = False) -> int:
        for part in (path, path.rpartition("/")[0]):
            check(disk._path(part))  # noqa: SLF001
        return opened(disk, path, create=create, write=write)

    def names(disk: RealDisk, path: str) -> list[str]:
        check(disk._path(path))  # noqa: SLF001
        return listed(disk, path)

    setattr(RealDisk, "open", open_it)  # noqa: B010
    setattr(RealDisk, "names", names)  # noqa: B010


def spawn(main: Callable[[list[str]], int], arguments: list[str], log: Path, hurt: Hurt) -> int:
    """Run a program in a child with its output in a file; return the child's id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(out, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "wb", closefd=False), write_through=True)
        if hurt.unreadable:
            _refuse(hurt.unreadable, hurt.errno)
        status = main(arguments)
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


NOTHING_HURT = Hurt(frozenset())


def dsadmin(root: Path, log: Path, hurt: Hurt, *arguments: str) -> tuple[int, str]:
    """Run dsadmin; return its status and what it said."""
    before = log.stat().st_size if log.exists() else 0
    child = spawn(durastreamd.admin.cli.main, ["--data-dir", str(root), *arguments], log, hurt)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_bytes()[before:].decode(errors="replace")


class Server:
    """A server in a child; ``port`` is 0 where it refused to start."""

    def __init__(self, root: Path, log: Path, hurt: Hurt = NOTHING_HURT, *more: str) -> None:
        chosen = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        where = ["--data-dir", str(root), "--listen", "127.0.0.1:0"]
        before = log.stat().st_size if log.exists() else 0
        self.status: int | None = None
        self._child = spawn(durastreamd.cli.main, [*where, *chosen, *more], log, hurt)
        self.port = 0
        until = time.monotonic() + PATIENCE_S
        while not self.port and time.monotonic() < until and self._ended() is None:
            text = log.read_bytes()[before:].decode(errors="replace") if log.exists() else ""
            found = re.search(r"serving on http://127\.0\.0\.1:(\d+)", text)
            self.port = int(found[1]) if found else 0
            time.sleep(0.01)

    def _ended(self) -> int | None:
        if self.status is None:
            child, status = os.waitpid(self._child, os.WNOHANG)
            if child:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def end(self, number: int) -> int:
        """Send a signal and wait for the end."""
        if self._ended() is None:
            os.kill(self._child, number)
            _, status = os.waitpid(self._child, 0)
            self.status = os.waitstatus_to_exitcode(status)
        assert self.status is not None
        return self.status


# --- the truth ---


def make_directory(root: Path, log: Path) -> dict[str, Truth]:
    """Make the directory that is damaged later; a kill leaves the end of it in the journal."""
    server = Server(root, log, NOTHING_HURT, "--init")
    maker = Maker(Client(server.port))
    make_streams(maker)
    assert server.end(signal.SIGTERM) == 0
    server = Server(root, log)
    maker.client = Client(server.port)
    make_end(maker)
    time.sleep(1.5)  # the server falls idle, and its last batch gets a witness
    server.end(signal.SIGKILL)
    status, text = dsadmin(root, log, NOTHING_HURT, "ls", "--json")
    assert status == 0, text
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            key = row["name"] if not row["name"].startswith("/") else PATH + row["name"][1:]
            maker.streams[key if key.startswith("/") else f"/{key}"].id = int(row["id"], 16)
    assert all(stream.id for stream in maker.streams.values())
    return maker.streams


# --- what is served ---


class Seen(NamedTuple):
    """What of a stream was served: from a position on, so much; "" or what is wrong with it."""

    start: int
    whole: bool
    refused: str
    wrong: str
    producer_known: bool


def look(client: Client, truth: Truth, *, retry: bool) -> Seen:
    """Read a stream from its start to its end, and compare."""
    start, data, told, wrong = read(client, truth)
    if not told and not wrong:
        wrong = _compare(truth, start, data)
    want = truth.content(start)
    whole = not told and not wrong and start == truth.floor and data == want
    if truth.snapshot is not None and not wrong:
        place, blob = truth.snapshot
        answer = client.ask("GET", f"{truth.path}/snapshot/{place:016d}")
        if answer.status == 200 and answer.body != blob:
            wrong = "another snapshot"
        if answer.status != 200:
            whole, told = False, told or f"snapshot: {answer.status}"
        if b"INTERNAL_ERROR" in answer.body:
            wrong = "INTERNAL_ERROR"
    told_closed = client.ask("HEAD", truth.path).head.get("stream-closed") == "true"
    if not told and told_closed != truth.closed:
        whole = False
    known = True
    if retry and truth.producer is not None and not told:
        head, body = truth.producer
        known = client.ask("POST", truth.path, body, head).status == 204
    return Seen(start, whole, told, wrong, known)


def read(client: Client, truth: Truth) -> tuple[int, bytes, str, str]:
    """Return where the readable part begins, its bytes, what refused it, and what was wrong."""
    head = {"Accept": "application/x-ndjson"} if truth.kind == JSON else {}
    offset, start, data = f"{truth.floor:016d}", truth.floor, b""
    for _ in range(1000):
        answer = client.ask("GET", f"{truth.path}?offset={offset}", None, head)
        if answer.status == 200:
            data += answer.body
            offset = answer.head["stream-next-offset"]
            if "stream-up-to-date" in answer.head or not answer.body:
                return start, data, "", ""
        elif answer.status == 410 and not data and "stream-next-offset" in answer.head:
            offset = answer.head["stream-next-offset"]
            start = int(offset)
        elif answer.status == 0:
            return start, data, "broken off", _compare(truth, start, data + answer.body)
        else:
            code = "?"
            if answer.body.startswith(b"{"):
                code = json.loads(answer.body).get("code", "?")
            wrong = _compare(truth, start, data)
            if code == "INTERNAL_ERROR":
                wrong = wrong or code
            return start, data, f"{answer.status} {code}", wrong
    return start, data, "", "it never ends"


def _compare(truth: Truth, start: int, data: bytes) -> str:
    want = truth.content(start)
    if want is None:
        return f"no message begins at {start}"
    return "" if want.startswith(data) else f"other bytes from {start} on"


# --- the table ---


class Case(NamedTuple):
    """One kind with one choice: the five figures, and what they are about."""

    kind: str
    keep: str
    figures: tuple[int, int, int, int, int]
    told: list[str]
    statuses: str


class Table:
    """Damages copies of one directory, and counts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._base = home / "truth"
        self.truths = make_directory(self._base, home / "truth.log")
        self._check_the_truth()

    def _check_the_truth(self) -> None:
        copy = self._copy(self._base, "check")
        server = Server(copy, self._home / "check.log")
        client = Client(server.port)
        for truth in self.truths.values():
            seen = look(client, truth, retry=True)
            assert seen.whole, (truth.path, seen)
            assert seen.producer_known, truth.path
        server.end(signal.SIGKILL)

    def _copy(self, source: Path, name: str) -> Path:
        copy = self._home / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy, symlinks=True)
        return copy

    def run(self, kind: Kind, keeps: Sequence[str], unproven: str) -> Iterator[Case]:
        """Damage a copy, serve it, and repair it in each way."""
        wrong, told, log = 0, list[str](), self._home / "before.log"
        log.unlink(missing_ok=True)
        damaged, hurt = self._damage(kind)
        server = Server(damaged, log, hurt)
        if server.port:
            found = self._wrong_before(Client(server.port), hurt)
            wrong = len(found)
            told += found
            status = server.end(signal.SIGTERM)
            if status:
                told.append(f"the server ended with {status}")
        elif server.status not in (65, 66, 74, 77):
            told.append(f"the server did not start: {server.status}")
        raised = _tracebacks(log)
        for keep in keeps:
            chosen = ("--keep", keep, "--unproven", unproven)
            yield self._repaired(kind, chosen, (wrong, raised), told)

    def _damage(self, kind: Kind) -> tuple[Path, Hurt]:
        copy = self._copy(self._base, "damaged")
        return copy, kind.do(copy, random.Random(kind.name))

    def _wrong_before(self, client: Client, hurt: Hurt) -> list[str]:
        found = []
        for truth in self.truths.values():
            seen = look(client, truth, retry=False)
            harmed = self._is_harmed(truth, hurt)
            if seen.wrong:
                found.append(f"before: {truth.path}: {seen.wrong}")
            elif not seen.whole and not harmed:
                found.append(f"before: {truth.path}: {seen.refused or 'less'}, though undamaged")
            elif not seen.whole and not seen.refused and not hurt.journal:
                found.append(f"before: {truth.path}: less than there was, and not a word")
        return found

    def _is_harmed(self, truth: Truth, hurt: Hurt) -> bool:
        """Tell whether damage may concern a stream: it, a source, or its end in the journal."""
        if any(one.id in hurt.streams for one in (truth, *truth.sources)):
            return True
        tails = [one for one in (truth, *truth.sources) if one.flushed < len(one.messages)]
        return hurt.journal and bool(tails)

    def _repaired(
        self, kind: Kind, chosen: Sequence[str], before: tuple[int, int], told: list[str]
    ) -> Case:
        log = self._home / "after.log"
        log.unlink(missing_ok=True)
        copy, hurt = self._damage(kind)
        told = list(told)
        statuses, unclean = self._mend(copy, log, hurt, chosen, told)
        wrong = altered = 0
        server = Server(copy, log, hurt)
        if server.port:
            client = Client(server.port)
            for truth in self.truths.values():
                seen = look(client, truth, retry=True)
                if seen.wrong:
                    wrong += 1
                    told.append(f"after: {truth.path}: {seen.wrong}")
                elif not self._is_harmed(truth, hurt) and not (seen.whole and seen.producer_known):
                    altered += 1
                    told.append(f"altered: {truth.path}: {seen}")
            server.end(signal.SIGTERM)
        elif not hurt.unreadable:
            unclean += 1
            told.append(f"the server does not start after the repair: {server.status}")
        raised = before[1] + _tracebacks(log)
        figures = (before[0], wrong, altered, unclean, raised)
        return Case(kind.name, chosen[1], figures, told, statuses)

    def _mend(
        self, copy: Path, log: Path, hurt: Hurt, chosen: Sequence[str], told: list[str]
    ) -> tuple[str, int]:
        """Repair, verify and plan again; return the statuses and how much was not as it must be."""
        found = [dsadmin(copy, log, hurt, "verify", "--deep")]
        found.append(dsadmin(copy, log, hurt, "repair", "--apply", "--yes", *chosen))
        found.append(dsadmin(copy, log, hurt, "verify", "--deep"))
        found.append(dsadmin(copy, log, hurt, "repair", *chosen))
        statuses = [status for status, _ in found]
        good = statuses[1:] == [0, 0, 0]
        if hurt.unreadable and statuses[1] in (74, 77):
            good = all(status in (74, 77) for status in statuses[1:])
        if not good:
            told.append(f"unclean: {statuses}: {found[2][1].strip()[-600:]}")
            told.append(f"the repair said: {found[1][1].strip()[-600:]}")
        return ",".join(map(str, statuses)), int(not good)


def _tracebacks(log: Path) -> int:
    return log.read_text(errors="replace").count("Traceback") if log.exists() else 0


def main() -> int:
    """Print the table; 1 where a figure is not 0."""
    parser = argparse.ArgumentParser(description="every kind of damage, compared with the truth")
    parser.add_argument("--only", default="", help="kinds whose names hold this text")
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth kind")
    parser.add_argument("--keep", nargs="*", default=list(SIDES), help="which choices of a repair")
    parser.add_argument("--unproven", choices=PROOFLESS, default=DROP, help="as of a repair")
    parser.add_argument("--dir", help="where to work; a temporary directory by default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.dir) as home:
        wanted = [kind for kind in kinds() if chosen.only in kind.name]
        table = Table(Path(home))
        return report(table, wanted[:: chosen.every], chosen.keep, chosen.unproven)


def report(table: Table, wanted: list[Kind], keeps: list[str], unproven: str) -> int:
    """Print a row for each kind and choice, and the sums."""
    chosen = f"--keep {', '.join(keeps)}; --unproven {unproven}"
    print(f"{len(table.truths)} streams, {len(wanted)} kinds; {chosen}\n")
    print("| damage | keep | " + " | ".join(FIGURES) + " | verify, repair, verify, plan |")
    print("|---|---|" + "---|" * (len(FIGURES) + 1))
    sums, rows = [0] * len(FIGURES), 0
    for kind in wanted:
        for case in table.run(kind, keeps, unproven):
            figures = " | ".join(map(str, case.figures))
            print(f"| {case.kind} | {case.keep} | {figures} | {case.statuses} |", flush=True)
            for line in case.told if any(case.figures) else ():
                print(f"    {line}", file=sys.stderr, flush=True)
            sums = [one + other for one, other in zip(sums, case.figures, strict=True)]
            rows += 1
    print(f"| **all {rows}** | | " + " | ".join(f"**{one}**" for one in sums) + " | |")
    return int(any(sums))


if __name__ == "__main__":
    sys.exit(main())
