"""The metrics page: the numbers that are kept elsewhere, as Prometheus families, made on request.

Nothing here runs while nobody asks. No label has a value that a client can choose. What needs a
walk over all streams is gathered in slices first, so a scrape does not hold the event loop.
"""

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily as Counter,
    GaugeMetricFamily as Gauge,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from durastreamd import __version__
from durastreamd.http.context import Statistics
from durastreamd.service.access.gate import GateCounts
from durastreamd.service.operating.counts import RESULTS, Counts
from durastreamd.service.operating.lag import LagMeter
from durastreamd.service.operating.readiness import Readiness
from durastreamd.streams.histogram import Histogram
from durastreamd.streams.registry import Streams
from durastreamd.streams.scrubber import Scrubber
from durastreamd.streams.subscribing import SubscribingCounts

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()
_SLICE_STREAMS = 2000  # looked at between two checkpoints: well under a millisecond
_CLASSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")

Labelled = Mapping[tuple[str, ...], float]
Values = float | Labelled


class DiskFigures(Protocol):
    """What is known of the disk; see ``operating.space``."""

    total_bytes: int
    free_bytes: int
    reclaimed_bytes: int
    refused_total: int


class SubscriptionFigures(Protocol):
    """What is known of subscriptions; see ``subscriptions.figures``."""

    duration_s: Histogram

    @property
    def counts(self) -> SubscribingCounts:
        """Return what happened so far."""

    def states(self) -> Labelled:
        """Return how many there are, by type and state."""

    def oldest_pending_s(self) -> float:
        """Return for how long the oldest stream with pending bytes was not written to."""


class Recovery(NamedTuple):
    """What opening the data directory took and found."""

    duration_s: float = 0.0
    replayed_records: int = 0
    replayed_bytes: int = 0
    torn_bytes: int = 0


