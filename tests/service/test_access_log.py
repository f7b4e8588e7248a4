"""One line per request, with what helps and without what must not be there."""

import logging
import re

import pytest
from trio.testing import wait_all_tasks_blocked

from durastreamd.service.operating.access_log import AccessLog
from tests.service.harness import TEXT, Site

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the fields of every access line."""
    return [
        record.__dict__["fields"]
        for record in caplog.records
        if record.name == "durastreamd.access"
    ]


def note(site: Site, mode: str) -> None:
    admission = site.app.admission
    admission.access_log.mode = mode
    site.server.reconfigure(admission.access_log.around(site.app), admission.visitors.common)


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "durastreamd.access")


async def test_every_request_has_its_line(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    note(site, "all")
    await site.make("s", TEXT, b"hello")
    await site.get("s?offset=-1", {"X-Request-Id": "abc-1", "traceparent": TRACE})
    await site.get("s?offset=nonsense")
    await site.ask("POST", "s", {**TEXT, "Content-Length": "99999999999"})
    found = lines(caplog)
    assert [(each["method"], each["status"]) for each in found[:3]] == [
        ("PUT", 201),
        ("GET", 200),
        ("GET", 400),
    ]
    assert found[1]["path"] == "/v1/stream/s"
    assert (found[1]["bytes"], found[1]["remote"]) == (5, "192.0.2.1:5")
    assert (found[1]["req_id"], found[1]["traceparent"]) == ("abc-1", TRACE)
    assert isinstance(found[1]["dur_ms"], float)
    ids = [each["req_id"] for each in found]
    assert len(set(ids)) == len(ids)


async def test_a_live_read_has_one_line_when_it_ends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    note(site, "all")
    start = (await site.make("s", TEXT, b"x")).next
    reader = await site.open(f"s?offset={start}&live=sse")
    await reader.head()
    await site.add("s", b"delivered")
    await wait_all_tasks_blocked()
    assert len(lines(caplog)) == 2
    reader.hang_up()
    await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()
    last = lines(caplog)[-1]
    assert (last["live"], last["status"], last["aborted"]) == ("sse", 200, True)
    assert isinstance(last["bytes"], int)
    assert last["bytes"] > len("delivered")


async def test_refused_requests_have_a_line_by_default(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    note(site, "errors")
    await site.make("s")
    await site.get("nothing?offset=-1", {"X-Request-Id": "abc"})
    found = lines(caplog)
    assert [(each["status"], each["code"], each["req_id"]) for each in found] == [
        (404, "NOT_FOUND", "abc")
    ]


async def test_a_body_too_large_is_a_refused_request(caplog: pytest.LogCaptureFixture) -> None:
    from durastreamd.service.limits import Limits, WriteLimits
    from tests.service.harness import serving

    async with serving(Limits(writes=WriteLimits(append_bytes_max=3))) as site:
        note(site, "errors")
        await site.make("s")
        assert (await site.ask("POST", "s", TEXT, b"too long")).status == 413
        note(site, "all")
        assert (await site.ask("POST", "s", TEXT, b"too long")).status == 413
    assert [each["status"] for each in lines(caplog)] == [413, 413]


async def test_off_is_off(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    note(site, "off")
    await site.get("nothing?offset=-1")
    assert not lines(caplog)


@pytest.mark.parametrize("mode", ["errors", "off"])
async def test_what_is_not_noted_costs_nothing(site: Site, mode: str) -> None:
    handler = site.app
    assert AccessLog(mode).around(handler) is handler


@pytest.mark.parametrize("given", ["a b", "x" * 129, "é", 'a"b', "a\tb"])
async def test_an_id_that_looks_wrong_is_replaced(
    site: Site, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    note(site, "errors")
    await site.get("nothing?offset=-1", {"X-Request-Id": given, "traceparent": given})
    (found,) = lines(caplog)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", str(found["req_id"]))
    assert "traceparent" not in found


@pytest.mark.parametrize("mode", ["all", "errors"])
async def test_secrets_and_payloads_are_never_logged(
    site: Site, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    caplog.set_level(logging.DEBUG)
    note(site, mode)
    head = {**TEXT, "Authorization": "Bearer hush-1", "Cookie": "hush-2"}
    await site.ask("PUT", "s?token=hush-3", head, b"hush-4")
    await site.ask("POST", "s?access_token=hush-3", head, b"hush-4")
    await site.ask("POST", "s", {**head, "Content-Type": "application/json"}, b'{"hush-4"')
    await site.get("s?offset=hush-3", head)
    await site.get("nothing?token=hush-3", head)
    assert lines(caplog)
    assert "hush" not in "".join(str(record.__dict__) for record in caplog.records)
