"""A name's lives are told apart: the header everywhere, the precondition, restarts and restores."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from durastreamd.protocol import offsets
from durastreamd.storage import format as fmt
from tests.service.harness import CLOSE, PREFIX, TEXT, Site, producer, serving
from tests.support.held_writer import reopen


async def made_anew(site: Site, name: str = "s") -> tuple[str, str]:
    """Make a stream, delete it, make it again; return the ids of both lives."""
    first = await site.make(name)
    assert (await site.ask("DELETE", name)).status == 204
    second = await site.make(name)
    return first["Stream-Incarnation"], second["Stream-Incarnation"]


@pytest.mark.usefixtures("autojump_clock")
async def test_every_answer_about_a_stream_says_which_life_it_is() -> None:
    async with serving() as site:
        life = (await site.make("s"))["Stream-Incarnation"]
        await site.add("s", b"hello")
        await site.raw("PUT", f"{PREFIX}s/snapshot/{offsets.mint(5)}", TEXT, b"blob")
        read = await site.ask("GET", f"s?offset={offsets.mint(5)}")
        for method, target, head, status in [
            ("PUT", "s", TEXT, 200),
            ("HEAD", "s", None, 200),
            ("HEAD", "s?at-message=0", None, 200),
            ("GET", f"s?offset={offsets.mint(5)}", None, 200),
            ("GET", "s?offset=now", None, 200),
            ("GET", f"s?offset={offsets.mint(5)}", {"If-None-Match": read["ETag"]}, 304),
            ("GET", "s?offset=now&live=long-poll", None, 204),
            ("GET", "s/bootstrap", None, 200),
            ("GET", "s/snapshot", None, 307),
            ("GET", f"s/snapshot/{offsets.mint(5)}", None, 200),
        ]:
            reply = await site.ask(method, target, head)
            assert (reply.status, reply["Stream-Incarnation"]) == (status, life), target
        await site.add("s", b"", CLOSE)
        reply = await site.ask("GET", f"s?offset={offsets.mint(5)}&live=sse")
        assert (reply.status, reply["Stream-Incarnation"]) == (200, life)


async def test_a_name_that_is_made_anew_has_another_life_and_another_tag() -> None:
    async with serving() as site:
        old, new = await made_anew(site)
        assert old != new
        assert new in (await site.ask("GET", "s"))["ETag"]


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("GET", "?offset=-1", b""), ("GET", "?offset=-1&live=long-poll", b""),
        ("GET", "?offset=-1&live=sse", b""), ("HEAD", "", b""), ("HEAD", "?at-message=0", b""),
        ("POST", "", b"more"), ("PUT", "", b""), ("DELETE", "", b""), ("GET", "/bootstrap", b""),
        ("GET", "/snapshot", b""), ("PUT", f"/snapshot/{offsets.mint(0)}", b"blob"),
    ],
)  # fmt: skip
async def test_what_is_asked_of_another_life_is_412_and_changes_nothing(
    method: str, rest: str, body: bytes
) -> None:
    async with serving() as site:
        old, new = await made_anew(site)
        reply = await site.ask(method, "s" + rest, {**TEXT, "Stream-Incarnation": old}, body)
        assert (reply.status, reply["Stream-Incarnation"]) == (412, new), reply
        assert method == "HEAD" or reply.json["code"] == "PRECONDITION_FAILED"
        head = await site.head("s")
        assert (head["Stream-Incarnation"], head.next) == (new, offsets.mint(0))
        assert head.get("Stream-Snapshot-Offset") is None


async def test_what_is_asked_of_this_life_is_served() -> None:
    async with serving() as site:
        _, life = await made_anew(site)
        head = {**TEXT, "Stream-Incarnation": life}
        assert (await site.ask("PUT", "s", head)).status == 200
        assert (await site.ask("POST", "s", head, b"hello")).status == 204
        assert (await site.ask("GET", f"s?offset=-1&incarnation={life}", head)).body == b"hello"
        assert (await site.ask("GET", f"s?offset=-1&incarnation={life}x", head)).status == 412
        assert (await site.ask("HEAD", f"s?incarnation={life}", head)).status == 200
        assert (await site.ask("DELETE", "s", head)).status == 204
        for method in ("GET", "HEAD", "POST", "DELETE"):
            assert (await site.ask(method, "s", head, b"x")).status == 404
        assert (await site.ask("PUT", "s", head)).status == 412
        assert (await site.ask("HEAD", "s")).status == 404


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_a_request_that_waited_is_judged_by_the_stream_it_finds(method: str) -> None:
    """A producer's repeat must not be recognised by a stream that never saw the original."""
    async with serving() as site:
        life = (await site.make("s"))["Stream-Incarnation"]
        writer = site.bench.writer
        writer.holding = True
        bound = {**TEXT, "Stream-Incarnation": life, **producer("p", 0, 0)}
        asked = [("DELETE", {}, b""), ("PUT", TEXT, b""), (method, bound, b"")]
        if method == "POST":
            asked[-1] = ("POST", bound, b"x")
        waiting = []
        for verb, head, body in asked:
            connection = site.connect()
            waiting.append(connection)
            await connection.send(verb, PREFIX + "s", head, body)
            await wait_all_tasks_blocked()
        writer.release()
        assert [(await each.whole()).status for each in waiting] == [204, 201, 412]
        assert (await site.head("s")).next == offsets.mint(0)


