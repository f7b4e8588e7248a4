"""What verification reports: one line per finding."""

import errno
from typing import NamedTuple

from durastreamd.storage.disk import NO_FILE

# The disk does not hand it out. Nobody knows whether it is whole, so no repair touches its stream.
UNREADABLE = "unreadable"


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


def refusal(path: str, exc: OSError, stream: str = "") -> Finding:
    """Return what it means that a file is not handed out: see ``storage.disk.faults_of``."""
    odd = exc.errno in NO_FILE or exc.errno == errno.ENOENT
    kind = "no-file" if odd else UNREADABLE
    return Finding(path, 0, kind, exc.strerror or str(exc), stream)
