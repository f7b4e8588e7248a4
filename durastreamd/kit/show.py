"""How things are written for people: names, times, sizes, tables."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from durastreamd.kit.console import Console

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_BETWEEN = "  "  # two columns
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = (("d", 86400), ("h", 3600), ("min", 60))


class Column(NamedTuple):
    """A column: its heading, and whether numbers stand in it.

    Where a terminal is narrow, a spare one is left out, and one with a ``least`` width gives way.
    """

    heading: str
    number: bool = False
    least: int = 0
    spare: bool = False


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


def to_the_minute(moment: str) -> str:
    """Return a time as ``moment`` has it for a narrow place."""
    return moment[:16].replace("T", " ")


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
            cells = zip(line, widths, columns, strict=True)
            console.line(_BETWEEN.join(_padded(*cell) for cell in cells).rstrip())
        return
    from rich.cells import cell_len
    from rich.text import Text

    rich = console.rich()
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    shown = _fitted(columns, widths, rich.width)
    for number, line in enumerate(lines):
        text = Text(style="" if number else "bold")
        for at in shown:
            cell = _cut(line[at], widths[at], middle=at == 0)
            # What is two cells wide takes the place of two.
            width = widths[at] - cell_len(cell) + len(cell)
            text.append(_BETWEEN if at else "").append(
                _padded(cell, width, columns[at]), style=(styles or {}).get(cell, "")
            )
        text.rstrip()
        rich.print(text)


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Return which columns are shown, and lessen the widths of those that give way."""
    shown = list(range(len(columns)))

    def excess() -> int:
        return sum(widths[at] + len(_BETWEEN) for at in shown) - len(_BETWEEN) - room

    for at in reversed(range(len(columns))):
        if excess() > 0 and columns[at].spare:
            shown.remove(at)
    for at in reversed(shown):
        if excess() > 0 and columns[at].least:
            widths[at] = max(widths[at] - excess(), min(columns[at].least, widths[at]))
    return shown


def _padded(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.number else cell.ljust(width)


def _cut(text: str, width: int, *, middle: bool) -> str:
    """Return as much of a text as fits: its beginning, or of names both ends."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    end = ""
    while middle and cell_len(end) < (width - 1) // 2:
        end = text[len(text) - len(end) - 1 :]
    begin = ""
    while cell_len(begin + text[len(begin)] + end) < width:
        begin = text[: len(begin) + 1]
    return f"{begin}\N{HORIZONTAL ELLIPSIS}{end}"
