"""Whether the server should be sent requests, and why not."""

from collections.abc import Callable

Look = Callable[[], str | None]


class Readiness:
    """Reasons not to be ready: held by whoever knows of one, or looked for when asked.

    A note is for the reader only; it does not make the server unready.
    """

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._looks: dict[str, Look] = {}
        self._notices: dict[str, Look] = {}

    def hold(self, reason: str, detail: str) -> None:
        """Be unready for a reason, a word, until it is released."""
        self._held[reason] = detail

    def release(self, reason: str) -> None:
        """Be no longer unready for this reason."""
        self._held.pop(reason, None)

    def watch(self, reason: str, look: Look) -> None:
        """Have ``look`` called whenever somebody asks; what it returns is the detail."""
        self._looks[reason] = look

    def notice(self, word: str, look: Look) -> None:
        """Have ``look`` called whenever somebody asks; what it returns is a note."""
        self._notices[word] = look

    def notes(self) -> dict[str, str]:
        """Return every note that there is."""
        return _found(self._notices)

    def reasons(self) -> dict[str, str]:
        """Return every reason with its detail; none: ready."""
        return {**self._held, **_found(self._looks)}


def _found(looks: dict[str, Look]) -> dict[str, str]:
    told = ((word, look()) for word, look in looks.items())
    return {word: text for word, text in told if text is not None}
