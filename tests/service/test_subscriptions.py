"""Subscriptions over HTTP: made, looked at, linked, bounded."""

import json
from typing import Any

import pytest
import trio

from durastreamd.streams.limits import SubscriptionLimits
from tests.service.harness import JSON, TEXT
from tests.service.subscribing import DS, Place, code, placed

ZERO = "0" * 16


# --- making ---


async def test_a_subscription_is_made_confirmed_read_and_deleted(place: Place) -> None:
    made = await place.hook("s", pattern="events/*", description="why")
    assert made.status == 201
    again = await place.hook("s", pattern="/events/*/", description="why")
    assert (again.status, again.json) == (200, made.json)
    found = made.json
    assert found["webhook"]["signing"]["alg"] == "ed25519"
    assert found["webhook"]["signing"]["kid"].startswith("ds_")
    base = "http://streams.example/v1/stream/__ds"
    assert found["webhook"]["signing"]["jwks_url"] == f"{base}/jwks.json"
    assert (found["status"], found["state"], found["generation"]) == ("active", "idle", 0)
    assert "webhook_secret" not in found
    jwks = await place.site.ask("GET", "__ds/jwks.json")
    assert jwks["Content-Type"] == "application/jwk-set+json"
    assert jwks["Cache-Control"] == "public, max-age=300"
    assert [key["kid"] for key in jwks.json["keys"]] == [found["webhook"]["signing"]["kid"]]
    other = await place.hook("s", pattern="other/*")
    assert (other.status, code(other)) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    for _ in range(2):
        assert (await place.site.ask("DELETE", DS + "s")).status == 204
    gone = await place.site.ask("GET", DS + "s")
    assert (gone.status, code(gone)) == (404, "SUBSCRIPTION_NOT_FOUND")


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "carrier-pigeon", "pattern": "a"},
        {"type": "webhook", "pattern": "a"},
        {"type": "webhook", "webhook": {"url": "https://r.example/"}},
        {"type": "pull-wake", "pattern": "a"},
        {"type": "pull-wake", "wake_stream": "w", "streams": ["w"]},
        {"type": "pull-wake", "wake_stream": "w", "streams": []},
        {"type": "pull-wake", "wake_stream": "w", "streams": [1]},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "a/../b"},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "__ds/**"},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "/".join("a" * 65)},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 999},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": True},
        {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "description": "x" * 4097},
    ],
)
async def test_a_configuration_that_says_too_little_or_too_much_is_refused(
    place: Place, fields: dict[str, Any]
) -> None:
    reply = await place.put("s", **fields)
    assert (reply.status, code(reply)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "__ds/other", 404),
        ("PUT", "__ds", 404),
        ("POST", "__ds/subscriptions/s", 405),
        ("GET", "__ds/subscriptions/s/claim", 405),
        ("GET", "__ds/subscriptions/s/streams", 405),
        ("POST", "__ds/jwks.json", 405),
        ("GET", "__ds/subscriptions/s/nothing", 404),
        ("GET", "%5F%5Fds/other", 404),
        ("GET", "__ds/subscriptions/" + "x" * 257, 400),
    ],
)
async def test_what_is_not_there_is_no_stream_either(
    place: Place, method: str, path: str, status: int
) -> None:
    reply = await place.site.ask(method, path, JSON)
    assert reply.status == status
    assert code(reply)
    assert (await place.site.raw("PUT", "/v1/stream/__ds", TEXT)).status == 404


async def test_bodies_are_json_objects_of_a_bounded_size(place: Place) -> None:
    put = place.site.ask
    reply = await put("PUT", DS + "s", TEXT, b"{}")
    assert (reply.status, code(reply)) == (415, "UNSUPPORTED_MEDIA_TYPE")
    for body in (b"{", b"[]", b""):
        assert code(await put("PUT", DS + "s", JSON, body)) == "INVALID_REQUEST"
    reply = await put("PUT", DS + "s", JSON, b" " * (1024 * 1024 + 1))
    assert (reply.status, code(reply)) == (413, "PAYLOAD_TOO_LARGE")


