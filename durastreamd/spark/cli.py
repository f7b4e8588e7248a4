"""The command line of the pipeline: ``dspipeline JOB``; spark-submit runs it, too.

Every job is a ``Command`` in a module of its own; this module only knows their list, what to say
where Spark is missing, and what an error means that was raised on an executor.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import requires

from durastreamd.client import ClientError, DeniedError, SettingsError
from durastreamd.errors import DurastreamError
from durastreamd.kit.command import Command, Pairs, Parser, run
from durastreamd.kit.console import Console
from durastreamd.kit.status import (
    FAILURES,
    INTERNAL,
    IO_ERROR,
    NO_PERMISSION,
    UNAVAILABLE,
    USAGE,
    Failures,
    by_kind,
)
from durastreamd.spark.errors import JavaMissingError, OptionError

STATUSES: Failures = (
    (OptionError, USAGE),
    *FAILURES,
    (SettingsError, USAGE),
    (DeniedError, NO_PERMISSION),
    (ClientError, UNAVAILABLE),
    (JavaMissingError, UNAVAILABLE),
    (DurastreamError, INTERNAL),
    (OSError, IO_ERROR),
)

EXTRA = ("pyspark", "py4j", "pyarrow", "numpy")  # what the extra ``spark`` brings for every job

# An error of ours that was raised in a worker comes back as text, traceback and all.
_RAISED = re.compile(r"\bdurastreamd\.[\w.]+\.(\w+Error): (.*)$", re.MULTILINE)
_SAID = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


def commands() -> tuple[Command, ...]:
    """Return the jobs; imported here, because all of them need Spark, and it may be missing."""
    from durastreamd.spark.jobs import audit, compact, export, importing, stats

    return tuple(job.COMMAND for job in (export, compact, importing, audit, stats))


def parser() -> Parser:
    """Return the parser of every job."""
    made = Parser("dspipeline", "Durable Streams jobs on Spark.")
    made.add_version()
    made.add_argument("--master", metavar="URL", help="the Spark master; default: this machine")
    made.add_argument(
        "--conf", metavar="KEY=VALUE", action=Pairs, default={}, help="a setting of Spark"
    )
    made.add_argument("--json", action="store_true", help="the summary as one JSON object")
    made.add_commands(commands(), "JOB")
    return made


def _install() -> str:
    """Return the command that installs what the extra ``spark`` asks for."""
    wanted = [each.partition(";") for each in requires("durastreamd") or ()]
    spark = [f"'{name.strip()}'" for name, _, marker in wanted if "spark" in marker]
    return " ".join([sys.executable, "-m", "pip", "install", *spark])


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one job; the exit status says how it went."""
    console = console or Console()
    console.program = "dspipeline"
    try:
        chosen = parser().parse_args(arguments)
    except ModuleNotFoundError as exc:
        name = (exc.name or "").partition(".")[0]
        if name not in EXTRA:
            raise
        console.note(f"{name} is not installed; this brings it: {_install()}")
        return UNAVAILABLE
    console.as_json = chosen.json
    return run(commands(), chosen, console, explain)


def explain(exc: Exception) -> tuple[int, str] | None:
    """Return status and text of an error, also of one that Spark brings from a worker."""
    return by_kind(STATUSES)(exc) or told_by(str(exc))


def told_by(text: str) -> tuple[int, str] | None:
    """Return status and text of an error of ours, as Spark brings it from a worker."""
    said = _SAID.search(text)
    if said:
        return INTERNAL, said[1]
    found = _RAISED.findall(text)
    if not found:
        return None
    name, reason = found[-1]
    known = {kind.__name__: kind for kind in _kinds(DurastreamError)}
    kind = known.get(name, DurastreamError)
    return next(status for parent, status in STATUSES if issubclass(kind, parent)), reason


def _kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Yield a kind of error and all that are kinds of it."""
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


if __name__ == "__main__":
    sys.exit(main())
