"""The headers of the protocol, both ways: what the public conformance suite leaves out."""

from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.service.limits import Limits, ReadLimits
from tests.service.events import Follow
from tests.service.harness import (
    CLOSE,
    JSON,
    PREFIX,
    TEXT,
    Site,
    now_ms,
    producer,
    serving,
)

Clock = MockClock
BIGGEST = 2**53 - 1
NOT_TRUE = ["false", "yes", "1", "", "truee", "true, true", "true;q=1"]


# --- Stream-Closed ---


@pytest.mark.parametrize("value", ["true", "TRUE", "True", "tRuE", " true "])
@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_stream_closed_is_true_in_any_case(site: Site, value: str, method: str) -> None:
    if method == "POST":
        await site.make("s")
    reply = await site.ask(method, "s", {**TEXT, "Stream-Closed": value}, b"x")
    assert reply["Stream-Closed"] == "true"
    assert (await site.head("s"))["Stream-Closed"] == "true"


@pytest.mark.parametrize("value", NOT_TRUE)
async def test_stream_closed_of_any_other_value_is_ignored(site: Site, value: str) -> None:
    head = {**TEXT, "Stream-Closed": value}
    assert (await site.ask("PUT", "s", head)).status == 201
    assert (await site.ask("PUT", "s", head)).status == 200
    reply = await site.ask("POST", "s", head, b"x")
    assert (reply.status, reply.get("Stream-Closed")) == (204, None)
    assert (await site.head("s")).get("Stream-Closed") is None


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("asked", [False, True])
async def test_create_again_must_agree_on_closure(site: Site, *, there: bool, asked: bool) -> None:
    await site.make("created", {**TEXT, **CLOSE} if there else TEXT)
    await site.make("later")
    if there:
        await site.add("later", b"", CLOSE)
    for name in ("created", "later"):
        reply = await site.ask("PUT", name, {**TEXT, **CLOSE} if asked else TEXT)
        assert reply.status == (200 if there == asked else 409)
        if reply.status == 200:
            assert reply.get("Stream-Closed") == ("true" if there else None)


async def test_long_poll_woken_by_a_closure_says_so(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    bare = await site.open("s?offset=now&live=long-poll")
    await wait_all_tasks_blocked()
    begun = trio.current_time()
    await site.add("s", b"", CLOSE)
    reply = await bare.whole()
    assert (reply.status, reply["Stream-Closed"], reply["Stream-Up-To-Date"]) == (
        204,
        "true",
        "true",
    )
    assert reply.next == f"{5:016d}"
    assert trio.current_time() == begun


async def test_long_poll_woken_by_an_append_that_closes_has_both(
    autojump_clock: Clock, site: Site
) -> None:
    await site.make("s", TEXT, b"hello")
    poll = await site.open("s?offset=now&live=long-poll")
    await wait_all_tasks_blocked()
    await site.add("s", b" end", {**TEXT, **CLOSE})
    reply = await poll.whole()
    assert (reply.status, reply.body, reply["Stream-Closed"]) == (200, b" end", "true")


async def test_events_of_a_closed_stream_are_up_to_date_closed_and_over(site: Site) -> None:
    await site.make("s", {**TEXT, **CLOSE}, b"all")
    follow = Follow(await site.open("s?offset=-1&live=sse"))
    data, control = await follow.pair()
    assert data == b"all"
    closed = {"streamNextOffset": f"{3:016d}", "upToDate": True, "streamClosed": True}
    assert control == closed
    assert await follow.event() is None
    at_end = Follow(await site.open(f"s?offset={3:016d}&live=sse"))
    assert await at_end.pair() == (b"", closed)
    assert await at_end.event() is None


# --- ETag, If-None-Match ---


async def tag(site: Site, name: str = "s?offset=-1", **head: str) -> str:
    return (await site.get(name, {key.replace("_", "-"): value for key, value in head.items()}))[
        "ETag"
    ]


async def test_closure_changes_the_tag_though_no_byte_was_added(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    before, head = await tag(site), (await site.head("s"))["ETag"]
    await site.add("s", b"", CLOSE)
    reply = await site.get("s?offset=-1", {"If-None-Match": before})
    assert (reply.status, reply["Stream-Closed"]) == (200, "true")
    assert reply["ETag"] != before
    assert (await site.head("s"))["ETag"] != head


async def test_stream_made_anew_never_matches_an_old_tag(site: Site) -> None:
    await site.make("s", TEXT, b"first")
    before = await tag(site)
    await site.ask("DELETE", "s")
    await site.make("s", TEXT, b"other")
    assert (await site.get("s?offset=-1", {"If-None-Match": before})).body == b"other"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("{tag}", 304),
        ("*", 304),
        ('"a", {tag}', 304),
        ('"a",{tag} , "b"', 304),
        ('"a", "b"', 200),
        ("", 200),
        ("{bare}", 200),
    ],
)
async def test_if_none_match_takes_lists_and_a_star(site: Site, given: str, status: int) -> None:
    await site.make("s", TEXT, b"hello")
    found = await tag(site)
    value = given.format(tag=found, bare=found.strip('"'))
    reply = await site.get("s?offset=-1", {"If-None-Match": value})
    assert reply.status == status
    assert reply["ETag"] == found
    assert reply.next == f"{5:016d}"
    if status == 304:
        assert reply.body == b""
        assert reply.get("Content-Length") in (None, "5")


