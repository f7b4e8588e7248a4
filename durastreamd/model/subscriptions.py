"""All subscriptions: by root and id, by what they link, and how a committed record changes them.

A *root* is where names begin: "" for the path surface, a bucket's name for that bucket. The stream
that a path means has the key ``root/path``. ``links`` has every link by that key, and a stream that
somebody links carries the same table, so an append looks at one attribute of its stream and pays
for those who want it, and for nobody else.

What a record of a subscription says is set as it says. What follows from streams beginning and
ending (``created``, ``ended``) follows in the same step as that, so no crash comes between a stream
and its links. A replay passes over some ends of streams (their rows tell of them already);
``settle`` then puts the links right, once all is replayed.

The generation of an ended subscription is remembered: whoever makes the id again goes on above it.
So many are kept; of the rest only the highest number is, and every new id begins above that.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from sortedcontainers import SortedDict

from durastreamd.model.globs import Pattern, PatternIndex
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription import Link, Subscription, SubscriptionState
from durastreamd.model.subscription_records import (
    EXPLICIT,
    GLOB,
    LinkFields,
    SubscriptionChange,
    SubscriptionConfig,
    SubscriptionEnd,
    SubscriptionLinks,
    SubscriptionPut,
    SubscriptionRecord,
    config_of,
    head_of,
    row_of,
)

TOMBSTONES_MAX = 65_536

_SUB, _LINK, _TOMB, _FLOOR = "sub", "link", "tomb", "floor"
Fact = tuple[str, list[object] | None]  # a subject, and what the catalogue says of it
T = TypeVar("T")


class Arriving:
    """A subscription in the making, and the streams that were made meanwhile and match it."""

    def __init__(self, root: str, pattern: Pattern) -> None:
        self.root = root
        self.pattern = pattern
        self.missed: dict[str, None] = {}


class Subscriptions:
    """Every subscription of the data directory, as it is committed."""

    def __init__(self, by_key: "SortedDict") -> None:  # type: ignore[no-any-unimported]
        self._streams = by_key
        self.by_id: dict[tuple[str, str], Subscription] = {}
        self.by_incarnation: dict[int, Subscription] = {}
        self.links: dict[str, dict[int, Link]] = {}
        self.link_count = 0
        self.wake_streams: dict[str, dict[int, Subscription]] = {}
        self.tombstones: dict[tuple[str, str], int] = {}
        self.floor = 0
        self._patterns: dict[str, PatternIndex] = {}
        self._arriving: dict[int, Arriving] = {}
        # Those about which something may have to be done; whoever has the timers empties it.
        self.stirred: dict[Subscription, None] = {}
        self.dirty: dict[str, None] = {}  # subjects of rows that the next checkpoint writes

    # --- looking ---

    def find(self, root: str, name: str) -> Subscription | None:
        """Return a subscription."""
        return self.by_id.get((root, name))

    def next_generation(self, root: str, name: str) -> int:
        """Return above which generation a new subscription of this id begins."""
        return self.tombstones.get((root, name), self.floor)

    def scan(
        self, root: str, pattern: Pattern, after: str, limit: int
    ) -> tuple[list[str], str | None]:
        """Look at up to ``limit`` streams past a key; return matching paths, and where to go on."""
        low = f"{root}/{'/'.join(pattern.prefix)}"  # what every key that matches begins with
        found: list[str] = []
        last = ""
        start = f"{after}\0" if after else low
        for key in islice(self._streams.irange(start), limit):
            last = key
            if not key.startswith(low):
                return found, None
            path = key[len(root) + 1 :]
            if self.matches(root, pattern, path) and not self._streams[key].gone:
                found.append(path)
        return found, last or None

    def matches(self, root: str, pattern: Pattern, path: str) -> bool:
        """Tell whether a pattern links a stream: never one that somebody is woken by."""
        return f"{root}/{path}" not in self.wake_streams and pattern.matches(path)

    def stream(self, root: str, path: str) -> Stream | None:
        """Return the stream that a path means, if it is there."""
        found = self._streams.get(f"{root}/{path}")
        return None if found is None or found.gone else found

    def link_at_tail(self, root: str, path: str, marks: int) -> LinkFields:
        """Return a link to a stream from its end on; from its beginning, if it is not there yet."""
        stream = self.stream(root, path)
        return (path, marks, 0, 0) if stream is None else (path, marks, stream.tail, stream.id)

    # --- in the making ---

    def expect(self, incarnation: int, root: str, pattern: Pattern) -> None:
        """Note the streams that are made from now on and match, until the put is applied."""
        self._arriving[incarnation] = Arriving(root, pattern)

    def forget(self, incarnation: int) -> None:
        """Give up a subscription that did not come to be."""
        self._arriving.pop(incarnation, None)

    # --- applying ---

    def apply(self, record: SubscriptionRecord) -> None:
        """Fold a committed record; passes over what is about a subscription that has ended."""
        if isinstance(record, SubscriptionPut):
            self._put(record)
            return
        if isinstance(record, SubscriptionEnd):
            self._end(record)
            return
        subscription = self.by_incarnation.get(record.incarnation)
        if subscription is None:
            return
        if isinstance(record, SubscriptionLinks):
            for path, marks, cursor, stream_id in record.links:
                self._set_link(subscription, path, marks, cursor, stream_id)
        else:
            self._change(subscription, record)
        self.stirred[subscription] = None

    def _put(self, record: SubscriptionPut) -> None:
        key = (record.root, record.id)
        if key in self.by_id:
            self._remove(self.by_id[key])
        subscription = Subscription(record)
        self._enter(subscription)
        if self.tombstones.pop(key, None) is not None:
            self.dirty[_subject(_TOMB, *key)] = None
        for path, marks, cursor, stream_id in record.links:
            self._set_link(subscription, path, marks, cursor, stream_id)
        if subscription.pattern is not None:
            self._link_missed(subscription, subscription.pattern)
        self._unlink_wake_stream(subscription)
        self.dirty[_subject(_SUB, subscription.incarnation)] = None
        self.stirred[subscription] = None

    def _link_missed(self, subscription: Subscription, pattern: Pattern) -> None:
        """Link what was made while the record was on its way: it is new, so from its beginning."""
        arriving = self._arriving.pop(subscription.incarnation, None)
        if arriving is not None:
            paths: Iterable[str] = arriving.missed
        else:
            paths, _ = self.scan(subscription.root, pattern, "", len(self._streams))
        for path in paths:
            if path not in subscription.links:
                self._link_new(subscription, path)

    def _unlink_wake_stream(self, subscription: Subscription) -> None:
        """No pattern links a stream from which somebody is woken: wakes would make wakes."""
        if not subscription.config.wake_stream:
            return
        key = f"{subscription.root}/{subscription.config.wake_stream}"
        for link in list(self.links.get(key, {}).values()):
            self._mark(link, link.marks & ~GLOB)

    def _enter(self, subscription: Subscription) -> None:
        root, incarnation = subscription.root, subscription.incarnation
        self.by_id[root, subscription.id] = subscription
        self.by_incarnation[incarnation] = subscription
        if subscription.pattern is not None:
            index = self._patterns.setdefault(root, PatternIndex())
            index.add(incarnation, subscription.pattern)
        if wake_stream := subscription.config.wake_stream:
            self.wake_streams.setdefault(f"{root}/{wake_stream}", {})[incarnation] = subscription

    def _end(self, record: SubscriptionEnd) -> None:
        subscription = self.by_id.get((record.root, record.id))
        if subscription is None:
            return
        self._remove(subscription)
        self._remember((record.root, record.id), subscription.head.generation)

    def _remember(self, key: tuple[str, str], generation: int) -> None:
        self.tombstones[key] = generation
        self.dirty[_subject(_TOMB, *key)] = None
        if len(self.tombstones) > TOMBSTONES_MAX:
            oldest = next(iter(self.tombstones))
            self.floor = max(self.floor, self.tombstones.pop(oldest))
            self.dirty[_subject(_TOMB, *oldest)] = None
            self.dirty[_FLOOR] = None

    def _remove(self, subscription: Subscription) -> None:
        root, incarnation = subscription.root, subscription.incarnation
        for link in list(subscription.links.values()):
            self._mark(link, 0)
        del self.by_id[root, subscription.id]
        del self.by_incarnation[incarnation]
        if subscription.pattern is not None:
            self._patterns[root].remove(incarnation, subscription.pattern)
        if wake_stream := subscription.config.wake_stream:
            held = self.wake_streams[f"{root}/{wake_stream}"]
            del held[incarnation]
            if not held:
                del self.wake_streams[f"{root}/{wake_stream}"]
        self.stirred.pop(subscription, None)
        self.dirty[_subject(_SUB, incarnation)] = None

    def _change(self, subscription: Subscription, record: SubscriptionChange) -> None:
        head = record.head
        if not record.new_wake:
            fields = row_of(head)
            fields[4] = subscription.head.snapshot
            head = head_of(fields)
        subscription.head = head
        for path, cursor, stream_id in record.cursors:
            link = subscription.links.get(path)
            if link is not None and link.stream is not None and link.stream.id == stream_id:
                link.cursor = max(link.cursor, cursor)
                self._judge(link)
                self.dirty[_subject(_LINK, subscription.incarnation, path)] = None
        self.dirty[_subject(_SUB, subscription.incarnation)] = None

    # --- links ---

    def _set_link(
        self, subscription: Subscription, path: str, marks: int, cursor: int, stream_id: int
    ) -> None:
        link = subscription.links.get(path)
        if link is None:
            stream = self.stream(subscription.root, path)
            if stream is None:
                marks &= EXPLICIT  # no pattern links what is not there
            if not marks:
                return
            link = self._make_link(subscription, path, marks)
            if stream is not None:
                link.cursor = cursor if stream.id == stream_id else stream.fork_position
            self._judge(link)
        self._mark(link, (marks & EXPLICIT) | (link.marks & GLOB))

    def _make_link(self, subscription: Subscription, path: str, marks: int) -> Link:
        link = subscription.links[path] = Link(subscription, path)
        link.marks = marks
        key = f"{subscription.root}/{path}"
        held = self.links.get(key)
        if held is None:
            held = self.links[key] = {}
        held[subscription.incarnation] = link
        link.stream = self.stream(subscription.root, path)
        if link.stream is not None:
            link.stream.links = held
        self.link_count += 1
        self.dirty[_subject(_LINK, subscription.incarnation, path)] = None
        return link

    def _link_new(self, subscription: Subscription, path: str) -> None:
        """Link a stream that was just made, before its first bytes."""
        if self.stream(subscription.root, path) is not None:
            link = self._make_link(subscription, path, GLOB)
            assert link.stream is not None
            link.cursor = link.stream.fork_position
            self._judge(link)

    def _mark(self, link: Link, marks: int) -> None:
        subscription, path = link.subscription, link.path
        self.dirty[_subject(_LINK, subscription.incarnation, path)] = None
        link.marks = marks
        if marks:
            return
        del subscription.links[path]
        subscription.pending.pop(path, None)
        self.link_count -= 1
        key = f"{subscription.root}/{path}"
        held = self.links[key]
        del held[subscription.incarnation]
        if not held:
            del self.links[key]
            if link.stream is not None:
                link.stream.links = None

    def _judge(self, link: Link) -> None:
        pending = link.subscription.pending
        if link.tail > link.cursor:
            pending.setdefault(link.path, link)
        else:
            pending.pop(link.path, None)

    # --- streams ---

    def appended(self, stream: Stream) -> None:
        """Note who is to hear of bytes that were added to a linked stream."""
        assert stream.links is not None
        for link in stream.links.values():
            subscription = link.subscription
            if link.path not in subscription.pending and stream.tail > link.cursor:
                subscription.pending[link.path] = link
                if subscription.head.state == SubscriptionState.IDLE:
                    self.stirred[subscription] = None

    def created(self, stream: Stream) -> None:
        """Link a stream that was just made to all who want it, before its first bytes."""
        if not (self.by_id or self._arriving):
            return
        root, _, path = stream.key.partition("/")
        for arriving in self._arriving.values():
            if arriving.root == root and arriving.pattern.matches(path):
                arriving.missed[path] = None
        held = self.links.get(stream.key)
        if held is not None:
            stream.links = held
            for link in held.values():
                link.stream, link.cursor = stream, stream.fork_position
                self.dirty[_subject(_LINK, link.subscription.incarnation, path)] = None
        if stream.key not in self.wake_streams:
            self._link_matching(root, path)
        for link in self.links.get(stream.key, {}).values():
            self._judge(link)
            self.stirred[link.subscription] = None
        for subscription in self.wake_streams.get(stream.key, {}).values():
            self.stirred[subscription] = None  # it may have waited for this very stream

    def _link_matching(self, root: str, path: str) -> None:
        index = self._patterns.get(root)
        for incarnation in index.matching(path) if index else ():
            known = self.by_incarnation[incarnation].links.get(path)
            if known is not None:
                known.marks |= GLOB
            else:
                self._link_new(self.by_incarnation[incarnation], path)

    def ended(self, stream: Stream) -> None:
        """Let go of a stream: what was named stays linked, for one that comes to have the name."""
        if stream.links is None:
            return
        for link in list(stream.links.values()):
            link.stream, link.cursor = None, 0
            self._judge(link)
            self._mark(link, link.marks & EXPLICIT)
        stream.links = None

    def settle(self) -> None:
        """Put right, after a replay, what links say of streams that are not there any more."""
        for subscription in self.by_incarnation.values():
            for link in list(subscription.links.values()):
                there = self.stream(subscription.root, link.path)
                if there is None:
                    link.stream, link.cursor = None, 0
                    self._judge(link)
                    self._mark(link, link.marks & EXPLICIT)
                else:
                    link.stream = there
                    there.links = self.links[there.key]
                    if not there.damage:  # else its last records may be set aside, and come back
                        link.cursor = min(link.cursor, there.tail)
                    self._judge(link)
            self.stirred[subscription] = None

    # --- the catalogue ---

    def facts(self) -> list[Fact]:
        """Return what the next checkpoint is to say, and forget that it was to be said."""
        found = [(subject, self._fact(subject)) for subject in self.dirty]
        self.dirty.clear()
        return found

    def everything(self) -> list[tuple[str, list[object]]]:
        """Return all that a catalogue says of them."""
        self.dirty = dict.fromkeys([_subject(_TOMB, *key) for key in self.tombstones])
        if self.floor:
            self.dirty[_FLOOR] = None
        for incarnation, subscription in self.by_incarnation.items():
            self.dirty[_subject(_SUB, incarnation)] = None
            for path in subscription.links:
                self.dirty[_subject(_LINK, incarnation, path)] = None
        return [(name, fields) for name, fields in self.facts() if fields is not None]

    def _fact(self, subject: str) -> list[object] | None:
        kind, _, rest = subject.partition(" ")
        if kind == _FLOOR:
            return [self.floor]
        if kind == _TOMB:
            root, _, name = rest.partition(" ")
            generation = self.tombstones.get((root, name))
            return None if generation is None else [generation]
        number, _, path = rest.partition(" ")
        subscription = self.by_incarnation.get(int(number))
        if subscription is None:
            return None
        if kind == _LINK:
            link = subscription.links.get(path)
            return None if link is None else [link.marks, link.cursor]
        return [
            subscription.root,
            subscription.id,
            row_of(subscription.config),
            subscription.base,
            subscription.created_ms,
            row_of(subscription.head),
        ]

    def load(self, facts: Iterable[tuple[str, list]]) -> None:  # type: ignore[type-arg]  # CBOR
        """Take over what a catalogue says; its streams are there already."""
        links: list[tuple[str, list]] = []  # type: ignore[type-arg]
        for subject, fields in facts:
            kind, _, rest = subject.partition(" ")
            if kind == _SUB:
                root, name, config, base, created_ms, head = fields
                made = SubscriptionPut(
                    root, name, int(rest), 0, config_of(config), base, (), created_ms
                )
                subscription = Subscription(made)
                subscription.head = head_of(head)
                self._enter(subscription)
            elif kind == _LINK:
                links.append((rest, fields))
            elif kind == _TOMB:
                root, _, name = rest.partition(" ")
                self.tombstones[root, name] = fields[0]
            else:
                self.floor = fields[0]
        for rest, (marks, cursor) in links:
            number, _, path = rest.partition(" ")
            if int(number) in self.by_incarnation:
                self._make_link(self.by_incarnation[int(number)], path, marks).cursor = cursor
        self.dirty.clear()


def _subject(kind: str, *rest: str | int) -> str:
    return " ".join([kind, *map(str, rest)])


def live_facts(facts: dict[str, T]) -> Iterator[T]:
    """Yield rows of a catalogue that is written anew: links of ended subscriptions are left out."""
    for subject, row in facts.items():
        kind, _, rest = subject.partition(" ")
        if kind != _LINK or f"{_SUB} {rest.partition(' ')[0]}" in facts:
            yield row


def put_of(
    held: Subscriptions,
    subject: tuple[str, str],
    config: SubscriptionConfig,
    incarnation: int,
    matching: Iterable[str],
    now_ms: int,
    base: str,
) -> SubscriptionPut:
    """Return the record that makes a subscription, with its links at the ends of their streams."""
    root, name = subject
    marks = dict.fromkeys(matching, GLOB)
    pattern = Pattern(config.pattern) if config.pattern else None
    for path in config.streams:
        also = pattern is not None and pattern.matches(path)
        marks[path] = EXPLICIT | (GLOB if also else 0)
    links = tuple(
        held.link_at_tail(root, path, mark)
        for path, mark in marks.items()
        if mark & EXPLICIT or held.stream(root, path) is not None
    )
    generation = held.next_generation(root, name)
    return SubscriptionPut(root, name, incarnation, generation, config, base, links, now_ms)
