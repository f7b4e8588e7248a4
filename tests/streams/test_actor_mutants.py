"""Seeded bugs of the actor, and the tests that see them; the engine's are in tests/simulation."""

from collections.abc import Awaitable, Callable

import pytest
from trio.testing import MockClock

from durastreamd.model.draft import Draft
from durastreamd.protocol.outcomes import Duplicate
from durastreamd.streams.actor import Actor
from durastreamd.streams.ticket import Ticket
from tests.streams import test_actor

Guard = Callable[[MockClock], Awaitable[None]]


def duplicate_acknowledged_early(patch: pytest.MonkeyPatch) -> None:
    original = Actor._join

    def join(self: Actor, draft: Draft, ticket: Ticket) -> None:
        original(self, draft, ticket)
        for waiting, outcome in self._answers:
            if isinstance(outcome, Duplicate):
                waiting.settle(outcome)

    patch.setattr(Actor, "_join", join)


def refusal_answered_early(patch: pytest.MonkeyPatch) -> None:
    original = Actor._join

    def join(self: Actor, draft: Draft, ticket: Ticket) -> None:
        original(self, draft, ticket)
        for waiting, outcome in self._answers[1:]:
            waiting.settle(outcome)

    patch.setattr(Actor, "_join", join)


@pytest.mark.parametrize("mutant", [duplicate_acknowledged_early, refusal_answered_early])
async def test_an_answer_before_the_commit_is_caught(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    mutant(monkeypatch)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await test_actor.test_duplicate_in_the_same_draft_waits_for_its_original(autojump_clock)
