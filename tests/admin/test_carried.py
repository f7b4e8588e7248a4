"""What was carried elsewhere is served there by a real daemon as it was here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.admin.harness import JSON, SMALL, run
from tests.support.daemon import Daemon

pytestmark = pytest.mark.system

STREAMS = ["orders/1", "fork", "part", "log", "blob", "cut", "none"]
PATHS = [*(f"/v1/stream/{name}" for name in STREAMS), "/team/a%20b"]
KEPT = ("Content-Type", "Stream-Next-Offset", "Stream-Closed", "Stream-TTL", "Stream-Expires-At")


def by_export(daemon: Daemon, home: Path) -> None:
    file = home / "all.cbor"
    chosen = ("export", "--all", "--format", "cbor", "--output", file)
    found = run("--data-dir", daemon.home / "data", *chosen)
    assert found.status == 0, found.err
    found = run("--data-dir", home / "data", "import", "--init", "--input", file)
    assert found.status == 0, found.err


def by_backup(daemon: Daemon, home: Path) -> None:
    found = run("--data-dir", daemon.home / "data", "backup", home / "copy")
    assert found.status == 0, found.err
    found = run("--data-dir", home / "data", "restore", home / "copy")
    assert found.status == 0, found.err


def answers(client: httpx.Client) -> Iterator[tuple[object, ...]]:
    """Yield what a client gets: every stream, its head, its snapshot, and from the middle on."""
    for path in PATHS:
        snapshot = client.get(f"{path}/snapshot", follow_redirects=True)
        start = snapshot.url.path.rpartition("/")[2] if snapshot.is_success else "-1"
        whole = client.get(path, params={"offset": start})
        assert "Stream-Up-To-Date" in whole.headers
        yield path, snapshot.status_code, snapshot.content if snapshot.is_success else b""
        yield path, whole.status_code, whole.content, *(whole.headers.get(name) for name in KEPT)
    # Offsets are good or bad there as they are here: 306 is after a message, 300 is within one.
    for offset in (306, 300):
        found = client.get("/v1/stream/blob", params={"offset": f"{offset:016}"})
        yield offset, found.status_code, found.content if found.is_success else b""


@pytest.mark.parametrize("carry", [by_export, by_backup])
def test_a_client_cannot_tell_the_difference(
    daemon: Daemon, tmp_path: Path, carry: Callable[[Daemon, Path], None]
) -> None:
    carry(daemon, tmp_path)
    with Daemon(tmp_path, settings=SMALL) as other:
        with httpx.Client(base_url=daemon.url) as here, httpx.Client(base_url=other.url) as there:
            expected = list(answers(here))
            assert list(answers(there)) == expected
            assert expected[-1][1] == 400
            assert (PATHS[3], 200, b"folded") in expected
            assert_fenced(there)


def assert_fenced(client: httpx.Client) -> None:
    """A retry is recognised, a stale epoch is refused, a new one is taken."""

    def post(epoch: int, seq: int) -> int:
        ids = {"Producer-Id": "p 1", "Producer-Epoch": f"{epoch}", "Producer-Seq": f"{seq}"}
        head = {"Content-Type": JSON, **ids}
        return client.post("/v1/stream/orders/1", content=b"1", headers=head).status_code

    before = client.head("/v1/stream/orders/1").headers["Stream-Next-Offset"]
    assert post(0, 0) == 204
    assert client.head("/v1/stream/orders/1").headers["Stream-Next-Offset"] == before
    assert post(1, 0) == 200
    assert post(0, 1) == 403
