"""What the inspector shows, as JSON: the server as a whole, its streams, its settings, its log.

``/-/status``, ``/-/connections``, ``/-/config`` and ``/-/log`` are about the server and need the
scope admin. ``/-/streams`` and ``/-/streams/{path of a stream}`` are about streams, and show what
their caller may read. Every answer says by ``api`` which form it has, and is bounded: a list has at
most ``ROWS_MAX`` rows and says how many there are. What walks over all streams does so in turns.
"""

import resource
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from durastreamd import __version__
from durastreamd.engine.engine import Engine
from durastreamd.errors import StorageError
from durastreamd.http.exchange import Request
from durastreamd.http.server import ConnectionFacts
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.protocol import problems
from durastreamd.protocol.json_writing import json_body
from durastreamd.protocol.names import place_of
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.gate import Gate, Permit
from durastreamd.service.listings import EVERYWHERE, Listings, path_of
from durastreamd.service.operating.counts import Counts
from durastreamd.service.operating.lag import LagMeter
from durastreamd.service.operating.metrics import Metrics, process_figures
from durastreamd.service.operating.readiness import Readiness
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import Disk, file_size
from durastreamd.streams.registry import Streams

API = 1  # of these answers; a member that goes or changes its meaning makes it another
ROWS_MAX = 200
STREAMS = "/-/streams"

Facts = dict[str, object]


class SettingFacts(NamedTuple):
    """A setting in force; the value as TOML writes it, a secret one hidden."""

    name: str
    value: str
    source: str
    why: str


