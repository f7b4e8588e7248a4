"""Webhooks: signed, retried, fenced, and what receivers may say."""

from itertools import pairwise
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from durastreamd.service.subscriptions.keys import unpacked
from tests.service.harness import JSON, TEXT
from tests.service.subscribing import DS, IDLE, Place, code

ZERO = "0" * 16


async def test_a_webhook_is_signed_and_one_that_is_done_moves_the_cursor(place: Place) -> None:
    await place.hook("s", pattern="events/*")
    place.receiver.answers = lambda _: (200, b'{"done":true}')
    await place.site.make("events/a", JSON, b"[1]")
    [said] = await place.received(1)
    [(body, signature)] = place.receiver.raw
    when, kid, signed = (part.partition("=")[2] for part in signature.split(","))
    [key] = (await place.site.ask("GET", "__ds/jwks.json")).json["keys"]
    assert kid == key["kid"]
    public = Ed25519PublicKey.from_public_bytes(unpacked(key["x"]))
    public.verify(unpacked(signed), when.encode() + b"." + body)
    [stream] = said["streams"]
    assert stream == {
        "path": "events/a", "link_type": "glob", "acked_offset": ZERO,
        "tail_offset": f"{3:016d}", "has_pending": True,
    }  # fmt: skip
    url = "http://streams.example/v1/stream/__ds/subscriptions/s/callback"
    assert (said["subscription_id"], said["callback_url"], said["generation"]) == ("s", url, 1)
    await place.settled("s", IDLE)
    assert (await place.look("s"))["streams"][0]["acked_offset"] == stream["tail_offset"]


async def test_a_callback_moves_cursors_and_a_finished_wake_is_fenced(place: Place) -> None:
    await place.hook("s", streams=["a"])
    await place.site.make("a", JSON, b"[1,2]")
    [said] = await place.received(1)
    tail = said["streams"][0]["tail_offset"]
    body = {"wake_id": said["wake_id"], "generation": 1, "acks": [{"stream": "a", "offset": tail}]}
    heartbeat = await place.post("s/callback", {**body, "acks": []}, said["callback_token"])
    assert heartbeat.json == {"ok": True, "next_wake": False}
    done = await place.post("s/callback", {**body, "done": True}, said["callback_token"])
    assert (done.status, done.json) == (200, {"ok": True, "next_wake": False})
    for wake_id in (said["wake_id"], "", None):
        late = {**body, "wake_id": wake_id, "done": True}
        reply = await place.post("s/callback", late, said["callback_token"])
        expected = "INVALID_REQUEST" if wake_id is None else "FENCED"  # B8
        assert code(reply) == expected
    assert (await place.look("s"))["streams"][0]["acked_offset"] == tail


@pytest.mark.parametrize(
    ("ack", "expected"),
    [
        ({"stream": "a", "offset": 7}, "INVALID_REQUEST"),  # B7
        ({"stream": "a"}, "INVALID_REQUEST"),
        ({"stream": "a", "offset": "now"}, "INVALID_OFFSET"),
        ({"stream": "a", "offset": "-1"}, "INVALID_OFFSET"),
        ({"stream": "a", "offset": f"{99:016d}"}, "INVALID_OFFSET"),
        ({"stream": "a", "offset": f"{2:016d}"}, "INVALID_OFFSET"),  # inside a message
        ({"path": "b", "offset": ZERO}, "INVALID_OFFSET"),
    ],
)
async def test_an_ack_that_does_not_fit_moves_nothing(
    place: Place, ack: dict[str, Any], expected: str
) -> None:
    await place.hook("s", streams=["a"])
    await place.site.make("a", JSON, b"[1,2]")
    [said] = await place.received(1)
    good = {"stream": "a", "offset": f"{3:016d}"}
    body = {"wake_id": said["wake_id"], "generation": 1, "acks": [good, ack]}
    reply = await place.post("s/callback", body, said["callback_token"])
    assert code(reply) == expected
    assert (await place.look("s"))["streams"][0]["acked_offset"] == ZERO
    good_one = await place.post("s/callback", {**body, "acks": [good]}, said["callback_token"])
    assert good_one.status == 200
    assert (await place.look("s"))["streams"][0]["acked_offset"] == good["offset"]


