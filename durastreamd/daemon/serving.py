"""The whole server on one page.

Signals are caught before anything else, so a stop during a long recovery is obeyed at once (what
recovery had not finished is done again by the next). Then: take the addresses, recover, listen, say
that it is ready, and obey. SIGTERM and SIGINT drain: no more connections, appends finished, readers
answered, a last checkpoint; a second one ends it all at once, which is safe and merely leaves the
checkpoint to the next start. SIGHUP reloads, SIGUSR1 writes the figures to the log.
"""

import logging
import random
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

import trio

from durastreamd import logs
from durastreamd.config import SETTINGS, Config, ConfigError, LoadedConfig
from durastreamd.config.printing import shown, toml
from durastreamd.daemon.descriptors import fitted, raise_limit
from durastreamd.daemon.listening import (
    Taken,
    addresses,
    hosts_of,
    proxies_of,
    take,
    tls_of,
    visitors_of,
)
from durastreamd.daemon.recovering import OpenedData, Progress, open_data
from durastreamd.daemon.reloading import Reloads
from durastreamd.daemon.status import Status
from durastreamd.http.server import Server
from durastreamd.notify import Manager, Notifier
from durastreamd.service.access.guard import Guard
from durastreamd.service.access.options import check_exposure, is_local
from durastreamd.service.app import App
from durastreamd.service.limits import Limits
from durastreamd.service.operating.access_log import AccessLog
from durastreamd.service.operating.inspection import SettingFacts
from durastreamd.service.operating.space import Space
from durastreamd.streams.registry import Streams
from durastreamd.streams.scrubber import Scrubber

logger = logging.getLogger(__name__)

STATUS_S = 10.0  # how often the service manager is told how it goes
WATCHDOG_SHARE = 3  # of its period: two proofs may be late before it acts
STOP_EXTEND_S = 90  # for the last checkpoint, after the drain
_ENDING = (signal.SIGTERM, signal.SIGINT)


