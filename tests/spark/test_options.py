"""The table of options: every name, every refusal in words that help."""

import pytest

from durastreamd.client import TOKEN_VARIABLE
from durastreamd.spark.errors import OptionError
from durastreamd.spark.options import SinkOptions, SourceOptions, camel, parse, rows_of

URL = "http://127.0.0.1:4437"
READ = {"url": URL, "subscribe": "a"}
WRITE = {"url": URL, "stream": "a"}


def source(**given: str) -> SourceOptions:
    return parse(SourceOptions, {**READ, **given})


def test_names_are_camel_case_and_compared_without_case() -> None:
    assert camel("max_offsets_per_trigger") == "maxOffsetsPerTrigger"
    assert source(MAXOFFSETSPERTRIGGER="7").max_offsets_per_trigger == 7
    assert source(checkpointLocation="/x") == source()


def test_every_option_has_a_meaning_and_a_default_for_the_manual() -> None:
    for kind in (SourceOptions, SinkOptions):
        rows = list(rows_of(kind))
        assert len({row.name for row in rows}) == len(rows)
        assert all(row.meaning for row in rows)
    defaults = {row.name: row.default for row in rows_of(SourceOptions)}
    assert defaults["failOnDataLoss"] == "true"
    assert defaults["startingOffsets"] == "earliest"
    assert defaults["maxTriggerDelay"] == "15m"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"maxOffsetPerTriger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"zzzzzz": "1"}, "Known are: path, url,"),
        ({"provider": "durastream", "option.url": "x"}, "Use CREATE TEMPORARY VIEW"),
        ({"mode": "sometimes"}, "one of permissive, dropmalformed, failfast"),
        ({"timeZone": "Mars/Olympus"}, "a name like Europe/Berlin"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number, at least 0, not 'many'"),
        ({"pollTimeoutMs": "0"}, "at least 1"),
        ({"failOnDataLoss": "yes"}, "true or false, not 'yes'"),
        ({"valueType": "int"}, "one of auto, string, binary, not 'int'"),
        ({"onSnapshot": "explode"}, "one of fail, restart, skip"),
        ({"maxTriggerDelay": "soon"}, "a time like 30s"),
        ({"startingOffsets": "sometime"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"a": true}'}, "earliest, latest or JSON"),
        ({"endingOffsets": "[1]"}, "endingOffsets is earliest, latest or JSON"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"endingOffsets": '{"a": 1}', "endingTimestamp": "1"}, "exclude each other"),
        ({"subscribePattern": "x"}, "Say once what to read"),
        ({"subscribe": ""}, "Say once what to read"),
        ({"subscribe": "", "subscribePattern": "x"}, "set bucket, too"),
        ({"subscribe": "", "bucket": "b", "subscribePattern": "("}, "not a regular expression"),
        ({"url": ""}, "Name the server with option url"),
        ({"path": URL + "/v1/stream/a"}, "Name the server with option url"),
        ({"url": "127.0.0.1:4437"}, "not a URL of a server"),
        ({"url": "ftp://x"}, "not a URL of a server"),
        ({"headers": "X: y"}, "headers is a JSON object"),
        ({"tlsKeyFile": "k"}, "goes with tlsCertFile"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        source(**given)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"txnAppId": "job"}, "txnAppId and txnVersion go together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion go together"),
        ({"txnAppId": "a", "txnVersion": "1", "producerId": "b"}, "exclude each other"),
        ({"commitMode": "never"}, "one of driver, partition"),
        ({"subscribe": "a"}, "subscribe is no option"),
        ({"path": URL + "/v1/stream/a", "url": ""}, "exclude each other"),
    ],
)
def test_what_is_wrong_with_a_sink_is_said(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse(SinkOptions, {**WRITE, **given})


@pytest.mark.parametrize(
    ("given", "name", "url"),
    [
        ({"path": f"{URL}/v1/stream/a/b"}, "a/b", f"{URL}/v1/stream/a/b"),
        ({"path": f"{URL}/v1/stream/a%20b"}, "a b", f"{URL}/v1/stream/a%20b"),
        ({"path": f"{URL}/agents/run"}, "run", f"{URL}/agents/run"),
        ({"url": URL, "subscribe": "x/y"}, "x/y", f"{URL}/v1/stream/x/y"),
        ({"url": URL + "/", "subscribe": "x"}, "x", f"{URL}/v1/stream/x"),
        ({"url": f"{URL}/other", "subscribe": "x"}, "x", f"{URL}/other/x"),
        ({"url": URL, "bucket": "agents"}, "run 1", f"{URL}/agents/run%201"),
        ({"url": "unix:/s", "subscribe": "x"}, "x", "http+unix://%2Fs/v1/stream/x"),
        ({"path": "unix:/s:/v1/stream/x"}, "x", "http+unix://%2Fs/v1/stream/x"),
    ],
)
def test_names_lead_to_urls(given: dict[str, str], name: str, url: str) -> None:
    site = parse(SourceOptions, given).site()
    assert site.stream(name) == url
    assert site.name in ("", name)


def test_a_token_comes_from_the_option_or_the_environment_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    assert source().client_settings().token == "from-the-environment"
    made = source(authToken="hunter2", headers='{"X-Team": "blue"}').client_settings()
    assert (made.token, made.headers) == ("hunter2", (("X-Team", "blue"),))
    assert "hunter2" not in repr(made)
    assert source(authTokenFile="/x").client_settings().token == ""
