"""Source and sink on a standalone cluster: separate processes, the package shipped as a zip."""

import json
from pathlib import Path

import httpx
import pytest

from tests.spark.cluster import Cluster
from tests.spark.driving import Hand
from tests.support.daemon import ROOT, Daemon

JSON = {"Content-Type": "application/json"}

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]


def test_a_cluster_reads_and_writes_with_what_was_shipped(
    cluster: Cluster, hand: Hand, name: str, tmp_path: Path
) -> None:
    hand.make(f"{name}/in", list(range(3000)))
    program = Path(__file__).with_name("cluster_program.py")
    output = cluster.submit(program, hand.server.stream(name), str(tmp_path))
    told = json.loads(output.strip().splitlines()[-1])
    assert len(told["executors"]) == 2, "both workers took part"
    for each in told["code"]:
        where, shipped, _ = each.partition("durastream.zip")
        assert shipped, each
        assert where != f"{cluster.home}/", "the executors' own copy, not the driver's"
    assert (told["rows"], told["copied"], told["batches"]) == (3000, 3000, 2)
    found = [int(str(value)) for value in hand.values(f"{name}/out")]
    assert sorted(found) == list(range(3000))


def test_a_job_runs_there_as_it_does_alone(cluster: Cluster, tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        body = json.dumps(list(range(3000)))
        made = httpx.put(daemon.stream("audited"), content=body, headers=JSON)
        assert made.status_code == 201
        daemon.restart()  # so that the stream is in files of its own, not in the journal alone
        job = ROOT / "durastreamd" / "spark" / "cli.py"
        output = cluster.submit(job, "--json", "audit", "--data-dir", str(tmp_path / "data"))
    told = json.loads(output.strip().splitlines()[-1])
    assert told["findings"] == []
    assert (told["streams"], told["segments"]) == (1, 1)
