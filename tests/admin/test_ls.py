"""ls and info say what is there."""

from pathlib import Path

import httpx
import pytest
from rich.text import Text

from durastreamd.kit.status import NO_INPUT, OK
from tests.admin.harness import ROUNDS, run
from tests.support.daemon import Daemon

ALL = [
    "/blob", "/cut", "/fork", "/log", "/none", "/orders/1", "/part", "team/a b",
]  # fmt: skip


def names(*arguments: str | Path) -> list[str]:
    return [str(record["name"]) for record in run(*arguments, "--json").records]


def test_every_stream_is_listed_in_name_order(original: Path) -> None:
    assert names("--data-dir", original, "ls") == ALL
    assert names("--data-dir", original, "ls", "--reverse") == ALL[::-1]
    heading, *lines = run("--data-dir", original, "ls").lines
    assert heading.split() == ["NAME", "STATE", "BYTES", "MESSAGES", "WRITTEN", "TYPE"]
    assert [line.split("  ")[0] for line in lines] == ALL
    assert len({line.index("20") for line in lines if "Z" in line}) > 0


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (["team/"], ["team/a b"]),
        (["--bucket", "team"], ["team/a b"]),
        (["--bucket", "team", "b"], []),
        (["or"], ["/orders/1"]),
        (["/or"], ["/orders/1"]),
        (["--state", "closed"], ["/cut"]),
        (["--state", "expired"], []),
        (["--sort", "messages", "o"], ["/orders/1"]),
    ],
)
def test_what_is_asked_for_is_listed(original: Path, chosen: list[str], found: list[str]) -> None:
    assert names("--data-dir", original, "ls", *chosen) == found


def test_numbers_sort_the_largest_first(original: Path) -> None:
    for key, member in (("bytes", "bytes"), ("messages", "messages"), ("mtime", "written")):
        values = [
            r[member] for r in run("--data-dir", original, "ls", "--sort", key, "--json").records
        ]
        assert values == sorted(values, reverse=True), key  # type: ignore[type-var]


def test_counts_are_the_servers(daemon: Daemon) -> None:
    for record in run("--data-dir", daemon.home / "data", "ls", "/", "--json").records:
        head = httpx.head(daemon.stream(str(record["name"]).lstrip("/"))).headers
        assert record["messages"] == int(head["Stream-Message-Count"])
        assert record["next_offset"] == head["Stream-Next-Offset"]
        assert record["content_type"] == head["Content-Type"]
        assert (record["state"] == "closed") == ("Stream-Closed" in head)


def test_buckets_are_listed_on_request(original: Path) -> None:
    (bucket,) = run("--data-dir", original, "ls", "--buckets", "--json").records
    assert (bucket["bucket"], bucket["streams"]) == ("team", 1)
    unknown = run("--data-dir", original, "ls", "--bucket", "tea")
    assert (unknown.status, unknown.out) == (NO_INPUT, b"")


def test_an_expired_and_a_deleted_stream_are_told_apart(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"streams.sweep_s": 3600}) as daemon:
        old = {"Stream-Expires-At": "2020-01-01T00:00:00Z"}
        httpx.put(daemon.stream("old"), content=b"x", headers=old).raise_for_status()
        httpx.put(daemon.stream("source"), content=b"x").raise_for_status()
        fork = {"Stream-Forked-From": "/v1/stream/source"}
        httpx.put(daemon.stream("fork"), headers=fork).raise_for_status()
        httpx.delete(daemon.stream("source")).raise_for_status()
        daemon.kill9()
    listed = run("--data-dir", tmp_path / "data", "ls", "--json").records
    assert {r["name"]: r["state"] for r in listed} == {
        "/old": "expired", "/source": "gone", "/fork": "open",
    }  # fmt: skip
    assert run("--data-dir", tmp_path / "data", "ls", "--state", "gone").lines[1].startswith("/sou")
    for name, word in (("old", "expired"), ("source", "deleted")):
        found = run("--data-dir", tmp_path / "data", "cat", name)
        assert (found.out, word in found.err) == (b"x", True)


def test_a_terminal_gets_colours_and_a_total(original: Path) -> None:
    found = run("--data-dir", original, "--color", "always", "ls")
    assert "\x1b[1mNAME" in found.text
    assert found.lines[-1].startswith("8 streams, ")
    assert "\x1b" not in run("--data-dir", original, "ls").text


def test_info_tells_of_segments_producers_forks_and_snapshots(original: Path) -> None:
    (orders,) = run("--data-dir", original, "info", "orders/1", "--json").records
    assert orders["producers"] == [{"id": "p 1", "epoch": 0, "seq": ROUNDS - 1}]
    (fork,) = orders["forks"]  # type: ignore[misc]
    assert fork["name"] == "/fork"  # type: ignore[has-type]
    segments = orders["segments"]
    assert isinstance(segments, list)
    assert len(segments) > 1
    assert [s["next_offset"] for s in segments[:-1]] == [s["offset"] for s in segments[1:]]
    journal = orders["journal"]
    assert isinstance(journal, dict)
    assert sum(s["records"] for s in segments) + journal["records"] == 1 + ROUNDS
    assert sum(s["bytes"] for s in segments) + journal["bytes"] == orders["bytes"]
    (copy,) = run("--data-dir", original, "info", "/v1/stream/fork", "--json").records
    assert copy["fork_of"] == {
        "name": "/orders/1",
        "id": orders["id"],
        "offset": fork["offset"],  # type: ignore[has-type]
        "asked_offset": fork["offset"],  # type: ignore[has-type]
        "asked_sub_offset": 0,
    }
    (log,) = run("--data-dir", original, "info", "log", "--json").records
    blob = log["snapshot"]
    assert isinstance(blob, dict)
    assert (blob["bytes"], blob["present"], blob["offset"]) == (6, True, log["first_offset"])


def test_info_is_readable(original: Path) -> None:
    text = run("--data-dir", original, "info", "log").text
    for part in ("name          /log\n", "state         open\n", "snapshot      00000", "SEGMENT "):
        assert part in text
    ttl = run("--data-dir", original, "info", "team/a b").text
    assert "lifetime      600 s after the last access, now until 20" in ttl
    assert "fork of       /orders/1 at 0" in run("--data-dir", original, "info", "fork").text


def test_info_names_damage_and_goes_on(data: Path) -> None:
    index = data / "streams/01/0000000000000001/0000000000000000.idx"
    raw = bytearray(index.read_bytes())
    raw[200] ^= 1
    index.write_bytes(raw)
    found = run("--data-dir", data, "info", "orders/1")
    assert found.status == 0
    assert f"{index.relative_to(data)}:" in found.text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [("ls",), ("ls", "--buckets"), ("info", "/orders/1")])
def test_tables_fit_a_terminal(
    original: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = run("--color", "always", "--data-dir", original, *command)
    assert found.status == OK
    assert max(len(Text.from_ansi(line).plain) for line in found.lines) <= width
