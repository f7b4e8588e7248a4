"""``dsadmin top``: how a running server is doing, at a glance.

The figures come from /-/metrics and /-/healthz. Either may be absent, and so may any metric of the
first: what is not known is left out.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from rich.live import Live
from rich.table import Table
from rich.text import Text

from durastreamd.admin import server
from durastreamd.admin.watch.metrics import Look, parse, quantile, rate
from durastreamd.client import Client, ClientError
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE

METRICS, HEALTH = "/-/metrics", "/-/healthz"

FSYNC = "durastreamd_fsync_duration_seconds"
LAG = "durastreamd_event_loop_lag_seconds"
READERS = "durastreamd_live_readers"

# Figure, unit, metrics that say it as a gauge.
GAUGES = (
    ("streams", "", ("durastreamd_streams",)),
    ("connections", "", ("durastreamd_connections", "durastreamd_connections_open")),
    ("hot_bytes", "B", ("durastreamd_hot_bytes",)),
    ("journal_bytes", "B", ("durastreamd_journal_bytes",)),
    ("resident_bytes", "B", ("process_resident_memory_bytes",)),
)
# Figure, unit, counters whose growth per second it is.
RATES = (
    ("appends_per_s", "/s", ("durastreamd_append_requests_total",)),
    ("appended_bytes_per_s", "B/s", ("durastreamd_appended_bytes_total",)),
    ("reads_per_s", "/s", ("durastreamd_read_requests_total",)),
    ("read_bytes_per_s", "B/s", ("durastreamd_read_bytes_total",)),
    ("fsyncs_per_s", "/s", (f"{FSYNC}_count",)),
    ("cpu", "cores", ("process_cpu_seconds_total",)),
)
# The same by what /-/healthz calls it.
HEALTH_GAUGES = {
    "streams": "streams",
    "live": "live_streams",
    "followers": "followers",
    "hot_bytes": "hot_bytes",
    "loop_lag_p50_ms": "loop_lag_p50_ms",
    "loop_lag_p99_ms": "loop_lag_p99_ms",
}
UNITS = {name: unit for name, unit, _ in (*GAUGES, *RATES)} | {
    "fsync_p50_ms": "ms",
    "fsync_p99_ms": "ms",
    "loop_lag_p50_ms": "ms",
    "loop_lag_p99_ms": "ms",
}
ORDER = (
    "status",
    "streams",
    "live_streams",
    "appends_per_s",
    "appended_bytes_per_s",
    "reads_per_s",
    "read_bytes_per_s",
    "readers",
    "readers_sse",
    "readers_long_poll",
    "followers",
    "fsyncs_per_s",
    "fsync_p50_ms",
    "fsync_p99_ms",
    "loop_lag_p50_ms",
    "loop_lag_p99_ms",
    "connections",
    "hot_bytes",
    "journal_bytes",
    "resident_bytes",
    "cpu",
)

Figures = dict[str, float | str]


class _Seen(NamedTuple):
    """What the server said at one moment; without metrics ``look`` is None."""

    look: Look | None
    health: dict[str, object]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    server.add_arguments(parser, "the server")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)"
    )
    parser.add_argument("--once", action="store_true", help="two looks, one interval apart, end")


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.interval <= 0:
        raise CommandError(USAGE, "--interval is a number of seconds above zero")
    client, url = server.connect(args)
    site = _Site(client, url.removesuffix(urlsplit(url).path))
    try:
        seen = _figures(site, args.interval)
        if args.once:
            next(seen)
            _write(next(seen), console)
        elif console.as_json:
            next(seen)
            for figures in seen:
                _write(figures, console)
        else:
            _live(seen, site.url, console)
    except ClientError as exc:
        raise server.failure(exc) from exc
    finally:
        client.hang_up()
    return OK


# --- asking ---


class _Site(NamedTuple):
    """A server, and who asks it."""

    client: Client
    url: str

    def fetch(self, path: str) -> str | None:
        """Return a page, None where there is none."""
        reply = self.client.request("GET", self.url + path, accept=(404,))
        return None if reply.status == 404 else reply.body.decode("utf-8", "replace")


def _figures(site: _Site, interval_s: float) -> Iterator[Figures]:
    """Yield the figures of one look after the other; the first has no rates.

    A server that was there once may be on its way back, so its absence is a figure, too.
    """
    seen = _look(site)
    before: Look | None = None
    while True:
        yield figures_of(before, seen.look, seen.health)
        before = seen.look
        time.sleep(interval_s)
        try:
            seen = _look(site)
        except ClientError as exc:
            if not server.may_pass(exc):
                raise
            seen = _Seen(None, {"status": str(exc)})


def _look(site: _Site) -> _Seen:
    health, page = site.fetch(HEALTH), site.fetch(METRICS)
    if health is None and page is None:
        text = f"{site.url} has neither {METRICS} nor {HEALTH}: is it a durastreamd?"
        raise CommandError(NO_INPUT, text)
    look = Look(parse(page), time.monotonic()) if page is not None else None
    return _Seen(look, _object(health))


def _object(text: str | None) -> dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def figures_of(before: Look | None, now: Look | None, health: dict[str, object]) -> Figures:
    """Return what is known, by name."""
    figures: Figures = {"status": str(health.get("status", "ok"))}
    for key, name in HEALTH_GAUGES.items():
        value = health.get(key)
        if isinstance(value, int | float):
            figures[name] = value
    if now is None:
        return figures
    for name, _, metrics in GAUGES:
        _put(figures, name, now.total(*metrics))
    for name, _, metrics in RATES:
        _put(figures, name, rate(before, now, *metrics))
    for share in (50, 99):
        for name, metric in (("fsync", FSYNC), ("loop_lag", LAG)):
            found = quantile(before, now, metric, share / 100)
            _put(figures, f"{name}_p{share}_ms", None if found is None else found * 1000)
    for mode, count in now.by_label(READERS, "mode").items():
        _put(figures, f"readers_{mode.replace('-', '_')}" if mode else "readers", count)
    return figures


def _put(figures: Figures, name: str, value: float | None) -> None:
    if value is not None:
        figures[name] = value


# --- showing ---


def _write(figures: Figures, console: Console) -> None:
    if console.as_json:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
        console.record(dict(rounded))
    else:
        rows = [[_title(name), amount(name, value)] for name, value in _ordered(figures)]
        for title, text in rows:
            console.line(f"{title:<22}{text}")
    console.flush()


def _ordered(figures: Figures) -> list[tuple[str, float | str]]:
    known = [name for name in ORDER if name in figures]
    return [(name, figures[name]) for name in (*known, *sorted(set(figures) - set(known)))]


def _title(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_per_s").replace("_", " ")


def amount(name: str, value: float | str) -> str:
    """Return a figure with its unit."""
    unit = UNITS.get(name, "")
    if isinstance(value, str):
        return value
    if unit in ("B", "B/s"):
        return show.size(int(value)) + unit[1:]
    if unit in ("ms", "cores"):
        return f"{value:.2f} {unit}"
    return f"{value:,.1f}{unit}" if unit else f"{value:,.0f}"


def _live(seen: Iterator[Figures], where: str, console: Console) -> None:
    with Live(console=console.rich(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for figures in seen:
            live.update(_panel(figures, where), refresh=True)


def _panel(figures: Figures, where: str) -> Table:
    table = Table(
        title=f"{where}  {time.strftime('%H:%M:%S')}",
        title_style="bold",
        box=None,
        padding=(0, 3, 0, 0),
        show_header=False,
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in _ordered(figures):
        style = "bold red" if name == "status" and value != "ok" else ""
        table.add_row(_title(name), Text(amount(name, value), style=style))
    return table


COMMAND = Command("top", "watch a running server", _add_arguments, _run)
