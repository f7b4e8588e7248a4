"""State machines as tables.

A machine is an enum of states, an enum of events and one table, ``{(state, event): state}``, at the
top of the file that obeys it. ``moves`` cuts the table by event, so that a move is one look-up::

    OPEN, LAND = moves(TRANSITIONS, Event)
    self.state = OPEN[self.state]

An event that the table does not have for a state is a bug of ours, and says so.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

StateT = TypeVar("StateT", bound=IntEnum)
EventT = TypeVar("EventT", bound=IntEnum)


class Moves(dict[StateT, StateT]):
    """Where one event leads, from each state that knows it."""

    def __init__(self, event: IntEnum, after: Mapping[StateT, StateT]) -> None:
        super().__init__(after)
        self._event = event

    def __missing__(self, state: StateT) -> StateT:
        known = ", ".join(one.name for one in self) or "no state"
        message = f"{self._event.name} cannot happen in {state.name}, only in {known}"
        raise AssertionError(message)


def moves(
    table: Mapping[tuple[StateT, EventT], StateT], events: Iterable[EventT]
) -> list[Moves[StateT]]:
    """Return the moves of each event, in the order of the events."""
    return [
        Moves(event, {state: after for (state, on), after in table.items() if on is event})
        for event in events
    ]
