"""Data events against the plain way to make them, whole and in pieces."""

import base64
import re
from itertools import pairwise

from hypothesis import example, given, strategies as st

from durastreamd.protocol import json_mode, sse

KINDS = ["text/plain", "application/json", "application/octet-stream"]
LINES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"  ", b"a", b"data:", b"event: x", b"\xc3\xa9"]),
    max_size=40,
).map(b"".join)


def plainly(kind: str, wire: bytes) -> bytes:
    """Make an event line by line."""
    if kind == "application/json":
        payload = json_mode.page(wire)
    elif kind == "application/octet-stream":
        payload = base64.b64encode(wire)
    else:
        payload = wire
    lines = re.split(rb"\r\n|\r|\n", payload)
    fields = [b"data:" + (b" " if line.startswith(b" ") else b"") + line for line in lines]
    return b"event: data\n" + b"\n".join(fields) + b"\n\n"


@given(st.sampled_from(KINDS), LINES)
@example("text/plain", b"\n data: ")
@example("text/plain", b"\r")
@example("application/json", b"")
def test_event_is_the_one_made_line_by_line(kind: str, text: bytes) -> None:
    wire = text
    if kind == "application/json" and text:
        wire = text.translate(bytes.maketrans(b"\r\n ", b"...")) + b",\n1,\n"
    assert sse.data_event(kind, wire) == plainly(kind, wire)


@given(st.sampled_from(KINDS), LINES, st.lists(st.integers(0, 80), max_size=8))
def test_event_in_pieces_is_the_event(kind: str, text: bytes, cuts: list[int]) -> None:
    wire = text
    if kind == "application/json":
        wire = text.translate(bytes.maketrans(b"\r\n ", b"...")) + b"1,\n2,\n"
    places = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    end = sse.payload_end(kind, len(wire))
    event = sse.DataEvent(kind)
    made = event.begin()
    for low, high in pairwise(places):
        made += event.add(wire[low : min(high, end)])
    assert made + event.end() == sse.data_event(kind, wire)
