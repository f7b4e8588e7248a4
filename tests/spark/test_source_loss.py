"""What the source does about what is gone, folded, closed or made anew; and about many streams."""

import json
from dataclasses import replace
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from durastreamd.spark.errors import DataLossError, OptionError
from durastreamd.spark.server import planning
from durastreamd.spark.server.offsets import initial
from durastreamd.spark.server.planning import ReadPart
from durastreamd.spark.server.source import StreamReader
from tests.spark.driving import (
    JSON,
    Hand,
    batch_rows,
    batch_values,
    drain,
    overheard,
    replay,
    step,
    stream_reader,
)

CLOSING = {"Stream-Closed": "true"}
LIFETIME = {"Stream-TTL": "3600"}


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


# --- loss ---


def losing(hand: Hand, name: str, **given: object) -> tuple[StreamReader, dict[str, object]]:
    """Return a reader that has read two of five messages."""
    url = hand.make(name, [0, 1], [2, 3, 4])
    reader = stream_reader(path=url, maxOffsetsPerTrigger=2, pollTimeoutMs=1, **given)
    return reader, step(reader, initial()).end


def test_a_stream_that_is_gone_fails_the_query_or_not(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name)
    planned = reader.latestOffset(at, reader.getDefaultReadLimit())
    hand.delete(name)
    with pytest.raises(DataLossError, match=r"is not there\. With failOnDataLoss=false"):
        step(reader, at)
    with pytest.raises(DataLossError, match=r"rows 2 to 4 were planned and cannot be read"):
        replay(reader, at, planned)
    careless = stream_reader(
        path=hand.url(name), failOnDataLoss="false", pollTimeoutMs=1, valueType="string"
    )
    assert step(careless, at).rows == []
    assert replay(careless, at, planned).rows == []


def test_a_stream_made_anew_is_noticed(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name)
    hand.delete(name)
    hand.make(name, [7])
    with pytest.raises(DataLossError, match="made anew since it was read up to message 2"):
        step(reader, at)
    careless = stream_reader(path=hand.url(name), failOnDataLoss="false", pollTimeoutMs=1)
    assert step(careless, at).values == texts(7)


@pytest.mark.parametrize("anew", [[4, 5, 6, 7, 8], [100, 200, 300], [1, 2], []], ids=str)
def test_the_life_of_a_name_that_was_read_never_reads_another(
    hand: Hand, name: str, anew: list[int]
) -> None:
    url = hand.make(name, [1, 2, 3])
    reader = stream_reader(path=url, pollTimeoutMs=1)
    first = step(reader, initial())
    hand.add(name, [4])
    planned = reader.latestOffset(first.end, ReadAllAvailable())
    hand.delete(name)
    hand.make(name, *([anew] if anew else []))
    with pytest.raises(DataLossError, match="the new one is another stream"):
        step(reader, first.end)
    with pytest.raises(DataLossError, match="planned and cannot be read any more"):
        replay(reader, first.end, planned)
    careless = stream_reader(path=url, failOnDataLoss="false", pollTimeoutMs=1)
    assert replay(careless, first.end, planned).rows == []
    again = step(careless, first.end)
    assert again.values == texts(*anew)
    assert step(careless, again.end).end == again.end


def test_what_was_closed_or_has_a_lifetime_and_is_read_leaves_quietly(
    hand: Hand, name: str
) -> None:
    hand.bucket(name)
    for each in ("closed", "mortal", "stays"):
        hand.make(each, [1], bucket=name, kind={**JSON, **LIFETIME} if each == "mortal" else JSON)
    assert hand.http.post(hand.url("closed", name), headers=CLOSING).status_code == 204
    given = {"url": hand.server.url, "bucket": name, "pollTimeoutMs": 1}
    first = step(stream_reader(**given), initial())
    for each in ("closed", "mortal"):
        hand.delete(each, bucket=name)
    later = stream_reader(**given)  # another process: the offset alone says it
    assert step(later, first.end).end == first.end, "they make no batch by themselves"
    hand.add("stays", 2, bucket=name)
    second = step(later, first.end)
    assert second.values == texts(2)
    assert cast(dict[str, object], second.end["streams"]).keys() == {"stays"}
    hand.delete("stays", bucket=name)
    with pytest.raises(DataLossError, match="Stream stays of the bucket is not there"):
        step(later, second.end)


def test_a_bucket_that_goes_away_is_a_data_loss_and_one_that_never_was_a_mistake(
    hand: Hand, name: str
) -> None:
    given = {"url": hand.server.url, "bucket": name, "pollTimeoutMs": 1, "valueType": "string"}
    with pytest.raises(OptionError, match=f"There is no bucket {name}"):
        step(stream_reader(**given), initial())
    hand.bucket(name)
    hand.make("a", [1], bucket=name)
    reader = stream_reader(**given)
    at = step(reader, initial()).end
    hand.delete("a", bucket=name)
    assert hand.http.delete(f"{hand.server.url}/{name}").status_code == 204
    with pytest.raises(DataLossError, match=f"Bucket {name} is not there any more"):
        step(reader, at)
    assert step(stream_reader(failOnDataLoss="false", **given), at).rows == []


# --- many streams ---


