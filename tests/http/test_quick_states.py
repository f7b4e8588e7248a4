"""Every state of the quick turns against every event: where it goes, or that it cannot happen."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio
from trio.abc import Clock
from trio.testing import wait_all_tasks_blocked

from durastreamd.http.budget import TINY_BYTES
from durastreamd.http.h1 import quick as h1_quick
from durastreamd.http.h1.quick import TRANSITIONS, Event, QuickTurns, State
from tests.http.harness import Client, Harness, echo, running
from tests.http.test_quick import Quick, post
from tests.support.machines import assert_drawn, assert_known

COUNTED = TINY_BYTES + 1  # a body that needs a claim
SLOW = post("/slow")  # the quick half declines it


def now(turns: QuickTurns) -> State:
    """Return the state, which a type checker would take for what it was."""
    return turns.state


class Watched(NamedTuple):
    """A connection in a given state, its quick turns, and what moved them."""

    harness: Harness
    client: Client
    quick: Quick
    turns: QuickTurns


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    made: list[QuickTurns] = []

    class Noted(QuickTurns):
        __slots__ = ()

        def release(self) -> None:
            super().release()
            self.check()

    def make(*parts: object) -> QuickTurns:
        made.append(Noted(*parts))  # type: ignore[arg-type]
        return made[0]

    monkeypatch.setattr("durastreamd.http.h1.connection.QuickTurns", make)
    quick = Quick(at_once=False)
    async with running(echo, quick=quick) as harness:
        client = harness.connect()
        await client.ask(post("/first"))
        await wait_all_tasks_blocked()
        yield Watched(harness, client, quick, made[0])
        while quick.owed:
            quick.answer()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_each_state_knows_each_event(state: State, event: Event) -> None:
    assert_known(TRANSITIONS, state, event)


async def test_the_way_of_a_quick_request(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(monkeypatch) as seen:
        assert now(seen.turns) is State.PARKED
        await seen.client.send(post("/1"))
        await wait_all_tasks_blocked()
        assert now(seen.turns) is State.REPLYING
        await seen.client.send(SLOW)  # remembered
        await wait_all_tasks_blocked()
        assert now(seen.turns) is State.REPLYING
        seen.quick.answer()
        assert now(seen.turns) is State.AWAKE
        assert (await seen.client.response()).body == b"POST /1 1.1 x"
        assert (await seen.client.response()).body == b"POST /slow 1.1 x"
        await wait_all_tasks_blocked()
        assert now(seen.turns) is State.PARKED


async def test_the_way_of_a_declined_request(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[State] = []
    original = QuickTurns.__dict__["state"]

    def noting(self: QuickTurns, state: State) -> None:
        original.fset(self, state)
        states.append(state)

    async with watched(monkeypatch) as seen:
        monkeypatch.setattr(QuickTurns, "state", original.setter(noting))
        await seen.client.ask(SLOW)
        await wait_all_tasks_blocked()
    assert states[:4] == [State.REPLYING, State.PARKED, State.AWAKE, State.PARKED]


async def test_the_way_of_a_request_whose_client_is_gone(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(monkeypatch) as seen:
        await seen.client.send(post("/1"))
        await wait_all_tasks_blocked()
        seen.client.hang_up()
        await wait_all_tasks_blocked()
        assert now(seen.turns) is State.REPLYING  # what it asked for is being stored
        seen.quick.answer()
        await wait_all_tasks_blocked()
        assert now(seen.turns) is State.AWAKE
        assert seen.harness.server.statistics.connections_open == 0


async def test_the_way_of_a_request_whose_server_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Watched] = []
    with trio.CancelScope() as scope:
        async with watched(monkeypatch) as seen:
            kept.append(seen)
            await seen.client.send(post("/1", b"x" * COUNTED))
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    turns = kept[0].turns
    assert now(turns) is State.ORPHANED
    assert turns._claim.held == COUNTED
    kept[0].quick.answer()
    assert now(turns) is State.AWAKE
    assert turns._claim.held == 0


async def test_a_quick_half_that_fails_leaves_a_state_behind(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it has answered before or not; and the request is not done a second time."""
    for answers in (False, True):
        done: list[str] = []

        class Failing(Quick):
            def __call__(self, request, body, reply):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204
                done.append(request.target)  # noqa: B023
                if answers:  # noqa: B023
                    reply(200, (), b"")
                raise ZeroDivisionError

        async with running(echo, quick=Failing()) as harness:
            client = harness.connect()
            await client.ask(post("/first"))
            await client.send(post("/1"))
            await wait_all_tasks_blocked()
            assert harness.server.statistics.connections_open == 0
            assert done == ["/1"]
            assert harness.server.statistics.exchanges_total == 1
    assert "ZeroDivisionError" in caplog.text


def test_the_table_is_the_one_in_the_text() -> None:
    assert_drawn(h1_quick.__doc__, TRANSITIONS)
