"""Frames that a recovery set aside: ``quarantine/<id>@<lsn>.frames``, records of a damaged stream.

Their checksums are bound to a journal file that is gone. They verified when they were put there;
what can still be checked is: whose they are, where they start, and the bytes they carry.
"""

from durastreamd.offline.repair.salvage import Piece
from durastreamd.offline.verify.folding import record_of
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import Disk, read_file


def frames_aside(disk: Disk, stream: int, after_lsn: int) -> list[Piece]:
    """Return the records of a stream in quarantine that are later than an lsn."""
    found: dict[int, Piece] = {}
    for name in disk.names(fmt.QUARANTINE_DIR):
        if name.startswith(f"{stream:016x}@") and name.endswith(".frames"):
            path = f"{fmt.QUARANTINE_DIR}/{name}"
            for piece in _pieces(path, read_file(disk, path), stream):
                if piece.frame.lsn > after_lsn:
                    found.setdefault(piece.frame.lsn, piece)
    return [found[lsn] for lsn in sorted(found)]


def _pieces(path: str, raw: bytes, stream: int) -> list[Piece]:
    pieces: list[Piece] = []
    position = 0
    while position + fmt.FRAME.size <= len(raw):
        magic, header_size, size, owner, start, time_ms, ordinal, total, lsn, *_ = (
            fmt.FRAME.unpack_from(raw, position)
        )
        body = position + fmt.FRAME.size + header_size
        if magic != fmt.FRAME_MAGIC or owner != stream or body + size > len(raw):
            break
        header = raw[position + fmt.FRAME.size : body]
        if payload_sum(raw[body : body + size], stream, start) == total:
            frame = fmt.StoredFrame(stream, start, size, time_ms, ordinal, total, lsn, header, b"")
            record = record_of(frame)
            if record is not None:
                pieces.append(Piece(frame, record, path, body))
        position = body + size
    return pieces
