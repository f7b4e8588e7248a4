"""Where a webhook may go: the URL, every address, at every attempt; each kind refused by a test."""

from ipaddress import ip_address

import pytest
import trio

from durastreamd.service.subscriptions.policy import HookRefusedError, Policy, is_public
from durastreamd.streams.limits import SubscriptionLimits
from tests.service.harness import TEXT
from tests.service.subscribing import Place, code, placed

PUBLIC = "93.184.216.34"


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.3.4", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "192.0.0.8", "198.18.0.1", "240.0.0.1", "255.255.255.255", "224.0.0.1"),
        *("192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "2001:db8::1"),
        *("::ffff:93.184.216.34", "::93.184.216.34", "64:ff9b::5db8:d822", "2002:5db8:d822::1"),
        *("2001:0:5db8:d822::1", "64:ff9b:1::1", "192.0.0.170", "192.88.99.1", "2001:20::1"),
        *("3fff::1", "5f00::1"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    policy = Policy(SubscriptionLimits(), local=False)
    hook = policy.hook("https://r.example/")
    assert not is_public(ip_address(address))
    for found in ([address], [PUBLIC, address]):  # one bad one spoils all
        with pytest.raises(HookRefusedError):
            policy.judge(hook, [ip_address(one) for one in found])
    with pytest.raises(HookRefusedError):
        policy.hook(f"https://[{address}]/" if ":" in address else f"https://{address}/")


def test_public_addresses_are_allowed_over_tls_alone() -> None:
    policy = Policy(SubscriptionLimits(), local=False)
    secure = policy.hook("https://r.example:8443/a?b=c")
    assert (secure.host, secure.port, secure.target) == ("r.example", 8443, "/a?b=c")
    assert str(policy.judge(secure, [ip_address(PUBLIC)])) == PUBLIC
    for url in ("http://r.example/", f"http://{PUBLIC}/", "http://localhost/"):
        with pytest.raises(HookRefusedError, match=r"https|public"):
            policy.hook(url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://r.example/", "https:///x", "https://u@r.example/", "https://r.example/#f",
        "r.example",
        "https://r.example:0/", "https://r.example:99999/", "https://2130706433/", "https://0x7f.1/",
        "https://127.1/", "https://r.example/\n", "https://r%2eexample/", "https://[::1%25lo]/",
        "https://r.example/" + "x" * 2048, "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_url_that_can_lead_nowhere_good_is_refused(url: str) -> None:
    with pytest.raises(HookRefusedError):
        Policy(SubscriptionLimits(), local=False).hook(url)


def test_this_host_is_allowed_where_the_server_is_for_it_alone() -> None:
    local = Policy(SubscriptionLimits(), local=True)
    for url in ("http://localhost:1/", "http://127.0.0.1/", "https://127.8.8.8/"):
        hook = local.hook(url)
        local.judge(hook, [ip_address("127.0.0.1" if "localhost" in url else hook.host)])
    rebound = local.hook("https://r.example/")
    with pytest.raises(HookRefusedError):
        local.judge(rebound, [ip_address("127.0.0.1")])
    for limits in (SubscriptionLimits(allow_local="no"), SubscriptionLimits()):
        with pytest.raises(HookRefusedError):
            Policy(limits, local=limits.allow_local == "no").hook("http://127.0.0.1/")


def test_receivers_inside_are_allowed_by_name_or_network() -> None:
    limits = SubscriptionLimits(allow_hosts=("Worker.internal",), allow_networks=("10.1.0.0/16",))
    policy = Policy(limits, local=False)
    named = policy.hook("http://worker.internal/")
    policy.judge(named, [ip_address("192.168.0.1")])
    assert policy.hook("http://10.1.2.3/")
    inside = policy.hook("http://other.internal/")
    policy.judge(inside, [ip_address("10.1.2.3")])
    for address in ("10.2.0.1", PUBLIC):
        with pytest.raises(HookRefusedError):
            policy.judge(inside, [ip_address(address)])
    with pytest.raises(ValueError, match="allow_networks"):
        SubscriptionLimits(allow_networks=("10.0.0.1/8",))


@pytest.mark.parametrize("url", ["http://10.0.0.1/hook", "http://169.254.169.254/latest"])
async def test_an_unsafe_url_is_refused_when_it_is_put(place: Place, url: str) -> None:
    reply = await place.put("s", type="webhook", pattern="*", webhook={"url": url})
    assert (reply.status, code(reply)) == (400, "WEBHOOK_URL_REJECTED")


async def test_a_name_that_leads_elsewhere_later_is_judged_again_at_each_attempt(
    autojump_clock: object,
) -> None:
    """B4: rebinding does not help; nothing is even connected to."""
    found = [PUBLIC]

    async def resolve(_host: str, _port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return list(found)

    async with placed() as place:
        place.site.app.webhooks.resolve = resolve
        url = f"https://r.example:{place.receiver.port}/"
        made = await place.put("s", type="webhook", streams=["a"], webhook={"url": url})
        assert made.status == 201
        found[:] = ["127.0.0.1"]
        await place.site.make("a", TEXT, b"x")
        await place.until(lambda: place.held.by_id["", "s"].head.failures > 1)
        assert "leads to 127.0.0.1" in place.held.by_id["", "s"].head.error
        assert place.receiver.got == []


async def test_beyond_loopback_no_host_header_says_where_tokens_are_sent_back_to(
    place: Place,
) -> None:
    place.site.app.webhooks.local = False

    async def resolve(_host: str, _port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [PUBLIC]

    place.site.app.webhooks.resolve = resolve
    hook = {"url": "https://r.example/"}
    refused = await place.put("s", type="webhook", pattern="*", webhook=hook)
    assert code(refused) == "INVALID_REQUEST"
    assert "subscriptions.public_url" in refused.json["detail"]
    limits = SubscriptionLimits(public_url="https://streams.example.org/")
    place.site.app.webhooks.reconfigure(limits)
    made = await place.put("s", type="webhook", pattern="*", webhook=hook)
    expected = "https://streams.example.org/v1/stream/__ds/jwks.json"
    assert made.json["webhook"]["signing"]["jwks_url"] == expected
