"""Events as they come: whole ones, cut ones, hostile ones."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.client import AnswerError, Client, ClientSettings, Delivery, deliveries
from durastreamd.client.sse import ServerEvent, events
from durastreamd.protocol import sse
from tests.support.plain_server import Scripted, plain_server

TEXT, BYTES = "text/plain", "application/octet-stream"


def delivered(body: bytes, headers: dict[str, str], bytes_max: int = 10_000) -> list[Delivery]:
    with plain_server() as server:
        server.script.append(Scripted(200, headers, body))
        client = Client(ClientSettings(answer_bytes_max=bytes_max))
        try:
            with client.reading(server.url) as answer:
                return list(deliveries(answer))
        finally:
            client.hang_up()


def test_fields_are_read_as_the_standard_has_it() -> None:
    lines = [b": a comment\n", b"event: data\r\n", b"data: one\n", b"data:  two\n", b"id: 7\n"]
    lines += [b"\n", b"\n", b"data\n", b"\n", b"event:cut\n", b"data:short\n"]
    assert list(events(lines)) == [ServerEvent("data", b"one\n two"), ServerEvent("", b"")]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r")).filter(bool))
def test_text_that_the_server_sends_comes_back(text: str) -> None:
    wire = sse.data_event(TEXT, text.encode())
    (found,) = events(wire.splitlines(keepends=True))
    assert found == ServerEvent("data", text.encode())


def test_bytes_come_with_the_offset_behind_them() -> None:
    first = (
        sse.data_event(BYTES, b"\0\r\n\xff")
        + sse.Control(4, 9, up_to_date=False, closed=False).event()
    )
    last = sse.data_event(BYTES, b"x") + sse.Control(5, 9, up_to_date=True, closed=True).event()
    cut = sse.data_event(BYTES, b"never told where it ends")
    headers = {"Stream-SSE-Data-Encoding": "base64"}
    assert delivered(first + sse.HEARTBEAT + last + cut, headers) == [
        Delivery(b"\0\r\n\xff", "0000000000000004", closed=False, cursor="9"),
        Delivery(b"x", "0000000000000005", closed=True),
    ]


@pytest.mark.parametrize("control", [b"{}", b"no json", b"[1]", b'{"streamNextOffset":5}'])
def test_a_control_event_without_an_offset_is_refused(control: bytes) -> None:
    with pytest.raises(AnswerError, match="does not say where the stream stands"):
        delivered(b"event: control\ndata:%s\n\n" % control, {})


def test_data_without_an_offset_does_not_pile_up() -> None:
    piece = sse.data_event(TEXT, b"x" * 60)
    assert delivered(piece + sse.Control(60, 1, up_to_date=True, closed=False).event(), {}, 100)
    with pytest.raises(AnswerError, match="larger than 100 bytes"):
        delivered(piece * 2, {}, 100)
