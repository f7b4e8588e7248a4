"""``dsadmin info``: everything known about one stream."""

import argparse
from typing import NamedTuple

from durastreamd.admin.look.streams import members as listed
from durastreamd.admin.place import opened
from durastreamd.engine.engine import Engine
from durastreamd.engine.view import blob_of
from durastreamd.errors import CorruptDataError, ReadFailedError
from durastreamd.kit import show
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.names import find_stream
from durastreamd.offline.opening import Opened
from durastreamd.protocol.offsets import mint
from durastreamd.storage import format as fmt, log
from durastreamd.storage.disk import file_size
from durastreamd.storage.index import IndexFile


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name, URL or id")


def _run(args: argparse.Namespace, console: Console) -> int:
    with opened(args, console) as found:
        stream = find_stream(found.namespace, args.stream)
        about = members(found, stream)
    if console.as_json:
        console.record(about)
    else:
        _write(about, console)
    return OK


# --- gathering ---


def members(found: Opened, stream: Stream) -> dict[str, object]:
    """Return what there is to say about a stream, as JSON has it."""
    segments = [_segment(found, stream, base) for base in _bases(found.engine, stream)]
    stored = found.stored.get(stream.id)
    last = stored.base if stored is not None and stored.made else -1
    about = listed(stream, found)
    about["directory"] = fmt.stream_dir(stream.id)
    about["lifetime"] = _lifetime(stream)
    about["damage"] = stream.damage or None
    about["journal"] = {
        "bytes": stream.tail - (stored.flushed if stored is not None else stream.fork_position),
        "records": sum(segment.pending for segment in segments),
    }
    about.update(_writers(found, stream))
    about["snapshot"] = _snapshot(found, stream)
    about["fork_of"] = _source(found, stream)
    about["forks"] = _forks(found, stream)
    about["segments"] = [segment.members() for segment in segments if segment.base <= last]
    return about


def _lifetime(stream: Stream) -> dict[str, object] | None:
    if stream.ttl_ms >= 0:
        accessed = show.moment(max(stream.accessed_ms, stream.read_ms))
        return {"ttl_s": stream.ttl_ms / 1000, "accessed": accessed}
    if stream.expires_ms >= 0:
        return {"expires": show.moment(stream.expires_ms)}
    return None


def _writers(found: Opened, stream: Stream) -> dict[str, object]:
    engine = found.engine
    detail = stream.detail
    if detail is None:
        try:
            detail = engine.load_detail(stream) if engine.needs_loading(stream) else Detail()
        except (CorruptDataError, ReadFailedError) as exc:
            return {"stream_seq": None, "producers": None, "producers_unreadable": str(exc)}
    producers = [
        {"id": name, "epoch": epoch, "seq": seq} for name, (epoch, seq) in detail.producers.items()
    ]
    return {"stream_seq": detail.seq, "producers": producers}


def _snapshot(found: Opened, stream: Stream) -> dict[str, object] | None:
    blob = stream.snapshot
    if blob is None:
        return None
    path = blob_of(blob).path
    return {
        "offset": mint(blob.position),
        "content_type": blob.content_type,
        "bytes": blob.size,
        "file": path,
        "present": found.engine.disk.exists(path),
    }


def _source(found: Opened, stream: Stream) -> dict[str, object] | None:
    if not stream.source:
        return None
    source = found.namespace.by_id.get(stream.source)
    return {
        "name": source.key if source is not None else None,
        "id": f"{stream.source:016x}",
        "offset": mint(stream.fork_position),
        "asked_offset": mint(stream.anchor) if stream.anchor >= 0 else None,
        "asked_sub_offset": stream.sub,
    }


def _forks(found: Opened, stream: Stream) -> list[dict[str, object]]:
    forks = [found.namespace.by_id[fork] for fork in sorted(found.namespace.forks_of(stream.id))]
    return [{"name": fork.key, "offset": mint(fork.fork_position)} for fork in forks]


class _SegmentInfo(NamedTuple):
    """A segment with its index, as far as a checkpoint covers it; the journal has the rest.

    ``pending`` counts the records of the rest.
    """

    base: int
    size: int
    index_bytes: int
    records: int
    states: int
    pending: int
    first_ms: int | None
    last_ms: int | None
    damage: str | None

    def members(self) -> dict[str, object]:
        """Return the segment as JSON has it."""
        return {
            "offset": mint(self.base),
            "next_offset": mint(self.base + self.size),
            "bytes": self.size,
            "index_bytes": self.index_bytes,
            "records": self.records,
            "states": self.states,
            "first": show.moment(self.first_ms) if self.first_ms is not None else None,
            "last": show.moment(self.last_ms) if self.last_ms is not None else None,
            "damage": self.damage,
        }


