"""dsadmin run in this process, on data that a real daemon wrote."""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from durastreamd.admin.cli import main
from durastreamd.kit.console import Console
from tests.support.daemon import Daemon

JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"

ROUNDS = 60  # of appends to each stream

# Small files, so that a test's data has several segments and checkpoints come while it is written.
SMALL = {"engine.segment_bytes_max": 3000, "engine.journal_bytes_max": 30_000}


# As a shell starts it: with output buffered unless the program does something about it.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


class Result(NamedTuple):
    """What a command left."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def records(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


def run(*arguments: str | Path) -> Result:
    """Run one command as the program would."""
    raw = io.BytesIO()
    out, err = io.TextIOWrapper(raw, "utf-8", write_through=True), io.StringIO()
    status = main([str(a) for a in arguments], Console(out, err))
    out.flush()
    return Result(status, raw.getvalue(), err.getvalue())


def tree(root: Path) -> dict[str, str]:
    """Return what every file of a directory holds."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def pages(url: str, start: str = "-1") -> Iterator[bytes]:
    """Yield the bodies a catching-up client gets."""
    offset = start
    while True:
        answer = httpx.get(url, params={"offset": offset}).raise_for_status()
        yield answer.content
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            return


def whole(url: str, start: str = "-1") -> bytes:
    """Return all that a client gets, JSON as one array."""
    found = list(pages(url, start))
    if httpx.head(url).headers["Content-Type"] != JSON:
        return b"".join(found)
    return b"[" + b",\n".join(page[1:-1] for page in found if page != b"[]") + b"]"


def fill(daemon: Daemon) -> None:
    """Make streams of every kind: JSON, text, bytes, a fork of each sort, snapshots, a bucket."""
    with httpx.Client(base_url=daemon.url) as client:

        def put(path: str, content: bytes = b"", **headers: str) -> httpx.Response:
            names = {key.replace("_", "-"): value for key, value in headers.items()}
            return client.put(path, content=content, headers=names).raise_for_status()

        def post(path: str, content: bytes, kind: str, **headers: str) -> str:
            names = {key.replace("_", "-"): value for key, value in headers.items()}
            answer = client.post(path, content=content, headers={"Content-Type": kind, **names})
            return str(answer.raise_for_status().headers["Stream-Next-Offset"])

        orders, log, blob = "/v1/stream/orders/1", "/v1/stream/log", "/v1/stream/blob"
        put(orders, b'[{"n": 0}]', content_type=JSON)
        put(log, b"", content_type=TEXT)
        put(blob, bytes(range(256)), content_type=BYTES)
        kept = ""
        for n in range(ROUNDS):
            body = b'[{"n": %d, "long": "%s"}, %d]' % (n, b"x" * 130, n)
            ids = {"Producer_Id": "p 1", "Producer_Epoch": "0", "Producer_Seq": str(n)}
            middle = post(orders, body, JSON, **ids)
            cut = post(log, b"line %d\r\n" % n, TEXT)
            post(blob, bytes([n]) * 100, BYTES)
            if n == ROUNDS // 2:
                put("/v1/stream/fork", Stream_Forked_From=orders, Stream_Fork_Offset=middle)
                put("/v1/stream/cut", b"", content_type=TEXT)
                kept = cut
        post("/v1/stream/fork", b'"its own"', JSON)
        put(
            "/v1/stream/part",
            Stream_Forked_From=blob,
            Stream_Fork_Offset="-1",
            Stream_Fork_Sub_Offset="100",
        )
        post("/v1/stream/part", b"\0own\xff", BYTES)
        client.put(f"{log}/snapshot/{kept}", content=b"folded").raise_for_status()
        client.put("/team").raise_for_status()
        put("/team/a%20b", b"in a bucket", content_type=TEXT, Stream_TTL="600")
        post("/v1/stream/cut", b"done", TEXT, Stream_Closed="true")
        put("/v1/stream/none", content_type=JSON)