class Metrics(Collector):
    """Gathers every number of one server."""

    def __init__(
        self, streams: Streams, counts: Counts, access: GateCounts, lag: LagMeter, ready: Readiness
    ) -> None:
        self._streams = streams
        self._counts = counts
        self._access = access
        self._lag = lag
        self._ready = ready
        self._data_bytes = 0
        self._begun_s = time.time()
        # The daemon fills these in.
        self.statistics: Statistics | None = None
        self.recovery: Recovery | None = None
        self.room: DiskFigures | None = None
        self.scrub: Scrubber | None = None
        self.subscriptions: SubscriptionFigures | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def page(self) -> bytes:
        """Return the page."""
        self._data_bytes = await self._walked()
        return generate_latest(self._registry)

    async def _walked(self) -> int:
        size = 0
        streams = list(self._streams.engine.namespace.by_id.values())
        for at in range(0, len(streams), _SLICE_STREAMS):
            for stream in streams[at : at + _SLICE_STREAMS]:
                size += stream.tail - max(stream.floor, stream.fork_position)
            await trio.lowlevel.checkpoint()
        return size

    def collect(self) -> Iterator[Metric]:
        """Yield every family; called by the registry."""
        yield _gauge("build_info", "The version that runs.", {(__version__,): 1}, ["version"])
        yield _gauge("start_time_seconds", "When the server began, since 1970.", self._begun_s)
        yield _gauge("ready", "Whether /-/readyz says yes.", not self._ready.reasons())
        yield from self._of_streams()
        yield from self._of_writes()
        yield from self._of_reads()
        yield from self._of_access()
        if self.subscriptions is not None:
            yield from _of_subscriptions(self.subscriptions)
        if self.statistics is not None:
            yield from _of_http(self.statistics)
        if self.room is not None:
            yield from _of_disk(self.room)
        if self.scrub is not None:
            yield from _of_scrub(self.scrub)
        if self.recovery is not None:
            yield from _of_recovery(self.recovery)
        yield _histogram("event_loop_lag_seconds", "How late the event loop was.", self._lag.lag_s)
        yield from _of_process(self._begun_s)

    def _of_streams(self) -> Iterator[Metric]:
        streams, engine = self._streams, self._streams.engine
        yield _gauge(
            "streams", "Streams, those kept for their forks too.", len(engine.namespace.by_id)
        )
        yield _gauge("buckets", "Buckets.", len(engine.namespace.buckets))
        yield _gauge("live_streams", "Streams with a task, written to lately.", streams.actor_count)
        yield _gauge("damaged_streams", "Streams whose data fails its check.", len(engine.damaged))
        text = "Streams that take no writes, since their files cannot be written."
        yield _gauge("unwritable_streams", text, len(engine.unwritable))
        text = "Reads of files that the disk refused; what it did not hand out may be whole."
        yield _counter("failed_reads", text, engine.failed_reads)
        yield _counter("streams_created", "Streams created.", streams.created_total)
        causes: Labelled = {
            ("request",): streams.deleted_total - streams.swept_total,
            ("sweep",): streams.swept_total,
        }
        text = "Streams deleted: by request, or swept because their time or last fork was over."
        yield _counter("streams_deleted", text, causes, ["cause"])
        yield _gauge(
            "hot_bytes", "Memory of committed records not yet in segment files.", engine.hot_bytes
        )
        yield _gauge("data_bytes", "Bytes that streams retain.", self._data_bytes)
        yield _gauge("journal_bytes", "Length of the journal file in use.", engine.journal.length)

    def _of_writes(self) -> Iterator[Metric]:
        counts, committer = self._counts, self._streams.committer
        results: dict[tuple[str, ...], float] = {}
        for kind, count in counts.appends.items():
            label = (RESULTS.get(kind, "other"),)
            results[label] = results.get(label, 0) + count
        yield _counter("append_requests", "Appends that were decided.", results, ["result"])
        yield _counter("appended_bytes", "Bytes of appends accepted.", committer.appended_bytes)
        yield _counter(
            "appended_messages", "Messages of appends accepted.", committer.appended_messages
        )
        text = "From the head of an append to its durable outcome; every 16th append."
        yield _histogram("append_duration_seconds", text, counts.append_s)
        text = "Writing and syncing one batch to the journal."
        yield _histogram("fsync_duration_seconds", text, committer.commit_s)
        yield _histogram("fsync_batch_records", "Records per batch.", committer.batch_records)

    def _of_reads(self) -> Iterator[Metric]:
        counts = self._counts
        modes = ["mode"]
        yield _counter("read_requests", "Reads begun.", _one(counts.reads), modes)
        yield _counter("read_bytes", "Bytes of streams sent.", _one(counts.read_bytes), modes)
        yield _gauge("live_readers", "Live reads under way.", _one(counts.live), modes)
        text = "Live reads held back for asking again after the end of a closed stream."
        yield _counter("closed_stream_pauses", text, counts.closed_pauses)

    def _of_access(self) -> Iterator[Metric]:
        access = self._access
        failures = _one(access.failures)
        yield _counter("auth_failures", "Requests answered 401 or 403.", failures, ["reason"])
        yield _counter(
            "rate_limited", "Requests answered 429 for asking often.", access.rate_limited
        )
        text = "Live reads ended because their token expired or was revoked."
        yield _counter("live_readers_revoked", text, access.leases_ended)


def _of_subscriptions(found: SubscriptionFigures) -> Iterator[Metric]:
    counts = found.counts
    yield _gauge("subscriptions", "Subscriptions.", found.states(), ["type", "state"])
    yield _counter("wakes", "Wakes begun.", _one(counts.wakes), ["type"])
    text = "Webhooks that came to an end; late: their wake was over by then."
    yield _counter("webhook_deliveries", text, _one(counts.deliveries), ["result"])
    yield _histogram("webhook_duration_seconds", "Attempts at webhooks.", found.duration_s)
    text = "Since when the stream lies still that has waited longest for a cursor to pass."
    yield _gauge("subscription_oldest_pending_seconds", text, found.oldest_pending_s())
    yield _counter("claims", "Claims.", _one(counts.claims), ["result"])
    yield _counter("acks", "Callbacks, acknowledgements, releases.", _one(counts.acks), ["result"])


def _of_http(http: Statistics) -> Iterator[Metric]:
    answers: Labelled = {
        (method, code): row[number]
        for method, row in http.answers.items()
        for number, code in enumerate(_CLASSES)
        if row[number]
    }
    text = "Exchanges that came to an end; code none: the client was gone before its answer."
    yield _counter("http_requests", text, answers, ["method", "code"])
    yield _gauge("http_requests_open", "Exchanges under way.", http.exchanges_open)
    protocols: Labelled = {("h1",): http.connections_open - http.h2_open, ("h2",): http.h2_open}
    yield _gauge("http_connections", "Connections.", protocols, ["protocol"])
    yield _counter("http_connections_opened", "Connections accepted.", http.connections_total)
    text = "Connections over a limit."
    yield _counter("http_connections_refused", text, http.connections_refused)
    text = "Requests too malformed to be routed, and connections ended for abuse."
    yield _counter("http_malformed", text, http.refused_total)
    text = "Responses broken off because their client took nothing for too long."
    yield _counter("slow_reader_disconnects", text, http.stalled_total)


