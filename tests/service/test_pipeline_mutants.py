"""Seeded bugs in the framing of requests: bytes of one that end up in another, or nowhere."""

from collections.abc import Callable

import h11
import pytest

from durastreamd.http.h1.chunked import ChunkedDecoder
from durastreamd.http.h1.connection import H1Connection
from durastreamd.http.h1.exchange import H1Exchange
from durastreamd.http.h1.quick import QuickTurns, State
from tests.http.harness import Gone
from tests.service.pipelines import BODIES, Asked, chunked, judge, post, refused
from tests.support.mutants import change

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]

SEEN = (AssertionError, Gone, h11.RemoteProtocolError)
PLAIN = [post("a", b"first"), post("b", b"second"), post("a", b"third")]
PAIR = len(post("a", b"first").wire)


def quick_lane_takes_the_rest_as_body(patch: Patch) -> None:
    change(
        patch,
        QuickTurns,
        "_answered_quickly",
        "request.content_length != size",
        "request.content_length > size",
    )


def quick_lane_forgets_the_rest(patch: Patch) -> None:
    quick_lane_takes_the_rest_as_body(patch)
    mutated = QuickTurns._answered_quickly

    def answered_quickly(self: QuickTurns, data: bytes) -> bool:
        one = len(PLAIN[0].wire)
        return mutated(self, data[:one] if data.startswith(PLAIN[0].wire) else data)

    patch.setattr(QuickTurns, "_answered_quickly", answered_quickly)


def quick_lane_forgets_what_came_meanwhile(patch: Patch) -> None:
    def arrived(self: QuickTurns) -> None:
        if self.state is State.PARKED:
            original(self)

    original = QuickTurns.arrived
    patch.setattr(QuickTurns, "arrived", arrived)


def body_takes_the_rest(patch: Patch) -> None:
    change(patch, H1Exchange, "body", "return buffer[:left]", "return buffer")


def rest_behind_a_body_forgotten(patch: Patch) -> None:
    change(
        patch,
        H1Exchange,
        "body",
        "self._connection.buffer = buffer[left:]",
        'self._connection.buffer = b""',
    )


def rest_behind_chunks_forgotten(patch: Patch) -> None:
    change(patch, ChunkedDecoder, "feed", "self.rest = buffer[at:]", 'self.rest = b""')


def rest_behind_a_head_twice(patch: Patch) -> None:
    change(
        patch, H1Connection, "_next_request", "self.buffer = buffer[end:]", "self.buffer = buffer"
    )


def refused_body_taken_for_a_request(patch: Patch) -> None:
    async def discard_body(_self: H1Exchange) -> bool:
        return True

    patch.setattr(H1Exchange, "discard_body", discard_body)


MUTANTS: list[tuple[Mutant, list[Asked], list[int], bool]] = [
    (quick_lane_takes_the_rest_as_body, PLAIN, [], False),
    (quick_lane_forgets_the_rest, PLAIN, [], False),
    (quick_lane_forgets_what_came_meanwhile, PLAIN, [PAIR], True),
    (body_takes_the_rest, PLAIN, [], False),
    (rest_behind_a_body_forgotten, PLAIN, [], False),
    (rest_behind_chunks_forgotten, [chunked("a", b"hello", 2), *PLAIN], [], False),
    (rest_behind_a_head_twice, PLAIN, [], False),
    (
        refused_body_taken_for_a_request,
        [refused("a", BODIES[2], "encoded"), *PLAIN],
        [],
        False,
    ),
]


@pytest.mark.parametrize(
    ("mutant", "asked", "cuts", "late"), MUTANTS, ids=[each[0].__name__ for each in MUTANTS]
)
def test_the_model_sees_it(
    monkeypatch: Patch, mutant: Mutant, asked: list[Asked], cuts: list[int], *, late: bool
) -> None:
    judge(asked, cuts, late=late)
    mutant(monkeypatch)
    with pytest.RaisesGroup(pytest.RaisesExc(SEEN), allow_unwrapped=True, flatten_subgroups=True):
        judge(asked, cuts, late=late)
