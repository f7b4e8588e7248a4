"""dump shows every frame there is, and finds its way through damage."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import cbor2
import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.admin.look.diagnostic import diagnostic
from durastreamd.admin.look.frames import catalog_frames
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.storage import catalog, format as fmt
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.log import placement_at
from durastreamd.storage.rows import Row, StrangeRow, StreamRow
from tests.admin.harness import ROUNDS, run
from tests.golden.test_golden import HERE as GOLDEN, NOW

V1 = GOLDEN / "v1"
JOURNAL = "journal/0000000000000003.jnl"
CATALOG = "catalog/0000000000000001.cat"
INDEX = "streams/02/0000000000000002/0000000000000000.idx"
SEGMENT = "streams/02/0000000000000002/0000000000000000.log"


def damaged(root: Path, path: str, change: Callable[[bytearray], object]) -> Path:
    """Return a copy of the golden directory with one file changed."""
    for file in V1.rglob("*"):
        if file.is_file():
            copy = root / file.relative_to(V1)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    raw = bytearray((root / path).read_bytes())
    change(raw)
    (root / path).write_bytes(raw)
    return root


def flip(at: int) -> Callable[[bytearray], object]:
    def change(raw: bytearray) -> None:
        raw[at] ^= 0x10

    return change


def verdicts(*arguments: str | Path) -> list[tuple[object, object, object]]:
    found = run(*arguments, "--json")
    return [(r["position"], r["kind"], r["verdict"]) for r in found.records]


WHOLE = [
    (0, "header", "ok"),
    (64, "create", "ok"),
    (199, "append", "ok"),
    (298, "snapshot", "ok"),
    (414, "append", "ok"),
    (524, "create", "ok"),
    (640, "append", "ok"),
]


def test_every_frame_of_the_journal_is_a_line_with_what_operators_look_for() -> None:
    found = run("--data-dir", V1, "dump")
    assert found.status == 0
    assert verdicts("--data-dir", V1, "dump") == WHOLE
    assert (
        f"{JOURNAL}:414: append lsn=16 stream=0000000000000001 key=/orders offset=0000000000000018 "
        "length=9 ordinal=2 messages=1 producers=p-1/1/0 closes=yes durable_lsn=15 "
        "time=2025-06-15T15:06:40.005Z payload_sum=c2456ba77c96fde3 sum=ab2274eadb5949b9 ok"
    ) in found.lines


def test_a_stream_is_its_index_and_then_what_the_journal_has() -> None:
    found = run("--data-dir", V1, "dump", "orders", "--json").records
    assert [(r["file"], r["kind"], r["verdict"]) for r in found] == [
        ("streams/01/0000000000000001/0000000000000000.idx", "header", "ok"),
        ("streams/01/0000000000000001/0000000000000000.idx", "create", "ok"),
        ("streams/01/0000000000000001/0000000000000000.idx", "append", "ok"),
        (JOURNAL, "append", "ok"),
    ]
    assert found[2]["producers"] == [["p-1", 0, 0]]
    assert sum(int(str(r.get("length", 0))) for r in found) == 27


def test_the_whole_of_a_stream_is_dumped_once(original: Path) -> None:
    found = run("--data-dir", original, "dump", "orders/1", "--json").records
    records = [r for r in found if r["kind"] in ("create", "append")]
    assert {r["verdict"] for r in found} == {"ok"}
    ends = [int(str(r["offset"])) + int(str(r["length"])) for r in records]
    assert [int(str(r["offset"])) for r in records] == [0, *ends[:-1]]
    assert sum(int(str(r["messages"])) for r in records) == 1 + 2 * ROUNDS


def test_what_index_and_journal_both_have_is_dumped_once(tmp_path: Path) -> None:
    """A crash after a checkpoint's commit leaves the journal that it covers."""
    data = damaged(tmp_path, JOURNAL, lambda _: None)
    engine, _ = open_engine(RealDisk(str(data)), EngineOptions(), lambda: b"", NOW)
    engine.release()
    (data / JOURNAL).write_bytes((V1 / JOURNAL).read_bytes())
    found = run("--data-dir", data, "dump", "orders", "--json").records
    assert [r.get("lsn") for r in found] == [None, 2, 3, 16]
    assert " lsn=16 " in run("--data-dir", data, "dump").text


