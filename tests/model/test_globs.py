"""Patterns over names: against the plain meaning, and never slow."""

from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.errors import PatternError
from durastreamd.model.globs import Pattern, PatternIndex

SEGMENTS = st.lists(st.sampled_from(["a", "b", "*", "**", "a*"]), min_size=1, max_size=5)
NAMES = st.lists(st.sampled_from(["a", "b", "a*", "c"]), min_size=1, max_size=5)


def plainly(pattern: list[str], name: list[str]) -> bool:
    """Match by trying every length that each ** could have."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(plainly(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and plainly(pattern[1:], name[1:])


@given(SEGMENTS, NAMES)
@settings(max_examples=400)
def test_a_pattern_means_what_its_segments_mean(pattern: list[str], name: list[str]) -> None:
    assert Pattern("/".join(pattern)).matches("/".join(name)) is plainly(pattern, name)


def test_many_runs_of_anything_cost_no_more_than_their_number() -> None:
    """The reference recurses: this pattern would keep it busy for years."""
    pattern = Pattern("/".join(["**", "a"] * 31))
    assert not pattern.matches("/".join(["a"] * 400 + ["b"]))


@pytest.mark.parametrize("text", ["x" * 1025, "/".join("a" * 65)])
def test_a_pattern_has_a_longest_one(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)
    assert Pattern("x" * 1024).matches("x" * 1024)
    assert Pattern("/".join("a" * 64)).matches("/".join("a" * 64))
    assert Pattern("/".join(["**"] * 300)).matches("a/b")


def test_an_index_finds_what_each_pattern_would() -> None:
    texts = ["/".join(parts) for size in (1, 2, 3) for parts in product("ab*", repeat=size)]
    texts += ["**", "a/**", "**/b", "a/**/b"]
    index = PatternIndex()
    for number, text in enumerate(texts):
        index.add(number, Pattern(text))
    for name in ("a", "b", "a/b", "c/b", "a/b/a", "a/c/b"):
        expected = {number for number, text in enumerate(texts) if Pattern(text).matches(name)}
        assert set(index.matching(name)) == expected
    for number, text in enumerate(texts):
        index.remove(number, Pattern(text))
    assert not index
    assert index.matching("a/b") == []
