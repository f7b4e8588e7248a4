"""The table of errors and its renderer."""

import json

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol import problems

SEED_004 = {
    "BAD_REQUEST": (400, "Bad Request"),
    "INVALID_OFFSET": (400, "Invalid Offset"),
    "INVALID_JSON": (400, "Invalid JSON"),
    "EMPTY_BODY": (400, "Empty Body"),
    "EMPTY_ARRAY": (400, "Empty Array"),
    "UNAUTHENTICATED": (401, "Unauthenticated"),
    "PERMISSION_DENIED": (403, "Permission Denied"),
    "NOT_FOUND": (404, "Stream Not Found"),
    "ALREADY_EXISTS": (409, "Stream Already Exists"),
    "SEQUENCE_CONFLICT": (409, "Sequence Conflict"),
    "CONTENT_TYPE_MISMATCH": (409, "Content Type Mismatch"),
    "OFFSET_EXPIRED": (410, "Offset Expired"),
    "PAYLOAD_TOO_LARGE": (413, "Payload Too Large"),
    "RATE_LIMITED": (429, "Rate Limited"),
    "NOT_IMPLEMENTED": (501, "Not Implemented"),
    "UNAVAILABLE": (503, "Service Unavailable"),
}


@pytest.mark.parametrize("code", SEED_004)
def test_the_proposed_codes_are_taken_over_verbatim(code: str) -> None:
    row = problems.by_name(code)
    assert (row.status, row.title) == SEED_004[code]
    assert row.type == "/errors/" + code.lower().replace("_", "-")


def test_nothing_else_is_called_shared_and_own_codes_are_of_statuses_without_a_true_one() -> None:
    assert set(SEED_004) == problems.SHARED
    taken = {status for status, _ in SEED_004.values()}
    own = {row.code for row in problems.problems()} - problems.SHARED
    assert {code for code in own if problems.by_name(code).status in taken} == {
        "STREAM_CLOSED", "BUCKET_NOT_EMPTY", "SNAPSHOT_CONFLICT", "FORK_CONFLICT", "FORK_TOO_DEEP",
        "OUTCOME_UNKNOWN", "GONE", "FENCED", "ALREADY_CLAIMED", "NO_PENDING_WORK", "INVALID_ACK",
    }  # fmt: skip


def test_a_finer_row_shares_code_type_status_and_title_and_says_its_reason() -> None:
    finer = [row for row in problems.problems() if row.reason]
    assert len({row.reason for row in finer}) == len(finer) >= 14
    for row in finer:
        code = problems.by_name(row.code)
        assert (row.type, row.status, row.title) == (code.type, code.status, code.title)
        assert problems.by_name(row.reason) is row
        assert row in problems.reasons_of(code)
        assert problems.by_slug(row.reason.lower().replace("_", "-")) is None
        body = json.loads(problems.render(row, "x", None, reason="another"))
        assert (body["code"], body["reason"]) == (row.code, row.reason)


def test_every_code_is_found_by_its_slug_and_every_row_explains_itself() -> None:
    rows = problems.problems()
    codes = [row for row in rows if not row.reason]
    assert len({row.slug for row in codes}) == len(codes) >= 30
    for row in codes:
        assert problems.by_slug(row.slug) is row
    for row in rows:
        assert 400 <= row.status <= 599
        assert row.description.endswith(".")
    assert problems.by_slug("no-such-thing") is None


def test_body_carries_the_members_of_rfc_9457() -> None:
    body = json.loads(
        problems.render(
            problems.SEQUENCE_CONFLICT, "too old", "/v1/stream/a", streamSeq="7", retryAfter=None
        )
    )
    assert body == {
        "type": "/errors/sequence-conflict",
        "title": "Sequence Conflict",
        "status": 409,
        "code": "SEQUENCE_CONFLICT",
        "detail": "too old",
        "instance": "/v1/stream/a",
        "streamSeq": "7",
    }


def test_a_code_is_as_good_as_its_row() -> None:
    assert problems.render("GONE", "x") == problems.render(problems.GONE, "x")


def test_an_extension_member_cannot_replace_a_member_of_the_table() -> None:
    assert json.loads(problems.render("GONE", "x", None, title="y"))["title"] == "Stream Gone"


@given(st.text(max_size=2000), st.text(max_size=2000), st.text(max_size=2000))
def test_whatever_a_client_sent_the_body_is_short_printable_json(
    detail: str, instance: str, member: str
) -> None:
    raw = problems.render("BAD_REQUEST", detail, instance, actualContentType=member)
    body = json.loads(raw)
    assert all(32 <= byte < 127 for byte in raw)
    assert len(body["detail"]) <= problems.DETAIL_CHARACTERS_MAX
    assert len(body["instance"]) <= problems.ECHO_CHARACTERS_MAX
    assert len(body["actualContentType"]) <= problems.ECHO_CHARACTERS_MAX
    assert body["detail"].isprintable()


@given(st.text(max_size=2000))
def test_quoted_input_is_one_short_printable_line(text: str) -> None:
    out = problems.quoted(text)
    assert out.isprintable()
    assert len(out) <= problems.ECHO_CHARACTERS_MAX + 5
