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

# Every request may meet it while it lasts.
_exhausted = Seldom(logger, logging.WARNING)


def problem_of(exc: Failure, request: Request) -> ProblemError:
    """Return what went wrong in the words of the protocol."""
    if isinstance(exc, ProblemError):
        return exc
    short_of = _short_of(exc)
    if short_of is not None:
        _exhausted.say("the process is short of what the system lends: %s", short_of)
        return _busy(
            "The server is out of descriptors or memory; nothing was stored. Wait a moment."
        )
    if isinstance(exc, OverloadedError):
        return _busy(f"{_sentence(exc)} Come back in a moment.")
    if isinstance(exc, StreamStoppedError | SyncFailedError):
        return _busy("The server is going down; nothing was stored. Come back in a moment.")
    if isinstance(exc, OutcomeUnknownError):
        return _unknown(request)
    return _storage_problem(exc)


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
    later = ((b"Retry-After", b"%d" % RETRY_S),)
    return ProblemError(problems.OUTCOME_UNKNOWN_REPEAT, detail, later, retryAfter=RETRY_S)


def rendered(exc: ProblemError, path: str) -> Answer:
    """Return a problem as an answer to a request for this path."""
    body = problems.render(exc.problem, exc.detail, path, **exc.members)
    fields: Fields = [(b"Content-Type", problems.CONTENT_TYPE), NOT_CACHED, *exc.headers]
    return Answer(exc.problem.status, fields, body)


def _sentence(exc: Exception) -> str:
    text = str(exc)
    return text[:1].upper() + text[1:] + "."


def _busy(detail: str) -> ProblemError:
    fields = ((b"Retry-After", b"%d" % RETRY_S),)
    return ProblemError(problems.UNAVAILABLE, detail, fields, retryAfter=RETRY_S)


def _short_of(exc: Failure) -> str | None:
    """Return what the system would not lend, descriptors or memory; None if that is not it."""
    for each in (exc, exc.__cause__):
        if isinstance(each, OSError) and each.errno in EXHAUSTED:
            return each.strerror or errno.errorcode[each.errno]
    return None


def _storage_problem(exc: DurastreamError | OSError) -> ProblemError:
    """Say what the client needs to know; the log has the rest, with paths."""
    if isinstance(exc, StreamDamagedError | CorruptDataError):
        # Told once, when it was found; any client may ask for a damaged stream again and again.
        detail = "The stream's data on disk is damaged; its operator has to repair it."
        return ProblemError(problems.STREAM_DAMAGED, detail)
    logger.error("%s: %s", type(exc).__name__, exc)
    if isinstance(exc, WriteFailedError):
        detail = "The disk did not take the data; nothing was stored. Try again later."
        fields = ((b"Retry-After", b"%d" % RETRY_S),)
        return ProblemError(problems.INSUFFICIENT_STORAGE, detail, fields, retryAfter=RETRY_S)
    return ProblemError(
        problems.INTERNAL_ERROR, "The disk failed; the server's log has the reason."
    )