async def test_a_life_goes_on_over_a_restart() -> None:
    async with serving() as site:
        life = (await site.make("s"))["Stream-Incarnation"]
        engine = reopen(site.bench.disk)
        assert engine.incarnation(engine.namespace.by_key["/s"]) == life
        engine.release()


def test_an_id_is_of_its_directory_its_number_its_moment_and_its_name() -> None:
    """Numbers begin anew with each directory, and are given again after a restore."""
    lives = {
        fmt.incarnation(uuid, number, created_ms, key)
        for uuid in (b"a" * 16, b"b" * 16)
        for number in (1, 2)
        for created_ms in (1000, 1001)
        for key in ("/s", "/t")
    }
    assert len(lives) == 16
    assert all(len(life) == 16 and int(life, 16) >= 0 for life in lives)
    assert fmt.incarnation(b"a" * 16, 1, 1000, "/s") == "c3eaf213d5903f0d", "clients keep these"


# --- compare and append ---


async def test_only_one_of_many_writers_at_one_offset_is_taken() -> None:
    async with serving() as site:
        await site.make("s")
        statuses: list[int] = []

        async def write(number: int) -> None:
            connection = site.connect()
            head = {**TEXT, "Stream-Expected-Offset": offsets.mint(0)}
            await connection.send("POST", PREFIX + "s", head, b"%d" % number)
            reply = await connection.whole()
            statuses.append(reply.status)
            assert reply.next == offsets.mint(1)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(write, number)
        assert sorted(statuses) == [204] + [409] * 7
        assert len((await site.ask("GET", "s")).body) == 1


@pytest.mark.parametrize("size", [5, 200_000], ids=["quick", "large"])
async def test_a_repeat_of_a_producer_stays_a_repeat_wherever_the_stream_ends(size: int) -> None:
    async with serving() as site:
        await site.make("s")
        head = {**TEXT, **producer("p", 0, 0), "Stream-Expected-Offset": offsets.mint(0)}
        body = b"x" * size
        assert [(await site.ask("POST", "s", head, body)).status for _ in range(2)] == [200, 204]
        head |= producer("p", 0, 1)
        reply = await site.ask("POST", "s", head, body)
        assert (reply.status, reply.json["reason"]) == (409, "OFFSET_CONFLICT")
        head["Stream-Expected-Offset"] = reply.next
        assert (await site.ask("POST", "s", {**head, **CLOSE}, body)).status == 200
        assert (await site.ask("POST", "s", {**head, **CLOSE}, body)).status == 204
