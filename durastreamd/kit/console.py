"""Where a command writes: results to standard output, everything about the work to standard error.

One object per run, so that a test can hand in its own two files.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from durastreamd.protocol.json_writing import json_line

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


@dataclass
class Console:
    """The two outputs of a command, and how it was asked to use them."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    program: str = "durastreamd"
    as_json: bool = False
    color: str = "auto"  # auto, always, never
    progress: str = "auto"  # auto, always, never

    # --- results ---

    def line(self, text: str) -> None:
        """Write one line of the result."""
        self.out.write(text + "\n")

    def record(self, members: dict[str, object]) -> None:
        """Write one result as a line of JSON."""
        self.out.write(json_line(members) + "\n")

    def summary(self, text: str, members: dict[str, object]) -> None:
        """Write the last line of a result: in words, or as JSON."""
        if self.as_json:
            self.record(members)
        else:
            self.line(text)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.out.flush()
        self.out.buffer.write(data)

    def flush(self) -> None:
        """Have everything on its way: for results that somebody waits for."""
        self.out.flush()

    @property
    def on_terminal(self) -> bool:
        """Tell whether somebody looks at the results on a terminal."""
        return self.color == "always" or self.out.isatty()

    # --- about the work ---

    def note(self, text: str) -> None:
        """Say something about the work: never part of the result."""
        self.err.write(f"{self.program}: {text}\n")
        self.err.flush()

    @property
    def shows_progress(self) -> bool:
        """Tell whether progress is to be shown."""
        if self.progress == "auto":
            return self.err.isatty()
        return self.progress == "always"

    @contextmanager
    def working(self, what: str, bytes_total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar with rate and remaining time on standard error; lend what advances it.

        A total of 0 is one that nobody knows.
        """
        if not self.shows_progress:
            yield lambda _: None
            return
        from durastreamd.kit.progress import bar

        with bar(self) as shown:
            task = shown.add_task(what, total=bytes_total or None)
            yield lambda count: shown.advance(task, count)

    def rich(self, *, stderr: bool = False) -> "RichConsole":
        """Return a console for tables and progress; plain where nobody looks at a terminal.

        Without --color rich itself honours NO_COLOR.
        """
        from rich.console import Console as RichConsole

        forced = self.color == "always" or (stderr and self.progress == "always")
        return RichConsole(
            file=self.err if stderr else self.out,
            force_terminal=True if forced else None,
            no_color={"always": False, "never": True}.get(self.color),
            highlight=False,
            soft_wrap=True,
        )
