"""Offset tokens: they sort as their positions do, and only ours are taken."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol.offsets import DIGITS, NOW, POSITION_MAX, START, mint, parse

POSITIONS = st.integers(0, POSITION_MAX)


@given(POSITIONS)
def test_minted_token_parses_to_its_position(position: int) -> None:
    assert parse(mint(position)) == position


@given(POSITIONS, POSITIONS)
def test_tokens_sort_as_their_positions_do(one: int, other: int) -> None:
    assert (mint(one) < mint(other)) == (one < other)


@given(POSITIONS)
def test_token_has_a_fixed_length_and_no_underscore(position: int) -> None:
    token = mint(position)
    assert len(token) == DIGITS
    assert token.isascii()
    assert token.isdigit()


def test_start_in_the_form_of_the_reference_server_is_the_start() -> None:
    assert parse("0000000000000000_0000000000000000") == 0


@pytest.mark.parametrize(
    "token",
    [
        "",
        START,
        NOW,
        "0",
        "000000000000000",
        "00000000000000000",
        "0000000000000000\n",
        "\n0000000000000000",
        " 000000000000000",
        "+000000000000001",
        "-000000000000001",
        "0000_00000000000",
        "000000000000000a",
        "\u0660" * 16,
        "\uff10" * 16,
        "0000000000000001_0000000000000000",
        "0000000000000000_0000000000000001",
        "9999999999999999_9999999999999999",
        "0000000000000000_0000000000000000\n",
        "0000000000000000,0000000000000000",
        "../0000000000000",
        "0000000000000000\0",
    ],
)
def test_anything_else_is_no_token(token: str) -> None:
    assert parse(token) is None


@given(st.text(max_size=40))
def test_whatever_parses_is_minted_the_same_way(token: str) -> None:
    position = parse(token)
    if position is not None:
        assert token in (mint(position), "0000000000000000_0000000000000000")
