"""What the driver decides: where reading begins, how far a batch goes, how it is cut.

All of it is written into the offset of the batch (see ``offsets``), so that running the batch
again reads the same rows in the same partitions: from the offsets alone, whatever the streams and
the options have become.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from durastreamd.client import ServerRefusedError
from durastreamd.spark.errors import ContentError, DataLossError, OptionError
from durastreamd.spark.options import SourceOptions, places
from durastreamd.spark.server.offsets import Begin, Cut, MessageRange, Offset, StreamPlace, shares
from durastreamd.spark.server.places import Listed, ServerStreams, StreamInfo, is_textual

logger = logging.getLogger(__name__)


# Streams that share a task: so much work that the task is worth it, and a second of requests.
SHARED_BYTES = 4 * 1024 * 1024
SHARED_STREAMS = 1000


@dataclass
class Slice:
    """A part of one stream."""

    stream: str
    url: str
    begin: StreamPlace
    end: StreamPlace
    snapshot: str = ""  # deliver the snapshot at this offset first


@dataclass
class ReadPart(InputPartition):
    """What one task reads: a part of a stream, or several small streams."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Bounds:
    """How much one batch takes; 0 is no limit."""

    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0


class Planner:
    """Plans batches for one query; lives in the driver."""

    def __init__(self, options: SourceOptions, streams: ServerStreams, *, text: bool) -> None:
        self._options = options
        self._streams = streams
        self._text = text  # values are read as text
        self._begins: dict[str, Begin] = {}  # resolved, not yet in any offset
        self._targets: dict[str, StreamInfo] | None = None  # Trigger.AvailableNow
        self._served_s = time.monotonic()
        self.watched: dict[str, str] = {}  # URL to offset, of streams that may still grow
        self.latest: dict[str, StreamPlace] = {}  # where each stream ended at the last look
        self._mortal: dict[str, StreamPlace] = {}  # those that may go, and where they end

    # --- a batch of a streaming query ---

    def freeze(self) -> None:
        """Let no data after this moment into any batch."""
        found = {name: self._asked(name, listed) for name, listed in self._named().items()}
        self._targets = {name: look for name, look in found.items() if look is not None}

    def progress(self, start: Offset, bounds: Bounds) -> Offset:
        """Return how far the next batch goes; the places of ``start`` if there is nothing new."""
        names = self._named(start)
        if self._targets is not None:
            names = {name: names.get(name, Listed()) for name in self._targets}
        cut = Cut(
            self._options.min_partitions,
            self._options.max_bytes_per_partition,
            SHARED_BYTES,
            SHARED_STREAMS,
        )
        end = Offset({}, {}, cut)
        tails: dict[str, StreamPlace] = {}
        self.watched, self.latest = {}, {}
        for name, listed in names.items():
            known = start.places.get(name)
            if known is not None and _at_rest(known, listed):
                end.places[name] = self.latest[name] = known
                self._watch(name, known, listed)
                self._note_mortal(name, known, listed.info)
                continue
            look = self._look(name, listed)
            if look is None:
                if name not in start.leaving and (known is not None or self._asked_by_name):
                    self._lose(f"Stream {name} is not there.")
                continue
            self._check_content(name, look)
            begin = self._begin(name, known, look, first=start.first)
            if known is None or begin != Begin(known):
                end.begins[name] = begin
            end.places[name] = begin.place
            tails[name] = self.latest[name] = self._tail(name, begin.place, look, bounds)
            self._watch(name, tails[name], Listed(closed=look.closed))
            self._note_mortal(name, tails[name], look)
        self._note_vanished(start, names)
        if not self._waits(start, end, tails, bounds):
            self._admit(end, tails, bounds)
        self._note_leaving(start, end)
        return self._unless_unchanged(start, end)

    def _named(self, start: Offset | None = None) -> dict[str, Listed]:
        """Return the streams to read; a bucket that has gone takes all it held with it."""
        try:
            return self._streams.names()
        except ServerRefusedError as exc:
            if exc.status != 404:
                raise
            if start is None or not start.places:
                message = f"There is no bucket {self._options.bucket}: {exc}"
                raise OptionError(message) from exc
            self._lose(f"Bucket {self._options.bucket} is not there any more.")
            return {}

    def _note_mortal(self, name: str, tail: StreamPlace, look: StreamInfo | None) -> None:
        """Remember a stream that may go: closed, so that nothing follows, or of a lifetime."""
        if look is not None and (look.closed or look.mortal):
            self._mortal[name] = tail
        elif look is not None:
            self._mortal.pop(name, None)

    def _note_leaving(self, start: Offset, end: Offset) -> None:
        """Write down which streams are read to their end and may go without a loss."""
        for name, place in end.places.items():
            if self._mortal.get(name) == place or (
                name in start.leaving and start.places.get(name) == place
            ):
                end.leaving.add(name)

    def _unless_unchanged(self, start: Offset, end: Offset) -> Offset:
        """Leave out streams found later that have nothing yet: they would make empty batches."""
        if not start.first:
            for name in [*end.begins]:
                idle = end.places[name] == end.begins[name].place
                if name not in start.places and idle and not end.begins[name].snapshot:
                    del end.begins[name], end.places[name]
            gone = start.places.keys() - end.places.keys()
            kept = {name: start.places[name] for name in start.places if name not in gone}
            # Those that may leave are left out with the next batch; they make none by themselves.
            if end.places == kept and not end.begins and gone <= start.leaving:
                return start
        self._served_s = time.monotonic()
        return end

    def _asked(self, name: str, listed: Listed) -> StreamInfo | None:
        return listed.info or self._streams.look(name)

    def _look(self, name: str, listed: Listed) -> StreamInfo | None:
        look = self._asked(name, listed)
        if look is None or self._targets is None:
            return look
        # The tail is that of the beginning, the floor is that of now.
        target = self._targets[name]
        return replace(look, tail=target.tail) if target.incarnation == look.incarnation else look

    @property
    def _asked_by_name(self) -> bool:
        """Tell whether streams were asked for by name, so that the absence of one is an error."""
        return bool(self._streams.site.name or self._options.subscribe)

    def _watch(self, name: str, place: StreamPlace, listed: Listed) -> None:
        if not listed.closed and place.token:
            self.watched[self._streams.url(name)] = place.token

    def _note_vanished(self, start: Offset, names: Mapping[str, object]) -> None:
        if self._options.bucket and not self._options.subscribe and self._targets is None:
            for name in start.places:
                if name not in names and name not in start.leaving:
                    self._lose(f"Stream {name} of the bucket is not there any more.")

    # --- where reading begins ---

    def _begin(
        self, name: str, known: StreamPlace | None, look: StreamInfo, *, first: bool
    ) -> Begin:
        if known is not None:
            self._begins.pop(name, None)
            return self._retained(name, look, known)
        if name not in self._begins:
            self._begins[name] = self._starting(name, look, first=first)
        return self._begins[name]

    def _starting(self, name: str, look: StreamInfo, *, first: bool) -> Begin:
        """Return where a stream begins that was never read; one found later begins early."""
        options = self._options
        if first and options.starting_timestamp:
            at = self._streams.find_told(name, "at", options.starting_timestamp)
            return Begin(at)
        wanted: str | int = options.starting_offsets if first else "earliest"
        if wanted not in ("earliest", "latest"):
            given = places("startingOffsets", options.starting_offsets)
            wanted = given.get(name, "earliest")
        place = self._streams.place_of(name, look, wanted)
        if wanted in ("earliest", "-1") and look.snapshot:
            return self._folded(name, look, "is to be read from its beginning")
        return self._retained(name, look, place)

    def _retained(self, name: str, look: StreamInfo, place: StreamPlace) -> Begin:
        """Return where to go on: at ``place`` if it can still be read."""
        if not place.told or not look.first.told:
            return Begin(place)
        if not place.incarnation:  # of a checkpoint that does not say: taken for the present one
            place = replace(place, incarnation=look.incarnation)
        if place.incarnation != look.incarnation:
            self._lose(
                f"Stream {name} was deleted and made anew since it was read up to message "
                f"{place.number}; the new one is another stream."
            )
            if look.snapshot:
                return self._folded(name, look, "is to be read from its beginning")
            return Begin(look.first)
        if place.number > look.tail.number or place.byte > look.tail.byte:
            self._lose(
                f"Stream {name} ends at message {look.tail.number}, before {place.number}, up to "
                "which it was read; was it deleted and made anew?"
            )
            return Begin(look.first)
        if place.byte < look.first.byte:
            return self._folded(name, look, f"was read up to byte {place.byte}")
        return Begin(place)

    def _folded(self, name: str, look: StreamInfo, where: str) -> Begin:
        """Choose how to go on where history lies folded in a snapshot, or is retained no more."""
        if not look.snapshot:
            self._lose(
                f"Stream {name} {where}, but is retained from byte {look.first.byte} on only."
            )
            return Begin(look.first)
        how = self._options.on_snapshot
        if how == "restart":
            return Begin(look.first, look.snapshot)
        if how == "fail":
            self._lose(
                f"Stream {name} {where}, but what lies before byte {look.first.byte} was folded "
                "into a snapshot; onSnapshot=restart delivers that first, onSnapshot=skip does not."
            )
        return Begin(look.first)

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            message = f"{what} With failOnDataLoss=false the query goes on without."
            raise DataLossError(message)
        logger.warning("%s", what)

    def _check_content(self, name: str, look: StreamInfo) -> None:
        if self._text and not is_textual(look.content_type):
            message = (
                f"Stream {name} holds {look.content_type}, which is not text; "
                "read it with option valueType=binary."
            )
            raise ContentError(message)

    # --- how far a batch goes ---

    def _tail(self, name: str, begin: StreamPlace, look: StreamInfo, bounds: Bounds) -> StreamPlace:
        if look.tail.told or begin.told:
            return look.tail
        if self._targets is None:
            return self._streams.advance(name, begin, bounds.rows_max, bounds.bytes_max)
        if look.tail.number < 0:
            # Nobody counts for us: count once, and let that be the target.
            counted = self._streams.advance(name, begin, 0, 0)
            self._targets[name] = replace(look, tail=counted)
            return counted
        return look.tail

    def _waits(
        self, start: Offset, end: Offset, tails: Mapping[str, StreamPlace], bounds: Bounds
    ) -> bool:
        """Tell whether there is too little for a batch, and time left to wait for more."""
        if not bounds.rows_min or start.first or self._targets is not None:
            return False
        total = sum(tails[name].number - end.places[name].number for name in tails)
        waited_ms = (time.monotonic() - self._served_s) * 1000
        return total < bounds.rows_min and waited_ms < self._options.max_trigger_delay

    def _admit(self, end: Offset, tails: Mapping[str, StreamPlace], bounds: Bounds) -> None:
        """Move the places on, as far as the limits allow."""
        rows = {name: tails[name].number - end.places[name].number for name in tails}
        sizes = {name: tails[name].byte - end.places[name].byte for name in tails}
        if bounds.rows_max:
            rows = shares(bounds.rows_max, rows)
        if bounds.bytes_max:
            sizes = shares(bounds.bytes_max, sizes)
        for name, tail in tails.items():
            begin = end.places[name]
            if not tail.told:
                number = begin.number + rows[name]
                counted = StreamPlace(begin.token, number, token_number=begin.token_number)
                end.places[name] = tail if number == tail.number else counted
                continue
            found = tail
            if begin.number + rows[name] < found.number:
                found = self._streams.find_told(name, "at-message", begin.number + rows[name])
            if begin.byte + sizes[name] < found.byte:
                found = self._streams.find_told(name, "at-byte", begin.byte + sizes[name])
                if found.number <= begin.number:  # one message is larger than the limit
                    found = self._streams.find_told(name, "at-message", begin.number + 1)
            end.places[name] = found

    # --- a batch query ---

    def everything(self) -> list[MessageRange]:
        """Return what a batch query reads."""
        options = self._options
        ends = (
            {}
            if options.ending_offsets == "latest"
            else places("endingOffsets", options.ending_offsets)
        )
        found = []
        for name, listed in self._named().items():
            look = self._asked(name, listed)
            if look is None:
                if self._asked_by_name:
                    self._lose(f"Stream {name} is not there.")
                continue
            self._check_content(name, look)
            begin = self._begin(name, None, look, first=True)
            end = self._tail(name, begin.place, look, Bounds())
            if options.ending_timestamp:
                end = self._streams.find_told(name, "at", options.ending_timestamp)
            elif name in ends:
                end = self._ending(name, look, begin.place, ends[name])
            each = MessageRange(name, begin, end)
            if each.messages < 0:
                message = f"Stream {name}: the end that was asked for lies before the beginning."
                raise OptionError(message)
            if each.messages or begin.snapshot:
                found.append(each)
        return found

    def _ending(
        self, name: str, look: StreamInfo, begin: StreamPlace, given: str | int
    ) -> StreamPlace:
        if look.tail.told:
            return self._streams.place_of(name, look, given)
        if isinstance(given, int):
            return self._streams.advance(name, begin, max(given - begin.number, 0), 0)
        message = f"The server of stream {name} cannot count up to an offset; give a number."
        raise OptionError(message)

    # --- cutting ---

    def parts(self, found: list[MessageRange], cut: Cut) -> list[ReadPart]:
        """Cut ranges into partitions: a pure function of its arguments and of bytes that stay."""
        total = sum(_size(each) for each in found)
        shared = cut.shared_bytes
        if cut.partitions_min:
            shared = min(shared, total // cut.partitions_min)
        if cut.bytes_max:
            shared = min(shared, cut.bytes_max)
        made: list[ReadPart] = []
        held: list[Slice] = []  # of small streams, for one task
        size = 0
        for each in found:
            slices = self._slices(each, self._count(each, cut, len(found), total))
            if len(slices) > 1 or _size(each) > shared:
                made += [ReadPart((one,)) for one in slices]
                continue
            if held and (size + _size(each) > shared or len(held) >= cut.shared_streams):
                made.append(ReadPart(tuple(held)))
                held, size = [], 0
            held += slices
            size += _size(each)
        return [*made, ReadPart(tuple(held))] if held else made

    def _count(self, each: MessageRange, cut: Cut, ranges: int, total: int) -> int:
        size = _size(each)
        count = -(-size // cut.bytes_max) if cut.bytes_max else 1
        if cut.partitions_min > ranges and total:
            count = max(count, round(cut.partitions_min * size / total))
        return count

    def _slices(self, each: MessageRange, count: int) -> list[Slice]:
        edges = self._edges(each, count) if count > 1 else [each.begin.place, each.end]
        url, snapshot = self._streams.url(each.stream), each.begin.snapshot
        return [
            Slice(each.stream, url, begin, end, snapshot if begin == edges[0] else "")
            for begin, end in pairwise(edges)
        ]

    def _edges(self, each: MessageRange, count: int) -> list[StreamPlace]:
        begin, end = each.begin.place, each.end
        edges = [begin]
        for part in range(1, count):
            byte = begin.byte + _size(each) * part // count
            try:
                place = self._streams.find_told(each.stream, "at-byte", byte, end.incarnation)
            except ServerRefusedError as exc:
                if exc.status not in (404, 410, 412):
                    raise
                break  # what is left of it, if anything, the task says better
            if edges[-1].byte < place.byte < end.byte:
                edges.append(place)
        return [*edges, end]


def _at_rest(known: StreamPlace, listed: Listed) -> bool:
    """Tell whether a listing shows that nothing has happened since a place."""
    if listed.byte != known.byte or known.byte < 0:
        return False
    return listed.info is None or listed.info.incarnation == known.incarnation


def _size(each: MessageRange) -> int:
    """Return the bytes of a range; one that only somebody else could cut counts as none."""
    begin, end = each.begin.place, each.end
    return end.byte - begin.byte if begin.told and end.told else 0
