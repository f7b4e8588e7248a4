"""URLs of servers and streams, and what a name stands for."""

import pytest

from durastreamd.client import UrlError, resolve
from durastreamd.client.address import Origin, checked, split


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("http://h", Origin("http", "h", 80), "/"),
        ("https://h/a%20b?x=1", Origin("https", "h", 443), "/a%20b?x=1"),
        ("http://[::1]:4437/a", Origin("http", "::1", 4437), "/a"),
        (checked("unix:/run/a.sock"), Origin("http+unix", "/run/a.sock", 0), "/"),
        (checked("unix:///run/a.sock:/v1?x"), Origin("http+unix", "/run/a.sock", 0), "/v1?x"),
    ],
)
def test_a_url_is_an_origin_and_what_is_asked_for(url: str, origin: Origin, target: str) -> None:
    assert split(url) == (origin, target)


def test_an_origin_is_written_as_it_is_given() -> None:
    for url in ("http://h:80", "http://[::1]:4437", "https://h:443", "unix:/run/a.sock"):
        assert str(split(checked(url))[0]) == url


@pytest.mark.parametrize(
    "url", ["", "nonsense", "ftp://h", "http://", "http://h:port/", "http://h:99999", "unix:"]
)
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(UrlError, match="is not a URL of a server; write http://host:port"):
        checked(url)


@pytest.mark.parametrize(
    ("base", "given", "found"),
    [
        ("", None, "http://127.0.0.1:4437"),
        ("", "a/b", "http://127.0.0.1:4437/v1/stream/a/b"),
        ("http://h:1/v1/stream/x/", None, "http://h:1/v1/stream/x"),
        ("http://h:1/v1/stream/x", "a b", "http://h:1/v1/stream/a%20b"),
        ("http://h:1", "/bucket/id", "http://h:1/bucket/id"),
        ("http://h:1", "https://other/x/", "https://other/x"),
        ("unix:/s", "a", "http+unix://%2Fs/v1/stream/a"),
        ("http://h:1", "unix:/s:/x", "http+unix://%2Fs/x"),
    ],
)
def test_a_name_is_found_beside_the_environment_s_url(
    monkeypatch: pytest.MonkeyPatch, base: str, given: str | None, found: str
) -> None:
    monkeypatch.setenv("STREAM_URL", base)
    assert resolve(given) == found
