"""Reads of fixed ranges, lines of JSON, counts and times: small extensions of the base protocol."""

import json
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from trio.testing import MockClock

from durastreamd.engine.options import EngineOptions
from durastreamd.service.limits import Limits, ReadLimits
from tests.extension.tools import make, publish, token
from tests.service.harness import BINARY, CLOSE, JSON, NOW, PREFIX, TEXT, Site, now_ms, serving

LINES = {"Accept": "application/x-ndjson"}
IMMUTABLE = "public, max-age=31536000, immutable"


async def furnish(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb", b"cccc")


# --- end ---


@pytest.mark.parametrize(
    ("offset", "end", "body", "after"),
    [
        ("-1", 4, b"aaaa", 4),
        ("-1", 8, b"aaaabbbb", 8),
        ("-1", 12, b"aaaabbbbcccc", 12),
        (token(4), 8, b"bbbb", 8),
        (token(4), 4, b"", 4),
        (token(8), 4, b"", 8),
        ("-1", 0, b"", 0),
        (token(4), 99, b"bbbbcccc", 12),
        (token(12), 99, b"", 12),
        ("now", 4, b"", 12),
    ],
)
async def test_a_read_ends_at_its_end(
    site: Site, url: str, offset: str, end: int, body: bytes, after: int
) -> None:
    await furnish(site, url)
    reply = await site.raw("GET", f"{url}?offset={offset}&end={token(end)}")
    assert (reply.status, reply.body, reply.next) == (200, body, token(after))
    # An answer that reaches its end is kept for ever, and must not say how far the stream was.
    told = after == 12 and (end != 12 or offset == "now")
    assert reply.get("Stream-Up-To-Date") == ("true" if told else None)


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1&end=",
        "offset=-1&end=-1",
        "offset=-1&end=now",
        "offset=-1&end=4",
        f"offset=-1&end={token(4)}&end={token(8)}",
        f"offset=-1&end={token(5)}",
        f"offset={token(1)}&end={token(4)}",
        f"offset=-1&live=long-poll&end={token(4)}",
        f"offset=-1&live=sse&end={token(4)}",
    ],
)
async def test_an_end_that_is_no_place_to_end_is_400(site: Site, url: str, query: str) -> None:
    await furnish(site, url)
    reply = await site.raw("GET", f"{url}?{query}")
    assert (reply.status, reply.json["code"]) == (400, "INVALID_OFFSET")


async def test_an_end_below_the_floor_does_not_bring_freed_data_back(site: Site, url: str) -> None:
    await furnish(site, url)
    await publish(site, url, token(8), b"folded")
    assert (await site.raw("GET", f"{url}?offset=-1&end={token(4)}")).status == 410
    reply = await site.raw("GET", f"{url}?offset={token(8)}&end={token(4)}")
    assert (reply.status, reply.body) == (200, b"")


async def test_json_ranges_are_arrays_of_whole_values(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,2,3]", b"4")
    for start, end, values in ((0, 3, [1]), (3, 9, [2, 3]), (6, 12, [3, 4]), (3, 3, [])):
        reply = await site.raw("GET", f"{url}?offset={token(start)}&end={token(end)}")
        assert reply.json == values
    assert (await site.raw("GET", f"{url}?offset={token(0)}&end={token(4)}")).status == 400


async def test_a_fixed_range_is_immutable_and_others_are_not(site: Site, url: str) -> None:
    await furnish(site, url)
    life = f"incarnation={(await site.raw('HEAD', url))['Stream-Incarnation']}"
    fixed = await site.raw("GET", f"{url}?offset={token(0)}&end={token(8)}&{life}")
    assert fixed["Cache-Control"] == IMMUTABLE
    for query in ("offset=-1", f"offset={token(4)}", f"offset=-1&end={token(99)}", "offset=now"):
        reply = await site.raw("GET", f"{url}?{query}&{life}")
        assert "immutable" not in reply["Cache-Control"], query
    tag = {"If-None-Match": fixed["ETag"]}
    again = await site.raw("GET", f"{url}?offset={token(0)}&end={token(8)}&{life}", tag)
    assert (again.status, again["Cache-Control"]) == (304, IMMUTABLE)


