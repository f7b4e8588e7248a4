"""A producer: each message once, whatever breaks, dies or is copied."""

import errno
import os
from pathlib import Path

import pytest

from durastreamd.client import (
    ClientSettings,
    DurableStream,
    FencedError,
    IdempotentProducer,
    ProducerError,
    ProducerLimits,
    ReplacedError,
    ServerRefusedError,
    StateError,
    StateLockedError,
    UnreachableError,
)
from tests.support.daemon import Daemon
from tests.support.plain_server import PlainServer, Scripted, plain_server

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)
HASTY = ClientSettings(retry_s=0, timeout_s=5)
SMALL = ProducerLimits(batch_messages_max=3, in_flight_max=4)


def made(daemon: Daemon, name: str, kind: str = "application/json") -> DurableStream:
    stream = DurableStream(daemon.stream(name), QUICK)
    stream.create(kind)
    return stream


def values(stream: DurableStream) -> list[bytes]:
    return [each.data for each in stream.messages()]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def test_messages_are_gathered_and_arrive_in_order(daemon: Daemon) -> None:
    with made(daemon, "order") as stream:
        with IdempotentProducer(stream, limits=SMALL) as producer:
            for number in range(100):
                producer.append_json(number)
            assert producer.flush() == stream.head().next_offset
            assert producer.pending == 0
        assert values(stream) == numbers(100)


def test_other_messages_go_one_by_one_unless_they_may_be_joined(daemon: Daemon) -> None:
    with made(daemon, "text", "text/plain") as stream:
        with IdempotentProducer(stream) as producer:
            for word in ("one\n", "two\n"):
                producer.append(word)
        with IdempotentProducer(stream, join=True) as producer:
            for word in ("three\n", "four\n"):
                producer.append(word)
        assert values(stream) == [b"one\n", b"two\n", b"three\nfour\n"]


@pytest.mark.parametrize("text", ["1,2", "", "NaN", '{"a": 1', "[1] 2", "\ud800"])
def test_what_is_not_one_value_never_gets_into_a_batch(daemon: Daemon, text: str) -> None:
    with made(daemon, "strict") as stream, IdempotentProducer(stream) as producer:
        with pytest.raises(ValueError, match=r"not one JSON value|at least one byte|surrogates"):
            producer.append(text)
        producer.append("1")
        producer.flush()


def test_a_name_that_wrote_before_takes_a_later_epoch_by_itself(daemon: Daemon) -> None:
    with made(daemon, "named") as stream:
        epochs = []
        for number in range(3):
            with IdempotentProducer(stream, "sensor") as producer:
                producer.append_json(number)
            epochs.append(producer.epoch)
        assert values(stream) == numbers(3), "none was taken for a repeat of another life's"
        assert epochs == sorted(epochs)
        with IdempotentProducer(stream, "sensor") as producer:
            producer._core.state.epoch = 5  # a clock that was set back
            producer.append_json(3)
            producer.flush()
            assert producer.epoch > max(epochs), "the server told which one it knows"
        assert values(stream) == numbers(4)


def test_a_producer_whose_name_is_taken_over_is_told_so(daemon: Daemon) -> None:
    with made(daemon, "fenced") as stream:
        older = IdempotentProducer(stream, "sensor")
        older.append_json(0)
        older.flush()
        with IdempotentProducer(stream, "sensor") as newer:
            newer._core.state.epoch = older.epoch + 1
            newer.append_json(1)
        older.append_json(2)
        with pytest.raises(FencedError, match="STALE_EPOCH"):
            older.close()
        assert values(stream) == numbers(2)


def test_a_stream_is_closed_with_the_last_batch(daemon: Daemon) -> None:
    with made(daemon, "closing") as stream:
        with IdempotentProducer(stream) as producer:
            producer.append_json(0)
            producer.close_stream()
        assert stream.head().closed
        with IdempotentProducer(stream) as producer:
            producer.append_json(1)
            with pytest.raises(ServerRefusedError, match="STREAM_CLOSED"):
                producer.flush()
            producer._core.state.pending.clear()
        assert values(stream) == numbers(1)


