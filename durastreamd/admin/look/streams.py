"""What several commands say of a stream, or are told about one."""

from durastreamd.kit import show
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import USAGE
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened
from durastreamd.protocol import offsets
from durastreamd.protocol.offsets import mint


def state_of(stream: Stream, now_ms: int) -> str:
    """Return the one word for how a stream is; what asks for attention comes first."""
    if stream.damage:
        return "damaged"
    if stream.gone:
        return "gone"
    if stream.expired(now_ms):
        return "expired"
    return "closed" if stream.closed else "open"


def members(stream: Stream, found: Opened) -> dict[str, object]:
    """Return a stream as JSON has it."""
    deadline = stream.deadline_ms()
    return {
        "name": stream.key,
        "id": f"{stream.id:016x}",
        "state": state_of(stream, found.now_ms),
        "content_type": stream.content_type,
        "bytes": stream.tail - stream.floor,
        "messages": stream.messages,
        "first_offset": mint(stream.floor),
        "next_offset": mint(stream.tail),
        "closed": stream.closed,
        "created": show.moment(stream.created_ms),
        "written": show.moment(stream.written_ms),
        "expires": show.moment(deadline) if deadline is not None else None,
    }


def before_floor(stream: Stream) -> str:
    """Say what became of what lies before the first offset of a stream."""
    low = stream.lost_from()
    if low is None and not stream.whole:
        return "what came before is not kept (retention)"
    if low is None:
        return "what came before is in the snapshot (--snapshot)"
    lost = f"{mint(low)} to {mint(stream.floor)} was lost and repaired without"
    return lost if stream.snapshot is None else f"{lost}, what came before is in the snapshot"


def position_of(token: str, stream: Stream) -> int:
    """Return the position of an offset: a token, ``-1``, ``now``, or a number of bytes."""
    if token == offsets.NOW:
        return stream.tail
    if token == offsets.START:
        return 0
    if token.isascii() and token.isdigit() and len(token) <= offsets.DIGITS:
        return int(token)
    position = offsets.parse(token)
    if position is None:
        text = f"{token} is not an offset: sixteen digits, -1 for the start, or now for the end"
        raise CommandError(USAGE, text)
    return position
