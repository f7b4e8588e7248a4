"""What an append is: the one place that knows its type, its size, its encoding and its JSON.

Whoever has a request asks ``append_head`` before its body is read, and makes the command of both
when it is. Neither waits; a caller for whom judging the body takes too long does it in a thread.
"""

from durastreamd.http.exchange import Request
from durastreamd.model.draft import AppendCommand, Payload
from durastreamd.model.producers import SUM_CHARACTERS
from durastreamd.protocol import Data, content_type as ct, json_mode, problems, requests
from durastreamd.protocol.outcomes import Malformed
from durastreamd.protocol.requests import SELDOM, AppendHead, ProblemError
from durastreamd.service.limits import WriteLimits
from durastreamd.storage.checksum import digest, seed

_EMPTY_ARRAY = Malformed("EMPTY_ARRAY", "An empty array appends nothing; send at least one value.")


def append_head(request: Request) -> AppendHead:
    """Return what the head of a POST says, or raise the problem."""
    fields = request.headers
    head = fields.append
    if head is None:
        head = requests.append_head(fields)
        if not SELDOM.isdisjoint(fields):
            refuse_encoding(request)
            head = head._replace(conditions=requests.conditions_of(fields))
        fields.append = head
    return head


def append_command(head: AppendHead, body: Data, limits: WriteLimits) -> AppendCommand:
    """Return the command of a POST, or raise the problem.

    A body that is not JSON where it should be is a part of the command: whether it matters, the
    stream has to say.
    """
    payload: Payload | Malformed | None = None
    if body:
        if len(body) > limits.append_bytes_max:
            detail = f"The request body is larger than {limits.append_bytes_max} bytes."
            raise ProblemError(problems.PAYLOAD_TOO_LARGE, detail)
        if head.content_type is None:
            detail = "A body needs a Content-Type: that of the stream."
            raise ProblemError(problems.MISSING_CONTENT_TYPE, detail)
        payload = payload_of(head.content_type, body, limits) or _EMPTY_ARRAY
    elif not head.closes:
        detail = "The body is empty; an append needs data, a closure needs Stream-Closed: true."
        raise ProblemError(problems.EMPTY_BODY, detail)
    return AppendCommand(payload, head.content_type, head.closes, head.producer, head.seq)


def payload_of(content_type: str, body: Data, limits: WriteLimits) -> Payload | Malformed | None:
    """Return a body in wire form, None for an empty array."""
    if not ct.is_json(content_type):
        return Payload(body)
    messages_max = limits.append_messages_max
    try:
        wire, count = json_mode.split(body, messages_max)
    except json_mode.TooManyMessagesError as exc:
        detail = f"The body holds more than {messages_max} messages; send them in several."
        raise ProblemError(problems.PAYLOAD_TOO_LARGE, detail) from exc
    except json_mode.InvalidJsonError as exc:
        reason = str(exc)
        return Malformed("INVALID_JSON", reason[0].upper() + reason[1:] + ".")
    return Payload(wire, count) if count else None


def repeat_sum(command: AppendCommand) -> str:
    """Return what tells an append from another one under its number: its bytes, and if it closes.

    A body that is not JSON where it should be is like none that was stored.
    """
    payload = command.payload
    if isinstance(payload, Malformed):
        return ""
    data = payload.data if payload is not None else b""
    return f"{digest(data, seed('repeat', command.closes)):0{SUM_CHARACTERS}x}"


def refuse_encoding(request: Request) -> None:
    """Raise the problem of a body that would have to be decoded first."""
    encoding = request.headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        detail = "Bodies are stored as sent; send them without Content-Encoding."
        raise ProblemError(problems.UNSUPPORTED_ENCODING, detail)
