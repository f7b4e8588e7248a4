"""Outcomes as HTTP answers: one table of refusals.

Only what a single request of the extension can meet is answered beside that request, in
``snapshots`` and ``buckets``.
"""

from functools import lru_cache
from typing import NamedTuple

from durastreamd.protocol import outcomes as oc, problems
from durastreamd.protocol.names import ELSEWHERE
from durastreamd.protocol.offsets import POSITION_MAX, mint, mint_bytes
from durastreamd.protocol.outcomes import Outcome
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import ProblemError

Fields = list[tuple[bytes, bytes]]

CLOSED = (b"Stream-Closed", b"true")
STRICT = (b"Producer-Strict", b"true")
NOT_CACHED = (b"Cache-Control", b"no-store")
RETRY_S = 1


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Fields
    body: bytes = b""


# What a browser shows or plays and never runs. Anything else that somebody stored may hold scripts,
# now or in a browser to come, and would run them as if the server had written them.
_PASSIVE = frozenset(
    (
        "application/json",
        "application/octet-stream",
        "application/x-ndjson",
        "text/csv",
        "text/event-stream",
        "text/markdown",
        "text/plain",
    )
)
_PASSIVE_KINDS = ("audio/", "font/", "image/", "video/")
HARMLESS = (b"Content-Security-Policy", b"sandbox; default-src 'none'")


