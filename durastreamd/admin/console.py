"""Where a command writes: results to standard output, everything about the work to standard error.

One object per run, so that a test can hand in its own two files.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console as RichConsole


@dataclass
class Console:
    """The two outputs of a command, and how it was asked to use them."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    as_json: bool = False
    color: str = "auto"  # auto, always, never

    def line(self, text: str) -> None:
        """Write one line of the result."""
        self.out.write(text + "\n")

    def record(self, members: dict[str, object]) -> None:
        """Write one result as a line of JSON."""
        self.out.write(json.dumps(members, ensure_ascii=False) + "\n")

    def note(self, text: str) -> None:
        """Say something about the work: never part of the result."""
        self.err.write(f"dsadmin: {text}\n")

    def rich(self, *, stderr: bool = False) -> RichConsole:
        """Return a console for tables and progress; plain where nobody looks at a terminal."""
        return RichConsole(
            file=self.err if stderr else self.out,
            force_terminal=True if self.color == "always" else None,
            no_color=self.color == "never",
            highlight=False,
            soft_wrap=True,
        )
