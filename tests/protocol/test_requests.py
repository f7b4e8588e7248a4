"""Heads of requests: what is well-formed is understood, the rest refused with the reason."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol import requests as rq
from durastreamd.protocol.offsets import mint
from durastreamd.protocol.requests import ForkHead, Lookup, ProblemError, Producer

numbers = st.integers(0, rq.NUMBER_MAX)


def refused(code: str, why: str, function: object, *arguments: object) -> None:
    with pytest.raises(ProblemError, match=why) as found:
        function(*arguments)  # type: ignore[operator]
    assert found.value.problem.name == code
    assert found.value.detail.endswith(".")


# --- appends ---


@given(st.binary(min_size=1, max_size=rq.PRODUCER_ID_MAX), numbers, numbers)
def test_a_producer_is_read(name: bytes, epoch: int, seq: int) -> None:
    head = {b"producer-id": name, b"producer-epoch": b"%d" % epoch, b"producer-seq": b"%d" % seq}
    assert rq.append_head(head).producer == Producer(name.decode("latin-1"), epoch, seq)
    for left_out in head:
        rest = {key: value for key, value in head.items() if key != left_out}
        refused("INVALID_PRODUCER", "come together", rq.append_head, rest)


@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1.0", b"1e3", b" 1", b"9007199254740992"])
def test_a_number_of_a_producer_is_a_whole_one(value: bytes) -> None:
    for which in (b"epoch", b"seq"):
        head = {b"producer-id": b"p", b"producer-epoch": b"0", b"producer-seq": b"0"}
        head[b"producer-" + which] = value
        refused("INVALID_PRODUCER", "whole number from 0 to", rq.append_head, head)


def test_the_bounds_of_names_and_sequences_are_reached() -> None:
    for size, good in ((1, True), (256, True), (0, False), (257, False)):
        producer = {b"producer-id": b"p" * size, b"producer-epoch": b"0", b"producer-seq": b"0"}
        if good:
            assert rq.append_head({b"stream-seq": b"s" * size, **producer}).seq == "s" * size
        else:
            refused("INVALID_PRODUCER", f"this one {size}", rq.append_head, producer)
            refused("BAD_REQUEST", f"this one {size}", rq.append_head, {b"stream-seq": b"s" * size})


@pytest.mark.parametrize(
    "value", [b"text", b"text/", b"te xt/plain", b"a/b\x7f", b"a/" + b"b" * 300]
)
def test_what_is_no_media_type_is_refused(value: bytes) -> None:
    refused("BAD_REQUEST", "is not a media type", rq.append_head, {b"content-type": value})


def test_a_content_type_is_kept_as_it_is() -> None:
    for value in ("text/plain", "application/json; charset=UTF-8", "x/y;a=b;c=d"):
        assert rq.append_head({b"content-type": f" {value} ".encode()}).content_type == value
    assert rq.append_head({b"content-type": b"  "}).content_type is None


@pytest.mark.parametrize(("value", "wanted"), [(b"true", True), (b"TRUE", True), (b"1", False)])
def test_only_true_closes(value: bytes, *, wanted: bool) -> None:
    assert rq.append_head({b"stream-closed": value}).closes == wanted
    assert rq.create_head({b"stream-closed": value}).closes == wanted


# --- creates ---


@given(st.integers(0, rq.TTL_MAX_S))
def test_a_lifetime_is_seconds(seconds: int) -> None:
    assert rq.create_head({b"stream-ttl": b"%d" % seconds}).ttl_ms == 1000 * seconds


@pytest.mark.parametrize("value", [b"", b"01", b"-1", b"+1", b"1.5", b"1s", b"0100000000001"])
def test_a_lifetime_is_a_plain_number(value: bytes) -> None:
    refused("INVALID_TTL", "whole number of seconds", rq.create_head, {b"stream-ttl": value})


@pytest.mark.parametrize("value", [b"100000000001", b"9" * 30])
def test_a_lifetime_above_the_longest_is_told_so(value: bytes) -> None:
    refused("INVALID_TTL", "at most 100000000000 sec", rq.create_head, {b"stream-ttl": value})


@given(st.integers(0, 200_000_000_000_000))
def test_a_moment_is_read_to_the_millisecond(time_ms: int) -> None:
    moment = rq.EPOCH + timedelta(milliseconds=time_ms)
    text = moment.isoformat(timespec="milliseconds")
    spellings = (text, text.replace("+00:00", "Z"), text.replace("+00:00", "z"))
    for spelled in (*spellings, text.replace("T", " ")):
        found = rq.create_head({b"stream-expires-at": spelled.encode()})
        assert found.expires_ms == time_ms


def test_a_leap_second_is_the_one_after_the_59th() -> None:
    leap, after = (
        rq.create_head({b"stream-expires-at": text}).expires_ms
        for text in (b"2016-12-31T23:59:60.5Z", b"2017-01-01T00:00:00.5Z")
    )
    assert leap == after


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "is an RFC 3339 time like"),
        (b"tomorrow", "is an RFC 3339 time like"),
        (b"2030-01-31", "end it with Z"),
        (b"2030-01-31T12:00:00", "end it with Z"),
        (b"2030-01-31 12:00", "end it with Z"),
        (b"2030-13-01T00:00:00Z", "no such day, hour or offset"),
        (b"2030-02-29T00:00:00Z", "no such day, hour or offset"),
        (b"2030-02-28T00:00:00+25:00", "no such day, hour or offset"),
        (b"9999-12-31T23:59:60Z", "the years 1 to 9999"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_reason(value: bytes, why: str) -> None:
    refused("INVALID_TTL", why, rq.create_head, {b"stream-expires-at": value})


def test_a_lifetime_and_a_moment_exclude_each_other() -> None:
    both = {b"stream-ttl": b"1", b"stream-expires-at": b"2030-01-31T12:00:00Z"}
    refused("INVALID_TTL", "exclude each other", rq.create_head, both)


def test_a_fork_has_a_source_an_offset_and_perhaps_more() -> None:
    head = {b"stream-forked-from": b"/v1/stream/a?x=y"}
    assert rq.create_head(head).fork == ForkHead("/v1/stream/a", None, 0)
    head[b"stream-fork-offset"] = b"7"
    head[b"stream-fork-sub-offset"] = b"3"
    assert rq.create_head(head).fork == ForkHead("/v1/stream/a", "7", 3)
    del head[b"stream-fork-offset"]
    refused("INVALID_FORK", "send that, too", rq.create_head, head)
    del head[b"stream-forked-from"]
    refused("INVALID_FORK", "needs Stream-Forked-From", rq.create_head, head)
    for bad in (b"-1", b"01", b"x", b"1" * 17):
        odd = {b"stream-forked-from": b"/a", b"stream-fork-sub-offset": bad}
        refused("INVALID_FORK", "whole number", rq.create_head, odd)


# --- reads ---


def test_a_read_without_anything_is_one_from_the_start() -> None:
    assert rq.read_head("", {}) == rq.ReadHead(None, None, None)


@given(st.integers(0, 10**16 - 1))
def test_a_read_has_an_offset_a_mode_and_a_cursor(position: int) -> None:
    token = mint(position)
    found = rq.read_head(f"offset={token}&live=sse&cursor=12", {})
    assert found == rq.ReadHead(token, "sse", "12")
    assert rq.read_head(f"offset=-1&end={token}", {}).end == position


@pytest.mark.parametrize(
    ("query", "code", "why"),
    [
        ("offset=1&offset=2", "INVALID_OFFSET", "more than once"),
        ("offset=-1&live=websocket", "BAD_REQUEST", "long-poll or sse"),
        ("live=sse", "BAD_REQUEST", "needs an offset"),
        ("offset=-1&live=sse&end=0000000000000001", "INVALID_OFFSET", "not live"),
        ("offset=-1&end=1", "INVALID_OFFSET", "one offset of this server"),
        ("end=0000000000000001&end=0000000000000002", "INVALID_OFFSET", "more than once"),
        ("offset=-1&live=sse&live=long-poll", "BAD_REQUEST", "live more than once"),
        ("offset=-1&live=sse&cursor=1&cursor=1", "BAD_REQUEST", "cursor more than once"),
        ("offset=%zz", "BAD_REQUEST", "'%zz' is not a percent-escape"),
        ("offset=-1&x=%4", "BAD_REQUEST", "'%4' is not a percent-escape"),
        ("offset=%FF", "BAD_REQUEST", "not UTF-8"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused(query: str, code: str, why: str) -> None:
    refused(code, why, rq.read_head, query, {})


def test_a_browser_that_reconnects_goes_on_where_it_was() -> None:
    resumed = {b"last-event-id": mint(7).encode()}
    assert rq.read_head("offset=-1&live=sse", resumed).offset == mint(7)
    assert rq.read_head("offset=-1&live=long-poll", resumed).offset == "-1"
    assert rq.read_head("offset=-1&live=sse", {b"last-event-id": b"junk"}).offset == "-1"


# --- look-ups ---


def test_a_place_is_looked_up_by_one_thing() -> None:
    assert rq.lookup_of("") is None
    assert rq.lookup_of("offset=1&what=x") is None
    assert rq.lookup_of("at-message=12") == Lookup("at-message", 12)
    assert rq.lookup_of("at-byte=0") == Lookup("at-byte", 0)
    assert rq.lookup_of(f"at-offset={mint(3)}") == Lookup("at-offset", offset=mint(3))
    assert rq.lookup_of("at=1700000000000") == Lookup("at", 1_700_000_000_000)
    assert rq.lookup_of("at=1970-01-01T00:00:01Z") == Lookup("at", 1000)
    assert rq.lookup_of("at=1970-01-01T01:00:01+01:00") == Lookup("at", 1000), "+ is a space here"
    refused("BAD_REQUEST", "one place", rq.lookup_of, "at=1&at-byte=1")
    refused("BAD_REQUEST", "one place", rq.lookup_of, "at=1&at=1")
    refused("BAD_REQUEST", "at is a time", rq.lookup_of, "at=yesterday")
    refused("BAD_REQUEST", "at-byte is a whole number", rq.lookup_of, "at-byte=-1")
    refused("BAD_REQUEST", "at-message is a whole number", rq.lookup_of, "at-message=" + "9" * 17)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_a_query_is_read_as_forms_are_written(pairs: dict[str, str]) -> None:
    assert rq.query_of(urlencode(pairs)) == {name: [value] for name, value in pairs.items()}