async def test_a_url_that_may_come_to_mean_another_stream_is_kept_for_a_minute(
    site: Site, url: str
) -> None:
    await furnish(site, url)
    query = f"offset={token(0)}&end={token(8)}"
    old = await site.raw("GET", f"{url}?{query}")
    assert old["Cache-Control"] == "public, max-age=60, stale-while-revalidate=300"
    bound = f"{query}&incarnation={old['Stream-Incarnation']}"
    assert (await site.raw("DELETE", url)).status == 204
    await make(site, url, TEXT, b"AAAA", b"BBBB")
    asked = {"If-None-Match": old["ETag"]}
    new = await site.raw("GET", f"{url}?{query}", asked)
    assert (new.status, new.body) == (200, b"AAAABBBB")
    refused = await site.raw("GET", f"{url}?{bound}", asked)
    assert (refused.status, refused["Cache-Control"]) == (412, "no-store")


async def test_a_page_that_stops_short_of_its_end_is_not_immutable() -> None:
    async with serving(Limits(reads=ReadLimits(page_bytes_max=4))) as site:
        await furnish(site, PREFIX + "doc")
        reply = await site.get(f"doc?offset=-1&end={token(8)}")
        assert (reply.body, reply.next) == (b"aaaa", token(4))
        assert "immutable" not in reply["Cache-Control"]


async def test_a_page_of_json_is_cut_sooner_than_one_of_bytes() -> None:
    reads = ReadLimits(page_bytes_max=12, json_page_bytes_max=6)
    assert ReadLimits().json_page_bytes_max == 8 * 1024 * 1024
    async with serving(Limits(reads=reads)) as site:
        await make(site, PREFIX + "json", JSON, b"[1,2,3,4]")
        await furnish(site, PREFIX + "bytes")
        page = await site.get("json?offset=-1")
        assert (page.json, page.next, page.get("Stream-Up-To-Date")) == ([1, 2], token(6), None)
        assert (await site.get(f"json?offset={page.next}")).json == [3, 4]
        lines = await site.get("json?offset=-1", LINES)
        assert (lines.body, lines.next) == (b"1\n2\n", token(6))
        poll = await site.get("json?offset=-1&live=long-poll")
        assert (poll.json, poll.next) == ([1, 2], token(6))
        assert (await site.get("bytes?offset=-1")).body == b"aaaabbbbcccc"


async def test_what_is_cached_for_ever_does_not_say_that_it_is_up_to_date(
    site: Site, url: str
) -> None:
    await furnish(site, url)
    reply = await site.raw("GET", f"{url}?offset={token(4)}&end={token(12)}")
    assert reply.get("Stream-Up-To-Date") is None or "immutable" not in reply["Cache-Control"]


# --- lines ---


def values(seed: int) -> list[object]:
    rng = random.Random(seed)
    kinds: list[object] = [1, "", ",", ",\n", "\n,", [], {}, [1, 2], {"a": ","}, "\u2603", None]
    return [rng.choice(kinds) for _ in range(30)]


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 64])
async def test_lines_are_right_however_the_pieces_fall(piece: int) -> None:
    async with serving(Limits(reads=ReadLimits(piece_bytes=piece))) as site:
        expected = values(piece)
        await site.make("doc", JSON)
        await site.add("doc", json.dumps(expected).encode(), JSON)
        await site.add("doc", b'{"pretty":\r\n [1,\n2]}', JSON)
        reply = await site.get("doc?offset=-1", LINES)
        assert reply["Content-Type"] == "application/x-ndjson"
        assert reply["Vary"].startswith("Accept, ")
        assert reply.body.endswith(b"\n")
        lines = reply.body.split(b"\n")[:-1]
        assert [json.loads(line) for line in lines] == [*expected, {"pretty": [1, 2]}]


@pytest.mark.parametrize("piece", [3, 5, 8])
async def test_arrays_are_right_when_the_last_piece_is_half_a_separator(piece: int) -> None:
    async with serving(Limits(reads=ReadLimits(piece_bytes=piece))) as site:
        text = "x" * (2 * piece + 1 - 4)
        await site.make("doc", JSON, json.dumps(text).encode())
        connection = await site.open("doc?offset=-1")
        assert (await connection.whole()).json == [text]


async def test_lines_of_an_empty_or_caught_up_stream_are_none(site: Site, url: str) -> None:
    await make(site, url, JSON)
    reply = await site.raw("GET", f"{url}?offset=-1", LINES)
    assert (reply.status, reply.body) == (200, b"")
    assert reply["Stream-Up-To-Date"] == "true"


