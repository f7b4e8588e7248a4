"""A bad night: the disk fills, a token is rotated, the keys are renewed, the process is killed.

All the while producers append and 500 readers follow over TLS. In the morning every acknowledged
byte is there, everybody saw each byte once, and the metrics tell what happened.
"""

import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio

from tests.service.guards import bearer, write
from tests.support.daemon import ROOT, Daemon, make_certificates
from tests.support.file_systems import small_file_system
from tests.support.patience import PATIENCE_S
from tests.system.night import DUPLICATE, TEXT, Operator, Place, Producer, Reader, Secrets, Wire

pytestmark = [pytest.mark.system, pytest.mark.slow]

READERS, STREAMS = 500, 10
PACE_S = 0.1  # between two appends to one stream
NEWS = 6  # appends to each stream that are waited for after each event of the night
LOOK_S = 0.02
KIB, MIB = 1024, 1024 * 1024
DISK, RESERVE = "24m", 6 * MIB
SETTINGS = {
    "disk.free_bytes_min": RESERVE,
    "disk.free_bytes_resume": 8 * MIB,
    "disk.check_s": 0.05,
    "engine.journal_bytes_max": 256 * KIB,
    "engine.segment_bytes_max": 32 * KIB,
    "reads.sse_s": 600,  # every end of an answer has its reason here
    "http.tls_handshake_s_max": 60,  # five hundred at once on a busy machine
}
WATCH = "t0ken-of-the-operator"
OLD, NEW = "t0ken-before", "t0ken-after"
LAST = "/v1/stream/last"


@dataclass
class Night:
    """Everything that goes on."""

    daemon: Daemon
    place: Place
    tokens: Path
    producers: list[Producer]
    readers: list[Reader]
    http: httpx.AsyncClient
    operator: Operator

    def grant(self, token: str) -> None:
        """Write the file of those who may do something; the operator always may."""
        write(self.tokens, {WATCH: "scopes=admin", token: "scopes=read,write"})

    async def reload(self) -> None:
        """Send HUP and wait until it is obeyed."""
        since = (self.daemon.home / "durastreamd.stderr").stat().st_size
        self.daemon.signal(signal.SIGHUP)
        await trio.to_thread.run_sync(self.daemon.wait_for, "reloaded; changed:", since)

    def count(self, what: Callable[[Reader], int]) -> int:
        return sum(map(what, self.readers))

    def count_answers(self, status: int) -> int:
        return sum(each.statuses.get(status, 0) for each in self.producers)

    async def all_saw_news(self) -> None:
        """Wait until appends taken after this moment were seen by all readers of each stream."""
        wanted = {each.path: each.acknowledged + NEWS for each in self.producers}
        marks: dict[str, int] = {}

        def seen() -> bool:
            for each in self.producers:
                if each.path not in marks and each.acknowledged >= wanted[each.path]:
                    marks[each.path] = each.acknowledged_bytes
            return len(marks) == STREAMS and all(
                each.position >= marks[each.producer.path] for each in self.readers
            )

        await until(seen, "not every reader saw new appends")

    async def all_live(self) -> None:
        await until(lambda: self.count(lambda each: each.live) == READERS, "a reader is away")


async def until(true: Callable[[], bool], why: str) -> None:
    with trio.move_on_after(PATIENCE_S):
        while not true():
            await trio.sleep(LOOK_S)
        return
    raise AssertionError(why)


@asynccontextmanager
async def begun(home: Path, listener: socket.socket) -> AsyncIterator[Night]:
    """Start the server on a socket that stays, the producers, and the readers."""
    tokens = home / "tokens"
    settings = {**SETTINGS, "access.tokens_file": tokens}
    daemon = Daemon(home, tls=True, settings=settings, listener=listener)
    assert daemon.certificates is not None
    trust = ssl.create_default_context(cafile=str(daemon.certificates.authority))
    place = Place(listener.getsockname()[1], trust, Secrets(OLD))
    producers = [Producer(place, f"s{number}", PACE_S) for number in range(STREAMS)]
    readers = [Reader(place, producers[number % STREAMS]) for number in range(READERS)]
    async with place.client() as http:
        night = Night(daemon, place, tokens, producers, readers, http, Operator(http, WATCH))
        night.grant(OLD)
        with daemon:
            for each in producers:
                made = await http.put(each.path, headers=bearer(OLD, **TEXT))
                assert made.status_code == 201, made.text
            async with trio.open_nursery() as nursery:
                for run in [each.run for each in producers] + [each.run for each in readers]:
                    nursery.start_soon(run)
                yield night
                nursery.cancel_scope.cancel()


# --- what happens, one after the other ---


async def evening(night: Night) -> None:
    """Nothing is wrong yet."""
    await night.all_live()
    await night.all_saw_news()
    told = await night.operator.metrics()
    assert told['live_readers{mode="sse"}'] == READERS
    assert told["ready"] == 1
    assert told["low_space_refusals_total"] == 0
    assert told['auth_failures_total{reason="invalid"}'] == 0
    assert told["live_readers_revoked_total"] == 0
    assert (await night.operator.ready())[0] == 200


