"""Pull-wake: events in a stream, claims, acknowledgements."""

import pytest
import trio

from durastreamd.service.subscriptions import webhooks
from durastreamd.service.subscriptions.keys import EXPIRY_MS
from tests.service.harness import JSON, TEXT
from tests.service.subscribing import IDLE, TTL, WAKING, Place, code

ZERO = "0" * 16


async def test_a_worker_claims_acknowledges_and_releases(place: Place) -> None:
    await place.site.make("wakes", JSON, b"[]")
    await place.pull("s", pattern="jobs/**")
    await place.site.make("jobs/a", JSON, b"[1]")
    claimed = await place.post("s/claim", {"worker": "one"})
    found = claimed.json
    assert (claimed.status, found["generation"], found["lease_ttl_ms"]) == (200, 1, TTL)
    refused = await place.post("s/claim", {"worker": "two"})
    assert (refused.status, code(refused)) == (409, "ALREADY_CLAIMED")
    assert refused.json["error"]["current_holder"] == "one"
    assert refused.json["error"]["generation"] == 1
    body = {"wake_id": found["wake_id"], "generation": 1, "done": True}
    acks = [{"stream": "jobs/a", "offset": found["streams"][0]["tail_offset"]}]
    done = await place.post("s/ack", {**body, "acks": acks}, found["token"])
    assert done.json == {"ok": True, "next_wake": False}
    assert code(await place.post("s/claim", {"worker": "one"})) == "NO_PENDING_WORK"
    await place.site.add("jobs/a", b"2", JSON)
    again = (await place.post("s/claim", {"worker": "one"})).json
    body = {"wake_id": again["wake_id"], "generation": again["generation"]}
    assert (await place.post("s/release", body, again["token"])).status == 204
    assert place.state("s") is WAKING  # what was not acknowledged wakes again


async def test_a_worker_behind_the_floor_hears_it_from_its_read_and_goes_on(place: Place) -> None:
    await place.site.make("wakes", JSON, b"[]")
    await place.pull("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.site.add("a", b"two")
    await place.site.ask("PATCH", "a", {"Stream-Retain-From": f"{3:016d}"})
    found = (await place.post("s/claim", {"worker": "w"})).json
    [shown] = found["streams"]
    assert (shown["acked_offset"], shown["tail_offset"]) == (ZERO, f"{6:016d}")
    gone = await place.site.get(f"a?offset={shown['acked_offset']}")
    assert (gone.status, gone.problem, gone.next) == (410, "RETENTION_PASSED", f"{3:016d}")
    assert (await place.site.get(f"a?offset={gone.next}")).body == b"two"
    acks = [{"stream": "a", "offset": shown["tail_offset"]}]
    body = {"wake_id": found["wake_id"], "generation": 1, "done": True, "acks": acks}
    done = await place.post("s/ack", body, found["token"])
    assert done.json == {"ok": True, "next_wake": False}


async def test_a_wake_event_stands_in_its_stream_once(place: Place) -> None:
    await place.site.make("wakes", JSON)
    await place.pull("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.until(lambda: place.held.by_id["", "s"].head.announced)
    await place.site.add("a", b"two")
    [event] = (await place.site.get("wakes?offset=-1")).json
    assert {name: event[name] for name in ("type", "subscription_id", "stream", "generation")} == {
        "type": "wake", "subscription_id": "s", "stream": "a", "generation": 1,
    }  # fmt: skip
    assert isinstance(event["ts"], int)
    head = {**JSON, "Producer-Id": "__ds/s", "Producer-Epoch": "1", "Producer-Seq": "1"}
    assert (await place.site.ask("POST", "wakes", head, b"1")).problem == "INVALID_PRODUCER"


@pytest.mark.parametrize("kind", [None, TEXT])
async def test_a_wake_stream_that_is_missing_or_no_json_is_waited_for(
    place: Place, kind: dict[str, str] | None, autojump_clock: object
) -> None:
    """B5: the reference sleeps for ever."""
    if kind is not None:
        await place.site.make("wakes", kind)
    await place.pull("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    await place.until(lambda: place.held.by_id["", "s"].head.failures)
    assert (await place.look("s"))["status"] == "failed"
    if kind is not None:
        await place.site.ask("DELETE", "wakes")
    await place.site.make("wakes", JSON)
    await place.until(lambda: place.held.by_id["", "s"].head.announced)
    assert len((await place.site.get("wakes?offset=-1")).json) == 1
    assert (await place.look("s"))["status"] == "active"


async def test_no_subscription_is_woken_by_its_own_events(place: Place) -> None:
    """B6: ``**`` matches the wake stream, too."""
    await place.site.make("wakes", JSON)
    await place.pull("s", pattern="**")
    await place.site.make("a", TEXT, b"one")
    await place.until(lambda: place.held.by_id["", "s"].head.announced)
    found = (await place.post("s/claim", {"worker": "w"})).json
    body = {"wake_id": found["wake_id"], "generation": 1, "done": True}
    acks = [{"stream": one["path"], "offset": one["tail_offset"]} for one in found["streams"]]
    assert (await place.post("s/ack", {**body, "acks": acks}, found["token"])).json["ok"]
    assert [one["path"] for one in found["streams"]] == ["a"]
    assert place.state("s") is IDLE


async def test_each_kind_has_its_own_routes(place: Place) -> None:
    """B14: a token of one kind opens nothing of the other."""
    await place.site.make("wakes", JSON)
    await place.hook("h", streams=["a"])
    await place.pull("p", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    [said] = await place.received(1)
    assert code(await place.post("h/claim", {"worker": "w"})) == "INVALID_REQUEST"
    body = {"wake_id": said["wake_id"], "generation": 1}
    assert code(await place.post("h/ack", body, said["callback_token"])) == "INVALID_REQUEST"
    claimed = (await place.post("p/claim", {"worker": "w"})).json
    body = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    assert code(await place.post("p/callback", body, claimed["token"])) == "INVALID_REQUEST"
    assert code(await place.post("h/callback", body, claimed["token"])) == "TOKEN_INVALID"
    for token in ("", "x", "x.y", claimed["token"][:-2]):
        reply = await place.post("p/ack", body, token)
        assert (reply.status, code(reply)) == (401, "TOKEN_INVALID")


async def test_a_token_ends_some_time_after_its_lease(
    place: Place, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    assert EXPIRY_MS == 3_600_000
    monkeypatch.setattr(webhooks, "EXPIRY_MS", 60_000)
    await place.pull("s", streams=["a"])
    await place.site.make("a", TEXT, b"one")
    found = (await place.post("s/claim", {"worker": "w"})).json
    body = {"wake_id": found["wake_id"], "generation": 1}
    await trio.sleep(62)
    assert code(await place.post("s/ack", body, found["token"])) == "TOKEN_EXPIRED"


@pytest.mark.parametrize("worker", ["", None, "x" * 257])
async def test_a_worker_has_a_name(place: Place, worker: str | None) -> None:
    await place.pull("s", streams=["a"])
    assert code(await place.post("s/claim", {"worker": worker})) == "INVALID_REQUEST"
