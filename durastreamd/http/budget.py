"""One budget for the bytes that are in memory on behalf of clients.

Theory of operation. Whoever is about to hold bytes for a client (a body as it arrives, a page that
waits to be sent) takes them from a ``Claim`` first and gives them back when they are let go. What
is counted is what is there, never what was declared: a client that promises 64 MiB and has sent a
kilobyte holds a kilobyte.

Two pools. A claim is small as long as it holds at most ``small_bytes``; small claims have a reserve
of their own, so that no large upload can refuse a small append. A claim that grows beyond it moves
to the large pool with all it holds.

Tiny bodies. The first ``TINY_BYTES`` of bodies on a connection need no claim: they come with what a
connection costs anyway, 20 KB, and ``connections_max`` bounds them (40 MB by default). So a tiny
append is never refused for what others hold, be they all behind one address, and is not counted.

Shares. In each pool a client may hold as much as is left free for everybody else: one client gets
half, two that grow side by side a third each, and there is always something left for the next. A
client is an address, and the whole /64 of an IPv6 address, since that is what one host is given; a
unix socket is one client, as a proxy is.

The guest. A budget below twice the size of one request would refuse it for ever. So a claim that
does not fit although nothing else is in the large pool becomes its guest: it may grow as its
request does, and what it holds is not counted against the others. There is one guest at a time.

Waiting. Who does not fit waits, for ``wait_s_max`` at most, and then raises ``OverloadedError``.
Among the claims of one client the oldest is served first. Uploads that are half done hold bytes
while they wait for more; when all the bytes of a client, or of a pool, are held by claims that
wait, nothing would ever be given back, so the youngest of them is refused at once and the oldest
goes on.
"""

import ipaddress
from bisect import insort
from functools import lru_cache
from typing import Final, Self

import trio

from durastreamd.errors import OverloadedError
from durastreamd.http.limits import BudgetLimits

TINY_BYTES: Final = 4096  # of a connection; what an append of a few messages has
_RESERVE_PART: Final = 4  # one fourth of the budget is for small claims alone
_IPV6_HOST_BITS: Final = 64
_KNOWN_HOSTS_MAX: Final = 1024


def client_of(peer: str) -> str:
    """Return who counts as one client, given an address as ``Request.peer`` has it."""
    host, colon, _ = peer.rpartition(":")
    if not colon:
        return peer  # a unix socket
    return _network_of(host) if host.startswith("[") else host


@lru_cache(maxsize=_KNOWN_HOSTS_MAX)
def _network_of(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host[1:-1].partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _IPV6_HOST_BITS), strict=False))


class _Share:
    """What one client holds of one pool, and which of its claims wait, the oldest first."""

    __slots__ = ("used", "waiting", "waiting_holders", "waiting_used")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: list[Claim] = []
        self.waiting_used = 0  # of ``used``: what claims hold that wait here
        self.waiting_holders = 0  # how many these are


class _Client:
    """Whom claims are made for."""

    __slots__ = ("claims", "large", "name", "small")

    def __init__(self, name: str) -> None:
        self.name = name
        self.claims = 0
        self.small = _Share()
        self.large = _Share()


class _Pool:
    """A part of the budget, shared among clients."""

    __slots__ = ("_granting", "_queue", "guest", "size", "used", "waiting_holders", "waiting_used")

    def __init__(self) -> None:
        self.size = 0
        self.used = 0
        self.guest: Claim | None = None
        self.waiting_used = 0
        self.waiting_holders = 0
        self._queue: dict[_Share, None] = {}  # shares with claims that wait
        self._granting = False

    def fits(self, share: _Share, size: int) -> bool:
        """Tell whether a client may hold ``size`` more."""
        return share.used + size <= self.size - self.used or not size

    def remove(self, share: _Share, size: int) -> None:
        """Count bytes that are held no longer."""
        self.used -= size
        share.used -= size
        if self._queue:
            self.grant()

    def enter(self, share: _Share, claim: "Claim", held: int) -> None:
        """Let a claim wait that holds ``held`` here."""
        insort(share.waiting, claim)
        self._queue[share] = None
        self._count(share, held)

    def leave(self, share: _Share, claim: "Claim", held: int) -> None:
        """Let a claim wait no longer."""
        share.waiting.remove(claim)
        if not share.waiting:
            del self._queue[share]
        self._count(share, -held)

    def _count(self, share: _Share, held: int) -> None:
        holders = (held > 0) - (held < 0)
        share.waiting_used += held
        share.waiting_holders += holders
        self.waiting_used += held
        self.waiting_holders += holders

    def grant(self) -> None:
        """Give what is free to those who wait: of each client the oldest, while it fits."""
        if self._granting:
            return  # by a claim that was granted something and gave other bytes back for it
        self._granting = True
        try:
            for share in list(self._queue):
                while share.waiting and share.waiting[0].granted():
                    pass
        finally:
            self._granting = False

    def stuck(self, share: _Share) -> "Claim | None":
        """Return whom to refuse, if what is held here waits for nothing but itself."""
        among: list[Claim] = []
        alone = share.waiting_holders > 1 and share.waiting_used == share.used
        if alone and 2 * share.used + share.waiting[0].wanted > self.size:
            among = share.waiting  # not even the whole pool would help this client
        elif self.waiting_holders > 1 and self.waiting_used == self.used:
            among = [claim for each in self._queue for claim in each.waiting]
        return max((claim for claim in among if claim.held), default=None)


