"""Pages of other sites, and names that are not the server's: who is let in, and who is not."""

import itertools

import pytest
from trio.testing import wait_all_tasks_blocked

from durastreamd.http.exchange import Headers, Request
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.visitors import UNIX, Visitors, is_loopback, name_of
from durastreamd.service.limits import CorsOptions
from tests.service.harness import JSON, TEXT, Site, request_bytes, serving

LOCAL_NAMES = (
    *("localhost", "localhost:4437", "LOCALHOST:1", "app.localhost:80", "localhost."),
    *("127.0.0.1", "127.0.0.1:4437", "127.8.9.10", "[::1]", "[::1]:4437"),
)
OTHER_NAMES = (
    *("evil.example", "evil.example:4437", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("0.0.0.0:4437", "[::]:4437", "192.0.2.1:80", "[2001:db8::1]", "notlocalhost", "localhost:a"),
)
LOCAL_PAGES = [f"{scheme}://{name}" for scheme in ("http", "https") for name in LOCAL_NAMES[:9]]
OTHER_PAGES = (
    *("https://evil.example", "http://localhost.evil.example", "null", "", "file://", "localhost"),
    *("ftp://localhost", "chrome-extension://localhost", "http://127.0.0.1.evil.example:4437"),
    *("http://evil.example:4437", "http://192.0.2.1"),
)


def as_shipped() -> Visitors:
    """What a server on loopback without tokens is by its defaults."""
    return Visitors(CorsOptions(), ("auto",), local=True)


def asked(method: str = "GET", host: str = "localhost:4437", **headers: str) -> Request:
    fields = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    return Request.to(method, "/v1/stream/s", fields, "1.1", host, None, has_body=False)


def refused(visitors: Visitors, request: Request) -> int:
    try:
        visitors.admit(request)
    except ProblemError as exc:
        return exc.problem.status
    return 0


@pytest.mark.parametrize("name", LOCAL_NAMES)
def test_a_loopback_name_is_the_servers(name: str) -> None:
    assert is_loopback(name_of(name))
    visitors = as_shipped()
    for _ in range(2):
        assert refused(visitors, asked(host=name)) == 0


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name_is_misdirected(name: str) -> None:
    visitors = as_shipped()
    for method in ("GET", "POST", "OPTIONS"):
        assert refused(visitors, asked(method, name)) == 421
    with pytest.raises(ProblemError) as caught:
        visitors.admit(asked(host=name))
    assert "server.hosts" in caught.value.detail
    assert "goes by localhost;" in caught.value.detail
    listed = Visitors(CorsOptions(), (name_of(name),), local=True)
    assert refused(listed, asked(host=name)) == 0
    assert refused(listed, asked(host="third.example")) == 421
    assert refused(listed, asked(host="localhost")) == 0, "the health check of this host"


def test_who_sends_no_name_is_no_browser() -> None:
    assert refused(as_shipped(), asked(host="")) == 0


def test_a_name_that_is_listened_on_is_the_servers() -> None:
    visitors = Visitors(CorsOptions(), ("auto",), local=True, names=("Laptop",))
    assert refused(visitors, asked(host="laptop:4437")) == 0
    assert refused(visitors, asked(host="desktop:4437")) == 421


def test_a_unix_socket_is_called_what_its_proxy_likes_until_names_are_listed() -> None:
    request = asked(host="streams.example")
    request.peer = UNIX
    visitors = as_shipped()
    assert refused(visitors, request) == 0
    other = asked(host="streams.example")
    assert refused(visitors, other) == 421, "and that is remembered for nobody else"
    assert refused(Visitors(CorsOptions(), ("third.example",)), request) == 421


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("local", [True, False])
def test_any_name_will_do_where_tokens_or_the_operator_decide(*, tokens: bool, local: bool) -> None:
    visitors = Visitors(CorsOptions(), ("auto",), tokens=tokens, local=local)
    expected = 421 if local and not tokens else 0
    assert refused(visitors, asked(host="evil.example")) == expected
    assert refused(Visitors(CorsOptions(), ("*",), local=local), asked(host="any.example")) == 0


@pytest.mark.parametrize("page", LOCAL_PAGES)
def test_a_page_of_this_host_works_without_configuration(page: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        found = as_shipped().admit(asked(method, origin=page))
        assert found is not None
        assert (b"Access-Control-Allow-Origin", page.encode()) in found.fields
        assert set(found.fields) < set(found.common.fields)
        assert (b"Vary", b"Origin") in found.common.fields


@pytest.mark.parametrize("page", OTHER_PAGES)
def test_a_page_of_elsewhere_is_refused(page: str) -> None:
    visitors = as_shipped()
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
        for site in ("cross-site", "same-site", "none"):
            assert refused(visitors, asked(method, origin=page, sec_fetch_site=site)) == 403
        assert refused(visitors, asked(method, origin=page)) == 403
    assert visitors.admit(asked("OPTIONS", origin=page)) is None, "told nothing that allows it"


@pytest.mark.parametrize("dest", ["image", "script", "style", "iframe", "object", "empty", ""])
def test_what_another_site_embeds_is_refused(dest: str) -> None:
    visitors = as_shipped()
    headers = {"sec_fetch_site": "cross-site", "sec_fetch_dest": dest}
    for method in ("GET", "HEAD", "POST"):
        assert refused(visitors, asked(method, **headers)) == 403
    for site in ("same-origin", "same-site", "none"):
        assert refused(visitors, asked(**{**headers, "sec_fetch_site": site})) == 0


def test_a_link_may_be_followed_and_a_form_may_not() -> None:
    headers = {"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}
    assert refused(as_shipped(), asked("GET", **headers)) == 0
    assert refused(as_shipped(), asked("POST", **headers)) == 403
    assert refused(as_shipped(), asked("POST", **headers, origin="null")) == 403


def test_a_page_behind_the_same_proxy_is_at_home() -> None:
    visitors = Visitors(CorsOptions(origins=("loopback",)), ("streams.example",), local=True)
    page = "https://streams.example"
    assert refused(visitors, asked("POST", "streams.example", origin=page)) == 0
    assert refused(visitors, asked("POST", "localhost", origin=page)) == 403
    told = asked("POST", "localhost", origin=page, sec_fetch_site="same-origin")
    assert refused(visitors, told) == 0, "a proxy that passes another Host on"


def test_with_tokens_any_page_may_ask() -> None:
    visitors = Visitors(CorsOptions(), ("auto",), tokens=True, local=True)
    request = asked("POST", origin="https://app.example", sec_fetch_site="cross-site")
    assert refused(visitors, request) == 0
    assert (b"Access-Control-Allow-Origin", b"*") in visitors.common


def test_what_is_remembered_is_bounded() -> None:
    visitors = as_shipped()
    for number in range(1000):
        assert visitors.admit(asked(host=f"a{number}.localhost")) is None
        assert visitors.admit(asked(origin=f"http://a{number}.localhost"))
    assert len(visitors._known) <= 256
    assert len(visitors._by_origin) <= 256


@pytest.mark.parametrize("origin", ["https://a.example/", "a.example", "https://", "://x"])
def test_an_origin_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is not what browsers send"):
        CorsOptions(origins=(origin,))


# --- over a connection ---


async def quickly(site: Site, head: dict[str, str], host: str) -> tuple[int, dict[bytes, bytes]]:
    """Append by the quick way; return its answer."""
    answered: list[tuple[int, Headers]] = []

    def reply(status: int, headers: Headers, _body: bytes) -> None:
        answered.append((status, headers))

    lower = {name.lower().encode(): value.encode() for name, value in {**TEXT, **head}.items()}
    request = Request.to("POST", "/v1/stream/s", lower, "1.1", host, 1, has_body=True)
    assert site.app.quick(request, b"x", reply)
    await wait_all_tasks_blocked()
    ((status, headers),) = answered
    return status, dict(headers)


async def test_the_quick_way_has_the_same_door() -> None:
    page = "http://localhost:3000"
    async with serving(visitors=as_shipped()) as site:
        connection = site.connect()
        made = request_bytes("PUT", "/v1/stream/s", TEXT).replace(b"streams.example", b"localhost")
        await connection.send_bytes(made, "PUT")
        assert (await connection.whole()).status == 201
        assert (await quickly(site, {}, "localhost"))[0] == 204
        assert (await quickly(site, {}, "127.0.0.1:4437"))[0] == 204
        assert (await quickly(site, {}, "evil.example"))[0] == 421
        assert (await quickly(site, {"Origin": "https://evil.example"}, "localhost"))[0] == 403
        assert (await quickly(site, {"Sec-Fetch-Site": "cross-site"}, "localhost"))[0] == 403
        status, headers = await quickly(site, {"Origin": page}, "localhost")
        assert (status, headers[b"Access-Control-Allow-Origin"]) == (204, page.encode())
        assert site.bench.stream("/s").tail == 3


async def test_a_name_of_the_pages_own_reads_and_changes_nothing() -> None:
    async with serving(visitors=as_shipped()) as site:  # the harness says streams.example
        for method, target in itertools.product(
            ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"),
            ("/v1/stream/s", "/health", "/-/metrics", "/bucket", "/errors/not-found"),
        ):
            reply = await site.raw(method, target, TEXT)
            assert reply.status == 421
            if method != "HEAD":
                assert reply.json["code"] == "MISDIRECTED"


ACTIVE = ("text/html", "text/HTML; charset=utf-8", "image/svg+xml", "application/xhtml+xml",
          "text/xml", "application/xml", "application/pdf", "application/x-new")  # fmt: skip
PASSIVE = ("text/plain", "application/json", "application/octet-stream", "image/png", "audio/ogg")


@pytest.mark.parametrize("kind", [*ACTIVE, *PASSIVE])
async def test_what_somebody_stored_does_not_run_as_the_servers_own(site: Site, kind: str) -> None:
    head = {"Content-Type": kind}
    body = b"[1]" if kind == JSON["Content-Type"] else b"<script>alert(1)</script>"
    await site.make("s", head, body)
    tail = (await site.head("s")).next
    assert (await site.ask("PUT", f"s/snapshot/{tail}", head, body)).status == 204
    answers = [
        await site.get(f"s?offset={tail}"),
        await site.get(f"s/snapshot/{tail}"),
        await site.head("s"),
    ]
    for reply in answers:
        assert reply.status == 200
        assert reply["Content-Type"] == kind
        assert reply["X-Content-Type-Options"] == "nosniff"
        policy = reply.get("Content-Security-Policy")
        assert policy == ("sandbox; default-src 'none'" if kind in ACTIVE else None)
    assert "sandbox" in (await site.get("s/bootstrap"))["Content-Security-Policy"]
