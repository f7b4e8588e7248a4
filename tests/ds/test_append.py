"""``ds append``: each message once, and again after any failure."""

import json
import os
from pathlib import Path

import pytest

from durastreamd.client import (
    IdempotentProducer,
    StateError,
    StateLockedError,
    UnreachableError,
)
from durastreamd.client.producer_state import StateFile
from durastreamd.ds import slots
from tests.ds.conftest import Ds


def state_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state").rglob("*.state"))


def test_arguments_lines_and_files_are_messages(ds: Ds, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"four\nfive")
    assert ds("create", "sources") == (0, b"", ""), "quiet where nobody looks"
    assert ds("append", "sources", "one", "two words") == (0, b"", "")
    assert ds("append", "sources", stdin=b"three\n") == (0, b"", "")
    assert ds("append", "sources", "--file", str(file)).status == 0
    assert ds("append", "sources", "--whole", "--file", str(file)).status == 0
    assert ds("append", "sources", "--exact", "no end").status == 0
    found = [json.loads(line) for line in ds("cat", "--ndjson", "sources").lines]
    assert found == [
        "one\n", "two words\n", "three\n", "four\n", "five\n", "four\nfive", "no end",
    ]  # fmt: skip


def test_values_are_checked_before_they_are_sent(ds: Ds) -> None:
    ran = ds("append", "--create", "--json", "values", stdin=b'{"a": 1}\n\n[1, 2]\n')
    assert (ran.status, json.loads(ran.out)["messages"]) == (0, 2)
    for text in ("{", "1, 2", "NaN"):
        refused = ds("append", "values", text)
        assert (refused.status, "is not one JSON value" in refused.err) == (65, True)
    assert ds("cat", "values").lines == ['{"a": 1}', "[1, 2]"]
    ds("create", "plain")
    assert ds("append", "--json", "plain", "1").status == 64


def test_appends_one_after_the_other_use_one_producer(ds: Ds, tmp_path: Path) -> None:
    ds("create", "again")
    for _ in range(3):
        assert ds("append", "again", "the same").status == 0
    assert ds("cat", "again").lines == ["the same"] * 3, "three appends, not one and two repeats"
    assert len(state_files(tmp_path)) == 1


def test_appends_at_the_same_time_have_slots_of_their_own(ds: Ds, tmp_path: Path) -> None:
    ds("create", "parallel")
    ds("append", "parallel", "first")
    (path,) = state_files(tmp_path)
    held = StateFile(path)
    assert ds("append", "parallel", "second").status == 0
    held.release()
    assert len(state_files(tmp_path)) == 2


class KilledError(BaseException):
    """What nothing catches."""


def interrupted(ds: Ds, monkeypatch: pytest.MonkeyPatch, place: str, at: int, *words: str) -> None:
    original, calls = getattr(IdempotentProducer, place), 0

    def dies(self: IdempotentProducer, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KilledError
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(IdempotentProducer, place, dies)
        with pytest.raises(KilledError):
            ds(*words)


@pytest.mark.parametrize("place", ["_save", "_launch", "_settled"])
def test_the_same_command_given_again_goes_on(
    ds: Ds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    name, lines = f"killed{place}", [f"line {number}" for number in range(300)]
    file = tmp_path / "input"
    file.write_text("\n".join(lines))
    words = ["append", name, "--file", str(file)]
    ds("create", name)
    for at in (2, 3, 4):
        interrupted(ds, monkeypatch, place, at, *words)
        assert ds("append", name, "somebody else").status == 0, "has a slot of its own"
    assert ds(*words) == (0, b"", "")
    found = [line for line in ds("cat", name).lines if line != "somebody else"]
    assert found == lines
    assert ds("append", name, "after").status == 0


def test_other_input_is_not_taken_for_the_rest_of_an_interrupted_one(
    ds: Ds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_text("".join(f"{number}\n" for number in range(100)))
    words = ["append", "other", "--file", str(file)]
    ds("create", "other")
    interrupted(ds, monkeypatch, "_settled", 1, *words)
    kept = file.read_text()
    for changed in (kept.replace("0\n", "zero\n", 1), ""):
        file.write_text(changed)
        refused = ds(*words)
        assert (refused.status, "--fresh" in refused.err) == (64, True), changed
    file.write_text("new\n")
    assert ds(*words, "--fresh") == (0, b"", "")
    found = ds("cat", "other").lines
    assert found[-1] == "new"
    assert found[:-1] == [str(number) for number in range(len(found) - 1)], "what was on its way"
    assert ds(*words).status == 0


def test_what_the_server_refuses_leaves_no_slot_behind(ds: Ds, tmp_path: Path) -> None:
    ds("append", "--create", "--close", "closed", "last")
    for number in range(3):
        refused = ds("append", "closed", str(number))
        assert (refused.status, "STREAM_CLOSED" in refused.err) == (65, True)
    assert len(state_files(tmp_path)) == 1
    assert ds("cat", "closed").lines == ["last"]


def test_compare_and_append(ds: Ds) -> None:
    ds("create", "compared")
    offset = json.loads(ds("info", "--json", "compared").out)["next_offset"]
    assert ds("append", "--expect", offset, "compared", "mine").status == 0
    assert ds("append", "--expect", offset, "compared", "theirs").status == 65
    assert ds("cat", "compared").lines == ["mine"]


def test_a_state_file_of_one_s_own_and_none(ds: Ds, tmp_path: Path) -> None:
    mine = tmp_path / "mine.state"
    ds("create", "own")
    assert ds("append", "--state", str(mine), "own", "1").status == 0
    assert ds("append", "--no-state", "own", "2").status == 0
    assert ds("append", "--producer", "me", "own", "3").status == 0
    assert ds("append", "--producer", "me", "own", "4").status == 0
    assert ds("cat", "own").lines == ["1", "2", "3", "4"]
    held = StateFile(mine)
    assert ds("append", "--state", str(mine), "own", "5").status == 75
    held.release()
    mine.write_bytes(mine.read_bytes()[: mine.stat().st_size // 2])
    cut = ds("append", "--state", str(mine), "own", "5")
    assert (cut.status, "is damaged" in cut.err) == (74, True)


def test_a_home_that_cannot_be_written_is_told_with_what_to_do(
    ds: Ds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds("create", "homeless")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    refused = ds("append", "homeless", "x")
    assert (refused.status, "--no-state" in refused.err) == (74, True)


def test_slots_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS_MAX", 2)
    held = [StateFile(tmp_path / f"{number}.state") for number in range(2)]
    with pytest.raises(StateError) as caught:
        slots.choose(tmp_path, "key")
    assert "2 appends to this stream are under way" in str(caught.value)
    for file in held:
        file.release()
    assert slots.choose(tmp_path, "key") == tmp_path / "0.state"
    with pytest.raises(StateLockedError):
        keep = StateFile(tmp_path / "0.state")
        try:
            StateFile(tmp_path / "0.state")
        finally:
            keep.release()


def test_a_server_that_is_not_there_is_said_so(ds: Ds, tmp_path: Path) -> None:
    gone = ds("append", "--retry", "0", "--server", "http://127.0.0.1:1", "x", "y")
    assert (gone.status, "no answer from" in gone.err) == (69, True)
    assert UnreachableError.__name__ not in gone.err
    assert not os.path.exists(tmp_path / "state"), "nothing was begun"
