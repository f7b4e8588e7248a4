"""The sink writes any query exactly once, also one that comes in another layout after a kill.

``python -m tests.spark.test_any_query 20`` kills each kind of query so many times.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.spark.any_query import FILES, RATE, ROWS_PER_BATCH, SHUFFLE
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]

ROWS = 400  # of a file
LAST = 3  # batches, but for the rate source, which goes on


def furnish(home: Path) -> Counter[int]:
    """Write files of uneven sizes; return what is to arrive."""
    (home / "in").mkdir()
    numbers = iter(range(10**6))
    wanted: list[int] = []
    for name in range(4 * (LAST + 1)):
        some = [next(numbers) for _ in range(ROWS if name % 3 else 20)]
        lines = "".join(f'{{"value":{number}}}\n' for number in some)
        (home / "in" / f"{name:02}.json").write_text(lines)
        wanted += some
    return Counter(wanted)


def run(daemon: Daemon, home: Path, kind: str, cores: int, where: str, last: int) -> int:
    """Run the query; return how it ended."""
    arguments = [daemon.url, str(home), kind, str(cores), where, str(last)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.any_query", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    killed = (home / "killed").exists()
    assert done.returncode == (-9 if killed else 0), done.stdout + done.stderr
    (home / "killed").unlink(missing_ok=True)
    return done.returncode


def arrived(daemon: Daemon, kind: str) -> list[int]:
    with httpx.Client(timeout=PATIENCE_S) as http:
        reply = http.get(f"{daemon.stream(kind)}?offset=-1")
    return [each["value"] for each in json.loads(reply.content)]


def check(daemon: Daemon, kind: str, wanted: Counter[int]) -> None:
    found = Counter(arrived(daemon, kind))
    if kind == RATE:
        batches = -(-len(found) // ROWS_PER_BATCH)
        wanted = Counter(range(batches * ROWS_PER_BATCH))
    assert found == wanted, (found - wanted, wanted - found)


@pytest.mark.usefixtures("java")
def test_files_that_are_cut_otherwise_after_a_kill_are_written_once(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        wanted = furnish(tmp_path)
        assert run(daemon, tmp_path, FILES, 2, "commit:4", LAST) == -9
        before = len(arrived(daemon, FILES))
        assert run(daemon, tmp_path, FILES, 1, "", LAST) == 0
        assert before < sum(wanted.values())
        check(daemon, FILES, wanted)


def hunt(kind: str, kills: int, rng: random.Random) -> None:
    """Kill a query again and again, with another number of cores each time, and count."""
    killed = last = rounds = 0
    while killed < kills:
        with tempfile.TemporaryDirectory() as place, Daemon(Path(place)) as daemon:
            home = Path(place)
            wanted = furnish(home)
            last, rounds = LAST if kind != RATE else 5, rounds + 1
            for _ in range(4):
                where = rng.choice(("task", "commit", "commit", "end"))
                chosen = f"{where}:{rng.randint(0, 12)}"
                killed += run(daemon, home, kind, rng.choice((1, 2, 3)), chosen, last) == -9
            run(daemon, home, kind, rng.choice((1, 2, 3)), "", last)
            check(daemon, kind, wanted)
            rows = len(arrived(daemon, kind))
        sys.stdout.write(f"{kind}: {killed} kills, {rounds} rounds, {rows} rows, each once\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for each in (FILES, RATE, SHUFFLE):
        hunt(each, int(sys.argv[1]), random.Random(int(sys.argv[1])))
