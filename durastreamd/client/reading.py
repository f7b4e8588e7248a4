"""Reading a stream message by message: catch up, then follow, and go on from any message.

A server tells an offset for each page, not for each message. So the place after a message is kept
as what every server understands: an offset it told, and how many messages to skip from there
(``Bookmark``). Read again from the same offset, a stream gives the same messages in the same
order, however it cuts its pages.

``MessageReader`` knows what to ask next and what an answer means; it does no I/O.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from durastreamd.client.errors import AnswerError, ReplacedError
from durastreamd.client.messages import ACCEPT, Splitter, WholeSplitter, splitter
from durastreamd.protocol.content_type import is_json, media_type

_WRITTEN = re.compile(r"(?:(?P<skip>[0-9]{1,15})@)?(?P<offset>[^@\s]+)")

# So many answers in a row that bring nothing, each sooner than it could if somebody waited there,
# are bearable; from then on there is a pause before the next request.
HASTY_MAX, HASTE_S = 5, 0.2
PAUSE_S, PAUSE_S_MAX = 0.1, 5.0


class Bookmark(NamedTuple):
    """A place in a stream: so many messages after an offset."""

    offset: str
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.skip}@{self.offset}" if self.skip else self.offset

    @classmethod
    def of(cls, text: str) -> "Bookmark":
        """Return the place that a text stands for, an offset or what ``str`` made of a bookmark."""
        found = _WRITTEN.fullmatch(text)
        if found is None:
            message = f"{text!r} is no place in a stream; write an offset, -1 or now"
            raise ValueError(message)
        return cls(found["offset"], int(found["skip"] or 0))


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message, and the place right after it, from which to go on."""

    data: bytes
    after: Bookmark


class MessageReader:
    """What to ask for next, and which messages an answer brings.

    ``begin`` with the head of an answer, ``feed`` with its pieces, ``end`` with its end. Where one
    breaks off, ``url`` asks for the rest, and messages that came are skipped.
    """

    def __init__(
        self,
        stream_url: str,
        start: Bookmark,
        *,
        content_type: str = "",
        live: bool = False,
        end: str = "",
        incarnation: str = "",
    ) -> None:
        self.at = start
        self.ended = False
        self.closed = False  # the stream has no more to come, ever
        self.incarnation = incarnation
        self._stream_url = stream_url
        self.content_type = content_type
        self._live = live
        self._until = end
        self._caught_up = False
        self._cursor = ""
        self._skip = 0  # of the page under way, that came already
        self._next = ""  # where the page under way ends
        self._final = False
        self._asked = time.monotonic()
        self._hasty = 0
        self._held: list[bytes] = []
        self._form: Splitter = WholeSplitter()

    def url(self) -> str:
        """Return what to ask for."""
        query = {"offset": self.at.offset}
        if self._until:
            query["end"] = self._until
        # A live request only at the end: what is there already comes faster without.
        if self._live and self._caught_up:
            query["live"] = "long-poll"
            if self._cursor:
                query["cursor"] = self._cursor
        return f"{self._stream_url}?{urlencode(query)}"

    def headers(self) -> dict[str, str]:
        """Return the headers of the request."""
        return {"Accept": ACCEPT}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head of an answer."""
        self._next = headers.get("stream-next-offset", "")
        if not self._next:
            message = f"GET {self.url()}: the answer has no Stream-Next-Offset; is this a stream?"
            raise AnswerError(message)
        self._check_incarnation(headers.get("stream-incarnation", ""))
        self._cursor = headers.get("stream-cursor", self._cursor)
        self.closed = headers.get("stream-closed") == "true"
        self._caught_up = headers.get("stream-up-to-date") == "true" or status == 204
        # Whoever does not move and does not say why would be asked for ever.
        self._caught_up = self._caught_up or self._next == self.at.offset
        bounded = bool(self._until) and self._next == self._until
        self._final = self.closed or bounded or (self._caught_up and not self._live)
        self._skip = self.at.skip
        self._held.clear()
        self._form = self._splitter(headers.get("content-type", ""))

    def _check_incarnation(self, found: str) -> None:
        if found and self.incarnation and found != self.incarnation:
            message = (
                f"{self._stream_url} was deleted and made anew since it was read; "
                "what was read of the old one is not in the new one"
            )
            raise ReplacedError(message)
        self.incarnation = found or self.incarnation

    def _splitter(self, answered: str) -> Splitter:
        own = media_type(answered) == media_type(self.content_type) and not is_json(
            self.content_type
        )
        return WholeSplitter() if own else splitter(answered)

    def pause_s(self, *, came: bool) -> float:
        """Return how long to wait before the next request.

        A long-poll that brings nothing has waited itself. Where it did not, over and over, the
        server does not know long-polls, or is out of order: it is asked less and less often.
        """
        now = time.monotonic()
        hasty = not came and now - self._asked < HASTE_S
        self._asked = now
        self._hasty = self._hasty + 1 if hasty else 0
        return (
            min(PAUSE_S * 2.0 ** (self._hasty - HASTY_MAX), PAUSE_S_MAX)
            if (self._hasty > HASTY_MAX)
            else 0.0
        )

    def feed(self, piece: bytes) -> list[StreamMessage]:
        """Return the messages that are complete with these bytes.

        The last one is kept back until more comes: if the page ends with it, the place after it
        is an offset.
        """
        self._held += self._fresh(self._form.feed(piece))
        return self._passed(len(self._held) - 1)

    def end(self) -> list[StreamMessage]:
        """Return the last messages of the answer and go on behind it."""
        self._held += self._fresh(self._form.end())
        found = self._passed(len(self._held))
        if self._skip and self._caught_up:
            message = f"{self._stream_url} has {self._skip} messages fewer than were read of it"
            raise ReplacedError(message)
        self.at = Bookmark(self._next, self._skip)  # of a bookmark that lies further on
        if found:
            found[-1] = StreamMessage(found[-1].data, self.at)
        self.ended = self._final
        return found

    def _fresh(self, messages: list[bytes]) -> list[bytes]:
        skipped = min(self._skip, len(messages))
        self._skip -= skipped
        return messages[skipped:]

    def _passed(self, count: int) -> list[StreamMessage]:
        found = []
        for data in self._held[: max(count, 0)]:
            self.at = Bookmark(self.at.offset, self.at.skip + 1)
            found.append(StreamMessage(data, self.at))
        del self._held[: len(found)]
        return found
