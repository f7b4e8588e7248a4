"""A body cut into pieces is taken, split and refused as one that is judged whole."""

import json
import re
import sys
import tracemalloc

import pytest
from hypothesis import example, given, strategies as st

from durastreamd.protocol.json_mode import (
    DEPTH_MAX,
    SEPARATOR,
    InvalidJsonError,
    TooManyMessagesError,
    split,
)
from durastreamd.protocol.json_text import PIECE_BYTES

MIB = 1024 * 1024
PIECES = st.integers(12, 40)  # no escape is longer than the least
TOKENS = st.sampled_from(
    [
        *(b"[", b"]", b"{", b"}", b",", b":", b" ", b"\n", b"\r\n", b"0", b"-1.5e+7", b"true"),
        *(b'"', b"\\", b'\\"', b"\\\\", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"x", b"\xff"),
        *(b'"a"', b'"a":', b'"a\\nb,[{"', b'""', b'":[', b"[[[", b"]]]", b"{}", b"[]", b"[0,0,0,0"),
        *(b'{"k":1,', b'{"k":[1],"k":{}}', b"0123456789", b"0" * 30, b'"yyyyyyyyyyyyyyyyyyyyyy"'),
        b"\xc3\xa9",
    ]
)
ENDS = st.lists(TOKENS, max_size=4).map(b"".join)
INNER: st.SearchStrategy[bytes] = st.recursive(
    st.sampled_from([b"1", b"-0.5E3", b"false", b'""', b'"\\\\"', b'"' + b"z\\t" * 12 + b'"'])
    | st.integers(0, 10**45).map(lambda number: b"%d" % number),
    lambda inner: (
        st.lists(inner, max_size=6).map(lambda items: b"[ " + b" ,\n".join(items) + b"\r]")
        | st.lists(inner, max_size=4).map(
            lambda items: b"{" + b",".join([b'"k\\"" : ' + item for item in items]) + b"}"
        )
    ),
    max_leaves=25,
)


def outcome(body: bytes, piece_bytes: int) -> tuple[bytes, int] | str:
    try:
        wire, count = split(body, piece_bytes=piece_bytes)
    except InvalidJsonError as exc:
        return "refused" if "deeper" not in str(exc) else "deep"
    return bytes(wire), count


@given(INNER, PIECES, ENDS)
@example(b'{"a":1,"b":[1,2,{"c":"d"}],"e":"fffffffffffffffffffff"}', 12, b"")
@example(b'["' + b"\\ud83d\\ude00" * 9 + b'"]', 12, b"")
@example(b'{"' + b"k" * 99 + b'":1}', 12, b"")
@example(b"[" + b"0," * 40 + b"0]", 12, b"")
@example(b"[" + b" " * 40 + b"]", 12, b"")
@example(b"[" + b" " * 40 + b"]" + b" " * 40 + b"1", 12, b"")
@example(b"-" + b"1" * 99 + b".5e" + b"7" * 40, 12, b"")
@example(b"0" * 99, 12, b"")
@example(b"1.1" * 99, 12, b"")
@example(b'"' + b"x" * 99, 12, b"")
@example(b'["' + b"x" * 99 + b'" "b"]', 12, b"")
@example(b'{"a":' + b" " * 30 + b"[[" + b" " * 30 + b"]]}", 12, b"")
@example(b"\xc3\xa9".join([b'"', *[b"x" * 11] * 9, b'"']), 12, b"")
def test_a_text_in_pieces_is_taken_as_the_whole_is(
    body: bytes, piece_bytes: int, end: bytes
) -> None:
    body += end
    assert outcome(body, piece_bytes) == outcome(body, sys.maxsize)


@given(st.lists(TOKENS, max_size=30).map(b"".join), PIECES)
def test_a_heap_of_tokens_in_pieces_is_judged_as_the_whole_is(
    body: bytes, piece_bytes: int
) -> None:
    assert outcome(body, piece_bytes) == outcome(body, sys.maxsize)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" + b"1," * 50 + b"x]", "invalid character (byte 101)"),
        (b"[" + b"1," * 50 + b"01]", "invalid number (byte 102)"),
        (b'["' + b"y" * 50 + b"\x01" + b'"]', "invalid character (byte 52)"),
        (b"[" + b"1," * 50, "Input data was truncated"),
        (b"[" + b"1," * 50 + b"1] 2", "trailing characters (byte 105)"),
    ],
)
def test_the_reason_names_the_byte_of_the_body(body: bytes, reason: str) -> None:
    for piece_bytes in (16, sys.maxsize):
        with pytest.raises(InvalidJsonError, match=re.escape(reason)):
            split(body, piece_bytes=piece_bytes)


@given(st.integers(0, 60), st.integers(0, 60), PIECES | st.just(sys.maxsize))
def test_more_messages_than_allowed_are_refused(
    count: int, messages_max: int, piece_bytes: int
) -> None:
    body = json.dumps(["message"] * count).encode()
    if count > messages_max:
        with pytest.raises(TooManyMessagesError, match=f"more than {messages_max} messages"):
            split(body, messages_max, piece_bytes=piece_bytes)
    else:
        assert split(body, messages_max, piece_bytes=piece_bytes)[1] == count


def test_too_many_messages_are_refused_before_the_rest_is_looked_at() -> None:
    body = b"[" + b"0," * MIB + b"this is no JSON"
    with pytest.raises(TooManyMessagesError):
        split(body, 1000)


NEST = b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1)
WORST = {
    "zeros": b"[" + b"0," * (4 * MIB) + b"0]",
    "strings": b"[" + b'"",' * (3 * MIB) + b"0]",
    "nesting": b"[" + b",".join([NEST] * (8 * MIB // len(NEST))) + b"]",
    "one message": b"[[" + b"{}," * (3 * MIB) + b"0]]",
    "line ends": b"[" + b"[\n]," * (2 * MIB) + b"0]",
    "escapes": b'"' + b'\\"' * (4 * MIB) + b'"',
    "digits": b"1" * (8 * MIB),
    "white space": b"[" + b" " * (8 * MIB) + b"0]",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORST)
def test_memory_is_in_proportion_to_the_body(kind: str) -> None:
    """What is traced is all but the wire form, whose length is known."""
    body = WORST[kind]
    tracemalloc.start()
    try:
        wire, _ = split(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(wire) <= 1.5 * len(body) + len(SEPARATOR)
    assert peak < 128 * PIECE_BYTES, f"{peak} bytes for {len(body)}"
