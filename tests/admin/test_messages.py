"""Messages in files: one per line, or a stream's bytes; out, and in again."""

import base64
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.admin.carry import messages as messages_module
from durastreamd.admin.carry.messages import LineReader, raw_batches
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import CORRUPT, LOCKED, NO_INPUT, OK, USAGE
from durastreamd.protocol.json_mode import split
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk
from tests.admin.test_backup import dsadmin

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def dumped(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "replace")


@settings(max_examples=40)
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=8), indent=st.none() | st.just(1))
def test_a_json_array_is_taken_apart_wherever_its_lines_end(
    values: list[object], indent: int | None
) -> None:
    body = dumped(values, indent)
    expected, count = split(body)
    found = list(raw_batches(io.BytesIO(body), "in", "application/json"))
    assert b"".join(batch.data for batch in found) == expected
    assert sum(batch.message_count for batch in found) == count


def test_a_large_array_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "BATCH_BYTES_MAX", 100)
    values = [{"n": number, "text": ",\n" * (number % 5)} for number in range(200)]
    compact = b"[" + b",\n".join(dumped(value) for value in values) + b"]"
    for body in (compact, dumped(values, 1), b" \n" + dumped(values)):
        found = list(raw_batches(io.BytesIO(body), "in", "application/json"))
        assert b"".join(batch.data for batch in found) == split(body)[0]
    assert len(list(raw_batches(io.BytesIO(compact), "in", "application/json"))) > 50


@pytest.mark.parametrize("body", [b"", b"{}", b"[1", b"[1,]", b"[1]2", b"[1],\n[2]", b"[tru]"])
def test_what_is_no_array_is_refused(body: bytes) -> None:
    with pytest.raises(CommandError, match="nothing was imported"):
        list(raw_batches(io.BytesIO(body), "in", "application/json"))


@given(text=st.text(st.characters(codec="utf-8")), size=st.integers(4, 9))
def test_no_character_is_cut_in_two(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages_module, "PIECE_BYTES", size)
        found = list(raw_batches(io.BytesIO(text.encode()), "in", "text/plain"))
    assert "".join(batch.data.decode() for batch in found) == text
    assert all(0 < len(batch.data) <= size for batch in found)


@settings(max_examples=30)
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=30), gap=st.sampled_from(("", "\n", " ")))
def test_a_line_is_one_message_also_if_it_is_an_array(values: list[object], gap: str) -> None:
    body = "".join(json.dumps(value) + "\n" + gap for value in values).encode()
    found = list(LineReader(io.BytesIO(body), "in", "application/json", envelope=False).batches())
    assert sum(batch.message_count for batch in found) == len(values)
    wire = b"".join(batch.data for batch in found)
    assert json.loads(b"[" + wire[:-2] + b"]") == values


BAD = [
    ("application/json", b'1\n\n{"a":\n', "line 3: it is not valid JSON"),
    ("application/json", b"1\n2,3\n", "line 2: it holds 2 JSON texts"),
    ("application/json", b'"\xff"\n', "line 1: it is not UTF-8"),
    ("text/plain", b'"a"\n12\n', "line 2: a message of this stream is a JSON string of text"),
    ("text/plain", b'""\n', "line 1: a message has at least one byte"),
    ("image/png", b'"QQ=="\n"%"\n', "line 2: it is not base64"),
]


@pytest.mark.parametrize(("kind", "body", "told"), BAD)
def test_a_line_that_is_no_message_is_named(kind: str, body: bytes, told: str) -> None:
    with pytest.raises(CommandError) as caught:
        list(LineReader(io.BytesIO(body), "in", kind, envelope=False).batches())
    assert told in str(caught.value)
    assert "nothing was imported" in str(caught.value)


# --- through the command line ---


@pytest.fixture
def place(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "empty").touch()
    root = tmp_path / "data"
    take = ("import", "--init", "--format", "raw", "--input", tmp_path / "empty")
    assert dsadmin("--data-dir", root, *take, "--stream", "/empty")[0] == OK
    return ("--data-dir", root)


KINDS = [
    ("application/json", b'{"a": 1}\n[2, 3]\n"x"\n1e400\n'),
    ("text/plain", '"one"\n"zwei\\nlines"\n"ünï"\n'.encode()),
    ("application/octet-stream", b'"AAEC"\n"/w=="\n'),
]


