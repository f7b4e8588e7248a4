"""Claims: each is done, given back or handed out again; none is lost."""

import uuid

import pytest

from durastreamd.client import AnswerError, ClientSettings, ServerRefusedError
from durastreamd.client.claims import PullSubscription
from tests.support.daemon import Daemon
from tests.support.plain_server import Scripted, plain_server

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)


def made(daemon: Daemon, name: str) -> PullSubscription:
    found = PullSubscription(name, daemon.url, QUICK)
    found.stream(f"{name}-wakes").create()
    found.put(f"{name}/*", f"{name}-wakes")
    found.stream(f"{name}/a").create(body=b"[1, 2]")
    return found


def work(found: PullSubscription) -> list[bytes]:
    return [
        message.data
        for claim in found.claims(uuid.uuid4().hex, wait=False)
        for _, message in claim.messages()
    ]


def test_work_is_handed_out_once_and_then_is_done(daemon: Daemon) -> None:
    found = made(daemon, "once")
    assert work(found) == [b"1", b"2"]
    assert work(found) == []
    found.stream("once/a").append_json(3)
    found.stream("once/b").create(body=b"[4]")
    assert sorted(work(found)) == [b"3", b"4"]
    found.delete()
    with pytest.raises(ServerRefusedError, match="404"):
        found.describe()
    found.client.hang_up()


def test_work_that_was_left_by_an_error_comes_again(daemon: Daemon) -> None:
    found = made(daemon, "again")
    claims = found.claims("one", wait=False)
    claim = next(claims)
    claim.extend()
    with pytest.raises(ZeroDivisionError):
        claims.throw(ZeroDivisionError)
    assert not claim.held
    assert work(found) == [b"1", b"2"]
    found.client.hang_up()


def test_who_waits_hears_of_new_work(daemon: Daemon) -> None:
    found = made(daemon, "waiting")
    seen = []
    for claim in found.claims("one"):
        seen += [message.data for _, message in claim.messages()]
        if len(seen) < 4:
            found.stream("waiting/a").append_json(len(seen) + 1)
        else:
            break
    assert seen == [b"1", b"2", b"3", b"4"]
    found.client.hang_up()


def test_an_answer_that_is_no_claim_is_said_to_be_none() -> None:
    with plain_server() as server:
        server.script.append(Scripted(200, {}, b'{"wake_stream": "w"}'))
        server.script.append(Scripted(200, {}, b'{"generation": "x"}'))
        found = PullSubscription("x", server.url, QUICK)
        with pytest.raises(AnswerError, match="not a claim"):
            next(found.claims("one", wait=False))
        server.script.append(Scripted(200, {}, b"<html>"))
        with pytest.raises(AnswerError, match="does this server have subscriptions"):
            found.describe()
        found.client.hang_up()