async def test_if_none_match_compares_weakly(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    weak = "W/" + await tag(site)  # what nginx makes of a tag when it compresses
    assert (await site.get("s?offset=-1", {"If-None-Match": weak})).status == 304


async def test_read_of_the_end_has_no_tag_and_is_not_conditional(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    reply = await site.get("s?offset=now", {"If-None-Match": "*"})
    assert (reply.status, reply.get("ETag")) == (200, None)


async def test_tags_of_ranges_differ(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    middle = (await site.add("s", b"world")).next
    assert len({await tag(site), await tag(site, f"s?offset={middle}")}) == 2


# --- Cache-Control ---


async def test_each_mode_has_its_cache_control(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    await site.make("closed", {**TEXT, **CLOSE}, b"final")
    kept = "public, max-age=60, stale-while-revalidate=300"
    modes = {
        "s": kept,
        "s?offset=-1": kept,
        "s?offset=now": "no-store",
        "s?offset=-1&live=long-poll": kept,
        "s?offset=-1&live=long-poll&cursor=7": kept,
        "s?offset=now&live=long-poll": "no-store",
        f"s?offset={5:016d}": "public, no-cache",
        f"s?offset={5:016d}&live=long-poll": "no-store",
        f"closed?offset={5:016d}": kept,
        f"closed?offset={5:016d}&live=long-poll": "no-store",
        "missing": "no-store",
    }
    for name, expected in modes.items():
        assert (await site.get(name))["Cache-Control"] == expected, name
    events = await (await site.open("s?offset=-1&live=sse")).head()
    assert events["Cache-Control"] == "no-cache"
    assert events["X-Accel-Buffering"] == "no"
    assert events["Content-Type"] == "text/event-stream"
    assert events.get("Content-Length") is None
    assert (await site.head("s"))["Cache-Control"] == "no-store"


async def test_a_poll_that_waited_is_kept_if_its_url_names_a_place(
    autojump_clock: Clock, site: Site
) -> None:
    await site.make("s", TEXT, b"hello")
    polls = [await site.open(f"s?offset={at}&live=long-poll") for at in (f"{5:016d}", "now")]
    await wait_all_tasks_blocked()
    await site.add("s", b"world")
    named, moving = [await poll.whole() for poll in polls]
    assert (named.body, moving.body) == (b"world", b"world")
    assert named["Cache-Control"] == "public, max-age=60, stale-while-revalidate=300"
    assert named["ETag"] == (await site.get(f"s?offset={5:016d}"))["ETag"]
    assert (moving["Cache-Control"], moving.get("ETag")) == ("no-store", None)
    assert int(named["Stream-Cursor"]) == int(moving["Stream-Cursor"])


# --- Stream-Cursor ---


async def test_cursor_grows_when_it_is_echoed(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    name = "s?offset=-1&live=long-poll&cursor="
    seen = int((await site.get(name))["Stream-Cursor"])
    for _ in range(3):
        again = int((await site.get(f"{name}{seen}"))["Stream-Cursor"])
        assert again > seen
        seen = again
    await trio.sleep(70)
    later = int((await site.get(name + "5"))["Stream-Cursor"])
    assert later >= seen


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "9" * 30, "%C2%B2", "9" * 4000])
async def test_odd_cursor_is_ignored(site: Site, cursor: str) -> None:
    await site.make("s", TEXT, b"hello")
    for live in ("long-poll", "sse"):
        reply = await (await site.open(f"s?offset=-1&live={live}&cursor={cursor}")).head()
        assert reply.status == 200


async def test_endless_cursor_is_ignored(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    assert (await site.get("s?offset=-1&live=long-poll&cursor=" + "9" * 5000)).status == 200


# --- producers and Stream-Seq ---


async def test_greatest_epoch_and_sequence_numbers_are_taken(site: Site) -> None:
    await site.make("s")
    reply = await site.add("s", b"x", {**TEXT, **producer("p", BIGGEST, 0)})
    assert (reply.status, reply["Producer-Epoch"]) == (200, str(BIGGEST))
    gap = await site.ask("POST", "s", {**TEXT, **producer("p", BIGGEST, BIGGEST)}, b"x")
    assert (gap.status, gap["Producer-Received-Seq"]) == (409, str(BIGGEST))
    for beyond in (producer("p", BIGGEST + 1, 0), producer("p", 0, BIGGEST + 1)):
        assert (await site.ask("POST", "s", {**TEXT, **beyond}, b"x")).status == 400


async def test_duplicate_says_the_highest_accepted_sequence_number(site: Site) -> None:
    await site.make("s")
    for seq in range(4):
        await site.add("s", b"x", {**TEXT, **producer("p", 0, seq)})
    reply = await site.add("s", b"other", {**TEXT, **producer("p", 0, 1)})
    assert (reply.status, reply["Producer-Seq"], reply.next) == (204, "3", f"{4:016d}")


async def test_closing_append_repeated_is_a_duplicate_and_keeps_the_first_body(site: Site) -> None:
    await site.make("s")
    closing = {**TEXT, **CLOSE, **producer("p", 0, 0)}
    assert (await site.add("s", b"first", closing)).status == 200
    again = await site.add("s", b"second", closing)
    assert (again.status, again["Stream-Closed"]) == (204, "true")
    assert (await site.get("s?offset=-1")).body == b"first"
    other = await site.ask("POST", "s", {**closing, **producer("p", 0, 1)}, b"x")
    assert (other.status, other["Stream-Closed"]) == (409, "true")


async def test_refused_append_leaves_producer_and_sequence_as_they_were(site: Site) -> None:
    await site.make("s", JSON)
    head = {**JSON, **producer("p", 0, 0), "Stream-Seq": "m"}
    assert (await site.ask("POST", "s", head, b"{")).status == 400
    assert (await site.ask("POST", "s", head, b"[]")).status == 400
    assert (await site.ask("POST", "s", {**head, **TEXT}, b"1")).status == 409
    assert (await site.add("s", b"1", head)).status == 200
    assert (await site.add("s", b"1", head)).status == 204  # a duplicate is no regression
    assert (await site.get("s?offset=-1")).json == [1]


# --- JSON ---


async def test_read_of_a_json_stream_is_an_array_at_every_place(site: Site) -> None:
    empty = await site.make("s", JSON, b"[]")
    assert (await site.get(f"s?offset={empty.next}")).body == b"[]"
    first = await site.add("s", b'[[1, 2], {"a": [3]}]', JSON)
    second = await site.add("s", b" null ", JSON)
    assert (await site.get("s?offset=-1")).json == [[1, 2], {"a": [3]}, None]
    assert (await site.get(f"s?offset={first.next}")).json == [None]
    tail = await site.get(f"s?offset={second.next}")
    assert (tail.body, tail["Content-Type"], tail["Stream-Up-To-Date"]) == (
        b"[]",
        "application/json",
        "true",
    )
    assert (await site.get("s?offset=now")).body == b"[]"


@pytest.mark.parametrize("over", [0, 2, 3, 63])
async def test_json_page_of_several_pieces_is_one_array(over: int) -> None:
    async with serving(Limits(reads=ReadLimits(piece_bytes=64))) as site:
        await site.make("s", JSON)
        await site.add("s", b'"%b"' % (b"x" * (124 + over)), JSON)
        assert (await site.get("s?offset=-1")).json == ["x" * (124 + over)]


async def test_json_page_whose_last_piece_is_one_byte_is_one_array() -> None:
    async with serving(Limits(reads=ReadLimits(piece_bytes=64))) as site:
        await site.make("s", JSON)
        await site.add("s", b'"%b"' % (b"x" * 125), JSON)
        assert (await site.get("s?offset=-1")).json == ["x" * 125]


# --- forks ---


async def test_fork_inherits_no_sequence_and_no_producers(site: Site) -> None:
    await site.make("s")
    await site.add("s", b"x", {**TEXT, **producer("p", 5, 0), "Stream-Seq": "z"})
    await site.make("f", {"Stream-Forked-From": PREFIX + "s"})
    assert (await site.add("f", b"y", {**TEXT, "Stream-Seq": "a"})).status == 204
    assert (await site.add("f", b"z", {**TEXT, **producer("p", 0, 0)})).status == 200
    assert (await site.get("f?offset=-1")).body == b"xyz"


MOMENTS = ["2030-01-31T12:00:00Z", "2031-05-05T05:05:05.123+02:00", "2032-02-29T23:59:59.999z"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_fork_inherits_the_very_moment_of_expiry(site: Site, moment: str) -> None:
    await site.make("s", {**TEXT, "Stream-Expires-At": moment}, b"x")
    await site.make("f", {"Stream-Forked-From": PREFIX + "s"})
    shown = (await site.head("s"))["Stream-Expires-At"]
    assert datetime.fromisoformat(shown) == datetime.fromisoformat(moment.upper())
    assert (await site.head("f"))["Stream-Expires-At"] == shown
    again = {**TEXT, "Stream-Expires-At": shown}
    assert (await site.ask("PUT", "s", again)).status == 200


async def test_every_millisecond_comes_back_as_given(site: Site) -> None:
    for number in range(1000):
        moment = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=number * 7, milliseconds=number)
        given = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        await site.make(f"s{number}", {**TEXT, "Stream-Expires-At": given})
        assert (await site.head(f"s{number}"))["Stream-Expires-At"] == given


async def test_moment_past_the_calendar_is_refused_or_shown(site: Site) -> None:
    head = {**TEXT, "Stream-Expires-At": "9999-12-31T23:59:59-01:00"}
    if (await site.ask("PUT", "s", head)).status == 201:
        assert (await site.head("s")).status == 200


async def test_source_that_is_no_url_is_refused(site: Site) -> None:
    reply = await site.ask("PUT", "f", {"Stream-Forked-From": "http://[::1/v1/stream/s"})
    assert reply.status == 400


async def test_fork_made_anew_while_it_is_deleted_begins_at_its_offset(
    autojump_clock: Clock, site: Site
) -> None:
    middle = (await site.make("s", TEXT, b"hello")).next
    await site.add("s", b"world")
    fork = {"Stream-Forked-From": PREFIX + "s", "Stream-Fork-Offset": middle}
    await site.make("f", fork)
    await site.bench.hold()
    deletion, again = site.connect(), site.connect()
    await deletion.send("DELETE", PREFIX + "f", None)
    await wait_all_tasks_blocked()
    await again.send("PUT", PREFIX + "f", fork)
    await wait_all_tasks_blocked()
    site.bench.writer.release()
    assert (await deletion.whole()).status == 204
    assert (await again.whole()).status == 201
    assert (await site.get("f?offset=-1")).body == b"hello"


# --- lifetimes ---

TOUCHES = ["s?offset=-1", "s?offset=now", "s?offset=now&live=long-poll", "s?offset=-1&live=sse"]


@pytest.mark.parametrize("name", TOUCHES)
async def test_read_renews_a_lifetime_when_it_begins(
    autojump_clock: Clock, site: Site, name: str
) -> None:
    await site.make("s", {**TEXT, "Stream-TTL": "10"}, b"x")
    await trio.sleep(9)
    reading = await site.open(name)
    await wait_all_tasks_blocked()
    await trio.sleep(9)
    assert (await site.head("s")).status == 200
    reading.hang_up()
    await trio.sleep(1.5)
    assert (await site.head("s")).status == 404


async def test_head_renews_nothing_and_shows_the_window(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", {**TEXT, "Stream-TTL": "10"})
    for _ in range(9):
        await trio.sleep(1)
        assert (await site.head("s"))["Stream-TTL"] == "10"
    await trio.sleep(1.5)
    assert (await site.head("s")).status == 404


async def test_reads_do_not_move_a_fixed_moment(autojump_clock: Clock, site: Site) -> None:
    moment = datetime.fromtimestamp((now_ms() + 10_000) / 1000, UTC).isoformat()
    await site.make("s", {**TEXT, "Stream-Expires-At": moment}, b"x")
    for _ in range(9):
        await trio.sleep(1)
        assert (await site.get("s?offset=-1")).status == 200
    await trio.sleep(1.5)
    assert (await site.get("s?offset=-1")).status == 404
