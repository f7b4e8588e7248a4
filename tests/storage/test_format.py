"""Names of files: one for each number, read back as they were made, and nothing else is one."""

from hypothesis import given, strategies as st

from durastreamd.storage import format as fmt

numbers = st.integers(0, 10**16 - 1)
streams = st.integers(0, 2**64 - 1)


@given(st.lists(numbers, unique=True, max_size=8), st.lists(st.text(max_size=20), max_size=4))
def test_numbered_files_are_found_in_order_among_others(wanted: list[int], junk: list[str]) -> None:
    names = [f"{number:016d}.jnl" for number in wanted] + [f"x{name}" for name in junk]
    assert fmt.numbered([*reversed(names), "1.jnl", "0" * 16], ".jnl") == sorted(wanted)


@given(streams, numbers)
def test_paths_of_a_stream_lie_in_its_directory(stream: int, base: int) -> None:
    home = fmt.stream_dir(stream)
    assert int(home.rpartition("/")[2], 16) == stream
    made = {
        fmt.segment_path(stream, base),
        fmt.index_path(stream, base),
        fmt.snapshot_path(stream, base, 1),
    }
    assert len(made) == 3
    assert all(path.startswith(f"{home}/") for path in made)


def test_a_frame_without_its_sum_is_the_frame_less_its_end() -> None:
    assert fmt.FRAME_BARE.size + fmt.CHECKSUM.size == fmt.FRAME.size
    for struct in (fmt.JOURNAL_HEADER, fmt.FRAME, fmt.INDEX_HEADER, fmt.ENTRY, fmt.CATALOG_HEADER):
        assert struct.size % 4 == 0
        assert struct.format.startswith("<"), "the same on every machine"