@pytest.mark.parametrize("path", [JOURNAL, CATALOG, INDEX, SEGMENT, "DURASTREAMD"])
def test_a_file_is_known_wherever_it_is(path: str) -> None:
    inside, alone = run("--data-dir", V1, "dump", path), run("dump", V1 / path)
    assert (inside.status, alone.status) == (0, 0)
    assert inside.lines
    known = r" key=\S+ (?=offset|snapshot)"  # the journal alone does not know every name
    assert [re.sub(known, " ", line) for line in inside.lines] == [
        re.sub(known, " ", line).removeprefix(f"{V1}/") for line in alone.lines
    ]


def test_a_file_without_frames_is_refused() -> None:
    blob = next(V1.rglob("*.snap"))
    found = run("--data-dir", V1, "dump", blob)
    assert found.status == 66
    assert "dump reads .jnl" in found.err


def test_rows_of_the_catalogue_can_be_searched_by_name() -> None:
    lines = run("--data-dir", V1, "dump", CATALOG).lines
    assert [line for line in lines if " stream-row " in line and " key=/bytes " in line]
    assert lines[-1].startswith(f"{CATALOG}:312: commit checkpoint=3 lsn=12 journal_first=3 ")


# --- formats and ranges ---


def test_hex_is_the_bytes_of_the_frames() -> None:
    lines = run("--data-dir", V1, "dump", "--format", "hex").lines
    dumped = [re.fullmatch(r"  ([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+) +\|.*\|", x) for x in lines]
    joined = b"".join(bytes.fromhex(m[2]) for m in dumped if m)
    assert joined == (V1 / JOURNAL).read_bytes()
    assert [line.split(":")[1] for line in lines if line.startswith("journal")] == [
        str(position) for position, _, _ in WHOLE
    ]


def test_cbor_is_in_diagnostic_notation() -> None:
    lines = run("--data-dir", V1, "dump", "--format", "cbor").lines
    assert lines[4].endswith(' ok  [0, 1, true, null, [["p-1", 1, 0]]]')
    item = [1, -2, 'a\n"', b"\1\2", None, True, {"k": [1.5]}, cbor2.CBORTag(99, 3)]
    expected = '[1, -2, "a\\n\\"", h\'0102\', null, true, {"k": [1.5]}, 99(3)]'
    assert diagnostic(cbor2.dumps(item)) == expected
    assert diagnostic(cbor2.dumps([float("nan"), float("-inf")])) == "[NaN, -Infinity]"
    assert diagnostic(b"\xff\xff") == "h'ffff'"


def test_a_range_is_of_lsns_offsets_or_positions() -> None:
    lsns = run("--data-dir", V1, "dump", "--from", "14", "--to", "16", "--json").records
    assert [r["lsn"] for r in lsns] == [14, 15]
    by_offset = run("--data-dir", V1, "dump", "bytes", "--from", "20", "--to", "40", "--json")
    assert [r["offset"] for r in by_offset.records if r["kind"] == "append"] == [
        f"{n:016d}" for n in (20, 30)
    ]
    by_place = run("--data-dir", V1, "dump", JOURNAL, "--from", "199", "--to", "414", "--json")
    assert [r["position"] for r in by_place.records] == [199, 298]
    assert len(run("--data-dir", V1, "dump", "--limit", "2").lines) == 2


# --- damage ---


@pytest.mark.parametrize(
    ("path", "change", "line"),
    [
        (JOURNAL, flip(5), (0, "header", "bad-header")),
        (JOURNAL, flip(200), (199, "bytes", "bad-head")),
        (JOURNAL, flip(297), (199, "append", "bad-payload")),
        (JOURNAL, flip(641), (640, "bytes", "torn")),
        (JOURNAL, lambda raw: raw.extend(bytes(100)), (753, "bytes", "torn")),
        (JOURNAL, lambda raw: raw.__delitem__(slice(750, None)), (640, "append", "no-payload")),
        (JOURNAL, lambda raw: raw.__delitem__(slice(199, 298)), (199, "bytes", "torn")),
        (CATALOG, flip(120), (106, "bytes", "bad-head")),
        (CATALOG, flip(320), (312, "bytes", "torn")),
        (INDEX, flip(20), (0, "header", "bad-header")),
        (INDEX, flip(150), (147, "bytes", "bad-head")),
        (SEGMENT, flip(15), (215, "append", "bad-payload")),
        (SEGMENT, lambda raw: raw.__delitem__(slice(75, None)), (623, "append", "no-payload")),
    ],
)
def test_damage_is_shown_where_it_is_and_the_rest_all_the_same(
    tmp_path: Path, path: str, change: Callable[[bytearray], object], line: tuple[int, str, str]
) -> None:
    good = verdicts("--data-dir", V1, "dump", path)
    data = damaged(tmp_path, path, change)
    found = verdicts("--data-dir", data, "dump", path)
    assert line in found
    assert found == verdicts("--data-dir", data, "dump", path)
    bad = [one for one in found if one[2] != "ok"]
    status = run("--data-dir", data, "dump", path).status
    assert status == (0 if {one[2] for one in bad} == {"torn"} else 65)
    moved = len((data / path).read_bytes()) < len((V1 / path).read_bytes())
    if bad == [line] and not moved:
        assert [one for one in good if one[0] != line[0]] == [
            one for one in found if one[0] != line[0]
        ]