def test_many_small_streams_cost_a_listing_and_few_tasks(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHARED_STREAMS", 25)
    hand.bucket(name)
    for number in range(60):
        hand.make(f"s{number:02}", [number, number], bucket=name)
    asked = overheard(monkeypatch)
    reader = stream_reader(url=hand.server.url, bucket=name, pollTimeoutMs=1)
    assert len(asked) == 1, "the type of values: one page"
    end = reader.latestOffset(initial(), ReadAllAvailable())
    parts = reader.partitions(initial(), end)
    assert len(asked) == 2
    assert [len(cast(ReadPart, part).slices) for part in parts] == [25, 25, 10]
    done = replay(reader, initial(), end)
    assert [row["stream"] for row in done.rows] == [f"s{n // 2:02}" for n in range(120)]
    assert done.values == texts(*(n // 2 for n in range(120)))
    hand.add("s07", 77, bucket=name)
    asked.clear()
    again = stream_reader(url=hand.server.url, bucket=name, pollTimeoutMs=1)
    again.prepareForTriggerAvailableNow()
    (new,) = drain(again, end)
    assert new.values == ["77"]
    assert len(asked) <= 6, "listings, and a read of what is new"
    assert len(json.dumps(new.end)) < 60 * 45, "some forty bytes of each stream"


def test_progress_tells_how_far_a_query_is_behind(hand: Hand, name: str) -> None:
    url = hand.make(name, list(range(10)))
    reader = stream_reader(path=url, maxOffsetsPerTrigger=4)
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(initial(), reader.getDefaultReadLimit())
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["behind"] == {"messages": 6, "bytes": 18}
    (read,), (there,) = (
        cast(dict[str, list[int]], each["streams"]).values() for each in (end, latest)
    )
    assert (there[0] - read[0], there[1] - read[1], there[2] == read[2]) == (6, 18, True)


def test_a_stream_that_leaves_its_bucket_fails_the_query_or_not(hand: Hand, name: str) -> None:
    hand.bucket(name)
    hand.make("a", [1], bucket=name)
    hand.make("b", [2], bucket=name)
    given = {"url": hand.server.url, "bucket": name, "pollTimeoutMs": 1}
    reader = stream_reader(**given)
    at = step(reader, initial()).end
    hand.delete("a", bucket=name)
    with pytest.raises(DataLossError, match="Stream a of the bucket is not there any more"):
        step(reader, at)
    careless = stream_reader(failOnDataLoss="false", **given)
    after = step(careless, at)
    assert after.rows == []
    hand.make("a", [3], bucket=name)
    assert step(careless, after.end).values == texts(3)


def test_history_that_was_folded_is_handled_by_choice(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name)
    planned = reader.latestOffset(at, reader.getDefaultReadLimit())
    floor = hand.add(name, 5)
    hand.fold(name, floor, {"sum": 15})
    hand.add(name, [6, 7])
    with pytest.raises(DataLossError, match=r"folded into a snapshot; onSnapshot=restart"):
        step(reader, at)
    with pytest.raises(DataLossError, match="cannot be read any more"):
        replay(reader, at, planned)
    url = hand.url(name)
    skipping = stream_reader(path=url, onSnapshot="skip")
    assert step(skipping, at).values == texts(6, 7)
    careless = stream_reader(path=url, failOnDataLoss="false")
    assert step(careless, at).values == texts(6, 7)
    assert batch_values(path=url, onSnapshot="skip") == texts(6, 7)
    with pytest.raises(DataLossError, match="is to be read from its beginning"):
        batch_values(path=url)


def test_what_is_retained_no_longer_is_a_loss_and_not_a_snapshot(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name)
    hand.retain(name, hand.add(name, 5))
    hand.add(name, [6, 7])
    with pytest.raises(DataLossError, match=r"is retained from byte \d+ on only"):
        step(reader, at)
    url = hand.url(name)
    assert step(stream_reader(path=url, failOnDataLoss="false"), at).values == texts(6, 7)
    assert batch_values(path=url) == texts(6, 7), "a new query begins with what there is"


def test_a_restart_delivers_the_snapshot_then_what_came_after(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name, onSnapshot="restart")
    floor = hand.add(name, 5)
    hand.fold(name, floor, {"sum": 15})
    hand.add(name, [6, 7])
    done = step(reader, at)
    assert [(row["value"], row["offset"], row["snapshot"]) for row in done.rows] == [
        ('{"sum": 15}', 5, True),
        ("6", 6, False),
        ("7", 7, False),
    ]
    assert replay(reader, done.start, done.end) == done
    assert step(reader, done.end).end == done.end
    # The batch cannot be had again once the snapshot has moved on, and says so.
    hand.fold(name, hand.add(name, 8), {"sum": 36})
    with pytest.raises(DataLossError, match=r"superseded by one at|cannot be read any more"):
        replay(reader, done.start, done.end)
    (rows,) = batch_rows(path=hand.url(name), onSnapshot="restart")
    assert [(row["value"], row["snapshot"]) for row in rows] == [('{"sum": 36}', True)]


def test_a_snapshot_is_never_taken_for_another(hand: Hand, name: str) -> None:
    reader, at = losing(hand, name, onSnapshot="restart")
    hand.fold(name, hand.add(name, 5), {"sum": 15})
    done = step(reader, at)
    assert done.values == ['{"sum": 15}']
    hand.fold(name, hand.add(name, 6), {"sum": 21})
    with pytest.raises(DataLossError, match="was superseded by one at"):
        replay(reader, done.start, done.end)


def test_rows_beyond_the_plan_fail_the_task(hand: Hand, name: str) -> None:
    url = hand.make(name, list(range(5)))
    reader = stream_reader(path=url, maxOffsetsPerTrigger=3)
    first = step(reader, initial())
    (part,) = reader.partitions(initial(), first.end)
    assert isinstance(part, ReadPart)
    (read,) = part.slices
    read.begin = replace(read.begin, number=1, byte=3)
    with pytest.raises(DataLossError, match="3 messages came where 2 were planned"):
        list(reader.read(part))
