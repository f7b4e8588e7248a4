"""Every status of the protocol's summaries, and every refusal of our table a request can reach."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from trio.testing import MockClock

from durastreamd.protocol import problems
from tests.service.harness import (
    BINARY,
    CLOSE,
    JSON,
    PREFIX,
    TEXT,
    Reply,
    Site,
    producer,
)

ZERO = "0000000000000000"
FIVE = "0000000000000005"
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
FORK = {"Stream-Forked-From": PREFIX + "text"}
Ask = tuple[str, str, dict[str, str], bytes]
LEAK = re.compile(r"/(?:home|tmp|var|usr|srv|work|etc)/|Traceback|\.py\b|\.jnl|\.seg|\w+Error\b")


class Case(NamedTuple):
    """A request in the furnished site, and what it must be answered with."""

    ask: Ask
    status: int
    code: str = ""
    fields: dict[str, str | None] = {}  # noqa: RUF012  # never changed
    members: dict[str, Any] = {}  # noqa: RUF012


async def furnish(site: Site) -> None:
    """Make one stream of every kind the table needs."""
    await site.make("text", TEXT, b"hello")
    await site.make("json", JSON, b"[1,2]")
    await site.make("closed", {**TEXT, **CLOSE}, b"final")
    await site.make("seq", TEXT)
    await site.add("seq", b"x", {**TEXT, "Stream-Seq": "b"})
    await site.make("producers", TEXT)
    await site.add("producers", b"x", {**TEXT, **producer("p", 1, 0)})
    await site.make("strict", TEXT)
    await site.add("strict", b"x", {**TEXT, **producer("p", 1, 0), "Producer-Strict": "true"})
    await site.make("ttl", {**TEXT, "Stream-TTL": "60"})
    await site.make("gone", TEXT, b"inherited")
    await site.make("fork", {"Stream-Forked-From": PREFIX + "gone"})
    assert (await site.ask("DELETE", "gone")).status == 204


def put(name: str, head: dict[str, str], body: bytes = b"") -> Ask:
    return ("PUT", name, head, body)


def post(name: str, head: dict[str, str], body: bytes = b"x") -> Ask:
    return ("POST", name, head, body)


def get(name: str, **head: str) -> Ask:
    return ("GET", name, {key.replace("_", "-"): value for key, value in head.items()}, b"")


def other(method: str, name: str) -> Ask:
    return (method, name, {}, b"")


SUCCESSES = {
    "create": Case(
        put("new", TEXT), 201, fields={"Stream-Next-Offset": ZERO, "Stream-Closed": None}
    ),
    "create_with_content": Case(
        put("new", TEXT, b"hello"), 201, fields={"Stream-Next-Offset": FIVE}
    ),
    "create_closed": Case(put("new", {**TEXT, **CLOSE}), 201, fields={"Stream-Closed": "true"}),
    "create_location": Case(
        put("a/new", TEXT), 201, fields={"Location": "http://streams.example/v1/stream/a/new"}
    ),
    "create_untyped": Case(put("new", {}), 201, fields={"Content-Type": BINARY["Content-Type"]}),
    "create_again": Case(put("text", TEXT), 200, fields={"Stream-Next-Offset": FIVE}),
    "create_closed_again": Case(
        put("closed", {**TEXT, **CLOSE}), 200, fields={"Stream-Closed": "true"}
    ),
    "append": Case(post("text", TEXT), 204, fields={"Stream-Next-Offset": "0000000000000006"}),
    "append_and_close": Case(
        post("text", {**TEXT, **CLOSE}), 204, fields={"Stream-Closed": "true"}
    ),
    "append_of_producer": Case(
        post("text", {**TEXT, **producer("q", 7, 0)}),
        200,
        fields={"Producer-Epoch": "7", "Producer-Seq": "0"},
    ),
    "append_again": Case(
        post("producers", {**TEXT, **producer("p", 1, 0)}),
        204,
        fields={"Producer-Epoch": "1", "Producer-Seq": "0", "Stream-Next-Offset": f"{1:016d}"},
    ),
    "close": Case(post("text", CLOSE, b""), 204, fields={"Stream-Closed": "true"}),
    "close_again": Case(
        post("closed", CLOSE, b""),
        204,
        fields={"Stream-Closed": "true", "Stream-Next-Offset": FIVE},
    ),
    "delete": Case(other("DELETE", "text"), 204),
    "head": Case(
        other("HEAD", "ttl"), 200, fields={"Stream-TTL": "60", "Cache-Control": "no-store"}
    ),
    "head_closed": Case(other("HEAD", "closed"), 200, fields={"Stream-Closed": "true"}),
    "read": Case(get("text"), 200, fields={"Stream-Up-To-Date": "true", "Stream-Closed": None}),
    "read_at_tail": Case(get(f"text?offset={FIVE}"), 200, fields={"Stream-Next-Offset": FIVE}),
    "read_closed": Case(get("closed?offset=-1"), 200, fields={"Stream-Closed": "true"}),
    "read_unchanged": Case(get("text?offset=-1", If_None_Match="*"), 304),
    "poll": Case(get("text?offset=-1&live=long-poll"), 200, fields={"Stream-Up-To-Date": "true"}),
    "poll_in_vain": Case(
        get("text?offset=now&live=long-poll"),
        204,
        fields={"Stream-Next-Offset": FIVE, "Stream-Up-To-Date": "true", "Stream-Closed": None},
    ),
    "poll_closed": Case(
        get(f"closed?offset={FIVE}&live=long-poll"),
        204,
        fields={"Stream-Closed": "true", "Stream-Up-To-Date": "true", "Stream-Next-Offset": FIVE},
    ),
    "events": Case(
        get("closed?offset=-1&live=sse"), 200, fields={"Content-Type": "text/event-stream"}
    ),
    "preflight": Case(other("OPTIONS", "missing"), 204, fields={"Allow": METHODS}),
}

MALFORMED_TTL = [{"Stream-TTL": value} for value in ("+1", "01", "1.0", "1e3", "", "-1", "9" * 13)]
MALFORMED_TTL += [{"Stream-TTL": "1", "Stream-Expires-At": "2030-01-01T00:00:00Z"}]
MALFORMED_TTL += [
    {"Stream-Expires-At": value}
    for value in ("tomorrow", "2030-01-01", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z", "")
]
MALFORMED_PRODUCER = [
    {"Producer-Id": "p"},
    {"Producer-Id": "p", "Producer-Epoch": "0"},
    {"Producer-Epoch": "0", "Producer-Seq": "0"},
    {**producer("p", 0, 0), "Producer-Id": ""},
    {**producer("p", 0, 0), "Producer-Id": "p" * 257},
    {**producer("p", 0, 0), "Producer-Epoch": "1e3"},
    producer("p", 2**53, 0),
    producer("p", 0, 2**53),
    producer("p", -1, 0),
    producer("new", 3, 4) | {"Producer-Id": "p"},
]
MALFORMED_FORK = [
    {"Stream-Fork-Sub-Offset": "0"},
    *({**FORK, "Stream-Fork-Offset": value} for value in ("x", "5", "1" * 17, "9" * 16, "1_2")),
    *(
        {**FORK, "Stream-Fork-Offset": ZERO, "Stream-Fork-Sub-Offset": value}
        for value in ("01", "-1", "1.5", "6", "9" * 40)
    ),
    {**FORK, "Stream-Fork-Sub-Offset": "1"},
    {**FORK, "Stream-Fork-Offset": f"{2:016d}"},  # inside a message
]
MALFORMED_OFFSETS = (
    "%D9%A0" * 16,
    f"{0:016d}%0A",
    "",
    "x",
    "-2",
    "5",
    "0,1",
    "1_2",
    "%20",
    "NOW",
    f"{2:016d}",
    "1" * 17,
    "%D9%A0" * 16,
)
MALFORMED_NAMES = (
    "snapshot",
    "%zz",
    "a//b",
    "a/",
    "..",
    "a/../b",
    "%2e",
    "a%2Fb",
    "%00",
    "a%5Cb",
    "%ff",
    "n" * 1025,
)
MALFORMED_TYPES = ("text", "text/plain\u00e9", "/plain", "text/", "x" * 300 + "/y")
GONE = {"HEAD": other("HEAD", "gone"), "GET": get("gone?offset=-1"), "POST": post("gone", TEXT)}


def refused(code: str, number: int, ask: Ask) -> tuple[str, Case]:
    row = problems.by_name(code)
    return f"{code.lower()}_{number}", Case(ask, row.status, code)


def malformed() -> Iterator[tuple[str, Case]]:
    """Yield the requests that no state of a stream makes good."""
    for number, head in enumerate(MALFORMED_TTL):
        yield refused("INVALID_TTL", number, put("new", {**TEXT, **head}))
    for number, head in enumerate(MALFORMED_PRODUCER):
        yield refused("INVALID_PRODUCER", number, post("producers", {**TEXT, **head}))
    for number, head in enumerate(MALFORMED_FORK):
        yield refused("INVALID_FORK", number, put("new", head))
    for number, offset in enumerate(MALFORMED_OFFSETS):
        for live in ("", "&live=sse", "&live=long-poll"):
            ask = get(f"text?offset={offset}{live}")
            yield refused("INVALID_OFFSET", number * 10 + len(live), ask)
    yield refused("INVALID_OFFSET", 999, get("text?offset=-1&offset=now"))


def bad() -> Iterator[tuple[str, Case]]:
    """Yield the requests that are malformed in no special way."""
    for number, name in enumerate(MALFORMED_NAMES):
        for method in ("GET", "HEAD", "DELETE"):
            yield refused("BAD_REQUEST", 100 + number * 10 + len(method), other(method, name))
    for number, live in enumerate(("live=sse", "live=long-poll", "live=x&offset=-1")):
        yield refused("BAD_REQUEST", 300 + number, get(f"text?{live}"))
    for number, kind in enumerate(MALFORMED_TYPES):
        yield refused("BAD_REQUEST", 400 + number, put("new", {"Content-Type": kind}))
    for number, seq in enumerate(("", "s" * 257)):
        yield refused("BAD_REQUEST", 500 + number, post("seq", {**TEXT, "Stream-Seq": seq}))


def stateful() -> Iterator[tuple[str, Case]]:
    """Yield the requests that the state of a stream refuses."""
    for number, ask in enumerate(
        (post("missing", TEXT), post("missing", CLOSE, b""), other("DELETE", "missing"))
    ):
        yield refused("NOT_FOUND", number, ask)
    yield refused("NOT_FOUND", 10, other("HEAD", "missing"))
    for number, live in enumerate(("", "?offset=now&live=sse", "?offset=-1&live=long-poll")):
        yield refused("NOT_FOUND", 20 + number, get(f"missing{live}"))
    yield refused("NOT_FOUND", 31, put("new", {"Stream-Forked-From": PREFIX + "missing"}))
    for number, ask in enumerate((*GONE.values(), other("DELETE", "gone"))):
        yield refused("GONE", number, ask)
    yield refused("FORK_CONFLICT", 0, put("new", {"Stream-Forked-From": PREFIX + "gone"}))
    for number, head in enumerate((JSON, {**TEXT, "Stream-TTL": "60"}, {**TEXT, **CLOSE}, FORK)):
        yield refused("ALREADY_EXISTS", number, put("text", head))
    yield refused("ALREADY_EXISTS", 10, put("gone", TEXT))
    yield refused("ALREADY_EXISTS", 11, put("closed", TEXT))
    yield refused("ALREADY_EXISTS", 12, put("ttl", {**TEXT, "Stream-TTL": "61"}))
    for number, seq in enumerate(("b", "a", "B", "")[:3]):
        head = {**TEXT, "Stream-Seq": seq}
        end: dict[str, str | None] = {"Stream-Next-Offset": "1".zfill(16)}
        row = Case(post("seq", head), 409, "SEQUENCE_CONFLICT", end, members={"streamSeq": "b"})
        yield f"sequence_conflict_{number}", row
    types = {"expectedContentType": "text/plain", "actualContentType": "application/json"}
    row = Case(post("text", JSON, b"1"), 409, "CONTENT_TYPE_MISMATCH", members=types)
    yield "content_type_mismatch", row
    yield refused("CONTENT_TYPE_MISMATCH", 1, put("new", {**FORK, **JSON}))
    closed: dict[str, str | None] = {"Stream-Closed": "true", "Stream-Next-Offset": FIVE}
    for number, head in enumerate((TEXT, {**TEXT, **CLOSE}, JSON, {**TEXT, **producer("q", 0, 0)})):
        yield f"stream_closed_{number}", Case(post("closed", head), 409, "STREAM_CLOSED", closed)
    row = Case(
        post("producers", {**TEXT, **producer("p", 0, 9)}),
        403,
        "STALE_EPOCH",
        {"Producer-Epoch": "1"},
    )
    yield "stale_epoch", row
    gap: dict[str, str | None] = {"Producer-Expected-Seq": "1", "Producer-Received-Seq": "3"}
    yield "gap", Case(post("producers", {**TEXT, **producer("p", 1, 3)}), 409, "SEQUENCE_GAP", gap)
    first: dict[str, str | None] = {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "2"}
    ask = post("producers", {**TEXT, **producer("stranger", 0, 2)})
    yield "gap_of_a_stranger", Case(ask, 409, "SEQUENCE_GAP", first)


def conditional() -> Iterator[tuple[str, Case]]:
    """Yield the requests that depend on what the stream is, and find it otherwise."""
    for number, expected in enumerate((ZERO, "9" * 16, "-1")):
        head = {**TEXT, "Stream-Expected-Offset": expected}
        at_five: dict[str, str | None] = {"Stream-Next-Offset": FIVE}
        yield f"offset_conflict_{number}", Case(post("text", head), 409, "OFFSET_CONFLICT", at_five)
    for number, expected in enumerate(("", "now", "5", "x")):
        head = {**TEXT, "Stream-Expected-Offset": expected}
        yield refused("INVALID_OFFSET", 2000 + number, post("text", head))
    other_life = {**TEXT, "Stream-Incarnation": "0" * 16}
    for number, method in enumerate(("PUT", "POST", "DELETE", "GET", "HEAD")):
        ask = (method, "text", other_life, b"more" if method == "POST" else b"")
        yield refused("PRECONDITION_FAILED", 10 + number, ask)
    yield refused("PRECONDITION_FAILED", 1, put("missing", other_life))
    yield refused("PRECONDITION_FAILED", 2, get("text?offset=-1&incarnation=0"))
    repeat = {**TEXT, **producer("p", 1, 0), "Producer-Strict": "true"}
    yield refused("REPEAT_UNKNOWN", 0, post("producers", repeat))
    yield refused("REPEAT_DIFFERS", 0, post("strict", repeat, b"y"))
    for number, head in enumerate(
        ({**TEXT, "Producer-Strict": "true"}, {**repeat, "Producer-Strict": "1"})
    ):
        yield refused("INVALID_PRODUCER", 900 + number, post("strict", head))


def bodies() -> Iterator[tuple[str, Case]]:
    """Yield the bodies and methods that are refused."""
    yield refused("EMPTY_BODY", 0, post("text", TEXT, b""))
    yield refused("EMPTY_BODY", 1, post("text", {**TEXT, "Stream-Closed": "yes"}, b""))
    yield refused("EMPTY_BODY", 2, post("text", {**TEXT, **producer("p", 0, 0)}, b""))
    yield refused("EMPTY_ARRAY", 0, post("json", JSON, b" [ ] "))
    for number, body in enumerate(
        (b"{", b"[1,]", b"nul", b"\xff", b"1 2", b"[" * 200 + b"]" * 200)
    ):
        yield refused("INVALID_JSON", number, post("json", JSON, body))
        yield refused("INVALID_JSON", 100 + number, put("new", JSON, body))
    yield refused("MISSING_CONTENT_TYPE", 0, post("text", {}))
    for method in ("POST", "PUT"):
        ask = (method, "text", {**TEXT, "Content-Encoding": "gzip"}, b"x")
        yield refused("UNSUPPORTED_ENCODING", len(method), ask)
    for method in ("PROPFIND", "TRACE"):
        row = Case(other(method, "text"), 405, "METHOD_NOT_ALLOWED", {"Allow": METHODS})
        yield f"method_{method}", row


REFUSALS = dict([*malformed(), *bad(), *stateful(), *conditional(), *bodies()])
# Reached by the tests below the table; each names its code.
ELSEWHERE = {
    "PAYLOAD_TOO_LARGE", "RATE_LIMITED", "UNAVAILABLE", "INSUFFICIENT_STORAGE", "STREAM_DAMAGED",
    "INTERNAL_ERROR", "OFFSET_EXPIRED", "REQUEST_TIMEOUT", "URI_TOO_LONG", "HEADERS_TOO_LARGE",
    "HTTP_VERSION_NOT_SUPPORTED", "NOT_IMPLEMENTED", "FORK_TOO_DEEP", "DISK_FAILED", "DATA_LOST",
    "TOO_MANY_PRODUCERS", "STREAM_FULL", "RETENTION_PASSED",
}  # fmt: skip
# Of surfaces that have tests of their own, or that do not exist yet.
NOT_HERE = {
    "UNAUTHENTICATED", "PERMISSION_DENIED", "BUCKET_NOT_FOUND", "BUCKET_EXISTS",
    "BUCKET_NOT_EMPTY", "SNAPSHOT_NOT_FOUND", "SNAPSHOT_CONFLICT", "FOREIGN_PAGE", "MISDIRECTED",
    "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN_REPEAT", "INVALID_REQUEST", "WEBHOOK_URL_REJECTED",
    "TOKEN_INVALID", "TOKEN_EXPIRED", "SUBSCRIPTION_NOT_FOUND", "SUBSCRIPTION_ALREADY_EXISTS",
    "FENCED", "ALREADY_CLAIMED", "NO_PENDING_WORK", "INVALID_ACK", "UNSUPPORTED_MEDIA_TYPE",
}  # fmt: skip


def check_problem(reply: Reply, code: str, path: str, **members: object) -> None:
    """Check everything that every refusal has."""
    row = problems.by_name(code)
    assert reply.status == row.status, reply
    assert reply["Content-Type"] == "application/problem+json"
    assert reply["Cache-Control"] == "no-store"
    check_common(reply)
    body = reply.json
    assert body.pop("detail")
    assert not LEAK.search(reply.body.decode()), reply.body
    expected = {"type": row.type, "title": row.title, "status": row.status, "code": row.code}
    expected |= {"reason": row.reason} if row.reason else {}
    instance = body.pop("instance", "")
    assert instance == path[: len(instance)]
    assert len(instance) == min(len(path), problems.ECHO_CHARACTERS_MAX)
    assert body == expected | members


def check_common(reply: Reply) -> None:
    assert reply["X-Content-Type-Options"] == "nosniff"
    assert reply["Access-Control-Allow-Origin"] == "*"
    assert reply["Cross-Origin-Resource-Policy"] == "cross-origin"


def check_fields(reply: Reply, case: Case) -> None:
    for name, value in case.fields.items():
        assert reply.get(name) == value, name


@pytest.mark.parametrize("name", SUCCESSES)
async def test_success_has_its_status_and_headers(
    autojump_clock: MockClock, site: Site, name: str
) -> None:
    await furnish(site)
    case = SUCCESSES[name]
    reply = await site.ask(*case.ask)
    assert reply.status == case.status, reply
    check_fields(reply, case)
    check_common(reply)


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusal_has_its_status_code_and_headers(site: Site, name: str) -> None:
    await furnish(site)
    case = REFUSALS[name]
    reply = await site.ask(*case.ask)
    path = PREFIX + case.ask[1].partition("?")[0]
    check_fields(reply, case)
    if case.ask[0] == "HEAD":
        assert (reply.status, reply.body) == (case.status, b"")
        check_common(reply)
    else:
        check_problem(reply, case.code, path, **case.members)
    # Nothing was changed by it.
    assert (await site.head("text")).next == FIVE
    assert (await site.head("new")).status == 404


def test_every_code_of_the_table_is_reached_here_or_said_not_to_be() -> None:
    reached = {case.code for case in REFUSALS.values()}
    assert not (reached | ELSEWHERE) & NOT_HERE
    assert reached | ELSEWHERE | NOT_HERE == {row.name for row in problems.problems()}


CODES = [row for row in problems.problems() if not row.reason]


@pytest.mark.parametrize("row", CODES, ids=lambda row: row.slug)
async def test_every_problem_type_can_be_fetched(site: Site, row: problems.Problem) -> None:
    reply = await site.raw("GET", row.type)
    assert reply.status == 200
    check_common(reply)
    said = reply.json
    finer = {each.reason: each.description for each in problems.reasons_of(row)}
    assert said.pop("reasons", {}) == finer
    assert said == {
        "type": row.type,
        "code": row.code,
        "status": row.status,
        "title": row.title,
        "description": row.description,
    }
    assert (await site.raw("HEAD", row.type)).body == b""
    reply = await site.raw("POST", row.type, {}, b"x")
    check_problem(reply, "METHOD_NOT_ALLOWED", row.type)
    assert reply["Allow"] == "GET, HEAD, OPTIONS"
    assert (await site.raw("GET", "/errors/")).json["errors"][CODES.index(row)]["type"] == row.type


@pytest.mark.parametrize("source", ["", "text", "/", "/v2/stream/text", PREFIX, PREFIX + "a//b"])
async def test_fork_of_what_is_no_stream_is_refused(site: Site, source: str) -> None:
    await furnish(site)
    reply = await site.ask("PUT", "new", {"Stream-Forked-From": source})
    assert reply.status in (400, 404), reply
    check_problem(reply, reply.problem, PREFIX + "new")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/stream", "/v2/stream/a", "/errors/none"])
async def test_path_that_names_nothing_is_refused(site: Site, path: str) -> None:
    for method in ("GET", "POST"):
        reply = await site.raw(method, path, TEXT, b"x" if method == "POST" else b"")
        assert reply.status in (400, 404, 405), reply
        check_problem(reply, reply.problem, path)


@pytest.mark.parametrize(
    ("method", "target", "status", "said"),
    [
        ("GET", "/v1/stream", 404, "/v1/stream/ lists them"),
        ("PUT", "/v1/streams/x", 404, "did you mean '/v1/stream/x'?"),
        ("GET", "/favicon.ico", 404, "no pages here"),
        ("PUT", "/stream/x", 404, "Streams outside of buckets are under /v1/stream/"),
        ("GET", "/errors/nothing", 404, "/errors/ lists them"),
        ("GET", PREFIX + "text?offset=5", 400, "did you mean 0000000000000005?"),
        ("GET", PREFIX + "text?offset=start", 400, "-1 for the start and now for the end."),
        ("PUT", PREFIX + "none/snapshot", 404, "that stream does not exist"),
        ("GET", PREFIX + "none/bootstrap", 404, "No stream has a name that ends so"),
        ("PUT", PREFIX + "bootstrap", 400, "bootstrap is a part of a stream"),
    ],
)
async def test_what_people_mistype_is_told_what_they_meant(
    site: Site, method: str, target: str, status: int, said: str
) -> None:
    await furnish(site)
    reply = await site.raw(method, target, TEXT if method == "PUT" else None)
    assert (reply.status, said in reply.json["detail"]) == (status, True), reply
