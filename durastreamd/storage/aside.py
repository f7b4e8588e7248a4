"""Records set aside: what could not go to a stream's files, kept in ``quarantine/`` until it can.

Frames as in the journal, one after the other, in ``<id>@<lsn of the last>.frames``. Each carries a
checksum of its own file, since the journal file that it stood in goes: seed (``"aside"``, uuid,
stream) at its position. Files of older versions kept the journal's sums, which nobody can check any
more; they are for a repair alone.
"""

from itertools import pairwise

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import digest, seed
from durastreamd.storage.disk import Disk, faults_of, read_file, write_new_file
from durastreamd.storage.journal import JournalFrame, parse_frame


def path_of(stream: int, lsn: int) -> str:
    """Return the path of a stream's records set aside, the last of them ``lsn``."""
    return f"{fmt.QUARANTINE_DIR}/{stream:016x}@{lsn}.frames"


def write(disk: Disk, uuid: bytes, frames: list[fmt.StoredFrame]) -> None:
    """Keep a stream's frames, in order; durable but for the name of the file."""
    stream = frames[0].stream
    path = path_of(stream, frames[-1].lsn)
    disk.make_directory(fmt.QUARANTINE_DIR)
    if disk.exists(path):
        disk.unlink(path)  # an earlier attempt was cut short
    write_new_file(disk, path, _encode(uuid, stream, frames))


def _encode(uuid: bytes, stream: int, frames: list[fmt.StoredFrame]) -> bytes:
    base, position = seed("aside", uuid, stream), 0
    parts: list[bytes | memoryview] = []
    for frame in frames:
        bare = fmt.FRAME_BARE.pack(
            fmt.FRAME_MAGIC, len(frame.header), frame.size, *frame[:2], *frame[3:7], 0, stream
        )
        check = fmt.CHECKSUM.pack(digest(bare + frame.header, base, position))
        parts += (bare, check, frame.header, frame.payload)
        position += fmt.FRAME.size + len(frame.header) + frame.size
    return b"".join(parts)


def read(disk: Disk, uuid: bytes, stream: int, after: int, last: int) -> list[fmt.StoredFrame]:
    """Return a stream's records that are set aside, later than ``after``, up to the one ``last``.

    Raises CorruptDataError unless all of them are there and verify: one that is missing would be a
    hole. A record says where the one before it ended, and the last one is known by its number.
    """
    found: dict[int, fmt.StoredFrame] = {}
    base = seed("aside", uuid, stream)
    for name in disk.names(fmt.QUARANTINE_DIR):
        path = f"{fmt.QUARANTINE_DIR}/{name}"
        if not name.startswith(f"{stream:016x}@") or not name.endswith(".frames"):
            continue
        with faults_of(path):
            data = read_file(disk, path)
        for each in _frames_of(path, data, base):
            found[each.frame.lsn] = each.frame
    frames = [found[lsn] for lsn in sorted(found) if after < lsn <= last]
    path = path_of(stream, last)
    if not frames or frames[-1].lsn != last:
        raise CorruptDataError(path, 0, f"record {last}, which was set aside, is not there")
    for one, other in pairwise(frames):
        if one.start + one.size != other.start:
            raise CorruptDataError(
                path, 0, f"records between {one.lsn} and {other.lsn} are missing"
            )
    return frames


def _frames_of(path: str, data: bytes, base: int) -> list[JournalFrame]:
    """Return the frames of a file as far as they verify; damage shows in what is missing."""
    frames: list[JournalFrame] = []
    view, position = memoryview(data), 0
    while (found := parse_frame(view, position, base)) is not None and found.payload_ok:
        frames.append(found)
        position = found.end
    return frames
