"""The metrics page, health and readiness: they say what happened, and no more than a bound."""

import re
import shutil
import subprocess

import pytest
import trio
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from durastreamd.http.limits import HttpLimits
from durastreamd.service.operating.counts import RESULTS
from durastreamd.service.operating.metrics import Recovery
from durastreamd.streams.histogram import Histogram
from tests.service.harness import CLOSE, JSON, TEXT, Site, producer, serving


class Disk:
    """Stands in for ``operating.space``."""

    total_bytes = 1000
    free_bytes = 400
    reclaimed_bytes = 77
    refused_total = 2


async def page(site: Site) -> str:
    metrics = site.app.operations.metrics
    metrics.statistics = site.server.statistics
    reply = await site.raw("GET", "/-/metrics")
    assert reply.status == 200
    assert reply["Content-Type"].startswith("text/plain; version=0.0.4")
    assert reply["Cache-Control"] == "no-store"
    return reply.body.decode()


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


async def values(site: Site) -> dict[str, float]:
    found = {}
    for family in families(await page(site)):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[sample.name.removeprefix("durastreamd_") + f"[{labels}]" * bool(labels)] = (
                sample.value
            )
    return found


async def test_the_page_counts_what_was_done(site: Site) -> None:
    await site.make("s")
    await site.add("s", b"12345")
    await site.make("j", JSON, b"[]")
    await site.add("j", b"[1,2,3]", JSON)
    for _ in range(2):
        assert (await site.ask("POST", "s", {**TEXT, **producer("p", 0, 0)}, b"ab")).status < 300
    await site.ask("POST", "s", {**TEXT, **producer("p", 0, 7)}, b"ab")
    await site.ask("POST", "s", JSON, b"1")
    await site.ask("POST", "none", TEXT, b"x")
    await site.ask("POST", "s", CLOSE)
    await site.ask("POST", "s", CLOSE)
    await site.ask("POST", "s", TEXT, b"late")
    await site.get("s?offset=-1")
    await site.get("s?offset=-1&live=long-poll")
    await site.get("s?offset=-1&live=sse")
    await site.ask("DELETE", "j")
    await site.ask("BREW", "s")
    found = await values(site)
    results = {"new": 4, "duplicate": 1, "sequence_gap": 1, "content_type_mismatch": 1,
               "not_found": 1, "already_closed": 1, "closed": 1}  # fmt: skip
    for result in RESULTS.values():
        assert found[f"append_requests_total[{result}]"] == results.get(result, 0), result
    assert found["appended_bytes_total"] == 5 + len(b"1,\n2,\n3,\n") + 2
    assert found["appended_messages_total"] == 1 + 3 + 1
    assert found["fsync_duration_seconds_count"] == found["fsync_batch_records_count"] > 5
    assert found["fsync_batch_records_sum"] >= found["fsync_batch_records_count"]
    for mode in ("catchup", "longpoll", "sse"):
        assert found[f"read_requests_total[{mode}]"] == 1
        assert found[f"read_bytes_total[{mode}]"] == 7
    assert (found["streams"], found["streams_created_total"]) == (1, 2)
    assert found["streams_deleted_total[request]"] == 1
    assert (found["data_bytes"], found["ready"]) == (7, 1)
    assert found["http_requests_total[2xx,PUT]"] == 2
    assert found["http_requests_total[4xx,POST]"] == 4
    assert found["http_requests_total[4xx,other]"] == 1
    assert (found["http_connections[h1]"], found["http_connections[h2]"]) == (1, 0)
    assert found["http_requests_open"] == 1  # this one


async def test_live_readers_are_counted_while_they_are_there(
    site: Site, autojump_clock: object
) -> None:
    await site.make("s")
    sse = await site.open("s?offset=now&live=sse")
    await sse.head()
    poll = await site.open("s?offset=now&live=long-poll")
    await trio.sleep(0.1)
    found = await values(site)
    assert (found["live_readers[sse]"], found["live_readers[longpoll]"]) == (1, 1)
    sse.hang_up()
    poll.hang_up()
    await trio.sleep(0.1)
    found = await values(site)
    assert (found["live_readers[sse]"], found["live_readers[longpoll]"]) == (0, 0)
    assert found["http_requests_total[none,GET]"] == 1  # the long-poll was never answered


async def test_every_sixteenth_append_is_timed(site: Site) -> None:
    await site.make("s")
    for _ in range(35):
        await site.add("s", b"x")
    found = await values(site)
    assert found["append_duration_seconds_count"] == 2
    assert found["append_requests_total[new]"] == 35


async def test_what_the_daemon_knows_is_shown_when_it_told(site: Site) -> None:
    assert "durastreamd_disk_free_bytes" not in await page(site)
    site.app.operations.metrics.room = Disk()
    site.app.operations.metrics.recovery = Recovery(1.5, 10, 1000, 7)
    found = await values(site)
    assert (found["disk_free_bytes"], found["reclaimed_bytes_total"]) == (400, 77)
    assert found["low_space_refusals_total"] == 2
    assert found["recovery_duration_seconds"] == 1.5
    assert found["recovery_torn_bytes"] == 7
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert 3 < found["process_open_fds"] < found["process_max_fds"]
    assert found["process_cpu_seconds_total"] > 0


