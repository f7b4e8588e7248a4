"""JSON as it is written: the three forms say the same, and each keeps its promise."""

import json

from hypothesis import given, strategies as st

from durastreamd.protocol.json_writing import json_body, json_compact, json_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_every_form_says_the_value(value: object) -> None:
    assert json.loads(json_body(value)) == value
    assert json.loads(json_compact(value)) == value
    assert json.loads(json_line(value)) == value


@given(VALUES)
def test_bodies_are_ascii_and_lines_are_one_line(value: object) -> None:
    assert json_body(value).isascii()
    assert json_compact(value).isascii()
    assert "\n" not in json_line(value)
    assert "\r" not in json_line(value)


def test_the_forms_as_clients_know_them() -> None:
    value = {"a": [1, "é"]}
    assert json_body(value) == b'{"a": [1, "\\u00e9"]}'
    assert json_compact(value) == b'{"a":[1,"\\u00e9"]}'
    assert json_line(value) == '{"a": [1, "é"]}'