@pytest.mark.parametrize(("kind", "lines"), KINDS)
@pytest.mark.parametrize("envelope", [False, True])
def test_lines_come_back_as_they_went_in(
    place: tuple[object, ...], tmp_path: Path, kind: str, lines: bytes, *, envelope: bool
) -> None:
    (tmp_path / "in").write_bytes(lines)
    how = ("--format", "ndjson")
    take = ("import", *how, "--input", tmp_path / "in", "--content-type", kind, "--stream")
    assert dsadmin(*place, *take, "/one")[0] == OK
    assert dsadmin(*place, *take, "/one")[0] == OK  # once more: after those that are there
    flags = ("--envelope",) if envelope else ()
    out = tmp_path / "out"
    assert dsadmin(*place, "export", "/one", "--output", out, *flags)[0] == OK
    if not envelope:
        assert out.read_text() == (lines * 2).decode().replace("\\n", "\\n")
    again = ("import", *how, "--input", out, "--content-type", kind, "--stream", "news/two", *flags)
    assert dsadmin(*place, *again)[0] == OK
    shown = [dsadmin(*place, "export", name, "--envelope")[1] for name in ("/one", "news/two")]
    rows = [[json.loads(line) for line in text.splitlines()] for text in shown]
    for row in (*rows[0], *rows[1]):
        del row["stream"]
        if not envelope:
            del row["time"]
    assert rows[0] == rows[1]


def test_bytes_come_back_as_they_went_in(place: tuple[object, ...], tmp_path: Path) -> None:
    body = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(body)
    take = ("import", "--format", "raw", "--input", tmp_path / "in", "--stream", "/bytes")
    assert dsadmin(*place, *take)[0] == OK
    out = tmp_path / "out"
    assert dsadmin(*place, "export", "/bytes", "--format", "raw", "--output", out)[0] == OK
    assert out.read_bytes() == body
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_text_that_is_none_needs_an_envelope(place: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"caf\xe9")
    take = ("import", "--format", "raw", "--input", tmp_path / "in", "--stream", "/latin")
    assert dsadmin(*place, *take, "--content-type", "text/plain")[0] == OK
    status, _, text = dsadmin(*place, "export", "/latin")
    assert status == CORRUPT
    assert "--envelope" in text
    shown = json.loads(dsadmin(*place, "export", "/latin", "--envelope")[1])
    assert base64.b64decode(shown["base64"]) == b"caf\xe9"


def test_wrong_questions_get_a_plain_answer(
    place: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[object, ...], int, str]] = [
        (("export",), USAGE, "STREAM..., --bucket B or --all"),
        (("export", "/empty", "--all"), USAGE, "STREAM..., --bucket B or --all"),
        (("export", "/emty"), NO_INPUT, "did you mean /empty?"),
        (("export", "--bucket", "none"), NO_INPUT, "there is no bucket none"),
        (("export", "/empty", "--format", "raw", "--envelope"), USAGE, "belongs to"),
        (("import", "--input", tmp_path / "no"), NO_INPUT, "there is no file"),
        (("import", "--input", tmp_path / "empty"), CORRUPT, "byte 0: this is not a durastreamd"),
        (("import", "--format", "raw"), USAGE, "needs --stream NAME"),
        (("import", "--rename", "x"), USAGE, "OLD=NEW"),
        (("import", "--stream", "/x"), USAGE, "are for --format ndjson and raw"),
        (("import", "--format", "raw", "--stream", "/a/../b"), USAGE, "cannot be a stream's name"),
    ]
    monkeypatch.setattr(sys, "stdin", (tmp_path / "empty").open())
    for arguments, status, told in asked:
        found, _, text = dsadmin(*place, *arguments)
        assert (found, told in text) == (status, True), (arguments, text)
    sys.stdin.close()


def test_a_directory_in_use_is_not_imported_into(place: tuple[object, ...], tmp_path: Path) -> None:
    handle = RealDisk(str(place[1])).lock(fmt.IDENTITY_FILE)
    take = ("import", "--format", "raw", "--input", tmp_path / "empty", "--stream", "/x")
    status, _, text = dsadmin(*place, *take)
    assert (status, "is in use by another" in text) == (LOCKED, True)
    RealDisk("").release(handle)
    (tmp_path / "new").mkdir()
    handle = RealDisk(str(tmp_path / "new")).lock_directory()  # as by one who is just making it
    status, _, text = dsadmin("--data-dir", tmp_path / "new", *take, "--init")
    assert (status, "is in use by another" in text) == (LOCKED, True)
    assert not list((tmp_path / "new").iterdir())
    RealDisk("").release(handle)
    missing = ("--data-dir", tmp_path / "none")
    assert dsadmin(*missing, *take)[0] == NO_INPUT
    (tmp_path / "none").mkdir()
    status, _, text = dsadmin(*missing, *take)
    assert (status, "--init" in text) == (NO_INPUT, True)


def test_a_stream_keeps_its_type(place: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1\n")
    take = ("import", "--format", "ndjson", "--input", tmp_path / "in", "--stream", "/empty")
    status, _, text = dsadmin(*place, *take, "--content-type", "text/plain")
    assert (status, "/empty is application/octet-stream, not text/plain" in text) == (USAGE, True)
