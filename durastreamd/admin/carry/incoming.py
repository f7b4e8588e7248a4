"""From the items of an export back to streams. Every item is judged before it is written.

The checksums say that an item is as it was written; whether it makes sense is asked here, because a
file may come from another program: an append must go on at the tail, message lengths must add up,
times must not go back, and in the end the stream must be what its last item says.
"""

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from durastreamd.admin.carry.items import (
    VERSION,
    End,
    ExportHead,
    Item,
    ItemReader,
    PieceItem,
    RecordItem,
    SnapshotItem,
    StreamEnd,
    StreamItem,
)
from durastreamd.admin.carry.staging import Staging, StreamWriter
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import NO_INPUT, USAGE
from durastreamd.model.buckets import bucket_of
from durastreamd.model.namespace import Namespace
from durastreamd.model.records import NO_POLICY, Append, Create, Snapshot
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.names import new_key
from durastreamd.protocol.content_type import is_json
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.protocol.offsets import POSITION_MAX
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.extensions import RETENTION

# How many names a refusal lists.
_NAMED_MAX = 5


class _Coming(NamedTuple):
    """The stream whose items are being read."""

    item: StreamItem
    writer: StreamWriter


class Incoming:
    """Takes the items of one export, in order, into a staging."""

    def __init__(self, reader: ItemReader, staging: Staging, renames: Mapping[str, str]) -> None:
        self._reader = reader
        self._staging = staging
        self._renames = renames
        self._names: dict[str, str] = {}  # as in the export: as here
        self._streams: dict[int, Stream] = {}
        self._seen: set[str] = set()
        self._coming: _Coming | None = None
        self._time_ms = 0
        self._blob: BlobWriter | None = None
        self._blob_item: SnapshotItem | None = None
        self._blobs: dict[tuple[int, int, int], Snapshot] = {}
        self._records = 0
        self._data_bytes = 0

    def run(self) -> None:
        """Take every item; raise CommandError where one is not to be believed."""
        try:
            items = self._reader.items()
            head = next(items)
            if not isinstance(head, ExportHead) or head.version != VERSION:
                self._refuse(f"this is not an export of version {VERSION}")
            self._head(head)
            for item in items:
                self._take(item)
        finally:
            if self._blob is not None:
                self._blob.discard()

    def _refuse(self, reason: str) -> NoReturn:
        raise self._reader.refusal(reason)

    def _check(self, holds: object, reason: str) -> None:
        if not holds:
            self._refuse(reason)

    def _take(self, item: Item) -> None:
        coming = self._coming
        match item:
            case StreamItem():
                self._check(coming is None, "a stream begins inside another")
                self._stream(item)
            case RecordItem() if coming is not None and self._blob is None:
                self._record(coming, item)
            case SnapshotItem() if coming is not None and self._blob is None:
                self._begin_blob(coming, item)
            case PieceItem() if self._blob is not None:
                self._piece(item)
            case StreamEnd() if coming is not None and self._blob is None:
                self._stream_end(coming, item)
            case End():
                self._check(coming is None, "the export ends inside a stream")
                found = End(len(self._streams), self._records, self._data_bytes)
                self._check(item == found, f"the export says {item}, but held {found}")
                self._check(len(self._seen) == len(self._names), "streams are missing")
            case _:
                self._refuse(f"a {type(item).__name__} has no place here")

    # --- names ---

    def _head(self, head: ExportHead) -> None:
        space = self._staging.engine.namespace
        unknown = [old for old in self._renames if old not in head.names]
        if unknown:
            raise CommandError(NO_INPUT, f"--rename: the export holds no stream {unknown[0]}")
        for name in head.names:
            self._names[name] = new_key(self._renames[name]) if name in self._renames else name
        self._check(len(self._names) == len(head.names), "the export has a name twice")
        _check_clashes(space, list(self._names.values()))
        for bucket, created_ms in head.buckets:
            self._staging.make_bucket(bucket, created_ms)
        for key in self._names.values():
            self._check(key and "\0" not in key and "/" in key, f"{key!r} is no name of a stream")
            if bucket_of(key):
                self._staging.make_bucket(bucket_of(key), head.made_ms)
        self._staging.reserve(len(head.names))

    # --- a stream ---

    def _stream(self, item: StreamItem) -> None:
        key = self._names.get(item.name)
        self._check(key is not None, f"the stream {item.name} is not among the names at the head")
        self._check(item.number == len(self._streams) + 1, "streams are not in order")
        self._check(key not in self._seen, f"the stream {item.name} is there twice")
        self._seen.add(str(key))
        low = item.fork.position if item.fork else 0
        ordered = 0 <= item.floor <= item.start <= POSITION_MAX and low <= item.start
        self._check(ordered and item.messages >= 0, "its positions are out of order")
        stream = self._begun(item, str(key))
        self._streams[item.number] = stream
        self._coming = _Coming(item, self._staging.make(stream))
        self._time_ms = 0

    def _begun(self, item: StreamItem, key: str) -> Stream:
        """Return the stream as of its start."""
        fork = item.fork
        source = self._streams.get(fork.source) if fork else None
        if fork is not None and source is None:
            self._refuse("its source is not in the export before it")
        born = Create(
            stream=0,
            start=fork.position if fork else 0,
            size=0,
            time_ms=item.created_ms,
            ordinal=item.messages,
            count=0,
            lengths=None if is_json(item.content_type) else [],
            key=key,
            content_type=item.content_type,
            ttl_ms=item.ttl_ms,
            expires_ms=item.expires_ms,
            source=source.id if source else 0,
            anchor=fork.anchor if fork else -1,
            sub=fork.sub if fork else 0,
            floor=item.floor,
        )
        stream = Stream(born)
        stream.tail = item.start
        stream.closed = item.closed
        detail = stream.detail = Detail()
        detail.producers = {name: (epoch, seq) for name, epoch, seq in item.producers}
        detail.seq = item.seq
        stream.plain = not detail.producers and detail.seq is None
        return stream

    def _record(self, coming: _Coming, item: RecordItem) -> None:
        stream = coming.writer.stream
        size = len(item.data)
        if isinstance(item.messages, int):
            count, lengths = item.messages, None
            fits = stream.json and item.data.count(SEPARATOR) == count
            fits = fits and (not size or item.data.endswith(SEPARATOR))
        else:
            count, lengths = len(item.messages), item.messages
            fits = not stream.json and sum(lengths) == size and min([1, *lengths]) >= 0
        self._check(fits, "the messages of the record do not add up to its bytes")
        self._check(item.at == stream.tail, f"the record is at {item.at}, not {stream.tail}")
        self._check(not stream.closed, "the record follows the end of a closed stream")
        self._check(item.time_ms >= self._time_ms, "the record is older than the one before")
        self._check(item.at + size <= POSITION_MAX, "the stream is longer than any can be")
        self._time_ms = item.time_ms
        record = Append(
            stream.id,
            item.at,
            size,
            item.time_ms,
            stream.messages,
            count,
            lengths,
            item.closes,
            item.seq,
            tuple(item.producers),
        )
        coming.writer.append(record, item.data)
        self._records += 1
        self._data_bytes += size

    # --- snapshots ---

    def _begin_blob(self, coming: _Coming, item: SnapshotItem) -> None:
        stream = coming.writer.stream
        self._check(0 <= item.position <= stream.tail, "the snapshot lies past the tail")
        self._check(0 <= item.serial < 2**64, "the snapshot's serial number is none")
        self._blob_item = item
        disk = self._staging.engine.disk
        self._blob = BlobWriter(disk, stream.id, item.position, item.serial)
        if not item.size:
            self._blob.write(b"")
        self._finish_blob()

    def _piece(self, item: PieceItem) -> None:
        assert self._blob is not None
        self._blob.write(item.data)
        self._finish_blob()

    def _finish_blob(self) -> None:
        blob, item, coming = self._blob, self._blob_item, self._coming
        assert blob is not None
        assert item is not None
        assert coming is not None
        self._check(blob.size <= item.size, f"the snapshot is longer than its {item.size} bytes")
        if blob.size < item.size:
            return
        blob.finish()
        self._blob = None
        stream = coming.writer.stream
        place = (stream.id, item.position, item.serial)
        made = Snapshot(*place, item.content_type, blob.size, blob.sum)
        self._blobs[coming.item.number, item.position, item.serial] = made

    # --- the end of a stream ---

    def _stream_end(self, coming: _Coming, item: StreamEnd) -> None:
        stream = coming.writer.stream
        detail = stream.loaded()
        producers = {name: (epoch, seq) for name, epoch, seq in item.producers}
        said = (item.number, item.tail, item.messages, item.closed, producers, item.seq)
        number = coming.item.number
        found = (number, stream.tail, stream.messages, stream.closed, detail.producers, detail.seq)
        self._check(said == found, f"the stream should end as {said}, but its records give {found}")
        self._check(item.floor <= item.tail, "the floor lies past the tail")
        self._check(item.trimmed <= item.floor, "what is given up lies past the floor")
        stream.floor, stream.trimmed = item.floor, item.trimmed
        stream.policy = item.policy or NO_POLICY
        if stream.trimmed or stream.policy != NO_POLICY:
            self._staging.engine.extend(RETENTION)
            self._staging.engine.declare()
        stream.gone = item.gone
        stream.written_ms = item.written_ms
        stream.accessed_ms = max(stream.accessed_ms, item.accessed_ms)
        if item.snapshot is not None:
            stream.snapshot = self._blobs.get(item.snapshot)
            shown = stream.snapshot is not None and stream.snapshot.position <= item.floor
            self._check(shown, "the snapshot that the stream shows is not in the export")
        coming.writer.end()
        self._coming = None


def _check_clashes(space: Namespace, names: list[str]) -> None:
    """Refuse names that are taken: all are looked at before anything is written."""
    twice = (
        [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    )
    if twice:
        raise CommandError(USAGE, f"--rename: two streams would be called {twice[0]}")
    taken = [name for name in names if name in space.by_key]
    if not taken:
        return
    more = f" and {len(taken) - _NAMED_MAX} more" if len(taken) > _NAMED_MAX else ""
    text = (
        f"{len(taken)} of {len(names)} streams are there already: "
        f"{', '.join(taken[:_NAMED_MAX])}{more}; nothing was imported. "
        f"--rename {taken[0]}=NEW gives one another name"
    )
    raise CommandError(USAGE, text)
