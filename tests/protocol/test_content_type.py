"""Content types: parameters and case do not matter, everything else does."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol.content_type import is_json, media_type, same

TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789.+-", min_size=1, max_size=12)
MEDIA = st.builds("{}/{}".format, TOKENS, TOKENS)
PARAMETERS = st.sampled_from(["", ";", "; charset=utf-8", ";charset=UTF-8 ; q=1", " ; a=b"])
SPACE = st.sampled_from(["", " ", "\t"])


@given(MEDIA, PARAMETERS, PARAMETERS, SPACE)
def test_case_parameters_and_outer_space_are_ignored(
    media: str, ours: str, theirs: str, space: str
) -> None:
    assert same(media + ours, space + media.upper() + theirs)
    assert media_type(space + media + ours) == media.lower()


@given(MEDIA, MEDIA, PARAMETERS)
def test_other_media_types_differ(one: str, other: str, parameters: str) -> None:
    assert same(one, other + parameters) == (one.lower() == other.lower())


@given(MEDIA, MEDIA)
def test_comparison_is_symmetric(one: str, other: str) -> None:
    assert same(one, other) == same(other, one)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("APPLICATION/JSON", True),
        ("application/json; charset=utf-8", True),
        ("application/json;", True),
        ("application/jsonl", False),
        ("application/json5", False),
        ("application/problem+json", False),
        ("text/json", False),
        ("application/octet-stream", False),
        ("text/plain; type=application/json", False),
        ("", False),
    ],
)
def test_only_application_json_is_json(
    content_type: str,
    expected: bool,  # noqa: FBT001  # pytest calls by name
) -> None:
    assert is_json(content_type) is expected


def test_empty_type_is_not_a_wild_card() -> None:
    assert not same("text/plain", "")
