"""The bucket of a key, and what a bucket counts."""

import pytest

from durastreamd.model.buckets import Bucket, bucket_of


@pytest.mark.parametrize(
    ("key", "bucket"), [("agents/run", "agents"), ("agents/", "agents"), ("/a/b", ""), ("/", "")]
)
def test_a_key_names_its_bucket_before_the_first_slash(key: str, bucket: str) -> None:
    assert bucket_of(key) == bucket


def test_a_new_bucket_has_nothing_and_keeps_nothing() -> None:
    made = Bucket(7)
    assert (made.created_ms, made.streams, made.kept) == (7, 0, 0)