# --- over the death of the program ---


class KilledError(BaseException):
    """What no part of the client catches, as it would not catch a kill."""


def work(stream: DurableStream, state: Path, upto: int) -> None:
    """A program that appends the numbers below ``upto`` and may be killed anywhere."""
    with IdempotentProducer(stream, "worker", state=state, limits=SMALL) as producer:
        for number in range(int(producer.mark or -1) + 1, upto):
            producer.append_json(number, mark=str(number))


@pytest.mark.parametrize("place", ["_save", "_launch", "_settled"])
def test_a_program_that_is_killed_anywhere_goes_on_exactly_once(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    state = tmp_path / "state"
    with made(daemon, f"killed{place}") as stream:
        original = getattr(IdempotentProducer, place)
        for death in range(1, 12):
            calls = 0

            def dies(self: IdempotentProducer, *args: object, at: int = death) -> object:
                nonlocal calls
                calls += 1
                if calls == at:  # before it is done, or after
                    if at % 2:
                        original(self, *args)
                    raise KilledError
                return original(self, *args)

            with monkeypatch.context() as patch:
                patch.setattr(IdempotentProducer, place, dies)
                with pytest.raises(KilledError):
                    work(stream, state, 1000)
        work(stream, state, 1000)
        assert values(stream) == numbers(1000)


def test_what_was_on_its_way_is_sent_again_although_nobody_gives_it_again(
    daemon: Daemon, tmp_path: Path
) -> None:
    with made(daemon, "spilled", "text/plain") as stream:
        state = tmp_path / "state"
        first = IdempotentProducer(stream, state=state)
        first.append("from a pipe", mark="11")
        first._core.take()
        first._core.note(1)
        first._save()
        first.abandon()  # killed before it was sent
        with IdempotentProducer(stream, state=state) as second:
            assert second.mark == "11"
        assert values(stream) == [b"from a pipe"]
        with IdempotentProducer(stream, state=state):
            pass
        assert values(stream) == [b"from a pipe"]


def test_two_producers_cannot_have_one_state_file(daemon: Daemon, tmp_path: Path) -> None:
    with made(daemon, "shared") as stream:
        with IdempotentProducer(stream, state=tmp_path / "state"):
            with pytest.raises(StateLockedError, match="in use by another process"):
                IdempotentProducer(stream, state=tmp_path / "state")
        IdempotentProducer(stream, state=tmp_path / "state").close()


def test_a_state_file_that_was_cut_or_changed_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with made(daemon, "cut") as stream:
        work(stream, state, 3)
        whole = state.read_bytes()
        places = [0, 10, len(whole) // 2, len(whole) - 1]
        for damaged in [*(whole[:cut] for cut in places), whole.replace(b"worker", b"wonder")]:
            state.write_bytes(damaged)
            with pytest.raises(StateError, match="is damaged"):
                work(stream, state, 6)
        state.write_bytes(whole)
        work(stream, state, 6)
        assert values(stream) == numbers(6)


def test_an_old_copy_of_a_state_file_is_noticed_before_anything_is_lost(
    daemon: Daemon, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with made(daemon, "copied") as stream:
        work(stream, state, 3)
        old = state.read_bytes()
        work(stream, state, 6)
        state.write_bytes(old)
        with pytest.raises(ProducerError, match="never sent from here"):
            work(stream, state, 9)
        assert values(stream) == numbers(6)


def test_a_state_file_is_bound_to_its_stream_and_its_name(daemon: Daemon, tmp_path: Path) -> None:
    with made(daemon, "bound") as stream, made(daemon, "other") as other:
        work(stream, tmp_path / "state", 1)
        with pytest.raises(ProducerError, match="belongs to http"):
            IdempotentProducer(other, state=tmp_path / "state")
        with pytest.raises(ProducerError, match="belongs to the producer worker"):
            IdempotentProducer(stream, "somebody", state=tmp_path / "state")


def test_a_stream_that_was_made_anew_is_not_written_on(daemon: Daemon, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with made(daemon, "anew") as stream:
        producer = IdempotentProducer(stream)
        producer.append_json(0)
        producer.flush()
        work(stream, state, 3)
        stream.delete()
        stream.create()
        with pytest.raises(ReplacedError, match="deleted and made anew"):
            work(stream, state, 6)
        producer.append_json(1)
        with pytest.raises(ServerRefusedError, match="412"):
            producer.flush()
        producer.abandon()
        assert values(stream) == []


def test_a_full_disk_stops_it_before_anything_is_sent(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with made(daemon, "full") as stream:
        work(stream, state, 3)

        def full(_file: int, _data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr("durastreamd.client.producer_state.os.write", full)
            with pytest.raises(StateError, match="No space left on device"):
                work(stream, state, 9)
        assert values(stream) == numbers(3), "nothing was sent that is not written down"
        assert [each.name for each in tmp_path.iterdir() if ".new" in each.name] == []
        work(stream, state, 9)
        assert values(stream) == numbers(9)


# --- servers that fail ---


def scripted(server: PlainServer, *answers: Scripted) -> DurableStream:
    server.streams["/v1/stream/x"] = ("application/json", [])
    server.script += [Scripted(200, {"Content-Type": "application/json", **TOLD}), *answers]
    return DurableStream(f"{server.url}/v1/stream/x", QUICK)


TOLD = {"Stream-Next-Offset": "tokb"}
STORED = Scripted(200, {**TOLD, "Producer-Epoch": "0", "Producer-Seq": "0"})
KNOWN = Scripted(204, {**TOLD, "Producer-Epoch": "0", "Producer-Seq": "0"})


def sent(server: PlainServer) -> list[str]:
    return [headers["producer-seq"] for method, _, headers in server.seen if method == "POST"]


@pytest.mark.parametrize("trouble", [Scripted(0), Scripted(-1), Scripted(502, {}, b"<html>")])
def test_a_repeat_that_is_recognised_counts_as_stored(trouble: Scripted) -> None:
    with plain_server() as server, scripted(server, trouble, KNOWN) as stream:
        with IdempotentProducer(stream) as producer:
            producer.append_json(1)
        assert sent(server) == ["0", "0"]


def test_a_repeat_that_was_never_sent_is_somebody_else_s() -> None:
    with plain_server() as server, scripted(server, KNOWN) as stream:
        with pytest.raises(ProducerError, match="another program uses this name"):
            with IdempotentProducer(stream) as producer:
                producer.append_json(1)


def test_a_server_that_forgot_what_it_acknowledged_is_not_written_on() -> None:
    gap = Scripted(409, {"Producer-Expected-Seq": "0"}, b"{}")
    with plain_server() as server, scripted(server, STORED, gap, gap) as stream:
        with pytest.raises(ProducerError, match="All before 1 was acknowledged"):
            with IdempotentProducer(stream) as producer:
                producer.append_json(1)
                producer.flush()
                producer.append_json(2)


def test_epochs_are_not_claimed_for_ever() -> None:
    fenced = [
        Scripted(403, {"Producer-Epoch": str(epoch)}, b'{"code": "PERMISSION_DENIED"}')
        for epoch in range(20)
    ]
    with plain_server() as server, scripted(server, *fenced) as stream:
        with pytest.raises(FencedError):
            with IdempotentProducer(stream) as producer:
                producer.append_json(1)
        assert len(sent(server)) == 7
        server.script.clear()


def test_what_could_not_be_sent_stays_and_is_sent_by_the_next_flush() -> None:
    with plain_server() as server, scripted(server) as stream:
        producer = IdempotentProducer(stream)
        stream.client.settings = HASTY
        producer.append_json(1)
        server.script += [Scripted(0)] * 3
        with pytest.raises(UnreachableError):
            producer.flush()
        assert producer.pending == 1
        server.script.append(KNOWN)
        producer.close()
        assert sent(server) == ["0"] * 4