def now_ms() -> int:
    """Return the time of day."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Launch:
    """What the command line asked for."""

    loaded: LoadedConfig
    reload: Callable[[], LoadedConfig]
    announce: Callable[[list[str]], None]  # told the addresses when clients are served
    manager: Manager = field(default_factory=lambda: Manager(Notifier()))
    environment: Mapping[str, str] = field(default_factory=dict)
    init: bool = False


async def serve(plan: Launch) -> None:
    """Serve until a signal says to stop; raises what makes serving impossible."""
    plan = within(plan, raise_limit())
    caught = (*_ENDING, signal.SIGHUP, signal.SIGUSR1)
    try:
        with trio.open_signal_receiver(*caught) as signals:
            taken = take(plan.loaded.config, plan.manager.sockets)
            try:
                opened = await _recover(plan, signals)
                if opened is None:
                    return
                try:
                    await Daemon(plan, opened, taken).run(signals)
                finally:
                    opened.engine.release()
            finally:
                taken.release()
    finally:
        plan.manager.notifier.release()


def within(plan: Launch, descriptors: int) -> Launch:
    """Return the plan for a process that may have so many descriptors."""

    def reload() -> LoadedConfig:
        loaded = plan.reload()
        return loaded._replace(config=fitted(loaded.config, descriptors))

    config = fitted(plan.loaded.config, descriptors)
    if config != plan.loaded.config:
        logger.warning(
            "the limit of descriptors is %d (LimitNOFILE, ulimit -n): http.connections_max is %d "
            "and engine.handles_max is %d for it",
            *(descriptors, config.http.connections_max, config.engine.handles_max),
        )
    return replace(plan, loaded=plan.loaded._replace(config=config), reload=reload)


async def _recover(plan: Launch, signals: AsyncIterator[int]) -> OpenedData | None:
    """Open the data in a thread, telling how it goes; None if a signal came first."""
    progress = Progress()
    opened: OpenedData | None = None

    async def stop_early(scope: trio.CancelScope) -> None:
        async for number in signals:
            if number in _ENDING:
                logger.warning("stopping on %s during recovery", signal.Signals(number).name)
                scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_early, nursery.cancel_scope)
        nursery.start_soon(progress.report, plan.manager.notifier)
        opened = await trio.to_thread.run_sync(
            lambda: open_data(plan.loaded.config, now_ms(), progress, init=plan.init),
            abandon_on_cancel=True,
        )
        nursery.cancel_scope.cancel()
    return opened


class Daemon:
    """A server on an open data directory."""

    def __init__(self, plan: Launch, opened: OpenedData, taken: Taken) -> None:
        config = plan.loaded.config
        read_only = config.server.read_only
        self._plan = plan
        self._notifier = plan.manager.notifier
        self._stopping = False
        self.config = config  # in force
        self._loaded = plan.loaded  # the same, with where each value came from
        self.streams = Streams(opened.engine, now_ms, config.streams, read_only=read_only)
        self.space = Space(opened.room, config.disk)
        self.app = App(
            self.streams,
            limits_of(config),
            Guard(self.space, read_only=read_only),
            AccessLog(config.log.access),
            subscriptions=config.subscriptions,
        )
        self.app.restrict(config.access, mutual_tls=bool(config.tls.client_ca))
        listeners = taken.listen()
        self.names, self._hosts = addresses(listeners), hosts_of(listeners)
        self.app.admission.visitors = visitors_of(config, self._hosts)
        self.app.webhooks.local = all(is_local(host) for host in self._hosts)
        self.app.admission.proxies = proxies_of(config)
        common = self.app.admission.visitors.common
        self.server = Server(
            listeners,
            config.http,
            common_headers=common,
            quick=self.app.quick,
            budget=self.app.budget,
            relief=opened.relief,
        )
        self.status = Status(self.server, self.app, self.streams, self.space)
        places = random.SystemRandom()
        self.scrubber = Scrubber(
            self.streams, config.scrub, self._activity, lambda: places.getrandbits(32)
        )
        self._watch(opened)
        self.reloads = Reloads()
        self._register_reloads()

    def _watch(self, opened: OpenedData) -> None:
        """Have the pages for operators tell what only the daemon knows."""
        operations, space = self.app.operations, self.space
        operations.metrics.statistics = self.server.statistics
        operations.metrics.recovery = opened.recovery
        operations.metrics.scrub = self.scrubber
        inspection = operations.inspection
        inspection.place = self.config.server.data_dir
        inspection.settings = self._settings
        inspection.connections = self.server.connections
        inspection.log = logs.recent.lines
        if self.config.server.read_only:
            operations.readiness.notice("read-only", lambda: "Every write is refused.")
            return
        operations.metrics.room = space
        full = "The disk is nearly full; appends are refused."
        operations.readiness.watch("disk", lambda: full if space.low else None)

    def _settings(self) -> list[SettingFacts]:
        """Return every setting in force, with where it came from; secrets are not shown."""
        return [
            SettingFacts(name, toml(shown(self._loaded, each)), self._loaded.source(name), each.why)
            for name, each in SETTINGS.items()
        ]

    def _activity(self) -> int:
        """Return a number that grows while there is work."""
        return self.server.statistics.exchanges_total + self.streams.committer.batches

    async def run(self, signals: AsyncIterator[int]) -> None:
        """Serve until drained, or until told to stop at once."""
        async with trio.open_nursery() as outer:
            async with self.streams.running():
                async with trio.open_nursery() as nursery:
                    await self._begin(nursery)
                    outer.start_soon(self._obey, signals, nursery, outer.cancel_scope)
                    if self._plan.manager.watchdog_s is not None:
                        outer.start_soon(self._feed_watchdog, self._plan.manager.watchdog_s)
            outer.cancel_scope.cancel()
        logger.info("stopped")

    async def _begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.app.lag.run, self._activity)
        nursery.start_soon(self._tell_status)
        nursery.start_soon(self.scrubber.run)
        nursery.start_soon(self.app.subscribing.run)
        nursery.start_soon(self.app.webhooks.run)
        if not self.config.server.read_only:
            self.space.look()
            nursery.start_soon(self.space.watch, self.streams.by_writer)
        await nursery.start(self.server.serve, self.app.admission.access_log.around(self.app))
        self._plan.announce(self.names)
        self._notifier.ready(self.status.line())
        logger.info("serving on %s", ", ".join(self.names))

    async def _tell_status(self) -> None:
        while True:
            await trio.sleep(STATUS_S)
            self._notifier.status(self.status.line())

    async def _feed_watchdog(self, period_s: float) -> None:
        """Feed it as long as the event loop turns and the journal's writer gets its work done."""
        while True:
            await self.streams.prove_writer()
            self._notifier.alive()
            await trio.sleep(period_s / WATCHDOG_SHARE)

    # --- signals ---

    async def _obey(
        self, signals: AsyncIterator[int], serving: trio.Nursery, everything: trio.CancelScope
    ) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                if not self._stopping:  # the manager must not hear of readiness again
                    self._reload()
            elif number == signal.SIGUSR1:
                self.status.write()
            elif not self._stopping:
                self._stopping = True
                logger.info("stopping on %s", signal.Signals(number).name)
                self._notifier.stopping("draining")
                serving.start_soon(self._drain, serving.cancel_scope)
            else:
                logger.warning("stopping at once on a second %s", signal.Signals(number).name)
                everything.cancel()

    async def _drain(self, serving: trio.CancelScope) -> None:
        """Take no more connections, answer who waits, and end what does not end by itself."""
        drain_s = self.config.server.drain_s
        self._notifier.extend(int(drain_s) + STOP_EXTEND_S, "draining")
        self.server.drain()
        self.app.live.end_all()
        self.app.subscribing.draining = True  # what is being delivered may still be answered
        with trio.move_on_after(drain_s) as late:
            while self.server.statistics.exchanges_open or self.app.subscribing.delivering:
                await trio.sleep(0.02)
        if late.cancelled_caught:
            cut = self.server.statistics.exchanges_open
            logger.warning("%d requests did not end within server.drain_s and are cut", cut)
        serving.cancel()

    # --- reloading ---

    def _register_reloads(self) -> None:
        """Say who takes new settings; everything else needs a restart."""
        self.reloads.add(("log",), self._prepare_log)
        self.reloads.add(("reads", "writes"), self._prepare_limits)
        callers = ("server.hosts", "server.trusted_proxies", "server.forwarding")
        self.reloads.add(("cors", *callers), self._prepare_visitors)
        self.reloads.add(("access",), self._prepare_access)
        self.reloads.add(("disk",), self._prepare_disk)
        self.reloads.add(("scrub",), self._prepare_scrub)
        self.reloads.add(("subscriptions",), self._prepare_subscriptions)
        self.reloads.add(("server.drain_s",), lambda _: lambda: None)
        if self.config.tls.certificate:
            self.reloads.add(("tls",), self._prepare_tls)

    def _reload(self) -> None:
        """Read everything again: settings, keys, and whatever else registered."""
        self._notifier.reloading()
        try:
            fresh = self._plan.reload()
            done = self.reloads.reload(self.config, fresh.config)
        except (ConfigError, OSError) as exc:
            logger.error("reload failed, everything stays as it was: %s", exc)  # noqa: TRY400
        else:
            self.config = done.config
            self._loaded = fresh._replace(config=done.config)
            logger.info("reloaded; changed: %s", ", ".join(done.changed) or "no setting")
            if done.restart:
                logger.warning("these need a restart: %s", ", ".join(done.restart))
        self._notifier.ready(self.status.line())

    def _prepare_log(self, config: Config) -> Callable[[], None]:
        def apply() -> None:
            logs.set_up(config.log.format, config.log.level, self._plan.environment)
            self.app.admission.access_log.mode = config.log.access
            self._refresh_server()

        return apply

    def _prepare_limits(self, config: Config) -> Callable[[], None]:
        changed = limits_of(config) != limits_of(self.config)

        def apply() -> None:
            if not changed:
                return
            self.app.reconfigure(limits_of(config))

        return apply

    def _prepare_visitors(self, config: Config) -> Callable[[], None]:
        """Who is welcome depends on the tokens as well."""
        visitors, proxies = visitors_of(config, self._hosts), proxies_of(config)

        def apply() -> None:
            self.app.admission.visitors, self.app.admission.proxies = visitors, proxies
            self._refresh_server()

        return apply

    def _prepare_access(self, config: Config) -> Callable[[], None]:
        """Tokens and keys are read anew at every reload, changed setting or not."""
        mutual_tls = bool(config.tls.client_ca)
        check_exposure(self._hosts, config.access, mutual_tls=mutual_tls)
        return self.app.prepare_access(config.access, mutual_tls=mutual_tls)

    def _refresh_server(self) -> None:
        handler = self.app.admission.access_log.around(self.app)
        self.server.reconfigure(handler, self.app.admission.visitors.common)

    def _prepare_disk(self, config: Config) -> Callable[[], None]:
        def apply() -> None:
            self.space.options = config.disk

        return apply

    def _prepare_scrub(self, config: Config) -> Callable[[], None]:
        return lambda: self.scrubber.reconfigure(config.scrub)

    def _prepare_subscriptions(self, config: Config) -> Callable[[], None]:
        return lambda: self.app.webhooks.reconfigure(config.subscriptions)

    def _prepare_tls(self, config: Config) -> Callable[[], None]:
        tls = tls_of(config.tls)
        if tls is None:
            message = "TLS cannot be turned off without a restart"
            raise ConfigError(message)
        fresh: ssl.SSLContext = tls
        return lambda: self.server.renew_tls(fresh)


def limits_of(config: Config) -> Limits:
    """Return what the service is bounded by."""
    return Limits(config.reads, config.writes)
