"""Options, declared by the fields of classes and read by one parser.

``SourceOptions`` and ``SinkOptions`` are those of the format ``durastream``; those of
``durastream-segments`` are declared the same way (``segments.options``). The manual page lists what
``rows_of`` yields and a test holds them equal. Names are Kafka's, Delta's and those of Spark's JSON
reader where these have one. A name that is none of ours is refused with the nearest that is: a
misspelt ``startingOffset`` must not read everything again in silence.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from durastreamd.client import TOKEN_VARIABLE, ClientSettings, UrlError
from durastreamd.client.address import PATH_SURFACE, checked, environment_token
from durastreamd.spark.errors import OptionError
from durastreamd.spark.schema import DROPMALFORMED, FAILFAST, PERMISSIVE, MemberOptions

MIB = 1024 * 1024
LOGS = "spark-commits"

# What Spark itself hands to every source and sink.
_SPARKS_OWN = ("path", "checkpointlocation", "queryname", "mergeschema")
_DURATION = re.compile(r"([0-9]+) *(ms|s|m|h)?")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, None: 1}

V = TypeVar("V", str, int, bool)
Given = TypeVar("Given", bound="Options")


# By the stream's name: an offset as the server writes it, or the number of a message.
Places = Mapping[str, str | int]


class Row(NamedTuple):
    """One option, as the manual page lists it."""

    name: str
    default: str
    meaning: str


def option(
    default: V,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    least: int = 0,
    shown: str | None = None,
    duration: bool = False,
) -> V:
    """Declare an option: its default, its meaning in one line, what it may be."""
    metadata = {
        "meaning": meaning,
        "choices": choices,
        "least": least,
        "shown": shown,
        "duration": duration,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """The options of one side of one format."""

    FORMAT: ClassVar[str]

    def check(self) -> None:
        """Refuse what contradicts itself."""


@dataclass(frozen=True)
class HttpOptions(Options):
    """What source and sink share: where the server is and how to talk to it."""

    FORMAT: ClassVar[str] = "durastream"

    path: str = option("", "the URL of one stream, as given to load() or save()")
    url: str = option("", "the server, as http://host:port, or unix:/path of its socket")
    bucket: str = option("", "the bucket that streams are named in")
    auth_token: str = option("", f"bearer token; otherwise the environment's {TOKEN_VARIABLE}")
    auth_token_file: str = option("", "file of the token, read anew for every request")
    headers: str = option("", "more request headers, as a JSON object")
    tls_ca_file: str = option("", "authorities to trust instead of the system's")
    tls_cert_file: str = option("", "client certificate")
    tls_key_file: str = option("", "key of the client certificate")
    tls_verify: bool = option(True, "false trusts any certificate")  # noqa: FBT003
    request_timeout_ms: int = option(30_000, "silence after which a request has failed", least=1)
    retry_timeout_ms: int = option(
        60_000, "how long a request is repeated on 429, 503 and lost connections"
    )
    retry_interval_ms: int = option(200, "wait before the second try; doubles from there", least=1)

    def check(self) -> None:
        """Refuse what contradicts itself."""
        self.site()
        if self.tls_key_file and not self.tls_cert_file:
            message = "tlsKeyFile goes with tlsCertFile."
            raise OptionError(message)
        _json_object("headers", self.headers)

    def client_settings(self) -> ClientSettings:
        """Return how to talk to the server."""
        named = bool(self.auth_token or self.auth_token_file)
        return ClientSettings(
            token=self.auth_token if named else environment_token(),
            token_file=self.auth_token_file,
            headers=tuple(sorted(_json_object("headers", self.headers).items())),
            ca_file=self.tls_ca_file,
            certificate_file=self.tls_cert_file,
            key_file=self.tls_key_file,
            verify=self.tls_verify,
            timeout_s=self.request_timeout_ms / 1000,
            retry_s=self.retry_timeout_ms / 1000,
            retry_interval_s=self.retry_interval_ms / 1000,
        )

    def site(self) -> "Site":
        """Return where names of streams lead; ``path`` and ``url`` exclude each other."""
        if bool(self.path) == bool(self.url):
            message = "Name the server with option url, or one stream with load(<its URL>)."
            raise OptionError(message)
        try:
            given = checked(self.path or self.url)
        except UrlError as exc:
            raise OptionError(str(exc)) from exc
        if not self.path:
            root = given.rstrip("/")
            if self.bucket:
                return Site(f"{root}/{quote(self.bucket)}", root)
            return Site(root if urlsplit(root).path else root + PATH_SURFACE, root)
        if self.bucket:
            message = "Option bucket goes with option url; the URL of a stream says it all."
            raise OptionError(message)
        surface = f"{PATH_SURFACE}/"
        before, found, name = given.partition(surface)
        if not found:
            before, _, name = given.rpartition("/")
            return Site(before, before, unquote(name))
        return Site(before + PATH_SURFACE, before, unquote(name))


class Site(NamedTuple):
    """Where streams are: URLs below which a name and a bucket's listing are found."""

    base: str
    root: str
    name: str = ""  # where the URL of one stream was given

    def stream(self, name: str) -> str:
        """Return the URL of a stream."""
        return f"{self.base}/{quote(name)}"


