"""The decision table: every combination of answers has exactly one case."""

import itertools

from durastreamd.storage.recovery import CASES, Decision, Place, decide

EVERY_PLACE = [Place(*answers) for answers in itertools.product((False, True), repeat=7)]


def test_every_combination_of_answers_fits_exactly_one_case() -> None:
    for place in EVERY_PLACE:
        assert decide(place) in CASES


def test_every_case_is_reached() -> None:
    assert {decide(place).label for place in EVERY_PLACE} == {case.label for case in CASES}


def test_what_was_durable_is_never_cut() -> None:
    for place in EVERY_PLACE:
        if place.proven:
            assert decide(place).decision is not Decision.CUT


def test_a_torn_end_is_never_refused() -> None:
    for place in EVERY_PLACE:
        if not place.proven and not place.end:
            assert decide(place).decision in (Decision.CUT, Decision.REPLAY)


def test_only_whole_frames_are_replayed() -> None:
    for place in EVERY_PLACE:
        if decide(place).decision is Decision.REPLAY:
            assert place.head
            assert place.body
