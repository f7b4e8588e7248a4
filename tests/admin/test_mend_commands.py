"""verify, repair, reindex and gc as an operator uses them, with the daemon before and after."""

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from durastreamd.kit.status import (
    CORRUPT,
    FOUND,
    IO_ERROR,
    LOCKED,
    NO_INPUT,
    NO_PERMISSION,
    OK,
    USAGE,
)
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import RealDisk
from tests.admin.harness import JSON, SMALL, run, tree
from tests.support.daemon import Daemon

NAMES = ("orders/1", "log", "blob", "fork", "part", "cut")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x20
    path.write_bytes(data)


def first_segment(data: Path, stream: int = 1) -> Path:
    return data / fmt.segment_path(stream, 0)


def served(daemon: Daemon) -> dict[str, bytes]:
    """Return what clients get of every stream, JSON as one array, from its floor on."""
    with httpx.Client(base_url=daemon.url, verify=False) as client:
        return {name: _content(client, f"/v1/stream/{name}") for name in NAMES}


def _content(client: httpx.Client, path: str) -> bytes:
    found: list[bytes] = []
    offset = "-1"
    while True:
        answer = client.get(path, params={"offset": offset})
        offset = answer.headers["Stream-Next-Offset"]
        if answer.status_code == 410:
            continue  # a raised floor: the answer names it
        found.append(answer.raise_for_status().content)
        if "Stream-Up-To-Date" in answer.headers:
            break
    if answer.headers["Content-Type"] != JSON:
        return b"".join(found)
    return b"[" + b",\n".join(page[1:-1] for page in found if page != b"[]") + b"]"


def is_run_of(found: bytes, original: bytes) -> bool:
    """Tell whether a stream lost nothing but a beginning or an end."""
    if original.startswith(b"["):
        kept, all_of_it = json.loads(found), json.loads(original)
        return bool(kept in (all_of_it[: len(kept)], all_of_it[len(all_of_it) - len(kept) :]))
    return original.startswith(found) or original.endswith(found)


# --- verify ---


def test_a_killed_server_leaves_no_damage(data: Path) -> None:
    before = tree(data)
    for options in ([], ["--deep"], ["--deep", "--jobs", "1"]):
        result = run("--data-dir", data, "verify", *options)
        assert result.status in (OK, FOUND), result.text
    assert tree(data) == before


def test_findings_are_lines_or_json_and_the_same_with_any_number_of_jobs(data: Path) -> None:
    path = first_segment(data)
    flip(path, 100)
    one = run("--data-dir", data, "verify", "--deep", "--jobs", "1")
    two = run("--data-dir", data, "verify", "--deep", "--jobs", "2")
    assert one.status == two.status == CORRUPT
    assert one.lines == two.lines
    where = path.relative_to(data)
    assert any(line.startswith(f"{where}:") and ": payload: " in line for line in one.lines)
    records = run("--json", "--data-dir", data, "verify", "--deep").records
    (hit,) = [r for r in records if r["kind"] == "payload"]
    assert (hit["file"], hit["stream"], hit["severity"]) == (str(where), "/orders/1", "damage")
    assert run("--data-dir", data, "verify").status in (OK, FOUND), (
        "not deep: payloads are not read"
    )
    assert run("--data-dir", data, "verify", "--deep", "log").status in (OK, FOUND)
    assert run("--data-dir", data, "verify", "--deep", "/orders/1").status == CORRUPT
    assert run("--data-dir", data, "verify", "nothing").status == NO_INPUT


def test_beside_a_server_at_work_nothing_is_reported(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={**SMALL, "engine.segment_bytes_max": 2000}) as daemon:
        done = threading.Event()

        def write() -> None:
            with httpx.Client(base_url=daemon.url) as client:
                number = 0
                while not done.is_set():
                    name = f"/v1/stream/load-{number % 7}"
                    if number % 7 == number % 50:
                        client.delete(name)
                        client.put(name, headers={"Content-Type": "text/plain"})
                    client.post(name, content=b"x" * 300, headers={"Content-Type": "text/plain"})
                    number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(6):
                result = run("--data-dir", tmp_path / "data", "verify", "--deep", "--jobs", "1")
                assert result.status == OK, result.text
                assert "daemon is running" in result.err
        finally:
            done.set()
            writer.join()
        for command in (["repair"], ["reindex"], ["gc"], ["repair", "--apply", "--yes"]):
            assert run("--data-dir", tmp_path / "data", *command).status == LOCKED


