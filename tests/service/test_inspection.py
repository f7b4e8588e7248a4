"""What the inspector asks for: who may see it, what it tells, and that it is bounded."""

import base64
import hashlib
import logging
import re
from pathlib import Path

import pytest
import trio

from durastreamd import logs
from durastreamd.service import listings
from durastreamd.service.operating import inspection
from tests.service.guards import bearer, guarded
from tests.service.harness import JSON, PREFIX, TEXT, Reply, Site, producer, serving
from tests.support.patience import PATIENCE_S

SERVER_ROUTES = ("/-/status", "/-/config", "/-/connections", "/-/log")


async def told(site: Site, target: str) -> dict[str, object]:
    reply = await site.raw("GET", target)
    assert (reply.status, reply["Content-Type"]) == (200, "application/json"), reply
    assert reply["Cache-Control"] == "no-store"
    found: dict[str, object] = reply.json
    return found


async def test_the_status_counts_what_happened() -> None:
    async with serving() as site:
        before = await told(site, "/-/status")
        await site.raw("PUT", f"{PREFIX}a", JSON, b"[1, 2]")
        await site.raw("POST", f"{PREFIX}a", JSON, b"[3]")
        after = await told(site, "/-/status")
        assert (before["api"], before["streams"], after["streams"]) == (1, 0, 1)
        assert (before["appends"], after["appends"]) == (0, 1)
        assert after["readers"] == {"longpoll": 0, "sse": 0}
        assert (after["reasons"], after["damaged"]) == (
            {},
            {"api": 1, "streams": [], "streams_total": 0},
        )


async def test_a_stream_shows_producers_readers_files_and_forks() -> None:
    async with serving() as site:
        await site.raw("PUT", f"{PREFIX}a%20b", TEXT, b"one")
        await site.raw("POST", f"{PREFIX}a%20b", {**TEXT, **producer("p", 3, 0)}, b"two")
        await site.raw("PUT", f"{PREFIX}fork", {"Stream-Forked-From": f"{PREFIX}a%20b"})
        await site.open("a%20b?offset=now&live=long-poll")
        with trio.fail_after(PATIENCE_S):
            while not site.app._streams.follower_count():
                await trio.sleep(0.01)
        shown = await told(site, f"/-/streams{PREFIX}a%20b")
        assert shown["producers"] == [{"id": "p", "epoch": 3, "seq": 0}]
        assert shown["forks"] == [f"{PREFIX}fork"]
        assert "'mode': 'longpoll'" in str(shown["readers"])
        assert (shown["message_count"], shown["readers_total"]) == (2, 1)
        missing = await site.raw("GET", f"/-/streams{PREFIX}nothing")
        assert missing.problem == "NOT_FOUND"


async def test_the_table_holds_both_surfaces_in_any_order() -> None:
    async with serving() as site:
        await site.raw("PUT", "/agents")
        for number, url in enumerate([f"{PREFIX}b", "/agents/run", f"{PREFIX}a"]):
            await site.raw("PUT", url, TEXT, b"x" * (1 + number))

        async def paths(query: str) -> list[str]:
            rows = (await told(site, f"/-/streams?{query}"))["streams"]
            return [row["path"] for row in rows]  # type: ignore[attr-defined]

        assert await paths("") == [f"{PREFIX}a", f"{PREFIX}b", "/agents/run"]
        assert await paths("sort=bytes") == [f"{PREFIX}a", "/agents/run", f"{PREFIX}b"]
        assert await paths("sort=bytes&limit=1") == [f"{PREFIX}a"]
        assert await paths("prefix=agents/") == ["/agents/run"]
        page = await told(site, "/-/streams?limit=1")
        assert await paths(f"limit=1&after={page['next_cursor']}") == [f"{PREFIX}b"]
        assert (await site.raw("GET", "/-/streams?sort=luck")).problem == "BAD_REQUEST"


