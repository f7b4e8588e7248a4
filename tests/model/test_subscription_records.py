"""Records of subscriptions come back from their headers as they were."""

import pytest

from durastreamd.model.records import RecordPlace, UnreadableRecordError, parse
from durastreamd.model.subscription_records import (
    EXPLICIT,
    GLOB,
    WEBHOOK,
    Head,
    SubscriptionChange,
    SubscriptionConfig,
    SubscriptionEnd,
    SubscriptionLinks,
    SubscriptionPut,
    SubscriptionRecord,
)
from durastreamd.storage.extensions import EXTENSIONS, SUBSCRIPTIONS, used_by

CONFIG = SubscriptionConfig(WEBHOOK, "a/**", ("x", "y"), "https://r/", "", 30_000, "why")
HEAD = Head(2, 7, "w_1", "x", (("x", EXPLICIT, 3, 9, 4),), due_ms=5, failures=2, error="no")
RECORDS = [
    SubscriptionPut("", "runner:1", 2**63, 6, CONFIG, "http://h", (("x", GLOB, 3, 4),), 11),
    SubscriptionEnd("bucket", "an id", 12),
    SubscriptionLinks(5, (("x", 0, 0, 0), ("y", EXPLICIT, 7, 8)), 13),
    SubscriptionChange(5, HEAD, (("x", 9, 4),), new_wake=True, time_ms=14),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_as_it_was(record: SubscriptionRecord) -> None:
    place = RecordPlace(0, 0, 0, record.time_ms, 0)
    assert parse(place, record.header()) == record
    assert SUBSCRIPTIONS in used_by([record.header()], [])


def test_a_snapshot_is_written_once_for_a_wake() -> None:
    record = SubscriptionChange(5, HEAD, (), new_wake=False, time_ms=14)
    found = parse(RecordPlace(0, 0, 0, 14, 0), record.header())
    assert isinstance(found, SubscriptionChange)
    assert found.head.snapshot == ()
    assert found.head.generation == HEAD.generation


def test_a_kind_of_the_extension_that_nobody_wrote_is_not_understood() -> None:
    unused = max(EXTENSIONS[SUBSCRIPTIONS].records)
    with pytest.raises(UnreadableRecordError):
        parse(RecordPlace(0, 0, 0, 0, 0), bytes([0x81, unused]))