def _bases(engine: Engine, stream: Stream) -> list[int]:
    place = engine.placements[stream.id]
    return log.bases(engine.disk, stream.id, place.base) if place.made else []


def _segment(found: Opened, stream: Stream, base: int) -> _SegmentInfo:
    disk, stored = found.engine.disk, found.stored.get(stream.id)
    size = file_size(disk, fmt.segment_path(stream.id, base))
    length = records = states = pending = 0
    times: list[int] = []
    damage = None
    try:
        with IndexFile(stream.id, base).opened(disk) as reader:
            length = reader.length
            for entry in reader.entries():
                if entry.is_state:
                    states += 1
                    continue
                if stored is None or (base, entry.position) >= (stored.base, stored.index_bytes):
                    pending += 1
                    continue
                records += 1
                times = [*times[:1], entry.frame.time_ms]
    except FileNotFoundError:
        damage = "the index is missing"
    except CorruptDataError as exc:
        damage = str(exc)
    if stored is not None and base == stored.base:
        size, length = stored.segment_bytes, stored.index_bytes
    first, last = (times[0], times[-1]) if times else (None, None)
    return _SegmentInfo(base, size, length, records, states, pending, first, last, damage)


# --- writing ---

_SEGMENTS = (
    show.Column("SEGMENT"),
    *show.numbers("BYTES", "INDEX", "RECORDS", "STATES"),
    show.Column("FIRST", spare=True),
    show.Column("LAST"),
)
_PRODUCERS = (show.Column("PRODUCER", least=16), *show.numbers("EPOCH", "SEQ"))


def _write(about: dict[str, object], console: Console) -> None:
    for key, text in _lines(about):
        console.line(f"{key:<14}{show.name(text)}")
    segments, producers = about["segments"], about["producers"]
    if isinstance(producers, list) and producers:
        console.line("")
        rows = [[show.name(p["id"]), str(p["epoch"]), str(p["seq"])] for p in producers]
        show.table(console, _PRODUCERS, rows)
    if isinstance(segments, list) and segments:
        console.line("")
        short = console.on_terminal
        show.table(console, _SEGMENTS, [_cells(segment, short=short) for segment in segments])
        for segment in segments:
            if segment["damage"]:
                console.line(f"damaged: {segment['damage']}")


def _cells(segment: dict[str, object], *, short: bool) -> list[str]:
    keys = ("offset", "bytes", "index_bytes", "records", "states", "first", "last")
    cells = [str(segment[key]) if segment[key] is not None else "-" for key in keys]
    if short:
        cells[-2:] = [show.to_the_minute(cell) for cell in cells[-2:]]
    return cells


def _lines(about: dict[str, object]) -> list[tuple[str, str]]:
    plain = [
        ("name", str(about["name"])),
        ("id", f"{about['id']} in {about['directory']}"),
        ("state", str(about["state"])),
        ("damage", str(about["damage"] or "")),
        ("content type", str(about["content_type"])),
        ("created", str(about["created"])),
        ("written", str(about["written"])),
        ("offsets", f"{about['first_offset']} to {about['next_offset']}"),
        ("bytes", str(about["bytes"])),
        ("messages", f"{about['messages']} ever appended"),
        ("lifetime", _lifetime_text(about)),
        ("Stream-Seq", str(about["stream_seq"] or "")),
    ]
    return [(key, text) for key, text in plain if text] + _relations(about)


def _lifetime_text(about: dict[str, object]) -> str:
    lifetime = about["lifetime"]
    if not isinstance(lifetime, dict):
        return "no end"
    if "ttl_s" in lifetime:
        return f"{lifetime['ttl_s']:g} s after the last access, now until {about['expires']}"
    return f"until {about['expires']}"


def _relations(about: dict[str, object]) -> list[tuple[str, str]]:
    lines = []
    journal, blob, source = about["journal"], about["snapshot"], about["fork_of"]
    if isinstance(journal, dict):
        count = show.counted(journal["records"], "record")
        lines.append(("journal only", f"{journal['bytes']} bytes in {count}"))
    if isinstance(blob, dict):
        text = f"{blob['offset']}, {blob['bytes']} bytes of {blob['content_type']}"
        lines.append(("snapshot", text if blob["present"] else f"{text} (missing)"))
        lines.append(("", str(blob["file"])))
    if isinstance(source, dict):
        lines.append(("fork of", f"{source['name']} at {source['offset']}"))
    forks = about["forks"]
    if isinstance(forks, list):
        lines += [("forked by", f"{fork['name']} at {fork['offset']}") for fork in forks]
    if "producers_unreadable" in about:
        lines.append(("producers", str(about["producers_unreadable"])))
    return lines


COMMAND = Command("info", "show everything about a stream", _add_arguments, _run)
