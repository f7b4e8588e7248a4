"""What is common to the tests of state machines."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import wraps
from typing import Any, TypeVar

import pytest

from durastreamd.machines import moves

StateT = TypeVar("StateT", bound=IntEnum)
EventT = TypeVar("EventT", bound=IntEnum)


def check_after(monkeypatch: pytest.MonkeyPatch, machine: type, *steps: str) -> None:
    """Have a machine checked after each of its steps, also after one that raises."""
    for step in steps:
        monkeypatch.setattr(machine, step, _checked(getattr(machine, step)))


def _checked(step: Callable[..., object]) -> Callable[..., object]:
    @wraps(step)
    def checked(self: Any, *arguments: object) -> object:
        try:
            return step(self, *arguments)
        finally:
            self.check()

    return checked


def assert_drawn(text: str | None, table: Mapping[tuple[StateT, EventT], StateT]) -> None:
    """Assert that a module's text draws its table: every move under its state, and no other."""
    drawn: set[tuple[str, str, str]] = set()
    state = ""
    for line in (text or "").splitlines():
        if " -> " not in line or not line.startswith("    "):
            continue
        if line[4] != " ":
            state = line.split()[0]
        event, _, after = line.split()[-3:]
        drawn.add((state, event, after))
    assert drawn == {
        (state.name, event.name.lower(), after.name) for (state, event), after in table.items()
    }


def assert_known(
    table: Mapping[tuple[StateT, EventT], StateT], state: StateT, event: EventT
) -> None:
    """Assert that an event goes from a state where the table says, or is refused by name."""
    (on,) = moves(table, [event])
    if (state, event) in table:
        assert on[state] is table[state, event]
    else:
        with pytest.raises(AssertionError, match=f"{event.name} cannot happen in {state.name}"):
            on[state]
