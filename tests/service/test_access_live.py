"""Live readers end with their token, callers are slowed down, spinning clients are paced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import pytest
import trio
import trio.testing

from durastreamd.errors import ConfigError
from durastreamd.service.access.gate import END_S, Gate
from durastreamd.service.access.grants import Rate, rate_of
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.access.rate import Limiter, caller_of, whole_seconds
from durastreamd.service.limits import Limits, ReadLimits
from tests.service.guards import bearer, guarded, write
from tests.service.harness import CLOSE, TEXT, Connection, HungUpError, Site, serving

ROOT = bearer("root")
SOON = "2027-01-15T08:01:40Z"  # a hundred seconds after harness.NOW
LONG = Limits(reads=ReadLimits(long_poll_s=1000, sse_s=1000, heartbeat_s=15))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


async def reader(site: Site, mode: str, token: str) -> Connection:
    made = await site.open(f"s?offset=now&live={mode}", bearer(token))
    if mode == "sse":
        assert (await made.head()).status == 200
    await trio.testing.wait_all_tasks_blocked()
    return made


async def check_ended(mode: str, connection: Connection) -> None:
    reply = await connection.whole()
    if mode == "sse":
        assert reply.status == 200  # ended in order: the client comes back and is told
    else:
        assert (reply.status, reply.json["code"]) == (401, "UNAUTHENTICATED")


async def furnish(site: Site) -> None:
    assert (await site.ask("PUT", "s", {**ROOT, **TEXT})).status == 201


@asynccontextmanager
async def one_reader(file: Path, mode: str) -> AsyncIterator[tuple[Site, Connection]]:
    """Serve, with a reader at the tail whose token ends soon."""
    async with guarded(file, {"t": f"scopes=read expires={SOON}"}, LONG) as site:
        await furnish(site)
        yield site, await reader(site, mode, "t")


MODES = pytest.mark.parametrize("mode", ["sse", "long-poll"])


@MODES
async def test_a_live_reader_ends_when_its_token_expires(
    file: Path, mode: str, autojump_clock: object
) -> None:
    begun = trio.current_time()
    async with one_reader(file, mode) as (site, connection):
        await check_ended(mode, connection)
        assert 99 <= trio.current_time() - begun <= 101
        site._first = None  # it has been idle for too long
        assert (await site.get("s?offset=-1", bearer("t"))).status == 401
        assert site.app.admission.counts.leases_ended == 1
        assert site.app.admission.gate is not None
        assert not site.app.admission.gate.leases


@MODES
async def test_a_live_reader_ends_when_its_token_is_revoked(
    file: Path, mode: str, autojump_clock: object
) -> None:
    tokens = dict.fromkeys(("gone", "kept", "lessened", "moved"), "scopes=read")
    async with guarded(file, tokens, LONG) as site:
        await furnish(site)
        readers = {token: await reader(site, mode, token) for token in tokens}
        begun = trio.current_time()
        tokens = {
            "root": "scopes=read,write",
            "kept": "scopes=read prefix=/v1/stream/s",
            "lessened": "scopes=write",
            "moved": "scopes=read prefix=/v1/stream/t",
        }
        site.app.restrict(AccessOptions(tokens_file=write(file, tokens)))
        for token in ("gone", "lessened", "moved"):
            await check_ended(mode, readers[token])
        assert trio.current_time() - begun < 1
        # Long-polls were answered 401 and count; an SSE response ends in order and does not.
        answered = 3 if mode == "long-poll" else 0
        assert sum(site.app.admission.counts.failures.values()) == answered
        assert site.app.admission.counts.leases_ended == 3
        assert not readers["kept"].reply.ended
        assert (await site.ask("POST", "s", {**ROOT, **TEXT}, b"hello")).status == 204
        while b"hello" not in readers["kept"].reply.body:
            readers["kept"].reply.body += await readers["kept"].step()
        readers["kept"].hang_up()


@MODES
async def test_a_reload_moves_the_end_of_a_token(
    file: Path, mode: str, autojump_clock: object
) -> None:
    begun = trio.current_time()
    async with one_reader(file, mode) as (site, connection):
        later = {"t": "scopes=read expires=2027-01-15T08:03:20Z"}
        site.app.restrict(AccessOptions(tokens_file=write(file, later)))
        await check_ended(mode, connection)
        assert 199 <= trio.current_time() - begun <= 201


@MODES
async def test_a_bad_reload_ends_nobody_and_none_at_all_frees_everybody(
    file: Path, mode: str, autojump_clock: object
) -> None:
    async with one_reader(file, mode) as (site, connection):
        with pytest.raises(ConfigError):
            site.app.restrict(AccessOptions(tokens_file="/nowhere"))
        site.app.restrict(AccessOptions())
        await trio.sleep(500)
        assert site.app._counts.live[mode.replace("-", "")] == 1
        site._first = None  # it has been idle for too long
        assert (await site.ask("POST", "s", {**CLOSE})).status == 204
        await connection.whole()


@MODES
async def test_a_reader_that_was_permitted_before_a_reload_is_judged_by_it(
    file: Path, mode: str, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reload comes between the permission and the lease."""
    async with guarded(file, {"t": "scopes=read"}, LONG) as site:
        await furnish(site)
        permit = Gate.permit

        def then_reload(self: Gate, *arguments: object) -> object:
            given = permit(self, *arguments)  # type: ignore[arg-type]
            monkeypatch.setattr(Gate, "permit", permit)
            site.app.restrict(AccessOptions(tokens_file=write(file, {"root": "scopes=read"})))
            return given

        monkeypatch.setattr(Gate, "permit", then_reload)
        begun = trio.current_time()
        connection = await site.open(f"s?offset=now&live={mode}", bearer("t"))
        await check_ended(mode, connection)
        assert trio.current_time() - begun < 1


