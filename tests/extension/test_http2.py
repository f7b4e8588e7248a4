"""Buckets, snapshots and bootstrap of the real process: HTTP/2 tells what HTTP/1.1 tells."""

import random
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.extension.tools import Part, boundary_of, parts_of
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.system]

STREAM = "/agents/run"
OCTETS = {"Content-Type": "application/octet-stream"}
FOLD = {"Content-Type": "application/x-fold"}
# More than any window or buffer on the way, and pieces that fit none of them.
BLOB = random.Random(5).randbytes(3 * 1024 * 1024 + 17)
MESSAGES = [b"one", b"\r\n--", bytes(range(256)), BLOB[: 300 * 1024], b"last\r"]
# They differ from answer to answer, or belong to one version.
VARYING = {"connection", "content-type", "date", "keep-alive", "transfer-encoding"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, tls=True) as running:
        yield running


def client(daemon: Daemon, *, newer: bool) -> httpx.Client:
    assert daemon.certificates is not None
    trust = ssl.create_default_context(cafile=str(daemon.certificates.authority))
    return httpx.Client(
        base_url=daemon.url, verify=trust, http1=not newer, http2=newer, timeout=PATIENCE_S
    )


def pieces(blob: bytes) -> Iterator[bytes]:
    for at in range(0, len(blob), 70_001):
        yield blob[at : at + 70_001]


def furnish(http: httpx.Client) -> list[str]:
    """Make the bucket and the stream and fill it; return the offset after each message."""
    assert http.put("/agents").status_code == 201
    assert http.put(STREAM, headers=OCTETS).status_code == 201
    found = []
    for message in MESSAGES:
        reply = http.post(STREAM, headers=OCTETS, content=message)
        assert reply.status_code == 204
        found.append(reply.headers["Stream-Next-Offset"])
    return found


def publish(http: httpx.Client, offset: str) -> httpx.Response:
    """Publish a snapshot of a length that is not told beforehand."""
    return http.put(f"{STREAM}/snapshot/{offset}", headers=FOLD, content=pieces(BLOB))


def lasting(reply: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name not in VARYING}


def test_a_bucket_is_made_filled_folded_and_bootstrapped_over_http2(daemon: Daemon) -> None:
    with client(daemon, newer=True) as http:
        offsets = furnish(http)
        published = publish(http, offsets[1])
        assert (published.status_code, published.http_version) == (204, "HTTP/2")
        assert "content-length" not in published.request.headers
        listed = http.get("/agents/streams")
        assert (listed.status_code, listed.http_version) == (200, "HTTP/2")
        assert "run" in listed.text
        sent_on = http.get(f"{STREAM}/snapshot")
        assert sent_on.status_code == 307
        assert sent_on.headers["Location"] == f"{STREAM}/snapshot/{offsets[1]}"
        read = http.get(f"{STREAM}/snapshot", follow_redirects=True)
        assert (read.status_code, read.http_version) == (200, "HTTP/2")
        assert read.headers["Content-Type"] == FOLD["Content-Type"]
        assert read.content == BLOB
        whole = http.get(f"{STREAM}/bootstrap")
        assert (whole.status_code, whole.http_version) == (200, "HTTP/2")
        parts = parts_of(whole.content, boundary_of(whole.headers["Content-Type"]))
        kept = [Part(OCTETS["Content-Type"], message) for message in MESSAGES[2:]]
        assert parts == [Part(FOLD["Content-Type"], BLOB), *kept]
        assert whole.headers["Stream-Next-Offset"] == offsets[-1]


@pytest.mark.parametrize("newer", [False, True], ids=["written over 1.1", "written over 2"])
def test_both_versions_are_told_the_same(daemon: Daemon, *, newer: bool) -> None:
    with client(daemon, newer=newer) as http:
        offsets = furnish(http)
        assert publish(http, offsets[1]).status_code == 204
    snapshot = f"{STREAM}/snapshot"
    asked = [snapshot, f"{snapshot}/{offsets[1]}", f"{snapshot}/nonsense"]
    asked += [f"{STREAM}?offset={offsets[1]}", "/agents", "/agents/streams", "/none/s/bootstrap"]
    with client(daemon, newer=False) as older, client(daemon, newer=True) as other:
        for path in asked:
            first, second = older.get(path), other.get(path)
            versions = (first.http_version, second.http_version)
            assert versions == ("HTTP/1.1", "HTTP/2")
            assert first.status_code == second.status_code, path
            kinds = [reply.headers.get("Content-Type") for reply in (first, second)]
            assert kinds[0] == kinds[1], path
            assert lasting(first) == lasting(second), path
            assert first.content == second.content, path
        first, second = (http.get(f"{STREAM}/bootstrap") for http in (older, other))
        one, two = (boundary_of(each.headers["Content-Type"]) for each in (first, second))
        assert one != two
        assert first.content.replace(one, two) == second.content
        assert lasting(first) == lasting(second)
        assert len(second.content) > len(BLOB)
