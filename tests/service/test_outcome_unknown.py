"""What a client hears of a change that was being stored when the disk failed."""

import socket
from collections.abc import Mapping

import h11
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from durastreamd.errors import SyncFailedError
from tests.service.harness import CLOSE, PREFIX, TEXT, Reply, Site, producer, request_bytes, serving

BARE = ("OUTCOME_UNKNOWN", 409)
REPEATED = ("OUTCOME_UNKNOWN_REPEAT", 503)
REFUSED = ("UNAVAILABLE", 503)

Asked = tuple[str, str, Mapping[str, str], bytes]
APPEND: Asked = ("POST", "s", TEXT, b"x")
CHANGES: dict[str, tuple[Asked, tuple[str, int]]] = {
    "append": (APPEND, BARE),
    "append and close": (("POST", "s", {**TEXT, **CLOSE}, b"x"), BARE),
    "close": (("POST", "s", CLOSE, b""), REPEATED),
    "producer": (("POST", "s", {**TEXT, **producer("p", 0, 0)}, b"x"), REPEATED),
    "stream-seq": (("POST", "s", {**TEXT, "Stream-Seq": "a"}, b"x"), REPEATED),
    "create": (("PUT", "new", TEXT, b"x"), REPEATED),
    "delete": (("DELETE", "s", {}, b""), REPEATED),
    "snapshot": (("PUT", "s/snapshot/0000000000000000", TEXT, b"x"), REPEATED),
    "bucket": (("PUT", "/bucket", {}, b""), REPEATED),
}


def read_reply(sock: socket.socket, method: str) -> Reply:
    """Read what has come; the server is gone already."""
    judge = h11.Connection(h11.CLIENT)
    judge.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    judge.send(h11.EndOfMessage())
    found = Reply()
    judge.receive_data(sock.recv(65536))
    while not isinstance(event := judge.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            found.status = event.status_code
            found.fields = [(n.decode(), v.decode()) for n, v in event.headers]
        elif isinstance(event, h11.Data):
            found.body += bytes(event.data)
        else:
            pytest.fail(f"no whole answer: {event!r}")
    return found


def asking(site: Site, asked: Asked, *, split: bool) -> socket.socket:
    """Send a request on a socket that outlives the server."""
    method, name, head, body = asked
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    site.server.admit(theirs, "192.0.2.1:5")
    target = name if name.startswith("/") else PREFIX + name
    data = request_bytes(method, target, head, body)
    if split:
        # A head that the fast lane declines: the ordinary way takes it.
        data = data.replace(b"\r\n\r\n", b"\r\nX-A: 1\r\nX-A: 2\r\n\r\n", 1)
    ours.sendall(data)
    return ours


async def fail_under(asked: list[Asked], *, split: bool, before: list[Asked]) -> list[Reply]:
    """Have the disk fail while ``before`` is being synced and ``asked`` comes after it."""
    early: list[socket.socket] = []
    sockets: list[socket.socket] = []
    with pytest.RaisesGroup(SyncFailedError, flatten_subgroups=True):
        async with serving() as site:
            await site.make("s")
            await site.make("t")
            await site.bench.hold()
            early = [asking(site, each, split=False) for each in before]
            await wait_all_tasks_blocked(0.05)
            sockets += [asking(site, each, split=split) for each in asked]
            await wait_all_tasks_blocked(0.05)
            site.bench.disk.syncs_left = 0
            site.bench.writer.release()
            await trio.sleep_forever()
    replies = [read_reply(sock, each[0]) for sock, each in zip(sockets, asked, strict=True)]
    for sock in (*early, *sockets):
        sock.close()
    return replies


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("split", [False, True], ids=["quick", "ordinary"])
async def test_what_was_handed_over_is_never_said_to_be_refused(
    change: str, *, split: bool
) -> None:
    asked, (code, status) = CHANGES[change]
    (reply,) = await fail_under([asked], split=split, before=[])
    assert (reply.status, reply.problem) == (status, code)
    # Clients of the field repeat on Retry-After, and on every 5xx.
    assert reply.get("Retry-After") == (None if status == 409 else "1")
    assert "may be there or not" in reply.json["detail"]


@pytest.mark.parametrize("split", [False, True], ids=["quick", "ordinary"])
async def test_what_was_not_begun_is_refused_for_certain(*, split: bool) -> None:
    asked: list[Asked] = [APPEND, ("POST", "t", TEXT, b"x"), ("PUT", "new", TEXT, b"x")]
    for reply in await fail_under(asked, split=split, before=[APPEND]):
        assert (reply.json["code"], reply.status) == REFUSED
        assert reply["Retry-After"] == "1"
        assert "nothing was stored" in reply.json["detail"]
