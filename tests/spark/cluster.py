"""A standalone cluster on loopback: a master and workers, each a process of its own.

The package reaches the executors as a user ships it: a zip given to ``--py-files``. Their Python
is an environment that has pyspark and pyarrow but not this package, so nothing else can help. The
driver has it on its path, as if installed: Spark does not give shipped files to the process that
plans a streaming source, nor to the one that looks up formats.
"""

import os
import shutil
import socket
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Self

import pyspark

from durastreamd.spark.session import java_options
from tests.support.daemon import ROOT
from tests.support.patience import PATIENCE_S, wait_until

SHIPPED = ("durastreamd", "pyspark_durastream", "pyspark_durastream_segments")
HOME = os.path.dirname(pyspark.__file__)


def ship(home: Path) -> Path:
    """Return a zip of the packages, as ``--py-files`` takes it."""
    path = home / "durastream.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in SHIPPED:
            for file in sorted((ROOT / package).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT))
    return path


def bare() -> dict[str, str]:
    """Return the environment without the way to this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def bare_python(home: Path) -> str:
    """Return a Python that has Spark's packages, and ours not."""
    venv.create(home / "venv", with_pip=False, symlinks=True)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    # Lines of a .pth file are directories; .pth files inside those are not read, so an editable
    # installation of this package stays out.
    (site / "spark.pth").write_text(os.path.dirname(HOME) + "\n")
    python = str(home / "venv" / "bin" / "python")
    command = [python, "-c", "import durastreamd"]
    lacks = subprocess.run(command, cwd=home, env=bare(), capture_output=True, check=False)
    assert lacks.returncode != 0, "the executors must not find the package by themselves"
    return python


class Cluster:
    """A master and two workers of one core each."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        self.home = home
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        self.package = home
        self.python = sys.executable

    def __enter__(self) -> Self:
        self.package = ship(self.home)
        self.python = bare_python(self.home)
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            port = chosen.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", str(port))
            wait_until(
                lambda: self._listens(port), lambda: f"the master does not listen: {self.log()}"
            )
            for number in range(self._workers):
                place = str(self.home / f"worker-{number}")
                sizes = ("--cores", "1", "--memory", "1g", "--work-dir", place)
                self._start("worker.Worker", "--host", "127.0.0.1", *sizes, self.url)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _listens(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _environment(self) -> dict[str, str]:
        return {
            **bare(),
            "SPARK_HOME": HOME,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
        }

    def _start(self, what: str, *arguments: str) -> None:
        command = [f"{HOME}/bin/spark-class", f"org.apache.spark.deploy.{what}"]
        with (self.home / "cluster.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                cwd=self.home,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for place in self.home.glob("worker-*"):
            shutil.rmtree(place, ignore_errors=True)

    def log(self) -> str:
        """Return what master and workers wrote."""
        return (self.home / "cluster.log").read_text(errors="replace")[-5000:]

    def submit(self, program: Path | str, *arguments: str) -> str:
        """Run a program with spark-submit on all workers; return what it printed."""
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(self._workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.executor.extraJavaOptions": java_options(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        command = [f"{HOME}/bin/spark-submit", "--master", self.url]
        command += ["--py-files", str(self.package)]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        done = subprocess.run(
            [*command, str(program), *arguments],
            cwd=self.home,
            env={**self._environment(), "PYTHONPATH": str(self.package)},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}\n{self.log()}"
        return done.stdout