@lru_cache(maxsize=256)
def typed(kind: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that say what a client's own bytes are, and that they are not to run."""
    field = (b"Content-Type", kind)
    media = kind.decode("latin-1").partition(";")[0].strip().lower()
    shown = media.startswith(_PASSIVE_KINDS) and not media.endswith("xml")
    return (field,) if shown or media in _PASSIVE else (field, HARMLESS)


def next_offset(position: int) -> tuple[bytes, bytes]:
    """Return the header that says where to go on."""
    return (b"Stream-Next-Offset", mint_bytes(position))


def refusal_of(outcome: Outcome) -> ProblemError | None:
    """Return the problem an outcome is, None if it is a success."""
    made = _REFUSALS.get(type(outcome))
    return made(outcome) if made is not None else None  # type: ignore[operator]


def answer_append(outcome: Outcome) -> Answer:
    """Answer an append or a closure."""
    if isinstance(outcome, oc.Appended):
        fields = [next_offset(outcome.tail)]
        if outcome.closed:
            fields.append(CLOSED)
        if outcome.epoch < 0:
            return Answer(204, fields)
        fields += _producer_fields(outcome.epoch, outcome.seq)
        return Answer(204 if outcome.empty else 200, fields)
    if isinstance(outcome, oc.Duplicate):
        fields = [next_offset(outcome.tail), *_producer_fields(outcome.epoch, outcome.seq)]
        if outcome.strict:
            fields.append(STRICT)
        return Answer(204, [*fields, CLOSED] if outcome.closed else fields)
    if isinstance(outcome, oc.AlreadyClosed):
        return Answer(204, [next_offset(outcome.tail), CLOSED])
    raise _refused(outcome)


def answer_create(outcome: Outcome, location: str) -> Answer:
    """Answer a create."""
    if not isinstance(outcome, oc.Created | oc.Exists):
        raise _refused(outcome)
    fields = [(b"Content-Type", outcome.content_type.encode()), next_offset(outcome.tail)]
    if outcome.closed:
        fields.append(CLOSED)
    if isinstance(outcome, oc.Exists):
        return Answer(200, fields)
    return Answer(201, [(b"Location", location.encode("ascii", "replace")), *fields])


def answer_delete(outcome: Outcome) -> Answer:
    """Answer a delete."""
    if isinstance(outcome, oc.Deleted):
        return Answer(204, [])
    raise _refused(outcome)


def _refused(outcome: Outcome) -> ProblemError:
    refusal = refusal_of(outcome)
    assert refusal is not None, f"{outcome} is no answer to this"
    return refusal


def _producer_fields(epoch: int, seq: int) -> Fields:
    return [(b"Producer-Epoch", b"%d" % epoch), (b"Producer-Seq", b"%d" % seq)]


def _closed(outcome: oc.StreamClosed) -> ProblemError:
    detail = "The stream is closed and takes no more data; it can still be read."
    return ProblemError(problems.STREAM_CLOSED, detail, (next_offset(outcome.tail), CLOSED))


def _stale(outcome: oc.StaleEpoch) -> ProblemError:
    detail = (
        f"A producer of this name has epoch {outcome.current}; "
        f"use epoch {outcome.current + 1} and sequence number 0 to take over."
    )
    fields = ((b"Producer-Epoch", b"%d" % outcome.current),)
    return ProblemError(problems.STALE_EPOCH, detail, fields)


def _not_at_zero(outcome: oc.EpochNotAtZero) -> ProblemError:
    detail = f"A new epoch starts with Producer-Seq 0, not {outcome.seq}."
    return ProblemError(problems.INVALID_PRODUCER, detail)


def _gap(outcome: oc.SequenceGap) -> ProblemError:
    detail = f"Producer-Seq {outcome.expected} is expected next, not {outcome.received}."
    fields = (
        (b"Producer-Expected-Seq", b"%d" % outcome.expected),
        (b"Producer-Received-Seq", b"%d" % outcome.received),
    )
    return ProblemError(problems.SEQUENCE_GAP, detail, fields)


def _regression(outcome: oc.SeqRegression) -> ProblemError:
    given, last = quoted(outcome.given), quoted(outcome.last)
    detail = f"Stream-Seq {given} does not come after the last one, {last}."
    fields = (next_offset(outcome.tail),)
    return ProblemError(problems.SEQUENCE_CONFLICT, detail, fields, streamSeq=outcome.last)


def _elsewhere(outcome: oc.OffsetConflict) -> ProblemError:
    expected, tail = mint(outcome.expected), mint(outcome.tail)
    detail = f"The stream ends at {tail}, not at {expected}, as Stream-Expected-Offset says."
    return ProblemError(problems.OFFSET_CONFLICT, detail, (next_offset(outcome.tail),))


def _other_bytes(outcome: oc.RepeatDiffers) -> ProblemError:
    fields = (next_offset(outcome.tail), *_producer_fields(outcome.epoch, outcome.last))
    number = f"Producer-Seq {outcome.given} of epoch {outcome.epoch} was appended before"
    if outcome.unknown:
        detail = f"{number}; what it was is not known, and so not whether this is the same."
        return ProblemError(problems.REPEAT_UNKNOWN, detail, fields)
    detail = f"{number}, and it was something else; this was not stored."
    return ProblemError(problems.REPEAT_DIFFERS, detail, fields)


def _full(outcome: oc.StreamFull) -> ProblemError:
    detail = f"The stream ends at {mint(outcome.tail)}; past {POSITION_MAX} there are no offsets."
    return ProblemError(problems.STREAM_FULL, detail, (next_offset(outcome.tail),))


def other_life(*fields: tuple[bytes, bytes]) -> ProblemError:
    """Return the problem of a request that is for another life of a name."""
    detail = "The stream that was meant is not here any more; another one has its name now."
    return ProblemError(problems.PRECONDITION_FAILED, detail, fields)


def _other_life(_outcome: Outcome) -> ProblemError:
    return other_life()


def _mismatch(outcome: oc.ContentTypeMismatch) -> ProblemError:
    detail = f"The stream holds {quoted(outcome.expected)}, the body is {quoted(outcome.actual)}."
    return ProblemError(
        problems.CONTENT_TYPE_MISMATCH,
        detail,
        expectedContentType=outcome.expected,
        actualContentType=outcome.actual,
    )


def _crowded(outcome: oc.TooManyProducers) -> ProblemError:
    detail = f"The stream knows {outcome.limit} producers already; re-use a Producer-Id."
    later = ((b"Retry-After", b"60"),)
    return ProblemError(problems.TOO_MANY_PRODUCERS, detail, later, retryAfter=60)


def _fork(outcome: oc.ForkRefused) -> ProblemError:
    row = {
        "NOT_FOUND": problems.NOT_FOUND,
        "GONE": problems.FORK_CONFLICT,
        "MISMATCH": problems.CONTENT_TYPE_MISMATCH,
        "INVALID": problems.INVALID_FORK,
        "EXPIRED": problems.OFFSET_EXPIRED,
        "DAMAGED": problems.STREAM_DAMAGED,
        "TOO_DEEP": problems.FORK_TOO_DEEP,
    }[outcome.code]
    return ProblemError(row, outcome.detail[0].upper() + outcome.detail[1:] + ".")


def _missing(_outcome: Outcome) -> ProblemError:
    return ProblemError(problems.NOT_FOUND, "There is no stream of this name; create it with PUT.")


def _gone(_outcome: Outcome) -> ProblemError:
    detail = "The stream was deleted; its name is free again when its last fork is deleted."
    return ProblemError(problems.GONE, detail)


def _conflict(outcome: oc.ConfigConflict) -> ProblemError:
    detail = outcome.detail[0].upper() + outcome.detail[1:] + "."
    return ProblemError(problems.ALREADY_EXISTS, detail)


def _malformed(outcome: oc.Malformed) -> ProblemError:
    return ProblemError(problems.by_name(outcome.code), outcome.detail)


def _no_bucket(_outcome: Outcome) -> ProblemError:
    detail = f"There is no such bucket; create it with PUT. {ELSEWHERE}"
    return ProblemError(problems.BUCKET_NOT_FOUND, detail)


_REFUSALS: dict[type, object] = {
    oc.StreamClosed: _closed,
    oc.StaleEpoch: _stale,
    oc.EpochNotAtZero: _not_at_zero,
    oc.SequenceGap: _gap,
    oc.SeqRegression: _regression,
    oc.OffsetConflict: _elsewhere,
    oc.RepeatDiffers: _other_bytes,
    oc.OtherLife: _other_life,
    oc.StreamFull: _full,
    oc.ContentTypeMismatch: _mismatch,
    oc.TooManyProducers: _crowded,
    oc.ForkRefused: _fork,
    oc.NotFound: _missing,
    oc.Gone: _gone,
    oc.ConfigConflict: _conflict,
    oc.Malformed: _malformed,
    oc.BucketMissing: _no_bucket,
}