@dataclass(frozen=True)
class ChoosingOptions(Options):
    """What both sources share: which streams, and how their messages become rows."""

    subscribe: str = option("", "streams to read, separated by commas")
    subscribe_pattern: str = option("", "regular expression; streams whose whole name matches")
    value_type: str = option(
        "auto",
        "string, binary, or auto: string where all streams are JSON or text",
        choices=("auto", "string", "binary"),
    )
    mode: str = option(
        PERMISSIVE,
        "messages that do not fit a schema: PERMISSIVE makes null of what does not,"
        " DROPMALFORMED leaves them out, FAILFAST fails",
        choices=(PERMISSIVE, DROPMALFORMED, FAILFAST),
        shown=PERMISSIVE.upper(),
    )
    column_name_of_corrupt_record: str = option(
        "_corrupt_record", "the column of a schema that keeps messages that do not fit"
    )
    time_zone: str = option("UTC", "zone of a message's times that name none, for a schema")

    def check(self) -> None:
        """Refuse what contradicts itself."""
        super().check()
        try:
            ZoneInfo(self.time_zone)
        except (ValueError, OSError, ZoneInfoNotFoundError) as exc:
            message = f"timeZone is a name like Europe/Berlin or UTC, not {self.time_zone!r}."
            raise OptionError(message) from exc

    def member_options(self) -> MemberOptions:
        """Return how messages become columns."""
        return MemberOptions(self.mode, self.column_name_of_corrupt_record, self.time_zone)


@dataclass(frozen=True)
class SourceOptions(ChoosingOptions, HttpOptions):
    """The source, batch and streaming."""

    starting_offsets: str = option(
        "earliest", "earliest, latest, or JSON: stream to offset, or to a message's number"
    )
    ending_offsets: str = option("latest", "batch only: latest, or JSON as for startingOffsets")
    starting_timestamp: str = option(
        "", "begin with what was written then or later: ms since 1970, or RFC 3339"
    )
    ending_timestamp: str = option("", "batch only: end before what was written then")
    fail_on_data_loss: bool = option(
        True,  # noqa: FBT003
        "fail when data is gone before it was read; false goes on behind it",
    )
    on_snapshot: str = option(
        "fail",
        "where history was folded into a snapshot: fail, restart with the snapshot as a row"
        " (and a column snapshot), or skip it",
        choices=("fail", "restart", "skip"),
    )
    max_offsets_per_trigger: int = option(0, "messages in a batch", shown="no limit")
    max_bytes_per_trigger: int = option(0, "bytes in a batch", shown="no limit")
    min_offsets_per_trigger: int = option(0, "wait for so many messages", shown="no wait")
    max_trigger_delay: int = option(
        900_000, "the longest wait for minOffsetsPerTrigger", shown="15m", duration=True
    )
    min_partitions: int = option(0, "cut large ranges until there are so many", shown="no cut")
    # A stream that is cut reaches a sink in several tasks, so a streaming query keeps it whole.
    max_bytes_per_partition: int = option(0, "cut larger ranges", shown="16 MiB; streaming: no cut")
    poll_timeout_ms: int = option(1000, "how long an idle query waits for news at a time", least=1)
    line_sep: str = option(
        "", "streams that are not JSON: a row for each line ended by this, not for each message"
    )

    def check(self) -> None:
        """Refuse what contradicts itself."""
        super().check()
        ways = [bool(self.path), bool(self.subscribe), bool(self.subscribe_pattern)]
        if sum(ways) > 1 or (not any(ways) and not self.bucket):
            message = (
                "Say once what to read: load(<URL of a stream>), or url with subscribe, bucket, "
                "or bucket and subscribePattern."
            )
            raise OptionError(message)
        if self.subscribe_pattern:
            if not self.bucket:
                message = "subscribePattern chooses among the streams of a bucket; set bucket, too."
                raise OptionError(message)
            pattern_of(self)
        if self.starting_timestamp and self.starting_offsets != "earliest":
            message = "startingTimestamp and startingOffsets exclude each other."
            raise OptionError(message)
        if self.ending_timestamp and self.ending_offsets != "latest":
            message = "endingTimestamp and endingOffsets exclude each other."
            raise OptionError(message)
        if self.starting_offsets not in ("earliest", "latest"):
            places("startingOffsets", self.starting_offsets)
        if self.ending_offsets != "latest":
            places("endingOffsets", self.ending_offsets)


