"""Workers: the same reports as one process gives, in the order of the tasks, and told of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.records import Create
from durastreamd.offline.verify.verification import Scope, in_turn, survey, tasks_of
from durastreamd.offline.verify.workers import cores, running
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk

NOW = 1_700_000_000_000


class Told:
    """A meter that remembers."""

    def __init__(self, *, shows_progress: bool) -> None:
        self.shows_progress = shows_progress
        self.totals: list[int] = []
        self.steps: list[int] = []

    @contextmanager
    def working(self, what: str, bytes_total: int, /) -> Iterator[Callable[[int], None]]:
        assert what == "verify"
        self.totals.append(bytes_total)
        yield self.steps.append


@pytest.fixture
def root(tmp_path: Path) -> Path:
    disk = RealDisk(str(tmp_path))
    engine, _ = open_engine(disk, EngineOptions(), lambda: bytes(16), NOW, create=True)
    for number in range(1, 6):
        data = b"%d" % number * 100
        place = (number, 0, len(data), NOW, 0, 1, [len(data)])
        engine.namespace.next_id = number + 1
        engine.commit([(Create(*place, f"/{number}", "text/plain"), data)])
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))
    engine.release()
    return tmp_path


@pytest.mark.parametrize("jobs", [1, 2])
def test_reports_come_in_the_order_of_the_tasks(root: Path, jobs: int) -> None:
    path = root / fmt.segment_path(3, 0)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    disk, meter = RealDisk(str(root)), Told(shows_progress=True)
    seen, scope = survey(disk), Scope(deep=True)
    tasks = [task for row in seen.listed.values() for task in tasks_of(seen, row, scope)]
    assert len(tasks) == 5
    with running(str(root), jobs, meter, "verify") as run:
        reports = list(run(tasks))
    assert [task for task, _ in reports] == tasks
    expected = [report.findings for _, report in in_turn(disk)(tasks)]
    assert [report.findings for _, report in reports] == expected
    assert [len(found) for found in expected] == [0, 0, 1, 0, 0]
    assert len(meter.steps) == 5
    assert meter.totals == [sum(meter.steps)]


def test_no_file_is_measured_where_nobody_looks(root: Path) -> None:
    meter = Told(shows_progress=False)
    with running(str(root), 1, meter, "verify") as run:
        assert list(run([])) == []
    assert meter.totals == [0]
    assert cores() >= 1
