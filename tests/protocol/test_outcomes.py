"""Outcomes are values: each can be made, compared, and told from every other."""

from itertools import combinations
from typing import get_args

import msgspec

from durastreamd.protocol.outcomes import Outcome

KINDS = get_args(Outcome)
EXAMPLES = {int: 3, str: "text", bool: True}


def made(kind: type[msgspec.Struct]) -> msgspec.Struct:
    fields = msgspec.structs.fields(kind)
    return kind(**{each.name: EXAMPLES.get(each.type, 3) for each in fields})


def test_an_outcome_is_a_value() -> None:
    assert len(KINDS) > 20
    for kind in KINDS:
        assert made(kind) == made(kind)
        assert hash(made(kind)) == hash(made(kind))


def test_no_two_kinds_are_equal() -> None:
    for one, other in combinations(KINDS, 2):
        assert made(one) != made(other)


def test_every_kind_says_what_it_means() -> None:
    assert all((kind.__doc__ or "").strip() for kind in KINDS)
