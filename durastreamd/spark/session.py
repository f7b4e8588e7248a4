"""A Spark session as the jobs and tests want it: starts fast, stays quiet, finds its Python.

Two things go wrong in a plain session. Workers run ``python3`` from the PATH, which in a virtual
environment that is not activated is another Python without pyarrow; and a JVM spends ten seconds
loading classes that an archive (class data sharing) holds ready.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from durastreamd.spark.errors import JavaMissingError

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.failures.name = org.apache.spark.sql.execution.datasources.v2
logger.failures.level = off
"""

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Layout and order of a batch must repeat when it does, for the sink's commitMode=partition.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}


def cache_home() -> Path:
    """Return where files live that only make the next start faster."""
    # Not under /tmp: a class archive is code, and a name there can be taken by anybody first.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = Path(base) / "durastreamd" / "spark"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def java() -> str:
    """Return the java command Spark will use."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        message = (
            "Spark needs Java 17 or newer and finds none; install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
        )
        raise JavaMissingError(message)
    return found


def quiet_log() -> Path:
    """Return a logging configuration that shows errors alone, written where it is missing."""
    path = cache_home() / "log4j2.properties"
    if not path.exists() or path.read_text(encoding="utf-8") != _LOG4J:
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(_LOG4J, encoding="utf-8")
        beside.replace(path)
    return path


def class_archive() -> Path:
    """Return where the class archive of this Java and this Spark belongs."""
    told = subprocess.run([java(), "-version"], capture_output=True, check=False).stderr
    jars = os.path.join(os.path.dirname(pyspark.__file__), "jars")
    mark = hashlib.sha256(told + f"{jars} {pyspark.__version__}".encode()).hexdigest()[:16]
    return cache_home() / f"classes-{mark}.jsa"


def java_options(*, archive: bool = True) -> str:
    """Return the options of a JVM that starts fast; the archive is used where there is one."""
    options = [
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xshare:auto",
        "-Xlog:disable",
        "-Xlog:all=off:stderr",
        f"-Dlog4j2.configurationFile=file://{quiet_log()}",
    ]
    path = class_archive()
    if archive and path.exists():
        options.append(f"-XX:SharedArchiveFile={path}")
    return " ".join(options)


def prepare_environment(*, local: bool) -> None:
    """Set what Spark reads from the environment before the JVM starts."""
    java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        # Without it Spark binds to, and warns about, whatever the host name resolves to.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def build_session(
    name: str = "durastream",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running session, or a new one with defaults that suit streams.

    Under spark-submit the master and everything given there win: only what nobody set is set.
    """
    submitted = "SPARK_ENV_LOADED" in os.environ and master is None
    prepare_environment(local=not submitted and (master is None or master.startswith("local")))
    builder = SparkSession.builder.appName(name)
    chosen = dict(DEFAULTS)
    if not submitted:
        builder = builder.master(master or "local[*]")
        chosen["spark.driver.extraJavaOptions"] = java_options()
    chosen.update(settings or {})
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


_MAKE_ARCHIVE = """
import sys
from pyspark.sql import SparkSession, functions as F
options, home = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", options)
    .config("spark.sql.warehouse.dir", home).getOrCreate())
rows = spark.range(10).select(F.to_json(F.struct("id")).alias("value"))
rows.write.mode("overwrite").parquet(home + "/a")
query = (spark.readStream.schema("value string").parquet(home + "/a").writeStream
    .format("noop").option("checkpointLocation", home + "/c").trigger(availableNow=True).start())
query.awaitTermination()
rows.rdd.map(lambda row: (row.value,)).toDF("value string").groupBy("value").count().collect()
spark.stop()
"""


def make_class_archive() -> Path | None:
    """Make the class archive where it is missing (some 20 s, once); None where that fails."""
    path = class_archive()
    prepare_environment(local=True)
    # Of two that come at once, one makes it and the other waits.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        beside = path.with_suffix(".new")
        options = f"{java_options(archive=False)} -XX:ArchiveClassesAtExit={beside}"
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-c", _MAKE_ARCHIVE, options, home]
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(command, capture_output=True, check=False, timeout=300)
                if done.returncode == 0 and beside.exists():
                    beside.replace(path)
    return path if path.exists() else None