async def test_the_largest_streams_are_sought_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "RANKED_STREAMS", 10)
    async with serving() as site:
        for number in range(25):
            await site.raw("PUT", f"{PREFIX}s{number}", TEXT, b"x" * number)
        turns = []
        real = trio.lowlevel.checkpoint

        async def counted() -> None:
            turns.append(1)
            await real()

        monkeypatch.setattr(trio.lowlevel, "checkpoint", counted)
        found = await told(site, "/-/streams?sort=bytes&limit=2")
        names = [row["stream_id"] for row in found["streams"]]  # type: ignore[attr-defined]
        assert (names, len(turns)) == (["s24", "s23"], 3)


async def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "ROWS_MAX", 5)
    assert inspection._rows.__defaults__ == (200,)
    async with serving() as site:
        await site.raw("PUT", f"{PREFIX}a", TEXT, b"one")
        for number in range(8):
            await site.raw("POST", f"{PREFIX}a", {**TEXT, **producer(f"p{number}", 0, 0)}, b"x")
        shown = await told(site, f"/-/streams{PREFIX}a")
        assert shown["producers_total"] == 8
    rows = inspection._rows("x", list(range(1000)))
    assert (len(rows["x"]), rows["x_total"]) == (200, 1000)  # type: ignore[arg-type]


async def test_the_server_is_shown_to_admins_and_streams_to_who_may_read_them(
    tmp_path: Path,
) -> None:
    tokens = {"ops": "scopes=admin", "reader": f"scopes=read prefix={PREFIX}a"}
    async with guarded(tmp_path / "tokens", tokens) as site:
        for name in ("a/one", "b/two"):
            await site.raw("PUT", PREFIX + name, bearer("root", **TEXT), b"x")

        async def ask(route: str, token: str) -> Reply:
            return await site.raw("GET", route, bearer(token))

        for route in SERVER_ROUTES:
            assert (await ask(route, "ops")).status == 200
            assert [(await ask(route, each)).status for each in ("reader", "no")] == [403, 401]
        for query in ("", "?sort=bytes"):
            rows = (await ask(f"/-/streams{query}", "reader")).json["streams"]
            assert [row["stream_id"] for row in rows] == ["a/one"]
        assert (await ask(f"/-/streams{PREFIX}a/one", "reader")).status == 200
        assert (await ask(f"/-/streams{PREFIX}b/two", "reader")).status == 403
        assert (await ask("/-/streams", "ops")).status == 403
        assert (await site.raw("GET", "/-/inspector")).status == 200, "the page shows nothing"


async def test_the_page_runs_nothing_but_itself() -> None:
    async with serving() as site:
        reply = await site.raw("GET", "/-/inspector")
        page, policy = reply.body.decode(), reply["Content-Security-Policy"]
        assert len(reply.body) < 60_000
        for tag, kind in (("script", "script-src"), ("style", "style-src")):
            (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            assert f"{kind} 'sha256-{digest}'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", page)


async def test_a_browser_is_led_to_the_page_and_others_are_not() -> None:
    async with serving() as site:
        led = await site.raw("GET", "/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (led.status, led["Location"]) == (307, "/-/inspector")
        assert (await site.raw("GET", "/", {"Accept": "*/*"})).status != 307


def test_recent_lines_are_kept_without_what_they_hold_on_to() -> None:
    kept = logs.Recent()
    logger = logging.getLogger("tests.recent")
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    try:
        raise ValueError("why" * 1000)
    except ValueError:
        logger.exception("it failed")
    for number in range(logs.RECENT_MAX):
        logger.info("line %d", number, extra={"fields": {"n": number}})
    logger.removeHandler(kept)
    lines = kept.lines()
    assert len(lines) == logs.RECENT_MAX
    assert lines[0]["message"] == "line 0", "the oldest has gone"
    assert lines[-1]["fields"] == {"n": str(logs.RECENT_MAX - 1)}
