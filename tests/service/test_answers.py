"""Every outcome is an answer: a success of some operation, or a problem of the table."""

import inspect
from types import ModuleType
from typing import get_args

from durastreamd.protocol import outcomes as oc
from durastreamd.protocol.offsets import Position
from durastreamd.protocol.outcomes import Outcome
from durastreamd.service import buckets, snapshots
from durastreamd.service.answers import answer_append, answer_create, answer_delete, refusal_of

SUCCESSES = {
    oc.Created,
    oc.Exists,
    oc.Appended,
    oc.Duplicate,
    oc.AlreadyClosed,
    oc.Deleted,
    oc.Touched,
    oc.SnapshotPublished,
    oc.Retained,
    oc.BucketCreated,
    oc.BucketDeleted,
}
# Only one request of the extension can meet each of these, and it answers by itself.
BY_ITSELF: list[tuple[Outcome, ModuleType]] = [
    (oc.SnapshotTooOld(Position(7)), snapshots),
    (oc.SnapshotPastTail(Position(7)), snapshots),
    (oc.BucketExists(), buckets),
    (oc.BucketNotEmpty(1), buckets),
]
EXAMPLES: list[Outcome] = [
    oc.ConfigConflict("it differs"),
    oc.StreamClosed(Position(7)),
    oc.StaleEpoch(3),
    oc.EpochNotAtZero(4, 2),
    oc.SequenceGap(1, 5),
    oc.SeqRegression("b", "a", Position(7)),
    oc.OffsetConflict(3, Position(7)),
    oc.OtherLife(),
    oc.StreamFull(Position(7)),
    oc.RepeatDiffers(Position(7), 1, 4, 2, unknown=False),
    oc.ContentTypeMismatch("text/plain", "text/html"),
    oc.TooManyProducers(10),
    oc.Malformed("INVALID_JSON", "Not JSON."),
    oc.NotFound(),
    oc.Gone(),
    oc.ForkRefused("GONE", "the source was deleted"),
    oc.BucketMissing(),
]


def test_every_outcome_is_a_success_or_a_problem() -> None:
    refused = {type(example) for example in EXAMPLES}
    assert refused | SUCCESSES | {type(outcome) for outcome, _ in BY_ITSELF} == set(
        get_args(Outcome)
    )


def test_what_is_answered_elsewhere_is_answered_there() -> None:
    for outcome, module in BY_ITSELF:
        assert refusal_of(outcome) is None
        tested = f"isinstance(outcome, oc.{type(outcome).__name__})"
        assert tested in inspect.getsource(module), "tests/extension shows the answer"


def test_every_refusal_has_a_problem_that_says_what_was_wrong() -> None:
    for example in EXAMPLES:
        refusal = refusal_of(example)
        assert refusal is not None, example
        assert refusal.problem.status >= 400
        assert refusal.detail.endswith(".")


def test_successes_have_the_statuses_of_the_protocol() -> None:
    tail = Position(7)
    assert answer_append(oc.Appended(tail, closed=False)).status == 204
    assert answer_append(oc.Appended(tail, closed=False, epoch=0, seq=0)).status == 200
    assert answer_append(oc.Appended(tail, closed=True, epoch=0, seq=0, empty=True)).status == 204
    assert answer_append(oc.Duplicate(tail, closed=False, epoch=0, seq=3)).status == 204
    assert answer_append(oc.AlreadyClosed(tail)).status == 204
    assert answer_create(oc.Created("text/plain", tail, closed=False), "http://x/y").status == 201
    assert answer_create(oc.Exists("text/plain", tail, closed=False), "http://x/y").status == 200
    assert answer_delete(oc.Deleted()).status == 204