def _of_disk(room: DiskFigures) -> Iterator[Metric]:
    yield _gauge("disk_size_bytes", "Size of the data's file system.", room.total_bytes)
    yield _gauge("disk_free_bytes", "What is free on it.", room.free_bytes)
    text = "Bytes of expired, deleted and snapshotted data given back to it."
    yield _counter("reclaimed_bytes", text, room.reclaimed_bytes)
    yield _counter("low_space_refusals", "Writes refused for want of room.", room.refused_total)


def _of_scrub(scrub: Scrubber) -> Iterator[Metric]:
    text = "What the scrub has read, small files counted as 64 KiB."
    yield _counter("scrub_bytes", text, scrub.bytes_total)
    yield _counter("scrub_rounds", "Rounds over all files that it ended.", scrub.rounds_total)
    yield _counter("scrub_findings", "Streams it found damaged.", scrub.findings_total)
    text = "Streams that did not verify, did so later, and are served again."
    yield _counter("scrub_taken_back", text, scrub.taken_back_total)
    yield _gauge("scrub_round_streams", "Streams of the present round.", scrub.round_streams)
    text = "Those of them that are done."
    yield _gauge("scrub_round_streams_checked", text, scrub.round_checked)
    text = "How long ago the oldest check of data at rest was, at most; at first, the start."
    yield _gauge("scrub_oldest_check_age_seconds", text, scrub.oldest_s())


def _of_recovery(found: Recovery) -> Iterator[Metric]:
    yield _gauge("recovery_duration_seconds", "How long opening the data took.", found.duration_s)
    text = "Records replayed from the journal."
    yield _gauge("recovery_replayed_records", text, found.replayed_records)
    yield _gauge("recovery_replayed_bytes", "Bytes replayed.", found.replayed_bytes)
    text = "Bytes of writes that a crash had cut short, never acknowledged."
    yield _gauge("recovery_torn_bytes", text, found.torn_bytes)


def _of_process(begun_s: float) -> Iterator[Metric]:
    """Yield what every exporter has. The library's own collector needs /proc/stat, which the
    service's sandbox hides.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Counter("process_cpu_seconds", "CPU time.", value=used.ru_utime + used.ru_stime)
    yield Gauge("process_start_time_seconds", "When it began, since 1970.", value=begun_s)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield Gauge("process_max_fds", "How many descriptors it may have.", value=limit)
    pages, open_fds = _memory_pages()
    if not pages:
        return
    unit = resource.getpagesize()
    yield Gauge("process_virtual_memory_bytes", "Virtual memory.", value=pages[0] * unit)
    yield Gauge("process_resident_memory_bytes", "Resident memory.", value=pages[1] * unit)
    yield Gauge("process_open_fds", "Open descriptors.", value=open_fds)


def process_figures() -> tuple[int, float, int]:
    """Return resident bytes, seconds of CPU and open descriptors; zeros where /proc hides them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages, open_fds = _memory_pages()
    resident = pages[1] * resource.getpagesize() if pages else 0
    return resident, used.ru_utime + used.ru_stime, open_fds


def _memory_pages() -> tuple[list[int], int]:
    """Return virtual and resident memory in pages, and how many descriptors are open."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = [int(each) for each in file.read().split()]
        return pages, len(os.listdir("/proc/self/fd"))
    except OSError:
        return [], 0


# --- families ---


def _one(values: Mapping[str, int]) -> Values:
    return {(name,): value for name, value in values.items()}


def _gauge(name: str, text: str, values: Values, labels: Iterable[str] = ()) -> Metric:
    family = Gauge(f"durastreamd_{name}", text, labels=list(labels))
    for label, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(list(label), value)
    return family


def _counter(name: str, text: str, values: Values, labels: Iterable[str] = ()) -> Metric:
    family = Counter(f"durastreamd_{name}", text, labels=list(labels))
    for label, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(list(label), value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        f"durastreamd_{name}", text, buckets=histogram.cumulated(), sum_value=histogram.sum
    )
