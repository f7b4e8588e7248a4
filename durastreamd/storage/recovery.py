"""What to do at each place of a journal after a stop: one table, decided nowhere else.

Theory of operation
-------------------
The journal is walked from the first file the catalogue still needs. At every place a few yes-or-no
questions are asked, and the table ``CASES`` gives the one answer for each combination. The rules
behind it:

* A place that verifies is replayed.
* A place that does not, and that nothing proves to have been durable, is the torn end of the last
  write: no client was told of it. It is cut, and the bytes are kept in quarantine/.
* A place that does not verify although it was durable is damage to acknowledged data. It is never
  cut. If the owner is known, that stream is refused and everything else goes on. If not, nobody
  can say which streams are short, so we refuse to serve rather than serve a hole.

``proven`` means: a later frame, a later file's header or the catalogue says that this lsn was
durable. Frames of the same unsynced batch do not say so (each carries the durable lsn from before
its batch), which is what tells sectors that landed out of order from rot.

The owner of a frame with a bad head is named by the frame after it. A run of several lost frames
has owners nobody names.
"""

from collections.abc import Generator, Iterator
from enum import Enum
from typing import NamedTuple

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt
from durastreamd.storage.journal import (
    JournalFile,
    JournalFrame,
    file_seed,
    frames,
    parse_frame,
)


class Decision(Enum):
    """What happens at a place of the journal."""

    REPLAY = "replay the frame"
    NEXT = "go on in the next file"
    DONE = "the journal ends here"
    CUT = "cut the torn end, keep its bytes in quarantine"
    SET_ASIDE = "refuse the owner, go on after the frame"
    REFUSE = "refuse to serve: acknowledged data of unknown owners is lost"


class Place(NamedTuple):
    """The questions asked at one place."""

    end: bool  # no byte is left in this file
    later: bool  # a later file with a good header exists
    joins: bool  # that file begins with the lsn expected here
    head: bool  # a frame head verifies here and has the expected lsn
    body: bool  # its payload verifies
    proven: bool  # something says that the lsn expected here was durable
    owner: bool  # it is known whose frame is lost


class Case(NamedTuple):
    """One row: a label, the answers it needs in the order of ``Place``, and the decision."""

    label: str
    pattern: str
    decision: Decision


# y: yes, n: no, -: either; the columns are end, later, joins, head, body, proven, owner.
CASES = (
    # A whole file, and the next one continues it: the ordinary rotation.
    Case("A", "yyy----", Decision.NEXT),
    # The last file ends after a whole frame: the ordinary stop.
    Case("B", "yn---n-", Decision.DONE),
    # The last file ends early: the catalogue knows of later frames.
    Case("C", "yn---y-", Decision.REFUSE),
    # Frames are missing between two files: one was cut or replaced.
    Case("D", "yyn--y-", Decision.REFUSE),
    # A whole frame.
    Case("E", "n--yy--", Decision.REPLAY),
    # A payload that was durable and does not verify: its head says whose.
    Case("F", "n--yny-", Decision.SET_ASIDE),
    # A payload that never became durable: the torn end.
    Case("G", "n--ynn-", Decision.CUT),
    # A head that was durable and does not verify; the next frame says whose.
    Case("H", "n--n-yy", Decision.SET_ASIDE),
    # The same, and nobody says whose.
    Case("I", "n--n-yn", Decision.REFUSE),
    # A head that never became durable: the torn end.
    Case("J", "n--n-n-", Decision.CUT),
    # The next file begins elsewhere, and nothing says that a frame is missing: the file was made by
    # a recovery that was cut short, or taken back by a rotation that failed. It holds no frame.
    Case("K", "yyn--n-", Decision.DONE),
)


def decide(place: Place) -> Case:
    """Return the one case that fits a place."""
    fits = [case for case in CASES if _fits(case.pattern, place)]
    assert len(fits) == 1, f"{place} fits {[case.label for case in fits]}"
    return fits[0]


def _fits(pattern: str, place: Place) -> bool:
    return all(
        wanted == "-" or (wanted == "y") == answer
        for wanted, answer in zip(pattern, place, strict=True)
    )


class Replay(NamedTuple):
    """A frame to apply."""

    number: int
    found: JournalFrame


class SetAside(NamedTuple):
    """A frame lost to damage: its owner is refused. ``frame`` is there if its head is good."""

    number: int
    position: int
    stream: int
    lsn: int
    case: str
    frame: fmt.StoredFrame | None


class Torn(NamedTuple):
    """The torn end of the journal: these bytes were never acknowledged."""

    number: int
    position: int
    data: bytes
    case: str


Step = Replay | SetAside | Torn


