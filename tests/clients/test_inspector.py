"""The inspector as a person has it: a real browser on a real server."""

import json
from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import Program
from tests.clients.test_browser import CHROMIUM
from tests.service.guards import line
from tests.support.daemon import Daemon
from tools.node import Node

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="not run: no Chromium"),
]

JSON = {"Content-Type": "application/json"}
EVIL = '<img src=x onerror="window.ran=1"><b class=evil>x</b><script>window.ran=2</script>\u202e'


def run(
    node: Node, daemon: Daemon, scenario: str, *kinds: str, token: str = ""
) -> dict[str, object]:
    """Run a scenario to its end; return all that it told."""
    found: dict[str, object] = {}
    with Program(node.script("inspector.mjs", scenario, daemon.url, token)) as browser:
        for kind in (*kinds, "errors"):
            found |= browser.told(kind)
    assert found["errors"] == []
    return found


@pytest.fixture
def filled(daemon: Daemon) -> Daemon:
    """A server with a stream of thirty messages."""
    body = json.dumps([{"n": number, "in": {"a": [1, None]}} for number in range(30)])
    assert httpx.put(daemon.stream("json"), headers=JSON, content=body).status_code == 201
    return daemon


def test_every_page_fits_a_telephone_and_a_desk(filled: Daemon, prepared_node: Node) -> None:
    httpx.put(f"{filled.url}/agents")
    httpx.put(f"{filled.url}/agents/run", headers={"Content-Type": "text/plain"}, content="x")
    told = run(prepared_node, filled, "pages", "seen", "streams")
    assert set(told["seen"].values()) == {True}  # type: ignore[attr-defined]
    for words in ("Ready", "appends per second", "disk left", "recovery of this start"):
        assert words in str(told["overview"])
    assert "/v1/stream/json" in str(told["streams"])
    assert "/agents/run" in str(told["streams"])


def test_hostile_names_and_messages_are_data(daemon: Daemon, prepared_node: Node) -> None:
    url = httpx.URL(daemon.url, path="/v1/stream/" + EVIL[:60])
    body = json.dumps([EVIL, {EVIL: EVIL}, "</script>"])
    assert httpx.put(url, headers=JSON, content=body).status_code == 201
    told = run(prepared_node, daemon, "hostile", "name")
    assert (told["tags"], told["ran"]) == (0, "undefined")
    assert "<img" in str(told["name"])
    assert "</script>" in str(told["text"])


def test_a_fast_stream_is_followed_in_a_window(daemon: Daemon, prepared_node: Node) -> None:
    stream = daemon.stream("fast")
    assert httpx.put(stream, headers=JSON).status_code == 201
    with Program(prepared_node.script("inspector.mjs", "live", daemon.url)) as browser:
        browser.told("following")
        with httpx.Client() as client:
            for number in range(50):
                many = json.dumps([{"n": number, "i": each} for each in range(100)])
                assert client.post(stream, headers=JSON, content=many).status_code == 204
            assert client.post(stream, headers=JSON, content='{"last": 1}').status_code == 204
        seen = browser.told("most")
        assert browser.told("errors")["errors"] == []
    assert int(str(seen["most"])) < 60, "only rows in sight are elements"
    assert "the last 2,000 are kept" in str(seen["said"])


def test_a_damaged_stream_is_told_with_the_server_s_words(
    filled: Daemon, prepared_node: Node
) -> None:
    filled.terminate()
    [segment] = (filled.home / "data" / "streams").rglob("*.log")
    rotten = bytearray(segment.read_bytes())
    rotten[100] ^= 1
    segment.write_bytes(rotten)
    filled.start()
    told = run(prepared_node, filled, "damaged", "said")
    assert "STREAM_DAMAGED" in str(told["said"])
    assert "/v1/stream/json" in str(told["overview"])


def test_the_keyboard_is_enough(filled: Daemon, prepared_node: Node) -> None:
    told = run(prepared_node, filled, "keys", "chosen")
    assert '"n": 1,' in str(told["chosen"])
    assert '"n": 29,' in str(told["last"])


def test_writing_asks_for_the_name_before_it_deletes(daemon: Daemon, prepared_node: Node) -> None:
    told = run(prepared_node, daemon, "write", "row", "refused", "deleted")
    assert told["row"] == '{"written": "here"}'
    assert "not that of this stream" in str(told["refused"])
    assert httpx.head(daemon.stream("made here")).status_code == 404


def test_a_token_shows_what_it_may_and_says_what_it_may_not(
    tmp_path: Path, prepared_node: Node
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(line("root", "scopes=read,write") + line("reader", "scopes=read"))
    with Daemon(tmp_path, settings={"access.tokens_file": str(tokens)}) as daemon:
        head = {**JSON, "Authorization": "Bearer root"}
        made = httpx.put(daemon.stream("json"), headers=head, content="[1, 2]")
        assert made.status_code == 201
        told = run(prepared_node, daemon, "token", "without", token="reader")
    assert "401" in str(told["without"])
    assert told["rows"] == 1
    assert "403" in str(told["refused"])
    assert "403" in str(told["append"])
