"""Who may do what: tokens, scopes, prefixes, and what is refused how."""

import logging
from pathlib import Path

import pytest

from durastreamd.config import load
from durastreamd.errors import ConfigError
from durastreamd.protocol.outcomes import Appended
from durastreamd.service.access.grants import Grant, prefix_of, rate_of
from durastreamd.service.access.options import AccessOptions, check_exposure
from durastreamd.service.access.tokens import read_table
from tests.service.guards import REALM, bearer, guarded, line, write
from tests.service.harness import JSON, PREFIX, TEXT, Reply, Site, serving

ROOT = bearer("root")
TOKENS = {
    "reader": "scopes=read name=reader",
    "writer": "scopes=write",
    "both-a": "scopes=read,write prefix=/v1/stream/team-a",
    "two": "scopes=read,write prefix=/v1/stream/team-a/x prefix=/bucket1",
    "nothing": "scopes=admin",
    "past": "scopes=read,write expires=2026-01-01T00:00:00Z",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json["code"]) == (status, code), reply
    assert reply["Content-Type"] == "application/problem+json"
    assert reply["Cache-Control"] == "no-store"
    assert reply["WWW-Authenticate"].startswith(REALM)


async def test_without_a_token_nothing_is_served(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        for method, target in [
            ("GET", PREFIX + "s?offset=-1"),
            ("PUT", PREFIX + "s"),
            ("POST", PREFIX + "s"),
            ("DELETE", PREFIX + "s"),
            ("PATCH", PREFIX + "s"),
            ("GET", PREFIX + "../s"),
            ("PUT", "/bucket1"),
            ("GET", "/bucket1/streams"),
            ("GET", "/-/metrics"),
            ("GET", "/-/nothing"),
        ]:
            reply = await site.raw(method, target, TEXT if method == "POST" else None, b"")
            refused(reply, 401, "UNAUTHENTICATED")
            assert reply["WWW-Authenticate"] == REALM
        assert (await site.raw("HEAD", PREFIX + "s")).status == 401
        assert site.app.admission.counts.failures["missing"] == 11


@pytest.mark.parametrize(
    "given",
    ["Bearer", "Bearer ", "Basic cm9vdDo=", "root", "Bearer root x", "Bearer wrong",
     "Bearer root, Bearer root", f"Bearer {'x' * 9000}", "Bearer a.b.c"],
)  # fmt: skip
async def test_what_is_no_token_of_ours_is_refused(file: Path, given: str) -> None:
    async with guarded(file, TOKENS) as site:
        reply = await site.ask("GET", "s?offset=-1", {"Authorization": given})
        refused(reply, 401, "UNAUTHENTICATED")
        assert reply["WWW-Authenticate"] == f'{REALM}, error="invalid_token"'
        for word in (b"root", b"wrong", b"xxx", b"cm9v", b"a.b.c"):
            assert word not in reply.body


async def test_the_scheme_is_known_in_any_case(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        for scheme in ("bearer", "BEARER", "Bearer "):
            reply = await site.ask("PUT", "s", {"Authorization": f"{scheme} root", **TEXT})
            assert reply.status in (200, 201)


@pytest.mark.parametrize(
    ("token", "method", "target", "status"),
    [
        ("reader", "GET", PREFIX + "team-a/x?offset=-1", 200),
        ("reader", "HEAD", PREFIX + "team-a/x", 200),
        ("reader", "POST", PREFIX + "team-a/x", 403),
        ("reader", "PUT", PREFIX + "new", 403),
        ("reader", "DELETE", PREFIX + "team-a/x", 403),
        ("reader", "PATCH", PREFIX + "team-a/x", 403),
        ("reader", "GET", PREFIX + "team-a/x/bootstrap", 200),
        ("reader", "PUT", PREFIX + "team-a/x/snapshot/" + "0" * 16, 403),
        ("reader", "GET", "/bucket1/streams", 200),
        ("reader", "PUT", "/bucket2", 403),
        ("reader", "GET", "/-/metrics", 403),
        ("writer", "POST", PREFIX + "team-a/x", 204),
        ("both-a", "POST", PREFIX + "team-a/x", 204),
        ("both-a", "POST", PREFIX + "%74eam-a/x", 204),
        ("both-a", "POST", PREFIX + "team-b/x", 403),
        ("both-a", "POST", PREFIX + "team-ab", 403),
        ("past", "POST", PREFIX + "team-a/x", 401),
        ("unknown", "POST", PREFIX + "team-a/x", 401),
        ("writer", "GET", PREFIX + "team-a/x?offset=-1", 403),
        ("writer", "GET", PREFIX + "team-a/x?offset=-1&live=sse", 403),
        ("writer", "HEAD", PREFIX + "team-a/x", 403),
        ("both-a", "GET", PREFIX + "team-a/x?offset=-1", 200),
        ("both-a", "PUT", PREFIX + "team-a", 201),
        ("both-a", "GET", PREFIX + "team-ab?offset=-1", 403),
        ("both-a", "GET", PREFIX + "team-b/x?offset=-1", 403),
        ("both-a", "GET", "/bucket1/x?offset=-1", 403),
        ("both-a", "PUT", "/bucket2", 403),
        ("two", "GET", PREFIX + "team-a/x?offset=-1", 200),
        ("two", "PUT", PREFIX + "team-a/y", 403),
        ("two", "GET", "/bucket1", 200),
        ("two", "GET", "/bucket1/streams", 200),
        ("two", "GET", "/bucket1/x?offset=-1", 200),
        ("two", "PUT", "/bucket12", 403),
        ("nothing", "GET", PREFIX + "team-a/x?offset=-1", 403),
        ("nothing", "GET", "/-/metrics", 200),
        ("nothing", "GET", "/-/nothing", 404),
        ("nothing", "POST", "/-/metrics", 405),
    ],
)
async def test_a_token_is_good_for_its_scopes_and_places(
    file: Path, token: str, method: str, target: str, status: int
) -> None:
    async with guarded(file, TOKENS) as site:
        await furnish(site)
        head = bearer(token, **(TEXT if method in ("POST", "PUT") else {}))
        reply = await site.raw(method, target, head, b"more" if method == "POST" else b"")
        assert reply.status == status, reply
        if method == "POST" and target.startswith(PREFIX):
            # The quick way took it if, and only if, it was permitted.
            assert (site.app._counts.appends[Appended] == 1) == (status == 204)
        if status == 403 and method != "HEAD":
            refused(reply, 403, "PERMISSION_DENIED")
            assert 'error="insufficient_scope"' in reply["WWW-Authenticate"]


async def furnish(site: Site) -> None:
    for name in ("team-a/x", "team-ab", "team-b/x"):
        made = await site.ask("PUT", name, {**ROOT, **TEXT}, name.encode())
        assert made.status == 201
    assert (await site.raw("PUT", "/bucket1", ROOT)).status == 201
    assert (await site.raw("PUT", "/bucket1/x", {**ROOT, **TEXT}, b"in a bucket")).status == 201


async def test_a_fork_needs_the_right_to_read_its_source(file: Path) -> None:
    tokens = {
        "a": "scopes=read,write prefix=/v1/stream/team-a",
        "w": "scopes=write",
        "ab": "scopes=read,write prefix=/v1/stream/team-a prefix=/v1/stream/team-b",
    }
    async with guarded(file, tokens) as site:
        await furnish(site)
        for source in ("team-b/x", "%74eam-b/x", "team-b/../team-b/x"):
            fork = {"Stream-Forked-From": PREFIX + source}
            reply = await site.ask("PUT", "team-a/f", bearer("a", **fork))
            assert reply.status == (400 if ".." in source else 403), source
            assert (await site.ask("GET", "team-a/f?offset=-1", ROOT)).status == 404
        fork = {"Stream-Forked-From": "http://elsewhere" + PREFIX + "team-b/x"}
        assert (await site.ask("PUT", "team-a/f", bearer("a", **fork))).status == 403
        assert (await site.ask("PUT", "team-a/f", bearer("w", **fork))).status == 403
        assert (await site.ask("PUT", "team-a/f", bearer("ab", **fork))).status == 201
        assert (await site.ask("GET", "team-a/f?offset=-1", bearer("a"))).body == b"team-b/x"


async def test_a_token_in_the_url_is_refused_and_not_repeated(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        for query in ("access_token=root", "offset=-1&access%5Ftoken=root&access_token=root"):
            reply = await site.get(f"s?{query}")
            assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")
            assert reply["WWW-Authenticate"] == f'{REALM}, error="invalid_request"'
            assert b"root" not in reply.body


async def test_browsers_and_probes_need_no_token(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        for method, target, status in [
            ("OPTIONS", PREFIX + "s", 204),
            ("OPTIONS", "/-/metrics", 204),
            ("GET", "/health", 200),
            ("GET", "/-/healthz", 200),
            ("GET", "/-/readyz", 200),
            ("GET", "/errors/unauthenticated", 200),
        ]:
            reply = await site.raw(method, target)
            assert reply.status == status, target
        assert (await site.raw("GET", "/-/healthz")).json == {"status": "ok"}
        reply = await site.get("s", {"Origin": "https://page.example"})
        assert "WWW-Authenticate" in reply["Access-Control-Expose-Headers"]


async def test_caches_may_keep_for_others_only_what_others_may_read(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        await furnish(site)
        head = await site.ask("HEAD", "team-b/x", ROOT)
        bound = f"&end={head.next}&incarnation={head['Stream-Incarnation']}"
        for query, age in (
            ("", "max-age=60"),
            ("&live=long-poll", "max-age=60"),
            (bound, "max-age=31536000"),
        ):
            reply = await site.ask("GET", f"team-b/x?offset=-1{query}", ROOT)
            assert reply["Cache-Control"].startswith(f"private, {age}")
            assert reply["Vary"] == "Accept, Accept-Encoding, Authorization, Origin"
        options = AccessOptions(tokens_file=str(file), anonymous=("read",))
        site.app.restrict(options)
        reply = await site.get("team-b/x?offset=-1")
        assert reply["Cache-Control"].startswith("public, max-age=60")
        assert reply["Vary"] == "Accept, Accept-Encoding, Origin"
        site.app.restrict(AccessOptions(), mutual_tls=True)
        reply = await site.get("team-b/x?offset=-1")
        assert reply["Cache-Control"].startswith("private, ")


async def test_everybody_may_read_where_that_was_said(file: Path) -> None:
    async with guarded(file, TOKENS, anonymous=("read",)) as site:
        await furnish(site)
        assert (await site.get("team-b/x?offset=-1")).body == b"team-b/x"
        refused(await site.ask("POST", "team-b/x", TEXT, b"x"), 401, "UNAUTHENTICATED")
        refused(await site.raw("GET", "/-/metrics"), 401, "UNAUTHENTICATED")
        refused(await site.get("s", bearer("wrong")), 401, "UNAUTHENTICATED")


async def test_an_expired_token_is_refused(file: Path, autojump_clock: object) -> None:
    tokens = {"old": "scopes=read expires=2026-01-01T00:00:00Z", "new": SOON}
    async with guarded(file, tokens) as site:
        await furnish(site)
        refused(await site.get("team-a/x", bearer("old")), 401, "UNAUTHENTICATED")
        assert (await site.get("team-a/x?offset=-1", bearer("new"))).status == 200
        assert site.app.admission.counts.failures["expired"] == 1


SOON = "scopes=read expires=2027-01-15T08:01:40Z"  # a hundred seconds after harness.NOW


async def test_tokens_are_in_no_log(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(file, TOKENS) as site:
        await site.ask("PUT", "s", bearer("root", **JSON), b"{")
        await site.ask("GET", "s", bearer("not-a-token-of-ours"))
        await site.ask("POST", "s", bearer("reader", **JSON), b"{}")
    for word in ("root", "not-a-token", "Bearer", "eader"):
        assert word not in caplog.text


async def test_a_bad_change_of_the_files_leaves_everything_as_it_was(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        broken = tmp_file(file, line("root", "scopes=read") + "sha256:12 scopes=read\n")
        with pytest.raises(ConfigError, match=r"tokens:2: a line begins with sha256:"):
            site.app.restrict(AccessOptions(tokens_file=broken))
        assert (await site.ask("PUT", "s", bearer("root"))).status == 201
        with pytest.raises(ConfigError, match="cannot read"):
            site.app.restrict(AccessOptions(tokens_file=f"{file}.gone"))
        write(file, {"other": "scopes=read"})
        site.app.restrict(AccessOptions(tokens_file=str(file)))
        assert (await site.ask("GET", "s?offset=-1", bearer("root"))).status == 401
        assert (await site.ask("GET", "s?offset=-1", bearer("other"))).status == 200
        site.app.restrict(AccessOptions())
        assert site.app.admission.gate is None
        assert (await site.ask("GET", "s?offset=-1")).status == 200


def tmp_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def test_without_settings_there_is_no_gate() -> None:
    async with serving() as site:
        site.app.restrict(AccessOptions())
        assert site.app.admission.gate is None


# --- the file ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("root scopes=read", "begins with sha256:"),
        ("sha256:" + "0" * 63 + " scopes=read", "begins with sha256:"),
        (line("t", ""), "scopes= is missing"),
        (line("t", "scopes=reed"), "'reed' is no scope"),
        (line("t", "scopes="), "'scopes' is not one of"),
        (line("t", "scopes=read scopes=write"), "given twice"),
        (line("t", "scopes=read scope=write"), "'scope' is not one of scopes="),
        (line("t", "scopes=read expires=tomorrow"), "is no time"),
        (line("t", "scopes=read expires=2027-01-01T00:00:00"), "is no time"),
        (line("t", "scopes=read expires=2027-13-01T00:00:00Z"), "month"),
        (line("t", "scopes=read rate=fast"), "is no rate"),
        (line("t", "scopes=read rate=0/s"), "from 1 to"),
        (line("t", "scopes=read name=a\u202eb"), "a name is"),
        (line("t", "scopes=read prefix=team-a"), "does not begin with a slash"),
        (line("t", "scopes=read prefix=/v1/stream/a/../b"), "can name nothing"),
        (line("t", "scopes=read prefix=/v1/stream/a//b"), "can name nothing"),
        (line("t", "scopes=read prefix=/Bucket"), "can name nothing"),
        (line("t", "scopes=read prefix=/v1/stream/a/snapshot"), "a part of a stream"),
        (line("t", "scopes=read prefix=/bucket1/streams"), "a part of a stream or bucket"),
        (line("t", "scopes=read") + line("t", "scopes=read"), "f:2: the same token"),
    ],
)
def test_a_wrong_line_is_named_and_its_token_is_not_shown(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^f:[12]: ") as caught:
        read_table(text, "f")
    assert says in str(caught.value)
    assert "root" not in str(caught.value)


def test_a_line_says_everything() -> None:
    text = line(
        "t", "scopes=read,admin prefix=/v1/stream/a%20b/ prefix=/bucket1/x name=ci rate=6/m"
    )
    ((_, grant),) = read_table(text, "f").values()
    assert grant == Grant(
        "ci", frozenset(("read", "admin")), ("/a b", "bucket1/x"), rate=rate_of("6/m")
    )
    assert (rate_of("6/m").burst, rate_of("6/m").per_s) == (6, 0.1)


@pytest.mark.parametrize(
    ("prefix", "key"),
    [("/", None), ("/v1/stream/", ""), ("/v1/stream", ""), ("/v1/stream/a/b/", "/a/b"),
     ("/bucket1", "bucket1"), ("/bucket1/", "bucket1"), ("/bucket1/s", "bucket1/s")],
)  # fmt: skip
def test_a_prefix_stands_for_a_key(prefix: str, key: str | None) -> None:
    assert prefix_of(prefix) == key


def test_no_prefix_at_all_is_nowhere() -> None:
    assert not Grant("t", frozenset(("read",)), ()).covers("/a")
    assert Grant("t", frozenset(("read",)), None).covers("/a")


async def test_the_whole_digest_counts_not_what_finds_it(file: Path) -> None:
    async with guarded(file, TOKENS) as site:
        gate = site.app.admission.gate
        assert gate is not None
        for start, (digest, grant) in gate._table.items():
            gate._table[start] = (digest[:-1] + bytes([digest[-1] ^ 1]), grant)
        assert (await site.ask("GET", "s", ROOT)).status == 401


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("access.anonymous=read", "limits nothing without"),
        ("access.anonymous=reed", "is no scope"),
        ("access.rate=often", "is no rate"),
    ],
)
def test_a_setting_that_would_not_do_what_it_seems_to_is_refused(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, [setting])


# --- where it may listen ---


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "fe80::1%eth0", "2001:db8::1"])
def test_listening_beyond_this_host_needs_tokens_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=r"access\.tokens_file.*allow_anonymous = true"):
        check_exposure(["127.0.0.1", host], AccessOptions())
    check_exposure([host], AccessOptions(allow_anonymous=True))
    check_exposure([host], AccessOptions(tokens_file="f"))
    check_exposure([host], AccessOptions(jwt_jwks_file="f"))
    check_exposure([host], AccessOptions(), mutual_tls=True)


def test_this_host_alone_needs_neither() -> None:
    check_exposure([], AccessOptions())
    check_exposure(["127.0.0.1", "127.8.8.8", "::1"], AccessOptions())
