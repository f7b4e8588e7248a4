"""An idempotent producer: what it sends under which number, and what the answers mean. No I/O.

A server stores one (producer, epoch, sequence number) once. So a batch keeps its number until it
is acknowledged, over retries, broken connections and, with a state file, over the death of the
program: sent again it is recognised. Within an epoch numbers rise by one; several batches may be
on their way, and one that overtakes another is refused with the number that was expected and sent
again.

    open batch --take--> ready --note--> pending --settle--> gone
                                          |   ^
                                          +---+  sent again

The epoch says which life of a producer this is. A random name needs only the first. A name that
was chosen, and has no state, may have written before: it takes the time as its epoch, which is
later than any before, or what the server tells, plus one.
"""

import json
import secrets
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from durastreamd.client.client import EXPLAINED_BYTES_MAX, Ask, Reply
from durastreamd.client.errors import (
    AnswerError,
    FencedError,
    ProducerError,
    ReplacedError,
    ServerRefusedError,
)
from durastreamd.client.flows import appending, produced, told_offset
from durastreamd.client.producer_state import Outgoing, ProducerState
from durastreamd.client.retry import is_unsure

MIB = 1024 * 1024
CLAIMS_MAX = 5  # of epochs in a row: programs that fence each other do not do so for ever


@dataclass(frozen=True)
class ProducerLimits:
    """How much goes into one append, and how many are on their way."""

    batch_bytes_max: int = MIB  # a sixty-fourth of what a server takes; enough to fill a line
    batch_messages_max: int = 10_000
    in_flight_max: int = 64  # small ones: a sync of the server's disk, and of ours, is for many
    in_flight_bytes_max: int = 4 * MIB  # large ones; held in memory and in the state file


class Judged(Enum):
    """What is to be done with a batch after an answer."""

    STORED = auto()
    SEND_AGAIN = auto()


def new_name() -> str:
    """Return a name that no other producer has."""
    return f"p-{secrets.token_hex(8)}"


def first_epoch(*, named: bool) -> int:
    """Return the epoch of a producer that knows nothing of an earlier life."""
    return time.time_ns() // 1_000_000 if named else 0


def checked_json(data: bytes) -> bytes:
    """Return a text that is exactly one JSON value, or raise ValueError."""
    try:
        json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        shown = data[:80].decode(errors="replace")
        message = f"{shown!r} is not one JSON value: {exc}"
        raise ValueError(message) from exc
    return data.strip()


def _no_constant(name: str) -> None:
    message = f"{name} is not in JSON"
    raise ValueError(message)


def opened(found: ProducerState | None, url: str, name: str, incarnation: str) -> ProducerState:
    """Return the state to go on with: that of the file, or a new one."""
    if found is None:
        epoch = first_epoch(named=bool(name))
        return ProducerState(url, name or new_name(), epoch, incarnation=incarnation)
    if found.url != url:
        message = f"this state file belongs to {found.url}; each stream needs its own"
        raise ProducerError(message)
    if name and found.producer != name:
        message = f"this state file belongs to the producer {found.producer}, not {name}"
        raise ProducerError(message)
    if found.incarnation and incarnation and found.incarnation != incarnation:
        if found.pending or found.mark:
            message = (
                f"{url} was deleted and made anew since this producer wrote to it; what was on "
                "its way belongs to the old stream. Remove the state file to write to the new one"
            )
            raise ReplacedError(message)
        return ProducerState(url, found.producer, found.epoch, incarnation=incarnation)
    found.incarnation = incarnation or found.incarnation
    return found


