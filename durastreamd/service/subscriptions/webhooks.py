"""Delivering a wake: the body, its signature, and one attempt within its limits."""

import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple

import trio

from durastreamd.http.outbound import Answered, Destination, OutboundError, post
from durastreamd.model.subscription import Subscription, SubscriptionState
from durastreamd.model.subscription_records import PULL_WAKE, WEBHOOK
from durastreamd.protocol.json_writing import json_body
from durastreamd.service.subscriptions.bodies import callback_url, shown_streams
from durastreamd.service.subscriptions.keys import EXPIRY_MS, Held, Keys
from durastreamd.service.subscriptions.policy import (
    Hook,
    HookRefusedError,
    Policy,
    addresses_of,
)
from durastreamd.streams.histogram import Histogram
from durastreamd.streams.limits import SubscriptionLimits
from durastreamd.streams.registry import Streams
from durastreamd.streams.subscribing import Subscribing, SubscribingCounts, Told

logger = logging.getLogger(__name__)

RETRY_AFTER_S_MAX = 60
LOOK_S = 60.0  # how often keys are looked at
WEBHOOK_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Crowd(NamedTuple):
    """Who waits for one host, or is there."""

    limiter: trio.CapacityLimiter
    users: int


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Webhooks:
    """Sends webhooks and has the keys they are signed with."""

    def __init__(
        self,
        subscribing: Subscribing,
        streams: Streams,
        resolve: Resolve = resolve,
    ) -> None:
        self._subscribing = subscribing
        self.keys = Keys(streams.engine.disk, streams.clock)
        self.local = False  # the server itself is reached from its own host alone
        self._clock = streams.clock
        self._by_writer = streams.by_writer
        self.resolve = resolve
        self._tls = ssl.create_default_context()
        self._all = trio.CapacityLimiter(subscribing.limits.deliveries_max)
        self._hosts: dict[str, Crowd] = {}
        self.duration_s = Histogram(WEBHOOK_S)
        subscribing.deliver = self.deliver

    @property
    def policy(self) -> Policy:
        """Return where webhooks may go, by the settings in force."""
        return Policy(self._limits, local=self.local)

    @property
    def _limits(self) -> SubscriptionLimits:
        return self._subscribing.limits

    def reconfigure(self, limits: SubscriptionLimits) -> None:
        """Go by these limits from now on; what is under way goes on."""
        self._subscribing.limits = limits
        self._all.total_tokens = limits.deliveries_max

    # --- figures ---

    @property
    def counts(self) -> SubscribingCounts:
        """Return what happened so far."""
        return self._subscribing.counts

    def states(self) -> dict[tuple[str, ...], float]:
        """Return how many subscriptions there are, by type and state."""
        found: dict[tuple[str, ...], float] = {
            (kind, state.name.lower()): 0.0
            for kind in (WEBHOOK, PULL_WAKE)
            for state in SubscriptionState
        }
        for each in self._subscribing.held.by_incarnation.values():
            found[each.config.type, each.state.name.lower()] += 1
        return found

    def oldest_pending_s(self) -> float:
        """Return for how long the oldest stream with pending bytes was not written to."""
        waiting = [
            link.stream.written_ms
            for each in self._subscribing.held.by_incarnation.values()
            for link in islice(each.pending.values(), 1)  # in the order they became so
            if link.stream is not None
        ]
        return max(self._clock() - min(waiting), 0) / 1000 if waiting else 0.0

    # --- keys ---

    async def need_keys(self) -> None:
        """See to it that there are keys, durably."""
        if not self.keys.there:
            await self._by_writer(lambda: self.keys.renew(self._limits.key_days))

    async def run(self) -> None:
        """Replace keys when their time has come, until cancelled."""
        while not self._subscribing.read_only:
            if self.keys.there:
                try:
                    await self._by_writer(lambda: self.keys.renew(self._limits.key_days))
                except OSError as exc:
                    logger.warning("keys could not be renewed, will be tried again: %s", exc)
            await trio.sleep(LOOK_S)

    # --- judging ---

    async def judged(self, url: str) -> None:
        """Raise HookRefusedError unless a webhook may go there, as things are now."""
        policy = self.policy
        hook = policy.hook(url)
        with trio.move_on_after(self._limits.connect_s):
            try:
                policy.judge(hook, addresses_of(await self.resolve(hook.host, hook.port)))
            except OSError:
                return  # nobody answers for the name now; each attempt looks again
            return

    # --- delivering ---

    async def deliver(self, subscription: Subscription) -> Told:
        """Make one attempt, when it is its turn."""
        limits = self._limits
        try:
            hook = self.policy.hook(subscription.config.url)
        except HookRefusedError as exc:
            return Told(f"refused: {exc}")
        crowd = self._hosts.get(hook.host) or Crowd(
            trio.CapacityLimiter(limits.deliveries_host_max), 0
        )
        self._hosts[hook.host] = Crowd(crowd.limiter, crowd.users + 1)
        try:
            async with crowd.limiter, self._all:
                return await self._attempt(subscription, hook)
        finally:
            users = self._hosts[hook.host].users - 1
            self._hosts[hook.host] = Crowd(crowd.limiter, users)
            if not users:
                del self._hosts[hook.host]

    async def _attempt(self, subscription: Subscription, hook: Hook) -> Told:
        limits, begun = self._limits, trio.current_time()
        whole_s = min(limits.attempt_s, subscription.config.lease_ttl_ms / 1000)
        told = Told(f"it took longer than {whole_s:g} s")
        with trio.move_on_after(whole_s):
            try:
                told = _told(await self._post(subscription, hook))
            except (OutboundError, HookRefusedError, OSError) as exc:
                told = Told(str(exc) or type(exc).__name__)
        self.duration_s.add(trio.current_time() - begun)
        return told

    async def _post(self, subscription: Subscription, hook: Hook) -> Answered:
        address = ""
        with trio.move_on_after(self._limits.connect_s):
            found = await self.resolve(hook.host, hook.port)
            address = str(self.policy.judge(hook, addresses_of(found)))
        if not address:
            message = f"the name {hook.host} is not answered for"
            raise OutboundError(message)
        tls = self._tls if hook.secure else None
        place = Destination(address, hook.port, hook.host, hook.target, tls)
        body = self._body(subscription)
        signature = self.keys.signer().signature(body, self._clock() // 1000)
        fields = [("Content-Type", "application/json"), ("Webhook-Signature", signature)]
        return await post(place, fields, body, self._limits.answer_bytes_max)

    def _body(self, subscription: Subscription) -> bytes:
        head = subscription.head
        return json_body(
            {
                "subscription_id": subscription.id,
                "wake_id": head.wake_id,
                "generation": head.generation,
                "streams": shown_streams(subscription),
                "callback_url": callback_url(subscription),
                "callback_token": self.token(subscription),
            }
        )

    def token(self, subscription: Subscription) -> str:
        """Return a token for the current wake."""
        head, ttl_ms = subscription.head, subscription.config.lease_ttl_ms
        subject = (subscription.root, subscription.id, subscription.incarnation)
        expires_ms = self._subscribing.now_ms() + ttl_ms + EXPIRY_MS
        return self.keys.token(subject, Held(head.generation, head.wake_id, expires_ms))


def _told(answered: Answered) -> Told:
    """Understand what a receiver says: any 2xx takes the wake, and no other answer does."""
    if not 200 <= answered.status < 300:
        wait = answered.headers.get(b"retry-after", b"")
        wanted = answered.status in (429, 503) and wait.isdigit() and len(wait) < 9
        wait_ms = min(int(wait), RETRY_AFTER_S_MAX) * 1000 if wanted else None
        return Told(f"the answer was {answered.status}", wait_ms=wait_ms)
    try:
        said = json.loads(answered.body) if answered.body else None
    except (ValueError, RecursionError):
        said = None
    return Told(done=isinstance(said, dict) and said.get("done") is True)
