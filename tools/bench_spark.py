"""What the pipeline does on this machine, against Spark reading the same messages from files.

One Spark session; every contestant in turn, several rounds, the order turned round every time; the
best round of each counts. Every contestant writes to Spark's noop sink, so all columns are made
and nothing else is done with them. ``spark.read.json`` gets the schema (it need not guess) and
makes columns of each message. Our sources make rows of the messages' text, or with the same schema
the same columns; the lines marked "+ from_json" make them of the text, as a Kafka user has to. CPU
seconds are those of the JVM and the Python workers, of the best round.
"""

import argparse
import http.client
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from durastreamd.spark.jobs.audit import findings, plan, tasks_of  # noqa: E402
from durastreamd.spark.session import prepare_environment, quiet_log  # noqa: E402
from tools.load import servers  # noqa: E402

SCHEMA = "id long, user string, amount double, kind string, ok boolean"
STREAM = "bench/orders"
APPEND = 2000  # messages in one request
FILES = 8
WANTED = {
    "segments, text": 2.0,
    "HTTP, text": 2.0,
    "segments, schema": 1.0,
    "HTTP, schema": 1.0,
}
FEWER = "id long, amount double"
LINE = "{:<34} {:>14} {:>10} {:>8} {:>18}"


def message(number: int) -> str:
    found = {
        "id": number,
        "user": f"user-{number * 7919 % 100_000}",
        "amount": number * 31 % 100_000 / 100,
        "kind": "order",
        "ok": number % 3 == 0,
    }
    return json.dumps(found)


def fill(port: int, files: Path, count: int) -> None:
    """Append the messages to a stream, and write the same to files."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    path, headers = f"/v1/stream/{STREAM}", {"Content-Type": "application/json"}
    connection.request("PUT", path, headers=headers)
    connection.getresponse().read()
    per_file = -(-count // FILES)
    for at in range(0, count, APPEND):
        messages = [message(number) for number in range(at, min(at + APPEND, count))]
        connection.request("POST", path, f"[{','.join(messages)}]", headers)
        reply = connection.getresponse()
        reply.read()
        assert reply.status in (200, 204), reply.status
        with (files / f"{at // per_file:02d}.json").open("a") as file:
            file.write("\n".join(messages) + "\n")


@contextmanager
def session(home: Path) -> Iterator[SparkSession]:
    """A Spark session as an ordinary user has it: the server compiler, the default collector."""
    prepare_environment(local=True)
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    made = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file://{quiet_log()}")
        .getOrCreate()
    )
    try:
        yield made
    finally:
        made.stop()


class Taken(NamedTuple):
    """What a contestant took: seconds by the clock, and of the processors."""

    wall_s: float
    cpu_s: float


def cpu_seconds() -> float:
    """Return the processor time of all that this process started and is still there."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine = {os.getpid()}
    for _ in range(8):  # generations: gateway, JVM, daemon, workers
        mine |= {pid for pid, parent in parents.items() if parent in mine}
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def seconds(rows: DataFrame) -> Taken:
    begin, before = time.perf_counter(), cpu_seconds()
    rows.write.format("noop").mode("overwrite").save()
    return Taken(time.perf_counter() - begin, cpu_seconds() - before)


def compare(contestants: dict[str, Callable[[], DataFrame]], rounds: int) -> dict[str, Taken]:
    """Return the best time of each; the order turns round, so that none always follows one."""
    best: dict[str, Taken] = {}
    names = list(contestants)
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            taken = seconds(contestants[name]())
            if number:  # The first round warms up: classes, compiled code, page cache.
                best[name] = min(best.get(name, taken), taken)
    return best


def parsed(rows: DataFrame) -> DataFrame:
    return rows.select(F.from_json("value", SCHEMA).alias("v")).select("v.*")


def report_reads(best: dict[str, Taken], count: int) -> None:
    print(LINE.format(f"reading {count:,} JSON messages", "rows/s", "ratio", "CPU s", "wanted"))
    base = best["spark.read.json of files"].wall_s
    for name, taken in sorted(best.items(), key=lambda each: -each[1].wall_s):
        wanted = WANTED.get(name)
        ratio = base / taken.wall_s
        verdict = "" if wanted is None else f">= {wanted}: {'yes' if ratio >= wanted else 'NO'}"
        speed = f"{count / taken.wall_s:,.0f}"
        print(LINE.format(name, speed, f"{ratio:.2f}", f"{taken.cpu_s:.2f}", verdict), flush=True)


def contestants(
    spark: SparkSession, url: str, directory: str, files: str
) -> dict[str, Callable[[], DataFrame]]:
    """Return what is compared, by name."""

    def http_rows(schema: str = "") -> DataFrame:
        read = spark.read.schema(schema) if schema else spark.read
        return read.format("durastream").options(url=url, subscribe=STREAM).load()

    def segments(schema: str = "") -> DataFrame:
        read = spark.read.schema(schema) if schema else spark.read
        return read.format("durastream-segments").option("subscribe", STREAM).load(directory)

    return {
        "spark.read.json of files": lambda: spark.read.schema(SCHEMA).json(files),
        "spark.read.json, 2 of 5 columns": lambda: spark.read.schema(FEWER).json(files),
        "spark.read.text + from_json": lambda: parsed(spark.read.text(files)),
        "segments, text": lambda: segments(),
        "HTTP, text": lambda: http_rows(),
        "segments, schema": lambda: segments(SCHEMA),
        "HTTP, schema": lambda: http_rows(SCHEMA),
        "segments, 2 of 5 columns": lambda: segments(FEWER),
        "HTTP, 2 of 5 columns": lambda: http_rows(FEWER),
        "segments + from_json": lambda: parsed(segments()),
        "HTTP + from_json": lambda: parsed(http_rows()),
    }


def report_sink(spark: SparkSession, url: str, files: Path, count: int, rounds: int) -> None:
    rows = spark.read.text(str(files))
    best = float("inf")
    for number in range(rounds):
        sink = rows.write.format("durastream").mode("append")
        options = {"url": url, "stream": f"bench/sink-{number}", "createStreams": "true"}
        begin = time.perf_counter()
        sink.options(**options).save()
        best = min(best, time.perf_counter() - begin)
    print(LINE.format("sink, text of the same files", f"{count / best:,.0f}", "", "", "rows/s"))


def report_audit(spark: SparkSession, directory: str, rounds: int) -> None:
    audit = plan(directory)
    size = sum(part.size for part in audit.parts)
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        tasks = tasks_of(plan(directory).parts)
        work = spark.sparkContext.parallelize(tasks, len(tasks))
        found = work.flatMap(
            lambda parts: [str(f) for part in parts for f in findings(directory, part)]
        ).collect()
        best = min(best, time.perf_counter() - begin)
        assert not found, found
    print(LINE.format("audit of the data directory", f"{size / best / 1e6:,.0f}", "", "", "MB/s"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 messages, two rounds")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where the data directories are made")
    chosen = parser.parse_args()
    count, rounds = (100_000, 2) if chosen.quick else (chosen.messages, chosen.rounds)
    home = Path(tempfile.mkdtemp(dir=chosen.dir))
    files = home / "files"
    files.mkdir()
    try:
        with servers.started(servers.OURS, str(home)) as server:
            fill(server.port, files, count)
            url = f"http://127.0.0.1:{server.port}"
            directory = str(next(home.rglob("DURASTREAMD")).parent)
            with session(home) as spark:
                found = compare(contestants(spark, url, directory, str(files)), rounds)
                report_reads(found, count)
                report_sink(spark, url, files, count, rounds)
                server.stop()  # and everything is in segments
                report_audit(spark, directory, rounds)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
