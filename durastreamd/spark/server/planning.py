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

from durastreamd.spark.errors import ContentError, DataLossError, OptionError
from durastreamd.spark.options import SourceOptions, places
from durastreamd.spark.server.offsets import Begin, Cut, MessageRange, Offset, StreamPlace, shares
from durastreamd.spark.server.places import Listed, ServerStreams, StreamInfo, is_textual

logger = logging.getLogger(__name__)


@dataclass
class Slice(InputPartition):
    """What one task reads: a part of one stream."""

    stream: str
    url: str
    begin: StreamPlace
    end: StreamPlace
    snapshot: str = ""  # deliver the snapshot at this offset first


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

    # --- a batch of a streaming query ---

    def freeze(self) -> None:
        """Let no data after this moment into any batch."""
        found = {name: self._streams.look(name) for name in self._streams.names()}
        self._targets = {name: look for name, look in found.items() if look is not None}

    def progress(self, start: Offset, bounds: Bounds) -> Offset:
        """Return how far the next batch goes; the places of ``start`` if there is nothing new."""
        names = self._streams.names() if self._targets is None else dict.fromkeys(self._targets)
        cut = Cut(self._options.min_partitions, self._options.max_bytes_per_partition)
        end = Offset({}, {}, cut)
        tails: dict[str, StreamPlace] = {}
        self.watched = {}
        for name, listed in names.items():
            known = start.places.get(name)
            if known is not None and listed is not None and listed.byte == known.byte >= 0:
                end.places[name] = known
                self._watch(name, known, listed)
                continue
            look = self._look(name)
            if look is None:
                if known is not None or self._listed_once(name):
                    self._lose(f"Stream {name} is not there.")
                continue
            self._check_content(name, look)
            begin = self._begin(name, known, look, first=start.first)
            if known is None or begin != Begin(known):
                end.begins[name] = begin
            end.places[name] = begin.place
            tails[name] = self._tail(name, begin.place, look, bounds)
            self._watch(name, tails[name], Listed(closed=look.closed))
        self._note_vanished(start, names)
        if not self._waits(start, end, tails, bounds):
            self._admit(end, tails, bounds)
        return self._unless_unchanged(start, end)

    def _unless_unchanged(self, start: Offset, end: Offset) -> Offset:
        """Leave out streams found later that have nothing yet: they would make empty batches."""
        if not start.first:
            for name in [*end.begins]:
                idle = end.places[name] == end.begins[name].place
                if name not in start.places and idle and not end.begins[name].snapshot:
                    del end.begins[name], end.places[name]
            if end.places == start.places and not end.begins:
                return start
        self._served_s = time.monotonic()
        return end

    def _look(self, name: str) -> StreamInfo | None:
        look = self._streams.look(name)
        if look is None or self._targets is None:
            return look
        # The tail is that of the beginning, the floor is that of now.
        return replace(look, tail=self._targets[name].tail)

    def _listed_once(self, name: str) -> bool:
        """Tell whether a stream was asked for by name, so that its absence is an error."""
        return bool(self._streams.site.name or self._options.subscribe)

    def _watch(self, name: str, place: StreamPlace, listed: Listed) -> None:
        if not listed.closed and place.token:
            self.watched[self._streams.url(name)] = place.token

    def _note_vanished(self, start: Offset, names: Mapping[str, object]) -> None:
        if self._options.bucket and not self._options.subscribe and self._targets is None:
            for name in start.places:
                if name not in names:
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
        """Choose how to go on where history lies folded in a snapshot."""
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
        for name in self._streams.names():
            look = self._streams.look(name)
            if look is None:
                if self._listed_once(name):
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

    def slices(self, found: list[MessageRange], cut: Cut) -> list[Slice]:
        """Cut ranges into partitions: a pure function of its arguments and of bytes that stay."""
        total = sum(_size(each) for each in found)
        made: list[Slice] = []
        for each in found:
            size = _size(each)
            count = -(-size // cut.bytes_max) if cut.bytes_max else 1
            if cut.partitions_min > len(found) and total:
                count = max(count, round(cut.partitions_min * size / total))
            edges = self._edges(each, count) if count > 1 else [each.begin.place, each.end]
            url, snapshot = self._streams.url(each.stream), each.begin.snapshot
            for begin, end in pairwise(edges):
                made.append(Slice(each.stream, url, begin, end, snapshot))
                snapshot = ""
        return made

    def _edges(self, each: MessageRange, count: int) -> list[StreamPlace]:
        begin, end = each.begin.place, each.end
        edges = [begin]
        for part in range(1, count):
            byte = begin.byte + _size(each) * part // count
            place = self._streams.find_told(each.stream, "at-byte", byte)
            if edges[-1].byte < place.byte < end.byte:
                edges.append(place)
        return [*edges, end]


def _size(each: MessageRange) -> int:
    """Return the bytes of a range; one that only somebody else could cut counts as none."""
    begin, end = each.begin.place, each.end
    return end.byte - begin.byte if begin.told and end.told else 0
