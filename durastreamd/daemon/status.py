"""How the server is doing: in a line for the service manager, in a block for the log."""

import logging
import resource
import time

from durastreamd import __version__
from durastreamd.http.server import Server
from durastreamd.service.app import App
from durastreamd.service.operating.space import Space
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)

Figures = dict[str, str | int | float | bool]


class Status:
    """Everything that can be told without asking a disk."""

    def __init__(self, server: Server, app: App, streams: Streams, space: Space) -> None:
        self._server = server
        self._app = app
        self._streams = streams
        self._space = space
        self._begun = time.monotonic()

    def line(self) -> str:
        """Return the gist."""
        full = "; the disk is nearly full: appends are refused" if self._space.low else ""
        kept = len(self._streams.engine.namespace.by_id)
        readers = self._streams.follower_count()
        open_now = self._server.statistics.connections_open
        return f"serving {kept} streams, {readers} live readers, {open_now} connections{full}"

    def blocks(self) -> dict[str, Figures]:
        """Return all figures, by what they are about."""
        statistics, streams, space = self._server.statistics, self._streams, self._space
        engine, committer = streams.engine, streams.committer
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "process": {
                "version": __version__,
                "uptime_s": round(time.monotonic() - self._begun, 1),
                "cpu_s": round(used.ru_utime + used.ru_stime, 2),
                "memory_peak_kib": used.ru_maxrss,
                "loop_lag_p50_ms": self._app.lag.percentile_ms(50),
                "loop_lag_p99_ms": self._app.lag.percentile_ms(99),
            },
            "http": {
                "connections_open": statistics.connections_open,
                "connections_total": statistics.connections_total,
                "connections_refused": statistics.connections_refused,
                "exchanges_open": statistics.exchanges_open,
                "exchanges_total": statistics.exchanges_total,
                "refused_total": statistics.refused_total,
                "draining": self._server.draining,
            },
            "streams": {
                "streams": len(engine.namespace.by_id),
                "buckets": len(engine.namespace.buckets),
                "live": streams.actor_count,
                "followers": streams.follower_count(),
                "batches": committer.batches,
                "records": committer.records,
                "journal_bytes": engine.journal.length,
                "hot_bytes": engine.hot_bytes,
                "read_only": self._app.admission.guard.read_only,
            },
            "disk": {
                "total_bytes": space.total_bytes,
                "free_bytes": space.free_bytes,
                "reclaimed_bytes": space.reclaimed_bytes,
                "low": space.low,
                "refused_total": space.refused_total,
            },
        }

    def write(self) -> None:
        """Write the block to the log."""
        for name, figures in self.blocks().items():
            logger.info("status: %s", name, extra={"fields": figures})
