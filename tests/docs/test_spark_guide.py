"""The guide durastreamd-spark(7) and the program say the same.

``python -m tests.docs.test_spark_guide`` writes the tables of options into the page anew.
"""

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="not run: the extra durastreamd[spark] is not installed")

from durastreamd.kit.status import BROKEN_PIPE, CONFIG, INTERRUPTED, LOCKED, OK
from durastreamd.spark.cli import STATUSES, parser
from durastreamd.spark.options import Row, SinkOptions, SourceOptions, rows_of
from durastreamd.spark.segments.options import SegmentOptions

TOP = Path(__file__).parent.parent.parent
MAN = TOP / "man" / "durastreamd-spark.7"
TABLES: dict[str, list[Row]] = {
    "OPTIONS OF THE SOURCE": list(rows_of(SourceOptions)),
    "OPTIONS OF THE SINK": list(rows_of(SinkOptions)),
    "OPTIONS OF THE SEGMENTS SOURCE": list(rows_of(SegmentOptions)),
}


def entries(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table: an item for each option, its meaning, its default."""
    yield ".Bl -tag -width indent"
    for row in rows:
        yield f".It Cm {row.name}"
        yield _safe(row.meaning[0].upper() + row.meaning[1:]) + "."
        if row.default:
            yield f"Default: {_safe(row.default)}."
    yield ".El"


def _safe(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")


def section(text: str, name: str) -> str:
    """Return the lines of a section that are its table."""
    found = re.search(rf"^\.Sh {name}\n(.*?)(?=^\.Sh )", text, re.DOTALL | re.MULTILINE)
    assert found, name
    table = re.search(r"^\.Bl .*?^\.El$", found[1], re.DOTALL | re.MULTILINE)
    assert table, name
    return table[0]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_options_are_those_of_the_code(name: str) -> None:
    assert section(MAN.read_text(), name) == "\n".join(entries(TABLES[name]))


def _options(made: argparse.ArgumentParser) -> set[str]:
    return {
        option.lstrip("-")
        for action in made._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


def test_every_job_and_its_arguments_are_described() -> None:
    text = MAN.read_text()
    made = parser()
    jobs = next(a for a in made._actions if isinstance(a, argparse._SubParsersAction))
    part = re.compile(r"^\.Ss dspipeline (\w+)\n(.*?)(?=^\.S[sh] )", re.DOTALL | re.MULTILINE)
    parts = dict(part.findall(text))
    assert set(parts) == set(jobs.choices)
    for name, job in jobs.choices.items():
        described = set(re.findall(r"Fl -([a-z-]+)", parts[name]))
        assert described == _options(job), name
    common = re.search(r"^\.Sh JOBS\n(.*?)(?=^\.Ss )", text, re.DOTALL | re.MULTILINE)
    assert common
    assert set(re.findall(r"Fl -([a-z-]+)", common[1])) == _options(made)


def test_every_exit_status_is_described() -> None:
    text = MAN.read_text()
    (part,) = re.findall(r"^\.Sh EXIT STATUS\n(.*?)(?=^\.Sh )", text, re.DOTALL | re.MULTILINE)
    described = set(map(int, re.findall(r"^\.It (\d+)$", part, re.MULTILINE)))
    known = {OK, INTERRUPTED, BROKEN_PIPE, *(status for _, status in STATUSES)}
    assert described == known - {CONFIG, LOCKED}, "it has no configuration and takes no lock"


@pytest.mark.skipif(shutil.which("groff") is None, reason="not run: no groff")
def test_the_page_renders_without_a_warning() -> None:
    command = ["groff", "-mdoc", "-ww", "-z", str(MAN)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def write_tables() -> None:
    """Put the tables of the code into the page."""
    text = MAN.read_text()
    for name, rows in TABLES.items():
        head, mark, rest = text.partition(f".Sh {name}\n")
        rest = rest.replace(section(text, name), "\n".join(entries(rows)), 1)
        text = head + mark + rest
    MAN.write_text(text)


if __name__ == "__main__":
    write_tables()