# --- rates ---


async def test_who_asks_too_often_is_told_when_to_come_back(autojump_clock: object) -> None:
    async with serving() as site:
        site.app.restrict(AccessOptions(rate="5/s"))
        assert [(await site.get("s")).status for _ in range(6)] == [404] * 5 + [429]
        reply = await site.get("s")
        assert (reply["Retry-After"], reply.json["code"]) == ("1", "RATE_LIMITED")
        assert reply.json["retryAfter"] == 1
        assert (await site.raw("GET", "/-/healthz")).status == 200
        assert (await site.ask("OPTIONS", "s")).status == 204
        await trio.sleep(0.2)
        assert [(await site.get("s")).status for _ in range(2)] == [404, 429]
        await trio.sleep(60)
        assert [(await site.get("s")).status for _ in range(6)] == [404] * 5 + [429]
        assert site.app.admission.counts.rate_limited == 4
        site.app.restrict(AccessOptions(rate="5/s"))  # a reload is no way to a full bucket
        assert (await site.get("s")).status == 429


async def test_a_token_has_a_bucket_of_its_own(file: Path, autojump_clock: object) -> None:
    tokens = {
        "slow": "scopes=read rate=2/m",
        "fast": "scopes=read rate=50/s",
        "plain": "scopes=read",
    }
    async with guarded(file, tokens, rate="4/s") as site:
        for token, limit in (("slow", 2), ("fast", 50), ("plain", 4)):
            statuses = [(await site.get("s", bearer(token))).status for _ in range(limit + 1)]
            assert statuses == [404] * limit + [429], token
        reply = await site.get("s", bearer("slow"))
        assert 29 <= int(reply["Retry-After"]) <= 30


async def test_appends_are_paid_for_as_well(file: Path, autojump_clock: object) -> None:
    tokens = {"slow": "scopes=write rate=2/m", "plain": "scopes=write"}
    async with guarded(file, tokens) as site:
        await furnish(site)
        head = bearer("slow", **TEXT)
        statuses = [(await site.ask("POST", "s", head, b"x")).status for _ in range(3)]
        assert statuses == [204, 204, 429]
        site.app.restrict(AccessOptions(tokens_file=str(file), rate="3/m"))
        head = bearer("plain", **TEXT)
        statuses = [(await site.ask("POST", "s", head, b"x")).status for _ in range(4)]
        assert statuses == [204, 204, 204, 429]


async def test_guessing_tokens_is_paid_for_by_the_address(
    file: Path, autojump_clock: object
) -> None:
    async with guarded(file, {"t": "scopes=read"}, rate="3/s") as site:
        guesses = [(await site.get("s", bearer(f"guess{n}"))).status for n in range(5)]
        assert guesses == [401] * 3 + [429] * 2
        assert (await site.get("s", bearer("t"))).status == 404  # who has one is not held up


def test_a_caller_is_an_address_or_a_network_of_one_customer() -> None:
    assert caller_of("192.0.2.1:5") == "192.0.2.1"
    assert caller_of("[2001:db8::1]:5") == caller_of("[2001:db8::ffff:2]:6") == "2001:db8::/64"
    assert caller_of("[2001:db8:0:1::1]:5") != caller_of("[2001:db8::1]:5")
    assert caller_of("[::ffff:192.0.2.1]:5") == "192.0.2.1"
    assert caller_of("[fe80::1%eth0]:5") == "fe80::/64"
    assert caller_of("unix") == ""


