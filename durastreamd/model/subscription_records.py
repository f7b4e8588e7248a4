"""Records of subscriptions: kinds of the extension ``subscriptions`` (``storage.extensions``).

They belong to no stream, so ``stream`` is 0. All of them *set*: each says how things are after it
and nothing in it depends on what was before, so a replay may begin anywhere and end the same. A
cursor is told with the id of the stream that it is a place in; where another stream has the name by
then, it does not count.
"""

import cbor2
from msgspec import Struct

SUBSCRIPTION_PUT, SUBSCRIPTION_END, SUBSCRIPTION_LINKS, SUBSCRIPTION_CHANGE = range(16, 20)

WEBHOOK, PULL_WAKE = "webhook", "pull-wake"
EXPLICIT, GLOB = 1, 2  # the marks of a link

LinkFields = tuple[str, int, int, int]  # path, marks (0: none any more), cursor, stream
CursorFields = tuple[str, int, int]  # path, cursor, stream
Shown = tuple[str, int, int, int, int]  # path, marks, cursor, tail, stream


class SubscriptionConfig(Struct, frozen=True, array_like=True):
    """What a client asked for; equal ones are the same request."""

    type: str
    pattern: str
    streams: tuple[str, ...]
    url: str
    wake_stream: str
    lease_ttl_ms: int
    description: str = ""


class Head(Struct, frozen=True, array_like=True):
    """What changes while a subscription lives, but for its links. Times are milliseconds."""

    state: int = 1
    generation: int = 0
    wake_id: str = ""
    trigger: str = ""  # the path that made the wake
    snapshot: tuple[Shown, ...] = ()
    holder: str = ""
    lease_ms: int = 0  # until when the holder has it; 0: no lease runs
    due_ms: int = 0  # when it is to be delivered, or announced, next; 0: not
    failures: int = 0  # in a row
    error: str = ""  # the last of them
    announced: int = 0  # events of this wake that stand in the wake stream
    taken: bool = False  # a receiver has accepted this wake, or called back
    moved: bool = False  # a cursor moved during this wake
    stalls: int = 0  # wakes in a row that moved none


class SubscriptionPut(Struct, frozen=True):
    """A subscription begins, with its links; one of an old id goes on above ``generation``."""

    root: str
    id: str
    incarnation: int
    generation: int
    config: SubscriptionConfig
    base: str
    links: tuple[LinkFields, ...]
    time_ms: int
    stream: int = 0
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        config = _plain(self.config)
        subject = [self.root, self.id, self.incarnation, self.generation]
        return cbor2.dumps([SUBSCRIPTION_PUT, *subject, config, self.base, self.links])


class SubscriptionEnd(Struct, frozen=True):
    """A subscription ends; its id and generation are remembered."""

    root: str
    id: str
    time_ms: int
    stream: int = 0
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([SUBSCRIPTION_END, self.root, self.id])


class SubscriptionLinks(Struct, frozen=True):
    """Links are made, marked otherwise, or gone."""

    incarnation: int
    links: tuple[LinkFields, ...]
    time_ms: int
    stream: int = 0
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([SUBSCRIPTION_LINKS, self.incarnation, self.links])


class SubscriptionChange(Struct, frozen=True):
    """The head is another, and cursors moved, in one step.

    Without ``new_wake`` the snapshot is that of the wake before, and is not written again.
    """

    incarnation: int
    head: Head
    cursors: tuple[CursorFields, ...]
    new_wake: bool
    time_ms: int
    stream: int = 0
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        head = _plain(self.head)
        if not self.new_wake:
            head[4] = None
        fields = [SUBSCRIPTION_CHANGE, self.incarnation, head, self.cursors, self.new_wake]
        return cbor2.dumps(fields)


SubscriptionRecord = SubscriptionPut | SubscriptionEnd | SubscriptionLinks | SubscriptionChange


def _plain(struct: SubscriptionConfig | Head) -> list[object]:
    return [getattr(struct, name) for name in struct.__struct_fields__]


def config_of(fields: list) -> SubscriptionConfig:  # type: ignore[type-arg]  # CBOR is untyped
    """Rebuild a configuration from its CBOR array."""
    kind, pattern, streams, *rest = fields
    return SubscriptionConfig(kind, pattern, tuple(streams), *rest)


def head_of(fields: list) -> Head:  # type: ignore[type-arg]
    """Rebuild a head from its CBOR array."""
    return Head(*fields[:4], tuple(map(tuple, fields[4] or ())), *fields[5:])  # type: ignore[call-arg]


def row_of(struct: SubscriptionConfig | Head) -> list[object]:
    """Return a part of a subscription as a CBOR array."""
    return _plain(struct)


def parse_subscription(fields: list, time_ms: int) -> SubscriptionRecord:  # type: ignore[type-arg]
    """Rebuild a record of one of these kinds from its header."""
    kind = fields[0]
    if kind == SUBSCRIPTION_PUT:
        root, name, incarnation, generation, config, base, links = fields[1:8]
        made = config_of(config)
        kept = tuple(tuple(link) for link in links)
        return SubscriptionPut(root, name, incarnation, generation, made, base, kept, time_ms)
    if kind == SUBSCRIPTION_END:
        return SubscriptionEnd(fields[1], fields[2], time_ms)
    if kind == SUBSCRIPTION_LINKS:
        return SubscriptionLinks(fields[1], tuple(tuple(link) for link in fields[2]), time_ms)
    cursors = tuple(tuple(cursor) for cursor in fields[3])
    return SubscriptionChange(fields[1], head_of(fields[2]), cursors, fields[4], time_ms)
