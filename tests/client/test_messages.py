"""Bodies are taken apart into the same messages however they are cut."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from durastreamd.client import AnswerError, CutShortError
from durastreamd.client.messages import (
    FRAMED,
    LINES,
    MESSAGE_BYTES_MAX,
    FrameSplitter,
    LineSplitter,
    Splitter,
    elements,
    splitter,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def taken(apart: Splitter, body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    found = []
    for begin, end in itertools.pairwise(places):
        found += apart.feed(body[begin:end])
    return found + apart.end()


@given(st.lists(VALUES), st.lists(st.integers(0, 10_000), max_size=8))
def test_json_comes_apart_by_lines_and_as_an_array(values: list[object], cuts: list[int]) -> None:
    texts = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    assert taken(splitter(LINES), b"".join(text + b"\n" for text in texts), cuts) == texts
    array = b" [ " + b" ,\n ".join(texts) + b" ] "
    assert taken(splitter("application/json; charset=utf-8"), array, cuts) == texts


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(0, 10_000), max_size=8))
def test_messages_after_their_lengths_come_apart(messages: list[bytes], cuts: list[int]) -> None:
    body = b"".join(len(each).to_bytes(4, "big") + each for each in messages)
    assert taken(splitter(FRAMED), body, cuts) == messages


def test_what_nobody_tells_apart_is_one_message() -> None:
    assert taken(splitter("text/plain"), b"one\ntwo\n", [3]) == [b"one\ntwo\n"]
    assert taken(splitter("text/plain"), b"", []) == []


def test_a_line_of_many_pieces_is_not_copied_with_each_of_them() -> None:
    apart = LineSplitter()
    pieces = [b"x" * 1000] * 1000
    assert not any(apart.feed(piece) for piece in pieces)
    assert apart._held == pieces, "they are joined once, at the end of the line"


@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff", (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")]
)
def test_a_length_that_nobody_can_hold_is_refused_before_anything_is_kept(length: bytes) -> None:
    with pytest.raises(AnswerError, match="more than can be held"):
        FrameSplitter().feed(length)


def test_a_frame_that_ends_too_soon_is_asked_for_again() -> None:
    apart = FrameSplitter()
    apart.feed(b"\0\0\0\5abc")
    with pytest.raises(CutShortError, match="7 bytes into a message"):
        apart.end()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Bad Gateway</html>",
        b'{"n": 1}',
        b"[1, 2",
        b"[1 2]",
        b"[1,]",
        b"[1] [2]",
        b"[" * 100_000,
        b"\xff\xfe[1]",
    ],
)
def test_what_is_no_array_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(AnswerError, match="not JSON"):
        elements(body)
