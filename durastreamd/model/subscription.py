"""One subscription: its links, its wake, and what may happen to it.

Theory of operation
-------------------
A subscription links streams and has a cursor in each: what lies behind it is dealt with. A link is
*pending* while its stream goes on beyond the cursor. A subscription with pending links is woken:
somebody is told (a webhook, or an event in its wake stream), gets a lease, moves the cursors and
says that it is done. There is one wake at a time. Each has a *generation*, one above the one before
and never a lower one, and a name nobody can guess; whoever speaks for another wake is *fenced*.

States, and what moves between them (``TRANSITIONS`` is the whole truth, ``check`` says what holds):

    IDLE     nobody is told of anything                         wake     -> WAKING
                                                                claim    -> LIVE
    WAKING   a wake is on its way: to be delivered or           claim    -> LIVE
             announced when due; or a receiver has taken it     hold     -> WAKING
             and its lease runs                                 fail     -> WAKING
                                                                end      -> IDLE
    LIVE     a worker has claimed it and its lease runs         hold     -> LIVE
                                                                end      -> IDLE

Deciding is here, and looks at nothing but the subscription, the tails of the streams it links and
the time. A decision is a record that says how things are after it; ``subscriptions`` applies it
when it is durable, and until then nobody is shown it. An end with pending links left is an end and
a wake in one record, so no crash can come between them and leave a subscription asleep.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from durastreamd.machines import moves
from durastreamd.model.globs import Pattern
from durastreamd.model.subscription_records import (
    EXPLICIT,
    WEBHOOK,
    CursorFields,
    Head,
    Shown,
    SubscriptionChange,
    SubscriptionPut,
)

if TYPE_CHECKING:
    from durastreamd.model.stream_state import Stream

WAKE_STREAMS_MAX = 1000  # in one wake; what does not fit stays pending and wakes again
RETRY_MS, RETRY_MS_MAX = 1000, 60_000  # after the first failure, and at the most
STALL_MS, STALL_MS_MAX = 100, 5000  # before a wake that follows one which moved no cursor
AGAIN_MS, AGAIN_MS_MAX = 30_000, 600_000  # until an unclaimed wake is announced again
ERROR_CHARACTERS_MAX = 200


class SubscriptionState(IntEnum):
    """How far a wake is."""

    IDLE = auto()
    WAKING = auto()
    LIVE = auto()


class SubscriptionEvent(IntEnum):
    """What happens to it."""

    WAKE = auto()  # something is pending
    CLAIM = auto()  # a worker takes it
    HOLD = auto()  # a holder shows that it is alive
    FAIL = auto()  # nobody could be told
    END = auto()  # done, released, or the lease is over


TRANSITIONS: Final = {
    (SubscriptionState.IDLE, SubscriptionEvent.WAKE): SubscriptionState.WAKING,
    (SubscriptionState.IDLE, SubscriptionEvent.CLAIM): SubscriptionState.LIVE,
    (SubscriptionState.WAKING, SubscriptionEvent.CLAIM): SubscriptionState.LIVE,
    (SubscriptionState.WAKING, SubscriptionEvent.HOLD): SubscriptionState.WAKING,
    (SubscriptionState.WAKING, SubscriptionEvent.FAIL): SubscriptionState.WAKING,
    (SubscriptionState.WAKING, SubscriptionEvent.END): SubscriptionState.IDLE,
    (SubscriptionState.LIVE, SubscriptionEvent.HOLD): SubscriptionState.LIVE,
    (SubscriptionState.LIVE, SubscriptionEvent.END): SubscriptionState.IDLE,
}

_IDLE, _WAKING, _LIVE = SubscriptionState
_WAKE, _CLAIM, _HOLD, _FAIL, _END = moves(TRANSITIONS, SubscriptionEvent)


class Refused(NamedTuple):
    """Why something is not done: the protocol's word for it, and a sentence."""

    code: str
    detail: str
    holder: str = ""
    generation: int = 0


