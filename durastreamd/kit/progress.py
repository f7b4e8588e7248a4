"""The bar that shows how far a long work has come; its own module, because rich takes its time."""

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from durastreamd.kit.console import Console
from durastreamd.kit.show import size


class RateColumn(ProgressColumn):
    """Bytes per second, in the units of everything else."""

    def render(self, task: Task) -> Text:
        """Return the rate, as far as it is known."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{size(speed)}/s", style="progress.data.speed")


def bar(console: Console) -> Progress:
    """Return a bar with rate and remaining time, on standard error, gone when the work is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        RateColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console.rich(stderr=True), transient=True)
