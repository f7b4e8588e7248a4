"""A backup is one moment of the directory, whatever goes on meanwhile; a restore is that moment."""

import http.client
import io
import json
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.admin.carry import tree as tree_module
from durastreamd.admin.carry.backup import take
from durastreamd.admin.carry.moment import Wanted, moment_of
from durastreamd.admin.carry.tree import Tree
from durastreamd.admin.cli import main
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, LOCKED, NO_INPUT, OK, USAGE
from durastreamd.model.records import Mark
from durastreamd.offline.verify.verification import Scope, in_turn, verify
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.overlay import OverlayDisk
from tests.support.daemon import Daemon
from tests.support.damage import flip
from tests.support.moving_disk import moving
from tests.support.unsynced import UnsyncedDisk
from tests.support.world import NOW, TINY, Dump, World, dump, random_step, start


def dsadmin(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its status and what it wrote."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    status = main([str(argument) for argument in arguments], Console(out, err))
    out.flush()
    return status, out.buffer.getvalue().decode(), err.getvalue()


@contextmanager
def looked_into(root: Path) -> Iterator[Engine]:
    """Open a directory without changing it; nothing torn, nothing damaged, everything verifies."""
    overlay = OverlayDisk(RealDisk(str(root)))
    engine, report = open_engine(overlay, TINY, lambda: b"", NOW)
    assert report.torn_bytes == 0
    assert not report.damaged
    seen = verify(engine.disk, Scope(deep=True), in_turn(engine.disk))
    assert [str(finding) for finding in seen if not finding.harmless] == []
    try:
        yield engine
    finally:
        engine.release()
        overlay.release_base()


def dump_of(root: Path) -> Dump:
    with looked_into(root) as engine:
        return dump(engine)


# --- any interleaving ---


class LiveWorld(World):
    """A world on a real directory, for operations between the steps of a backup."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(UnsyncedDisk(str(root)))  # type: ignore[arg-type]
        self._rng = rng
        self.history: list[Dump] = []

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += 10
            operation = random_step(self, self._rng)
            if operation != self.reopen:
                operation()

    def commit(self, records: list) -> None:  # type: ignore[type-arg]
        self.engine.commit(records)
        if self.history:
            self.history.append(dump(self.engine))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), between=st.sampled_from((0.05, 0.3, 1.0)), again=st.booleans())
def test_a_backup_is_one_moment_whatever_happens_between_two_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, between: float, *, again: bool
) -> None:
    root = tmp_path_factory.mktemp("moment")
    rng = random.Random(seed)
    (root / "data").mkdir()
    world = LiveWorld(root / "data", rng)
    world.go_on(40)
    tree = Tree(root / "copy", root / "data", root / "none", None)
    original = tree._take

    def disturbed(one: Wanted, advance: Callable[[int], None]) -> None:
        nonlocal between
        if rng.random() < between:
            world.go_on(1)
        original(one, advance)
        between *= 0.98  # sooner or later it gets quiet enough

    tree._take = disturbed  # type: ignore[method-assign]
    for _ in range(2 if again else 1):
        world.history[:] = [dump(world.engine)]
        first = moment_of(world.engine.disk)
        took, amiss = take(world.engine.disk, tree, root / "copy", TINY, first)
        assert not amiss
        with patch.object(tree_module, "RealDisk", UnsyncedDisk):
            tree.finish(took, 1, 2)
        assert dump_of(root / "copy") in world.history
        world.history.clear()
        world.go_on(10)
    world.engine.release()


# --- the real daemon under load ---


class Load:
    """Writers that keep count of what was acknowledged."""

    def __init__(self, url: str) -> None:
        self._at = urlsplit(url)
        self._stop = threading.Event()
        self.acked = {"counter": 0, "folded": 0}
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self._count, self._fold, self._churn)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[http.client.HTTPConnection], Iterator[None]]) -> None:
        connection = http.client.HTTPConnection(self._at.hostname or "", self._at.port)
        try:
            for _ in work(connection):
                if self._stop.is_set():
                    return
        except BaseException as exc:  # noqa: BLE001  # shown by the test
            self.failures.append(exc)
        finally:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str, **head: str
    ) -> http.client.HTTPResponse:
        fields = {name.replace("_", "-"): value for name, value in head.items()}
        connection.request(method, path, body.encode(), fields)
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 300, (method, path, answer.status)
        return answer

    def _count(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        path, kind = "/v1/stream/counter", "application/json"
        self._send(connection, "PUT", path, "", Content_Type=kind)
        for number in range(10**9):
            self._send(
                connection,
                "POST",
                path,
                json.dumps({"n": number, "pad": "x" * 200}),
                Content_Type=kind,
                Producer_Id="load",
                Producer_Epoch="0",
                Producer_Seq=str(number),
            )
            self.acked["counter"] = number + 1
            yield

    def _fold(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        kind = "text/plain"
        self._send(connection, "PUT", "/load", "")
        self._send(connection, "PUT", "/load/folded", "", Content_Type=kind)
        for number in range(10**9):
            line = f"{number:09}" * 50
            answer = self._send(connection, "POST", "/load/folded", line, Content_Type=kind)
            if number % 7 == 6:
                offset = answer.headers["Stream-Next-Offset"]
                place = f"/load/folded/snapshot/{offset}"
                self._send(connection, "PUT", place, f"{number}", Content_Type=kind)
            self.acked["folded"] = number + 1
            yield

    def _churn(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        for number in range(10**9):
            path = f"/v1/stream/brief/{number}"
            self._send(connection, "PUT", path, "a" * 3000, Content_Type="text/plain")
            if number > 5:
                self._send(connection, "DELETE", f"/v1/stream/brief/{number - 5}", "")
            yield


def assert_holds(root: Path, acked: dict[str, int]) -> None:
    """Everything acknowledged before is there, and what there is fits together."""
    with looked_into(root) as engine:
        counter = engine.namespace.by_key["/counter"]
        view = engine.view(counter)
        found = json.loads(b"[" + view.read(0, counter.tail)[:-2] + b"]")
        assert [one["n"] for one in found] == list(range(len(found)))
        assert len(found) >= acked["counter"]
        detail = counter.detail or engine.load_detail(counter)
        assert detail.producers["load"] == (0, len(found) - 1)
        folded = engine.namespace.by_key["load/folded"]
        count = folded.tail // 450
        assert count >= acked["folded"]
        rest = engine.view(folded).read(folded.floor, folded.tail).decode()
        assert rest == "".join(f"{n:09}" * 50 for n in range(folded.floor // 450, count))
        if folded.snapshot is not None:
            shown = folded.snapshot
            path = fmt.snapshot_path(shown.owner, shown.position, shown.serial)
            assert (root / path).read_text() == str(folded.floor // 450 - 1)


ROUNDS = 4


@pytest.mark.system
def test_a_backup_beside_a_writing_daemon_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    small = {
        "engine.journal_bytes_max": 96 * 1024,
        "engine.segment_bytes_max": 32 * 1024,
        "engine.hot_bytes_max": 64 * 1024,
    }
    data, copy = tmp_path / "data", tmp_path / "copy"
    with Daemon(tmp_path, settings=small) as daemon, Load(daemon.url) as load:
        while min(load.acked.values()) < 50 and not load.failures:
            threading.Event().wait(0.01)
        for number in range(ROUNDS):
            acked = dict(load.acked)
            status, _, text = dsadmin("--data-dir", data, "backup", copy)
            assert status == OK, text
            assert "beside the running daemon" in text
            assert_holds(copy, acked)
            assert dsadmin("backup", "--verify", copy)[0] == OK
            assert dsadmin("--data-dir", tmp_path / f"r{number}", "restore", copy)[0] == OK
            assert_holds(tmp_path / f"r{number}", acked)
        assert not load.failures
    with looked_into(tmp_path / "r3") as engine:
        assert "/counter" in engine.namespace.by_key
    # What was restored can be served: opened for good, twice.
    for _ in range(2):
        engine, report = open_engine(
            RealDisk(str(tmp_path / "r0")), EngineOptions(), lambda: b"", NOW
        )
        assert not report.damaged
        engine.release()


# --- the places ---


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    engine, _ = start(RealDisk(str(root)), create=True)  # type: ignore[arg-type]
    engine.release()
    source = io.BytesIO(b'{"a":1}\n' * 3000)
    (tmp_path / "lines").write_bytes(source.getvalue())
    place = ("--data-dir", root, "import", "--format", "ndjson", "--input", tmp_path / "lines")
    assert dsadmin(*place, "--stream", "/one")[0] == OK
    assert dsadmin(*place, "--stream", "docs/two")[0] == OK
    return root


def test_a_second_backup_copies_only_what_changed(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    before = {path: path.stat().st_ino for path in copy.rglob("*.log")}
    lines = tmp_path / "lines"
    more = ("import", "--format", "ndjson", "--input", lines, "--stream", "/one")
    assert dsadmin("--data-dir", data, *more)[0] == OK
    status, out, _ = dsadmin("--data-dir", data, "--json", "backup", copy)
    assert status == OK
    told = json.loads(out)
    assert told["copied_bytes"] < told["bytes"]
    after = {path: path.stat().st_ino for path in copy.rglob("*.log")}
    assert sum(after[path] == before[path] for path in before) == 1
    assert dump_of(copy) == dump_of(data)
    assert not list(tmp_path.glob("copy.*"))
    sums = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=copy, check=False)
    assert sums.returncode == 0


def test_a_same_length_with_other_bytes_is_not_linked(data: Path, tmp_path: Path) -> None:
    """A directory restored and written anew has the same names and lengths as the backup."""
    copy = tmp_path / "copy"
    old = tmp_path / "old"
    assert dsadmin("--data-dir", data, "backup", old)[0] == OK
    twin = tmp_path / "twin"
    assert dsadmin("--data-dir", twin, "restore", old)[0] == OK
    for root, text in ((data, b'{"x":1}\n'), (twin, b'{"x":2}\n')):
        (tmp_path / "more").write_bytes(text)
        more = ("import", "--format", "ndjson", "--input", tmp_path / "more", "--stream", "/one")
        assert dsadmin("--data-dir", root, *more)[0] == OK
        assert dsadmin("--data-dir", root, "backup", copy)[0] == OK
        assert {**dump_of(copy)} == {**dump_of(root)}


def test_an_interrupted_backup_leaves_the_one_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    before = dump_of(copy)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tree_module, "encode_sums", fail)
        status, _, text = dsadmin("--data-dir", data, "backup", copy)
    assert (status, "No space left" in text) == (74, True)
    assert dump_of(copy) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data", "lines"]
    # As a power cut between the two renames leaves it:
    copy.rename(tmp_path / "copy.previous")
    (tmp_path / "copy.partial").mkdir()
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    assert dump_of(copy) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data", "lines"]


def test_a_damaged_directory_is_backed_up_as_far_as_it_verifies(data: Path, tmp_path: Path) -> None:
    """Before a repair, most of all; and whoever asked is told."""
    lost = next(iter(sorted(data.rglob("*.log"))))
    lost.unlink()
    status, _, text = dsadmin("--data-dir", data, "backup", tmp_path / "copy")
    assert status == CORRUPT
    assert "damaged in the data directory itself: streams" in text
    assert lost.name in text
    assert dsadmin("backup", "--verify", tmp_path / "copy")[0] == OK
    assert dsadmin("--data-dir", tmp_path / "copy", "verify", "--deep")[0] == OK


def test_a_backup_that_is_not_whole_leaves_the_last_one_that_is(data: Path, tmp_path: Path) -> None:
    """A nightly backup of a disk that has begun to rot must not be the end of the good ones."""
    copy, beside = tmp_path / "copy", tmp_path / "copy.damaged"
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    before = dump_of(copy)
    rotten = next(iter(sorted(data.rglob("*.idx"))))
    original = rotten.read_bytes()
    rotten.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    for _ in range(2):  # the second takes the place of the first
        status, _, text = dsadmin("--data-dir", data, "backup", copy)
        assert (status, f"{copy} is the last backup in which everything" in text) == (CORRUPT, True)
        assert dump_of(copy) == before
        assert dsadmin("--data-dir", beside, "verify", "--deep")[0] == OK
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "copy",
            "copy.damaged",
            "data",
            "lines",
        ]
    rotten.write_bytes(original)
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    assert dump_of(copy) == before


def test_what_rotted_since_the_last_backup_is_taken_from_there(data: Path, tmp_path: Path) -> None:
    """The index says that the bytes are the same; so the old ones are linked, which verify."""
    copy = tmp_path / "copy"
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    rotten = next(iter(sorted(data.rglob("*.log"))))
    original = rotten.read_bytes()
    rotten.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    assert (copy / rotten.relative_to(data)).read_bytes() == original


def test_what_was_set_aside_of_a_marked_stream_is_in_the_backup(tmp_path: Path) -> None:
    """The server marked a stream and put its later frames aside; a backup has all of it."""
    world = World()
    world.create("/d")
    for number in range(4):
        world.append("/d", b"record %d." % number)
    world.commit([(Mark(world.now_ms), b"")])
    disk = moving(world.disk)
    path = fmt.journal_path(world.engine.journal.number)
    flip(disk, path, disk.read(path).index(b"record 1."))
    start(disk)[0].release()
    data, copy = tmp_path / "data", tmp_path / "copy"
    for path, content in disk.files().items():
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_bytes(content)
    for folder in ("journal", "catalog", "streams", "quarantine"):
        (data / folder).mkdir(exist_ok=True)
    status, _, text = dsadmin("--data-dir", data, "backup", copy)
    assert (status, "/d: keeps 18 of 36 bytes" in text) == (CORRUPT, True)
    assert dsadmin("--data-dir", copy, "cat", "/d")[1] == "record 2.record 3."


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_bytes_that_do_not_verify_are_named(data: Path, tmp_path: Path, suffix: str) -> None:
    """A copy of rotten bytes has the right SHA-256 of them; so they are verified themselves."""
    rotten = next(iter(sorted(data.rglob(f"*{suffix}"))))
    content = bytearray(rotten.read_bytes())
    content[len(content) // 2] ^= 1
    rotten.write_bytes(content)
    status, _, text = dsadmin("--data-dir", data, "backup", tmp_path / "copy")
    assert status == CORRUPT
    assert "damaged in the data directory itself: /one: streams" in text
    assert rotten.name in text
    assert "docs/two" not in text


def test_places_that_are_not_for_a_backup_are_refused(data: Path, tmp_path: Path) -> None:
    backup = ("--data-dir", data, "backup")
    assert dsadmin(*backup, data / "copy")[0] == USAGE
    assert dsadmin(*backup, data)[0] == USAGE
    assert dsadmin(*backup, tmp_path)[0] == USAGE
    status, _, text = dsadmin(*backup, tmp_path / "no" / "such")
    assert (status, "is the volume mounted?" in text) == (NO_INPUT, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photos").touch()
    assert "is no backup" in dsadmin(*backup, tmp_path / "full")[2]
    other = tmp_path / "other"
    dsadmin(
        "--data-dir",
        other,
        "import",
        "--init",
        "--format",
        "raw",
        "--stream",
        "/x",
        "--input",
        "/dev/null",
    )
    assert dsadmin("--data-dir", other, "backup", tmp_path / "copy")[0] == OK
    assert "of another data directory" in dsadmin(*backup, tmp_path / "copy")[2]
    handle = RealDisk(str(tmp_path / "copy")).lock(fmt.IDENTITY_FILE)
    assert dsadmin("--data-dir", other, "backup", tmp_path / "copy")[0] == LOCKED
    os.close(handle)


# --- verify and restore ---


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "foreign", "sums"])
def test_a_damaged_backup_is_told_and_not_restored(data: Path, tmp_path: Path, harm: str) -> None:
    copy = tmp_path / "copy"
    assert dsadmin("--data-dir", data, "backup", copy)[0] == OK
    path = next(iter(sorted(copy.rglob("*.log"))))
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[100] ^= 4
        path.write_bytes(raw)
    elif harm == "cut":
        path.write_bytes(raw[:-1])
    elif harm == "remove":
        path.unlink()
    elif harm == "foreign":
        path = copy / "streams" / "note"
        path.touch()
    else:
        path = copy / "SHA256SUMS"
        path.write_bytes(path.read_bytes()[:-1])
    status, out, text = dsadmin("backup", "--verify", copy)
    assert status == CORRUPT
    assert path.name in out + text
    status, _, text = dsadmin("--data-dir", tmp_path / "new", "restore", copy)
    if harm == "foreign":
        assert status == OK  # only what the manifest names is restored
        assert not (tmp_path / "new" / "streams" / "note").exists()
        return
    assert status == CORRUPT
    assert path.name in text
    assert not (tmp_path / "new" / fmt.IDENTITY_FILE).exists()
