"""The chunked decoder says what h11 says, or refuses."""

import itertools

import h11
import pytest
from hypothesis import given, strategies as st

from durastreamd.http.errors import RefusedError
from durastreamd.http.h1.chunked import DROPPED_BYTES_MAX, ChunkedDecoder
from tests.http.vectors import REFUSED_BODIES

_cuts = st.lists(st.integers(0, 200), max_size=8)
# Without white space before an extension, which RFC 9112 has us pass over and h11 refuses.
_tokens = st.one_of(
    st.sampled_from([b"\r\n", b"\r\n", b"0\r\n", b"1\r\n", b"a\r\n", b"3;x\r\n", b"\n", b"\r"]),
    st.sampled_from([b"x", b"0123456789", b"00000000", b"\r\n0\r\n\r\n", b"-1", b"FFFFFFFFF"]),
    st.sampled_from([b";a=b\r\n", b";", b'; a="b;c"\r\n', b"1;a\r\nx\r\n"]),
    st.sampled_from([b"0\r\nA: b\r\n", b"A: b\r\n\r\n", b"Host: c\r\n", b"A: ", b" b\r\n"]),
)


def decode(data: bytes, cuts: list[int]) -> tuple[bytes, bytes] | None:
    decoder = ChunkedDecoder()
    body = b""
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        if decoder.ended:
            return body, decoder.rest + data[begin:]
        body += decoder.feed(data[begin:end])
    return (body, decoder.rest) if decoder.ended else None


def by_h11(data: bytes) -> tuple[bytes, bytes]:
    connection = h11.Connection(h11.SERVER)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.receive_data(head + data)
    connection.next_event()
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return body, bytes(connection.trailing_data[0])


@given(st.lists(_tokens, max_size=12).map(b"".join), _cuts)
def test_what_is_accepted_h11_accepts_too(data: bytes, cuts: list[int]) -> None:
    try:
        decoded = decode(data, cuts)
    except RefusedError:
        return
    if decoded is not None:
        assert decoded == by_h11(data)


_extensions = st.sampled_from([b"", b";a", b" ; a=b", b';a="b c"', b";\tx;y=1"])
_trailers = st.sampled_from([b"", b"A: b\r\n", b"X-Sum:1\r\nB:\r\n", b"a: \xe4\r\n"])


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), _extensions), max_size=5),
    _trailers,
    st.binary(max_size=9),
    _cuts,
)
def test_every_body_comes_back_however_it_is_cut(
    parts: list[tuple[bytes, bytes]], trailers: bytes, rest: bytes, cuts: list[int]
) -> None:
    chunks = [chunk for chunk, _ in parts]
    framed = [b"%X%b\r\n%b\r\n" % (len(chunk), more, chunk) for chunk, more in parts]
    data = b"".join(framed) + b"0\r\n" + trailers + b"\r\n"
    assert decode(data + rest, cuts) == (b"".join(chunks), rest)
    assert decode(data + rest, list(range(200))) == (b"".join(chunks), rest)


@pytest.mark.parametrize("name", REFUSED_BODIES)
@pytest.mark.parametrize("cuts", [[], list(range(50))], ids=["whole", "bytewise"])
def test_ambiguous_framing_is_refused(name: str, cuts: list[int]) -> None:
    body = REFUSED_BODIES[name].partition(b"\r\n\r\n")[2]
    with pytest.raises(RefusedError):
        decode(body, cuts)


@pytest.mark.parametrize("bytewise", [False, True])
def test_what_is_dropped_is_bounded(*, bytewise: bool) -> None:
    most = DROPPED_BYTES_MAX
    lines = [
        b"1;" + b"a" * (most - 1),
        b"0\r\nA: " + b"b" * (most - 5),
        b"1;" + b"a" * (most // 2 - 1) + b"\r\nz\r\n0\r\nA: " + b"b" * (most // 2 - 5),
    ]
    for line in lines:
        for more in (b"", b"x"):
            data = line + more + b"\r\n"
            cuts = list(range(len(data))) if bytewise and line is lines[0] else []
            decoder = ChunkedDecoder()
            try:
                for begin, end in itertools.pairwise(sorted({0, *cuts, len(data)})):
                    decoder.feed(data[begin:end])
                refused = None
            except RefusedError as exc:
                refused = exc.problem.code
            assert refused == ("HEADERS_TOO_LARGE" if more else None)
    # A line that never ends is refused as soon as it is too long.
    decoder = ChunkedDecoder()
    with pytest.raises(RefusedError, match="at most"):
        for _ in range(most):
            decoder.feed(b"1;" + b"a" * 100)
