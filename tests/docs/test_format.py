"""FORMAT.md and the structs say the same, to the byte."""

import re
import struct
import typing
from pathlib import Path

from durastreamd.admin.carry import items, manifest
from durastreamd.storage import format as fmt, recovery

TEXT = (Path(__file__).parent.parent.parent / "FORMAT.md").read_text()
STRUCTS = {
    "JOURNAL_HEADER": fmt.JOURNAL_HEADER,
    "FRAME": fmt.FRAME,
    "INDEX_HEADER": fmt.INDEX_HEADER,
    "ENTRY": fmt.ENTRY,
    "CATALOG_HEADER": fmt.CATALOG_HEADER,
    "CATALOG_FRAME": fmt.CATALOG_FRAME,
}


def test_every_item_of_an_export_is_described() -> None:
    assert f"`ITEM`, {items.ITEM.size} bytes" in TEXT
    assert f"`{items.SELF_DESCRIBED.hex(' ').upper()}`" in TEXT
    part = TEXT[TEXT.index("## Export") : TEXT.index("## Backup")]
    for kind in typing.get_args(items.Item):
        row = next(
            line
            for line in part.splitlines()
            if line.startswith(f"| `{kind.__struct_config__.tag}` |")
        )
        for member in kind.__struct_fields__:
            assert f"`{member}`" in row, (row, member)


def test_the_manifest_of_a_backup_is_described() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `BACKUP` |"))
    for member in manifest.About.__struct_fields__:
        assert f"`{member}`" in row, member


def table_after(name: str) -> list[tuple[int, int]]:
    """Return (offset, size) of the fields in the table that follows the mention of a struct."""
    part = TEXT[TEXT.index(f"`{name}`") :]
    part = part[part.index("| offset |") :]
    rows = part[: part.index("\n\n")].splitlines()[2:]
    return [(int(cells[1]), int(cells[2])) for row in rows if (cells := row.split("|"))]


def fields_of(packed: struct.Struct) -> list[tuple[int, int]]:
    """Return (offset, size) of each field of a struct, padding included."""
    sizes = {"Q": 8, "I": 4}
    found, offset = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", packed.format):
        repeat = int(count or 1)
        parts = [repeat] if code in "sx" else [sizes[code]] * repeat
        for size in parts:
            found.append((offset, size))
            offset += size
    return found


def test_every_struct_is_described_field_by_field() -> None:
    for name, packed in STRUCTS.items():
        assert table_after(name) == fields_of(packed), name
        assert f"`{name}`, {packed.size} bytes" in TEXT


def test_every_magic_is_named() -> None:
    for magic in (fmt.JOURNAL_MAGIC, fmt.INDEX_MAGIC, fmt.CATALOG_MAGIC):
        assert f"`{magic.decode()}`" in TEXT
    short = (fmt.FRAME_MAGIC, fmt.ENTRY_MAGIC, fmt.STATE_MAGIC, fmt.ROWS_MAGIC, fmt.COMMIT_MAGIC)
    for magic in short:
        assert f"`{magic.hex(' ').upper()}`" in TEXT


def test_the_recovery_table_is_the_codes() -> None:
    part = TEXT[TEXT.index("| case |") :]
    rows = part[: part.index("\n\n")].splitlines()[2:]
    found = []
    for row in rows:
        label, *answers, decision = [cell.strip() for cell in row.strip("|").split("|")]
        found.append((label, "".join(answers), decision))
    assert found == [(case.label, case.pattern, case.decision.name) for case in recovery.CASES]


def test_the_version_is_named() -> None:
    assert f"version {fmt.FORMAT_VERSION}" in TEXT.splitlines()[0]
