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
        self.notes: dict[str, str] = {}

    def hold(self, reason: str, detail: str) -> None:
        """Be unready for a reason, a word, until it is released."""
        self._held[reason] = detail

    def release(self, reason: str) -> None:
        """Be no longer unready for this reason."""
        self._held.pop(reason, None)

    def watch(self, reason: str, look: Look) -> None:
        """Have ``look`` called whenever somebody asks; what it returns is the detail."""
        self._looks[reason] = look

    def reasons(self) -> dict[str, str]:
        """Return every reason with its detail; none: ready."""
        found = dict(self._held)
        for reason, look in self._looks.items():
            detail = look()
            if detail is not None:
                found[reason] = detail
        return found
