"""top shows what is known, whatever is missing."""

import json
import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from durastreamd.admin.watch import top
from durastreamd.admin.watch.metrics import Look, parse, quantile, rate
from durastreamd.client import Client, ClientSettings
from durastreamd.kit.status import NO_INPUT, UNAVAILABLE, USAGE
from tests.admin.harness import run
from tests.admin.pages import Page, Pages
from tests.support.daemon import Daemon


class Server:
    """The metrics of a server, as prometheus-client writes them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.appends = Counter(
            "durastreamd_append_requests", "x", ["status"], registry=self.registry
        )
        self.readers = Gauge("durastreamd_live_readers", "x", ["mode"], registry=self.registry)
        self.fsync = Histogram(
            "durastreamd_fsync_duration_seconds",
            "x",
            buckets=(0.001, 0.002, 0.004),
            registry=self.registry,
        )
        Gauge("durastreamd_streams", 'odd "help"\nin two lines', registry=self.registry).set(7)

    def look(self, at_s: float) -> Look:
        return Look(parse(generate_latest(self.registry).decode()), at_s)


def test_rates_are_growth_per_second_over_all_labels() -> None:
    server = Server()
    server.appends.labels("200").inc(10)
    before = server.look(100.0)
    server.appends.labels("200").inc(30)
    server.appends.labels("409").inc(10)
    after = server.look(104.0)
    assert rate(before, after, "durastreamd_append_requests_total") == 10.0
    assert rate(None, after, "durastreamd_append_requests_total") is None
    assert rate(after, Server().look(105.0), "durastreamd_append_requests_total") is None
    restarted = Server()
    restarted.appends.labels("200").inc(2)
    assert rate(after, restarted.look(105.0), "durastreamd_append_requests_total") is None
    assert rate(before, after, "absent", "durastreamd_append_requests_total") == 10.0


def test_quantiles_are_of_what_happened_since() -> None:
    server = Server()
    for _ in range(100):
        server.fsync.observe(0.0039)
    before = server.look(1.0)
    assert quantile(None, before, top.FSYNC, 0.5) == pytest.approx(0.003)
    for _ in range(100):
        server.fsync.observe(0.0005)
    after = server.look(2.0)
    assert quantile(before, after, top.FSYNC, 0.5) == pytest.approx(0.0005)
    assert quantile(before, after, top.FSYNC, 0.99) == pytest.approx(0.00099)
    server.fsync.observe(9)
    assert quantile(after, server.look(3.0), top.FSYNC, 0.99) == 0.004  # at least the last bound
    assert quantile(None, after, "absent", 0.5) is None


def test_odd_lines_are_passed_over() -> None:
    text = 'a{x="1,}\\"2"} 3 1700000000000\n# a 4\nb NaN\nc +Inf\n\nrubbish\nd{ 1\ne x\n'
    found = {sample.name: sample for sample in parse(text)}
    assert found["a"].label("x") == '1,}\\"2'
    assert math.isnan(found["b"].value)
    assert set(found) == {"a", "b", "c"}


def test_figures_of_a_look_are_put_together() -> None:
    server = Server()
    before = server.look(0.0)
    server.appends.labels("200").inc(5)
    server.readers.labels("sse").set(3)
    server.readers.labels("long-poll").set(4)
    server.fsync.observe(0.0015)
    health: dict[str, object] = {"status": "ok", "followers": 7, "loop_lag_p99_ms": 1.5, "odd": []}
    found = top.figures_of(before, server.look(1.0), health)
    assert found["appends_per_s"] == 5.0
    assert (found["readers_sse"], found["readers_long_poll"], found["followers"]) == (3, 4, 7)
    assert found["streams"] == 7
    assert found["loop_lag_p99_ms"] == 1.5
    assert 1.0 <= float(found["fsync_p50_ms"]) <= 2.0
    assert "read_bytes_per_s" not in found


def pages(metrics: bytes | None, health: bytes | None) -> dict[str, list[Page]]:
    found: dict[str, list[Page]] = {}
    if metrics is not None:
        found["/-/metrics"] = [(200, "text/plain", metrics)]
    if health is not None:
        found["/-/healthz"] = [(200, "application/json", health)]
    return found


METRICS = b"durastreamd_streams 3\ndurastreamd_append_requests_total 5\n"


@pytest.mark.parametrize("metrics", [METRICS, None])
@pytest.mark.parametrize("health", [b'{"status": "ok", "followers": 2}', b"not json", None])
def test_either_page_will_do(metrics: bytes | None, health: bytes | None) -> None:
    with Pages(pages(metrics, health)) as server:
        found = run("top", server.url, "--once", "--json", "--interval", "0.01")
    if metrics is None and health is None:
        assert (found.status, found.out) == (NO_INPUT, b"")
        return
    (record,) = found.records
    assert record["status"] == "ok"
    assert ("followers" in record) == (health is not None and health.startswith(b"{"))
    assert (record.get("appends_per_s") == 0) == (metrics is not None)


def test_a_server_that_goes_is_waited_for() -> None:
    busy = (503, "text/plain", b"")
    health = (200, "application/json", b'{"status": "ok"}')
    with Pages({"/-/healthz": [health, busy, health]}) as server:
        seen = top._figures(top._Site(Client(ClientSettings(retry_s=0)), server.url), 0.001)
        states = [str(next(seen)["status"]) for _ in range(3)]
    assert states[0] == states[2] == "ok"
    assert "503" in states[1]


def test_a_real_server_is_shown(daemon: Daemon) -> None:
    plain = run("top", daemon.url, "--once", "--interval", "0.01")
    assert plain.status == 0
    titles = [line[:22].strip() for line in plain.lines]
    assert titles[:2] == ["status", "streams"]
    (record,) = run("top", daemon.url, "--once", "--json", "--interval", "0.01").records
    assert record["streams"] == 8
    json.dumps(record, allow_nan=False)


def test_what_cannot_be_watched_is_said() -> None:
    gone = run("top", "http://127.0.0.1:9", "--once")
    assert (gone.status, "is the server running?" in gone.err) == (UNAVAILABLE, True)
    assert run("top", "--interval", "0").status == USAGE


def test_the_table_has_units() -> None:
    assert top.amount("hot_bytes", 3 * 1024 * 1024) == "3.0 MiB"
    assert top.amount("appended_bytes_per_s", 2048) == "2.0 KiB/s"
    assert top.amount("appends_per_s", 1234.56) == "1,234.6/s"
    assert top.amount("fsync_p99_ms", 1.234) == "1.23 ms"
    assert top.amount("streams", 1e6) == "1,000,000"