class JournalWalk:
    """Walks journal files in order and yields what is to be done; see the module's theory.

    After the walk ``next_lsn`` is the lsn the journal goes on with.
    """

    def __init__(self, uuid: bytes, files: list[JournalFile], next_lsn: int, durable: int) -> None:
        self._uuid = uuid
        self._files = files
        self._durable = durable
        self.next_lsn = next_lsn
        self.cases: list[str] = []
        self._ahead: _Ahead | None = None

    def steps(self) -> Iterator[Step]:
        """Yield the steps in order; raise CorruptDataError where the table says REFUSE."""
        for index, file in enumerate(self._files):
            if file.head is None:
                yield from self._headless(index, file)
                return
            if index == 0 and file.head.first_lsn > self.next_lsn:
                last = file.head.first_lsn - 1
                reason = f"frames {self.next_lsn} to {last} are missing before this file; "
                reason += "run `dsadmin verify`, then `dsadmin repair`"
                raise CorruptDataError(fmt.journal_path(file.number), 0, reason)
            if index == 0:
                self.next_lsn = file.head.first_lsn
            if (yield from self._walk_file(index, file)):
                return

    def _headless(self, index: int, file: JournalFile) -> Iterator[Step]:
        """A header that does not verify: the creation was cut short, or it rotted."""
        last = index == len(self._files) - 1
        if last and len(file.data) <= fmt.JOURNAL_HEADER.size and self._durable < self.next_lsn:
            self.cases.append("header")
            yield Torn(file.number, 0, file.data, "header")
            return
        reason = "the journal file's header is damaged; run `dsadmin repair`"
        raise CorruptDataError(fmt.journal_path(file.number), 0, reason)

    def _walk_file(self, index: int, file: JournalFile) -> Generator[Step, None, bool]:
        """Walk one file; the generator's value tells whether the journal ends in it."""
        data = memoryview(file.data)
        base = file_seed(self._uuid, file.number)
        position = fmt.JOURNAL_HEADER.size
        while True:
            found = parse_frame(data, position, base)
            if found is not None and found.frame.lsn != self.next_lsn:
                found = None
            if found is not None and found.payload_ok:
                self.next_lsn += 1
                position = found.end
                yield Replay(file.number, found)
                continue
            place, following = self._question(index, position, found)
            case = decide(place)
            self.cases.append(case.label)
            if case.decision is Decision.NEXT or case.decision is Decision.DONE:
                return case.decision is Decision.DONE
            if case.decision is Decision.CUT:
                yield Torn(file.number, position, bytes(data[position:]), case.label)
                return True
            lost = found or following
            if case.decision is Decision.REFUSE or lost is None:
                raise self._refusal(file, position, place)
            owner = lost.frame.stream if lost is found else lost.previous
            frame = found.frame if found is not None else None
            yield SetAside(file.number, position, owner, self.next_lsn, case.label, frame)
            self.next_lsn += 1
            if lost is found:
                position = lost.end
            else:
                position = lost.position if lost.position > position else len(data)

    def _question(
        self, index: int, position: int, found: JournalFrame | None
    ) -> tuple[Place, JournalFrame | None]:
        """Ask every question of a place, and find the next good frame after it."""
        file = self._files[index]
        after = self._files[index + 1] if index + 1 < len(self._files) else None
        lsn = self.next_lsn
        # A head that verifies has true lengths, so no frame stands within what it spans.
        ahead = self._ahead_in(index, found.end if found is not None else position + 1)
        durable = max(self._durable, ahead.durable_lsn)
        for later in self._files[index + 1 :]:
            durable = max(durable, later.head.durable_lsn if later.head else 0)
        following = ahead.after(position)
        if following is None and after is not None:
            following = next(_frames_in(self._uuid, after, fmt.JOURNAL_HEADER.size), None)
        place = Place(
            end=position >= len(file.data),
            later=after is not None and after.head is not None,
            joins=after is not None and after.head is not None and after.head.first_lsn == lsn,
            head=found is not None,
            body=found is not None and found.payload_ok,
            proven=durable >= lsn,
            owner=following is not None and following.frame.lsn == lsn + 1,
        )
        return place, following

    def _ahead_in(self, index: int, position: int) -> "_Ahead":
        """Return what verifies in a file after its first bad place, looked for only once."""
        if self._ahead is None or self._ahead.index != index:
            self._ahead = _Ahead(self._uuid, self._files[index], index, position)
        return self._ahead

    def _refusal(self, file: JournalFile, position: int, place: Place) -> CorruptDataError:
        what = "ends before frame" if place.end else "does not verify at frame"
        reason = (
            f"the journal {what} {self.next_lsn}, which was durable, and it cannot be told which "
            "streams it held; run `dsadmin verify`, then `dsadmin repair`"
        )
        return CorruptDataError(fmt.journal_path(file.number), position, reason)


class _Ahead:
    """The frames that verify after the first bad place of a file.

    However many places of a file are bad, it is walked twice at most: once for what it proves, once
    along with the questions, which come in the order of their positions. A frame proves only what
    came before it, so one that stands before a later question cannot prove too much there.
    """

    def __init__(self, uuid: bytes, file: JournalFile, index: int, position: int) -> None:
        self.index = index
        self.durable_lsn = 0
        self._next: JournalFrame | None = None
        for frame in _frames_in(uuid, file, position):
            self._next = self._next or frame
            self.durable_lsn = max(self.durable_lsn, frame.durable_lsn)
        self._rest = _frames_in(uuid, file, self._next.end if self._next else len(file.data))

    def after(self, position: int) -> JournalFrame | None:
        """Return the first good frame after a position, which only ever grows."""
        while self._next is not None and self._next.position <= position:
            self._next = next(self._rest, None)
        return self._next


def _frames_in(uuid: bytes, file: JournalFile, position: int) -> Iterator[JournalFrame]:
    first_lsn = file.head.first_lsn if file.head is not None else None
    return frames(file.data, position, file_seed(uuid, file.number), first_lsn)
