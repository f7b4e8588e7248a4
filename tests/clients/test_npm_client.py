"""The public npm client, @durable-streams/client, against the real daemon."""

import httpx
import pytest

from tests.clients.conftest import Program
from tests.support.daemon import Daemon
from tools.node import Node

pytestmark = [pytest.mark.system, pytest.mark.slow]

COUNT = 500


def test_create_append_read_head_and_delete_work(daemon: Daemon, prepared_node: Node) -> None:
    with Program(prepared_node.script("client.mjs", "basics", daemon.stream("npm"))) as client:
        said = client.told("read")
    assert said["read"] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert said["contentType"] == "application/json"
    assert said["offset"]
    assert said["after"] == 404


@pytest.mark.parametrize("mode", ["long-poll", "sse"])
def test_a_live_reader_sees_every_append_and_then_the_end(
    daemon: Daemon, prepared_node: Node, mode: str
) -> None:
    url = daemon.stream("npm")
    with Program(prepared_node.script("client.mjs", "live", url, mode)) as client:
        client.told("following")
        for word in ("one", "two", "three"):
            assert httpx.post(url, json=[word]).status_code == 204
        ended = httpx.post(url, json=["last"], headers={"Stream-Closed": "true"})
        assert ended.status_code == 204
        said = client.told("seen")
    assert said["seen"] == ["early", "one", "two", "three", "last"]
    assert said["streamClosed"] is True


def test_binary_data_come_through_sse_byte_for_byte(daemon: Daemon, prepared_node: Node) -> None:
    with Program(prepared_node.script("client.mjs", "binary", daemon.stream("npm"))) as client:
        assert client.told("seen")["seen"] == list(range(256))


def test_append_stream_sends_a_body_of_unknown_length(daemon: Daemon, prepared_node: Node) -> None:
    with Program(prepared_node.script("client.mjs", "upload", daemon.stream("npm"))) as client:
        assert client.told("text")["text"] == "one two three"


def test_a_producer_loses_and_doubles_nothing_when_the_server_is_killed(
    daemon: Daemon, prepared_node: Node
) -> None:
    url = daemon.stream("npm")
    with Program(prepared_node.script("client.mjs", "producer", url, str(COUNT))) as client:
        for sent in range(100, COUNT + 1, 100):
            assert client.told("sent")["sent"] == sent
            if sent in (100, 300):  # What comes next goes to a server that is not there.
                daemon.kill9()
            elif daemon.process is None:
                daemon.start()
        said = client.told("finalOffset")
    assert said["errors"] == []
    assert said["repeats"] != 0
    assert httpx.get(url, params={"offset": "-1"}).json() == list(range(COUNT))
    closed = httpx.post(url, json=["late"])
    assert (closed.status_code, closed.headers["Stream-Closed"]) == (409, "true")
