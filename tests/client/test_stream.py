"""A stream through the library: against the real daemon, and a server of the base protocol."""

import threading

import pytest

from durastreamd.client import (
    AnswerError,
    Bookmark,
    ClientSettings,
    DurableStream,
    ReplacedError,
    ServerRefusedError,
    StreamMessage,
    list_streams,
)
from tests.support.daemon import Daemon
from tests.support.plain_server import PlainServer, Scripted, as_json, plain_server

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)


def data(found: list[StreamMessage]) -> list[bytes]:
    return [each.data for each in found]


def test_a_stream_is_made_written_read_closed_and_deleted(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("life"), QUICK) as stream:
        assert stream.create("text/plain", ttl_s=3600).content_type == "text/plain"
        assert stream.create("text/plain", ttl_s=3600).next_offset == "0" * 16, "as good"
        stream.append("one ")
        assert stream.append(b"two", close=True).closed
        found = list(stream.messages())
        assert data(found) == [b"one ", b"two"], "told apart, because the server frames them"
        head = stream.head()
        assert (head.closed, head.ttl_s, head.message_count, head.byte_count) == (True, 3600, 2, 7)
        with pytest.raises(ServerRefusedError) as caught:
            stream.append("late")
        assert caught.value.name == "STREAM_CLOSED"
        stream.delete()
        with pytest.raises(ServerRefusedError, match="404"):
            stream.head()
        with pytest.raises(ServerRefusedError, match="404"):
            stream.delete()


def test_values_are_messages_whatever_they_are(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("values"), QUICK) as stream:
        stream.create()
        stream.append_json([1, 2], {"a": "ü"}, None)
        stream.append_json([])
        assert data(list(stream.messages())) == [b"[1, 2]", '{"a": "ü"}'.encode(), b"null", b"[]"]
        with pytest.raises(ValueError, match="no JSON form"):
            stream.append_json(float("nan"))


def test_reading_goes_on_behind_any_message(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("resume"), QUICK) as stream:
        stream.create()
        for first in (0, 3, 6):
            stream.append_json(first, first + 1, first + 2)
        found = list(stream.messages())
        assert data(found) == [b"%d" % each for each in range(9)]
        for number, message in enumerate(found):
            kept = str(message.after)  # as a program would keep it
            assert data(list(stream.messages(kept))) == data(found[number + 1 :])
            assert stream.find("at-offset", stream.offset_of(Bookmark.of(kept))).message == (
                number + 1
            )
        assert found[-1].after == Bookmark(stream.head().next_offset), "a page ends at an offset"
        middle = stream.find("at-message", 4)
        assert data(list(stream.messages(middle.offset, end=found[-1].after.offset))) == [
            b"%d" % each for each in range(4, 9)
        ]


def test_a_follower_sees_what_was_there_then_what_comes_then_the_end(daemon: Daemon) -> None:
    writer = DurableStream(daemon.stream("live"), QUICK)
    writer.create()
    writer.append_json("early")
    seen: list[bytes] = []
    with DurableStream(writer.url, QUICK) as reader:
        for message in reader.messages(live=True):
            seen.append(message.data)
            if len(seen) < 4:
                writer.append_json(len(seen))
            elif len(seen) == 4:
                writer.close()
    assert seen == [b'"early"', b"1", b"2", b"3"]
    writer.hang_up()


def test_a_follower_from_now_misses_nothing_after_its_first_look(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("now"), QUICK) as stream:
        stream.create("text/plain")
        stream.append("before")
        with DurableStream(stream.url, QUICK) as reader:
            found: list[bytes] = []
            thread = threading.Thread(target=lambda: found.extend(data(list(follow(reader)))))
            thread.start()
            stream.find("at-message", 0)
            stream.append("after")
            stream.close()
            thread.join()
    assert found in ([b"after"], []), "depending on who came first; never what was before"


def follow(stream: DurableStream) -> list[StreamMessage]:
    return list(stream.messages("now", live=True))


def test_of_two_writers_that_saw_the_same_end_one_appends(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("compared"), QUICK) as stream:
        end = stream.create().next_offset
        stream.append_json("mine", expected=end)
        with pytest.raises(ServerRefusedError) as caught:
            stream.append_json("theirs", expected=end)
        assert caught.value.status == 409
        assert caught.value.headers["stream-next-offset"] == stream.head().next_offset
        assert data(list(stream.messages())) == [b'"mine"']


def test_a_place_is_bound_to_the_stream_it_was_taken_from(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("lives"), QUICK) as stream:
        life = stream.create().incarnation
        assert life
        stream.append_json(1, 2)
        place = next(stream.messages(incarnation=life)).after
        assert data(list(stream.messages(place, incarnation=life))) == [b"2"]
        stream.delete()
        stream.create()
        stream.append_json(3, 4)
        with pytest.raises(ReplacedError, match="made anew"):
            list(stream.messages(place, incarnation=life))


