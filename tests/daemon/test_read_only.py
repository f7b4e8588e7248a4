"""A copy is served as it is: every read answered, every write refused, not a byte changed."""

import hashlib
import shutil
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import MockClock

from durastreamd.streams.registry import Streams
from tests.support.daemon import Daemon
from tests.support.held_writer import Bench, reopen
from tests.support.patience import wait_until

pytestmark = [pytest.mark.system]

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
WRITES = [
    ("PUT", "/v1/stream/text"),
    ("PUT", "/v1/stream/new"),
    ("POST", "/v1/stream/text"),
    ("DELETE", "/v1/stream/text"),
    ("PUT", "/agents"),
    ("DELETE", "/agents"),
    ("PUT", "/agents/run"),
    ("POST", "/agents/run"),
    ("PUT", "/agents/run/snapshot/0000000000000003"),
    ("DELETE", "/agents/run/snapshot/0000000000000003"),
]


def write(client: httpx.Client) -> None:
    """Do one of everything."""
    for method, path, head, body in (
        ("PUT", "/v1/stream/text", TEXT, b"first "),
        ("POST", "/v1/stream/text", TEXT, b"second"),
        ("PUT", "/v1/stream/json", JSON, b"[1, 2]"),
        ("PUT", "/v1/stream/ttl", {**TEXT, "Stream-TTL": "2"}, b"soon gone"),
        ("PUT", "/v1/stream/lasting", {**TEXT, "Stream-TTL": "3600"}, b"for an hour"),
        ("PUT", "/v1/stream/closed", {**TEXT, "Stream-Closed": "true"}, b"shut"),
        ("PUT", "/v1/stream/fork", {**TEXT, "Stream-Forked-From": "/v1/stream/text"}, b" fork"),
        ("PUT", "/agents", {}, b""),
        ("PUT", "/agents/run", TEXT, b"abc"),
        ("POST", "/agents/run", TEXT, b"def"),
        ("PUT", "/agents/run/snapshot/0000000000000003", TEXT, b"folded abc"),
    ):
        assert client.request(method, path, headers=head, content=body).is_success, path


READS = [
    "/v1/stream/text?offset=-1",
    "/v1/stream/text?offset=0000000000000006",
    "/v1/stream/text?offset=-1&live=long-poll",
    "/v1/stream/json?offset=-1",
    "/v1/stream/lasting?offset=-1",
    "/v1/stream/closed?offset=-1",
    "/v1/stream/fork?offset=-1",
    "/agents",
    "/agents/streams",
    "/agents/run?offset=0000000000000003",
    "/agents/run/snapshot/0000000000000003",
    "/agents/run/bootstrap",
]


def look(client: httpx.Client) -> dict[str, tuple[int, bytes]]:
    """Ask everything that changes nothing."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in READS:
        reply = client.get(path)
        assert reply.status_code == 200, (path, reply.text)
        # A boundary is made up anew for each answer.
        boundary = reply.headers["content-type"].partition("boundary=")[2].strip('"').encode()
        content = reply.content.replace(boundary, b"") if boundary else reply.content
        found[path] = (reply.status_code, content)
        found["HEAD " + path] = (client.head(path).status_code, b"")
    return found


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Return everything of a directory that a writer would change."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("crashed", [True, False], ids=["after a crash", "after a stop"])
def test_a_copy_is_served_and_not_touched(tmp_path: Path, *, crashed: bool) -> None:
    with Daemon(tmp_path) as daemon:
        with httpx.Client(base_url=daemon.url) as client:
            write(client)
            before = look(client)
        if crashed:
            daemon.kill9()
        else:
            daemon.terminate()
        kept = tree(tmp_path / "data")
        daemon.arguments.append("--read-only")
        daemon.start()
        with httpx.Client(base_url=daemon.url) as client:
            assert look(client) == before
            for method, path in WRITES:
                for head in (TEXT, {**TEXT, "Stream-Closed": "true"}):
                    reply = client.request(method, path, headers=head, content=b"x")
                    assert (reply.status_code, reply.headers["allow"]) == (
                        405,
                        "GET, HEAD, OPTIONS",
                    )
                    assert reply.json()["code"] == "METHOD_NOT_ALLOWED"
                    assert reply.headers["content-type"] == "application/problem+json"
            with client.stream("GET", "/v1/stream/text?offset=-1&live=sse") as events:
                assert b"first second" in next(events.iter_bytes())
            wait_until(
                lambda: client.head("/v1/stream/ttl").status_code == 404,
                "a lifetime ends for a reader of a copy, too",
            )
            assert look(client) == before
        assert daemon.terminate() == 0
        assert tree(tmp_path / "data") == kept


async def test_reading_a_copy_writes_no_renewals_and_sweeps_nothing(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=1000)
    engine = reopen(bench.disk)
    streams = Streams(engine, bench.clock, threads=False, read_only=True)
    stream = engine.namespace.by_key["/s"]
    length = engine.journal.length
    async with streams.running():
        for _ in range(10):
            await trio.sleep(0.5)
            streams.touch(stream)
            assert streams.find("/s") is stream, "renewed in memory"
        await trio.sleep(100)
        assert streams.find("/s") is not stream
    assert engine.namespace.by_id
    assert (streams.committer.records, engine.journal.length) == (0, length)


def test_a_copy_needs_no_lock_and_no_right_to_write(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        with httpx.Client(base_url=daemon.url) as client:
            write(client)
            before = look(client)
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copytree(tmp_path / "data", copy / "data")
        for path in copy.rglob("*"):
            path.chmod(0o500 if path.is_dir() else 0o400)
        kept = tree(copy / "data")
        arguments = ["--read-only"]
        with Daemon(copy, arguments=arguments) as one, Daemon(copy, arguments=arguments) as other:
            for each in (one, other):
                with httpx.Client(base_url=each.url) as client:
                    assert look(client) == before
        assert tree(copy / "data") == kept
