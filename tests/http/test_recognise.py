"""The fast lane declines or says exactly what h11 says."""

from urllib.parse import urlsplit

import h11
import pytest
from hypothesis import example, given, strategies as st

from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Request
from durastreamd.http.h1.recognise import recognise
from durastreamd.http.h1.strict import examine
from durastreamd.http.limits import HttpLimits
from tests.http.vectors import REFUSED, REFUSED_BODIES

LIMITS = HttpLimits()
ORDINARY = (
    b"POST /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: x:1\r\nUser-Agent: y z\r\n"
    b"Content-Type: application/json\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"
)

_names = st.sampled_from(
    [b"Host", b"host", b"Content-Length", b"content-length", b"Transfer-Encoding", b"Connection",
     b"Expect", b"Upgrade", b"X-A", b"Accept", b"A!#$%&'*+-.^_`|~9", b"TE", b"Content-Length ",
     b" Host", b"", b"X\x00", b"\xc3\xa4"]
)  # fmt: skip
_values = st.one_of(
    st.sampled_from(
        [b"x", b"x:80", b"[::1]:1", b"", b"5", b"05", b"5, 5", b"+5", b"-1", b"0x5", b"5\x0b",
         b"chunked", b"identity", b"gzip, chunked", b"close", b"keep-alive", b"Upgrade", b"a\tb",
         b"\tx", b"x\t ", b"100-continue", b"h2c", b"a\r\n b", b"a\nb", b"a\rb", b"\x80", b"\x1b"]
    ),
    st.binary(max_size=8),
)  # fmt: skip
_producers = st.lists(
    st.builds(
        lambda name, colon, value, end: name + colon + value + end,
        st.sampled_from(
            [b"Producer-Id", b"producer-epoch", b"Producer-Seq", b"Producer-Seq", b"X-Producer-Id",
             b"Producer-X9", b"Producer- Seq"]
        ),
        st.sampled_from([b": ", b":", b":\t"]),
        st.sampled_from([b"a", b"0", b" 1 ", b"2\tb", b"", b"\x80", b"\x00", b"x\ny: z"]),
        st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"]),
    ),
    min_size=2,
    max_size=5,
)  # fmt: skip
_ends = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n", b"\r\n "])
_lines = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    _names,
    st.sampled_from([b": ", b":", b":  ", b":\t", b" : ", b""]),
    _values,
    _ends,
)
_request_lines = st.builds(
    lambda method, gap, target, version, end: method + gap + target + gap + version + end,
    st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"get", b"BREW", b"CONNECT", b"G T"]),
    st.sampled_from([b" ", b" ", b" ", b"  ", b"\t"]),
    st.one_of(
        st.sampled_from([b"/", b"/a?b", b"*", b"/a#b", b"/a b", b"", b"//", b"/%00"]),
        st.sampled_from([b"http://x/", b"https://x/a?b", b"http://x", b"http://x?a", b"http://y/"]),
        st.binary(max_size=6),
    ),
    st.sampled_from([b"HTTP/1.1"] * 5 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1"]),
    _ends,
)
_heads = st.builds(
    lambda line, host, lines, end: line + host + b"".join(lines) + end,
    _request_lines,
    st.sampled_from([b"Host: x\r\n", b"Host: x\r\n", b""]),
    st.lists(_lines, max_size=4),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b""]),
)


def by_h11(head: bytes, body: bytes) -> tuple[object, ...]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + body)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    seen = b""
    while isinstance(event := connection.next_event(), h11.Data):
        seen += event.data
    assert isinstance(event, h11.EndOfMessage)
    target = request.target.decode()
    return request.method.decode(), target, sorted(request.headers), len(seen)


def by_us(request: Request) -> tuple[object, ...]:
    headers = sorted(request.headers.items())
    return request.method, request.target, headers, request.content_length or 0


def check(head: bytes) -> bool:
    request = recognise(head, LIMITS)
    if request is None:
        return False
    body = b"x" * min(request.content_length or 0, 1 << 16)
    assert by_us(request) == by_h11(head, body)
    # Nor is the lane more generous than our own rules.
    strict = examine(head, LIMITS)
    assert by_us(strict) == by_us(request)
    fields = ("path", "query", "version", "authority", "has_body", "headers", "content_length")
    assert all(getattr(strict, name) == getattr(request, name) for name in fields)
    return True