def test_a_clean_directory_is_said_to_be_so_with_how_much_was_checked(data: Path) -> None:
    run("--data-dir", data, "repair", "--apply", "--yes")
    for options, end in (["--deep"], " s\n"), ([], "; --deep reads the data, too\n"):
        said = run("--data-dir", data, "verify", *options).err
        assert said.startswith("dsadmin: clean: 8 streams, ")
        assert re.search(r" segments, [0-9.]+ KiB read, [0-9]+ journal records?, ", said)
        assert said.endswith(end)
    said = run("--data-dir", data, "verify", "log").err
    assert said.startswith("dsadmin: clean: 1 stream, ")


@pytest.mark.parametrize("fault", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("place", ["journal", "catalog", "DURASTREAMD"])
@pytest.mark.parametrize("operation", ["open", "pread", "names"])
def test_what_speaks_of_all_streams_and_cannot_be_read_ends_everything(
    data: Path, fault: int, place: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole: nothing is called lost, and nothing is moved."""
    if operation == "names" and place == "DURASTREAMD":
        return
    before = tree(data)
    refusing(monkeypatch, operation, place, fault)
    status = NO_PERMISSION if fault == errno.EACCES else IO_ERROR
    for command in (["verify", "--deep"], ["repair"], ["repair", "--apply", "--yes"], ["reindex"]):
        result = run("--data-dir", data, *command)
        assert result.status == status, (command, result.err)
        assert place in result.err
        assert not result.lines
    assert tree(data) == before


def test_a_directory_that_may_not_be_read_is_not_called_another_s(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    result = run("--data-dir", data, "verify")
    assert result.status == NO_PERMISSION
    assert result.err.startswith(f"dsadmin: {data}")


def refusing(monkeypatch: pytest.MonkeyPatch, operation: str, place: str, fault: int) -> None:
    """Have the disk refuse one operation on whatever has a name in its path."""
    opened: dict[int, str] = {}
    real_open, real = RealDisk.open, getattr(RealDisk, operation)

    def refuse(disk: RealDisk, what: str | int, *rest: object, **options: object) -> object:
        path = opened.get(what, "") if isinstance(what, int) else what
        if path.startswith(place):
            named = None if operation == "pread" else str(path)
            raise OSError(fault, os.strerror(fault), named)
        return real(disk, what, *rest, **options)

    def remember(disk: RealDisk, path: str, **options: bool) -> int:
        handle = real_open(disk, path, **options)
        opened[handle] = path
        return handle

    monkeypatch.setattr(RealDisk, "open", remember)
    monkeypatch.setattr(RealDisk, operation, refuse)


# --- repair ---


def zero_frames(data: Path) -> None:
    """Lose several frames in the middle of the journal: the server refuses to start on that."""
    path = max((data / "journal").iterdir())
    raw = bytearray(path.read_bytes())
    places = [at for at in range(len(raw)) if raw.startswith(fmt.FRAME_MAGIC, at)]
    low, high = places[len(places) // 2], places[len(places) // 2 + 3]
    raw[low:high] = bytes(high - low)
    path.write_bytes(raw)


def lose_catalogue(data: Path) -> None:
    for path in (data / "catalog").iterdir():
        path.unlink()


def everything(data: Path) -> None:
    for name, harm in HARM.items():
        if name != "everything":
            harm(data)


HARM: dict[str, Callable[[Path], None]] = {
    "segment": lambda data: flip(first_segment(data), 700),
    "journal": zero_frames,
    "catalogue": lose_catalogue,
    "identity": lambda data: flip(data / "DURASTREAMD", 40),
    "index": lambda data: first_segment(data).with_suffix(".idx").unlink(),
    "everything": everything,
}


@pytest.mark.parametrize("kind", HARM)
def test_the_daemon_starts_after_the_repair(
    kind: str, data: Path, daemon: Daemon, tmp_path: Path
) -> None:
    expected = served(daemon)
    HARM[kind](data)
    before = tree(data)
    assert run("--data-dir", data, "verify", "--deep").status == CORRUPT
    chosen = ("--unproven", "take")
    plan = run("--data-dir", data, "repair", *chosen)
    assert plan.status == CORRUPT
    assert tree(data) == before
    done = run("--data-dir", data, "repair", "--apply", "--yes", *chosen)
    assert done.status == OK, done.err
    assert done.lines[: len(plan.lines)] == plan.lines
    again = run("--data-dir", data, "repair", "--apply", "--yes")
    assert (again.status, again.lines) == (OK, [])
    assert run("--data-dir", data, "verify", "--deep").status == OK
    after = set(tree(data).values())
    assert set(before.values()) <= after, "every original is there still"
    with Daemon(tmp_path, settings=SMALL) as mended:
        for name, found in served(mended).items():
            content = expected[name]
            if f"/{name}" not in plan.text and kind != "journal" and kind != "everything":
                assert found == content, name
            elif kind != "journal" and kind != "everything":
                assert is_run_of(found, content), name
        headers = {"Producer-Id": "p 1", "Producer-Epoch": "0", "Producer-Seq": "5"}
        with httpx.Client(verify=False) as client:
            retry = client.post(
                mended.stream("orders/1"), json=[1], headers={"Content-Type": JSON, **headers}
            )
        assert retry.status_code == 204, "a retry of long ago is recognised"


def test_a_repair_is_asked_for_and_can_be_undone(data: Path) -> None:
    flip(first_segment(data), 700)
    before = tree(data)
    assert run("--data-dir", data, "repair", "--apply").status == USAGE
    assert tree(data) == before
    done = run("--json", "--data-dir", data, "repair", "--apply", "--yes").records
    (end,) = [record for record in done if record["type"] == "done"]
    (plan,) = [record for record in done if record["type"] == "plan"]
    assert "/orders/1" in [told["stream"] for told in plan["affected"]]  # type: ignore[attr-defined]
    undo = str(end["undo"]).split()
    assert undo[0] == "dsadmin"
    assert run(*undo[1:]).status == OK
    assert {k: v for k, v in tree(data).items() if "quarantine" not in k} == before
    assert run("--data-dir", data, "repair", "--undo", "repair-0001").status == USAGE
    assert (
        run("--data-dir", data, "repair", "--undo", "no-1", "--apply", "--yes").status == NO_INPUT
    )


def test_the_operator_chooses_what_a_stream_keeps(data: Path, tmp_path: Path) -> None:
    """The plan says what stays, what goes, and the very option that chooses otherwise."""
    flip(first_segment(data), 700)
    plan = run("--data-dir", data, "repair")
    assert plan.lines[0].startswith(f"plan for {data}: 8 streams: 6 untouched, 2 kept in part")
    at = next(n for n, line in enumerate(plan.lines) if line.startswith("/orders/1: keeps "))
    assert " messages" in plan.lines[at]
    assert plan.lines[at + 1].startswith("  lost: ")
    assert plan.lines[at + 2].startswith("  given up with it, though whole: ")
    options = [line.split()[1:3] for line in plan.lines if line.startswith("  otherwise: ")]
    (chosen,) = [option for option in options if option[1].startswith("/orders/1=")]
    side = chosen[1].partition("=")[2]
    assert run("--data-dir", data, "repair", "--keep", "most").status == USAGE
    assert run("--data-dir", data, "repair", "--keep", "nobody=older").status == NO_INPUT
    records = run("--json", "--data-dir", data, "repair", *chosen).records
    (told,) = [t for t in records[0]["affected"] if t["stream"] == "/orders/1"]  # type: ignore[attr-defined]
    assert told["keep"] == side
    for choice in (chosen, ["--keep", "older", "--keep", "fork=newer"]):
        copy = tmp_path / choice[-1].replace("/", "_")
        shutil.copytree(data, copy)
        done = run("--data-dir", copy, "repair", *choice, "--apply", "--yes")
        assert done.status == OK, done.err
        assert run("--data-dir", copy, "verify", "--deep").status == OK


def test_a_stream_with_a_loss_says_so(data: Path, tmp_path: Path) -> None:
    flip(first_segment(data), 700)
    run("--data-dir", data, "repair", "--keep", "newer", "--apply", "--yes")
    info = run("--json", "--data-dir", data, "info", "/orders/1").records[0]
    first = str(info["first_offset"])
    shown = run("--data-dir", data, "cat", "/orders/1", "--from", "-1")
    assert shown.status == NO_INPUT
    assert "was lost and repaired without" in shown.err
    where = run("--data-dir", data, "decode-offset", "100", "/orders/1")
    assert "was lost and repaired without" in where.text
    with Daemon(tmp_path, settings=SMALL) as mended:
        url = mended.stream("orders/1")
        reply = httpx.get(url, params={"offset": "-1"})
        assert (reply.status_code, reply.json()["reason"]) == (410, "DATA_LOST")
        assert reply.headers["Stream-Next-Offset"] == first
        tail = run("tail", "--from", "-1", "--no-follow", url)
        assert tail.status == NO_INPUT
        assert f"what lies before {first} was lost" in tail.err
    carried = tmp_path / "carried"
    dumped = tmp_path / "all.cbor"
    run("--data-dir", data, "export", "--format", "cbor", "--output", dumped, "--all")
    assert run("--data-dir", carried, "import", "--init", "--input", dumped).status == OK
    told = run("--data-dir", carried, "cat", "/orders/1", "--from", "-1")
    assert "was lost and repaired without" in told.err


def test_a_directory_of_a_newer_version_is_left_alone(data: Path) -> None:

    body = f"durastreamd\nformat 2\nuuid {'ab' * 16}\n"
    text = f"{body}sum {digest(body.encode(), 0):016x}\n"
    (data / "DURASTREAMD").write_text(text)
    before = tree(data)
    assert run("--data-dir", data, "repair", "--apply", "--yes").status == NO_INPUT
    assert tree(data) == before


# --- reindex, gc ---


def test_reindex_writes_indexes_again_and_nothing_is_lost(data: Path) -> None:
    expected = run("--data-dir", data, "cat", "/orders/1").out
    nothing = run("--data-dir", data, "reindex")
    assert (nothing.status, nothing.lines) == (OK, [])
    first_segment(data).with_suffix(".idx").unlink()
    assert run("--data-dir", data, "reindex").status == CORRUPT
    asked = run("--data-dir", data, "reindex", "--apply", "--yes")
    assert asked.status == USAGE, "no entry vouches for the bytes any more"
    result = run("--data-dir", data, "reindex", "--apply", "--yes", "--unproven", "take")
    assert result.status == OK, result.err
    assert run("--data-dir", data, "verify", "--deep").status == OK
    assert run("--data-dir", data, "cat", "/orders/1").out == expected
    named = run("--data-dir", data, "reindex", "log", "--apply", "--yes", "--verbose")
    assert named.status == OK, named.err
    assert any(line.startswith("write: streams/") for line in named.lines)
    assert run("--data-dir", data, "verify", "--deep").status == OK
    flip(first_segment(data), 300)
    assert run("--data-dir", data, "reindex", "/orders/1").status == CORRUPT


def test_bytes_that_nothing_proves_wait_for_a_word(data: Path) -> None:
    """The plan says what each word keeps; without one nothing is changed."""
    expected = run("--data-dir", data, "cat", "/orders/1").out
    first_segment(data).with_suffix(".idx").unlink()
    before = tree(data)
    plan = run("--data-dir", data, "repair")
    assert plan.status == CORRUPT
    assert "2 for you to decide" in plan.lines[0]
    assert any("/orders/1: " in line and " are proven" in line for line in plan.lines)
    assert any("without proof, its checksums are lost: " in line for line in plan.lines)
    for line in [line for line in plan.lines if "--unproven" in line]:
        assert line.startswith("  otherwise: --unproven /orders/1=take keeps ")
    assert "nothing is lost" not in plan.text
    assert "before --apply, 1 stream has bytes that nothing proves" in plan.err
    refused = run("--data-dir", data, "repair", "--apply", "--yes")
    assert refused.status == USAGE
    assert "--unproven drop" in refused.err
    assert tree(data) == before
    assert run("--data-dir", data, "repair", "--unproven", "keep").status == USAGE
    affected = json.loads(run("--json", "--data-dir", data, "repair").text)["affected"]
    (one,) = [one for one in affected if one["stream"] == "/orders/1"]
    assert one["outcome"] == "undecided"
    assert one["without_proof"]
    assert one["if_taken"] == [0, one["bytes_before"]]
    taken = run("--data-dir", data, "repair", "--apply", "--yes", "--unproven", "orders/1=take")
    assert taken.status == OK, taken.err
    assert "taken without proof" in taken.text
    assert run("--data-dir", data, "cat", "/orders/1").out == expected
    manifest = json.loads((data / "quarantine/repair-0001/manifest.json").read_text())
    assert manifest["unproven"]["/orders/1"] == one["without_proof"]


def test_names_of_files_that_are_no_text_are_shown_moved_and_brought_back(data: Path) -> None:
    """Bytes that are no UTF-8, a sequence that would drive a terminal, a name as long as can be."""
    for name in (b"\xff\xfe \x1b[31m\n.jnl", b"\xff" + b"n" * 250):
        (data / os.fsdecode(name)).touch()
    before = tree(data)
    for command in (("verify",), ("repair", "--verbose")):
        plain = run("--data-dir", data, *command)
        assert plain.status == FOUND
        assert "\x1b" not in plain.text
        assert "\\udcff\\udcfe \\x1b[31m\\n.jnl" in plain.text
        assert run("--json", "--data-dir", data, *command).records
    assert run("--data-dir", data, "repair", "--apply", "--yes").status == OK
    undo = ("repair", "--undo", "repair-0001", "--apply", "--yes")
    assert run("--data-dir", data, *undo).status == OK
    assert {p: sums for p, sums in tree(data).items() if "quarantine" not in p} == before


def test_gc_removes_what_nothing_refers_to_and_only_that(data: Path) -> None:
    run("--data-dir", data, "repair", "--apply", "--yes")
    assert run("--data-dir", data, "verify").status == OK
    whole_tree = tree(data)
    (data / "alien").write_text("mine")
    orphan = data / fmt.stream_dir(2**40)
    orphan.parent.mkdir(exist_ok=True)
    orphan.mkdir()
    # The id is above every other, and no create record names it.
    (orphan / f"{0:016d}.log").write_bytes(b"left over")
    (data / "catalog" / f"{9:016d}.cat.new").write_bytes(b"draft")
    plan = run("--data-dir", data, "gc")
    assert len(plan.lines) == 2
    assert (orphan / f"{0:016d}.log").exists()
    assert run("--data-dir", data, "gc", "--apply", "--yes").status == OK
    assert not orphan.exists()
    assert {k: v for k, v in tree(data).items() if k != "alien"} == whole_tree
    assert (data / "alien").exists()


def test_gc_removes_old_quarantine_on_request(data: Path) -> None:
    flip(first_segment(data), 700)
    run("--data-dir", data, "repair", "--apply", "--yes")
    young = run("--data-dir", data, "gc", "--quarantine-older-than", "30")
    assert young.lines == []
    result = run("--data-dir", data, "gc", "--quarantine-older-than", "0", "--apply", "--yes")
    assert result.status == OK
    assert os.listdir(data / "quarantine") == []
    assert run("--data-dir", data, "verify", "--deep").status == OK


def test_gc_touches_nothing_while_there_is_damage(data: Path) -> None:
    lose_catalogue(data)
    before = tree(data)
    assert run("--data-dir", data, "gc", "--apply", "--yes").status == CORRUPT
    assert tree(data) == before