async def test_lines_respect_offset_end_and_have_a_tag_of_their_own(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,2,3]")
    life = (await site.raw("HEAD", url))["Stream-Incarnation"]
    query = f"{url}?offset={token(3)}&end={token(6)}&incarnation={life}"
    lines, array = await site.raw("GET", query, LINES), await site.raw("GET", query)
    assert (lines.body, array.body) == (b"2\n", b"[2]")
    assert lines["ETag"] != array["ETag"]
    assert (lines.next, lines["Cache-Control"]) == (token(6), IMMUTABLE)
    repeat = await site.raw("GET", query, {**LINES, "If-None-Match": lines["ETag"]})
    assert repeat.status == 304


async def test_lines_are_for_json_alone_and_only_on_request(site: Site, url: str) -> None:
    await furnish(site, url)
    reply = await site.raw("GET", f"{url}?offset=-1", LINES)
    assert (reply["Content-Type"], reply.body) == ("text/plain", b"aaaabbbbcccc")
    await make(site, PREFIX + "json", JSON, b"1")
    for accept in ("*/*", "application/json", "application/*"):
        assert (await site.raw("GET", PREFIX + "json", {"Accept": accept})).body == b"[1]"


async def test_the_array_varies_with_accept_as_the_lines_do(site: Site, url: str) -> None:
    await make(site, url, JSON, b"1")
    reply = await site.raw("GET", f"{url}?offset=-1")
    assert reply["Vary"].startswith("Accept, ")


# --- messages that nothing separates ---


FRAMED = {"Accept": "application/vnd.durastream.messages"}


def unframed(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + size])
        assert len(found[-1]) == size
        at += 4 + size
    return found


@pytest.mark.parametrize("piece", [1, 5, 64])
async def test_messages_that_are_not_json_come_apart_on_request(piece: int) -> None:
    async with serving(Limits(reads=ReadLimits(piece_bytes=piece))) as site:
        expected = [bytes([number]) * (1 + number % 9) for number in range(40)]
        await make(site, PREFIX + "doc", BINARY, *expected[:25])
        await site.bench.streams.checkpoint()
        for body in expected[25:]:
            await site.add("doc", body, BINARY)
        reply = await site.get("doc?offset=-1", FRAMED)
        assert reply["Content-Type"] == FRAMED["Accept"]
        assert unframed(reply.body) == expected
        assert (reply.next, reply["Stream-Up-To-Date"]) == (token(sum(map(len, expected))), "true")


async def test_frames_respect_offset_and_end_and_vary(site: Site, url: str) -> None:
    await furnish(site, url)
    life = (await site.raw("HEAD", url))["Stream-Incarnation"]
    query = f"{url}?offset={token(4)}&end={token(8)}&incarnation={life}"
    framed, plain = await site.raw("GET", query, FRAMED), await site.raw("GET", query)
    assert (unframed(framed.body), plain.body) == ([b"bbbb"], b"bbbb")
    assert framed["ETag"] != plain["ETag"]
    assert framed["Vary"].startswith("Accept, ")
    assert plain["Vary"] == framed["Vary"]
    assert framed["Cache-Control"] == IMMUTABLE
    empty = await site.raw("GET", f"{url}?offset={token(12)}", FRAMED)
    assert (empty.status, empty.body) == (200, b"")


async def test_frames_are_not_for_json(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,2]")
    reply = await site.raw("GET", f"{url}?offset=-1", FRAMED)
    assert (reply["Content-Type"], reply.body) == ("application/json", b"[1,\n2]")


# --- look-ups ---


async def place(site: Site, url: str, query: str) -> tuple[str, int, int]:
    reply = await site.raw("HEAD", f"{url}?{query}")
    assert reply.status == 200, reply
    found = reply["Stream-At-Offset"]
    return found, int(reply["Stream-At-Message"]), int(reply["Stream-At-Byte"])


async def test_head_finds_places_by_messages_bytes_and_offset(site: Site, url: str) -> None:
    await furnish(site, url)
    for number in range(3):
        expected = (token(4 * number), number, 4 * number)
        assert await place(site, url, f"at-message={number}") == expected
        assert await place(site, url, f"at-offset={token(4 * number)}") == expected
    for byte, number in ((0, 0), (4, 1), (7, 1), (8, 2), (11, 2), (12, 3), (99, 3)):
        assert (await place(site, url, f"at-byte={byte}"))[1] == number
    assert await place(site, url, "at-message=99") == (token(12), 3, 12)
    assert await place(site, url, "at-offset=-1") == (token(0), 0, 0)
    assert await place(site, url, "at-offset=now") == (token(12), 3, 12)


