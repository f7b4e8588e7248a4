"""What is left of the journal, and what of it is torn, lost, or only moved.

Lost is a frame that something later says was durable: a later frame, a later file's header or the
catalogue. A frame that does not verify and that nothing vouches for is the torn end of the last
write, of which no client was told. The rules are those of ``storage.recovery``.
"""

from durastreamd.model.records import MARK_STREAM
from durastreamd.offline.verify.scan import JournalHead, journal_header, scan_journal
from durastreamd.offline.verify.survey import Survey
from durastreamd.storage import format as fmt
from durastreamd.storage.scan import Gap

_Gaps = list[tuple[int, Gap]]


def read_journal(found: Survey, raws: dict[int, bytes]) -> None:
    """Scan every journal file, and tell what is wrong with them."""
    if found.uuid is None:
        return
    found.journal_number = max([*raws, found.commit.journal_first if found.commit else 0])
    first = found.commit.journal_first if found.commit is not None else min(raws, default=0)
    heads: dict[int, JournalHead] = {}
    gaps: _Gaps = []
    for number, raw in sorted(raws.items()):
        if number < first:
            found.leftovers.append(fmt.journal_path(number))
        _read_file(found, number, raw, heads, gaps)
    found.heads = [heads[lsn] for lsn in sorted(heads) if lsn > found.covered_lsn]
    _durable(found, heads)
    _report_files(found, raws, first)
    placed = [lsn for number, gap in gaps if number >= first for lsn in [_gap(found, number, gap)]]
    _report_lost(found, placed)


def _read_file(
    found: Survey, number: int, raw: bytes, heads: dict[int, JournalHead], gaps: _Gaps
) -> None:
    assert found.uuid is not None
    header = journal_header(raw)
    seeded = number
    if header is not None and header.uuid == found.uuid:
        found.headers[number] = header
        seeded = header.number  # a file under another's name is read as what it is
    for item in scan_journal(raw, found.uuid, seeded):
        if isinstance(item, Gap):
            gaps.append((number, item))
            continue
        held = heads.get(item.frame.lsn)
        if held is None or (item.payload_ok and not held.payload_ok):
            heads[item.frame.lsn] = item._replace(number=number)


def _durable(found: Survey, heads: dict[int, JournalHead]) -> None:
    headers = [header.head for header in found.headers.values()]
    found.durable_lsn = max(
        [
            found.covered_lsn,
            *(head.durable_lsn for head in heads.values()),
            *(head.durable_lsn for head in headers),
        ]
    )
    found.top_lsn = max(
        [found.durable_lsn, *heads, *(head.first_lsn - 1 for head in headers)],
    )


def _report_files(found: Survey, raws: dict[int, bytes], first: int) -> None:
    for number in range(first, found.journal_number + 1):
        path = fmt.journal_path(number)
        header = found.headers.get(number)
        if number not in raws:
            found.found(path, 0, "missing", "the journal file is not there")
        elif header is None:
            unfinished = number == max(raws) and len(raws[number]) <= fmt.JOURNAL_HEADER.size
            if unfinished:
                detail = "a journal file that was not finished"
                found.found(path, 0, "torn", detail, harmless=True)
            else:
                found.found(path, 0, "header", "the journal file's header does not verify")
        elif header.number != number:
            found.found(path, 0, "misplaced", f"this is journal file {header.number}")
    for head in found.heads:
        if not head.payload_ok:
            harmless = head.frame.lsn > found.durable_lsn
            detail = f"the payload of frame {head.frame.lsn} does not verify"
            kind = "torn" if harmless else "payload"
            path = fmt.journal_path(head.number)
            found.found(path, head.payload_at, kind, detail, harmless=harmless)


def _gap(found: Survey, number: int, gap: Gap) -> int:
    """Report bytes that do not verify; return the lsn of the first frame they held."""
    path = fmt.journal_path(number)
    before = [h.frame.lsn for h in found.heads if (h.number, h.end) <= (number, gap.position)]
    lsn = max([found.covered_lsn, *before]) + 1
    if number not in found.headers:
        # Nothing in such a file is known to be torn: its header was durable before any frame.
        detail = f"frame {lsn} does not verify, nor does the file's header"
        found.found(path, gap.position, "frame", detail)
    elif lsn <= found.durable_lsn:
        found.found(path, gap.position, "frame", f"frame {lsn}, which was durable, does not verify")
    elif gap.passed:
        detail = f"{gap.end - gap.position} bytes that may be of a batch never acknowledged, but "
        detail += f"{gap.passed} places in them imitate frames and were not all checked"
        found.found(path, gap.position, "frame", detail)
    else:
        detail = f"{gap.end - gap.position} bytes of a batch that was never acknowledged"
        found.found(path, gap.position, "torn", detail, harmless=True)
    return lsn


def _report_lost(found: Survey, placed: list[int]) -> None:
    """Note which frames are in no file; those that no gap accounts for are reported here."""
    low = found.covered_lsn + 1
    if found.commit is None:
        # Without the catalogue nobody knows what came before the first file.
        begun = [header.head.first_lsn for header in found.headers.values()]
        low = min([found.top_lsn + 1, *begun, *(head.frame.lsn for head in found.heads)])
    for lsn in [*(head.frame.lsn for head in found.heads), found.top_lsn + 1]:
        if lsn > low:
            if low <= found.durable_lsn:
                found.missing.append((low, min(lsn - 1, found.durable_lsn)))
            if low not in placed:
                what = f"frame {low} is" if lsn - 1 == low else f"frames {low} to {lsn - 1} are"
                detail = f"{what} in no journal file"
                if low > found.durable_lsn:  # a recovery that was cut short had counted it
                    detail += ", and never was durable"
                    found.found(fmt.JOURNAL_DIR, 0, "torn", detail, harmless=True)
                else:
                    found.found(fmt.JOURNAL_DIR, 0, "lost", detail)
        low = max(low, lsn + 1)


def owner_of_lost(found: Survey, lsn: int) -> int | None:
    """Return whose frame was lost, if the frame after it says so; 0 for a bucket's."""
    for head in found.heads:
        if head.frame.lsn == lsn + 1:
            return head.previous if head.previous != MARK_STREAM else None
    return None
