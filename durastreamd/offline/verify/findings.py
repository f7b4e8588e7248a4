"""What verification reports: one line per finding, and what all of them come to."""

from collections.abc import Iterable
from typing import NamedTuple

from durastreamd.kit.status import CORRUPT, FOUND, OK


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


def status_of(findings: Iterable[Finding]) -> int:
    """Return the exit status that a set of findings comes to."""
    worst = OK
    for finding in findings:
        if not finding.harmless:
            return CORRUPT
        worst = FOUND
    return worst