class Claim:
    """What one request holds of the budget; a context manager that gives everything back."""

    __slots__ = (
        "_answered",
        "_budget",
        "_client",
        "_place",
        "_pool",
        "_serial",
        "_share",
        "closed",
        "held",
        "wanted",
    )

    def __init__(self, budget: "Budget", client: _Client, serial: int) -> None:
        self.closed = False
        self.held = 0
        self.wanted = 0  # while it waits; 0 once it was granted
        self._budget = budget
        self._client = client
        self._serial = serial
        self._pool = budget.small
        self._share = client.small
        self._answered: trio.Event | None = None  # while it waits
        self._place = (self._pool, self._share, 0)  # where it waits, and what it holds there

    def __lt__(self, other: "Claim") -> bool:
        return self._serial < other._serial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, size: int) -> bool:
        """Take bytes now, or not at all."""
        held = self.held
        budget = self._budget
        pool, share = self._pool, self._share
        if pool is budget.small and held + size > budget.small_bytes:
            return self._grow(size)
        if not pool.fits(share, size) or pool.guest is self:
            return pool is budget.large and self._be_guest(size)
        pool.used += size
        share.used += size
        self.held = held + size
        return True

    def _grow(self, size: int) -> bool:
        """Move to the large pool with all that is held, if there is room for it."""
        pool, share = self._budget.large, self._client.large
        whole = self.held + size
        if pool.fits(share, whole):
            pool.used += whole
            share.used += whole
        elif pool.guest is None and not pool.used:
            pool.guest = self
        else:
            return False
        before, old = self._pool, self._share
        self._pool, self._share = pool, share
        before.remove(old, self.held)
        self.held = whole
        return True

    def _be_guest(self, size: int) -> bool:
        """Take bytes that are not counted against others; the guest, or who may become it."""
        pool = self._pool
        if pool.guest is None and pool.used == self.held:
            pool.guest = self
            pool.remove(self._share, self.held)
        if pool.guest is not self:
            return False
        self.held += size
        return True

    async def wait(self, size: int) -> None:
        """Take bytes, waiting for others to give theirs back.

        Raises ``OverloadedError`` when that takes too long, or would take for ever. Where there is
        room it does not even let others run.
        """
        if self.take(size):
            return
        assert self._answered is None, "one task waits for a claim"
        answered = self._answered = trio.Event()
        self.wanted = size
        self._enter()
        pool, share, _ = self._place
        victim = pool.stuck(share)
        if victim is not None:
            victim.refuse()
        try:
            with trio.move_on_after(self._budget.wait_s_max):
                await answered.wait()
        finally:
            self.refuse()
        if self.wanted:
            message = "the server holds as many bytes of other requests as it may"
            raise OverloadedError(message)

    def _enter(self) -> None:
        budget = self._budget
        if self._pool is budget.small and self.held + self.wanted > budget.small_bytes:
            self._place = (budget.large, self._client.large, 0)
        else:
            self._place = (self._pool, self._share, self.held)
        pool, share, held = self._place
        pool.enter(share, self, held)

    def _leave(self) -> None:
        pool, share, held = self._place
        pool.leave(share, self, held)

    def granted(self) -> bool:
        """Take what it waits for, if that fits by now."""
        self._leave()
        if not self.take(self.wanted):
            self._enter()
            return False
        self.wanted = 0
        self._tell()
        return True

    def refuse(self) -> None:
        """Let it wait no longer; what it holds it gives back when its task goes on."""
        if self._answered is not None:
            self._leave()
            self._tell()

    def _tell(self) -> None:
        assert self._answered is not None
        self._answered.set()
        self._answered = None

    def give(self, size: int) -> None:
        """Give bytes back."""
        assert size <= self.held, "more than it holds"
        pool, share = self._pool, self._share
        self.held -= size
        if not self.held:
            self._pool, self._share = self._budget.small, self._client.small
        if pool.guest is not self:
            pool.remove(share, size)
        elif not self.held:
            pool.guest = None
            pool.grant()

    def close(self) -> None:
        """Give everything back; whoever waits is refused. Harmless when it is closed."""
        if self.closed:
            return
        self.closed = True
        self.refuse()
        if self.held:
            self.give(self.held)
        self._budget.forget(self._client)


class Budget:
    """The bytes that all clients together may have in memory."""

    def __init__(self, limits: BudgetLimits | None = None) -> None:
        self.small = _Pool()
        self.large = _Pool()
        self.small_bytes = 0
        self.wait_s_max = 0.0
        self._clients: dict[str, _Client] = {}
        self._claims_total = 0
        self.adjust(limits or BudgetLimits())

    @property
    def used(self) -> int:
        """How many bytes are held now."""
        guest = self.large.guest
        return self.small.used + self.large.used + (guest.held if guest is not None else 0)

    def adjust(self, limits: BudgetLimits) -> None:
        """Go on by other limits; what is held stays counted."""
        self.small.size = limits.bytes_max // _RESERVE_PART
        self.large.size = limits.bytes_max - self.small.size
        self.small_bytes = min(limits.small_bytes, self.small.size // 2)
        self.wait_s_max = limits.wait_s_max
        self.small.grant()
        self.large.grant()

    def claim(self, client: str) -> Claim:
        """Return a claim of nothing yet, for a client as ``client_of`` names it."""
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Client(client)
        found.claims += 1
        self._claims_total += 1
        return Claim(self, found, self._claims_total)

    def forget(self, client: _Client) -> None:
        """Note that a claim of this client is closed."""
        client.claims -= 1
        if not client.claims:
            del self._clients[client.name]