@dataclass(frozen=True)
class SinkOptions(HttpOptions):
    """The sink, batch and streaming."""

    stream: str = option("", "stream to append to; otherwise the column stream says")
    create_streams: bool = option(False, "create streams that are missing")  # noqa: FBT003
    content_type: str = option("", "content type of created streams", shown="application/json")
    producer_id: str = option("", "first part of Producer-Id", shown="the query's id")
    txn_app_id: str = option("", "batch: Producer-Id, so that a repeated job writes once")
    txn_version: int = option(-1, "batch: Producer-Epoch, grows with every job", least=-1, shown="")
    max_append_bytes: int = option(4 * MIB, "size of one append", least=1)
    commit_mode: str = option(
        "driver",
        "driver: it appends, after all tasks, and any query is written exactly once; partition:"
        " tasks append, side by side, for rows of format durastream that were not shuffled",
        choices=("driver", "partition"),
    )
    commit_log: str = option(
        "",
        "URL below which commitMode=driver keeps a batch until it is committed",
        shown="/v1/stream/spark-commits of the server",
    )
    report_file: str = option(
        "",
        "a file of the driver that gets a JSON line for each batch: what was written, and what"
        " the server knew already",
    )
    close_on_finish: bool = option(False, "batch: close the streams afterwards")  # noqa: FBT003
    line_sep: str = option(
        "", "streams that are not JSON: rows ended by this go into shared messages"
    )

    def check(self) -> None:
        """Refuse what contradicts itself."""
        super().check()
        if self.path and self.stream:
            message = "save(<URL of a stream>) and option stream exclude each other."
            raise OptionError(message)
        if bool(self.txn_app_id) != (self.txn_version >= 0):
            message = "txnAppId and txnVersion go together: who writes, and which of its writes."
            raise OptionError(message)
        if self.commit_log:
            try:
                checked(self.commit_log)
            except UrlError as exc:
                raise OptionError(str(exc)) from exc
        if self.txn_app_id and self.producer_id:
            message = "txnAppId and producerId exclude each other; both become the Producer-Id."
            raise OptionError(message)

    def log_base(self) -> str:
        """Return the URL below which batches are kept until they are committed."""
        if self.commit_log:
            return checked(self.commit_log).rstrip("/")
        site = self.site()
        if self.url:
            return f"{site.root}{PATH_SURFACE}/{LOGS}"
        parts = urlsplit(site.base)
        return f"{parts.scheme}://{parts.netloc}{PATH_SURFACE}/{LOGS}"


