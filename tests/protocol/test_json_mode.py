"""JSON mode against the standard library: what it reads we take, what it refuses we refuse."""

import json
from itertools import pairwise
from typing import NoReturn

import pytest
from hypothesis import assume, example, given, strategies as st

from durastreamd.protocol import json_mode
from durastreamd.protocol.json_mode import DEPTH_MAX, SEPARATOR, InvalidJsonError, page

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Lone surrogates cannot be written as UTF-8; escaped ones have a test of their own.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from([",\n", "],[", "\r\n", '"', "\\", "[[[", "}}", "\u2028", "é", "😀"])
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
WHITE = st.sampled_from(["", "", "", " ", "\n", "\r\n", "\t", "\r", " \n\r\t "])


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def understood(body: bytes) -> bool:
    """Ask the oracle: is this one JSON text, of JSON's own constants only?"""
    try:
        json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


@st.composite
def written(draw: st.DrawFn, value: Json) -> str:
    """Write a value with any white space between its tokens."""

    def white() -> str:
        return draw(WHITE)

    def write(item: Json) -> str:
        if isinstance(item, list):
            inner = ",".join(white() + write(child) + white() for child in item)
            return f"[{inner or white()}]"
        if isinstance(item, dict):
            pairs = (
                f"{white()}{json.dumps(name)}{white()}:{white()}{write(child)}{white()}"
                for name, child in item.items()
            )
            return f"{{{','.join(pairs) or white()}}}"
        return json.dumps(item, ensure_ascii=draw(st.booleans()))

    return white() + write(value) + white()


def split(body: bytes) -> tuple[bytes, int]:
    wire, count = json_mode.split(body)
    return bytes(wire), count


def messages_of(wire: bytes) -> list[bytes]:
    return wire.split(SEPARATOR)[:-1]


@given(st.data(), VALUES)
def test_split_messages_parse_to_what_was_sent(data: st.DataObject, value: Json) -> None:
    body = data.draw(written(value)).encode()
    wire, count = split(body)
    expected = value if isinstance(value, list) else [value]
    assert count == len(expected)
    assert [json.loads(message) for message in messages_of(wire)] == expected


@given(st.data(), VALUES)
def test_page_is_the_array_of_the_messages(data: st.DataObject, value: Json) -> None:
    wire, _ = split(data.draw(written(value)).encode())
    assert json.loads(page(wire)) == (value if isinstance(value, list) else [value])


@given(st.data(), st.lists(VALUES, min_size=1, max_size=5))
def test_any_run_of_messages_is_a_page(data: st.DataObject, values: list[Json]) -> None:
    wire, _ = split(data.draw(written(values)).encode())
    ends = [0, *(at + 2 for at in range(len(wire)) if wire[at : at + 2] == SEPARATOR)]
    first = data.draw(st.integers(0, len(ends) - 1))
    last = data.draw(st.integers(first, len(ends) - 1))
    assert json.loads(page(wire[ends[first] : ends[last]])) == values[first:last]


@given(st.data(), st.lists(VALUES, max_size=5))
def test_separator_stands_at_the_ends_of_messages_and_nowhere_else(
    data: st.DataObject, values: list[Json]
) -> None:
    wire, count = split(data.draw(written(values)).encode())
    assert wire.count(b"\n") == wire.count(SEPARATOR) == count == len(values)
    assert b"\r" not in wire
    assert not wire or wire.endswith(SEPARATOR)


@pytest.mark.parametrize(
    "text",
    [
        b"1e400",
        b"-1E-400",
        b"123456789012345678901234567890",
        b"0.1000000000000000055511151231257827021181583404541015625",
        b"-0",
        b"1.0",
        b'{"a":1,"a":2,"a":1}',
        b'"\\u00e9\\/"',
        b'{"b":1,"a":{"d": 2,  "c":3}}',
        b'"\\ud83d\\ude00"',
        b'"\x7f"',
    ],
)
def test_nothing_is_serialised_anew(text: bytes) -> None:
    assert split(text) == (text + SEPARATOR, 1)
    assert split(b"[" + text + b"]") == (text + SEPARATOR, 1)
    assert page(split(b"[%s,%s]" % (text, text))[0]) == b"[%s,\n%s]" % (text, text)


def test_one_array_level_is_flattened_and_no_more() -> None:
    assert split(b"[[1,2],[],[[3]]]") == (b"[1,2],\n[],\n[[3]],\n", 3)


def test_empty_array_is_no_message() -> None:
    assert split(b" [ \r\n] ") == (b"", 0)
    assert page(b"") == b"[]"


def test_line_ends_between_tokens_become_spaces() -> None:
    assert split(b'{\r\n"a"\n:1}\n') == (b'{  "a" :1},\n', 1)
    assert split(b'[ {"a":[1,\n2]} ,\n3\n]') == (b'{"a":[1, 2]},\n3,\n', 2)


