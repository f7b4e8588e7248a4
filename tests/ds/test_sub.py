"""``ds sub``: a worker, whose program's end decides about its work."""

import json
from pathlib import Path

from tests.ds.conftest import Ds


def test_a_worker_runs_a_program_for_each_claim(ds: Ds, tmp_path: Path) -> None:
    assert ds("sub", "put", "--pattern", "jobs/*", "--wake", "wakes", "print").status == 0
    ds("append", "--create", "jobs/1", "a page")
    failed = ds("sub", "work", "--once", "print", "--", "sh", "-c", "exit 3")
    assert (failed.status, "given back" in failed.err) == (3, True)
    taken = tmp_path / "taken"
    assert ds("sub", "work", "--once", "print", "--", "sh", "-c", f"cat > {taken}").status == 0
    row = json.loads(taken.read_text())
    assert (row["stream"], row["data"]) == ("jobs/1", "a page\n")
    taken.unlink()
    assert ds("sub", "work", "--once", "print", "--", "sh", "-c", f"cat > {taken}").status == 0
    assert not taken.exists(), "there is no more"
    assert json.loads(ds("sub", "show", "--json", "print").out)["type"] == "pull-wake"
    ds("append", "jobs/1", "another")
    assert ds("sub", "work", "--once", "print", "--", "/no/such/program").status == 66
    assert ds("sub", "work", "print").status == 64
    assert ds("sub", "put", "print").status == 64
    assert ds("sub", "rm", "print").status == 0
    assert ds("sub", "show", "print").status == 66
