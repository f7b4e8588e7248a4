"""Buckets to the letter of docs/extension.md: statuses, identifiers, listing, streams."""

from typing import NamedTuple
from urllib.parse import quote

import pytest
from trio.testing import MockClock

from tests.extension.tools import BUCKET, make, token
from tests.service.harness import CLOSE, JSON, NOW, PREFIX, TEXT, Reply, Site, producer

SNOWMAN = "\u2603"  # three bytes in UTF-8
ROOM = 122 - len(BUCKET) - 1  # what a stream's id may have in this bucket


class Case(NamedTuple):
    """A request in a site with one bucket, ``agents``, that holds the stream ``one``."""

    name: str
    method: str
    target: str
    status: int
    code: str = ""


STATUSES = [
    Case("a bucket is created", "PUT", "/fresh", 201),
    Case("a bad id is not created", "PUT", "/ABCD", 400, "BAD_REQUEST"),
    Case("a bucket is created once", "PUT", "/agents", 409, "BUCKET_EXISTS"),
    Case("metadata", "GET", "/agents", 200),
    Case("metadata of a bad id", "GET", "/abc", 400, "BAD_REQUEST"),
    Case("metadata of a missing bucket", "GET", "/missing", 404, "BUCKET_NOT_FOUND"),
    Case("the listing", "GET", "/agents/streams", 200),
    Case("the listing of a bad id", "GET", "/abc/streams", 400, "BAD_REQUEST"),
    Case("the listing with limit 0", "GET", "/agents/streams?limit=0", 400, "BAD_REQUEST"),
    Case("the listing with limit 1", "GET", "/agents/streams?limit=1", 200),
    Case("the listing with limit 1000", "GET", "/agents/streams?limit=1000", 200),
    Case("the listing with limit 1001", "GET", "/agents/streams?limit=1001", 400, "BAD_REQUEST"),
    Case("the listing with limit -1", "GET", "/agents/streams?limit=-1", 400, "BAD_REQUEST"),
    Case("the listing with limit ten", "GET", "/agents/streams?limit=ten", 400, "BAD_REQUEST"),
    Case("the listing with no limit", "GET", "/agents/streams?limit=", 400, "BAD_REQUEST"),
    Case("the listing of a missing bucket", "GET", "/missing/streams", 404, "BUCKET_NOT_FOUND"),
    Case("a bad id is not deleted", "DELETE", "/abc", 400, "BAD_REQUEST"),
    Case("a missing bucket is not deleted", "DELETE", "/missing", 404, "BUCKET_NOT_FOUND"),
    Case("a bucket with streams is not deleted", "DELETE", "/agents", 409, "BUCKET_NOT_EMPTY"),
    Case("nothing is posted to a bucket", "POST", "/agents", 405, "METHOD_NOT_ALLOWED"),
    Case("the listing is not written", "PUT", "/agents/streams", 405, "METHOD_NOT_ALLOWED"),
    Case("the listing is not deleted", "DELETE", "/agents/streams", 405, "METHOD_NOT_ALLOWED"),
]

BAD_BUCKETS = [
    "abc", "a" * 65, "ABCD", "abcD", "ab.d", "ab~d", "ab%20d", "-", "errors",
    "health", "caf%C3%A9", "ab%00d", "..", "a",
]  # fmt: skip
GOOD_BUCKETS = ["abcd", "a" * 64, "0123", "____", "----", "streams", "a-b_9"]