def camel(name: str) -> str:
    """Return the name of an option for that of its field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def rows_of(kind: type[Options]) -> Iterator[Row]:
    """Yield the options of a side, for documents and their tests."""
    for each in fields(kind):
        shown = each.metadata["shown"]
        default = shown if shown is not None else _text(each.default)
        yield Row(camel(each.name), default, each.metadata["meaning"])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(kind: type[Given], given: Mapping[str, str]) -> Given:
    """Read options; names are compared without case, as Spark does."""
    _check_table(given, kind.FORMAT)
    known = {camel(each.name).lower(): each for each in fields(kind)}
    values: dict[str, str | int | bool] = {}
    for name, value in given.items():
        key = name.lower()
        if key in known:
            values[known[key].name] = _value(known[key], value)
        elif key not in _SPARKS_OWN:
            names = [camel(each.name) for each in fields(kind)]
            near = get_close_matches(key, [each.lower() for each in names], 1)
            found = [each for each in names if each.lower() in near]
            hint = f"; did you mean {found[0]}?" if found else f". Known are: {', '.join(names)}."
            message = f"{name} is no option of format {kind.FORMAT}{hint}"
            raise OptionError(message)
    made = kind(**values)
    made.check()
    return made


def _check_table(given: Mapping[str, str], source: str) -> None:
    """Say what works in place of CREATE TABLE, which hands a Python source its own properties."""
    if "provider" in {name.lower() for name in given}:
        message = (
            f"CREATE TABLE ... USING {source} cannot work: Spark keeps no options for tables of a "
            f"Python source. Use CREATE TEMPORARY VIEW ... USING {source} OPTIONS (...)."
        )
        raise OptionError(message)


def _value(each: "Field[object]", text: str) -> str | int | bool:
    name, data = camel(each.name), each.metadata
    if data["duration"]:
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            message = f"{name} is a time like 30s or 15m, not {text!r}."
            raise OptionError(message)
        return int(found[1]) * _UNITS_MS[found[2]]
    if isinstance(each.default, bool):
        if text.strip().lower() not in ("true", "false"):
            message = f"{name} is true or false, not {text!r}."
            raise OptionError(message)
        return text.strip().lower() == "true"
    if isinstance(each.default, int):
        least = data["least"]
        if not re.fullmatch(r"-?[0-9]{1,16}", text.strip()) or int(text) < least:
            message = f"{name} is a whole number, at least {least}, not {text!r}."
            raise OptionError(message)
        return int(text)
    if data["choices"] and text.lower() not in data["choices"]:
        words = ", ".join(data["choices"])
        message = f"{name} is one of {words}, not {text!r}."
        raise OptionError(message)
    return text.lower() if data["choices"] else text


def names_of(made: ChoosingOptions) -> list[str]:
    """Return the streams that were asked for by name."""
    return [name for each in made.subscribe.split(",") if (name := each.strip())]


def pattern_of(made: ChoosingOptions) -> re.Pattern[str]:
    """Return what the whole name of a stream must match; without the option any does."""
    try:
        return re.compile(made.subscribe_pattern or ".*", re.DOTALL)
    except re.error as exc:
        message = f"subscribePattern is not a regular expression: {exc}."
        raise OptionError(message) from exc


def time_ms(name: str, text: str) -> int | None:
    """Read a time: ms since 1970, or RFC 3339; None where none is given."""
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        message = f"{name} is ms since 1970, or RFC 3339 with a time zone, not {text!r}."
        raise OptionError(message)
    return round(found.timestamp() * 1000)


def _json_object(name: str, text: str) -> dict[str, str]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        message = f'{name} is a JSON object of texts, like {{"X-Team": "a"}}.'
        raise OptionError(message)
    return found


@lru_cache(maxsize=16)  # it is asked for each stream, and may name all of them
def places(name: str, text: str, words: str = "earliest, latest") -> Places:
    """Read places as JSON: a stream's name to an offset (a text) or a message's number."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    good = isinstance(found, dict) and all(
        isinstance(each, str | int) and not isinstance(each, bool) for each in found.values()
    )
    if not good:
        message = (
            f"{name} is {words} or JSON like "
            f'{{"orders": "0000000000000042", "events": 1000}}, not {text!r}.'
        )
        raise OptionError(message)
    return {str(key): value for key, value in found.items()}
