"""What pages and caches negotiate: CORS, gzip, and HEAD beside GET."""

import gzip

import pytest
from trio.testing import MockClock

from durastreamd.service.access.visitors import Visitors
from durastreamd.service.app import METHODS
from durastreamd.service.limits import CorsOptions
from tests.service.harness import BINARY, JSON, PREFIX, TEXT, Reply, Site, serving

PAGE = "https://app.example"
ASKED = (
    "Authorization Content-Type If-None-Match Last-Event-ID Stream-Seq Stream-TTL "
    "Stream-Expires-At Stream-Closed Stream-Forked-From Stream-Fork-Offset "
    "Stream-Fork-Sub-Offset Producer-Id Producer-Epoch Producer-Seq"
)
SHOWN = (
    "Stream-Next-Offset Stream-Cursor Stream-Up-To-Date Stream-Closed Stream-TTL "
    "Stream-Expires-At Stream-SSE-Data-Encoding Producer-Epoch Producer-Seq "
    "Producer-Expected-Seq Producer-Received-Seq ETag Location Retry-After Content-Encoding "
    "Vary Cache-Control"
)
LONG = b"hello gzip " * 200


def pages(*origins: str) -> Visitors:
    return Visitors(CorsOptions(origins=origins))


def names(value: str) -> set[str]:
    return {each.strip().lower() for each in value.split(",")}


async def every_answer(site: Site, head: dict[str, str]) -> list[Reply]:
    """Ask for one answer of each kind as a page would."""
    path = PREFIX + "s"
    await site.raw("PUT", path, TEXT)
    asked = [
        await site.raw("PUT", path, {**TEXT, **head}),
        await site.raw("POST", path, {**TEXT, **head}, b"x"),
        await site.raw("GET", path + "?offset=-1", head),
        await site.raw("GET", path + "?offset=-1", {**head, "If-None-Match": "*"}),
        await site.raw("HEAD", path, head),
        await site.raw("GET", path + "?offset=zzz", head),
        await site.raw("GET", PREFIX + "missing", head),
        await site.raw("PROPFIND", path, head),
        await site.raw("GET", "/nowhere", head),
        await site.raw("OPTIONS", path, head),
        await site.raw("DELETE", path, head),
    ]
    assert {reply.status for reply in asked} >= {200, 204, 304, 400, 404, 405}
    return asked


async def test_any_page_may_read_every_answer(autojump_clock: MockClock, site: Site) -> None:
    for reply in await every_answer(site, {"Origin": PAGE}):
        assert reply["Access-Control-Allow-Origin"] == "*"
        assert names(reply["Access-Control-Expose-Headers"]) >= names(SHOWN.replace(" ", ","))
        assert "origin" in names(reply["Vary"])


async def test_who_is_no_page_is_not_told_what_a_page_may_see(
    autojump_clock: MockClock, site: Site
) -> None:
    for reply in await every_answer(site, {}):
        assert reply["Access-Control-Allow-Origin"] == "*"
        assert reply.get("Access-Control-Expose-Headers") is None
        assert "origin" in names(reply["Vary"])


PAGE_VARIES = "Accept, Accept-Encoding, Origin"


async def test_an_answer_has_one_vary_line_and_every_page_the_same(
    autojump_clock: MockClock,
) -> None:
    for visitors in (pages("*"), pages(PAGE)):
        async with serving(visitors=visitors) as site:
            await site.make("text", TEXT, LONG)
            await site.make("json", JSON, b"[1,2]")
            await site.make("short", BINARY, b"x")
            for name in ("text", "json", "short"):
                for query in ("", "?offset=-1", "?offset=-1&live=long-poll", "?offset=now"):
                    for head in (
                        {},
                        {"Accept": "application/x-ndjson"},
                        {"Accept": "application/vnd.durastream.messages"},
                        {"Accept-Encoding": "gzip"},
                        {"Origin": PAGE},
                        {"If-None-Match": "*"},
                    ):
                        reply = await site.get(name + query, head)
                        assert reply.status in (200, 304)
                        assert reply["Vary"] == PAGE_VARIES


