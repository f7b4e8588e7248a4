"""What is permitted is what is routed to: no spelling of a path is allowed more than another."""

import tempfile
from pathlib import Path
from urllib.parse import unquote_to_bytes

import trio
from hypothesis import example, given, settings, strategies as st
from trio.testing import MockClock

from durastreamd.protocol.names import PREFIX, place_of
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.grants import Grant, prefixes_of
from tests.service.guards import bearer, guarded
from tests.service.harness import TEXT, Site

MINE, SECRET = b"this may be read", b"this must not"
HIDDEN = ("team-b/x", "team-ab/x", "team-a%2B/x", "Team-A/x", "x")
SHOWN = ("team-a/x", "team-a/b/c")
SEGMENTS = st.sampled_from(
    ["team-a", "team-b", "team-ab", "Team-A", "%74eam-a", "team%2Da", "team-a%2Fx", "team-a%2fx",
     "..", ".", "", "%2e%2e", "%2E", "x", "X", "b", "c", "b%2Fc", "team-a%00", "team-a%20", "%",
     "team-a\\x", "team-a%5Cx", "snapshot", "bootstrap", "streams", "v1", "stream", "team-a;x",
     "bucket-b", "bucket-c", "Bucket-b", "bucket-b%2Fx", "team-a?x", "team-a%3Fx", "%ef%bc%8f",
     "team-a%C0%AFx", "team-a%252Fx", "0" * 16]
)  # fmt: skip
PATHS = st.tuples(
    st.sampled_from(["/v1/stream/", "/", "//v1/stream/", "/v1//stream/", "/V1/stream/",
                     "/v1/stream//", "/v1/%73tream/", "/./v1/stream/", "/-/../v1/stream/"]),
    st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join),
).map("".join)  # fmt: skip
METHODS = st.sampled_from(["GET", "GET", "GET", "HEAD", "PUT", "POST", "DELETE"])


def key_of(path: str) -> str | None:
    try:
        return place_of(path).key
    except ProblemError:
        return None


def segments_of(key: str) -> list[str]:
    """Return surface and segments; written apart from the code it judges."""
    surface = "path" if key.startswith("/") else "bucket"
    return [surface, *key.strip("/").split("/")]


@given(PATHS, PATHS)
@settings(max_examples=600)
@example("/v1/stream/team-a", "/v1/stream/team-ab")
@example("/v1/stream/team-a", "/v1/stream/team-a/x")
@example("/bucket-b", "/bucket-b/streams")
@example("/bucket-b/x", "/bucket-b")
@example("/", "/bucket-b/x")
@example(PREFIX, "/v1/stream/team-a")
@example(PREFIX, "/bucket-b/x")
def test_a_prefix_covers_whole_segments_of_one_surface(prefix: str, path: str) -> None:
    try:
        grant = Grant("t", frozenset(("read",)), prefixes_of([prefix]))
    except ValueError:
        return
    key = key_of(path)
    if key is None:
        return
    wanted = {"/": [], PREFIX: ["path"], PREFIX.removesuffix("/"): ["path"]}.get(prefix)
    if wanted is None:
        wanted = segments_of(place_of(prefix.removesuffix("/")).key)
    assert grant.covers(key) == (segments_of(key)[: len(wanted)] == wanted)


async def _furnish(site: Site) -> None:
    root = {**bearer("root"), **TEXT}
    for bucket in ("bucket-b", "bucket-c"):
        await site.raw("PUT", f"/{bucket}", root)
    for path in [*(PREFIX + name for name in HIDDEN), "/bucket-c/x", "/bucket-c/team-a"]:
        reply = await site.raw("PUT", path, root, SECRET)
        assert reply.status == 201, path
    for path in [*(PREFIX + name for name in SHOWN), "/bucket-b/x"]:
        reply = await site.raw("PUT", path, root, MINE)
        assert reply.status == 201, path


async def _scenario(requests: list[tuple[str, str]]) -> set[int]:
    tokens = {"t": "scopes=read,write prefix=/v1/stream/team-a prefix=/bucket-b"}
    statuses = set()
    with tempfile.TemporaryDirectory() as folder:
        async with guarded(Path(folder) / "tokens", tokens) as site:
            await _furnish(site)
            before = await _hidden(site)
            for method, path in requests:
                target = f"{path}?offset=-1" if "?" not in path and method == "GET" else path
                reply = await site.raw(method, target, bearer("t", **TEXT), _body(method))
                statuses.add(reply.status)
                assert SECRET not in reply.body, path
                key = key_of(path.partition("?")[0])
                if key is None or path.startswith("/-/"):
                    assert 400 <= reply.status < 500, path
                    continue
                inside = segments_of(key)[:2] in (["path", "team-a"], ["bucket", "bucket-b"])
                assert (reply.status == 403) == (not inside), (path, key, reply)
            assert await _hidden(site) == before, requests
    return statuses


def _body(method: str) -> bytes:
    return b"more" if method in ("POST", "PUT") else b""


async def _hidden(site: Site) -> list[object]:
    found: list[object] = []
    for path in [*(PREFIX + name for name in HIDDEN), "/bucket-c/x", "/bucket-c/team-a"]:
        reply = await site.raw("GET", f"{path}?offset=-1", bearer("root"))
        found.append((reply.status, reply.body))
    return found


@given(st.lists(st.tuples(METHODS, PATHS), min_size=10, max_size=40))
@settings(max_examples=40, deadline=None)
@example([("GET", PREFIX + "team-a/x"), ("PUT", PREFIX + "team-a/new"), ("DELETE", "/bucket-c")])
@example([("GET", PREFIX + "team-a/../team-b/x"), ("GET", PREFIX + "team-a%2F..%2Fteam-b%2Fx")])
@example([("PUT", "/bucket-b/y"), ("DELETE", PREFIX + "team-a/x/../../team-b/x")])
def test_no_spelling_reaches_what_the_token_is_not_for(requests: list[tuple[str, str]]) -> None:
    statuses = trio.run(_scenario, requests, clock=MockClock(autojump_threshold=0))
    assert statuses <= {200, 201, 204, 307, 400, 403, 404, 405, 409, 410}


@given(PATHS)
def test_equal_names_are_equal_keys(path: str) -> None:
    """Two spellings of one name meet in one key, so they have one right."""
    key = key_of(path)
    if key is None or not path.startswith(PREFIX):
        return
    place = place_of(path)
    if place.part:
        return
    spelled = "".join(f"%{byte:02x}" if byte != 0x2F else "/" for byte in key.encode())
    assert place_of(PREFIX + spelled[1:]).key == key
    assert unquote_to_bytes(path[len(PREFIX) :]) == key[1:].encode()