BAD_STREAMS = [
    "..", "a..b", "a..", "...", "a%2Fb", "%2F", "a%00b", "%00", "streams", "%73treams", ".", "%2e",
    "a%FFb", "a/b", "a/b/c", "", "snapshot/x/y", "bootstrap/x",
    "x" * (ROOM + 1), quote(SNOWMAN) * (ROOM // 3) + "ab"[: ROOM % 3 + 1],
]  # fmt: skip
GOOD_STREAMS = [
    "x" * ROOM, quote(SNOWMAN) * (ROOM // 3) + "a" * (ROOM % 3), "a.b", "-1", "now",
    "snapshot", "bootstrap", "stream", "Streams", "a%20b", "a%5Cb", "%F0%9F%98%80", "a%3Fb", "%25",
]  # fmt: skip

STREAM_OPERATIONS = [
    ("PUT", "", b""), ("PUT", "", b"body"), ("POST", "", b"body"), ("GET", "", b""),
    ("GET", "?offset=-1", b""), ("GET", "?offset=-1&live=long-poll", b""),
    ("GET", "?offset=-1&live=sse", b""), ("HEAD", "", b""), ("DELETE", "", b""),
    ("GET", "/snapshot", b""), ("GET", f"/snapshot/{token(0)}", b""),
    ("PUT", f"/snapshot/{token(0)}", b"blob"), ("DELETE", f"/snapshot/{token(0)}", b""),
    ("GET", "/bootstrap", b""),
]  # fmt: skip


async def listing(site: Site, query: str = "", bucket: str = BUCKET) -> Reply:
    reply = await site.raw("GET", f"/{bucket}/streams{query}")
    assert reply.status == 200, reply
    return reply


def ids(reply: Reply) -> list[str]:
    return [row["stream_id"] for row in reply.json["streams"]]


@pytest.mark.parametrize("case", STATUSES, ids=lambda case: case.name)
async def test_every_status_of_section_1_is_answered(site: Site, case: Case) -> None:
    await make(site, "/agents/one", TEXT, b"hello")
    reply = await site.raw(case.method, case.target)
    assert reply.status == case.status, reply
    if case.code:
        assert reply["Content-Type"] == "application/problem+json"
        assert reply.problem == case.code
        assert reply.json["status"] == case.status


async def test_an_empty_bucket_is_deleted_and_may_be_made_again(site: Site) -> None:
    assert (await site.raw("DELETE", f"/{BUCKET}")).status == 204
    assert (await site.raw("GET", f"/{BUCKET}")).status == 404
    assert (await site.raw("GET", f"/{BUCKET}/streams")).status == 404
    assert (await site.raw("PUT", f"/{BUCKET}")).status == 201


async def test_a_bucket_is_empty_again_once_its_last_stream_is_deleted(site: Site) -> None:
    await make(site, "/agents/one", TEXT)
    assert (await site.raw("DELETE", "/agents")).status == 409
    assert (await site.raw("DELETE", "/agents/one")).status == 204
    assert (await site.raw("DELETE", "/agents")).status == 204


async def test_metadata_counts_the_streams_of_this_bucket_alone(site: Site) -> None:
    await site.raw("PUT", "/agents-2")
    await make(site, "/agents-2/other", TEXT)
    await site.make("agents/path")
    for count in range(3):
        reply = await site.raw("GET", "/agents")
        assert reply["Content-Type"] == "application/json"
        assert (reply.json["bucket_id"], reply.json["streams"]) == ("agents", count)
        await make(site, f"/agents/{count}", TEXT)
    assert (await site.raw("DELETE", "/agents/1")).status == 204
    assert (await site.raw("GET", "/agents")).json["streams"] == 2


async def test_create_names_the_new_bucket_in_location_and_body(site: Site) -> None:
    reply = await site.raw("PUT", "/fresh")
    assert reply["Location"].endswith("/fresh")
    assert (reply.json["bucket_id"], reply.json["streams"]) == ("fresh", 0)


async def test_a_bucket_has_one_meaning_however_it_is_encoded(site: Site) -> None:
    reply = await site.raw("PUT", "/%66r%65sh")
    assert (reply.status, reply["Location"], reply.json["bucket_id"]) == (201, "/fresh", "fresh")
    assert (await site.raw("PUT", "/fresh")).status == 409
    await make(site, "/%66resh/%6fne", TEXT, b"hello")
    assert (await site.raw("GET", "/fresh/one?offset=-1")).body == b"hello"
    assert ids(await site.raw("GET", "/%66resh/stream%73")) == ["one"]
    assert (await site.raw("GET", "/%76%31/stream/%6e?offset=-1")).status == 404
    await site.make("n", TEXT, b"path")
    assert (await site.raw("GET", "/%76%31/stream/%6e?offset=-1")).body == b"path"


async def test_the_count_is_that_of_the_listing_while_forks_keep_a_deleted_source(
    site: Site,
) -> None:
    await make(site, "/agents/source", TEXT, b"hello")
    await make(site, "/agents/fork", {"Stream-Forked-From": "/agents/source"})
    assert (await site.raw("DELETE", "/agents/source")).status == 204
    assert (await site.raw("GET", "/agents")).json["streams"] == 1
    assert ids(await site.raw("GET", "/agents/streams")) == ["fork"]
    detail = (await site.raw("DELETE", "/agents")).json["detail"]
    assert "has 1 streams" in detail
    assert "1 more were deleted and have forks" in detail
    assert (await site.raw("DELETE", "/agents/fork")).status == 204
    assert (await site.raw("GET", "/agents")).json["streams"] == 0
    assert (await site.raw("DELETE", "/agents")).status == 204


@pytest.mark.parametrize("query", ["limit=1&limit=2", "prefix=a&prefix=a", "after=%FF", "limit=%3"])
async def test_a_listing_asked_for_in_two_ways_or_none_is_refused(site: Site, query: str) -> None:
    for path in ("/agents/streams", "/v1/stream/"):
        reply = await site.raw("GET", f"{path}?{query}")
        assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("bucket", BAD_BUCKETS)
async def test_a_bucket_id_outside_the_pattern_is_400_for_every_method(
    site: Site, bucket: str
) -> None:
    for method in ("PUT", "DELETE", "GET"):
        if method == "GET" and bucket in ("health", "errors"):
            continue  # pages of the server itself
        reply = await site.raw(method, f"/{bucket}")
        if bucket == "-":
            assert reply.status in (400, 404), reply
        else:
            assert reply.status in (400, 405), reply
        assert reply.status != 405 or bucket in ("health", "errors")


@pytest.mark.parametrize("bucket", GOOD_BUCKETS)
async def test_a_bucket_id_inside_the_pattern_is_created_read_and_deleted(
    site: Site, bucket: str
) -> None:
    for method, status in (("PUT", 201), ("PUT", 409), ("GET", 200), ("DELETE", 204), ("GET", 404)):
        assert (await site.raw(method, f"/{bucket}")).status == status


@pytest.mark.parametrize("stream", BAD_STREAMS)
async def test_a_stream_id_that_breaks_a_rule_is_400_and_makes_nothing(
    site: Site, stream: str
) -> None:
    reply = await site.raw("PUT", f"/{BUCKET}/{stream}", TEXT)
    assert reply.status == (405 if stream.endswith("treams") else 400), reply
    assert (await site.raw("GET", f"/{BUCKET}")).json["streams"] == 0


@pytest.mark.parametrize("stream", GOOD_STREAMS)
async def test_a_stream_id_within_the_rules_is_kept_to_the_byte(site: Site, stream: str) -> None:
    await make(site, f"/{BUCKET}/{stream}", TEXT, b"hello")
    reply = await site.raw("GET", f"/{BUCKET}/{stream}?offset=-1")
    assert (reply.status, reply.body) == (200, b"hello")
    assert [quote(each, safe="") for each in ids(await listing(site))] == [
        quote(stream, safe="%").replace("~", "%7E")
    ]


async def test_the_combined_key_of_the_longest_bucket_has_122_bytes_too(site: Site) -> None:
    bucket = "b" * 64
    await site.raw("PUT", f"/{bucket}")
    assert (await site.raw("PUT", f"/{bucket}/{'x' * 58}", TEXT)).status == 400
    assert (await site.raw("PUT", f"/{bucket}/{'x' * 57}", TEXT)).status == 201


async def test_a_slash_at_the_end_is_not_part_of_a_stream_id(site: Site) -> None:
    assert (await site.raw("PUT", f"/{BUCKET}/doc/", TEXT)).status == 400


@pytest.mark.parametrize(("method", "rest", "body"), STREAM_OPERATIONS)
async def test_every_stream_operation_in_a_missing_bucket_is_404(
    site: Site, method: str, rest: str, body: bytes
) -> None:
    reply = await site.raw(method, f"/missing/doc{rest}", TEXT if body else None, body)
    assert reply.status == 404, reply
    assert (await site.raw("GET", "/missing")).status == 404, "created by the way"


@pytest.mark.parametrize(("method", "rest", "body"), STREAM_OPERATIONS[2:])
async def test_every_operation_on_a_missing_stream_of_a_bucket_is_404(
    site: Site, method: str, rest: str, body: bytes
) -> None:
    reply = await site.raw(method, f"/agents/doc{rest}", TEXT if body else None, body)
    assert reply.status == 404, reply
    assert (await site.raw("GET", "/agents")).json["streams"] == 0


# --- the listing ---


async def test_the_listing_has_every_field_of_the_example(
    site: Site, autojump_clock: MockClock
) -> None:
    await make(site, "/agents/user-1", TEXT)
    autojump_clock.jump(1)
    assert (await site.raw("POST", "/agents/user-1", TEXT, b"x" * 42)).status == 204
    await make(site, "/agents/user-2", {**JSON, **CLOSE})
    await make(site, "/agents/zebra", TEXT)
    first = (await listing(site, "?prefix=user-&limit=1")).json
    created = first["streams"][0].pop("created_at_ms")
    written = first["streams"][0].pop("last_write_at_ms")
    assert NOW <= created <= written - 1000
    row: dict[str, object] = {"stream_id": "user-1", "status": "Open", "content_type": "text/plain"}
    row["tail_offset"] = 42
    assert list(first["streams"].pop(0).items())[: len(row)] == list(row.items())
    assert first == {
        "bucket_id": "agents",
        "prefix": "user-",
        "stream_count": 1,
        "streams": [],
        "next_cursor": "user-1",
        "has_more": True,
    }
    rest = (await listing(site, "?prefix=user-&limit=1&after=user-1")).json
    assert [row["stream_id"] for row in rest["streams"]] == ["user-2"]
    assert rest["streams"][0]["status"] == "Closed"
    assert (rest["has_more"], rest["next_cursor"]) == (False, None)


async def test_the_listing_of_an_empty_bucket_is_empty(site: Site) -> None:
    assert (await listing(site)).json == {
        "bucket_id": "agents",
        "prefix": "",
        "stream_count": 0,
        "streams": [],
        "next_cursor": None,
        "has_more": False,
    }


async def test_the_listing_is_sorted_and_filtered_by_prefix_and_cursor(site: Site) -> None:
    names = ["B", "a", "a!", "a-1", "a-10", "a-2", "ab", "b", "\u00e9", SNOWMAN, "\U0001f600"]
    for name in reversed(names):
        await make(site, f"/agents/{quote(name)}", TEXT)
    await site.raw("PUT", "/agents2")
    await make(site, "/agents2/a-3", TEXT)
    assert sorted(names, key=str.encode) == names
    assert ids(await listing(site)) == names
    assert ids(await listing(site, "?prefix=a-")) == ["a-1", "a-10", "a-2"]
    assert ids(await listing(site, "?prefix=a-&after=a-1")) == ["a-10", "a-2"]
    assert ids(await listing(site, "?after=a-1")) == names[names.index("a-10") :]
    assert ids(await listing(site, "?after=a-11")) == names[names.index("a-2") :]
    assert ids(await listing(site, "?prefix=a-&after=A")) == ["a-1", "a-10", "a-2"]
    assert ids(await listing(site, "?prefix=a-&after=b")) == []
    assert ids(await listing(site, f"?prefix={quote(SNOWMAN)}")) == [SNOWMAN]
    assert ids(await listing(site, "?prefix=nothing")) == []


async def test_a_walk_with_next_cursor_meets_2500_streams_once_each(site: Site) -> None:
    names = [f"s{number:05d}" for number in range(2500)]
    for name in names:
        await make(site, f"/agents/{name}", TEXT)
    pages, query = [], ""
    while True:
        page = (await listing(site, query)).json
        pages.append([row["stream_id"] for row in page["streams"]])
        assert page["stream_count"] == len(pages[-1])
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            break
        assert page["next_cursor"] == pages[-1][-1]
        query = f"?after={page['next_cursor']}"
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [name for page in pages for name in page] == names
    exact = (await listing(site, "?prefix=s00&limit=1000")).json
    assert (exact["stream_count"], exact["has_more"]) == (1000, False)


async def test_a_limit_with_leading_zeros_is_not_above_1000(site: Site) -> None:
    assert (await site.raw("GET", "/agents/streams?limit=0000005000")).status == 400


async def test_deleted_and_expired_streams_are_not_listed(
    site: Site, autojump_clock: MockClock
) -> None:
    await make(site, "/agents/a", TEXT, b"x")
    await make(site, "/agents/b", {**TEXT, "Stream-TTL": "60"})
    await make(site, "/agents/c", TEXT)
    await site.raw("PUT", "/agents/fork", {"Stream-Forked-From": "/agents/a"})
    assert (await site.raw("DELETE", "/agents/a")).status == 204
    assert ids(await listing(site)) == ["b", "c", "fork"]
    autojump_clock.jump(61)
    page = (await listing(site, "?limit=1")).json
    assert (page["streams"][0]["stream_id"], page["has_more"]) == ("c", True)


# --- streams in a bucket ---


async def test_base_operations_work_on_a_stream_of_a_bucket(site: Site) -> None:
    url = "/agents/doc"
    made = await site.raw("PUT", url, TEXT, b"one")
    assert (made.status, made.next) == (201, token(3))
    assert made["Location"].endswith(url)
    assert (await site.raw("PUT", url, TEXT)).status == 200
    assert (await site.raw("PUT", url, JSON)).status == 409
    assert (await site.raw("POST", url, TEXT, b"two")).next == token(6)
    assert (await site.raw("POST", url, JSON, b"2")).status == 409
    reply = await site.raw("GET", f"{url}?offset={token(3)}")
    assert (reply.body, reply["Stream-Up-To-Date"]) == (b"two", "true")
    assert (await site.raw("POST", url, CLOSE)).status == 204
    assert (await site.raw("HEAD", url))["Stream-Closed"] == "true"
    assert (await site.raw("POST", url, TEXT, b"late")).status == 409
    assert (await site.raw("DELETE", url)).status == 204
    assert (await site.raw("GET", url)).status == 404


async def test_producers_work_on_a_stream_of_a_bucket(site: Site) -> None:
    await make(site, "/agents/doc", TEXT)
    for seq, status in ((0, 200), (0, 204), (1, 200), (3, 409)):
        head = {**TEXT, **producer("p", 1, seq)}
        assert (await site.raw("POST", "/agents/doc", head, b"x")).status == status
    stale = {**TEXT, **producer("p", 0, 0)}
    assert (await site.raw("POST", "/agents/doc", stale, b"x")).status == 403
    assert (await site.raw("GET", "/agents/doc?offset=-1")).body == b"xx"


@pytest.mark.usefixtures("autojump_clock")
async def test_live_modes_work_on_a_stream_of_a_bucket(site: Site) -> None:
    await make(site, "/agents/doc", TEXT, b"one")
    poll, events = site.connect(), site.connect()
    await poll.send("GET", f"/agents/doc?offset={token(3)}&live=long-poll", None)
    await events.send("GET", "/agents/doc?offset=-1&live=sse", None)
    assert (await events.head()).status == 200
    assert (await site.raw("POST", "/agents/doc", TEXT, b"two")).status == 204
    reply = await poll.whole()
    assert (reply.status, reply.body, reply.next) == (200, b"two", token(6))
    text = b""
    while b"two" not in text:
        text += await events.step()
    assert b"event: data" in text


@pytest.mark.parametrize(
    ("source", "fork"),
    [
        ("/agents/doc", "/agents/copy"),
        ("/agents/doc", "/other/doc"),
        ("/agents/doc", PREFIX + "copy"),
        (PREFIX + "a/doc", "/other/doc"),
    ],
)
async def test_forks_cross_buckets_and_surfaces(site: Site, source: str, fork: str) -> None:
    await site.raw("PUT", "/other")
    offsets = await make(site, source, TEXT, b"one", b"two", b"three")
    head = {"Stream-Forked-From": source, "Stream-Fork-Offset": offsets[2]}
    made = await site.raw("PUT", fork, head)
    assert (made.status, made.next) == (201, offsets[2])
    assert (await site.raw("POST", fork, TEXT, b"!")).status == 204
    assert (await site.raw("GET", f"{fork}?offset=-1")).body == b"onetwo!"
    assert (await site.raw("DELETE", source)).status == 204
    assert (await site.raw("GET", source)).status == 410
    assert (await site.raw("GET", f"{fork}?offset=-1")).body == b"onetwo!"


async def test_a_fork_into_a_missing_bucket_or_from_one_is_404(site: Site) -> None:
    await make(site, "/agents/doc", TEXT, b"one")
    into = await site.raw("PUT", "/missing/doc", {"Stream-Forked-From": "/agents/doc"})
    out_of = await site.raw("PUT", "/agents/copy", {"Stream-Forked-From": "/missing/doc"})
    assert (into.status, out_of.status) == (404, 404)


async def test_a_bucket_that_a_deleted_source_still_needs_is_kept_until_its_fork_goes(
    site: Site,
) -> None:
    await make(site, "/agents/doc", TEXT, b"one")
    await site.make("copy", {"Stream-Forked-From": "/agents/doc"})
    assert (await site.raw("DELETE", "/agents/doc")).status == 204
    assert (await site.raw("DELETE", "/agents")).status == 409
    assert (await site.ask("DELETE", "copy")).status == 204
    assert (await site.raw("DELETE", "/agents")).status == 204
