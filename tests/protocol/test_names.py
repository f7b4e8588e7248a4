"""Paths name streams and buckets: one spelling each, and every refusal says why."""

from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol.names import ID_BYTES_MAX, PREFIX, Resource, place_of
from durastreamd.protocol.requests import ProblemError

segments = st.text(
    st.characters(exclude_characters="/\\\0", exclude_categories=("Cs", "Cc")),
    min_size=1,
    max_size=8,
).filter(lambda text: text not in (".", "..", "snapshot", "bootstrap", "__ds"))
ids = segments.filter(lambda text: ".." not in text and text != "streams")


@given(st.lists(segments, min_size=1, max_size=4), st.sampled_from(("", "snapshot", "bootstrap")))
def test_the_path_surface_names_streams_of_several_segments(names: list[str], part: str) -> None:
    path = PREFIX + "/".join(quote(each, safe="") for each in [*names, part] if each)
    assert place_of(path) == Resource("/" + "/".join(names), part)


@given(st.from_regex(r"[a-z0-9_-]{4,64}", fullmatch=True), ids)
def test_the_bucket_surface_names_a_bucket_and_an_id(bucket: str, name: str) -> None:
    if bucket in ("errors", "health"):
        return
    encoded = quote(name, safe="")
    assert place_of(f"/{bucket}") == Resource(f"{bucket}/")
    assert place_of(f"/{bucket}").is_bucket
    assert place_of(f"/{bucket}/streams") == Resource(f"{bucket}/", "streams")
    assert place_of(f"/{bucket}/{encoded}") == Resource(f"{bucket}/{name}")
    assert not place_of(f"/{bucket}/{encoded}").is_bucket
    assert place_of(f"/{bucket}/{encoded}/snapshot/17") == Resource(
        f"{bucket}/{name}", "snapshot", "17"
    )


@given(segments)
def test_a_name_has_one_meaning_however_it_is_encoded(name: str) -> None:
    everything = "".join(f"%{byte:02x}" for byte in name.encode())
    assert place_of(PREFIX + everything) == place_of(PREFIX + quote(name, safe=""))


@pytest.mark.parametrize(
    ("path", "code", "why"),
    [
        ("/", "NOT_FOUND", "streams are under /v1/stream/"),
        (PREFIX + "x" * 1025, "BAD_REQUEST", "this one 1025"),
        (PREFIX + "a//b", "BAD_REQUEST", "empty or a dot segment"),
        (PREFIX + "a/../b", "BAD_REQUEST", "dot segment"),
        (PREFIX + "a/%2E%2E", "BAD_REQUEST", "dot segment"),
        (PREFIX + "a%2Fb", "BAD_REQUEST", "slash in a stream's name cannot be encoded"),
        (PREFIX + "a%5Cb", "BAD_REQUEST", "backslash"),
        (PREFIX + "a%00", "BAD_REQUEST", "control characters"),
        (PREFIX + "%FF", "BAD_REQUEST", "not UTF-8"),
        (PREFIX + "__ds/x", "NOT_FOUND", "the server's own"),
        ("/abc", "BAD_REQUEST", "4 to 64 of a-z"),
        ("/Agents", "BAD_REQUEST", "4 to 64 of a-z"),
        ("/" + "a" * 65, "BAD_REQUEST", "4 to 64 of a-z"),
        ("/errors", "BAD_REQUEST", "server's own"),
        ("/v1/stream", "NOT_FOUND", "a stream is at /v1/stream/name"),
        ("/v1", "NOT_FOUND", "a stream is at /v1/stream/name"),
        ("/v1/streams/x/y", "NOT_FOUND", "did you mean '/v1/stream/x/y'?"),
        ("/v2/stream/x", "NOT_FOUND", "did you mean '/v1/stream/x'?"),
        ("/favicon.ico", "NOT_FOUND", "no pages here"),
        ("/robots.txt", "NOT_FOUND", "no pages here"),
        ("/v1/stream/snapshot", "BAD_REQUEST", "snapshot is a part of a stream"),
        ("/v1/stream/%62ootstrap", "BAD_REQUEST", "bootstrap is a part of a stream"),
        ("/v1/stream/snapshot/0000000000000000", "BAD_REQUEST", "snapshot is a part of a stream"),
        ("/v1/stream/a%zz", "BAD_REQUEST", "'%zz' is not a percent-escape"),
        ("/v1/stream/a%", "BAD_REQUEST", "'%' is not a percent-escape"),
        ("/v1/stream/a/snapshot/%2", "BAD_REQUEST", "'%2' is not a percent-escape"),
        ("/agents/a%4g", "BAD_REQUEST", "'%4g' is not a percent-escape"),
        ("/age%nts", "BAD_REQUEST", "'%nt' is not a percent-escape"),
        ("/agents/.", "BAD_REQUEST", "is not a dot"),
        ("/agents/%2e", "BAD_REQUEST", "is not a dot"),
        ("/agents/%2E.", "BAD_REQUEST", "two dots"),
        ("/agents/", "BAD_REQUEST", "at least one"),
        ("/agents/a..b", "BAD_REQUEST", "two dots"),
        ("/agents/a%2Fb", "BAD_REQUEST", "no slash"),
        ("/agents/%FF", "BAD_REQUEST", "not UTF-8"),
        ("/agents/streams/snapshot", "BAD_REQUEST", "the listing of the bucket"),
        ("/agents/a/b", "BAD_REQUEST", "only snapshot and bootstrap may follow"),
    ],
)
def test_a_path_that_can_name_nothing_is_refused(path: str, code: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why) as refused:
        place_of(path)
    assert refused.value.problem.code == code


def test_the_bound_on_an_id_is_in_bytes_with_its_bucket() -> None:
    room = ID_BYTES_MAX - len("agents/")
    assert place_of("/agents/" + "x" * room).key == "agents/" + "x" * room
    for name in ("x" * (room + 1), "%C3%A9" * (room // 2 + 1)):
        with pytest.raises(ProblemError, match=f"at most {ID_BYTES_MAX} bytes"):
            place_of(f"/agents/{name}")