class Inspection:
    """Answers what the inspector asks; the daemon fills in what only it knows."""

    def __init__(
        self,
        streams: Streams,
        counts: Counts,
        lag: LagMeter,
        readiness: Readiness,
        metrics: Metrics,
    ) -> None:
        self._streams = streams
        self._counts = counts
        self._lag = lag
        self._readiness = readiness
        self._metrics = metrics
        self._listings = Listings(streams)
        self._begun_s = time.time()
        self.place = ""  # of the data directory
        self.settings: Callable[[], Sequence[SettingFacts]] = list
        self.connections: Callable[[], Iterable[ConnectionFacts]] = list
        self.log: Callable[[], Sequence[Facts]] = list

    # --- the server ---

    def about_server(self, path: str) -> Facts | None:
        """Return what is asked of the server itself, None where nothing is at this path."""
        match path:
            case "/-/status":
                return self._status()
            case "/-/config":
                return _rows("settings", [each._asdict() for each in self.settings()], most=None)
            case "/-/connections":
                return _rows("connections", [each._asdict() for each in self.connections()])
            case "/-/log":
                return _rows("lines", list(self.log()), most=None)
            case _:
                return None

    def _status(self) -> Facts:
        engine, committer = self._streams.engine, self._streams.committer
        counts, metrics = self._counts, self._metrics
        resident, cpu_s, descriptors = process_figures()
        return {
            "api": API,
            "version": __version__,
            "now_ms": self._streams.clock(),
            "started_ms": int(self._begun_s * 1000),
            "data_dir": self.place,
            "recovery": metrics.recovery._asdict() if metrics.recovery is not None else None,
            "reasons": self._readiness.reasons(),
            "notes": self._readiness.notes(),
            "streams": len(engine.namespace.by_id),
            "buckets": len(engine.namespace.buckets),
            "live_streams": self._streams.actor_count,
            "damaged": _damaged(engine),
            "readers": dict(counts.live),
            "appends": sum(counts.appends.values()),
            "appended_bytes": committer.appended_bytes,
            "appended_messages": committer.appended_messages,
            "reads": dict(counts.reads),
            "read_bytes": dict(counts.read_bytes),
            "commit_s": committer.commit_s.cumulated(),
            "batch_records": {
                "batches": sum(committer.batch_records.counts),
                "records": committer.batch_records.sum,
            },
            "loop_lag_ms": {"p50": self._lag.percentile_ms(50), "p99": self._lag.percentile_ms(99)},
            "memory_bytes": resident,
            "cpu_s": cpu_s,
            "descriptors": descriptors,
            "descriptors_max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "hot_bytes": engine.hot_bytes,
            "journal_bytes": engine.journal.length,
            "disk": self._disk(),
            "http": self._http(),
            "scrub": self._scrub(),
        }

    def _disk(self) -> Facts | None:
        room = self._metrics.room
        if room is None:
            return None
        return {"free_bytes": room.free_bytes, "total_bytes": room.total_bytes}

    def _http(self) -> Facts | None:
        http = self._metrics.statistics
        if http is None:
            return None
        failed = sum(row[5] for row in http.answers.values())
        return {
            "connections": http.connections_open,
            "connections_h2": http.h2_open,
            "requests_open": http.exchanges_open,
            "requests": http.exchanges_total,
            "answers_5xx": failed,
        }

    def _scrub(self) -> Facts | None:
        scrub = self._metrics.scrub
        if scrub is None:
            return None
        return {
            "rounds": scrub.rounds_total,
            "findings": scrub.findings_total,
            "bytes": scrub.bytes_total,
            "round_streams": scrub.round_streams,
            "round_checked": scrub.round_checked,
            "oldest_check_s": scrub.oldest_s(),
        }

    # --- the streams ---

    async def about_streams(self, request: Request, gate: Gate | None) -> bytes:
        """Return the table of streams, or one of them; raises what forbids or misses it."""
        caller = gate.identify(request) if gate is not None else None
        below = request.path.removeprefix(STREAMS)
        if below in ("", "/"):
            permit = gate.permit_listing(caller, "") if gate is not None and caller else None
            return await self._listings.page(EVERYWHERE, request.query, permit)
        key = place_of(below).key
        permit = gate.permit(caller, "GET", key) if gate is not None and caller else None
        found = self._streams.find(key)
        if not isinstance(found, Stream):
            raise ProblemError(problems.NOT_FOUND, "There is no such stream.")
        return json_body(await self._stream(found, permit))

    async def _stream(self, stream: Stream, permit: Permit | None) -> Facts:
        engine, streams = self._streams.engine, self._streams
        failed: str | None = None
        detail, files = stream.detail, (list[Facts](), 0)
        with engine.holding({stream.id}):
            try:
                if detail is None and engine.needs_loading(stream):
                    detail = await streams.blocking(partial(engine.load_detail, stream))
                files = await streams.blocking(partial(_files, engine.disk, stream.id))
            except (StorageError, OSError) as exc:
                failed = str(exc)
        forks = [engine.namespace.by_id[each] for each in engine.namespace.forks_of(stream.id)]
        shown = [path_of(each.key) for each in forks if permit is None or permit.covers(each.key)]
        return {
            **self._listings.row(stream, permit),
            "api": API,
            "damage": stream.damage or failed,
            "snapshots": [
                {"offset": mint(each.position), "bytes": each.size}
                for each in ([stream.snapshot] if stream.snapshot is not None else [])
            ],
            **_rows("producers", _producers(detail)),
            **_rows("readers", [each._asdict() for each in streams.readers_of(stream)]),
            "files": files[0],
            "files_total": files[1],
            **_rows("forks", sorted(shown)),
        }


def _producers(detail: Detail | None) -> list[Facts]:
    found = detail.producers if detail is not None else {}
    return [{"id": name, "epoch": epoch, "seq": seq} for name, (epoch, seq) in found.items()]


def _files(disk: Disk, stream: int) -> tuple[list[Facts], int]:
    """Return the newest files of a stream with their sizes, and how many there are; blocks."""
    folder = fmt.stream_dir(stream)
    names = sorted(disk.names(folder)) if disk.exists(folder) else []
    newest = names[-ROWS_MAX:]
    sized = [{"name": name, "bytes": file_size(disk, f"{folder}/{name}")} for name in newest]
    return sized, len(names)


def _damaged(engine: Engine) -> Facts:
    found = [engine.namespace.by_id[each] for each in engine.damaged]
    return _rows("streams", [{"path": path_of(each.key), "why": each.damage} for each in found])


def _rows(name: str, rows: Sequence[object], most: int | None = ROWS_MAX) -> Facts:
    """Return a bounded list, and how long the whole of it is."""
    return {"api": API, name: list(rows[:most]), f"{name}_total": len(rows)}
