"""Listings of both surfaces: what a row tells, pages, prefixes, who sees what, work of a turn."""

from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from trio.testing import MockClock

from durastreamd.service import listings
from durastreamd.service.access.grants import KeySpan, spans
from tests.service.guards import bearer, guarded
from tests.service.harness import CLOSE, JSON, NOW, PREFIX, TEXT, Reply, Site, serving
from tests.service.test_access import refused

SURFACES = pytest.mark.parametrize("surface", ["path", "bucket"])


def url_of(surface: str, name: str) -> str:
    return PREFIX + quote(name) if surface == "path" else f"/agents/{quote(name)}"


async def listing(
    site: Site, surface: str, query: str = "", head: dict[str, str] | None = None
) -> Reply:
    target = PREFIX if surface == "path" else "/agents/streams"
    reply = await site.raw("GET", target + query, head)
    assert reply.status == 200, reply
    return reply


def names(reply: Reply) -> list[str]:
    return [row["stream_id"] for row in reply.json["streams"]]


@SURFACES
async def test_a_row_tells_what_head_tells(surface: str, autojump_clock: MockClock) -> None:
    async with serving() as site:
        await site.raw("PUT", "/agents")
        url = url_of(surface, "a b")
        await site.raw("PUT", url, {**JSON, "Stream-TTL": "60"}, b"[1, 22]")
        autojump_clock.jump(1)
        await site.raw("POST", url, {**JSON, **CLOSE}, b"333")
        await site.raw("PUT", url_of(surface, "c"), {"Stream-Forked-From": url})
        await site.raw("PUT", f"{url}/snapshot/{'3'.zfill(16)}", JSON, b"1")
        head = await site.raw("HEAD", url)
        row, fork = (await listing(site, surface)).json["streams"]
        assert row.pop("last_write_at_ms") - row.pop("created_at_ms") >= 1000
        assert row.pop("expires_at_ms") > NOW
        assert row == {
            "stream_id": "a b",
            "status": "Closed",
            "content_type": head["Content-Type"],
            "tail_offset": 12,
            "path": url,
            "incarnation": row["incarnation"],
            "first_offset": "0000000000000003",
            "next_offset": head.next,
            "message_count": int(head["Stream-Message-Count"]),
            "byte_count": int(head["Stream-Byte-Count"]),
            "reader_count": 0,
            "ttl_ms": 60_000,
            "snapshot_offset": head["Stream-Snapshot-Offset"],
        }
        assert (fork["forked_from"], fork["fork_offset"]) == (url, head.next)
        assert fork["incarnation"] != row["incarnation"]


@SURFACES
async def test_pages_are_sorted_and_meet_every_stream_once(surface: str) -> None:
    expected = sorted(f"s{number}" for number in range(25))
    async with serving() as site:
        await site.raw("PUT", "/agents")
        for name in reversed(expected):
            await site.raw("PUT", url_of(surface, name), TEXT)
        await site.raw("PUT", url_of("bucket" if surface == "path" else "path", "other"), TEXT)
        found: list[str] = []
        page, query = Reply(), "?limit=10"
        for count in (10, 10, 5):
            page = await listing(site, surface, query)
            assert page.json["stream_count"] == len(names(page)) == count
            found += names(page)
            query = f"?limit=10&after={page.json['next_cursor']}"
        assert found == expected
        assert (page.json["has_more"], page.json["next_cursor"]) == (False, None)
        assert names(await listing(site, surface, "?prefix=s1")) == expected[1:12]
        assert names(await listing(site, surface, "?prefix=s1&after=s13&limit=2")) == ["s14", "s15"]


async def test_a_name_of_several_segments_is_listed_whole_and_by_its_folder() -> None:
    async with serving() as site:
        for name in ("a", "a/b", "a/b/c", "a-b", "ab", "b/\u2603"):
            await site.make(quote(name))
        assert names(await listing(site, "path")) == ["a", "a-b", "a/b", "a/b/c", "ab", "b/\u2603"]
        assert names(await listing(site, "path", "?prefix=a/")) == ["a/b", "a/b/c"]
        rows = (await listing(site, "path", "?prefix=b")).json["streams"]
        assert rows[0]["path"] == PREFIX + "b/%E2%98%83"
        assert (await site.raw("HEAD", rows[0]["path"])).status == 200


async def test_the_listing_of_the_path_surface_is_only_read() -> None:
    async with serving() as site:
        for method in ("PUT", "POST", "DELETE"):
            reply = await site.raw(method, PREFIX)
            assert (reply.status, reply["Allow"]) == (405, "GET, HEAD, OPTIONS")
        assert (await site.raw("HEAD", PREFIX)).status == 200
        assert (await site.raw("GET", PREFIX + "?limit=1001")).status == 400


async def test_a_page_ends_after_so_many_bytes_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listings, "PAGE_BYTES_MAX", 2000)
    async with serving() as site:
        for number in range(9):
            await site.make(f"{number}")
        found, after = [], ""
        while True:
            page = await listing(site, "path", f"?after={after}")
            assert 1 <= len(names(page)) < 9
            found += names(page)
            after = page.json["next_cursor"]
            if not page.json["has_more"]:
                break
        assert found == list("012345678")