def test_snapshots_bootstrap_and_forks(daemon: Daemon) -> None:
    with DurableStream(daemon.stream("folded"), QUICK) as stream:
        stream.create()
        assert stream.snapshot() is None
        stream.append_json({"add": 2}, {"add": 3}, {"add": 4})
        found = list(stream.messages())
        fork = DurableStream(daemon.stream("forked"), client=stream.client)
        fork.fork(stream.url, found[0].after)
        assert data(list(fork.messages())) == [b'{"add": 2}']
        offset = stream.offset_of(found[1].after)
        assert stream.put_snapshot(offset, b'{"sum": 5}') == offset
        blob = stream.snapshot()
        assert blob is not None
        assert (blob.offset, blob.data) == (offset, b'{"sum": 5}')
        started = stream.bootstrap()
        assert started.snapshot == blob
        assert started.messages == [b'{"add": 4}']
        assert list(stream.messages(started.next_offset)) == []
        with pytest.raises(ServerRefusedError, match="OFFSET_EXPIRED") as caught:
            list(stream.messages())
        assert caught.value.headers["stream-next-offset"] == offset


def test_streams_are_listed_by_prefix_and_in_buckets(daemon: Daemon) -> None:
    for name in ("list/b ü", "list/a", "list/c"):
        with DurableStream(daemon.stream(name.replace(" ", "%20").replace("ü", "%C3%BC"))) as made:
            made.create("text/plain")
    found = list(list_streams(daemon.url, prefix="list/"))
    assert [each.name for each in found] == ["list/a", "list/b ü", "list/c"]
    with DurableStream(found[1].url, QUICK) as stream:
        assert stream.head().content_type == found[1].content_type
        stream.client.request("PUT", f"{daemon.url}/bucket")
        inside = DurableStream(f"{daemon.url}/bucket/one", client=stream.client)
        inside.create("text/plain")
        rows = list(list_streams(daemon.url, bucket="bucket", client=stream.client))
    assert [each.url for each in rows] == [inside.url]


# --- a server of the base protocol alone ---


def furnished(server: PlainServer, kind: str, messages: list[bytes]) -> DurableStream:
    server.streams["/v1/stream/x"] = (kind, messages)
    return DurableStream(f"{server.url}/v1/stream/x", QUICK)


def test_a_plain_server_is_read_the_same_and_resumed_the_same() -> None:
    with plain_server(page=3) as server:
        texts = as_json(*range(8))
        with furnished(server, "application/json", texts) as stream:
            found = list(stream.messages())
            assert data(found) == texts
            for number, message in enumerate(found):
                assert data(list(stream.messages(message.after))) == texts[number + 1 :]
            server.page = 2  # other pages, the same messages
            assert data(list(stream.messages(found[4].after))) == texts[5:]
            with pytest.raises(AnswerError, match="does not look up places"):
                stream.find("at-message", 3)


def test_bytes_of_a_plain_server_come_page_by_page() -> None:
    with plain_server(page=2) as server:
        with furnished(server, "application/x-ndjson", [b"a\n", b"b\n", b"c"]) as stream:
            assert data(list(stream.messages())) == [b"a\nb\n", b"c"]


def test_a_page_that_breaks_off_is_taken_up_again_without_doubles() -> None:
    with plain_server(page=5) as server:
        with furnished(server, "application/json", as_json(*range(5))) as stream:
            _ = stream.content_type
            whole = b"0\n1\n2\n3\n4\n"
            head = {"Content-Type": "application/x-ndjson", "Stream-Next-Offset": "tokf"}
            ended = {**head, "Stream-Up-To-Date": "true"}
            cut = {**head, "Content-Length": str(len(whole))}
            server.script += [Scripted(-2, cut, whole[:5]), Scripted(200, ended, whole)]
            assert data(list(stream.messages())) == [b"0", b"1", b"2", b"3", b"4"]


def test_another_stream_of_the_same_name_is_not_read_on_as_if_it_were_the_first() -> None:
    with plain_server() as server:
        with furnished(server, "application/json", as_json(*range(3))) as stream:
            last = list(stream.messages())[-1]
            server.streams["/v1/stream/x"] = ("application/json", as_json(7))
            answer = {"Content-Type": "application/json", "Stream-Next-Offset": "tokd"}
            told = {**answer, "Stream-Incarnation": "two", "Stream-Up-To-Date": "true"}
            server.script.append(Scripted(200, told, b"[]"))
            with pytest.raises(ReplacedError, match="made anew"):
                list(stream.messages(last.after, incarnation="one"))
            server.script.append(Scripted(200, told, b"[7]"))
            with pytest.raises(ReplacedError, match="1 messages fewer"):
                list(stream.messages(Bookmark("-1", 2)))


def test_a_server_that_never_waits_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("durastreamd.client.stream.time.sleep", pauses.append)
    with plain_server() as server:
        with furnished(server, "application/json", []) as stream:
            _ = stream.content_type
            told = {"Stream-Next-Offset": "toka", "Stream-Up-To-Date": "true"}
            server.script += [Scripted(204, told)] * 15
            server.script.append(Scripted(204, {**told, "Stream-Closed": "true"}))
            assert list(stream.messages(live=True)) == []
    assert pauses[0] == 0
    assert pauses[-1] == 5.0
    assert pauses == sorted(pauses)