async def test_a_late_answer_does_not_count_for_the_wake_after_it(
    place: Place, autojump_clock: object
) -> None:
    """B1: the reference acknowledges what the next wake was about."""
    place.receiver.hold = trio.Event()
    place.receiver.answers = lambda _: (200, b'{"done":true}')
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    [said] = await place.received(1)
    body = {"wake_id": said["wake_id"], "generation": 1, "done": True}
    await place.site.add("a", b"two")
    reply = await place.post("s/callback", body, said["callback_token"])
    assert reply.json == {"ok": True, "next_wake": True}
    place.receiver.hold.set()
    await place.until(lambda: place.site.app.subscribing.counts.deliveries["late"])
    [_, second, *_] = await place.received(2)
    assert second["generation"] == 2
    assert second["streams"][0]["acked_offset"] == ZERO


async def test_a_retry_says_the_same_and_waits_longer_each_time(
    place: Place, autojump_clock: object
) -> None:
    """B2 and B12: one schedule, whatever is appended, and the same snapshot each time."""
    times: list[float] = []

    def answer(_: object) -> tuple[int, bytes]:
        times.append(trio.current_time())
        return (500, b"no") if len(times) < 5 else (200, b'{"done":true}')

    place.receiver.answers = answer
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.received(1)
    await place.until(lambda: place.held.by_id["", "s"].head.failures)
    await place.site.add("a", b"two")
    found = await place.look("s")
    assert (found["status"], found["retry_count"]) == ("failed", 1)
    assert found["last_error"] == "the answer was 500"
    said = await place.received(6)
    shown = [{name: one[name] for name in ("wake_id", "generation", "streams")} for one in said]
    assert shown[:5] == [shown[0]] * 5
    assert shown[5]["generation"] == 2
    waits = [after - before for before, after in pairwise(times[:5])]
    for wait, nominal in zip(waits, (1, 2, 4, 8), strict=True):
        assert 0.8 * nominal - 0.1 <= wait <= nominal + 0.1
    assert (await place.look("s"))["status"] == "active"


@pytest.mark.parametrize("status", [302, 404, 199])
async def test_no_other_answer_than_a_2xx_takes_a_wake(
    place: Place, status: int, autojump_clock: object
) -> None:
    """B4: redirects are never followed."""
    place.receiver.answers = lambda _: (status, b'{"done":true}')
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.until(lambda: place.held.by_id["", "s"].head.failures)
    assert place.held.by_id["", "s"].links["a"].cursor == 0


async def test_a_receiver_that_does_not_answer_or_says_too_much_has_failed(
    place: Place, autojump_clock: object
) -> None:
    """B9: no receiver holds a wake for longer than its lease, or fills the memory."""
    place.receiver.hold = trio.Event()
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.until(lambda: place.held.by_id["", "s"].head.failures)
    assert "longer than 1 s" in place.held.by_id["", "s"].head.error
    place.receiver.hold = None
    place.receiver.answers = lambda _: (200, b"x" * 70_000)
    await place.until(lambda: place.held.by_id["", "s"].head.failures == 2)
    assert "more than 65536 bytes" in place.held.by_id["", "s"].head.error


async def test_the_lease_of_a_taken_wake_runs_out_and_it_is_sent_again(
    place: Place, autojump_clock: object
) -> None:
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    first, second = (await place.received(2))[:2]
    assert (first["generation"], second["generation"]) == (1, 2)
    body = {"wake_id": first["wake_id"], "generation": 1}
    assert code(await place.post("s/callback", body, first["callback_token"])) == "FENCED"


async def test_a_deleted_subscription_moves_nothing(place: Place) -> None:
    """W6; and B13: what comes after it with the same id has another fence."""
    await place.hook("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    [said] = await place.received(1)
    await place.site.ask("DELETE", DS + "s")
    body = {"wake_id": said["wake_id"], "generation": 1, "done": True}
    gone = await place.post("s/callback", body, said["callback_token"])
    assert code(gone) == "SUBSCRIPTION_NOT_FOUND"
    await place.hook("s", streams=["a"])
    await place.site.add("a", b"two")
    await place.received(2)
    assert place.receiver.got[1]["generation"] == 2
    assert code(await place.post("s/callback", body, said["callback_token"])) == "TOKEN_INVALID"
