"""``ds bench``: load a server, and verify what it reads.

Each writer appends to a stream of its own, as a producer, and a reader follows it. Each
message names its writer and its number and carries a sum over all messages before it, so that what
is lost, doubled, reordered or changed is seen by the reader, not counted.
"""

import argparse
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from durastreamd.client import (
    ClientError,
    ClientSettings,
    DurableStream,
    IdempotentProducer,
    ProducerLimits,
    resolve,
)
from durastreamd.ds.server import settings_of
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, OK, USAGE

SIZE_MIN = 120  # bytes: what a message needs to be verified


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "prefix", nargs="?", default="bench", metavar="PREFIX", help="of the streams' names (bench)"
    )
    add("--streams", type=int, default=4, metavar="NUMBER", help="writers, a stream each (4)")
    add("--messages", type=int, default=1000, metavar="NUMBER", help="to each stream (1000)")
    add("--size", type=int, default=256, metavar="BYTES", help="of a message (256)")
    add("--batch", type=int, default=1, metavar="NUMBER", help="messages in an append (1)")
    add("--keep", action="store_true", help="do not delete the streams at the end")


@dataclass
class _Stream:
    """One stream of the run: who writes it, who reads it, what they saw."""

    number: int
    url: str
    settings: ClientSettings
    count: int
    size: int
    batch: int
    read: int = 0
    wrong: str = ""
    delays: list[float] = field(default_factory=list)

    def write(self) -> None:
        chain = hashlib.sha256()
        with DurableStream(self.url, self.settings) as stream:
            limits = ProducerLimits(batch_messages_max=self.batch)
            with IdempotentProducer(stream, limits=limits) as producer:
                for number in range(self.count):
                    message = self._message(number, chain.hexdigest()[:32])
                    chain.update(message)
                    producer.append(message)
                producer.close_stream()

    def _message(self, number: int, chain: str) -> bytes:
        said = {"w": self.number, "n": number, "t": time.monotonic_ns(), "c": chain, "p": ""}
        bare = json.dumps(said).encode()
        return bare[:-2] + b"x" * max(self.size - len(bare), 0) + b'"}'

    def follow(self) -> None:
        chain = hashlib.sha256()
        with DurableStream(self.url, self.settings) as stream:
            for message in stream.messages(live=True):
                said = json.loads(message.data)
                wanted = (self.number, self.read, chain.hexdigest()[:32])
                if (said["w"], said["n"], said["c"]) != wanted:
                    self.wrong = f"message {self.read} of {self.url} is not the one that was sent"
                    return
                self.delays.append((time.monotonic_ns() - said["t"]) / 1e6)
                chain.update(message.data)
                self.read += 1
        if self.read != self.count:
            self.wrong = f"{self.url}: {self.read} of {self.count} messages came"


def _run(args: argparse.Namespace, console: Console) -> int:
    if min(args.streams, args.messages, args.batch) < 1 or args.size < SIZE_MIN:
        text = f"numbers are at least 1, and a message that can be verified {SIZE_MIN} bytes"
        raise CommandError(USAGE, text)
    settings, run = settings_of(args), secrets.token_hex(4)
    streams = [
        _Stream(
            number,
            resolve(f"{args.prefix}/{run}/{number}", args.server),
            settings,
            args.messages,
            args.size,
            args.batch,
        )
        for number in range(args.streams)
    ]
    for each in streams:
        with DurableStream(each.url, settings) as stream:
            stream.create()
    begun = time.monotonic()
    failed = _together([work for each in streams for work in (each.write, each.follow)])
    seconds = time.monotonic() - begun
    if failed is not None:
        raise failed
    wrong = next((each.wrong for each in streams if each.wrong), "")
    if wrong:
        raise CommandError(CORRUPT, f"{wrong}; the streams are kept to look at")
    if not args.keep:
        for each in streams:
            with DurableStream(each.url, settings) as stream:
                stream.delete()
    _report(console, streams, seconds)
    return OK


def _together(works: list[Callable[[], None]]) -> ClientError | None:
    """Do all of it at once; return the first failure."""
    failures: list[ClientError] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except ClientError as exc:
            failures.append(exc)

    # Daemons: a reader whose writer failed waits for what never comes.
    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.1)
    return failures[0] if failures else None


def _report(console: Console, streams: list[_Stream], seconds: float) -> None:
    delays = sorted(delay for each in streams for delay in each.delays)
    count, size = len(delays), sum(each.read * each.size for each in streams)
    told: dict[str, object] = {
        "streams": len(streams),
        "messages": count,
        "verified": count,
        "seconds": round(seconds, 3),
        "messages_per_s": round(count / seconds, 1),
        "bytes_per_s": round(size / seconds),
        "delivery_ms_p50": round(delays[count // 2], 2),
        "delivery_ms_p99": round(delays[min(count * 99 // 100, count - 1)], 2),
    }
    if console.as_json:
        console.record(told)
        return
    width = max(map(len, told))
    for name, value in told.items():
        text = f"{show.size(float(str(value)))}/s" if name == "bytes_per_s" else str(value)
        console.line(f"{name.ljust(width)}  {text}")


COMMAND = Command("bench", "load a server and verify what it reads", _add_arguments, _run)
