"""Events come back as they were sent, through a reader that follows the browsers' rules."""

import base64
import json

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol import sse
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.sse import Control, data_event, needs_base64
from tests.service.events import Parser

TEXT, BINARY, JSON = "text/plain; charset=utf-8", "image/png", "application/json"
lines = st.lists(st.text(max_size=10), max_size=6)
HERE = Control(3, 1, up_to_date=True, closed=False)
ends = st.sampled_from(("\n", "\r", "\r\n"))


@given(lines, ends)
def test_text_comes_back_whatever_its_lines_are(texts: list[str], end: str) -> None:
    sent = end.join(texts)
    (event,) = Parser().feed(data_event(TEXT, sent.encode()))
    assert event.kind == "data"
    # Between lines a reader sees LF whatever was written; nothing else of it may change.
    assert event.data == sent.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("forged", ["\nevent: control", "\r\rid: 7\r\r", "\n\n: x\n\ndata:y"])
def test_nothing_that_was_written_can_begin_a_field(forged: str) -> None:
    events = Parser().feed(data_event(TEXT, forged.encode()) + HERE.event())
    assert [event.kind for event in events] == ["data", "control"]
    assert [event.last_id for event in events] == ["", mint(3)]


@given(st.binary(max_size=50))
def test_bytes_come_back_in_base64(sent: bytes) -> None:
    (event,) = Parser().feed(data_event(BINARY, sent))
    assert base64.b64decode(event.data, validate=True) == sent


@given(st.lists(st.integers() | st.text(max_size=5), max_size=5))
def test_json_messages_come_back_as_an_array(values: list[object]) -> None:
    wire = b"".join(json.dumps(value).encode() + b",\n" for value in values)
    (event,) = Parser().feed(data_event(JSON, wire))
    assert json.loads(event.data) == values


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**9), st.booleans(), st.booleans())
def test_a_control_tells_where_the_reader_stands(
    position: int,
    cursor: int,
    up_to_date: object,
    closed: object,
) -> None:
    (event,) = Parser().feed(Control(position, cursor, bool(up_to_date), bool(closed)).event())
    assert (event.kind, event.last_id) == ("control", mint(position))
    told = json.loads(event.data)
    assert told.pop("streamNextOffset") == mint(position)
    assert told.pop("upToDate", False) == up_to_date
    assert told == ({"streamClosed": True} if closed else {"streamCursor": str(cursor)})


@pytest.mark.parametrize(
    ("kind", "encoded"),
    [("text/html", False), ("TEXT/plain;x=y", False), (JSON, False), ("application/xml", True)],
)
def test_what_is_neither_text_nor_json_is_encoded(kind: str, *, encoded: bool) -> None:
    assert needs_base64(kind) == encoded


def test_a_heartbeat_is_a_comment() -> None:
    parser = Parser()
    assert parser.feed(sse.HEARTBEAT) == []
    assert parser.comments == ["still here"]
