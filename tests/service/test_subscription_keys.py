"""The keys of subscriptions: durable, replaced in time, and nobody else's tokens fit."""

import pytest

from durastreamd.errors import CorruptDataError
from durastreamd.service.subscriptions.keys import (
    DAY_MS,
    KEPT_MS,
    PUBLISHED_MS,
    Held,
    Keys,
    StoredKey,
    rotated,
)
from durastreamd.storage import format as fmt
from tests.support.sim_disk import SimDisk

SUBJECT = ("", "id", 7)


def test_keys_are_found_again_after_a_power_cut() -> None:
    """B3: the reference makes new ones at each start, and every token and cache is void."""
    disk = SimDisk()
    keys = Keys(disk, lambda: 0)
    assert not keys.there
    assert keys.renew(90)
    assert not keys.renew(90)
    token = keys.token(SUBJECT, Held(3, "w", 9))
    again = Keys(disk.survivor(), lambda: 0)
    assert again.held(token, SUBJECT) == Held(3, "w", 9)
    assert again.signer().kid == keys.signer().kid


def test_no_other_subscriptions_token_fits() -> None:
    keys = Keys(SimDisk(), lambda: 0)
    keys.renew(0)
    token = keys.token(SUBJECT, Held(3, "w", 9))
    for other in (("b", "id", 7), ("", "di", 7), ("", "id", 8)):
        assert keys.held(token, other) is None
    body, _, signed = token.partition(".")
    forged = keys.token(SUBJECT, Held(4, "w", 9)).partition(".")[0]
    for bad in (f"{forged}.{signed}", body, f"{body}.", f"{body}.{signed}x", "\xff.\xff", ""):
        assert keys.held(bad, SUBJECT) is None
    stranger = Keys(SimDisk(), lambda: 0)
    assert stranger.held(token, SUBJECT) is None
    stranger.renew(0)
    assert stranger.held(token, SUBJECT) is None


def test_a_new_key_is_published_before_it_signs_and_the_old_one_after() -> None:
    now = 0
    disk = SimDisk()
    keys = Keys(disk, lambda: now)
    keys.renew(1)
    first = keys.signer().kid
    now = DAY_MS
    assert keys.renew(1)
    assert keys.signing[0].kid == first
    second = keys.signing[1].kid
    assert keys.signer().kid == first  # receivers may not know the other yet
    now = DAY_MS + PUBLISHED_MS
    assert keys.signer().kid == second
    assert not keys.renew(1)
    now = DAY_MS + PUBLISHED_MS + KEPT_MS - 1
    assert not keys.renew(1)
    assert len(keys.signing) == 2
    now += 1
    assert keys.renew(1)
    assert [key.kid for key in keys.signing] == [second]


def test_a_clock_that_is_set_back_leaves_a_key_that_signs() -> None:
    keys = [StoredKey("a", 1000), StoredKey("b", 2000)]
    assert rotated(keys, 0, 1, str) == keys
    assert rotated(keys, 10 * DAY_MS, 0, str) == [StoredKey("b", 2000)]


def test_a_damaged_file_of_keys_is_told_and_not_replaced() -> None:
    disk = SimDisk()
    Keys(disk, lambda: 0).renew(0)
    disk.damage(fmt.KEYS_FILE, lambda data: data.__setitem__(slice(0, 4), b"rot!"))
    with pytest.raises(CorruptDataError, match="restore it from a backup"):
        Keys(disk, lambda: 0)