def test_a_name_is_found_without_catalogue_identity_and_order(tmp_path: Path) -> None:
    data = damaged(tmp_path, CATALOG, lambda raw: raw.clear())
    (data / "DURASTREAMD").write_bytes(b"rot")
    assert [v for _, _, v in verdicts("--data-dir", data, "dump", "logs/today")] == ["ok", "ok"]
    by_id = verdicts("--data-dir", data, "dump", "0000000000000002")
    assert {v for _, _, v in by_id} == {"ok"}


def test_a_torn_end_in_quarantine_is_read_at_its_old_place(tmp_path: Path) -> None:
    data = damaged(tmp_path, JOURNAL, flip(299))
    (data / "quarantine").mkdir()
    torn = data / "quarantine" / "0000000000000003.jnl@298.torn"
    torn.write_bytes((data / JOURNAL).read_bytes()[298:])
    found = verdicts("--data-dir", data, "dump", f"quarantine/{torn.name}")
    assert found == [
        (0, "bytes", "bad-head"),
        (116, "append", "ok"),
        (226, "create", "ok"),
        (342, "append", "ok"),
    ]


def nameless(record: dict[str, object]) -> str:
    """Return a record without the name: a stream may lose that with its first frame."""
    return json.dumps({key: value for key, value in record.items() if key != "key"})


GOOD = {
    path: run("--data-dir", V1, "dump", path, "--json").records
    for path in (JOURNAL, CATALOG, INDEX, SEGMENT)
}


@settings(max_examples=40)
@given(
    path=st.sampled_from(sorted(GOOD)),
    at=st.floats(0, 1),
    junk=st.binary(min_size=1, max_size=40),
    form=st.sampled_from(["text", "hex", "cbor"]),
)
def test_no_damage_stops_it_and_no_good_frame_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, path: str, at: float, junk: bytes, form: str
) -> None:
    size = (V1 / path).stat().st_size
    place = int(at * (size - 1))
    end = min(place + len(junk), size)
    root = damaged(
        tmp_path_factory.mktemp("dump"),
        path,
        lambda raw: raw.__setitem__(slice(place, end), junk[: end - place]),
    )
    assert run("--data-dir", root, "dump", path, "--format", form).status in (0, 65)
    found = [nameless(r) for r in run("--data-dir", root, "dump", path, "--json").records]
    for record in GOOD[path]:
        low, high = int(str(record["position"])), int(str(record["bytes"]))
        if path == SEGMENT:
            low, high = int(str(record.get("offset", 0))), int(str(record.get("length", 0)))
        if low + high <= place or low >= end:
            assert nameless(record) in found, record


def test_the_frame_before_a_lost_one_is_the_last_of_its_run(tmp_path: Path) -> None:
    data = damaged(tmp_path, JOURNAL, lambda raw: raw.__setitem__(slice(199, 414), bytes(215)))
    (lost,) = [r for r in run("--data-dir", data, "dump", "--json").records if r["kind"] == "bytes"]
    assert lost["detail"] == "215 bytes, all zero; the next frame verifies at 414"
    assert fmt.FRAME.size == 88


def test_a_row_of_another_version_is_named_and_shown() -> None:
    uuid = bytes(16)
    strange: list[Row] = [StrangeRow([9, "later"]), StreamRow([7, "short"], placement_at(0))]
    data = catalog.encode_file(uuid, 1, 0, strange, catalog.Commit(1, 1, 1, []))
    found = list(catalog_frames("a.cat", data, uuid, 1))
    assert [(each.kind, each.verdict) for each in found] == [
        ("header", "ok"),
        ("rows", "ok"),
        ("row", "unknown-kind"),
        ("row", "unknown-kind"),
        ("commit", "ok"),
    ]
    assert cbor2.loads(found[2].header) == [9, "later"]