def test_the_ordinary_request_is_recognised() -> None:
    assert check(ORDINARY)


@given(_heads)
@example(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 007\r\n\r\n")
@example(b"GET /\x7f HTTP/1.1\r\nHost: x\r\n\r\n")
def test_the_lane_says_what_h11_says_about_generated_heads(head: bytes) -> None:
    check(head)


@given(st.lists(st.one_of(_lines.map(lambda line: [line]), _producers), max_size=3))
def test_the_lane_says_what_h11_says_about_producers(runs: list[list[bytes]]) -> None:
    lines = b"".join(line for run in runs for line in run)
    check(b"POST /s HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")


def test_a_producer_is_recognised_wherever_its_fields_stand() -> None:
    own = b"Producer-Id: p\r\nproducer-epoch:0\r\nPRODUCER-SEQ: %d \r\n"
    for at in (b"Host", b"Content-Length", b"\r\n"):
        for number in range(3):
            head = b"POST /s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
            before, found, after = head.rpartition(at)
            assert check(before + own % number + found + after)


def test_a_producer_that_says_something_twice_is_declined() -> None:
    own = b"Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: 0\r\n"
    for again in (b"Producer-Seq: 1\r\n", own):
        head = b"POST /s HTTP/1.1\r\nHost: x\r\n" + own + b"X: y\r\n" + again + b"\r\n"
        assert recognise(head, LIMITS) is None


@given(st.data())
def test_the_lane_says_what_h11_says_about_damaged_heads(data: st.DataObject) -> None:
    head = bytearray(ORDINARY)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(head) - 1))
        patch = st.sampled_from([b"", b"\r", b"\n", b" ", b"\t", b":", b"\0", b",", b"\x80", b"a"])
        head[at : at + data.draw(st.integers(0, 2))] = data.draw(patch)
    check(bytes(head))


@pytest.mark.parametrize("name", REFUSED)
def test_the_lane_declines_every_ambiguous_head(name: str) -> None:
    raw = REFUSED[name][0]
    for end in range(len(raw) + 1):
        assert recognise(raw[:end], LIMITS) is None


@pytest.mark.parametrize(
    "line",
    [
        b"X: \xe4\r\n",
        b"X: 1\r\nX: 2\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"TE: trailers\r\n",
        b"Expect: 100-continue\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: Chunked\r\n",
    ],
)
def test_what_the_lane_declines_may_still_be_served(line: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n"
    assert recognise(head, LIMITS) is None
    assert examine(head, LIMITS).method == "POST"


@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_the_lane_leaves_chunked_bodies_to_others(name: str) -> None:
    head = REFUSED_BODIES[name].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert recognise(head, LIMITS) is None
    assert examine(head, LIMITS).has_body


@given(_heads)
def test_strict_rules_only_take_away_from_h11(head: bytes) -> None:
    try:
        request = examine(head, LIMITS)
    except RefusedError:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    seen = connection.next_event()
    assert isinstance(seen, h11.Request)
    target = seen.target.decode()
    if target.startswith("http"):
        assert urlsplit(target).netloc == request.authority
        target = target.partition("://")[2].removeprefix(request.authority)
        target = target if target.startswith("/") else f"/{target}"
    assert (seen.method.decode(), target) == (request.method, request.target)
    assert {name for name, _ in seen.headers} == set(request.headers)


def test_limits_hold_in_the_lane() -> None:
    many = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(100))
    assert recognise(many + b"\r\n", LIMITS) is None
    assert recognise(many.replace(b"A99: b\r\n", b"") + b"\r\n", LIMITS) is not None
    long = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
    assert recognise(long % (b"a" * LIMITS.target_bytes_max), LIMITS) is None
    assert recognise(long % (b"a" * (LIMITS.target_bytes_max - 1)), LIMITS) is not None
    big = b"GET / HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * LIMITS.head_bytes_max)
    assert recognise(big, LIMITS) is None
