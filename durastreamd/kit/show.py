"""How things are written for people: names, times, sizes, tables."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from durastreamd.kit.console import Console

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LAST_MIN = 8  # columns: less says nothing
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = (("d", 86400), ("h", 3600), ("min", 60))


class Column(NamedTuple):
    """A column: its heading, and whether numbers stand in it.

    The last one may give way where a terminal is narrow.
    """

    heading: str
    number: bool = False
    gives: bool = False


def numbers(*headings: str) -> tuple[Column, ...]:
    """Return columns in which numbers stand."""
    return tuple(Column(heading, number=True) for heading in headings)


def name(text: str) -> str:
    """Return a client's string fit for a terminal: what controls one is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(time_ms: int, to: str = "milliseconds") -> str:
    """Return a time as ISO 8601 has it, in UTC, to the millisecond or what else is asked for."""
    try:
        at = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms}ms"  # only damage has such a time
    return at.isoformat(timespec=to).replace("+00:00", "Z")


def duration(length_ms: int) -> str:
    """Return a length of time in the unit that leaves few digits."""
    seconds = length_ms / 1000
    for unit, length in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def counted(number: int, what: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def size(count: float) -> str:
    """Return a number of bytes with the unit that leaves few digits."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def plural(count: int, word: str) -> str:
    """Return a number of things."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    styles: Mapping[str, str] | None = None,
) -> None:
    """Write aligned columns under their headings; ``styles`` colours words on a terminal."""
    lines = [[column.heading for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if not console.on_terminal:
        for line in lines:
            console.line("  ".join(_padded(line, widths, columns)).rstrip())
        return
    from rich.text import Text

    rich = console.rich()
    room = rich.width - sum(widths[:-1]) - 2 * len(widths[:-1])
    if columns[-1].gives and room >= _LAST_MIN:
        widths[-1] = min(widths[-1], room)
    for number, line in enumerate(lines):
        cells = [*line[:-1], _cut(line[-1], widths[-1])]
        shown = Text(style="" if number else "bold")
        for at, cell in enumerate(_padded(cells, widths, columns)):
            shown.append("  " if at else "").append(
                cell, style=(styles or {}).get(cell.strip(), "")
            )
        shown.rstrip()
        rich.print(shown)


def _padded(line: Sequence[str], widths: list[int], columns: Sequence[Column]) -> list[str]:
    return [
        cell.rjust(width) if column.number else cell.ljust(width)
        for cell, width, column in zip(line, widths, columns, strict=True)
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