async def test_streams_are_named_and_unnamed(place: Place) -> None:
    assert (await place.pull("runner%3Aone", streams=["manual/a"])).json["id"] == "runner:one"
    added = await place.post("runner%3Aone/streams", {"streams": ["manual/b", "/manual/c/"]})
    assert added.status == 204
    for path in ("manual%2Fb", "manual/c", "never"):
        reply = await place.site.ask("DELETE", f"{DS}runner%3Aone/streams/{path}")
        assert reply.status == 204
    found = await place.look("runner%3Aone")
    assert found["streams"] == [{"path": "manual/a", "link_type": "explicit", "acked_offset": ZERO}]
    refused = await place.post("runner%3Aone/streams", {"streams": ["wakes"]})
    assert code(refused) == "INVALID_REQUEST"
    assert code(await place.post("other/streams", {"streams": ["a"]})) == "SUBSCRIPTION_NOT_FOUND"


async def test_buckets_are_roots_of_their_own(place: Place) -> None:
    site = place.site
    assert (await site.raw("PUT", "/logs")).status == 201
    body = json.dumps({"type": "pull-wake", "wake_stream": "w", "pattern": "*"}).encode()
    made = await site.raw("PUT", "/logs/__ds/subscriptions/s", JSON, body)
    assert made.status == 201
    assert (await site.raw("PUT", "/logs/a", TEXT, b"x")).status == 201
    claimed = await site.raw("POST", "/logs/__ds/subscriptions/s/claim", JSON, b'{"worker":"w"}')
    assert [one["path"] for one in claimed.json["streams"]] == ["a"]
    assert (await site.ask("GET", DS + "s")).status == 404
    missing = await site.raw("PUT", "/nowhere/__ds/subscriptions/s", JSON, body)
    assert (missing.status, code(missing)) == (404, "BUCKET_NOT_FOUND")
    assert (await site.raw("PUT", "/logs/__ds", TEXT)).status == 404


# --- bounds ---


async def test_there_are_so_many_subscriptions_and_links_and_no_more(
    autojump_clock: object,
) -> None:
    limits = SubscriptionLimits(subscriptions_max=2, links_each_max=3, links_max=5)
    async with placed(limits) as place:
        for number in range(4):
            await place.site.make(f"s{number}")
        many = await place.pull("all", pattern="*")
        assert (many.status, code(many)) == (400, "INVALID_REQUEST")
        assert (await place.pull("a", streams=["s0", "s1", "s2"])).status == 201
        assert code(await place.post("a/streams", {"streams": ["x"]})) == "INVALID_REQUEST"
        full = await place.pull("b", streams=["s0", "s1", "s2"])
        assert (full.status, code(full)) == (503, "UNAVAILABLE")
        assert (await place.pull("b", streams=["s0"])).status == 201
        full = await place.pull("c", streams=["s0"])
        assert (full.status, code(full)) == (503, "UNAVAILABLE")


async def test_webhooks_to_one_host_wait_for_each_other(autojump_clock: object) -> None:
    async with placed(SubscriptionLimits(deliveries_host_max=2)) as place:
        place.receiver.hold = trio.Event()
        for number in range(5):
            await place.hook(f"h{number}", streams=["a"], lease_ttl_ms=60_000)
        await place.site.make("a", TEXT, b"one")
        await place.received(2)
        await trio.sleep(1)
        assert place.receiver.open == 2
        place.receiver.hold.set()
        await place.received(5)


async def test_an_operator_sees_who_is_behind(place: Place) -> None:
    for name in ("c", "a", "b"):
        await place.pull(name, streams=["x"])
    await place.site.make("x", TEXT, b"12345")
    listed = (await place.site.ask("GET", "__ds/subscriptions?limit=2")).json
    assert [one["id"] for one in listed["subscriptions"]] == ["a", "b"]
    assert listed["next_cursor"] == "b"
    assert listed["subscriptions"][0]["pending_bytes"] == 5
    rest = (await place.site.ask("GET", "__ds/subscriptions?after=b")).json
    assert [one["id"] for one in rest["subscriptions"]] == ["c"]
    assert rest["next_cursor"] is None
