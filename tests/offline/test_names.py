"""Names: every way to say which stream is meant, and what is said of one that is not there."""

import pytest

from durastreamd.errors import StreamNameError, UnknownStreamError
from durastreamd.offline.names import find_stream, id_of, keys_of, nearest, new_key
from tests.support.world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.bucket("logs", exists=True)
    for key in ("/orders/1", "logs/a b"):
        made.create(key)
    return made


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("/orders/1", "/orders/1"),
        ("orders/1", "/orders/1"),
        ("logs/a b", "logs/a b"),
        ("http://127.0.0.1:4437/v1/stream/orders/1", "/orders/1"),
        ("https://host/logs/a%20b?offset=-1", "logs/a b"),
        ("/logs/a%20b", "logs/a b"),
        (f"{1:016x}", "/orders/1"),
        (f"{2:016x}", "logs/a b"),
    ],
)
def test_a_stream_is_found_by_key_path_url_and_id(world: World, name: str, key: str) -> None:
    assert find_stream(world.engine.namespace, name).key == key


@pytest.mark.parametrize("name", ["1", f"{1:015x}", f"{1:017x}", f"{9:016x}", "http://host/"])
def test_what_is_no_name_of_one_is_refused(world: World, name: str) -> None:
    with pytest.raises(UnknownStreamError, match="there is no stream"):
        find_stream(world.engine.namespace, name)


def test_the_nearest_name_is_offered() -> None:
    assert nearest(["/orders/1", "logs/a"], "order/1") == "; did you mean /orders/1?"
    assert nearest(["/orders/1"], "zzz") == "; `dsadmin ls` lists those there are"
    assert nearest([], "zzz") == "; the data directory holds no streams"


def test_only_sixteen_digits_are_an_id() -> None:
    assert id_of("00000000000000ff") == 255
    assert [id_of(name) for name in ("ff", "00000000000000FF", "0" * 17, "0x" + "0" * 14)] == [
        0
    ] * 4


def test_keys_come_with_the_likeliest_first() -> None:
    assert list(keys_of("orders/1"))[:2] == ["orders/1", "/orders/1"]


@pytest.mark.parametrize(
    ("name", "key"), [("a", "/a"), ("/a/b", "/a/b"), ("logs/a b", "logs/a b"), ("/ü", "/ü")]
)
def test_a_new_name_becomes_the_key_the_server_would_give_it(name: str, key: str) -> None:
    assert new_key(name) == key


@pytest.mark.parametrize("name", ["", "/", "a\0b", "logs/x/snapshots", "logs/"])
def test_what_the_server_would_not_take_is_no_new_name(name: str) -> None:
    with pytest.raises(StreamNameError, match="cannot be a stream's name"):
        new_key(name)
