"""Every state of the actor and the committer against every event: where it goes, or that it cannot.

First the tables by themselves, then what the code does in each state with all that can come. That
what a state promises holds after each step is seen to by every test here (conftest.py).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.errors import DurastreamError, OverloadedError, WriteFailedError
from durastreamd.model.draft import AppendCommand
from durastreamd.model.namespace import CreateCommand
from durastreamd.protocol.outcomes import Appended, Deleted
from durastreamd.streams import actor as actor_module, committer as committer_module
from durastreamd.streams.actor import Actor, ActorEvent, ActorState
from durastreamd.streams.committer import Committer, CommitterEvent, CommitterState
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.ticket import Command, DeleteCommand, Ticket
from tests.support.held_writer import NOW, TEXT, Bench, append, cancelled
from tests.support.machines import assert_drawn, assert_known

Clock = MockClock


def test_the_tables_are_the_ones_in_the_text() -> None:
    assert_drawn(actor_module.__doc__, actor_module.TRANSITIONS)
    assert_drawn(committer_module.__doc__, committer_module.TRANSITIONS)


@pytest.mark.parametrize("state", ActorState)
@pytest.mark.parametrize("event", ActorEvent)
def test_each_state_of_the_actor_knows_each_event(state: ActorState, event: ActorEvent) -> None:
    assert_known(actor_module.TRANSITIONS, state, event)


@pytest.mark.parametrize("state", CommitterState)
@pytest.mark.parametrize("event", CommitterEvent)
def test_each_state_of_the_committer_knows_each_event(
    state: CommitterState, event: CommitterEvent
) -> None:
    assert_known(committer_module.TRANSITIONS, state, event)


# --- the actor as it is ---


class Loading:
    """A disk that is read when the test says so."""

    def __init__(self, bench: Bench) -> None:
        self.go_on = trio.Event()
        self._blocking = bench.streams.blocking
        bench.streams.blocking = self.blocking  # type: ignore[method-assign,assignment]

    async def blocking(self, job: Callable[[], object]) -> object:
        await self.go_on.wait()
        return await self._blocking(job)


@asynccontextmanager
async def actor_in(state: ActorState) -> AsyncIterator[tuple[Bench, Actor]]:
    """Give an actor in a state, as long as the block lasts; then everything goes on."""
    bench = Bench()
    async with bench.running():
        await bench.make("/s")
        await bench.make("/other")
        await bench.add("/s", b"-", ("p", 0, 0))
        if state is ActorState.LOADING:
            await bench.streams.checkpoint()
            bench.streams._actors.pop("/s").retire()
        loading = Loading(bench)
        await bench.hold()
        if state is ActorState.DRAFTING:  # the committer is busy with another's
            bench.streams.post("/other", append(b"-"))
            await wait_all_tasks_blocked()
        if state is not ActorState.RESTING:
            bench.streams.post("/s", append(b"1"))
            await wait_all_tasks_blocked()
        actor = bench.streams._actors["/s"]
        assert actor.state is state
        yield bench, actor
        loading.go_on.set()
        bench.writer.release()


# What a ticket that comes in a state leaves behind: the state, and how many are queued.
ARRIVALS: dict[tuple[ActorState, type[Command]], tuple[ActorState, int]] = {
    (ActorState.RESTING, AppendCommand): (ActorState.DRAFTING, 0),
    (ActorState.RESTING, DeleteCommand): (ActorState.IN_FLIGHT, 0),
    (ActorState.DRAFTING, AppendCommand): (ActorState.DRAFTING, 0),
    (ActorState.DRAFTING, DeleteCommand): (ActorState.DRAFTING, 1),
    (ActorState.IN_FLIGHT, AppendCommand): (ActorState.IN_FLIGHT, 1),
    (ActorState.IN_FLIGHT, DeleteCommand): (ActorState.IN_FLIGHT, 1),
    (ActorState.LOADING, AppendCommand): (ActorState.LOADING, 2),
    (ActorState.LOADING, DeleteCommand): (ActorState.LOADING, 2),
}


@pytest.mark.parametrize("state", ActorState)
@pytest.mark.parametrize("command", [append(b"2"), DeleteCommand()], ids=["append", "delete"])
async def test_what_a_ticket_does_in_each_state(
    autojump_clock: Clock, state: ActorState, command: Command
) -> None:
    after, queued = ARRIVALS[state, type(command)]
    async with actor_in(state) as (bench, actor):
        ticket = bench.streams.post("/s", command)
        assert (actor.state, actor._queued) == (after, queued)
        late = bench.streams.post("/s", append(b"3"))
        joins = after is ActorState.DRAFTING and not queued
        assert (actor.state, actor._queued) == (after, queued if joins else queued + 1)
        assert not actor.idle
    assert isinstance(await ticket.outcome(), Appended | Deleted)
    assert isinstance(await late.outcome(), Appended) is (type(command) is AppendCommand)
    assert actor.idle


@pytest.mark.parametrize("state", ActorState)
@pytest.mark.parametrize(
    ("event", "call"),
    [
        (ActorEvent.TAKE, Actor.take),
        (ActorEvent.LAND, lambda actor: actor.landed(None)),
    ],
    ids=["take", "land"],
)
async def test_the_committer_is_refused_what_a_state_does_not_know(
    autojump_clock: Clock, state: ActorState, event: ActorEvent, call: Callable[[Actor], object]
) -> None:
    if (state, event) in actor_module.TRANSITIONS:
        return
    async with actor_in(state) as (bench, actor):
        with pytest.raises(AssertionError, match=f"{event.name} cannot happen in {state.name}"):
            call(actor)
        assert actor.state is state
    assert bench.content("/s") == (b"-" if state is ActorState.RESTING else b"-1")


async def test_a_stream_that_cannot_be_loaded_is_at_rest_again(autojump_clock: Clock) -> None:
    async with actor_in(ActorState.LOADING) as (bench, actor):
        behind = bench.streams.post("/s", append(b"2"))
        bench.disk.open_error = "streams"
    with pytest.raises(DurastreamError, match="index cannot be read"):
        await behind.outcome()
    assert actor.idle


async def test_a_load_that_is_cancelled_leaves_nobody_waiting(autojump_clock: Clock) -> None:
    async with cancelled("/s") as bench:
        bench.writer.release()
        await bench.add("/s", b"-", ("p", 0, 0))
        await bench.streams.checkpoint()
        bench.streams._actors.pop("/s").retire()
        Loading(bench)
        ticket = bench.streams.post("/s", append(b"1"))
        await wait_all_tasks_blocked()
        actor = bench.streams._actors["/s"]
        assert actor.state is ActorState.LOADING
    assert actor.idle
    with pytest.raises(DurastreamError):
        await ticket.outcome()


# --- the committer as it is ---


@asynccontextmanager
async def committer_in(state: CommitterState) -> AsyncIterator[Committer]:
    """Give a committer in a state, as long as the block lasts; then everything goes on."""
    bench = Bench()
    async with bench.running():
        await bench.make("/s")
        await bench.hold()
        committer = bench.streams.committer
        if state is CommitterState.ROTATING:
            committer.rotate()
        elif state is not CommitterState.IDLE:
            bench.streams.post("/s", append(b"1"))
        if state is not CommitterState.GATHERING:
            await wait_all_tasks_blocked()
        assert committer.state is state
        yield committer
        bench.writer.release()
        await wait_all_tasks_blocked()
        assert bench.streams.committer.state is CommitterState.IDLE


UNDER_WAY = [state for state in CommitterState if state is not CommitterState.ENDED]


@pytest.mark.parametrize("state", UNDER_WAY)
async def test_what_is_submitted_in_each_state(
    autojump_clock: Clock, state: CommitterState
) -> None:
    gathers = state is CommitterState.IDLE
    async with committer_in(state) as committer:
        waiting = len(committer._waiting)
        committer.mark(NOW)  # only where nothing else is under way
        assert len(committer._waiting) == waiting + gathers
        committer.rotate()
        assert committer.rotation_wanted
        assert committer.state is (CommitterState.GATHERING if gathers else state)


@pytest.mark.parametrize("state", [CommitterState.IDLE, CommitterState.GATHERING])
async def test_a_report_of_what_nobody_was_given_is_refused(
    autojump_clock: Clock, state: CommitterState
) -> None:
    async with committer_in(state) as committer:
        with pytest.raises(AssertionError, match=f"REPORT cannot happen in {state.name}"):
            committer.rotated(None)
        assert committer.state is state
        assert not committer.checkpointing


async def test_a_rotation_that_cannot_begin_yet_lets_the_committer_rest(
    autojump_clock: Clock,
) -> None:
    async with committer_in(CommitterState.IDLE) as committer:
        committer.checkpointing = True
        seen = []
        for step in (committer.rotate, committer.checkpoint_ended):
            step()
            seen.append(committer.state.name)
            await wait_all_tasks_blocked()
            seen.append(committer.state.name)
        assert seen == ["GATHERING", "IDLE", "GATHERING", "ROTATING"]


@pytest.mark.parametrize("state", UNDER_WAY)
async def test_each_state_can_be_the_last(autojump_clock: Clock, state: CommitterState) -> None:
    """Everybody is told; a hand-over that was due and reports that come later change nothing."""
    tickets: list[Ticket] = []
    async with cancelled("/s") as bench:
        committer = bench.streams.committer
        if state is CommitterState.ROTATING:
            committer.rotate()
            await wait_all_tasks_blocked()
        if state is not CommitterState.IDLE:
            tickets += [bench.streams.post("/s", append(b"1"))]
        if state is CommitterState.WRITING:
            await wait_all_tasks_blocked()
        assert committer.state is state
    assert committer.state is CommitterState.ENDED
    assert all(ticket.settled for ticket in tickets)
    bench.writer.release()
    await wait_all_tasks_blocked()
    assert committer.state is CommitterState.ENDED
    assert not committer.checkpointing
    with pytest.raises(AssertionError, match="END cannot happen in ENDED"):
        committer.abandon()


async def test_a_hand_over_that_was_due_at_the_end_gives_nothing_away() -> None:
    bench = Bench()
    await bench.hold()
    committer = bench.streams.committer
    committer.rotate()
    assert committer.state is CommitterState.GATHERING
    committer.abandon()
    await wait_all_tasks_blocked()
    assert not bench.writer.held


# --- both, whatever comes ---

_KEYS = ("/a", "/b")
_STEPS = st.sampled_from(
    [
        *((what, key) for what in ("append", "long", "delete", "create") for key in _KEYS),
        *((what, "") for what in ("turn", "commit", "fail", "rotate", "retire")),
    ]
)


class Script:
    """Carries out steps on a bench; every acknowledged append is remembered."""

    def __init__(self) -> None:
        self.bench = Bench(limits=StreamLimits(mailbox_max=4))
        self.tickets: list[tuple[str, Command, Ticket]] = []
        self._number = 0

    async def step(self, what: str, key: str) -> None:
        bench = self.bench
        match what:
            case "append" | "long" | "delete" | "create":
                self._post(key, self._command(what, key))
            case "turn":
                await wait_all_tasks_blocked()
            case "commit" | "fail":
                bench.disk.full = "journal" if what == "fail" else ""
                if bench.writer.held:
                    await bench.commit_one()
                bench.disk.full = ""
            case "rotate":
                bench.streams.committer.rotate()
            case _:
                for actor in [one for one in bench.streams._actors.values() if one.idle]:
                    bench.streams._actors.pop(actor.key).retire()

    def _command(self, what: str, key: str) -> Command:
        self._number += 1
        if what == "delete":
            return DeleteCommand()
        if what == "create":
            return CreateCommand(key, content_type=TEXT)
        return append(b"<%d>" % self._number * (100 if what == "long" else 1))

    def _post(self, key: str, command: Command) -> None:
        try:
            self.tickets.append((key, command, self.bench.streams.post(key, command)))
        except OverloadedError:
            pass


@settings(max_examples=100, deadline=None)
@given(st.lists(_STEPS, max_size=40))
def test_whatever_comes_the_states_hold_and_everybody_is_answered_in_order(
    steps: list[tuple[str, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_module, "DRAFT_BYTES_MAX", 150)
        trio.run(carry_out, steps, clock=MockClock(autojump_threshold=0))


async def carry_out(steps: list[tuple[str, str]]) -> None:
    script = Script()
    bench = script.bench
    async with bench.running():
        for key in _KEYS:
            await bench.make(key)
        await bench.hold()
        for what, key in steps:
            await script.step(what, key)
        bench.writer.release()
        expected: dict[str, bytes | None] = dict.fromkeys(_KEYS, b"")
        for key, command, ticket in script.tickets:
            try:
                outcome = await ticket.outcome()
            except WriteFailedError:
                continue
            expected[key] = after(expected[key], command, outcome)
        found = {key: bench.content(key) if exists(bench, key) else None for key in _KEYS}
        assert found == expected
        assert all(actor.idle for actor in bench.streams._actors.values())


def exists(bench: Bench, key: str) -> bool:
    return key in bench.engine.namespace.by_key


def after(stored: bytes | None, command: Command, outcome: object) -> bytes | None:
    """Return what a stream holds after a command, and judge its answer by what it held before."""
    match command:
        case AppendCommand():
            assert isinstance(outcome, Appended) is (stored is not None)
            return None if stored is None else stored + command.payload.data  # type: ignore[union-attr]
        case DeleteCommand():
            assert isinstance(outcome, Deleted) is (stored is not None)
            return None
        case _:
            return stored if stored is not None else b""
