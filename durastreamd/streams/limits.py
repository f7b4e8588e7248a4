"""What the streams themselves bound, and how often they are looked after.

Without the event loop: whoever only reads the settings (``config``, ``dsadmin``) needs none.
"""

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec

MIB = 1024 * 1024
POSITIVE = msgspec.Meta(gt=0)


@dataclass(frozen=True)
class StreamLimits:
    """Streams in use: how many wait, how often they are looked after."""

    mailbox_max: Annotated[int, "requests waiting for one stream; more are told 503", POSITIVE] = (
        1024
    )
    idle_s: Annotated[float, "a stream not written to for so long gives up its task", POSITIVE] = (
        10.0
    )
    checkpoint_s: Annotated[
        float, "a quiet server still empties its journal this often", POSITIVE
    ] = 30.0
    retry_s: Annotated[
        float, "a write that found the disk full is tried again after so long", POSITIVE
    ] = 1.0
    sweep_s: Annotated[
        float, "how often lifetimes are looked at; access judges them at once", POSITIVE
    ] = 1.0

    retention_s: Annotated[
        float, "how often policies of retention are looked at and floors moved", POSITIVE
    ] = 30.0


@dataclass(frozen=True)
class ScrubOptions:
    """Verifying, in the background, what is at rest."""

    bytes_per_s: Annotated[
        int, "the pace: 700 GB a day, and a few percent of one core; 0: never", msgspec.Meta(ge=0)
    ] = 8 * MIB
    period_s: Annotated[
        float, "a round over all files begins so long after the last one began", POSITIVE
    ] = 7 * 86_400.0
    start_s: Annotated[
        float, "the first round, after the start: recovery and its rush come first"
    ] = 60.0
    recheck_s: Annotated[
        float, "a stream that did not verify is looked at again so often", POSITIVE
    ] = 3_600.0


@dataclass(frozen=True)
class SubscriptionLimits:
    """Subscriptions: how many there may be, and where webhooks may go."""

    subscriptions_max: Annotated[
        int, "in all; each has its links in memory; 0: none can be made", msgspec.Meta(ge=0)
    ] = 4096
    links_max: Annotated[int, "streams linked by all of them together", POSITIVE] = 1_000_000
    links_each_max: Annotated[int, "streams linked by one", POSITIVE] = 100_000
    public_url: Annotated[
        str,
        "where receivers call back, such as https://streams.example.org; empty: as the subscriber "
        "called the server, which must then listen on loopback alone",
    ] = ""
    allow_local: Annotated[
        Literal["auto", "yes", "no"],
        "webhooks to this host, also without TLS; auto: if the server listens on loopback alone",
    ] = "auto"
    allow_hosts: Annotated[
        tuple[str, ...], "names of receivers whose addresses are not judged, also without TLS"
    ] = ()
    allow_networks: Annotated[
        tuple[str, ...], "networks of receivers, such as 10.1.0.0/16, also without TLS"
    ] = ()
    deliveries_max: Annotated[int, "webhooks under way at one time", POSITIVE] = 32
    deliveries_host_max: Annotated[int, "of these, to one host", POSITIVE] = 4
    attempt_s: Annotated[
        float, "a webhook may take so long, and no longer than its lease", POSITIVE
    ] = 30.0
    connect_s: Annotated[float, "of these, to find and to reach its host", POSITIVE] = 5.0
    answer_bytes_max: Annotated[int, "of a receiver's answer; more is a failure", POSITIVE] = 65_536
    key_days: Annotated[
        int,
        "a key that signs webhooks is replaced after so many; 0: never",
        msgspec.Meta(ge=0),
    ] = 90

    def __post_init__(self) -> None:
        if self.public_url and not self.public_url.startswith(("https://", "http://")):
            msg = f"public_url: {self.public_url!r} is no URL, such as https://streams.example.org"
            raise ValueError(msg)
        for network in self.allow_networks:
            try:
                ip_network(network)
            except ValueError as exc:
                msg = f"allow_networks: {exc}"
                raise ValueError(msg) from exc
