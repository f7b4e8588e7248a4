"""Salvage of one stream: what survives is believed wherever it stands, and nothing else is."""

import pytest

from durastreamd.offline.repair.pieces import Piece
from durastreamd.offline.repair.salvage import Salvage, Strays, Traces, salvage
from durastreamd.offline.verify.survey import Survey
from durastreamd.offline.verify.verification import survey
from durastreamd.storage import format as fmt
from durastreamd.storage.index import HEADER_BYTES, Entry, IndexFile
from tests.support.damage import flip, swap
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import World

SEGMENT, INDEX = fmt.segment_path(1, 0), fmt.index_path(1, 0)


@pytest.fixture
def disk() -> MovingDisk:
    world = World()
    world.create("/a")
    for number in range(4):
        world.append("/a", b"%d" % number * 10, producer=("p", 0, number))
    world.checkpoint()
    world.append("/a", b"journal", producer=("p", 0, 4))
    return moving(world.disk)


def saved(disk: MovingDisk, strays: Strays | None = None, *, anew: bool = False) -> Salvage:
    seen: Survey = survey(disk)
    aside: list[Piece] = []
    traces = Traces(
        1,
        seen.listed.get(1),
        seen.files[1],
        [head for head in seen.heads if head.frame.stream == 1],
        aside,
        seen.torn_lsn,
        strays or Strays({}, []),
        anew,
    )
    found = salvage(disk, traces)
    assert found is not None
    assert disk.open_handles == 0
    return found


def test_a_whole_segment_is_one_block_and_the_journal_adds_to_it(disk: MovingDisk) -> None:
    found = saved(disk)
    assert [(block.base, block.end) for block in found.blocks] == [(0, 40)]
    assert [(piece.frame.start, piece.end) for piece in found.pieces] == [(40, 47)]
    assert (found.stream.key, found.stream.tail, found.nameless) == ("/a", 47, False)
    assert found.detail.producers == {"p": (0, 4)}
    assert found.covered == [(0, 47)]


def test_a_record_whose_bytes_rotted_is_all_that_is_lost(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 25)
    found = saved(disk)
    assert found.blocks == []
    assert found.covered == [(0, 20), (30, 47)]
    assert found.detail.producers == {"p": (0, 4)}, "the head is whole, and so is its number"
    assert found.unproven == []


def test_bytes_without_their_index_are_doubtful_until_they_are_taken(disk: MovingDisk) -> None:
    disk.unlink(INDEX)
    found = saved(disk)
    assert (found.covered, found.in_doubt, found.unproven) == ([(40, 47)], [(0, 40)], [])
    found.take_doubtful()
    assert (found.covered, found.in_doubt, found.unproven) == ([(0, 47)], [], [(0, 40)])
    assert {piece.proven for piece in found.pieces if piece.frame.start < 40} == {False}


@pytest.mark.parametrize("at", range(64 + 8))
def test_a_hurt_entry_proves_its_bytes_whichever_field_is_hit(disk: MovingDisk, at: int) -> None:
    """Fields of the struct, and the header: one hit leaves the other sum whole."""
    second = _entries(disk)[1]
    flip(disk, INDEX, second.position + at, bit=3)
    found = saved(disk)
    assert (found.covered, found.in_doubt) == ([(0, 47)], [])
    assert all(piece.proven for piece in found.pieces)
    assert found.detail.producers == {"p": (0, 4)}, "a later record knows the number"


def test_a_hurt_entry_and_its_own_bytes_prove_nothing(disk: MovingDisk) -> None:
    second = _entries(disk)[1]
    flip(disk, INDEX, second.position + 30)
    flip(disk, SEGMENT, 15)
    found = saved(disk)
    assert found.covered == [(0, 10), (20, 47)]
    assert found.in_doubt == [(10, 20)]


def _entries(disk: MovingDisk) -> list[Entry]:
    items = IndexFile(1, 0).walk(disk.read(INDEX)).items(HEADER_BYTES)
    found = [item for item in items if isinstance(item, Entry)]
    return [entry for entry in found if not entry.is_state and entry.frame.size]


def test_anew_takes_no_segment_as_it_is(disk: MovingDisk) -> None:
    found = saved(disk, anew=True)
    assert found.blocks == []
    assert found.covered == [(0, 47)]


def test_bytes_under_another_s_name_are_found(disk: MovingDisk) -> None:
    other = "alien"
    disk.release(disk.open(other, create=True))
    swap(disk, SEGMENT, other)
    assert saved(disk).covered == [(40, 47)]
    assert saved(disk, Strays({}, [other])).covered == [(0, 47)]


def test_without_its_row_and_create_a_stream_is_nameless(disk: MovingDisk) -> None:
    for path in [path for path in disk.files() if path.endswith(".cat")]:
        disk.unlink(path)
    disk.unlink(INDEX)
    found = saved(disk)
    assert found.nameless
    assert found.stream.tail == 47


def test_nothing_left_is_nothing_to_serve(disk: MovingDisk) -> None:
    seen = survey(disk)
    bare = seen.files[1]._replace(indexes=[], segments=[], snapshots=[])
    traces = Traces(9, None, bare, [], [], seen.torn_lsn, Strays({}, []))
    assert salvage(disk, traces) is None
