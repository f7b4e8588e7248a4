"""The source on a server of the base protocol alone: counted places, opaque tokens, small pages."""

import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from durastreamd.spark.errors import DataLossError, OptionError
from durastreamd.spark.server.answers import elements
from durastreamd.spark.server.offsets import initial
from tests.spark.driving import batch_rows, batch_values, drain, replay, step, stream_reader
from tests.support.plain_server import PlainServer, as_json, plain_server, token

JSON = "application/json"
few = settings(max_examples=25)


def furnish(server: PlainServer, *values: object, name: str = "a", kind: str = JSON) -> str:
    messages = as_json(*values) if kind == JSON else [str(value).encode() for value in values]
    server.streams[f"/v1/stream/{name}"] = (kind, messages)
    return f"{server.url}/v1/stream/{name}"


@given(
    size=st.integers(0, 25),
    page=st.integers(1, 8),
    limit=st.integers(0, 9),
    bound=st.integers(0, 9),
)
@few
def test_every_row_comes_once_in_order_whatever_pages_and_limits(
    size: int, page: int, limit: int, bound: int
) -> None:
    with plain_server(page) as server:
        url = furnish(server, *range(size))
        given = {"path": url, "maxOffsetsPerTrigger": limit, "maxBytesPerTrigger": bound}
        found = list(drain(stream_reader(pollTimeoutMs=1, **given)))
        assert [value for each in found for value in each.values] == [str(n) for n in range(size)]
        assert not limit or all(len(each.rows) <= limit for each in found)
        # Each batch once more, after the stream grew, with other options, by another process.
        server.streams["/v1/stream/a"][1].extend(as_json(98, 99))
        again = stream_reader(path=url, maxOffsetsPerTrigger=1, pollTimeoutMs=1)
        for each in found:
            assert replay(again, each.start, each.end) == each
        assert [int(str(value)) for value in batch_values(path=url)] == [*range(size), 98, 99]


def test_rows_are_numbered_and_batches_can_begin_and_end_anywhere() -> None:
    with plain_server() as server:
        url = furnish(server, *range(7))
        assert [row["offset"] for rows in batch_rows(path=url) for row in rows] == list(range(7))
        begun = batch_values(path=url, startingOffsets=f'{{"a": "{token(4)}"}}')
        assert begun == ["4", "5", "6"]
        assert batch_values(path=url, endingOffsets='{"a": 2}') == ["0", "1"]
        with pytest.raises(OptionError, match="does not look up places"):
            batch_values(path=url, startingTimestamp="0")
        with pytest.raises(OptionError, match="cannot count up to an offset"):
            batch_values(path=url, endingOffsets=f'{{"a": "{token(4)}"}}')


def test_latest_and_available_now_work_there_too() -> None:
    with plain_server() as server:
        url = furnish(server, *range(7))
        messages = server.streams["/v1/stream/a"][1]
        late = stream_reader(path=url, startingOffsets="latest", pollTimeoutMs=1)
        first = step(late, initial())
        messages += as_json(7, 8)
        assert (first.rows, step(late, first.end).values) == ([], ["7", "8"])
        now = stream_reader(path=url, maxOffsetsPerTrigger=4, pollTimeoutMs=60_000)
        now.prepareForTriggerAvailableNow()
        runs = drain(now)
        assert next(runs).values == ["0", "1", "2", "3"]
        messages += as_json(9)
        assert [each.values for each in runs] == [["4", "5", "6", "7"], ["8"]]


def test_fewer_messages_than_were_counted_are_a_loss() -> None:
    with plain_server() as server:
        url = furnish(server, *range(7))
        reader = stream_reader(path=url)
        end = reader.latestOffset(initial(), ReadAllAvailable())
        furnish(server, *range(5))
        with pytest.raises(DataLossError, match="5 messages came where 7 were planned"):
            replay(reader, initial(), end)
        careless = stream_reader(path=url, failOnDataLoss="false")
        assert len(replay(careless, initial(), end).rows) == 5


def test_text_is_read_by_lines_and_only_whole_ones() -> None:
    with plain_server() as server:
        url = furnish(server, "one\ntw", "o\nthr", "ee\n", "fo", kind="text/plain")
        with pytest.raises(OptionError, match="set option lineSep"):
            batch_values(path=url)
        server.page = 100
        reader = stream_reader(path=url, lineSep="\n", pollTimeoutMs=1)
        first = step(reader, initial())
        assert first.values == ["one", "two", "three"]
        server.streams["/v1/stream/a"][1].append(b"ur\n")
        assert step(reader, first.end).values == ["four"]
        assert replay(reader, first.start, first.end) == first


def test_elements_are_sliced_not_parsed_and_written_again() -> None:
    text = b' [1e400 , {"a": [1, 2], "a": 3},\n"x,]" ,[] , 123456789012345678901234567890]'
    assert elements(text) == [
        b"1e400",
        b'{"a": [1, 2], "a": 3}',
        b'"x,]"',
        b"[]",
        b"123456789012345678901234567890",
    ]
    assert elements(b"[]") == elements(b" [ ] ") == []
