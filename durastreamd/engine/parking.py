"""Streams whose files refuse to be written: parked, so that they hold up nobody else.

A checkpoint makes the journal behind it unnecessary, so every stream must be in its files by then.
One file that cannot be written (its attributes, its owner, a bad sector) would keep all of the
journal, for ever. Therefore:

    1. With the first checkpoint that cannot write a stream's files the stream takes no more
       records but its deletion: writers hear of a failing disk, readers are served from memory.
       The checkpoint fails as a whole and is tried again, ``TRIES_MAX`` times.
    2. Then the stream is *parked*: its records that the catalogue does not include are read from
       the journal files that are about to go, and kept in ``quarantine/`` (``storage.aside``). Its
       row stays the old one, but for a mark that says so, and the checkpoint goes on.
    3. Every later checkpoint tries again. As soon as the files take what is in memory the stream is
       as any other, and its new row has no mark.
    4. A start finds the mark, and takes the records up from where they were kept, if the files can
       be read and written by then (``opening``). If not, the stream is refused until the next start
       at which they can, or until a repair.

So nothing acknowledged is lost, and the journal grows by ``TRIES_MAX`` files at most. The memory
of what is parked is that of ``engine.hot_bytes_max``, which counts it.
"""

from typing import NamedTuple

from durastreamd.engine.view import record_of
from durastreamd.errors import WriteFailedError
from durastreamd.model.records import Create
from durastreamd.model.stream_state import Stream, aside_mark
from durastreamd.storage import aside, catalog, format as fmt, journal, log
from durastreamd.storage.disk import NO_FAULTS, Disk
from durastreamd.storage.rows import StreamRow, latest

TRIES_MAX = 4


class Parked(NamedTuple):
    """What the catalogue says of a parked stream, and up to which record all is set aside."""

    row: StreamRow
    lsn: int


class Unwritable(NamedTuple):
    """A stream whose files were not written, why, in how many checkpoints, and how it is parked."""

    error: WriteFailedError
    tries: int = 1
    parked: Parked | None = None

    def refusal(self) -> WriteFailedError:
        """Return what a writer is told."""
        refusal = WriteFailedError(str(self.error))
        refusal.__cause__ = self.error.__cause__
        return refusal


def is_of_one_file(error: WriteFailedError) -> bool:
    """Tell whether a write failed for its file, and not for want of room or of descriptors."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in NO_FAULTS


class Range(NamedTuple):
    """The journal files before one, and the records up to one: those that a checkpoint passes."""

    files_before: int
    lsn: int


def park(
    disk: Disk, uuid: bytes, passing: Range, wanted: dict[int, Unwritable]
) -> dict[int, Parked]:
    """Set aside what the catalogue does not include of these streams; blocks. Durable afterwards.

    Raises WriteFailedError where that cannot be done: then the checkpoint fails, as it did.
    """
    rows = latest(catalog.load(disk, uuid).rows)
    after: dict[int, int] = {}
    olds: dict[int, StreamRow] = {}
    for stream, each in wanted.items():
        old = each.parked.row if each.parked else rows.get(stream)
        if isinstance(old, StreamRow):
            olds[stream] = old
        after[stream] = each.parked.lsn if each.parked else _lsn_of(olds.get(stream))
    frames = _frames(disk, uuid, passing, after)
    done: dict[int, Parked] = {}
    for stream, each in wanted.items():
        if frames[stream]:
            aside.write(disk, uuid, frames[stream])
            done[stream] = _parked(each, olds.get(stream), frames[stream])
        elif each.parked is not None:
            done[stream] = each.parked
        else:
            reason = f"the journal has no record of stream {stream:016x}"
            raise WriteFailedError(reason) from each.error
    disk.sync_directory("")
    disk.sync_directory(fmt.QUARANTINE_DIR)
    return done


def _lsn_of(row: StreamRow | None) -> int:
    return Stream.from_row(row.fields).lsn if row is not None else 0


def _frames(
    disk: Disk, uuid: bytes, passing: Range, after: dict[int, int]
) -> dict[int, list[fmt.StoredFrame]]:
    """Return what the journal has of streams, each after its own lsn."""
    found: dict[int, list[fmt.StoredFrame]] = {stream: [] for stream in after}
    for number in journal.journal_numbers(disk):
        if number >= passing.files_before:
            break
        file = journal.read_journal_file(disk, uuid, number)
        base = journal.file_seed(uuid, number)
        for each in journal.frames(file.data, fmt.JOURNAL_HEADER.size, base, payloads=True):
            frame = each.frame
            if frame.stream in found and after[frame.stream] < frame.lsn <= passing.lsn:
                if not each.payload_ok:
                    reason = f"{fmt.journal_path(number)}:{each.position} does not verify"
                    raise WriteFailedError(reason)
                found[frame.stream].append(frame)
    return found


def _parked(each: Unwritable, old: StreamRow | None, frames: list[fmt.StoredFrame]) -> Parked:
    """Return the row of a stream as the catalogue had it, with the mark."""
    last = frames[-1].lsn
    if old is not None:
        state, placement = Stream.from_row(old.fields), old.placement
    else:
        made = record_of(frames[0])
        if not isinstance(made, Create):
            reason = f"the journal does not have the beginning of stream {frames[0].stream:016x}"
            raise WriteFailedError(reason)
        state, placement = Stream(made), log.placement_at(made.start)
        state.lsn = frames[0].lsn
    state.damage = aside_mark(last, str(each.error))
    return Parked(StreamRow(state.row(), placement), last)