class Ack(NamedTuple):
    """A cursor that a holder wants moved; the position was read from its offset."""

    path: str
    position: int


class Link:
    """A stream as one subscription sees it; ``stream`` is None while there is none of the name."""

    __slots__ = ("cursor", "marks", "path", "stream", "subscription")

    def __init__(self, subscription: "Subscription", path: str) -> None:
        self.subscription = subscription
        self.path = path
        self.marks = 0
        self.cursor = 0
        self.stream: Stream | None = None

    @property
    def tail(self) -> int:
        """Return where the stream ends; a missing one has nothing beyond the cursor."""
        return self.stream.tail if self.stream is not None else self.cursor

    @property
    def kind(self) -> str:
        """Return the link's type, as bodies have it."""
        return kind_of(self.marks)


def kind_of(marks: int) -> str:
    """Return the type of a link with these marks: what was named outranks what matched."""
    return "explicit" if marks & EXPLICIT else "glob"


class Subscription:
    """One subscription as it is committed."""

    __slots__ = (
        "base",
        "config",
        "created_ms",
        "head",
        "id",
        "incarnation",
        "links",
        "pattern",
        "pending",
        "root",
    )

    def __init__(self, record: SubscriptionPut) -> None:
        self.root = record.root
        self.id = record.id
        self.incarnation = record.incarnation
        self.config = record.config
        self.pattern = Pattern(record.config.pattern) if record.config.pattern else None
        self.base = record.base
        self.created_ms = record.time_ms
        self.head = Head(generation=record.generation)
        self.links: dict[str, Link] = {}
        self.pending: dict[str, Link] = {}  # in the order they became so

    def __repr__(self) -> str:
        return f"<Subscription {self.root}/{self.id} {self.state.name} {self.head.generation}>"

    @property
    def state(self) -> SubscriptionState:
        """Return how far its wake is."""
        return SubscriptionState(self.head.state)

    @property
    def webhook(self) -> bool:
        """Tell whether it is told by a webhook."""
        return self.config.type == WEBHOOK

    def check(self) -> None:
        """Assert what each state promises; for tests, after each step."""
        head = self.head
        assert bool(head.wake_id) is (self.state is not _IDLE), self
        assert bool(head.holder) is (self.state is _LIVE), self
        assert head.lease_ms or self.state is not _LIVE, self
        assert not head.lease_ms or self.state is _LIVE or head.taken, self
        assert head.lease_ms or head.due_ms or self.state is _IDLE, self
        assert not self.webhook or self.state is not _LIVE, self
        for path, link in self.links.items():
            assert link.path == path, link.path
            assert link.marks, path
            assert (path in self.pending) is (link.tail > link.cursor), (self, path)
            assert link.cursor <= link.tail, (self, path)

    def deadline_ms(self) -> int | None:
        """Return when something is to be done about it, None for never."""
        head = self.head
        if self.state is _IDLE:
            return 0 if self.pending else None
        return head.lease_ms or head.due_ms or None

    # --- deciding ---

    def _change(
        self,
        now_ms: int,
        head: Head,
        cursors: Iterable[CursorFields] = (),
        *,
        new_wake: bool = False,
    ) -> SubscriptionChange:
        return SubscriptionChange(self.incarnation, head, tuple(cursors), new_wake, now_ms)

    def _left(self, cursors: Iterable[CursorFields]) -> Iterator[Link]:
        """Yield what is pending once these cursors have moved."""
        moved = {path: position for path, position, _ in cursors}
        for path, link in self.pending.items():
            if link.tail > moved.get(path, link.cursor):
                yield link

    def _woken(
        self, now_ms: int, lot: str, left: list[Link], moved: dict[str, int], stalls: int
    ) -> Head:
        """Return the head of a new wake for pending links."""
        delay = min(STALL_MS << min(stalls - 1, 10), STALL_MS_MAX) if stalls else 0
        return Head(
            state=_WAKE[_IDLE],
            generation=self.head.generation + 1,
            wake_id=f"w_{lot}",
            trigger=left[0].path,
            snapshot=_shown(left, moved),
            due_ms=now_ms + delay,
            stalls=stalls,
        )

    def _ended(
        self, now_ms: int, lot: str, cursors: tuple[CursorFields, ...], stalls: int
    ) -> SubscriptionChange:
        """Return the end of a wake; where something is left, it is the beginning of another."""
        state = _END[self.state]
        moved = {path: position for path, position, _ in cursors}
        left = list(islice(self._left(cursors), WAKE_STREAMS_MAX))
        if left:
            head = self._woken(now_ms, lot, left, moved, stalls)
            return self._change(now_ms, head, cursors, new_wake=True)
        head = Head(state=state, generation=self.head.generation)
        return self._change(now_ms, head, cursors, new_wake=True)

    def wake(self, now_ms: int, lot: str) -> SubscriptionChange | None:
        """Wake an idle subscription that has something pending."""
        if self.state is not _IDLE or not self.pending:
            return None
        left = list(islice(self.pending.values(), WAKE_STREAMS_MAX))
        head = self._woken(now_ms, lot, left, {}, self.head.stalls)
        return self._change(now_ms, head, new_wake=True)

    def lapse(self, now_ms: int, lot: str) -> SubscriptionChange | None:
        """End a wake whose lease is over, or an announced one that nobody need claim any more."""
        head = self.head
        if head.lease_ms and now_ms >= head.lease_ms:
            return self._ended(now_ms, lot, (), head.stalls)
        if self.state is _WAKING and not self.webhook and not self.pending:
            return self._ended(now_ms, lot, (), head.stalls)
        return None

    def claim(self, worker: str, now_ms: int, lot: str) -> SubscriptionChange | Refused:
        """Give the work to a worker; an announced wake keeps its name, a lapsed one does not."""
        head = self.head
        if self.state is _LIVE and now_ms < head.lease_ms:
            detail = f"{worker!r} cannot have it: it is claimed until its lease ends."
            return Refused("ALREADY_CLAIMED", detail, head.holder, head.generation)
        left = list(islice(self.pending.values(), WAKE_STREAMS_MAX))
        if not left:
            return Refused("NO_PENDING_WORK", "Every cursor is at the end of its stream.")
        lease_ms = now_ms + self.config.lease_ttl_ms
        if self.state is _WAKING:
            taken = replace(
                head, state=_CLAIM[self.state], holder=worker, lease_ms=lease_ms, due_ms=0,
                failures=0, error="", snapshot=_shown(left, {}),
            )  # fmt: skip
        else:
            before = _END[self.state] if self.state is _LIVE else self.state
            taken = Head(
                state=_CLAIM[before],
                generation=head.generation + 1,
                wake_id=f"w_{lot}",
                trigger=left[0].path,
                snapshot=_shown(left, {}),
                holder=worker,
                lease_ms=lease_ms,
                stalls=head.stalls,
            )
        return self._change(now_ms, taken, new_wake=True)

    def fence(self, token: int, generation: int, wake_id: str, now_ms: int) -> Refused | None:
        """Refuse whoever does not speak for the current wake; ``token`` is its generation."""
        head = self.head
        current = (head.generation, head.generation, head.wake_id)
        if self.state is _IDLE or (token, generation, wake_id) != current:
            return Refused("FENCED", "The wake is over; another may have begun.")
        if head.lease_ms and now_ms >= head.lease_ms:
            return Refused("FENCED", "The lease is over.")
        if self.state is _WAKING and not self.webhook:
            return Refused("FENCED", "Nobody has claimed the wake.")
        return None

    def cursors(self, acks: Iterable[Ack]) -> tuple[CursorFields, ...] | Refused:
        """Return cursors as a holder may set them; all of them, or none."""
        found: dict[str, CursorFields] = {}
        shown = {path for path, *_ in self.head.snapshot}
        for path, position in acks:
            link = self.links.get(path)
            if link is None:
                if path in shown:
                    continue  # it was unlinked meanwhile
                return Refused("INVALID_OFFSET", f"{path!r} is not linked.")
            if not link.cursor <= position <= link.tail:
                where = "before the cursor" if position < link.cursor else "past the end"
                return Refused("INVALID_OFFSET", f"The offset of {path!r} lies {where}.")
            if link.stream is not None:
                found[path] = (path, position, link.stream.id)
        return tuple(found.values())

    def hold(self, cursors: tuple[CursorFields, ...], now_ms: int) -> SubscriptionChange:
        """Move cursors for the current holder, whose lease begins anew."""
        head = replace(
            self.head,
            state=_HOLD[self.state],
            lease_ms=now_ms + self.config.lease_ttl_ms,
            due_ms=0,
            failures=0,
            error="",
            taken=True,
            moved=self.head.moved or self._moves(cursors),
        )
        return self._change(now_ms, head, cursors)

    def finish(
        self, cursors: tuple[CursorFields, ...], now_ms: int, lot: str
    ) -> SubscriptionChange:
        """End the current wake for its holder: done, or given back."""
        moved = self.head.moved or self._moves(cursors)
        return self._ended(now_ms, lot, cursors, 0 if moved else self.head.stalls + 1)

    def _moves(self, cursors: tuple[CursorFields, ...]) -> bool:
        return any(
            (link := self.links.get(path)) is not None and position > link.cursor
            for path, position, _ in cursors
        )

    def taken(self, now_ms: int, lot: str, *, done: bool) -> SubscriptionChange:
        """A webhook was accepted. One that says it is done has dealt with all it was shown."""
        if not done:
            return self.hold((), now_ms)
        cursors = []
        for path, _, _, tail, stream in self.head.snapshot:
            link = self.links.get(path)
            if link is not None and link.stream is not None and link.stream.id == stream:
                cursors.append((path, max(link.cursor, min(tail, link.tail)), stream))
        return self.finish(tuple(cursors), now_ms, lot)

    def failed(self, error: str, now_ms: int, wait_ms: int | None = None) -> SubscriptionChange:
        """Nobody could be told; it is tried again, later each time."""
        failures = self.head.failures + 1
        delay = retry_ms(failures) if wait_ms is None else min(wait_ms, RETRY_MS_MAX)
        head = replace(
            self.head,
            state=_FAIL[self.state],
            lease_ms=0,
            due_ms=now_ms + delay,
            failures=failures,
            error=error[:ERROR_CHARACTERS_MAX],
        )
        return self._change(now_ms, head)

    def announced(self, now_ms: int) -> SubscriptionChange:
        """The event stands in the wake stream; it is repeated if nobody claims the wake."""
        again = max(self.config.lease_ttl_ms, AGAIN_MS) << min(self.head.announced, 10)
        head = replace(
            self.head,
            due_ms=now_ms + min(again, max(AGAIN_MS_MAX, self.config.lease_ttl_ms)),
            failures=0,
            error="",
            announced=self.head.announced + 1,
        )
        return self._change(now_ms, head)

    def clamped(self, now_ms: int) -> Head:
        """Return the head without a time that lies further ahead than it could ever have been set.

        A clock that was set back between two runs would have everybody wait until then.
        """
        head = self.head
        ttl_ms = self.config.lease_ttl_ms
        latest = now_ms + max(AGAIN_MS_MAX, ttl_ms)
        return replace(
            head,
            lease_ms=min(head.lease_ms, now_ms + ttl_ms),
            due_ms=min(head.due_ms, latest if head.announced else now_ms + 2 * RETRY_MS_MAX),
        )


def retry_ms(failures: int) -> int:
    """Return how long to wait after so many failures in a row, before any jitter."""
    return min(RETRY_MS << min(failures - 1, 10), RETRY_MS_MAX)


def _shown(links: Iterable[Link], moved: dict[str, int]) -> tuple[Shown, ...]:
    return tuple(
        (link.path, link.marks, moved.get(link.path, link.cursor), link.tail, link.stream.id)
        for link in links
        if link.stream is not None
    )