async def test_a_json_stream_is_looked_up_by_its_values(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,22,333]", b"4")
    assert [(await place(site, url, f"at-message={n}"))[2] for n in range(5)] == [0, 3, 7, 12, 15]
    assert (await place(site, url, "at-byte=8"))[1:] == (2, 7)


async def test_a_look_up_never_leads_below_what_can_be_read(site: Site, url: str) -> None:
    await furnish(site, url)
    await publish(site, url, token(8), b"folded")
    for query in ("at-message=0", "at-message=1", "at-byte=0", "at-byte=5", "at=0"):
        assert await place(site, url, query) == (token(8), 2, 8), query
    assert (await site.raw("HEAD", f"{url}?at-offset={token(4)}")).status == 410


@pytest.mark.parametrize(
    "query",
    [
        "at-message=",
        "at-message=-1",
        "at-byte=1e3",
        "at-message=1&at-message=2",
        "at-message=1&at-byte=2",
        "at-offset=",
        f"at-offset={token(3)}",
    ],
)
async def test_a_look_up_of_no_place_is_400(site: Site, url: str, query: str) -> None:
    await furnish(site, url)
    assert (await site.raw("HEAD", f"{url}?{query}")).status == 400


# --- counts ---


async def counts(site: Site, url: str) -> tuple[int, int]:
    reply = await site.raw("HEAD", url)
    return int(reply["Stream-Message-Count"]), int(reply["Stream-Byte-Count"])


async def test_head_counts_messages_and_bytes(site: Site, url: str) -> None:
    await make(site, url, BINARY)
    assert await counts(site, url) == (0, 0)
    await site.raw("POST", url, BINARY, b"x" * 100)
    await site.raw("POST", url, BINARY, b"y")
    assert await counts(site, url) == (2, 101)
    await site.raw("POST", url, CLOSE)
    await site.bench.streams.checkpoint()
    assert await counts(site, url) == (2, 101)


async def test_head_counts_the_values_of_a_json_stream(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,2,3]", b"4", b"[[5,6]]")
    assert (await counts(site, url))[0] == 5


async def test_both_counts_speak_of_the_same_messages_after_a_snapshot(
    site: Site, url: str
) -> None:
    await furnish(site, url)
    await publish(site, url, token(8), b"folded")
    assert await counts(site, url) in ((1, 4), (3, 12))


# --- times ---


async def at(site: Site, url: str, moment: str) -> str:
    reply = await site.raw("HEAD", f"{url}?at={moment}")
    assert reply.status == 200, reply
    return reply["Stream-At-Offset"]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["hot", "flushed"])
async def test_head_finds_the_first_message_written_at_or_after_a_time(
    autojump_clock: MockClock, url: str, *, checkpoints: bool
) -> None:
    async with serving(options=EngineOptions(segment_bytes_max=30)) as site:
        await site.raw("PUT", "/agents")
        await make(site, url, TEXT)
        times = []
        for number in range(10):
            autojump_clock.jump(10)
            times.append(now_ms())
            assert (await site.raw("POST", url, TEXT, b"%04d" % number)).status == 204
            if checkpoints and number % 2:
                await site.bench.streams.checkpoint()
        assert await at(site, url, "0") == token(0)
        for number, written in enumerate(times):
            assert await at(site, url, str(written - 5000)) == token(4 * number)
            moment = datetime.fromtimestamp((written - 5000) / 1000, UTC)
            text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            assert await at(site, url, text) == token(4 * number)
            east = moment.astimezone(timezone(timedelta(hours=2))).isoformat()
            assert await at(site, url, east.replace("+", "%2B")) == token(4 * number)
            assert await at(site, url, east) == token(4 * number), "a plus that was not encoded"
        assert await at(site, url, str(times[-1] + 5000)) == token(40)
        await publish(site, url, token(20), b"folded")
        assert await at(site, url, "0") == token(20), "not below what can be read"


@pytest.mark.parametrize("moment", ["", "yesterday", "-1", "1e9", "2030-01-31", "9" * 16])
async def test_a_time_that_is_none_is_400(site: Site, url: str, moment: str) -> None:
    await furnish(site, url)
    assert (await site.raw("HEAD", f"{url}?at={moment}")).status == 400


async def test_head_without_a_time_has_no_offset_of_one(site: Site, url: str) -> None:
    await furnish(site, url)
    assert (await site.raw("HEAD", url)).get("Stream-At-Offset") is None
    assert (await site.raw("HEAD", f"{PREFIX}none?at={NOW}")).status == 404
