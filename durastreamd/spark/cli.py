"""The command line of the pipeline: ``dspipeline JOB``; spark-submit runs it, too.

Every job is a ``Job`` in a module of its own; this module only knows their list, and what an
exit status means.
"""

import argparse
import re
import sys

from durastreamd import __version__
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DurastreamError,
    StorageError,
)
from durastreamd.spark.client import ServerRefusedError, ServerUnreachableError
from durastreamd.spark.jobs import audit, compact, export, importing, stats
from durastreamd.spark.jobs.job import (
    CORRUPT,
    FAILED,
    IO_ERROR,
    NO_INPUT,
    UNAVAILABLE,
    USAGE,
    Console,
    Job,
    JobError,
)
from durastreamd.spark.options import OptionError
from durastreamd.spark.session import JavaMissingError

JOBS: tuple[Job, ...] = (export.JOB, compact.JOB, importing.JOB, audit.JOB, stats.JOB)

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (OptionError, USAGE),
    (DataDirectoryError, NO_INPUT),
    (CorruptDataError, CORRUPT),
    (StorageError, IO_ERROR),
    (ServerUnreachableError, UNAVAILABLE),
    (ServerRefusedError, UNAVAILABLE),
    (JavaMissingError, UNAVAILABLE),
    (DurastreamError, FAILED),
    (OSError, IO_ERROR),
)

# An error of ours that was raised in a worker comes back as text, traceback and all.
_RAISED = re.compile(r"\bdurastreamd\.[\w.]+\.(\w+Error): (.*)$", re.MULTILINE)
_SAID = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


def parser() -> argparse.ArgumentParser:
    """Return the parser of every job."""
    made = argparse.ArgumentParser(prog="dspipeline", description="Durable Streams jobs on Spark.")
    made.add_argument("--version", action="version", version=f"dspipeline {__version__}")
    made.add_argument("--master", metavar="URL", help="the Spark master; default: this machine")
    made.add_argument(
        "--conf", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark"
    )
    made.add_argument("--json", action="store_true", help="the summary as one JSON object")
    jobs = made.add_subparsers(dest="job", metavar="JOB", required=True)
    for job in JOBS:
        job.add_arguments(jobs.add_parser(job.name, help=job.summary, description=job.summary))
    return made


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Run one job; the exit status says how it went."""
    made = parser()
    given = made.parse_args(arguments)
    console = console or Console()
    console.as_json, console.master = given.json, given.master
    try:
        console.settings = {**console.settings, **_settings(given.conf)}
        run = next(job.run for job in JOBS if job.name == given.job)
        return run(given, console)
    except JobError as exc:
        console.note(str(exc))
        return exc.status
    except (DurastreamError, OSError) as exc:
        console.note(str(exc))
        return status_of(exc)
    except Exception as exc:
        found = told_by(str(exc))
        if found is None:
            raise
        console.note(found[1])
        return found[0]


def told_by(text: str) -> tuple[int, str] | None:
    """Return status and text of an error of ours, as Spark brings it from a worker."""
    said = _SAID.search(text)
    if said:
        return FAILED, said[1]
    found = _RAISED.findall(text)
    if not found:
        return None
    name, reason = found[-1]
    return next((status for kind, status in STATUSES if kind.__name__ == name), FAILED), reason


def status_of(exc: Exception) -> int:
    """Return the exit status an error of ours stands for."""
    return next(status for kind, status in STATUSES if isinstance(exc, kind))


def _settings(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            reason = f"--conf takes KEY=VALUE, not {text!r}"
            raise JobError(USAGE, reason)
        found[key] = value
    return found


if __name__ == "__main__":
    sys.exit(main())
