"""What a client says it takes."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol.accept import accepts_gzip, prefers

LINES = b"application/x-ndjson"
JSON = b"application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"gzip", True), (b"x-gzip", True), (b"br, GZIP ; q=0.5", True), (b"gzip;q=1", True),
        (b"", False), (b"identity", False), (b"gzip;q=0", False), (b"gzip; q=0.000", False),
    ],
)  # fmt: skip
def test_compression_is_used_where_it_is_accepted(value: bytes, *, wanted: bool) -> None:
    assert accepts_gzip({b"accept-encoding": value}) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"application/x-ndjson", True),
        (b"Application/X-NDJSON;Q=0.5", True),
        (b"application/x-ndjson, application/json", True),
        (b"application/x-ndjson, */*;q=0.8", True),
        (b"application/x-ndjson;q=0.5, application/*;q=0.4, */*", True),
        (b"application/x-ndjson; charset=utf-8 ; q=1.000", True),
        (b"application/x-ndjson;q=2", True),
        (b"application/x-ndjson;q=0", False),
        (b"application/x-ndjson;q=0.000", False),
        (b"application/x-ndjson;q=0, application/json;q=0", False),
        (b"application/x-ndjson;q=0.1, application/json", False),
        (b"application/x-ndjson;q=0.1, application/*;q=0.2", False),
        (b"application/x-ndjson;q=0.7, */*;q=0.8", False),
        (b"application/*", False),
        (b"*/*", False),
        (b"text/html", False),
        (b"", False),
    ],
)
def test_another_form_is_sent_where_it_is_named_and_liked_as_well(
    value: bytes, *, wanted: bool
) -> None:
    assert prefers(value, LINES, JSON) == wanted


@given(st.binary(max_size=60))
def test_whatever_stands_in_the_field_is_read(value: bytes) -> None:
    prefers(value, LINES, JSON)
    accepts_gzip({b"accept-encoding": value})
