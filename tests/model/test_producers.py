"""The producer table, every state against every request, and a sender that is never confused."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.model.producers import NUMBER_MAX, ProducerVerdict, judge

NUMBERS = st.sampled_from([0, 1, 2, 3, 7, NUMBER_MAX - 1, NUMBER_MAX])
STATES = st.none() | st.tuples(NUMBERS, NUMBERS)


def expected(known: tuple[int, int] | None, epoch: int, seq: int) -> set[ProducerVerdict]:
    """Return every row of the table that speaks of this request: exactly one must."""
    rows = {
        ProducerVerdict.ACCEPT: [
            known is None and seq == 0,
            known is not None and epoch > known[0] and seq == 0,
            known is not None and epoch == known[0] and seq - known[1] == 1,
        ],
        ProducerVerdict.GAP: [
            known is None and seq > 0,
            known is not None and epoch == known[0] and seq - known[1] > 1,
        ],
        ProducerVerdict.STALE: [known is not None and epoch < known[0]],
        ProducerVerdict.NOT_AT_ZERO: [known is not None and epoch > known[0] and seq > 0],
        ProducerVerdict.DUPLICATE: [known is not None and epoch == known[0] and seq - known[1] < 1],
    }
    return {verdict for verdict, cases in rows.items() if any(cases)}


@given(STATES, NUMBERS, NUMBERS)
def test_every_request_meets_exactly_one_row_of_the_table(
    known: tuple[int, int] | None, epoch: int, seq: int
) -> None:
    assert expected(known, epoch, seq) == {judge(known, epoch, seq)}


@pytest.mark.parametrize(
    ("known", "epoch", "seq", "verdict"),
    [
        (None, 0, 0, ProducerVerdict.ACCEPT),
        (None, 5, 0, ProducerVerdict.ACCEPT),
        (None, 0, 1, ProducerVerdict.GAP),
        ((1, 4), 0, 5, ProducerVerdict.STALE),
        ((1, 4), 0, 0, ProducerVerdict.STALE),
        ((1, 4), 1, 0, ProducerVerdict.DUPLICATE),
        ((1, 4), 1, 4, ProducerVerdict.DUPLICATE),
        ((1, 4), 1, 5, ProducerVerdict.ACCEPT),
        ((1, 4), 1, 6, ProducerVerdict.GAP),
        ((1, 4), 2, 0, ProducerVerdict.ACCEPT),
        ((1, 4), 9, 0, ProducerVerdict.ACCEPT),
        ((1, 4), 2, 1, ProducerVerdict.NOT_AT_ZERO),
        ((1, 4), 2, 5, ProducerVerdict.NOT_AT_ZERO),
        ((0, NUMBER_MAX - 1), 0, NUMBER_MAX, ProducerVerdict.ACCEPT),
        ((0, NUMBER_MAX), 0, NUMBER_MAX, ProducerVerdict.DUPLICATE),
        ((NUMBER_MAX - 1, 3), NUMBER_MAX, 0, ProducerVerdict.ACCEPT),
    ],
)
def test_table_reads_as_the_protocol_says(
    known: tuple[int, int] | None, epoch: int, seq: int, verdict: ProducerVerdict
) -> None:
    assert judge(known, epoch, seq) is verdict


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from(range(6))), max_size=60))
def test_no_tuple_is_ever_accepted_twice(requests: list[tuple[int, int]]) -> None:
    known: tuple[int, int] | None = None
    accepted: list[tuple[int, int]] = []
    for epoch, seq in requests:
        if judge(known, epoch, seq) is ProducerVerdict.ACCEPT:
            known = (epoch, seq)
            accepted.append(known)
    assert accepted == sorted(set(accepted))


@given(STATES.filter(lambda known: known is not None), NUMBERS, NUMBERS)
def test_accepting_makes_the_same_request_a_duplicate(
    known: tuple[int, int], epoch: int, seq: int
) -> None:
    if judge(known, epoch, seq) is ProducerVerdict.ACCEPT:
        assert judge((epoch, seq), epoch, seq) is ProducerVerdict.DUPLICATE


def test_number_max_is_what_a_double_counts_to() -> None:
    assert float(NUMBER_MAX) + 1 == NUMBER_MAX + 1
    assert float(NUMBER_MAX + 1) + 1 != NUMBER_MAX + 2
