"""Findings: one line to read, one object to parse, one place to compare."""

from durastreamd.offline.verify.findings import Finding

DAMAGE = Finding("catalog/1.cat", 7, "row", "a row is wrong", "/a")
TORN = Finding("journal/1.jnl", 9, "torn", "a batch", harmless=True)


def test_a_line_says_where_what_and_whose() -> None:
    assert str(DAMAGE) == "catalog/1.cat:7: row: a row is wrong (stream /a)"
    assert str(TORN) == "journal/1.jnl:9: torn: a batch"


def test_members_tell_damage_from_what_a_crash_leaves() -> None:
    assert DAMAGE.members()["severity"] == "damage"
    assert TORN.members() == {
        "file": "journal/1.jnl",
        "position": 9,
        "kind": "torn",
        "detail": "a batch",
        "stream": "",
        "severity": "harmless",
    }


def test_the_same_thing_found_twice_has_one_place() -> None:
    assert DAMAGE.place == DAMAGE._replace(detail="in other words").place
    assert DAMAGE.place != DAMAGE._replace(position=8).place
