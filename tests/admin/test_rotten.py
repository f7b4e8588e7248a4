"""Rot at rest: no command hands it on, and each says where it is."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, OK
from tests.admin.harness import Result, run

HARMS: dict[str, Callable[[bytearray, bytes], None]] = {
    "flipped": lambda data, _: data.__setitem__(-30, data[-30] ^ 1),
    "zeroed": lambda data, _: data.__setitem__(slice(-60, -20), bytes(40)),
    "another stream's": lambda data, other: data.__setitem__(slice(None), other),
    "short": lambda data, _: data.__delitem__(slice(-20, None)),
}
NAME = "orders/1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two streams, each with a segment at rest and the beginning of another."""
    (tmp_path / "data").mkdir()
    settings = f'[server]\ndata_dir = "{tmp_path}/data"\n[engine]\nsegment_bytes_max = 3000\n'
    (tmp_path / "small.toml").write_text(settings)
    here = ("--config", tmp_path / "small.toml")
    for key, kind in ((NAME, b"one"), ("other/1", b"two")):
        lines = b"".join(b'{"n":%d,"of":"%s"}\n' % (n, kind) for n in range(500))
        (tmp_path / "lines").write_bytes(lines)
        take = ("import", "--init", "--format", "ndjson", "--input", tmp_path / "lines")
        assert run(*here, *take, "--stream", key).status == OK
    return tmp_path / "data"


def spoilt(data: Path, suffix: str, harm: str) -> str:
    """Damage the first segment of the first stream; return its directory and name."""
    path = min((data / "streams/01").rglob(f"*{suffix}"))
    content = bytearray(path.read_bytes())
    HARMS[harm](content, min((data / "streams/02").rglob(f"*{suffix}")).read_bytes())
    path.write_bytes(content)
    return str(path.relative_to(data))[: -len(suffix)]


def check(found: Result, place: str) -> None:
    assert found.status == CORRUPT
    assert place in found.err


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("harm", HARMS)
def test_rot_at_rest_is_refused_and_named(
    data: Path, tmp_path: Path, harm: str, suffix: str
) -> None:
    here = ("--data-dir", data)
    true = run(*here, "cat", NAME)
    assert true.status == OK
    assert len(list((data / "streams/01").rglob("*.idx"))) > 1, "the first is at rest"
    place = spoilt(data, suffix, harm)
    found = run(*here, "cat", NAME)
    check(found, place)
    assert true.out.startswith(found.out)
    check(run(*here, "export", NAME, "--output", tmp_path / "out"), place)
    assert not (tmp_path / "out").exists()
    check(run(*here, "backup", tmp_path / "copy"), place)
    holds_nothing_but_the_truth(tmp_path / "copy", true.out, tmp_path)
    verified = run(*here, "verify", "--deep")
    assert verified.status == CORRUPT
    assert place in verified.text


def holds_nothing_but_the_truth(copy: Path, true: bytes, tmp_path: Path) -> None:
    """A backup of rot verifies, and so does what is restored from it; it serves a part, no more."""
    for root in (copy, tmp_path / "restored"):
        if root != copy:
            assert run("--data-dir", root, "restore", copy).status == OK
        assert run("--data-dir", root, "verify", "--deep").status == OK
        assert run("--data-dir", root, "repair").status == OK, "nothing is left to do"
        kept = run("--data-dir", root, "cat", NAME)
        assert kept.status == OK
        assert kept.out.strip(b"[]") in true
        whole = run("--data-dir", root, "cat", "other/1")
        assert (whole.status, len(whole.out) > 1000) == (OK, True)
    assert run("backup", "--verify", copy).status == OK
    assert list((copy / "quarantine/repair-0001/old/streams/01").rglob("*.*"))


ODD: dict[str, Callable[[Path], object]] = {
    "missing": lambda _: None,
    "a directory": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("oddness", ODD)
def test_a_backup_leaves_out_what_is_no_file_and_says_so(
    data: Path, tmp_path: Path, oddness: str, suffix: str
) -> None:
    path = min((data / "streams/01").rglob(f"*{suffix}"))
    path.unlink()
    ODD[oddness](path)
    found = run("--data-dir", data, "backup", tmp_path / "copy")
    check(found, str(path.parent.relative_to(data)))
    kept = run("--data-dir", tmp_path / "copy", "cat", "other/1")
    assert (kept.status, len(kept.out) > 1000) == (OK, True)
    assert run("--data-dir", data, "backup", "--verify", tmp_path / "copy").status == OK


def test_the_bar_of_a_backup_knows_how_much_there_is(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []
    done: Counter[str] = Counter()

    @contextmanager
    def working(_console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
        told.append((what, total))
        yield lambda count: done.update({what: count})

    monkeypatch.setattr(Console, "working", working)
    for _ in range(2):  # the second links what the first has
        told.clear()
        done.clear()
        assert run("--data-dir", data, "backup", tmp_path / "copy").status == OK
        assert [what for what, _ in told] == ["backup", "verify"]
        assert dict(told) == done
    streams = sum(path.stat().st_size for path in (data / "streams").rglob("*.*"))
    assert told[0][1] == streams
