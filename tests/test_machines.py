"""Tables of states and events: where a move leads, and that no other can be made."""

from enum import IntEnum, auto

import pytest

from durastreamd.machines import moves


class Door(IntEnum):
    OPEN = auto()
    SHUT = auto()
    LOCKED = auto()


class Hand(IntEnum):
    PUSH = auto()
    TURN_KEY = auto()
    PAINT = auto()


TABLE = {
    (Door.OPEN, Hand.PUSH): Door.SHUT,
    (Door.SHUT, Hand.PUSH): Door.OPEN,
    (Door.SHUT, Hand.TURN_KEY): Door.LOCKED,
    (Door.LOCKED, Hand.TURN_KEY): Door.SHUT,
}


def test_each_event_has_its_moves_in_the_order_of_the_events() -> None:
    push, turn_key, paint = moves(TABLE, Hand)
    assert push == {Door.OPEN: Door.SHUT, Door.SHUT: Door.OPEN}
    assert turn_key == {Door.SHUT: Door.LOCKED, Door.LOCKED: Door.SHUT}
    assert paint == {}


def test_a_move_that_the_table_does_not_have_is_refused_by_name() -> None:
    push, _, paint = moves(TABLE, Hand)
    with pytest.raises(AssertionError, match=r"^PUSH cannot happen in LOCKED, only in OPEN, SHUT$"):
        push[Door.LOCKED]
    with pytest.raises(AssertionError, match=r"^PAINT cannot happen in OPEN, only in no state$"):
        paint[Door.OPEN]