async def test_a_page_ends_after_so_many_streams_that_are_not_there_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listings, "TURN_STREAMS", 4)
    monkeypatch.setattr(listings, "LOOKED_MAX", 8)
    async with serving() as site:
        for number in range(20):
            await site.make(f"d{number:02d}")
            await site.make(f"fork{number}", {"Stream-Forked-From": f"{PREFIX}d{number:02d}"})
            assert (await site.ask("DELETE", f"d{number:02d}")).status == 204
        await site.make("d30")
        pages = [await listing(site, "path", "?prefix=d")]
        while pages[-1].json["has_more"]:
            after = pages[-1].json["next_cursor"]
            pages.append(await listing(site, "path", f"?prefix=d&after={after}"))
        assert [names(page) for page in pages] == [[], [], ["d30"]]


class Turns(trio.abc.Instrument):
    """Counts the rows that are made in one turn of the event loop."""

    def __init__(self) -> None:
        self.rows = self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.rows = 0

    def add(self) -> None:
        self.rows += 1
        self.most = max(self.most, self.rows)


@SURFACES
async def test_a_page_is_gathered_in_turns(surface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, real = Turns(), listings.Listings.row

    def row(*args: object) -> dict[str, object]:
        turns.add()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(listings.Listings, "row", row)
    async with serving() as site:
        await site.raw("PUT", "/agents")
        for number in range(250):
            await site.raw("PUT", url_of(surface, f"{number:03d}"), TEXT)
        trio.lowlevel.add_instrument(turns)
        assert len(names(await listing(site, surface))) == 250
        trio.lowlevel.remove_instrument(turns)
    assert turns.most == listings.TURN_STREAMS


# --- who sees what ---

TOKENS = {
    "all": "scopes=read",
    "a": "scopes=read prefix=/v1/stream/a",
    "two": "scopes=read prefix=/v1/stream/a/b prefix=/agents/x",
    "one": "scopes=read prefix=/agents/x",
    "writer": "scopes=write",
}


@pytest.mark.parametrize(
    ("token", "target", "seen"),
    [
        ("all", PREFIX, ["a", "a-b", "a/b", "a/b/c", "ab"]),
        ("all", "/agents/streams", ["x", "y"]),
        ("a", PREFIX, ["a", "a/b", "a/b/c"]),
        ("a", PREFIX + "?prefix=a", ["a", "a/b", "a/b/c"]),
        ("a", PREFIX + "?prefix=a/b", ["a/b", "a/b/c"]),
        ("a", PREFIX + "?after=a&limit=1", ["a/b"]),
        ("two", PREFIX, ["a/b", "a/b/c"]),
        ("two", "/agents/streams", ["x"]),
        ("one", "/agents/streams?prefix=x", ["x"]),
        ("a", PREFIX + "?prefix=b", None),
        ("a", "/agents/streams", None),
        ("one", PREFIX, None),
        ("one", "/agents/streams?prefix=y", None),
        ("writer", PREFIX, None),
        ("writer", "/agents/streams", None),
    ],
)
async def test_a_listing_shows_what_its_reader_may_read(
    tmp_path: Path, token: str, target: str, seen: list[str] | None
) -> None:
    async with guarded(tmp_path / "tokens", TOKENS) as site:
        root = bearer("root", **TEXT)
        await site.raw("PUT", "/agents", root)
        for name in ("a", "a-b", "a/b", "a/b/c", "ab"):
            await site.raw("PUT", PREFIX + name, root)
        for name in ("x", "y"):
            await site.raw("PUT", f"/agents/{name}", root)
        reply = await site.raw("GET", target, bearer(token))
        if seen is None:
            refused(reply, 403, "PERMISSION_DENIED")
        else:
            assert names(reply) == seen
        refused(await site.raw("GET", target), 401, "UNAUTHENTICATED")


async def test_a_fork_does_not_tell_of_a_source_that_its_reader_may_not_see(tmp_path: Path) -> None:
    async with guarded(tmp_path / "tokens", TOKENS) as site:
        root = bearer("root", **TEXT)
        await site.raw("PUT", PREFIX + "secret", root)
        fork = {**root, "Stream-Forked-From": PREFIX + "secret"}
        assert (await site.raw("PUT", PREFIX + "a/fork", fork)).status == 201
        for token, told in (("all", True), ("a", False)):
            reply = await site.raw("GET", PREFIX + "?prefix=a/", bearer(token))
            assert ("forked_from" in reply.json["streams"][0]) is told
            assert (b"secret" in reply.body) is told


@pytest.mark.parametrize(
    ("prefixes", "low", "found"),
    [
        (None, "/", [KeySpan("/")]),
        ((), "/", []),
        (("",), "/x", [KeySpan("/x")]),
        (("",), "agents/", []),
        (("/a", "/a/b"), "/", [KeySpan("/a", alone=True), KeySpan("/a/")]),
        (("/a", "/a-b"), "/a/", [KeySpan("/a/")]),
        (("/a-b/c", "/a-b", "/a-b/d"), "/a", [KeySpan("/a-b", alone=True), KeySpan("/a-b/")]),
        (("agents",), "agents/", [KeySpan("agents/")]),
        (("agents/x",), "agents/", [KeySpan("agents/x", alone=True), KeySpan("agents/x/")]),
        (("/a",), "/ab", []),
    ],
)  # fmt: skip
def test_spans_are_apart_and_in_order(
    prefixes: tuple[str, ...] | None, low: str, found: list[KeySpan]
) -> None:
    assert spans(prefixes, low) == found
