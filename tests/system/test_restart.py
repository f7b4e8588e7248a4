"""The real process is stopped and started again: every answer is the same as before.

The script does every operation of the protocol once. What was answered before the stop and what
is answered after it must not differ in status, headers or body.
"""

import http.client
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": "application/octet-stream"}
CLOSE = {"Stream-Closed": "true"}
BIG = bytes(range(256)) * 4096  # 1 MiB: of several frames
MOMENT = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")


class Answer(NamedTuple):
    """What a client can compare."""

    status: int
    fields: dict[str, str]
    body: bytes


def producer(name: str, epoch: int, seq: int) -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


class Client:
    """A client that finds its server again."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def ask(
        self, method: str, name: str, head: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=PATIENCE_S)
        try:
            path = "/v1/stream/" + name
            sent = body if body or method in ("POST", "PUT") else None
            connection.request(method, path, sent, head or {})
            reply = connection.getresponse()
            fields = {key.lower(): value for key, value in reply.getheaders()}
            fields.pop("date")
            return Answer(reply.status, fields, reply.read())
        finally:
            connection.close()

    def expect(
        self, status: int, method: str, name: str, head: dict[str, str], body: bytes = b""
    ) -> Answer:
        answer = self.ask(method, name, head, body)
        assert answer.status == status, (method, name, answer)
        return answer


def fork(source: str, offset: str = "", sub: str = "") -> dict[str, str]:
    head = {"Stream-Forked-From": "/v1/stream/" + source}
    if offset:
        head["Stream-Fork-Offset"] = offset
    if sub:
        head["Stream-Fork-Sub-Offset"] = sub
    return head


def write_streams(client: Client) -> None:
    """Make streams of each kind, with producers and sequence numbers."""
    client.expect(201, "PUT", "text", TEXT, b"first ")
    client.expect(204, "POST", "text", TEXT, b"second ")
    client.expect(204, "POST", "text", {**TEXT, "Stream-Seq": "m"}, b"third")
    client.expect(201, "PUT", "json", {"Content-Type": "application/json; charset=utf-8"}, b"[1,2]")
    client.expect(204, "POST", "json", JSON, b'[{"a":[1]},null,"\\n"]')
    client.expect(201, "PUT", "binary", BINARY)
    client.expect(204, "POST", "binary", BINARY, BIG)
    client.expect(201, "PUT", "deep/path/%C3%A9", TEXT, b"named")
    client.expect(201, "PUT", "empty", {})
    client.expect(201, "PUT", "producers", TEXT)
    for epoch, seq in ((0, 0), (0, 1), (3, 0), (3, 1)):
        head = {**TEXT, **producer("p", epoch, seq)}
        client.expect(200, "POST", "producers", head, b"%d.%d " % (epoch, seq))
    client.expect(201, "PUT", "closed", TEXT, b"open ")
    client.expect(200, "POST", "closed", {**TEXT, **CLOSE, **producer("c", 0, 0)}, b"shut")
    client.expect(201, "PUT", "closed-only", TEXT)
    client.expect(204, "POST", "closed-only", CLOSE)
    client.expect(201, "PUT", "born-closed", {**TEXT, **CLOSE}, b"complete")
    client.expect(201, "PUT", "ttl", {**TEXT, "Stream-TTL": "3600"}, b"x")
    client.expect(201, "PUT", "moment", {**TEXT, "Stream-Expires-At": MOMENT}, b"x")
    client.expect(201, "PUT", "short", {**TEXT, "Stream-TTL": "2"}, b"x")


def write_forks(client: Client) -> None:
    """Make forks, also of forks, and delete what they were made of."""
    middle = client.ask("GET", "text?offset=-1").fields["stream-next-offset"]
    client.expect(201, "PUT", "fork", fork("text"), b" and more")
    client.expect(201, "PUT", "sub", fork("text", "0" * 16, "3"), b"|")
    client.expect(201, "PUT", "json-sub", fork("json", "0" * 16, "1"))
    client.expect(204, "POST", "json-sub", JSON, b'"own"')
    client.expect(201, "PUT", "of-fork", fork("fork", middle))
    client.expect(201, "PUT", "of-moment", fork("moment"))
    client.expect(204, "POST", "text", TEXT, b" later")
    client.expect(201, "PUT", "source", TEXT, b"held by a fork")
    client.expect(201, "PUT", "heir", fork("source"))
    client.expect(204, "DELETE", "source", {})
    client.expect(201, "PUT", "deleted", TEXT, b"gone")
    client.expect(204, "DELETE", "deleted", {})
    client.expect(201, "PUT", "anew", TEXT, b"old")
    client.expect(204, "DELETE", "anew", {})
    client.expect(201, "PUT", "anew", JSON, b'"new"')
    client.expect(201, "PUT", "orphaned", TEXT, b"x")
    client.expect(201, "PUT", "last-heir", fork("orphaned"))
    client.expect(204, "DELETE", "orphaned", {})
    client.expect(204, "DELETE", "last-heir", {})


NAMES = [
    "text",
    "json",
    "binary",
    "deep/path/%C3%A9",
    "empty",
    "producers",
    "closed",
    "closed-only",
    "born-closed",
    "ttl",
    "moment",
    "fork",
    "sub",
    "json-sub",
    "of-fork",
    "of-moment",
    "source",
    "heir",
    "deleted",
    "anew",
    "orphaned",
    "last-heir",
]
EXPECTED = {"source": 410, "deleted": 404, "orphaned": 404, "last-heir": 404}


def look(client: Client) -> dict[str, Answer]:
    """Ask everything that changes nothing."""
    found: dict[str, Answer] = {}
    for name in NAMES:
        head = found[f"HEAD {name}"] = client.ask("HEAD", name)
        assert head.status == EXPECTED.get(name, 200), (name, head)
        found[f"GET {name}"] = client.ask("GET", f"{name}?offset=-1")
        if head.status == 200:
            tail = head.fields["stream-next-offset"]
            found[f"tail {name}"] = client.ask("GET", f"{name}?offset={tail}")
    return found


class Restarted(NamedTuple):
    """A server with a past."""

    client: Client
    before: dict[str, Answer]
    after: dict[str, Answer]


@pytest.fixture(scope="module", params=["kill", "kill twice", "terminate"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    home: Path = tmp_path_factory.mktemp("restart")
    with Daemon(home) as daemon:
        client = Client(daemon)
        write_streams(client)
        write_forks(client)
        before = look(client)
        if request.param == "terminate":
            assert daemon.terminate() == 0
        else:
            daemon.kill9()
        daemon.start()
        if request.param == "kill twice":
            daemon.kill9()
            daemon.start()
        yield Restarted(client, before, look(client))


def test_every_read_and_head_is_answered_as_before(restarted: Restarted) -> None:
    assert restarted.after == restarted.before
    assert restarted.after["GET fork"].body == b"first second third and more"
    assert restarted.after["GET sub"].body == b"fir|"
    assert restarted.after["GET json-sub"].body == b'[1,\n"own"]'
    assert restarted.after["GET heir"].body == b"held by a fork"
    assert restarted.after["GET anew"].body == b'["new"]'
    assert restarted.after["GET binary"].body == BIG


def test_retry_of_an_acknowledged_append_is_a_duplicate(restarted: Restarted) -> None:
    for epoch, seq in ((3, 0), (3, 1)):
        head = {**TEXT, **producer("p", epoch, seq)}
        answer = restarted.client.expect(204, "POST", "producers", head, b"again")
        assert answer.fields["producer-seq"] == "1"
    assert restarted.client.ask("GET", "producers").body == b"0.0 0.1 3.0 3.1 "


def test_stale_epoch_stays_fenced_and_gaps_stay_gaps(restarted: Restarted) -> None:
    client = restarted.client
    stale = client.expect(403, "POST", "producers", {**TEXT, **producer("p", 2, 0)}, b"x")
    assert stale.fields["producer-epoch"] == "3"
    gap = client.expect(409, "POST", "producers", {**TEXT, **producer("p", 3, 3)}, b"x")
    assert gap.fields["producer-expected-seq"] == "2"


def test_closed_stays_closed_and_its_closing_append_stays_a_duplicate(restarted: Restarted) -> None:
    client = restarted.client
    for name in ("closed", "closed-only", "born-closed"):
        answer = client.expect(409, "POST", name, TEXT, b"more")
        assert answer.fields["stream-closed"] == "true"
    again = {**TEXT, **CLOSE, **producer("c", 0, 0)}
    client.expect(204, "POST", "closed", again, b"other")
    client.expect(409, "POST", "closed", {**again, **producer("c", 0, 1)}, b"other")


def test_sequence_is_remembered(restarted: Restarted) -> None:
    restarted.client.expect(409, "POST", "text", {**TEXT, "Stream-Seq": "m"}, b"x")
    restarted.client.expect(409, "POST", "text", {**TEXT, "Stream-Seq": "a"}, b"x")


def test_creates_are_still_found_or_conflict(restarted: Restarted) -> None:
    client = restarted.client
    client.expect(200, "PUT", "text", TEXT)
    client.expect(409, "PUT", "text", JSON)
    client.expect(200, "PUT", "ttl", {**TEXT, "Stream-TTL": "3600"})
    client.expect(409, "PUT", "ttl", {**TEXT, "Stream-TTL": "3601"})
    client.expect(200, "PUT", "fork", fork("text"))
    client.expect(200, "PUT", "sub", fork("text", "0" * 16, "3"))
    client.expect(409, "PUT", "sub", fork("text", "0" * 16, "2"))
    client.expect(200, "PUT", "born-closed", {**TEXT, **CLOSE})
    client.expect(409, "PUT", "source", TEXT)
    client.expect(409, "PUT", "new", fork("source"))


def test_lifetime_goes_on(restarted: Restarted) -> None:
    assert restarted.after["HEAD ttl"].fields["stream-ttl"] == "3600"
    moment = restarted.after["HEAD of-moment"].fields["stream-expires-at"]
    assert datetime.fromisoformat(moment) == datetime.fromisoformat(MOMENT)
    wait_until(
        lambda: restarted.client.ask("HEAD", "short").status == 404,
        "a lifetime of two seconds does not end",
    )


def test_last_fork_still_releases_its_source(restarted: Restarted) -> None:
    client = restarted.client
    client.expect(204, "DELETE", "heir", {})
    assert client.ask("HEAD", "source").status == 404
    client.expect(201, "PUT", "source", JSON, b"[1]")
    assert client.ask("GET", "source").body == b"[1]"
