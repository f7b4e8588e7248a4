"""What verification reports: one line per finding."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is not as it must be, and where.

    ``harmless`` ones are what a crash leaves behind, or files that are not ours: the server starts
    over them and nothing that was acknowledged is missing. Every other finding is damage.
    """

    path: str
    position: int
    kind: str
    detail: str
    stream: str = ""
    harmless: bool = False

    def __str__(self) -> str:
        whose = f" (stream {self.stream})" if self.stream else ""
        return f"{self.path}:{self.position}: {self.kind}: {self.detail}{whose}"

    def members(self) -> dict[str, object]:
        """Return the finding as a JSON object."""
        return {
            "file": self.path,
            "position": self.position,
            "kind": self.kind,
            "detail": self.detail,
            "stream": self.stream,
            "severity": "harmless" if self.harmless else "damage",
        }

    @property
    def place(self) -> tuple[str, int, str]:
        """Return what two findings of the same thing have in common."""
        return self.path, self.position, self.kind
