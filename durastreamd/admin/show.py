"""How things are written for people: names, times, sizes, tables."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from durastreamd.admin.console import Console
from durastreamd.protocol.requests import EPOCH

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """A column: its heading, and whether numbers stand in it."""

    heading: str
    number: bool = False


def name(text: str) -> str:
    """Return a client's string fit for a terminal: what controls one is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(time_ms: int) -> str:
    """Return a time as ISO 8601 has it, in UTC, to the millisecond."""
    try:
        at = EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms}ms"  # only damage has such a time
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(count: int) -> str:
    """Return a number of bytes with the unit that leaves few digits."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def plural(count: int, word: str) -> str:
    """Return a number of things."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table: with lines on a terminal, as aligned columns elsewhere."""
    if console.on_terminal:
        _rich_table(console, columns, rows)
        return
    lines = [[column.heading for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        console.line("  ".join(cells).rstrip())


def _rich_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table for a terminal: where it is narrow the last column gives way."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold underline")
    for at, column in enumerate(columns):
        width = max([len(column.heading), *(len(row[at]) for row in rows)])
        justify: JustifyMethod = "right" if column.number else "left"
        if at == len(columns) - 1:
            shown.add_column(column.heading, justify=justify, no_wrap=True)
        elif at == 0:  # a name is folded, never cut
            shown.add_column(column.heading, justify=justify, overflow="fold", min_width=12)
        else:
            shown.add_column(column.heading, justify=justify, no_wrap=True, min_width=width)
    for row in rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.rich().print(shown)


# The states of a stream that ask for attention.
_STYLES = {"damaged": "bold red", "expired": "yellow", "gone": "yellow", "closed": "dim"}
