"""A real server and a real Spark for the tests of the pipeline.

Most tests here drive readers and writers directly and start no JVM; those that take ``spark``
share one session. A machine without Java skips them with a reason (``tools/test`` installs it).
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from durastreamd.client import client
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster
    from tests.spark.driving import Hand

pytest.importorskip("pyspark", reason="the extra durastreamd[spark] is not installed")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One running daemon; tests take names of their own."""
    with Daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    """An ordinary client, to furnish streams and to look at them; it keeps no connection."""
    with httpx.Client(timeout=PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0)) as made:
        yield made


@pytest.fixture(scope="session")
def hand(server: Daemon, http: httpx.Client) -> "Hand":
    """Furnishes streams on the running daemon."""
    from tests.spark.driving import Hand

    return Hand(server, http)


@pytest.fixture(autouse=True)
def _end_readers() -> Iterator[None]:
    yield
    if "tests.spark.driving" in sys.modules:
        sys.modules["tests.spark.driving"].end_readers()
    if "tests.spark.directories" in sys.modules:
        sys.modules["tests.spark.directories"].release_directories()
    client._hang_up_all()  # a worker of Spark keeps its connections from one task to the next


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library of Delta tables, whose threads stay once it has been used."""
    import deltalake
    import pyarrow as pa

    place = tmp_path_factory.mktemp("delta")
    deltalake.write_deltalake(str(place), pa.table({"a": [1]}))


@pytest.fixture(scope="session")
def plots(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library of plots, which keeps the files of its fonts open once it has drawn."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.set_title("ordinary", fontweight="normal")
    figure.suptitle("and bold", fontweight="bold")
    for kind in ("svg", "png"):
        figure.savefig(tmp_path_factory.mktemp("plots") / f"plot.{kind}")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for streams and buckets that no other test takes."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    return f"test-{digest[:12]}"


@pytest.fixture(scope="session")
def java() -> None:
    """Java, with the class archive that makes every start of it some seconds faster."""
    from durastreamd.spark import session
    from durastreamd.spark.errors import JavaMissingError

    try:
        session.make_class_archive()
    except JavaMissingError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """A standalone cluster of a master and two workers, each a process."""
    from tests.spark.cluster import Cluster

    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One Spark session, local, with task retries, for all tests of this process."""
    from durastreamd.spark import session

    home: Path = tmp_path_factory.mktemp("spark")
    made = session.build_session(
        "tests",
        "local[2,2]",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(home / "local"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.python.worker.faulthandler.enabled": "true",
        },
    )
    yield made
    made.stop()