async def test_configured_page_may_read_every_answer(autojump_clock: MockClock) -> None:
    async with serving(visitors=pages("https://other.example", PAGE)) as site:
        for reply in await every_answer(site, {"Origin": PAGE}):
            assert reply["Access-Control-Allow-Origin"] == PAGE
            assert "origin" in names(reply["Vary"])
            assert reply["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("status", [413])
async def test_configured_page_may_read_that_its_request_was_too_long(status: int) -> None:
    async with serving(visitors=pages(PAGE)) as site:
        if status == 413:  # a client that cannot read it repeats its upload for ever
            head = {**TEXT, "Origin": PAGE, "Content-Length": "67108865"}
            reply = await site.raw("POST", PREFIX + "s", head)
        else:
            reply = await site.raw("GET", PREFIX + "s?" + "q" * 9000, {"Origin": PAGE})
        assert reply.status == status
        assert reply.get("Access-Control-Allow-Origin") == PAGE


@pytest.mark.parametrize("origin", ["https://evil.example", "null", PAGE + ".evil", PAGE.upper()])
async def test_other_page_is_served_nothing(autojump_clock: MockClock, origin: str) -> None:
    async with serving(visitors=pages(PAGE)) as site:
        head = {"Origin": origin}
        await site.make("s", TEXT, b"kept")
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            for target in ("s", "s/snapshot/0000000000000000", "new"):
                reply = await site.ask(method, target, {**TEXT, **head}, b"")
                assert reply.status == (204 if method == "OPTIONS" else 403), method
                assert reply.get("Access-Control-Allow-Origin") is None
                assert reply["Vary"] == "Origin"
                if method not in ("HEAD", "OPTIONS"):
                    assert reply.problem == "FOREIGN_PAGE"
                    assert "cors.origins" in reply.json["detail"]
        assert (await site.get("s?offset=-1")).body == b"kept"
        assert (await site.get("new")).status == 404


async def test_whoever_is_no_page_is_served(autojump_clock: MockClock) -> None:
    async with serving(visitors=pages(PAGE)) as site:
        for reply in await every_answer(site, {}):
            assert reply.get("Access-Control-Allow-Origin") is None
            assert reply["Cross-Origin-Resource-Policy"] == "same-site"
            assert "origin" in names(reply["Vary"])


async def test_preflight_allows_every_header_of_the_protocol(site: Site) -> None:
    asking = {"Origin": PAGE, "Access-Control-Request-Method": "PUT"}
    for path in (PREFIX + "missing", "/anything"):
        reply = await site.raw("OPTIONS", path, asking)
        assert reply.status == 204
        allowed = names(reply["Access-Control-Allow-Headers"])
        assert allowed >= names(ASKED.replace(" ", ","))
        assert reply["Access-Control-Allow-Methods"] == METHODS
        assert int(reply["Access-Control-Max-Age"]) > 0


async def test_events_carry_the_headers_for_pages(autojump_clock: MockClock) -> None:
    async with serving(visitors=pages(PAGE)) as site:
        await site.make("s", BINARY, b"\x00")
        reply = await (await site.open("s?offset=-1&live=sse", {"Origin": PAGE})).head()
        assert reply["Access-Control-Allow-Origin"] == PAGE
        assert "stream-sse-data-encoding" in names(reply["Access-Control-Expose-Headers"])
        assert reply["Stream-SSE-Data-Encoding"] == "base64"
        assert reply["X-Content-Type-Options"] == "nosniff"


# --- Accept ---


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson;q=0.1, application/json", "application/json"),
        ("application/x-ndjson;q=0", "application/json"),
        ("text/html", "application/json"),
        ("*/*", "application/json"),
    ],
)
async def test_the_form_is_the_one_that_is_liked_best(site: Site, accept: str, kind: str) -> None:
    await site.make("s", JSON, b"[1,2]")
    reply = await site.get("s?offset=-1", {"Accept": accept})
    assert (reply.status, reply["Content-Type"]) == (200, kind)


# --- gzip ---


@pytest.mark.parametrize("accepted", ["gzip", "br, gzip", "gzip;q=1.0, deflate", "gzip, br;q=0"])
async def test_client_that_takes_gzip_gets_it_under_another_tag(site: Site, accepted: str) -> None:
    await site.make("s", TEXT, LONG)
    plain = await site.get("s?offset=-1")
    packed = await site.get("s?offset=-1", {"Accept-Encoding": accepted})
    assert packed["Content-Encoding"] == "gzip"
    assert packed["Vary"] == PAGE_VARIES
    assert gzip.decompress(packed.body) == plain.body == LONG
    assert packed["ETag"] != plain["ETag"]
    assert packed.next == plain.next
    for tag, encoding, status in (
        (plain["ETag"], accepted, 200),
        (packed["ETag"], accepted, 304),
        (packed["ETag"], "identity", 200),
        (plain["ETag"], "identity", 304),
    ):
        asked = {"Accept-Encoding": encoding, "If-None-Match": tag}
        assert (await site.get("s?offset=-1", asked)).status == status


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0", "gzip; q=0", "deflate, br"])
async def test_client_that_takes_no_gzip_gets_none(site: Site, accepted: str) -> None:
    await site.make("s", TEXT, LONG)
    reply = await site.get("s?offset=-1", {"Accept-Encoding": accepted})
    assert reply.get("Content-Encoding") is None
    assert reply.body == LONG


async def test_client_that_likes_gzip_a_little_gets_it(site: Site) -> None:
    await site.make("s", TEXT, LONG)
    reply = await site.get("s?offset=-1", {"Accept-Encoding": "gzip;q=0.5"})
    assert reply.get("Content-Encoding") == "gzip"


async def test_small_and_binary_and_live_answers_are_not_compressed(
    autojump_clock: MockClock, site: Site
) -> None:
    asked = {"Accept-Encoding": "gzip"}
    await site.make("small", TEXT, b"x" * 1023)
    await site.make("binary", BINARY, LONG)
    await site.make("text", TEXT, LONG)
    for name in ("small?offset=-1", "binary?offset=-1", "text?offset=now"):
        assert (await site.get(name, asked)).get("Content-Encoding") is None
    events = await (await site.open("text?offset=-1&live=sse", asked)).head()
    assert events.get("Content-Encoding") is None


async def test_compressed_json_is_the_same_array(site: Site) -> None:
    await site.make("s", JSON, b"[" + b'"some text",' * 200 + b"1]")
    plain = await site.get("s?offset=-1")
    packed = await site.get("s?offset=-1", {"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.body) == plain.body


# --- HEAD ---


async def test_head_says_what_get_says_and_has_no_body(site: Site) -> None:
    kinds = {"t": "text/plain; Charset=UTF-8", "j": "Application/JSON", "b": "x/y"}
    for name, kind in kinds.items():
        await site.make(name, {"Content-Type": kind}, b"1")
        head, get = await site.head(name), await site.get(f"{name}?offset=-1")
        assert head.body == b""
        for field in ("Content-Type", "Stream-Next-Offset", "X-Content-Type-Options", "ETag"):
            assert head[field] == get[field], field
        assert head["Content-Type"] == kind
        assert head.get("Stream-Up-To-Date") is None
