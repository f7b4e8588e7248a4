"""The comparison as pictures: one panel per kind of work, one bar or line per server."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from tools.load.clients import Figures

Found = dict[str, dict[str, Figures]]
COLORS = ("#1b6ca8", "#b0b7c3", "#7d8798", "#e0803a", "#58a55c", "#a25fb3")
LINES: tuple[tuple[str, str, str, str, dict[str, float]], ...] = (
    (
        "appends",
        "durable appends of 256 B, 64 connections",
        "per_s",
        "appends/s",
        {"append-1": 1, "append-100": 100, "append-1k": 1000, "append-10k": 10_000},
    ),
    (
        "catch-up",
        "catch-up of 16 MiB, binary",
        "mb_per_s",
        "MB/s",
        {"catch-up-binary-8": 8, "catch-up-binary-32": 32, "catch-up-binary-128": 128},
    ),
    (
        "sse",
        "SSE delivery, median, 50 events/s",
        "p50_ms",
        "ms",
        {"sse-1": 1, "sse-10": 10, "sse-100": 100, "sse-1000": 1000, "sse-2000": 2000},
    ),
)


def draw(found: Found, names: list[str], out: Path) -> list[Path]:
    """Draw what there are figures for; return the files."""
    made = []
    for key, title, figure, unit, points in LINES:
        if sum(point in found for point in points) < 2:
            continue
        picture, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        for name, color in zip(names, COLORS, strict=False):
            _line(axes, found, name, color, figure, points)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("streams" if key == "appends" else "readers")
        axes.set_ylabel(unit)
        axes.grid(visible=True, which="major", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        made.append(out / f"{key}.svg")
        picture.savefig(made[-1], metadata={"Date": None})
        plt.close(picture)
    return made


def _line(
    axes: Axes, found: Found, name: str, color: str, figure: str, points: dict[str, float]
) -> None:
    places = [
        (x, found[point][name][figure])
        for point, x in points.items()
        if name in found.get(point, {})
    ]
    if places:
        width = 2.4 if color == COLORS[0] else 1.4
        xs, ys = zip(*places, strict=True)
        axes.plot(xs, ys, marker="o", markersize=4, color=color, linewidth=width, label=name)