def test_buckets_are_bounded_however_many_callers_there_are() -> None:
    limiter = Limiter(callers_max=100)
    rate = rate_of("1/h")
    for number in range(1000):
        assert limiter.take(f"caller {number}", rate, number / 1000) == 0
    assert len(limiter) == 100
    assert limiter.take("caller 999", rate, 1.0) > 3500  # the latest are remembered


def test_a_bucket_never_runs_backwards_or_over() -> None:
    limiter = Limiter()
    rate = Rate(2, 2.0)
    assert [limiter.take("a", rate, 0.0) for _ in range(3)] == [0, 0, 0.5]
    assert limiter.take("a", rate, 100.0) == 0
    assert limiter.take("a", rate, 100.0) == 0
    assert limiter.take("a", rate, 100.0) == 0.5
    assert (whole_seconds(0.01), whole_seconds(1.0), whole_seconds(1.01)) == (1, 1, 2)


# --- clients that do not know Stream-Closed ---


@MODES
async def test_asking_again_after_the_end_of_a_closed_stream_is_paced(
    site: Site, mode: str, autojump_clock: object
) -> None:
    await site.make("s", {**TEXT, **CLOSE}, b"all")
    tail = (await site.head("s")).next
    connection = site.connect()
    pauses = []
    for _ in range(5):
        begun = trio.current_time()
        reply = await connection.ask("GET", f"/v1/stream/s?offset={tail}&live={mode}")
        assert reply.status == (204 if mode == "long-poll" else 200)
        pauses.append(round(trio.current_time() - begun, 3))
    assert pauses == [0, 0.075, 0.075, 0.075, 0.075]
    await trio.sleep(10)
    begun = trio.current_time()
    await connection.ask("GET", f"/v1/stream/s?offset={tail}&live={mode}")
    assert trio.current_time() == begun
    # Even so long after, and over any connection, the cursor tells.
    await trio.sleep(10)
    begun = trio.current_time()
    await connection.ask("GET", f"/v1/stream/s?offset={tail}&live={mode}&cursor=7")
    assert round(trio.current_time() - begun, 3) == 0.075


async def test_reading_to_the_end_of_a_closed_stream_is_not_paced(
    site: Site, autojump_clock: object
) -> None:
    await site.make("s", {**TEXT, **CLOSE}, b"all")
    begun = trio.current_time()
    for _ in range(5):
        assert (await site.get("s?offset=-1&live=long-poll")).body == b"all"
    assert trio.current_time() == begun


# --- in the middle of an event ---

WAYS = pytest.mark.parametrize("why", ["revoked", "expired", "renewed"])
SHORT_S = 20.0  # less than a client may take nothing
SHORT = Limits(reads=ReadLimits(sse_s=SHORT_S))
BIG = b"x" * 300_000  # an event of its own, and more than a small buffer takes


async def being_sent(site: Site, file: Path, why: str) -> Connection:
    """Return a reader that took the head alone, at the very end of its time."""
    assert (await site.ask("PUT", "s", {**ROOT, **TEXT}, BIG)).status == 201
    for _ in range(2):
        assert (await site.ask("POST", "s", {**ROOT, **TEXT}, BIG)).status == 204
    made = await site.open("s?offset=-1&live=sse", bearer("t"), 4096)
    assert (await made.head()).status == 200
    if why == "revoked":
        site.app.restrict(AccessOptions(tokens_file=write(file, {"root": "scopes=read"})))
    else:
        await trio.sleep(SHORT_S)
    return made


@asynccontextmanager
async def ending(file: Path, why: str) -> AsyncIterator[Connection]:
    expires = "expires=2027-01-15T08:00:20Z" if why == "expired" else ""
    limits = SHORT if why == "renewed" else LONG
    async with guarded(file, {"t": f"scopes=read {expires}"}, limits) as site:
        yield await being_sent(site, file, why)


@WAYS
async def test_an_event_that_is_being_sent_is_sent_whole(
    file: Path, why: str, autojump_clock: object
) -> None:
    async with ending(file, why) as reader:
        reply = await reader.whole()
        assert reply.ended
        assert reply.body.count(b"event: data") == reply.body.count(b"event: control") == 1
        assert reply.body.endswith(b"\n\n")


@WAYS
async def test_who_does_not_take_it_in_time_is_cut_off(
    file: Path, why: str, autojump_clock: object
) -> None:
    async with ending(file, why) as reader:
        await trio.sleep(END_S + 0.5)
        with pytest.raises((h11.RemoteProtocolError, HungUpError)):
            await reader.whole()
