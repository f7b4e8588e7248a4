"""Whatever a client writes: a well-formed answer, never a 500, and one name per stream."""

import json
import string
from urllib.parse import quote, unquote_to_bytes

import trio
from hypothesis import example, given, settings, strategies as st
from trio.testing import MockClock

from durastreamd.service.limits import Limits, ReadLimits
from tests.service.harness import PREFIX, TEXT, Connection, Reply, Site, request_bytes, serving

QUICK = Limits(reads=ReadLimits(long_poll_s=0.5, sse_s=1.0))
STATUSES = {200, 201, 204, 304, 400, 403, 404, 405, 409, 410, 413, 414, 415, 429, 431, 501, 505}
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
PIECES = st.sampled_from(
    [
        *("/", "//", ".", "..", "%2F", "%2f", "%2e", "%00", "%", "%zz", "%C3%A9", "%ff", "a", "A"),
        *("%61", "__ds", "snapshot", "bootstrap", "~", "%7E", "+", "%20", "%2B", ";", ":", "@"),
        *("s", "\\", "%5C"),
    ]
)
NAMES = st.lists(PIECES | st.text(PRINTABLE, max_size=5), max_size=8).map("".join)
PARAMETERS = st.tuples(
    st.sampled_from(["offset", "live", "cursor", "%6Fffset", "x", ""]),
    st.sampled_from(
        ["-1", "now", "sse", "long-poll", "", "0" * 16, "0" * 15 + "5", "9" * 16, "%00"]
    )
    | st.text(PRINTABLE.replace("#", ""), max_size=20),
)
QUERIES = st.lists(PARAMETERS, max_size=5).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
FIELDS = [
    "Content-Type", "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Stream-Seq",
    "Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset", "Producer-Id",
    "Producer-Epoch", "Producer-Seq", "If-None-Match", "Last-Event-ID", "Accept-Encoding",
    "Accept", "Origin", "Content-Encoding", "Range", "Expect", "Cookie",
]  # fmt: skip
GOOD = ["text/plain", "application/json", "true", "0", "1", "-1", "now", "0" * 16, "0_0", "*", "p"]
GOOD += [PREFIX + "s", PREFIX + "j", "http://x" + PREFIX + "s", "2030-01-01T00:00:00Z", "gzip"]
GOOD += ["9" * 16, "9" * 17, "9" * 5000, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
VALUE_CHARACTERS = "".join(map(chr, [*range(0x20, 0x7F), *range(0x80, 0x100), 9]))
VALUES = st.sampled_from(GOOD) | st.text(VALUE_CHARACTERS, max_size=30).map(str.strip)
HEADS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)
METHODS = st.sampled_from(["GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "PATCH", "get"])
BODIES = st.sampled_from([b"", b"x", b"[1]", b"[]", b"{", b"\xff"]) | st.binary(max_size=20)


def check(reply: Reply) -> None:
    assert reply.status in STATUSES, reply
    assert reply["X-Content-Type-Options"] == "nosniff"
    if reply.status >= 400 and reply.body:
        body = json.loads(reply.body)
        assert body["status"] == reply.status
        assert body["detail"].isprintable()


async def answer(site: Site, request: bytes, method: str) -> Reply:
    connection: Connection = site.connect()
    await connection.send_bytes(request, method)
    reply = await connection.whole()
    connection.hang_up()
    return reply


async def furnished(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    await site.make("j", {"Content-Type": "application/json"}, b"[1,2]")


def run(
    target: str, method: str = "GET", head: dict[str, str] | None = None, body: bytes = b""
) -> Reply:
    async def main() -> Reply:
        async with serving(QUICK) as site:
            await furnished(site)
            reply = await answer(site, request_bytes(method, target, head, body), method)
            check(reply)
            for name in ("s", "j"):  # the server is none the worse for it
                assert (await site.head(name)).status in (200, 404)
            return reply

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(max_examples=150)
@given(NAMES.map(lambda name: PREFIX + name) | NAMES.map(lambda name: "/" + name), METHODS)
@example(PREFIX + "s#fragment", "GET")
@example("*", "OPTIONS")
def test_every_target_is_answered(target: str, method: str) -> None:
    run(target, method, TEXT, b"x" if method in ("PUT", "POST") else b"")


@settings(max_examples=150)
@given(QUERIES, st.sampled_from(["s", "j", "missing"]))
def test_every_query_is_answered(query: str, name: str) -> None:
    run(f"{PREFIX}{name}?{query}")


@settings(max_examples=300)
@given(HEADS, METHODS, BODIES)
def test_every_header_value_is_answered(head: dict[str, str], method: str, body: bytes) -> None:
    run(PREFIX + "s", method, head, body)
    run(PREFIX + "new", method, head, body)


def spelled(name: str, choices: list[int]) -> str:
    """Return one of the spellings of a name: any byte may be percent-encoded, in either case."""
    found = ""
    for number, byte in enumerate(name.encode()):
        character = chr(byte)
        plain = character in string.ascii_letters + string.digits + "-._~"
        choice = choices[number % len(choices)] % 3
        if character == "/" or (plain and choice == 0):
            found += character
        else:
            found += f"%{byte:02X}" if choice == 1 else f"%{byte:02x}"
    return found


STREAM_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
CHOICES = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=150)
@given(STREAM_NAMES, CHOICES, CHOICES)
@example("é/ü", [0], [2])
@example("a b+c", [1], [2])
@example("snapshot", [0], [1])
@example("snapshot/1", [1], [0])
@example("x/bootstrap", [0, 1], [1])
def test_two_spellings_of_a_name_are_one_stream_or_none(
    name: str, one: list[int], other: list[int]
) -> None:
    async def main() -> None:
        async with serving(QUICK) as site:
            first, second = spelled(name, one), spelled(name, other)
            assert unquote_to_bytes(first) == unquote_to_bytes(second)
            made = await site.ask("PUT", first, TEXT, b"hello")
            again = await site.ask("PUT", second, TEXT, b"hello")
            assert (made.status, again.status) in ((201, 200), (400, 400), (404, 404), (405, 405))
            if made.status == 201:
                assert (await site.get(second + "?offset=-1")).body == b"hello"
                fork = {"Stream-Forked-From": PREFIX + second}
                forked = await site.ask("PUT", "a-fork-of-it", fork)
                assert forked.status == 201
                assert (await site.ask("DELETE", quote(name))).status == 204
                assert (await site.head(first)).status == 410

    trio.run(main, clock=MockClock(autojump_threshold=0))
