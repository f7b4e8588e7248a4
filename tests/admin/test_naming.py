"""Every way to name a stream that the manual promises, in every command that takes one."""

from pathlib import Path

import pytest

from durastreamd.kit.status import CORRUPT, FOUND, NO_INPUT, OK
from tests.admin.harness import run

COMMANDS = {
    "info": ("info", "{}"),
    "cat": ("cat", "{}"),
    "dump": ("dump", "{}"),
    "decode-offset": ("decode-offset", "0", "{}"),
    "verify": ("verify", "{}"),
    "verify --deep": ("verify", "--deep", "{}"),
    "repair --keep": ("repair", "--keep", "{}=older"),
    "reindex": ("reindex", "{}"),
    "export": ("export", "{}"),
}
WAYS = {
    "of a path": (
        "/orders/1",
        "orders/1",
        "/v1/stream/orders/1",
        "http://127.0.0.1:4437/v1/stream/orders/1",
        "https://streams.example/v1/stream/orders/1",
    ),
    "in a bucket": (
        "team/a b",
        "/team/a%20b",
        "http://127.0.0.1:4437/team/a%20b",
    ),
}


def said(data: Path, command: str, name: str) -> tuple[int, list[str]]:
    """Run a command on a stream; return its status, and its output but for the time of looking."""
    words = [word.replace("{}", name) for word in COMMANDS[command]]
    found = run("--data-dir", data, *words)
    assert found.status in (OK, FOUND, CORRUPT), found.err
    lines = [line for line in found.lines if not line.startswith("lifetime ")]
    return found.status, lines


def ids(data: Path) -> dict[str, str]:
    rows = run("--data-dir", data, "ls", "--json").records
    return {str(row["name"]): str(row["id"]) for row in rows}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_way_names_the_same_stream(original: Path, command: str, way: str) -> None:
    first, *others = WAYS[way]
    expected = said(original, command, first)
    for name in (*others, ids(original)[first]):
        assert said(original, command, name) == expected, name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["orders/2", "/v1/stream/nothing", "00000000000000ff"])
def test_a_name_of_no_stream_is_told(data: Path, command: str, name: str) -> None:
    if command == "repair --keep":  # names are looked up where there is something to repair
        next(data.glob("catalog/*.cat")).unlink()
    words = [word.replace("{}", name) for word in COMMANDS[command]]
    found = run("--data-dir", data, *words)
    assert found.status == NO_INPUT
    assert name in found.err
