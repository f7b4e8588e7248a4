"""Readers driven as Spark drives them, without a JVM: plan in one instance, read in a copy."""

import json
import pickle
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from durastreamd.client import client as client_module
from durastreamd.spark.options import SourceOptions, parse
from durastreamd.spark.server.offsets import initial
from durastreamd.spark.server.planning import ReadPart
from durastreamd.spark.server.source import BatchReader, StreamReader, schema_of
from tests.support.daemon import Daemon

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
BINARY = {"Content-Type": "application/octet-stream"}

Row = dict[str, object]


class Micro(NamedTuple):
    """A batch as Spark logs it, and what it read."""

    start: dict[str, object]
    end: dict[str, object]
    partitions: list[list[Row]]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.partitions for row in rows]

    @property
    def values(self) -> list[object]:
        return [row["value"] for row in self.rows]


OPENED: list[StreamReader] = []  # ended after the test, as Spark does


def stream_reader(**given: object) -> StreamReader:
    options = parse(SourceOptions, {name: str(value) for name, value in given.items()})
    OPENED.append(StreamReader(options, schema_of(options)))
    return OPENED[-1]


def end_readers() -> None:
    """End all readers; Spark calls ``stop`` at the end of a query."""
    while OPENED:
        OPENED.pop().stop()


def read_slices(reader: StreamReader | BatchReader, slices: list[ReadPart]) -> list[list[Row]]:
    """Read each slice in a copy of the reader, as an executor does."""
    found = []
    for each in slices:
        copy = pickle.loads(pickle.dumps(reader))
        part = pickle.loads(pickle.dumps(each))
        found.append([row for batch in copy.read(part) for row in batch.to_pylist()])
    return found


def replay(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> Micro:
    """Run a batch between two offsets that went through a checkpoint."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    slices = [each for each in reader.partitions(start, end) if isinstance(each, ReadPart)]
    return Micro(start, end, read_slices(reader, slices))


def step(reader: StreamReader, start: dict[str, object], limit: ReadLimit | None = None) -> Micro:
    """Run the next batch; it is empty where there is nothing new."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    if end == start:
        return Micro(start, start, [])
    return replay(reader, start, end)


def drain(reader: StreamReader, start: dict[str, object] | None = None) -> Iterator[Micro]:
    """Run batches until there is nothing new."""
    at = start or initial()
    while (done := step(reader, at)).end != at:
        yield done
        at = done.end
    reader.stop()


def batch_rows(**given: object) -> list[list[Row]]:
    """Read as a batch query; a list of rows for each partition."""
    options = parse(SourceOptions, {name: str(value) for name, value in given.items()})
    reader = BatchReader(options, schema_of(options))
    slices = [each for each in reader.partitions() if isinstance(each, ReadPart)]
    return read_slices(reader, slices)


def batch_values(**given: object) -> list[object]:
    return [row["value"] for rows in batch_rows(**given) for row in rows]


class Hand:
    """Makes and changes streams, on the path surface or in a bucket."""

    def __init__(self, server: Daemon, http: httpx.Client) -> None:
        self.server = server
        self.http = http

    def url(self, name: str, bucket: str = "") -> str:
        return f"{self.server.url}/{bucket}/{name}" if bucket else self.server.stream(name)

    def make(
        self, name: str, *bodies: object, kind: dict[str, str] = JSON, bucket: str = ""
    ) -> str:
        url = self.url(name, bucket)
        reply = self.http.put(url, headers=kind)
        assert reply.status_code == 201, reply.text
        self.add(name, *bodies, kind=kind, bucket=bucket)
        return url

    def add(self, name: str, *bodies: object, kind: dict[str, str] = JSON, bucket: str = "") -> str:
        """Append; return the offset after it."""
        after = ""
        for body in bodies:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            reply = self.http.post(self.url(name, bucket), headers=kind, content=content)
            assert reply.status_code in (200, 204), reply.text
            after = reply.headers["stream-next-offset"]
        return after

    def bucket(self, name: str) -> None:
        assert self.http.put(f"{self.server.url}/{name}").status_code == 201

    def fold(self, name: str, offset: str, blob: object, bucket: str = "") -> None:
        url = f"{self.url(name, bucket)}/snapshot/{offset}"
        reply = self.http.put(url, headers=JSON, content=json.dumps(blob).encode())
        assert reply.status_code == 204, reply.text

    def retain(self, name: str, offset: str) -> None:
        reply = self.http.patch(self.url(name), headers={"Stream-Retain-From": offset})
        assert reply.status_code == 204, reply.text

    def delete(self, name: str, bucket: str = "") -> None:
        assert self.http.delete(self.url(name, bucket)).status_code == 204

    def values(self, name: str, bucket: str = "") -> list[object]:
        reply = self.http.get(f"{self.url(name, bucket)}?offset=-1")
        assert reply.status_code == 200, reply.text
        found = reply.json()
        assert isinstance(found, list)
        return found


def overheard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each request."""
    asked: list[str] = []
    send = client_module.Client._send

    def spy(self: client_module.Client, method: str, url: str, *rest: object) -> object:
        asked.append(url)
        return send(self, method, url, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(client_module.Client, "_send", spy)
    return asked