async def disk_fills(night: Night) -> None:
    """Somebody else uses up the disk, and somebody gives it back."""
    data = night.daemon.home / "data"
    ballast = data / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(data).free - RESERVE + MIB))
    await until(
        lambda: all(each.statuses.get(507, 0) > 1 for each in night.producers),
        "an append is taken though the disk is nearly full",
    )
    first = night.producers[0]
    read = await night.http.get(f"{first.path}?offset=-1", headers=bearer(OLD))
    assert read.content == first.sent[: first.acknowledged_bytes], "reads go on"
    assert (await night.operator.ready())[0] == 503
    refusals = night.count_answers(507)
    told = await night.operator.metrics()
    assert told["low_space_refusals_total"] >= refusals > 0
    assert told["disk_free_bytes"] < RESERVE
    assert told["ready"] == 0
    assert told['live_readers{mode="sse"}'] == READERS
    ballast.unlink()
    await night.all_saw_news()
    told = await night.operator.metrics()
    assert told["ready"] == 1
    assert told["disk_free_bytes"] > RESERVE
    assert told["reclaimed_bytes_total"] == 0, "the room that came back was not ours"


async def token_is_rotated(night: Night) -> None:
    """The token of everybody is replaced; they find out by being refused."""
    night.place.secrets.token = NEW
    night.grant(NEW)
    await night.reload()
    refused = await night.http.get(f"{night.producers[0].path}?offset=-1", headers=bearer(OLD))
    assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED")
    await until(lambda: all(each.denied for each in night.readers), "an old token is still good")
    await night.all_live()
    await night.all_saw_news()
    assert night.count(lambda each: each.broken) == 0, "each answer came to a proper end"
    assert night.count(lambda each: each.ended) == READERS
    told = await night.operator.metrics()
    assert told["live_readers_revoked_total"] == READERS
    denied = night.count(lambda each: each.denied) + night.count_answers(401) + 1
    assert told['auth_failures_total{reason="invalid"}'] == denied
    assert told['live_readers{mode="sse"}'] == READERS


async def keys_are_renewed(night: Night) -> None:
    """New connections are shown the new certificate; those that are open are not disturbed."""
    first = await shown_serial(night)
    renewed = make_certificates(night.daemon.home)
    night.place.trust.load_verify_locations(renewed.authority)
    await night.reload()
    assert await shown_serial(night) != first
    await night.all_saw_news()
    assert night.count(lambda each: each.connections) == READERS, "nobody had to connect again"
    assert night.count(lambda each: each.broken) == 0


async def shown_serial(night: Night) -> object:
    async with await night.place.knock() as stream:
        await stream.do_handshake()
        return stream.getpeercert()["serialNumber"]


async def process_is_killed(night: Night) -> None:
    """It dies in the middle of everything; whoever comes back waits in the socket."""
    before = await night.operator.metrics()
    assert before['live_readers{mode="sse"}'] == READERS
    last = await night.http.put(LAST, headers=bearer(NEW, **TEXT), content=b"acknowledged")
    night.daemon.kill9()  # no await in between: no checkpoint comes first
    assert last.status_code == 201
    await until(lambda: all(each.knocking for each in night.readers), "a reader did not come back")
    await trio.to_thread.run_sync(night.daemon.start)
    await night.all_live()
    async with await night.place.knock() as stream:
        for each in night.producers:  # as one whose last answer was lost
            assert await each.offer(Wire(stream), each.acknowledged - 1) == DUPLICATE
    read = await night.http.get(f"{LAST}?offset=-1", headers=bearer(NEW))
    assert read.content == b"acknowledged"
    await night.all_saw_news()
    assert night.count(lambda each: each.refused) == 0, "the socket was there all the time"
    assert night.count(lambda each: each.broken) == READERS
    told = await night.operator.metrics()
    assert told["start_time_seconds"] > before["start_time_seconds"]
    assert told["recovery_replayed_records"] > 0
    assert told["recovery_replayed_bytes"] > 0
    assert told["recovery_duration_seconds"] > 0
    assert told['append_requests_total{result="duplicate"}'] >= STREAMS
    assert told['live_readers{mode="sse"}'] == READERS
    assert told["damaged_streams"] == 0
    assert told['auth_failures_total{reason="invalid"}'] == 0, "the new token outlived the process"


async def morning(night: Night) -> None:
    """Everything acknowledged is there, once; the server is stopped in order."""
    for each in night.producers:
        each.working = False
    await until(lambda: all(each.settled for each in night.producers), "an append is not taken")
    await until(
        lambda: all(each.position == each.producer.acknowledged_bytes for each in night.readers),
        "a reader did not see all",
    )
    for each in night.producers:
        assert each.acknowledged >= 5 * NEWS
        read = await night.http.get(f"{each.path}?offset=-1", headers=bearer(NEW))
        messages = (each.message(number) for number in range(each.acknowledged))
        assert read.content == b"".join(messages) == each.sent
    before = night.count(lambda each: each.ended)
    assert await trio.to_thread.run_sync(night.daemon.terminate) == 0
    await until(
        lambda: night.count(lambda each: each.ended) == before + READERS,
        "a drain cut a reader off",
    )


def check_data(data: Path) -> None:
    place = ["--data-dir", str(data)]
    command = [sys.executable, "-m", "durastreamd", "admin", *place, "verify", "--deep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_bad_night_loses_nothing_and_can_be_told_afterwards(tmp_path: Path) -> None:
    with (
        small_file_system(tmp_path / "data", DISK) as data,
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
    ):
        with trio.fail_after(4 * PATIENCE_S):
            async with begun(tmp_path, listener) as night:
                for happens in (evening, disk_fills, token_is_rotated, keys_are_renewed):
                    await happens(night)
                await process_is_killed(night)
                await morning(night)
        await trio.to_thread.run_sync(check_data, data)
    log = (tmp_path / "durastreamd.stderr").read_text()
    assert log.count("appends are refused") == log.count("appends are taken again") == 1
    assert log.count("reloaded; changed:") == 2
    assert "t0ken" not in log
