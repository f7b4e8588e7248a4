"""What is left of the catalogue, and whether it can be the whole of it.

Frames are grouped by the number of their checkpoint. A checkpoint that is not whole is the torn end
of the file, if it is the last and the journal still goes on from the one before; otherwise it was
durable, and the file is damaged: then rows that verify are evidence, and no longer the whole truth.
"""

from typing import NamedTuple

from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.scan import catalog_header, scan_catalog
from durastreamd.offline.verify.survey import Catalogued, Survey
from durastreamd.storage import format as fmt
from durastreamd.storage.catalog import Commit
from durastreamd.storage.rows import BucketRow, Row, StrangeRow, StreamEndRow, StreamRow, latest
from durastreamd.storage.scan import Gap


class _Checkpoint(NamedTuple):
    number: int
    position: int
    rows: list[Row]
    commit: Commit | None
    gap: int  # where its first bytes that do not verify stand, -1 if all do


def read_catalog(found: Survey, raws: dict[int, bytes], journals: set[int]) -> None:
    """Scan the catalogue files; the newest counts, older ones are evidence if it is damaged."""
    if found.uuid is None:
        return
    if not raws:
        found.found(fmt.CATALOG_DIR, 0, "missing", "the catalogue is not there")
        return
    newest = max(raws)
    found.catalog_number = newest
    for number in sorted(raws, reverse=True):
        path = fmt.catalog_path(number)
        good = catalog_header(raws[number]) == (found.uuid, number)
        if number == newest and not good:
            found.found(path, 0, "header", "the catalogue's header does not verify")
        if number != newest:
            found.leftovers.append(path)
        if number == newest or not found.catalog_trusted:
            points = _checkpoints(found.uuid, number, raws[number])
            if number == newest:
                _judge(found, path, points, journals, len(raws[number]))
                found.catalog_trusted = found.catalog_trusted and good
            _take(found, [row for point in points for row in point.rows])


def _checkpoints(uuid: bytes, number: int, raw: bytes) -> list[_Checkpoint]:
    points: list[_Checkpoint] = []
    gap = -1
    for frame in scan_catalog(raw, uuid, number):
        if isinstance(frame, Gap):
            gap = frame.position if gap < 0 else gap
            continue
        if not points or points[-1].number != frame.checkpoint or points[-1].commit is not None:
            points.append(_Checkpoint(frame.checkpoint, frame.position, [], None, -1))
        last = points[-1]
        last.rows.extend(frame.rows)
        points[-1] = last._replace(commit=frame.commit, gap=gap if last.gap < 0 else last.gap)
        gap = -1
    if gap >= 0:
        # What follows the last frame is a checkpoint of its own, or the end of the last one.
        if points and points[-1].commit is None:
            points[-1] = points[-1]._replace(gap=gap)
        else:
            points.append(_Checkpoint(0, gap, [], None, gap))
    return points


def _judge(
    found: Survey, path: str, points: list[_Checkpoint], journals: set[int], size: int
) -> None:
    """Find the checkpoint that counts; take the torn end off ``points``."""
    del size
    broken = [point for point in points if point.gap >= 0 or point.commit is None]
    if broken and broken[0] is points[-1] and len(points) > 1:
        before = points[-2].commit
        if before is not None and before.journal_first in journals:
            torn = points.pop()
            position = torn.position if torn.gap < 0 else min(torn.position, torn.gap)
            detail = "a checkpoint that was not finished"
            found.found(path, position, "torn", detail, harmless=True)
            broken = []
    for point in broken:
        if point.gap >= 0:
            found.found(path, point.gap, "frame", "the catalogue's frame does not verify")
        else:
            found.found(path, point.position, "frame", "the checkpoint has no commit")
    whole = [point for point in points if point.commit is not None]
    if not whole:
        if not broken:
            found.found(path, fmt.CATALOG_HEADER.size, "short", "it holds no checkpoint")
        return
    found.commit, found.checkpoint = whole[-1].commit, whole[-1].number
    numbers = [point.number for point in points]
    ordered = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if not ordered and not broken:
        found.found(path, points[-1].position, "order", "a checkpoint is missing before this one")
    found.catalog_trusted = not broken and ordered


def _take(found: Survey, rows: list[Row]) -> None:
    """Take rows over; those of a newer file, taken before, stand."""
    for row in latest(rows).values():
        match row:
            case BucketRow(name, created_ms):
                found.buckets.setdefault(name, created_ms)
            case StreamEndRow(stream_id) if stream_id not in found.listed:
                found.ended.add(stream_id)
            case StreamRow(fields, placement) if row.subject not in found.ended:
                try:
                    stream = Stream.from_row(fields)
                except (TypeError, ValueError):
                    _not_understood(found, fields)
                    continue
                held = found.listed.get(stream.id)
                if held is None or held.stream.lsn < stream.lsn:
                    found.listed[stream.id] = Catalogued(stream, placement)
            case StrangeRow(item):
                _not_understood(found, item)
            case _:
                pass


def _not_understood(found: Survey, item: object) -> None:
    path = fmt.catalog_path(found.catalog_number)
    found.found(path, 0, "row", f"a row cannot be understood: {item!r:.80}")
    found.catalog_trusted = False
