"""Drafts: the order of the checks, the batch that sees itself, and promises that are kept."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.model.draft import AppendCommand, Conditions, Draft, Payload
from durastreamd.model.producers import STREAM_SUMS_MAX, SUM_CHARACTERS, SUMS_MAX, SumRun
from durastreamd.model.records import Append, Create, Producer
from durastreamd.model.stream_state import Detail, Stream, apply, check_invariants
from durastreamd.protocol.offsets import DIGITS, POSITION_MAX, Position, mint
from durastreamd.protocol.outcomes import (
    AlreadyClosed,
    Appended,
    ContentTypeMismatch,
    Duplicate,
    EpochNotAtZero,
    Malformed,
    OffsetConflict,
    OtherLife,
    Outcome,
    RepeatDiffers,
    SeqRegression,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamFull,
    TooManyProducers,
)

NOW = 1_000_000
TEXT = "text/plain"
BROKEN = Malformed("INVALID_JSON", "not JSON")


def stream(kind: str = TEXT) -> Stream:
    made = Stream(Create(1, 0, 0, NOW, 0, 0, [], "/s", kind))
    made.lsn = 1
    return made


def body(data: bytes = b"x", **options: object) -> AppendCommand:
    """Return an append that is right in everything that is not said otherwise."""
    return AppendCommand(Payload(data), **{"content_type": TEXT, **options})  # type: ignore[arg-type]


def close(producer: Producer | None = None, seq: str | None = None) -> AppendCommand:
    return AppendCommand(None, None, closes=True, producer=producer, seq=seq)


def commit(target: Stream, draft: Draft, now_ms: int = NOW) -> tuple[Append, bytes | memoryview]:
    record, payload = draft.record(now_ms)
    apply(target, record, target.lsn + 1)
    check_invariants(target)
    return record, payload


def after(*commands: AppendCommand, kind: str = TEXT) -> Stream:
    """Return a stream that took these commands, each in a batch of its own."""
    made = stream(kind)
    for command in commands:
        draft = Draft(made, 10)
        assert isinstance(draft.decide(command), Appended)
        commit(made, draft)
    return made


def answer(target: Stream, command: AppendCommand, producers_max: int = 10) -> Outcome:
    """Ask once; a refusal must leave nothing in the draft."""
    draft = Draft(target, producers_max)
    outcome = draft.decide(command)
    assert draft.empty is not isinstance(outcome, Appended)
    return outcome


# --- what is accepted ---


def test_append_answers_with_the_new_tail() -> None:
    assert answer(after(body(b"abc")), body(b"de")) == Appended(Position(5), closed=False)


def test_append_and_close_are_one_record() -> None:
    target = stream()
    draft = Draft(target, 10)
    assert draft.decide(body(b"end", closes=True)) == Appended(Position(3), closed=True)
    record, payload = commit(target, draft)
    assert (record.closes, record.size, payload) == (True, 3, b"end")
    assert (target.closed, target.tail) == (True, 3)


def test_close_alone_is_marked_empty_and_keeps_the_tail() -> None:
    target = after(body(b"abc"))
    assert answer(target, close()) == Appended(Position(3), closed=True, empty=True)


def test_close_alone_needs_no_content_type() -> None:
    assert isinstance(answer(stream("application/json"), close()), Appended)


def test_content_type_is_compared_without_case_and_parameters() -> None:
    assert isinstance(answer(stream(), body(content_type="TEXT/Plain; charset=x")), Appended)


def test_accepted_producer_is_echoed() -> None:
    command = body(producer=("p", 3, 0))
    assert answer(stream(), command) == Appended(Position(1), closed=False, epoch=3, seq=0)


def test_the_last_offset_is_the_end_of_a_stream_for_good() -> None:
    full = stream()
    full.tail = POSITION_MAX - 3
    for size in (4, 100):
        assert answer(full, body(b"x" * size)) == StreamFull(Position(POSITION_MAX - 3))
    draft = Draft(full, 10)
    assert draft.decide(body(b"xx")) == Appended(Position(POSITION_MAX - 1), closed=False)
    assert draft.decide(body(b"xx")) == StreamFull(Position(POSITION_MAX - 1))
    assert draft.decide(body(b"x")) == Appended(Position(POSITION_MAX), closed=False)
    assert draft.decide(body(b"x")) == StreamFull(Position(POSITION_MAX))
    assert draft.decide(close()) == Appended(Position(POSITION_MAX), closed=True, empty=True)
    assert len(mint(POSITION_MAX)) == DIGITS


# --- conditions ---


def only_at(expected: int | None, *, life: int | None = None) -> Conditions:
    return Conditions(life, expected)


def test_an_append_that_expects_the_tail_is_taken_there_and_nowhere_else() -> None:
    target = after(body(b"abc"))
    assert answer(target, body(b"d", conditions=only_at(3))) == Appended(Position(4), closed=False)
    for wrong in (0, 2, 4):
        refused = answer(target, body(b"d", conditions=only_at(wrong)))
        assert refused == OffsetConflict(wrong, Position(3))
    refused = answer(target, AppendCommand(None, closes=True, conditions=only_at(2)))
    assert refused == OffsetConflict(2, Position(3))


def test_the_expected_tail_is_that_of_the_batch_in_the_making() -> None:
    draft = Draft(after(body(b"abc")), 10)
    assert draft.decide(body(b"d", conditions=only_at(3))) == Appended(Position(4), closed=False)
    assert draft.decide(body(b"d", conditions=only_at(3))) == OffsetConflict(3, Position(4))
    assert draft.decide(body(b"e", conditions=only_at(4))) == Appended(Position(5), closed=False)


def test_what_is_expected_is_judged_after_the_producer_and_before_stream_seq_and_body() -> None:
    wrong = only_at(99)
    for producer, seq in (("p", 1, 4), "a"), (("p", 0, 0), "z"), (("p", 1, 9), "z"):
        plain = body(producer=producer, seq=seq)
        bound = body(producer=producer, seq=seq, conditions=wrong)
        assert answer(busy(), bound) == answer(busy(), plain)
    late = AppendCommand(BROKEN, TEXT, producer=("p", 1, 5), seq="a", conditions=wrong)
    assert answer(busy(), late) == OffsetConflict(99, Position(6))
    closed = after(body(b"abc"), close())
    assert answer(closed, body(conditions=wrong)) == StreamClosed(Position(3))
    assert answer(busy(), body(content_type="image/png", conditions=wrong)) == ContentTypeMismatch(
        TEXT, "image/png"
    )


@pytest.mark.parametrize("life", [2, -1])
def test_another_life_of_the_name_takes_nothing_and_knows_no_repeat(life: int) -> None:
    meant = only_at(None, life=life)
    for command in (
        body(conditions=meant),
        body(producer=("p", 1, 4), conditions=meant),
        body(content_type="image/png", conditions=meant),
        AppendCommand(None, closes=True, conditions=meant),
    ):
        assert answer(busy(), command) == OtherLife()
    assert answer(after(close()), body(conditions=meant)) == OtherLife()
    assert isinstance(answer(busy(), body(conditions=only_at(6, life=1))), Appended)


# --- strict producers ---


def strict(data: bytes, seq: int, *, epoch: int = 0, **options: object) -> AppendCommand:
    conditions = Conditions(sum=f"{data.hex():0>16}")
    return body(data, producer=("p", epoch, seq), conditions=conditions, **options)


def told(target: Stream, command: AppendCommand) -> str:
    """Return what a repeat is called."""
    outcome = answer(target, command)
    if isinstance(outcome, RepeatDiffers):
        return "unknown" if outcome.unknown else "differs"
    assert isinstance(outcome, Duplicate), outcome
    return "same" if outcome.strict else "repeat"


def test_a_strict_repeat_is_told_from_other_bytes_as_far_back_as_sums_are_kept() -> None:
    target = after(*(strict(b"%d" % seq, seq) for seq in range(5)))
    for seq in range(5):
        assert told(target, strict(b"%d" % seq, seq)) == "same"
        assert told(target, strict(b"x", seq)) == "differs"
        assert told(target, body(b"x", producer=("p", 0, seq))) == "repeat"


def test_what_was_not_appended_strictly_cannot_be_told_and_begins_no_run() -> None:
    moves = [strict(b"0", 0), body(b"1", producer=("p", 0, 1)), strict(b"2", 2)]
    one, two, three = after(*moves[:1]), after(*moves[:2]), after(*moves)
    assert told(one, strict(b"0", 0)) == "same"
    assert [told(two, strict(b"0", 0)), told(two, strict(b"1", 1))] == ["same", "unknown"]
    assert [told(three, strict(b"%d" % seq, seq)) for seq in range(3)] == [
        "unknown", "unknown", "same",
    ]  # fmt: skip


def test_a_strict_repeat_in_the_same_batch_is_told_and_so_is_one_after_the_end() -> None:
    draft = Draft(after(strict(b"0", 0)), 10)
    assert isinstance(draft.decide(strict(b"1", 1)), Appended)
    assert isinstance(draft.decide(strict(b"2", 2, closes=True)), Appended)
    for seq in range(3):
        same, other = draft.decide(strict(b"%d" % seq, seq)), draft.decide(strict(b"x", seq))
        assert isinstance(same, Duplicate)
        assert same.strict
        assert isinstance(other, RepeatDiffers)
    new = draft.decide(strict(b"3", 3))
    assert new == StreamClosed(Position(3))


def test_a_new_epoch_begins_a_run_and_a_broken_body_none() -> None:
    target = after(strict(b"0", 0), strict(b"9", 0, epoch=1))
    assert told(target, strict(b"9", 0, epoch=1)) == "same"
    assert told(target, strict(b"0", 0, epoch=1)) == "differs"
    broken = AppendCommand(BROKEN, TEXT, producer=("p", 1, 1), conditions=Conditions(sum=""))
    draft = Draft(target, 10)
    assert draft.decide(broken) == BROKEN
    assert draft.empty
    assert draft.record(NOW)[0].sums == ()


def test_sums_stay_with_the_state_of_a_stream_and_are_bounded() -> None:
    target = stream()
    for number in range(STREAM_SUMS_MAX // SUMS_MAX + 1):
        run = SumRun(0, SUMS_MAX - 1, "0" * SUM_CHARACTERS * SUMS_MAX)
        target.loaded().remember(f"p{number}", run)
    target.loaded().remember("p1", SumRun(0, SUMS_MAX, "1" * SUM_CHARACTERS))
    kept = Detail.from_row(target.loaded().row())
    assert kept.sums == target.loaded().sums
    assert "p0" not in kept.sums, "the one that appended longest ago is forgotten"
    assert kept.sums["p1"].appends == SUMS_MAX
    assert kept.sums["p1"].of(0, 0) is None
    assert kept.sums["p1"].of(0, 1) == "0" * SUM_CHARACTERS
    assert kept.sums["p1"].of(0, SUMS_MAX) == "1" * SUM_CHARACTERS
    assert len(Detail().row()) == 2, "a stream without sums is written as ever"


# --- the order of the checks ---

KNOWN: Producer = ("p", 1, 4)


def busy() -> Stream:
    """Return an open stream that knows producer p at epoch 1, seq 4, and Stream-Seq "m"."""
    moves = [body(producer=("p", 1, seq)) for seq in range(5)]
    return after(*moves, body(seq="m"))


@pytest.mark.parametrize(
    ("producer", "expected"),
    [
        (("p", 1, 4), Duplicate(Position(6), closed=False, epoch=1, seq=4)),
        (("p", 1, 0), Duplicate(Position(6), closed=False, epoch=1, seq=4)),
        (("p", 0, 9), StaleEpoch(1)),
        (("p", 2, 1), EpochNotAtZero(2, 1)),
        (("p", 1, 7), SequenceGap(5, 7)),
        (("new", 0, 2), SequenceGap(0, 2)),
    ],
)
@pytest.mark.parametrize("seq", ["z", "m", "a", None])
@pytest.mark.parametrize("payload", [Payload(b"x"), BROKEN])
def test_producer_is_judged_before_stream_seq_and_before_the_body(
    producer: Producer, expected: Outcome, seq: str | None, payload: Payload | Malformed
) -> None:
    command = AppendCommand(payload, TEXT, producer=producer, seq=seq)
    assert answer(busy(), command) == expected


@pytest.mark.parametrize("producer", [("p", 1, 4), ("p", 0, 0), ("p", 1, 9), None])
def test_content_type_is_judged_before_the_producer(producer: Producer | None) -> None:
    command = body(content_type="image/png", producer=producer, seq="a")
    assert answer(busy(), command) == ContentTypeMismatch(TEXT, "image/png")


def test_missing_content_type_does_not_match() -> None:
    assert answer(stream(), body(content_type=None)) == ContentTypeMismatch(TEXT, "")


@pytest.mark.parametrize("given", ["m", "a", "M", "", "lzzz"])
def test_stream_seq_must_grow_bytewise(given: str) -> None:
    assert answer(busy(), body(seq=given)) == SeqRegression("m", given, Position(6))


@pytest.mark.parametrize("given", ["ma", "n", "m0", "z"])
def test_stream_seq_that_grows_is_taken(given: str) -> None:
    assert isinstance(answer(busy(), body(seq=given)), Appended)


def test_any_first_stream_seq_is_taken() -> None:
    assert isinstance(answer(stream(), body(seq="")), Appended)


def test_stream_seq_is_judged_before_the_body() -> None:
    command = AppendCommand(BROKEN, TEXT, seq="a")
    assert answer(busy(), command) == SeqRegression("m", "a", Position(6))


def test_body_that_is_not_json_changes_nothing() -> None:
    target = after(body(b"1,\n", content_type="application/json"), kind="application/json")
    draft = Draft(target, 10)
    broken = AppendCommand(BROKEN, "application/json", closes=True, producer=("p", 0, 0), seq="9")
    assert draft.decide(broken) == BROKEN
    assert draft.empty
    good = AppendCommand(Payload(b"2,\n"), "application/json", producer=("p", 0, 0), seq="9")
    assert draft.decide(good) == Appended(Position(6), closed=False, epoch=0, seq=0)


# --- closed streams ---


@pytest.mark.parametrize(
    "last", [close(("p", 1, 1)), body(b"z", closes=True, producer=("p", 1, 1))]
)
def test_retry_of_the_closing_request_is_a_duplicate(last: AppendCommand) -> None:
    target = after(body(producer=("p", 1, 0)), last)
    tail = Position(target.tail)
    expected = Duplicate(tail, closed=True, epoch=1, seq=1)
    assert answer(target, close(("p", 1, 1))) == expected
    assert answer(target, body(b"other", producer=("p", 1, 1))) == expected


@pytest.mark.parametrize("producer", [("p", 1, 2), ("p", 2, 0), ("p", 0, 0), ("q", 0, 0)])
@pytest.mark.parametrize("has_body", [True, False])
def test_any_other_producer_tuple_meets_a_closed_stream(
    producer: Producer,
    has_body: bool,  # noqa: FBT001  # pytest calls by name
) -> None:
    target = after(body(producer=("p", 1, 0)), close(("p", 1, 1)))
    command = body(producer=producer) if has_body else close(producer)
    assert answer(target, command) == StreamClosed(Position(1))


def test_closing_twice_is_already_closed() -> None:
    assert answer(after(body(), close()), close()) == AlreadyClosed(Position(1))


@pytest.mark.parametrize(
    "command", [body(), body(closes=True), body(content_type="image/png"), body(seq="")]
)
def test_closed_is_reported_before_anything_else_is_looked_at(command: AppendCommand) -> None:
    assert answer(after(body(seq="m"), close()), command) == StreamClosed(Position(1))


def test_broken_body_meets_a_closed_stream_as_closed() -> None:
    assert answer(after(close()), AppendCommand(BROKEN, TEXT)) == StreamClosed(Position(0))


# --- batches ---


def test_second_append_of_a_batch_sees_the_first() -> None:
    draft = Draft(stream(), 10)
    assert draft.decide(body(b"ab", producer=("p", 0, 0), seq="1")) == Appended(
        Position(2), closed=False, epoch=0, seq=0
    )
    retry = draft.decide(body(b"ab", producer=("p", 0, 0), seq="1"))
    assert retry == Duplicate(Position(2), closed=False, epoch=0, seq=0)
    assert draft.decide(body(b"c", seq="1")) == SeqRegression("1", "1", Position(2))
    assert draft.decide(body(b"c", producer=("p", 0, 2))) == SequenceGap(1, 2)
    assert draft.decide(body(b"c", producer=("p", 0, 1))) == Appended(
        Position(3), closed=False, epoch=0, seq=1
    )
    assert draft.decide(body(b"d", closes=True)) == Appended(Position(4), closed=True)
    assert draft.decide(body(b"e")) == StreamClosed(Position(4))
    assert draft.decide(close()) == AlreadyClosed(Position(4))
    again = draft.decide(body(b"c", producer=("p", 0, 1)))
    assert again == Duplicate(Position(4), closed=True, epoch=0, seq=1)


def test_new_session_in_a_batch_fences_the_old_one() -> None:
    draft = Draft(busy(), 10)
    assert isinstance(draft.decide(body(producer=("p", 2, 0))), Appended)
    assert draft.decide(body(producer=("p", 1, 5))) == StaleEpoch(2)


def test_draft_changes_nothing_until_it_is_applied() -> None:
    target = busy()
    before = (target.row(), target.loaded().row())
    draft = Draft(target, 10)
    draft.decide(body(b"more", producer=("p", 1, 5), seq="z", closes=True))
    draft.record(NOW)
    assert (target.row(), target.loaded().row()) == before


def test_time_of_a_record_never_goes_back() -> None:
    target = stream()
    for now_ms, expected in ((NOW + 50, NOW + 50), (NOW - 99, NOW + 50), (NOW + 51, NOW + 51)):
        draft = Draft(target, 10)
        draft.decide(body())
        record, _ = commit(target, draft, now_ms)
        assert record.time_ms == target.written_ms == expected


# --- the producers' table ---


def test_table_of_producers_is_bounded() -> None:
    target = after(*(body(producer=(name, 0, 0)) for name in "abc"))
    assert answer(target, body(producer=("d", 0, 0)), 3) == TooManyProducers(3)
    assert isinstance(answer(target, body(producer=("d", 0, 0)), 4), Appended)


def test_full_table_still_takes_the_producers_it_knows() -> None:
    target = after(*(body(producer=(name, 0, 0)) for name in "abc"))
    assert isinstance(answer(target, body(producer=("a", 0, 1)), 3), Appended)
    assert isinstance(answer(target, body(producer=("a", 1, 0)), 3), Appended)


def test_one_batch_cannot_pass_the_bound() -> None:
    draft = Draft(stream(), 2)
    answers = [draft.decide(body(producer=(name, 0, 0))) for name in "abc"]
    assert answers[2] == TooManyProducers(2)
    assert all(isinstance(got, Appended) for got in answers[:2])


# --- promises ---

COMMANDS = st.builds(
    AppendCommand,
    st.none() | st.binary(min_size=1, max_size=5).map(Payload) | st.just(BROKEN),
    st.sampled_from([TEXT, TEXT, TEXT, "image/png"]),
    closes=st.sampled_from([False] * 6 + [True]),
    producer=st.none()
    | st.tuples(st.sampled_from("pq"), st.sampled_from([0, 1]), st.sampled_from(range(4))),
    seq=st.none() | st.sampled_from(["1", "2", "3"]),
).filter(lambda command: command.payload is not None or command.closes)


@given(st.lists(st.lists(COMMANDS, max_size=6), max_size=5))
def test_one_batch_leaves_what_the_same_appends_one_by_one_leave(
    batches: list[list[AppendCommand]],
) -> None:
    together, apart = stream(), stream()
    written = b""
    for batch in batches:
        draft = Draft(together, 100)
        outcomes = [draft.decide(command) for command in batch]
        if not draft.empty:
            record, payload = commit(together, draft)
            written += payload
            assert record.size == len(payload) == sum(record.lengths or [])
        for command, outcome in zip(batch, outcomes, strict=True):
            single = Draft(apart, 100)
            assert single.decide(command) == outcome
            if not single.empty:
                commit(apart, single)
    state = [(s.tail, s.messages, s.closed, s.plain, s.loaded().row()) for s in (together, apart)]
    assert state[0] == state[1]
    assert len(written) == together.tail


@given(st.lists(COMMANDS, min_size=1, max_size=8))
def test_last_acceptance_promised_what_the_stream_became(commands: list[AppendCommand]) -> None:
    target = stream()
    draft = Draft(target, 100)
    outcomes = [draft.decide(command) for command in commands]
    accepted = [got for got in outcomes if isinstance(got, Appended)]
    assert draft.empty is not bool(accepted)
    if accepted:
        record, _ = commit(target, draft)
        assert target.tail == accepted[-1].tail
        assert target.closed == accepted[-1].closed == record.closes
        assert target.messages == sum(not got.empty for got in accepted)


def test_json_record_keeps_the_count_and_no_lengths() -> None:
    target = stream("application/json")
    draft = Draft(target, 10)
    draft.decide(AppendCommand(Payload(b"1,\n2,\n", 2), "application/json"))
    draft.decide(AppendCommand(Payload(b"3,\n", 1), "application/json"))
    record, payload = commit(target, draft)
    assert (record.lengths, record.count, payload) == (None, 3, b"1,\n2,\n3,\n")
    assert target.messages == 3