async def test_no_client_can_make_the_page_longer(site: Site) -> None:
    await site.make("s", CLOSE)
    await site.get("s?offset=-1&live=long-poll")
    await site.ask("BREW", "s")
    before = len((await page(site)).splitlines())
    for number in range(30):
        await site.make(f"secret-name-{number}")
        head = {**TEXT, **producer(f"secret-id-{number}", 0, 0)}
        await site.ask("POST", f"secret-name-{number}", head, b"x")
        await site.ask(f"SECRET{number}", "s")
        await site.get(f"s?secret={number}")
    text = await page(site)
    # Only classes of statuses that had not been seen before.
    assert len(text.splitlines()) <= before + 4
    assert "secret" not in text.lower()


async def test_a_slow_reader_that_is_cut_off_is_counted(autojump_clock: object) -> None:
    async with serving(http=HttpLimits(write_s_max=5)) as site:
        await site.make("s", TEXT, bytes(1_000_000))
        slow = await site.open("s?offset=-1", buffer_bytes=4096)
        await slow.head()
        await trio.sleep(30)
        found = await values(site)
        assert found["slow_reader_disconnects_total"] == 1


# --- the form of it ---


def lint(text: str) -> list[str]:
    """Return what promtool would complain about, by the rules of its documentation."""
    found = []
    for family in families(text):
        name = family.name
        if not family.documentation.strip():
            found.append(f"{name}: no help")
        if re.search(r"[A-Z:]|__", name) or re.search(
            r"_(ms|millis|kb|mb|count|sum|bucket)$", name
        ):
            found.append(f"{name}: not snake case, or not a base unit, or a reserved suffix")
        if re.search(r"(counter|gauge|histogram|summary)", name):
            found.append(f"{name}: names its type")
        if family.type != "counter" and name.endswith("_total"):
            found.append(f"{name}: _total is for counters")
        if family.type == "unknown":
            found.append(f"{name}: no type")
        found += [
            f"{sample.name}: a counter without _total"
            for sample in family.samples
            if family.type == "counter" and not sample.name.endswith("_total")
        ]
    return found


async def _full_page() -> str:
    async with serving() as site:
        site.app.operations.metrics.room = Disk()
        site.app.operations.metrics.recovery = Recovery(1.5, 10, 1000, 7)
        await site.make("s")
        for _ in range(20):
            await site.add("s", b"x")
        return await page(site)


async def test_the_page_is_in_good_form() -> None:
    text = await _full_page()
    assert lint(text) == []
    names = [family.name for family in families(text)]
    assert len(names) == len(set(names))
    for family in families(text):
        assert family.name.startswith(("durastreamd_", "process_"))
        if family.type == "histogram":
            buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
            (count,) = [s.value for s in family.samples if s.name.endswith("_count")]
            assert buckets == sorted(buckets)
            assert buckets[-1] == count


@pytest.mark.skipif(shutil.which("promtool") is None, reason="not run: no promtool")
async def test_promtool_has_nothing_to_say() -> None:
    text = await _full_page()
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: ASYNC221
    assert (done.returncode, done.stderr) == (0, "")


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0, 1, 1.5, 2.5, 9):
        histogram.add(value)
    assert histogram.cumulated() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert histogram.sum == 14


# --- health and readiness ---


async def test_readiness_says_why_not(site: Site) -> None:
    readiness = site.app.operations.readiness
    reply = await site.raw("GET", "/-/readyz")
    assert (reply.status, reply.json) == (200, {"status": "ready"})
    readiness.notice("read-only", lambda: "Writes are refused.")
    readiness.hold("space", "The disk is nearly full.")
    reply = await site.raw("GET", "/-/readyz")
    assert (reply.status, reply["Cache-Control"]) == (503, "no-store")
    assert reply.json == {
        "status": "not ready",
        "reasons": [{"reason": "space", "detail": "The disk is nearly full."}],
        "notes": [{"reason": "read-only", "detail": "Writes are refused."}],
    }
    assert (await site.raw("GET", "/-/healthz")).status == 200
    assert (await values(site))["ready"] == 0
    readiness.release("space")
    readiness.release("space")
    reply = await site.raw("GET", "/-/readyz")
    assert (reply.status, reply.json["status"]) == (200, "ready")


async def test_a_draining_server_is_not_ready(site: Site) -> None:
    site.app.live.end_all()
    reply = await site.raw("GET", "/-/readyz")
    assert (reply.status, reply.json["reasons"][0]["reason"]) == (503, "draining")


async def test_a_journal_that_is_stuck_is_not_ready(site: Site, autojump_clock: object) -> None:
    await site.make("s")
    await site.bench.hold()
    writer = site.connect()
    await writer.send("POST", "/v1/stream/s", TEXT, b"x")
    await trio.sleep(9)
    assert (await site.raw("GET", "/-/readyz")).status == 200
    await trio.sleep(2)
    reply = await site.raw("GET", "/-/readyz")
    assert reply.json["reasons"] == [
        {"reason": "journal", "detail": "The journal has not been synced for 11 s."}
    ]
    assert (await site.raw("GET", "/-/healthz")).status == 200
    site.bench.writer.release()
    assert (await writer.whole()).status == 204
    assert (await site.raw("GET", "/-/readyz")).status == 200