class ProducerCore:
    """Numbers batches, and judges answers."""

    def __init__(
        self,
        state: ProducerState,
        content_type: str,
        limits: ProducerLimits,
        *,
        as_json: bool,
        join: bool,
    ) -> None:
        self.state = state
        self.limits = limits
        self.json = as_json
        self.next_offset = ""
        self.ready: deque[Outgoing] = deque()
        self._content_type = content_type
        # A message that is not JSON has no other end than that of its append.
        self._alone = not as_json and not join
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_mark = state.mark
        self._next_seq = state.next_seq
        self._claims = 0
        self._stored = state.next_seq > len(state.pending)  # of this epoch, some

    @property
    def open_count(self) -> int:
        """How many messages wait for company."""
        return len(self._open)

    @property
    def window(self) -> int:
        """How many may be on their way: of a new epoch the first one comes alone."""
        return self.limits.in_flight_max if self._stored else 1

    @property
    def full(self) -> bool:
        """Tell whether enough is ready to send it: half of what may be on its way at once."""
        limits = self.limits
        size = sum(len(each.body) for each in self.ready)
        return (
            len(self.ready) >= limits.in_flight_max // 2 or size >= limits.in_flight_bytes_max // 2
        )

    # --- what comes in ---

    def checked(self, data: bytes) -> bytes:
        """Return a message as it goes into a batch, or raise ValueError."""
        if not data:
            message = "a message has at least one byte"
            raise ValueError(message)
        return checked_json(data) if self.json else data

    def add(self, data: bytes, mark: str) -> None:
        """Take a message; a batch that is full becomes ready."""
        data = self.checked(data)
        if self._open and self._open_bytes + len(data) + 1 > self.limits.batch_bytes_max:
            self.take()
        self._open.append(data)
        self._open_bytes += len(data) + 1
        self._open_mark = mark
        if self._alone or len(self._open) >= self.limits.batch_messages_max:
            self.take()

    def take(self, *, close: bool = False, mark: str | None = None) -> None:
        """Make what is there a batch."""
        if not self._open and not close:
            return
        body = b"[%s]" % b",".join(self._open) if self.json else b"".join(self._open)
        mark = self._open_mark if mark is None else mark
        count = len(self._open)
        made = Outgoing(self._next_seq, body if count else b"", count, mark, close)
        self.ready.append(made)
        self._next_seq += 1
        self._open, self._open_bytes = [], 0

    # --- what goes out ---

    def note(self, count: int) -> list[Outgoing]:
        """Return up to so many ready batches, now pending: to be saved, then sent."""
        found: list[Outgoing] = []
        room = self.limits.in_flight_bytes_max - sum(len(each.body) for each in self.state.pending)
        while self.ready and len(found) < count:
            room -= len(self.ready[0].body)
            if room < 0 and self.state.pending:
                break
            each = self.ready.popleft()
            found.append(each)
            self.state.pending.append(each)
            self.state.next_seq, self.state.mark = each.seq + 1, each.mark
        return found

    def ask(self, batch: Outgoing) -> Ask:
        """Return the request that stores a batch."""
        kind = self._content_type if batch.body else ""
        headers = {
            **appending(kind, close=batch.closes),
            **produced(self.state.producer, self.state.epoch, batch.seq),
        }
        if self.state.incarnation:
            headers["Stream-Incarnation"] = self.state.incarnation
        return Ask("POST", self.state.url, headers, batch.body or None, (403, 409))

    def give_up(self) -> bool:
        """Take back the numbers of what was never stored; False if that is not known."""
        pending = self.state.pending
        if any(each.unsure for each in pending):
            return False
        numbered = [*pending, *self.ready]
        if numbered:
            self._next_seq = self.state.next_seq = numbered[0].seq
        pending.clear()
        self.ready.clear()
        self._open, self._open_bytes = [], 0
        self._open_mark = self.state.mark = ""
        return True

    # --- what comes back ---

    def judge(self, batch: Outgoing, reply: Reply) -> Judged:
        """Take an answer: the batch is stored, or is to be sent again; else raise."""
        said = reply.headers
        if reply.status in (200, 204):
            self._settle(batch, reply)
            return Judged.STORED
        answer = ("POST", self.state.url, reply.status, said, reply.body[:EXPLAINED_BYTES_MAX])
        if reply.status == 403 and "producer-epoch" in said:
            self._claim(batch, reply, FencedError(*answer))
            return Judged.SEND_AGAIN
        refused = ServerRefusedError.of(*answer)
        if reply.status == 409 and "producer-expected-seq" in said:
            self._gap(batch, said["producer-expected-seq"], refused)
            return Judged.SEND_AGAIN
        batch.unsure = batch.unsure or is_unsure(refused)
        raise refused

    def _settle(self, batch: Outgoing, reply: Reply) -> None:
        known = reply.status == 204 and batch.body and not (batch.unsure or reply.again)
        if known:
            message = (
                f"the server has number {batch.seq} of producer {self.state.producer} already, "
                "which was never sent from here: another program uses this name, or the state "
                "file is an old copy. Nothing was stored; use another name or a new state file"
            )
            raise ProducerError(message)
        self.next_offset = told_offset(self.state.url, reply)
        self.state.pending.remove(batch)
        self._stored = True

    def _claim(self, batch: Outgoing, reply: Reply, fenced: FencedError) -> None:
        """Claim the next epoch if nothing of this one can have been stored; else give up."""
        text = reply.headers["producer-epoch"]
        self._claims += 1
        lost = self._stored or batch.unsure or reply.again
        if lost or not text.isdigit() or self._claims > CLAIMS_MAX:
            raise fenced
        self.state.epoch = max(self.state.epoch, int(text) + 1)

    def _gap(self, batch: Outgoing, expected: str, refused: ServerRefusedError) -> None:
        first = min((each.seq for each in self.state.pending), default=batch.seq)
        if not expected.isdigit():
            message = f"{self.state.url}: Producer-Expected-Seq is {expected[:40]!r}"
            raise AnswerError(message)
        if not first <= int(expected) < batch.seq:
            message = (
                f"{refused.detail} All before {first} was acknowledged: the stream was made anew, "
                "or its server lost what it had stored"
            )
            raise ProducerError(message)