# --- refusing ---

CHARACTERS = st.sampled_from(list(b'[]{},:"\\ \n\r\t0123456789.-+eEtrufalsn\x00\x1f\x80\xffNI'))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Write a value and change a few of its bytes."""
    body = bytearray(draw(written(draw(VALUES))).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["insert", "remove", "change"]))
        if kind == "insert":
            body.insert(at, draw(CHARACTERS))
        elif at < len(body):
            if kind == "remove":
                del body[at]
            else:
                body[at] = draw(CHARACTERS)
    return bytes(body)


@given(
    mutated()
    | st.binary(max_size=12)
    | st.text(max_size=12).map(lambda t: t.encode("utf-8", "replace"))
)
@example(b"")
@example(b" ")
@example(b"1 2")
@example(b"[1,]")
@example(b"[,]")
@example(b"01")
@example(b"-")
@example(b"[1]]")
@example(b'{"a":1,}')
@example(b'"\x01"')
@example(b'"\\x"')
@example(b'["a\nb"]')
@example(b"\x0b1")
@example(b"1\x00")
def test_body_is_taken_exactly_when_the_standard_library_reads_it(body: bytes) -> None:
    assume(b"\\u" not in body.lower())  # escaped surrogates: stricter than the oracle, see below
    if understood(body):
        wire, count = split(body)
        value = json.loads(body)
        assert [json.loads(message) for message in messages_of(wire)] == (
            value if isinstance(value, list) else [value]
        )
        assert wire.count(SEPARATOR) == count
    else:
        with pytest.raises(InvalidJsonError):
            split(body)


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"undefined"])
@pytest.mark.parametrize("around", [b"%s", b"[%s]", b'{"a":%s}', b"[1,[%s]]"])
def test_constants_that_json_lacks_are_refused(constant: bytes, around: bytes) -> None:
    with pytest.raises(InvalidJsonError, match="not valid JSON"):
        split(around % constant)


@pytest.mark.parametrize("text", [b'"\\ud800"', b'["\\udc00"]', b'{"\\ud83d":1}', b'"\\ud83dx"'])
def test_lone_surrogates_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidJsonError):
        split(text)


@pytest.mark.parametrize(
    "text", [b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'[1,"\xf5\x80\x80\x80"]']
)
def test_bytes_that_are_not_utf8_are_refused_and_named(text: bytes) -> None:
    with pytest.raises(InvalidJsonError, match=r"not UTF-8: byte [0-9]+ is 0x"):
        split(text)


def test_byte_order_mark_is_refused() -> None:
    with pytest.raises(InvalidJsonError):
        split(b"\xef\xbb\xbf[1]")


OPENERS = [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b'{"a":[', b"]}")]


@pytest.mark.parametrize(("opening", "closing"), OPENERS)
def test_nesting_is_taken_up_to_the_limit(opening: bytes, closing: bytes) -> None:
    times = DEPTH_MAX // (opening.count(b"[") + opening.count(b"{"))
    body = opening * times + b"1" + closing * times
    wire, count = split(b"[" + body[1:] if body[:1] == b"[" else body)
    assert count == 1
    assert json.loads(wire[:-2]) is not None


@pytest.mark.parametrize(("opening", "closing"), OPENERS)
@pytest.mark.parametrize("excess", [1, 2, 70, 129, 300, 100_000])
def test_nesting_beyond_the_limit_is_refused(opening: bytes, closing: bytes, excess: int) -> None:
    times = -(-(DEPTH_MAX + excess) // (opening.count(b"[") + opening.count(b"{")))
    with pytest.raises(InvalidJsonError, match=f"deeper than {DEPTH_MAX} levels"):
        split(opening * times + b"1" + closing * times)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    body = json.dumps([{"a": [n, {}], "b": []} for n in range(1000)]).encode()
    assert split(body)[1] == 1000


@pytest.mark.parametrize("text", [":[", "see {", "]", '\\"[', "[1/3] {"])
def test_brackets_inside_strings_do_not_nest(text: str) -> None:
    body = json.dumps([text] * (2 * DEPTH_MAX)).encode()
    assert split(body)[1] == 2 * DEPTH_MAX


@given(st.lists(VALUES), st.lists(st.integers(0, 300)))
def test_lines_do_not_depend_on_where_pieces_are_cut(values: list[Json], cuts: list[int]) -> None:
    wire = b"".join(json.dumps(value).encode() + SEPARATOR for value in values)
    edges = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})
    found, held = b"", b""
    for low, high in pairwise(edges):
        lines, held = json_mode.lines(held, wire[low:high])
        found += lines
    assert held == b""
    assert [json.loads(line) for line in found.split(b"\n")[:-1]] == values
