"""What went wrong, in the words of the protocol: one place from an exception to a problem."""

import errno
import logging

from durastreamd.errors import (
    CorruptDataError,
    DurastreamError,
    OutcomeUnknownError,
    OverloadedError,
    StreamDamagedError,
    StreamStoppedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.http.exchange import Request
from durastreamd.http.seldom import Seldom
from durastreamd.protocol import problems
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.answers import NOT_CACHED, RETRY_S, Answer, Fields
from durastreamd.storage.disk import EXHAUSTED

logger = logging.getLogger(__name__)

# What is turned into an answer; anything else is a fault of the server's own.
Failure = ProblemError | DurastreamError | OSError
FAILURES = (ProblemError, DurastreamError, OSError)

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))

# Every request may meet these while they last.
_exhausted = Seldom(logger, logging.WARNING)
_full = Seldom(logger, logging.ERROR)
_failed = Seldom(logger, logging.ERROR)


def problem_of(exc: Failure, request: Request) -> ProblemError:
    """Return what went wrong in the words of the protocol; the log has the rest, with paths."""
    if isinstance(exc, ProblemError):
        return exc
    if isinstance(exc, OutcomeUnknownError):
        return _unknown(request)
    if isinstance(exc, StreamStoppedError | SyncFailedError):
        return _later(
            problems.UNAVAILABLE,
            "The server is going down; nothing was stored. Come back in a moment.",
        )
    if isinstance(exc, StreamDamagedError | CorruptDataError):
        # Told once, when it was found; any client may ask for a damaged stream again and again.
        detail = "The stream's data on disk is damaged; its operator has to repair it."
        return ProblemError(problems.STREAM_DAMAGED, detail)
    refused = _refused_by_system(exc)
    if refused is not None or isinstance(exc, WriteFailedError):
        return _system_problem(exc, refused)
    if isinstance(exc, OverloadedError):
        return _later(problems.UNAVAILABLE, f"{_sentence(exc)} Come back in a moment.")
    logger.error("%s: %s", type(exc).__name__, exc)
    return ProblemError(problems.INTERNAL_ERROR, "The server failed; its log has the reason.")


def _refused_by_system(exc: BaseException | None) -> OSError | None:
    """Return what the system said that this failure came of; None if it was not asked."""
    while exc is not None and not isinstance(exc, OSError):
        exc = exc.__cause__
    return exc


def _system_problem(exc: Failure, refused: OSError | None) -> ProblemError:
    """Tell want of descriptors, want of room and a failing disk apart. Nothing was stored."""
    number = refused.errno if refused is not None else None
    if number in EXHAUSTED:
        assert refused is not None
        _exhausted.say("the process is short of what the system lends: %s", refused.strerror)
        return _later(
            problems.UNAVAILABLE,
            "The server is out of descriptors or memory; nothing was stored. Wait a moment.",
        )
    if number in _FULL:
        _full.say("the disk is full: %s", exc)
        return _later(
            problems.INSUFFICIENT_STORAGE,
            "The disk has no room for it; nothing was stored. Try again later.",
        )
    _failed.say("the disk failed: %s", exc)
    return _later(
        problems.DISK_FAILED,
        "The disk under the server failed; nothing was stored. Repeat the request; if it goes on, "
        "tell the operator, whose log has the reason.",
    )


def _unknown(request: Request) -> ProblemError:
    """Say that a change may have been stored, so that no client stores it a second time.

    Clients of the field repeat every 5xx by themselves, and a broken connection, too; no 4xx but
    429. What takes effect once however often it is sent they may repeat. A bare append they may
    not: it is answered with a conflict, which its sender has to look at.
    """
    headers = request.headers
    told_apart = b"producer-id" in headers or b"stream-seq" in headers
    if request.method == "POST" and request.has_body and not told_apart:
        detail = (
            "The server failed while it stored this append; it may be there or not. Read the "
            "stream from the last offset you know before you send it again."
        )
        return ProblemError(problems.OUTCOME_UNKNOWN, detail)
    detail = (
        "The server failed while it stored this; it may be there or not. Repeat the request as it "
        "is: it takes effect once."
    )
    return _later(problems.OUTCOME_UNKNOWN_REPEAT, detail)


def rendered(exc: ProblemError, path: str) -> Answer:
    """Return a problem as an answer to a request for this path."""
    body = problems.render(exc.problem, exc.detail, path, **exc.members)
    fields: Fields = [(b"Content-Type", problems.CONTENT_TYPE), NOT_CACHED, *exc.headers]
    return Answer(exc.problem.status, fields, body)


def _sentence(exc: Exception) -> str:
    text = str(exc)
    return text[:1].upper() + text[1:] + "."


def _later(problem: problems.Problem, detail: str) -> ProblemError:
    fields = ((b"Retry-After", b"%d" % RETRY_S),)
    return ProblemError(problem, detail, fields, retryAfter=RETRY_S)
