"""The one checksum: bound to the bytes and to the place where they stand."""

from hypothesis import given, strategies as st

from durastreamd.storage.checksum import digest, payload_seed, payload_sum, seed

parts = st.lists(
    st.integers(0, 2**64 - 1) | st.binary(max_size=16) | st.text(max_size=8), max_size=4
)


def test_sums_are_those_that_are_on_disks() -> None:
    assert digest(b"", 0) == 0x2D06800538D394C2  # xxh3-64 of nothing
    assert payload_sum(b"abc", 0, 0) == 0x78AF5F94892F3950
    assert seed() == 0


@given(st.binary(max_size=40), st.integers(0, 2**32), st.integers(0, 2**32), st.integers(1, 99))
def test_the_same_bytes_elsewhere_have_another_sum(
    data: bytes, stream: int, start: int, off: int
) -> None:
    found = payload_sum(data, stream, start)
    assert found == digest(data, payload_seed(stream, start))
    assert found != payload_sum(data, stream, start + off)
    assert found != payload_sum(data, stream + off, start)
    assert digest(data, 5, start) != digest(data, 5, start + off)


@given(parts, st.integers(0, 2**64 - 1))
def test_every_part_of_an_address_counts(address: list[int | bytes | str], more: int) -> None:
    assert 0 <= seed(*address) < 2**64
    assert seed(*address, more) != seed(*address)
    assert seed(more, *address) != seed(more ^ 1, *address)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_byte_changes_the_sum(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[at] ^= draw.draw(st.integers(1, 255))
    assert digest(bytes(changed), 7) != digest(data, 7)
