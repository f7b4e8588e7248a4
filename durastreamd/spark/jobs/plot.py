"""The picture of ``dspipeline stats``: when messages came, and who holds the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from durastreamd.kit import show
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import IO_ERROR, USAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from durastreamd.spark.jobs.stats import Bin, StreamStats

KINDS = (".svg", ".png")
SHOWN_MAX = 8  # streams with a colour of their own; the rest is one
REST = "all others"
INK, FAINT = "#22313f", "#d5dbe1"
COLOURS = (
    "#3b6fb6", "#e08e45", "#4f9d69", "#b5505a", "#7d6bb0", "#8c6d4f", "#c97fae", "#2aa5a0",
)  # fmt: skip
REST_COLOUR = "#9aa5b1"


def check(path: str) -> None:
    """Refuse a picture that could not be written, before the work."""
    if Path(path).suffix.lower() not in KINDS:
        reason = f"--plot takes a file that ends in {' or '.join(KINDS)}, not {path!r}"
        raise CommandError(USAGE, reason)
    if not Path(path).absolute().parent.is_dir():
        reason = f"--plot: there is no directory {Path(path).absolute().parent}"
        raise CommandError(IO_ERROR, reason)


def draw(path: str, table: list[StreamStats], bins: list[Bin], width_ms: int) -> None:
    """Draw the rate over time, stacked by stream, above the bytes each stream holds."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    names = [stats.stream for stats in table[:SHOWN_MAX]]
    if len(table) > SHOWN_MAX:
        names.append(REST)
    colours = dict(zip(names, COLOURS, strict=False)) | {REST: REST_COLOUR}
    style = {
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
    }
    with plt.rc_context(style):  # type: ignore[arg-type]  # its keys are a list of 300 literals
        rows = max(len(names), 2)
        figure, (above, below) = plt.subplots(
            2,
            1,
            figsize=(9, 4.2 + 0.3 * rows),
            height_ratios=[10, 2.6 + 0.9 * rows],
            layout="constrained",
        )
        _rates(above, names, bins, width_ms, colours)
        _sizes(below, names, table, colours)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)
        plt.close(figure)


def _rates(
    axes: Axes, names: list[str], bins: list[Bin], width_ms: int, colours: dict[str, str]
) -> None:
    import numpy as np
    from matplotlib import dates

    slots = sorted({one.begin_ms for one in bins})
    begin, count = slots[0], (slots[-1] - slots[0]) // width_ms + 1
    heights = {name: np.zeros(count) for name in names}
    for one in bins:
        name = one.stream if one.stream in heights else REST
        heights[name][(one.begin_ms - begin) // width_ms] += one.messages * 1000 / width_ms
    # Steps, not slopes: what came in a slice came in that slice.
    edges = (begin + np.arange(count + 1) * width_ms).astype("datetime64[ms]")
    floor = np.zeros(count)
    for name in names:
        top = floor + heights[name]
        axes.fill_between(
            edges,
            np.append(floor, floor[-1]),
            np.append(top, top[-1]),
            step="post",
            color=colours[name],
            linewidth=0,
        )
        floor = top
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, float(floor.max()) * 1.08 or 1)
    locator = dates.AutoDateLocator(minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title("Messages per second (UTC)", loc="left", fontweight="bold")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _sizes(axes: Axes, names: list[str], table: list[StreamStats], colours: dict[str, str]) -> None:
    held = dict.fromkeys(names, 0)
    messages = dict.fromkeys(names, 0)
    for stats in table:
        name = stats.stream if stats.stream in held else REST
        held[name] += stats.bytes
        messages[name] += stats.messages
    places = range(len(names))
    axes.barh(places, [held[name] for name in names], color=[colours[n] for n in names], height=0.7)
    largest = max(held.values()) or 1
    for place, name in zip(places, names, strict=True):
        label = f"{show.size(held[name])}, {messages[name]:,} messages"
        axes.text(held[name] + largest * 0.01, place, label, va="center")
    axes.set_yticks(places, [_short(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, largest * 1.35)
    axes.set_title("Bytes held by each stream", loc="left", fontweight="bold")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)  # the bars say it themselves
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:14]}...{name[-14:]}"
