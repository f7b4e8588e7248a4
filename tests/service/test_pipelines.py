"""Any requests, in any pieces, give the answers and the stored bytes of a plain model."""

from hypothesis import example, given, settings, strategies as st

from tests.service import pipelines
from tests.service.pipelines import (
    Asked,
    absolute,
    adorned,
    after_empty_line,
    chunked,
    judge,
    post,
    refused,
)

TWO = [post("a", b"first"), post("b", b"second"), post("a", b"third")]


@given(asked=pipelines.sequences, cuts=pipelines.pieces, late=st.booleans())
@example(asked=TWO, cuts=[], late=False)
@example(asked=TWO, cuts=[], late=True)
@example(asked=[refused("a", pipelines.BODIES[2], "another type"), *TWO], cuts=[150], late=False)
@example(asked=[chunked("a", b"hello", 2), *TWO], cuts=[100], late=True)
@example(asked=[after_empty_line(each) for each in TWO], cuts=[], late=True)
@example(asked=[after_empty_line(each) for each in TWO], cuts=[1, 1, 200, 1], late=False)
@example(asked=[absolute(each, "http") for each in TWO], cuts=[3], late=True)
@example(asked=[adorned("a", b"hello", b";a=b", b"A: b\r\n"), *TWO], cuts=[140], late=True)
@settings(max_examples=400, deadline=None)
def test_what_is_answered_and_stored_is_what_was_asked(
    asked: list[Asked], cuts: list[int], *, late: bool
) -> None:
    judge(asked, cuts, late=late)
