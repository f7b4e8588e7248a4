"""The decision table: every combination of answers has exactly one case."""

import itertools

from durastreamd.storage.journal import FileHead, JournalWriter
from durastreamd.storage.recovery import CASES, Decision, Place, decide
from tests.support.damage import verified
from tests.support.moving_disk import moving
from tests.support.world import World, dump

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


def test_what_nothing_proves_is_never_refused() -> None:
    for place in EVERY_PLACE:
        if not place.proven:
            assert decide(place).decision is not Decision.REFUSE
        if not place.proven and not place.end:
            assert decide(place).decision in (Decision.CUT, Decision.REPLAY)


def test_a_file_that_counts_a_frame_which_never_became_durable_is_passed_by() -> None:
    """Older versions made such files when they recovered after a kill, before a power cut."""
    world = World()
    world.create("/a")
    world.append("/a", b"kept")
    expected = dump(world.engine)
    journal = world.engine.journal
    head = FileHead(journal.next_lsn + 1, 0)
    JournalWriter(world.disk, world.engine.uuid, journal.number + 1, head).release()
    damage = [finding for finding in verified(moving(world.disk)) if not finding.harmless]
    assert damage == []
    report = world.reopen()
    assert report.cases == ["K"]
    assert dump(world.engine) == expected
    world.append("/a", b" on")
    expected = dump(world.engine)
    world.reopen()
    assert dump(world.engine) == expected


def test_only_whole_frames_are_replayed() -> None:
    for place in EVERY_PLACE:
        if decide(place).decision is Decision.REPLAY:
            assert place.head
            assert place.body
