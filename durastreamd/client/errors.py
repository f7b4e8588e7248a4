"""What can go wrong with a request, named by whose fault it is."""

import http.client
import json
from collections.abc import Mapping

from durastreamd.errors import DurastreamError
from durastreamd.protocol import problems

_SHOWN_BYTES_MAX = 200  # of an answer that is no problem document
# An answer to HEAD has no body, and what stands between may answer without one.
_HINTS = {
    401: "the server wants a token, or another one than it was sent",
    403: "the token does not allow this",
    404: "there is nothing of this name",
}
_DENIED = (problems.UNAUTHENTICATED.code, problems.PERMISSION_DENIED.code)
# Of these no other token is of help.
_NO_TOKENS = (problems.STALE_EPOCH.reason, problems.FOREIGN_PAGE.reason)


class ClientError(DurastreamError):
    """The root of what a client raises."""


class SettingsError(ClientError):
    """The caller's: a file that a setting names cannot be used."""


class UrlError(SettingsError):
    """The caller's: this is not the URL of a server."""


class UnreachableError(ClientError):
    """The network's: no server answered, for as long as it was worth trying."""


class CutShortError(ClientError):
    """The network's: an answer ended before it was whole. Asking again may do better."""


class AnswerError(ClientError):
    """The server's: an answer is not what the protocol says, or larger than the client takes."""


class ReplacedError(ClientError):
    """The stream is not the one that was read or written before: another one has its name."""


class ProducerError(ClientError):
    """A producer cannot go on without losing or doubling something."""


class StateError(ProducerError):
    """The state file of a producer cannot be read, written or believed."""


class StateLockedError(StateError):
    """Another process uses this state file."""


class ServerRefusedError(ClientError):
    """The server answered with an error; its own words are in the text.

    ``problem`` is the document (RFC 9457) that came with it, empty where there was none; ``code``,
    ``reason`` and ``detail`` are taken from there, or the nearest there is. ``name`` is the finest
    word for it: the reason where there is one, else the code.
    """

    def __init__(
        self, method: str, url: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.status = status
        self.headers = headers
        self.problem = _document(body)
        self.code = str(self.problem.get("code") or http.client.responses.get(status, "Unknown"))
        self.reason = str(self.problem.get("reason") or "")
        self.name = self.reason or self.code
        shown = body[:_SHOWN_BYTES_MAX].decode(errors="replace").strip()
        hint = _HINTS.get(status, "no explanation")
        self.detail = str(self.problem.get("detail") or shown or hint)
        within = f" ({self.reason})" if self.reason else ""
        super().__init__(f"{method} {url}: {status} {self.code}{within}: {self.detail}")

    @classmethod
    def of(
        cls, method: str, url: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> "ServerRefusedError":
        """Return the error for an answer; a refused token has a kind of its own."""
        made = cls(method, url, status, headers, body)
        # 403 is also what a producer of an earlier epoch gets; without a code it is the token.
        by_code = made.code in _DENIED if "code" in made.problem else status in (401, 403)
        denied = by_code and made.reason not in _NO_TOKENS
        return DeniedError(method, url, status, headers, body) if denied else made


class DeniedError(ServerRefusedError):
    """The server wants a token, or another one."""


class FencedError(ServerRefusedError):
    """A later life of this producer writes, somewhere else; this one is over."""


def _document(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and "code" in found else {}
