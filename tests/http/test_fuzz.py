"""Whatever bytes come: a well-formed answer or a hang-up, never a 500, never a task left."""

import h11
import trio
from hypothesis import given, settings, strategies as st

from tests.http.harness import echo, running

_pieces = st.one_of(
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"HEAD / HTTP/1.0\r\n", b"Host: x\r\n",
         b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
         b"\r\n", b"\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"\n", b"\r", b" ", b":", b"\0",
         b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n",
         b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    ),
    st.binary(max_size=12),
)  # fmt: skip


def check_answers(raw: bytes) -> None:
    """Every answer is well-formed, none is a 500, and nothing follows an error."""
    while raw:
        judge = h11.Connection(h11.CLIENT)
        judge.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        judge.send(h11.EndOfMessage())
        judge.receive_data(raw)
        judge.receive_data(b"")
        event = judge.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = judge.next_event()
        if isinstance(event, h11.ConnectionClosed):
            return  # After an interim response the client went away.
        assert isinstance(event, h11.Response)
        assert event.status_code != 500
        body = b""
        while isinstance(data := judge.next_event(), h11.Data):
            body += data.data
        assert isinstance(data, h11.EndOfMessage)
        if event.status_code >= 400:
            assert body.startswith(b'{"type":"/errors/')
        raw = bytes(judge.trailing_data[0])
        if dict(event.headers).get(b"connection") == b"close":
            assert raw == b""


async def deliver(raw: bytes, delivery: str) -> None:
    async with running(echo, delivery=delivery) as harness:
        client = harness.connect()
        await client.try_send(raw)
        client.sock.shutdown(trio.socket.SHUT_WR)
        answers = await client.rest()
        if b"HEAD" not in raw and not answers.startswith(b"\x00\x00"):
            check_answers(answers)


@settings(max_examples=150, deadline=None)
@given(st.lists(_pieces, max_size=10).map(b"".join))
async def test_whatever_comes_is_answered_or_hung_up(raw: bytes) -> None:
    await deliver(raw, "whole")


@settings(max_examples=40, deadline=None)
@given(st.lists(_pieces, max_size=10).map(b"".join))
async def test_whatever_comes_one_byte_at_a_time_is_answered_or_hung_up(raw: bytes) -> None:
    await deliver(raw, "bytewise")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30))
async def test_whatever_target_and_field_is_answered_or_hung_up(
    target: bytes, name: bytes, value: bytes
) -> None:
    raw = b"GET /%b HTTP/1.1\r\nHost: x\r\n%b: %b\r\n\r\n" % (target, name, value)
    await deliver(raw, "whole")
