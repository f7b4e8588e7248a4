"""The log of a batch: the first run that is committed is what is written, whatever comes after."""

import uuid
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from durastreamd.client import Client
from durastreamd.spark.errors import SinkError
from durastreamd.spark.server import commits
from durastreamd.spark.server.commits import (
    LogHeader,
    LogRecord,
    RowsRecord,
    StagedRecord,
    decoded,
    segment_of,
)
from durastreamd.spark.server.sink import BatchSinkWriter, StreamSinkWriter
from tests.spark.driving import Hand
from tests.spark.writing import BOTH, VALUE, batches, options, run, task


def logs(hand: Hand) -> set[str]:
    """Return the streams that batches are kept in."""
    found = hand.http.get(f"{hand.server.url}/v1/stream/?prefix=spark-commits/").json()
    return {each["stream_id"] for each in found["streams"]}


@given(st.text(max_size=8), st.text(max_size=8))
def test_every_name_is_a_segment_of_its_own(one: str, other: str) -> None:
    assert (segment_of(one) == segment_of(other)) == (one == other)
    assert not set(segment_of(one)) & set("/%?#")


def test_a_producer_may_have_a_slash_in_its_name(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    writer = StreamSinkWriter(options(hand, stream=name, producerId=f"a/{name}~%"), VALUE)
    writer.commit([*run(monkeypatch, writer, [["1"], ["2"]], 0)], 0)
    assert hand.values(name) == [1, 2]


TEXTS = st.lists(st.lists(st.integers(0, 99).map(str), max_size=6), min_size=1, max_size=4)


class KilledError(Exception):
    """Stands for a driver that was killed."""


@given(
    runs=st.lists(st.tuples(TEXTS, st.integers(0, 9)), min_size=1, max_size=3),
    last=TEXTS,
    limit=st.integers(1, 30),
    inline=st.integers(0, 8),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_first_run_that_is_committed_is_what_is_written_whatever_later_runs_bring(
    hand: Hand,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[tuple[list[list[str]], int]],
    last: list[list[str]],
    limit: int,
    inline: int,
) -> None:
    """Runs of one batch with any rows in any layout, each killed before any of its requests."""
    name = f"runs-{uuid.uuid4().hex[:12]}"
    hand.make(name)
    monkeypatch.setattr(commits, "INLINE_BYTES_MAX", inline)
    made = options(hand, stream=name, producerId=name, maxAppendBytes=limit)
    writer = StreamSinkWriter(made, VALUE)
    request = Client.request
    settled: list[str] | None = None
    for layout, reached in [*runs, (last, 999)]:
        left, brought = reached, [value for values in layout for value in values]

        def dying(
            self: Client,
            method: str,
            url: str,
            *rest: object,
            rows: list[str] = brought,
            **more: object,
        ) -> object:
            nonlocal left, settled
            left -= 1
            if left < 0:
                raise KilledError
            reply = request(self, method, url, *rest, **more)  # type: ignore[arg-type]
            if method == "PUT" and url.endswith("/5") and reply.status == 201:
                settled = rows
            return reply

        messages = run(monkeypatch, writer, layout, 5)
        with monkeypatch.context() as patch, suppress(KilledError):
            patch.setattr(Client, "request", dying)
            writer.commit([*messages, None], 5)
    assert [str(value) for value in hand.values(name)] == (settled or [])
    writer.commit([*run(monkeypatch, writer, [["7"]], 6)], 6)
    assert hand.values(name)[len(settled or []) :] == [7]
    left_over = {each for each in logs(hand) if each.startswith(f"spark-commits/{name}.driver/")}
    assert f"spark-commits/{name}.driver/5" not in left_over, "batch 6 is committed"


def test_rows_of_many_streams_and_a_size_that_is_staged_arrive_in_order(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "INLINE_BYTES_MAX", 100)
    made = options(hand, createStreams="true", maxAppendBytes=500)
    writer = BatchSinkWriter(made, BOTH)
    rows: list[dict[str, object]] = [
        {"stream": f"{name}-{n % 3}", "value": f'"{n:03}"'} for n in range(300)
    ]
    before = logs(hand)
    with task(monkeypatch, 0, None):
        message = writer.write(batches(rows))
    assert message.staged
    writer.commit([message])
    for rest in range(3):
        assert hand.values(f"{name}-{rest}") == [f"{n:03}" for n in range(300) if n % 3 == rest]
    assert logs(hand) == before, "nothing is left of a job that is done"


def test_two_queries_of_one_producer_are_told_apart(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    writer = StreamSinkWriter(options(hand, stream=name, producerId=name), VALUE)
    (first,) = run(monkeypatch, writer, [["1"]], 0)
    assert first is not None
    writer.commit([first], 0)
    first.query = "another"
    with pytest.raises(SinkError, match=r"written by another query, q; give each its own"):
        writer.commit([first], 0)


def test_a_place_that_may_not_be_written_is_told_with_what_to_do(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    log = f"{hand.server.url}/no-such-bucket"
    writer = StreamSinkWriter(options(hand, stream=name, commitLog=log), VALUE)
    messages = run(monkeypatch, writer, [["1"]], 0)
    with pytest.raises(SinkError, match=r"option commitLog, .*commitMode=partition"):
        writer.commit([*messages], 0)


def test_an_aborted_run_leaves_no_staged_rows(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    monkeypatch.setattr(commits, "INLINE_BYTES_MAX", 0)
    before = logs(hand)
    writer = StreamSinkWriter(options(hand, stream=name), VALUE)
    messages = run(monkeypatch, writer, [["1"], ["2"]], 3)
    assert len(logs(hand)) == len(before) + 2
    writer.abort([*messages, None], 3)
    assert logs(hand) == before


@given(
    values=st.lists(st.binary(max_size=20), max_size=5),
    cuts=st.lists(st.integers(1, 30), min_size=1),
)
def test_a_log_is_read_from_pages_that_end_anywhere(values: list[bytes], cuts: list[int]) -> None:
    records: list[LogRecord] = [
        LogHeader("q", 7),
        RowsRecord("a\n", tuple(values)),
        StagedRecord("http://x/"),
    ]
    data = b"".join(each.encode() for each in [*records, records[1]])
    pages, at = [], 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        pages.append(data[at : at + size])
        at += size
    assert [*decoded(pages)] == [*records, records[1]]
    with pytest.raises(SinkError, match="ends in the midst"):
        [*decoded([data[:-1] if values and values[-1] else data + b"{"])]
    with pytest.raises(SinkError, match="another version"):
        [*decoded([b'{"v": 2}\n'])]
