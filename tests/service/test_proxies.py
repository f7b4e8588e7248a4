"""Fields that proxies add are believed of trusted ones, and of nobody else."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.http.exchange import Request
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.access.proxies import FORWARDED, HOPS_MAX, X_FORWARDED, Proxies
from tests.service.harness import PREFIX, TEXT, Head, Site, serving

PROXY = "10.0.0.1:5"
TRUSTED = ("10.0.0.0/8", "fd00::/8", "unix")


def asked(peer: str = PROXY, **fields: str) -> Request:
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    made = Request.to("GET", "/v1/stream/a", headers, "1.1", "own.example", None, has_body=False)
    made.peer = peer
    return made


def seen(request: Request, family: str = X_FORWARDED) -> tuple[str, str, str]:
    Proxies(TRUSTED, family).adopt(request)
    return request.peer, request.scheme, request.public


@pytest.mark.parametrize(
    ("given", "peer"),
    [
        ("203.0.113.7", "203.0.113.7:5"),
        ("203.0.113.7:99", "203.0.113.7:5"),
        ("2001:db8::1", "[2001:db8::1]:5"),
        ("[2001:db8::1]:99", "[2001:db8::1]:5"),
        ("::ffff:203.0.113.7", "203.0.113.7:5"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7:5"),
        ("198.51.100.1, 203.0.113.7, 10.1.1.1, fd00::2", "203.0.113.7:5"),
        ("10.1.1.1, 10.1.1.2", "10.1.1.1:5"),
        ("198.51.100.1, nonsense, 10.1.1.1", "10.1.1.1:5"),
        ("nonsense", PROXY),
        ("", PROXY),
        (",,", PROXY),
        ("203.0.113.7" + ", 10.1.1.1" * HOPS_MAX, "10.1.1.1:5"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(given: str, peer: str) -> None:
    assert seen(asked(x_forwarded_for=given))[0] == peer


def test_scheme_and_name_are_those_of_the_nearest_proxy() -> None:
    fields = {"x_forwarded_proto": "http, HTTPS", "x_forwarded_host": "a.example, b.example:8443"}
    assert seen(asked(**fields)) == (PROXY, "https", "b.example:8443")
    odd = {"x_forwarded_proto": "javascript", "x_forwarded_host": "a.example/x@y"}
    assert seen(asked(**odd)) == (PROXY, "http", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("for=203.0.113.7;proto=https;host=b.example", ("203.0.113.7:5", "https", "b.example")),
        ('For="[2001:db8::1]:99" ; Proto=https', ("[2001:db8::1]:5", "https", "")),
        ("for=198.51.100.1, for=203.0.113.7;by=10.0.0.1", ("203.0.113.7:5", "http", "")),
        (
            "for=203.0.113.7;proto=https;host=b.example, for=10.0.0.9;proto=http;host=inner",
            ("203.0.113.7:5", "https", "b.example"),
        ),
        ("for=_hidden;proto=https", (PROXY, "https", "")),
        ("for=unknown", (PROXY, "http", "")),
        ('for="203.0.113.7', (PROXY, "http", "")),
        ("for=203.0.113.7;;", (PROXY, "http", "")),
        ("203.0.113.7", (PROXY, "http", "")),
    ],
)
def test_the_field_of_rfc_7239_is_read_or_left_alone(
    given: str, expected: tuple[str, str, str]
) -> None:
    assert seen(asked(forwarded=given), FORWARDED) == expected


def test_one_family_is_read_and_the_other_is_the_client_s_own() -> None:
    both = {"forwarded": "for=192.0.2.66;proto=https", "x_forwarded_for": "203.0.113.7"}
    assert seen(asked(**both)) == ("203.0.113.7:5", "http", "")
    assert seen(asked(**both), FORWARDED) == ("192.0.2.66:5", "https", "")


@pytest.mark.parametrize("peer", ["192.0.2.1:5", "[2001:db8::9]:5", "11.0.0.1:5"])
def test_nobody_else_is_believed(peer: str) -> None:
    fields = {"x_forwarded_for": "10.0.0.9", "x_forwarded_proto": "https"}
    request = asked(peer, **fields, x_forwarded_host="evil.example")
    assert seen(request) == (peer, "http", "")
    assert request.via == ""


def test_a_unix_socket_is_believed_where_that_was_said() -> None:
    request = asked("unix", x_forwarded_for="203.0.113.7")
    assert (seen(request)[0], request.via) == ("203.0.113.7:0", "unix")
    request = asked("unix", x_forwarded_for="203.0.113.7")
    Proxies(("10.0.0.0/8",)).adopt(request)
    assert request.peer == "unix"


@given(
    st.text(st.characters(codec="latin-1"), max_size=80), st.sampled_from([FORWARDED, X_FORWARDED])
)
def test_whatever_stands_in_the_fields_is_read(value: str, family: str) -> None:
    names = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
    headers = {name.encode(): value.encode("latin-1") for name in names}
    request = Request.to("GET", "/", headers, "1.1", "own.example", None, has_body=False)
    request.peer = PROXY
    Proxies(TRUSTED, family).adopt(request)
    assert request.scheme in ("http", "https")


# --- what comes of it ---

TOLD: Head = {
    "X-Forwarded-For": "203.0.113.7",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "streams.public.example",
}


async def made(site: Site, name: str, head: Head) -> str:
    reply = await site.raw("PUT", PREFIX + name, {**TEXT, **head})
    assert reply.status == 201
    return reply["Location"]


async def test_location_is_what_the_client_called(site: Site) -> None:
    assert await made(site, "a", TOLD) == "http://streams.example/v1/stream/a"
    site.app.admission.proxies = Proxies(("192.0.2.0/24",))
    assert await made(site, "b", TOLD) == "https://streams.public.example/v1/stream/b"
    assert await made(site, "c", {}) == "http://streams.example/v1/stream/c"


async def test_clients_behind_a_proxy_are_limited_each_by_itself() -> None:
    async with serving() as site:
        await site.make("s")
        site.app.restrict(AccessOptions(rate="1/h"))
        site.app.admission.proxies = Proxies(("192.0.2.0/24",))
        for quick in (False, True):
            first, second = (f"203.0.113.{number + 10 * quick}" for number in (1, 2))
            method, body = ("POST", b"x") if quick else ("GET", b"")
            statuses = [
                (
                    await site.raw(method, PREFIX + "s", {**TEXT, "X-Forwarded-For": each}, body)
                ).status
                for each in (first, first, second, second)
            ]
            assert [status == 429 for status in statuses] == [False, True, False, True]
