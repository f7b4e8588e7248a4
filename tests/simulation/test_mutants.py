"""The table of seeded bugs: each breaks one guard, and the crash tests see each of them.

A suite that cannot fail proves nothing. A mutant that survives is either a hole in the tests or a
guard that is not needed; both want looking into.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import cbor2
import pytest

from durastreamd.engine import checkpoint as cp, opening
from durastreamd.engine.engine import Engine
from durastreamd.errors import DurastreamError, SyncFailedError
from durastreamd.model import records, stream_state
from durastreamd.storage import (
    catalog,
    disk as disk_module,
    format as fmt,
    journal,
    log,
    recovery,
)
from tests.support.crashes import ViolationError, hunt, hunt_an_end_in_a_checkpoint
from tests.support.failures import hunt_a_failed_cut, hunt_failures
from tests.support.sim_disk import SimDisk

Patch = pytest.MonkeyPatch
Pieces = list[bytes | memoryview]
Mutant = Callable[[Patch], None]


def no_journal_sync(patch: Patch) -> None:
    def commit(self: journal.JournalWriter, batch: list[fmt.StoredFrame], data: Pieces) -> None:
        disk_module.write_parts(self._disk, self._handle, data, self.length)
        self.length += sum(map(len, data))
        self.next_lsn, self._previous = batch[-1].lsn + 1, batch[-1].stream

    patch.setattr(journal.JournalWriter, "commit", commit)


def acknowledged_before_the_sync(patch: Patch) -> None:
    """The batch is synced only when the next one is written."""

    def commit(self: journal.JournalWriter, batch: list[fmt.StoredFrame], data: Pieces) -> None:
        self._disk.sync(self._handle)
        disk_module.write_parts(self._disk, self._handle, data, self.length)
        self.length += sum(map(len, data))
        self.next_lsn, self._previous = batch[-1].lsn + 1, batch[-1].stream

    patch.setattr(journal.JournalWriter, "commit", commit)


def no_directory_sync_for_the_journal(patch: Patch) -> None:
    original = SimDisk.sync_directory

    def sync_directory(self: SimDisk, path: str) -> None:
        if path != "journal":
            original(self, path)

    patch.setattr(SimDisk, "sync_directory", sync_directory)


def no_directory_sync_for_streams(patch: Patch) -> None:
    original = SimDisk.sync_directory

    def sync_directory(self: SimDisk, path: str) -> None:
        if not path.startswith("streams"):
            original(self, path)

    patch.setattr(SimDisk, "sync_directory", sync_directory)
    patch.setattr(SimDisk, "sync_everything", lambda self: None)


def no_frame_checksum(patch: Patch) -> None:
    original = journal.parse_frame

    def parse_frame(
        data: memoryview, position: int, base: int, *, payload: bool = True
    ) -> journal.JournalFrame | None:
        found = original(data, position, base, payload=payload)
        return (
            found._replace(payload_ok=len(found.frame.payload) == found.frame.size)
            if found
            else None
        )

    for module in (journal, recovery):
        patch.setattr(module, "parse_frame", parse_frame)


def recovery_serves_before_it_syncs(patch: Patch) -> None:
    patch.setattr(cp, "_sync_job", lambda *_: None)


def torn_end_taken_for_damage(patch: Patch) -> None:
    """Every place that does not verify is refused: recovery fails after ordinary crashes."""
    cases = tuple(
        case._replace(decision=recovery.Decision.REFUSE)
        if case.decision is recovery.Decision.CUT
        else case
        for case in recovery.CASES
    )
    patch.setattr(recovery, "CASES", cases)


def files_not_cut_back(patch: Patch) -> None:
    patch.setattr(log, "cut_back", lambda *_: False)


def delete_not_journalled(patch: Patch) -> None:
    original = Engine.commit

    def commit(self: Engine, batch: list[Any]) -> None:
        if isinstance(batch[0][0], records.Delete):
            record, payload = batch[0]
            frame = self.stage(record, payload, self.journal.next_lsn)
            self.journal.next_lsn += 1
            self.applied(record, frame)
        else:
            original(self, batch)

    patch.setattr(Engine, "commit", commit)


def journal_retired_before_the_catalogue(patch: Patch) -> None:
    original = cp._record

    def record(engine: Engine, cut: Any, rows: list[Any]) -> Iterator[Any]:
        yield lambda: cp.retire_journal(engine.disk, cut.journal_first)
        yield from original(engine, cut, rows)

    patch.setattr(cp, "_record", record)


def journal_retired_too_far(patch: Patch) -> None:
    original = cp.retire_journal
    patch.setattr(cp, "retire_journal", lambda disk, first: original(disk, first + 1))


def catalogue_not_synced(patch: Patch) -> None:
    def append(self: catalog.CatalogWriter, bodies: list[bytes], commit: catalog.Commit) -> None:
        data = self._encode(self.number, self.length, bodies, commit)
        handle = self._disk.open(fmt.catalog_path(self.number), write=True)
        disk_module.write_all(self._disk, handle, data, self.length)
        self._disk.release(handle)
        self.length += len(data)
        self.checkpoint += 1

    patch.setattr(catalog.CatalogWriter, "append", append)


def producers_not_in_the_frame(patch: Patch) -> None:
    def header(self: records.Append) -> bytes:
        count = self.count if self.lengths is None else self.lengths
        return cbor2.dumps([records.APPEND, count, self.closes, self.seq, ()])

    patch.setattr(records.Append, "header", header)


def closure_not_in_the_frame(patch: Patch) -> None:
    def header(self: records.Append) -> bytes:
        count = self.count if self.lengths is None else self.lengths
        return cbor2.dumps([records.APPEND, count, False, self.seq, self.producers])

    patch.setattr(records.Append, "header", header)


def rows_ahead_of_the_files(patch: Patch) -> None:
    """A row says more than was flushed: replay leaves out what the files lack."""
    original = stream_state.Stream.row

    def row(self: stream_state.Stream) -> list[object]:
        fields = original(self)
        fields[16] = self.lsn + 1
        return fields

    patch.setattr(stream_state.Stream, "row", row)


def replay_of_what_the_rows_include(patch: Patch) -> None:
    patch.setattr(opening._Opening, "_applies", lambda self, record, stream, lsn, commit: True)


def ended_streams_left_out_of_the_rows(patch: Patch) -> None:
    """Older rows of streams that ended during a checkpoint stand, without what came between."""
    original = cp._record

    def record(engine: Engine, cut: Any, rows: list[Any]) -> Iterator[Any]:
        removed, engine.removed = engine.removed, {}
        steps = original(engine, cut, rows)
        job = next(steps)
        engine.removed = removed
        result = yield job
        with suppress(StopIteration):
            while True:
                result = yield steps.send(result)

    patch.setattr(cp, "_record", record)


def removals_left_out_of_the_commit(patch: Patch) -> None:
    """Files of streams that ended during a checkpoint stay for ever after a kill."""
    original = cp.removals_of

    def removals_of(engine: Engine, cut: Any) -> list[str]:
        removed, engine.removed = engine.removed, {}
        trimmed, engine.trimmed = engine.trimmed, {}
        found = original(engine, cut)
        engine.removed, engine.trimmed = removed, trimmed
        return found

    patch.setattr(cp, "removals_of", removals_of)
    patch.setattr(opening._Opening, "_find_orphans", lambda self: None)


def uploads_nobody_looks_for(patch: Patch) -> None:
    patch.setattr(Engine, "begin_upload", lambda self, stream: self.uploads.update({stream: 1}))
    patch.setattr(opening, "Touch", records.Mark)


def recovery_builds_on_what_was_not_synced(patch: Patch) -> None:
    patch.setattr(opening, "sync_file", lambda disk, path: None)
    cases = tuple(case for case in recovery.CASES if case.label not in "DK")
    refused = recovery.Case("D", "yyn----", recovery.Decision.REFUSE)
    patch.setattr(recovery, "CASES", (*cases, refused))


def successes_beside_a_failure_forgotten(patch: Patch) -> None:
    original = cp._flush_jobs

    def flush_jobs(disk: Any, jobs: list[log.FlushJob]) -> list[Any]:
        done = original(disk, jobs)
        failed = next((each for each in done if isinstance(each, DurastreamError)), None)
        return done if failed is None else [failed] * len(done)

    patch.setattr(cp, "_flush_jobs", flush_jobs)
    patch.setattr(log, "orphan_indexes", lambda *_: [])  # readers go around what it leaves


def a_failed_checkpoint_forgets_its_marks(patch: Patch) -> None:
    patch.setattr(cp, "_give_back", lambda engine, cut: None)


def a_failed_checkpoint_forgets_what_is_trimmed(patch: Patch) -> None:
    original = cp._give_back
    patch.setattr(cp, "_give_back", lambda engine, cut: original(engine, cut._replace(trimmed=[])))


def a_failed_sync_is_tried_again(patch: Patch) -> None:
    """The second one succeeds, and says nothing about what the first one lost."""
    original = SimDisk.sync

    def commit(self: journal.JournalWriter, batch: list[fmt.StoredFrame], data: Pieces) -> None:
        disk_module.write_parts(self._disk, self._handle, data, self.length)
        with suppress(SyncFailedError):
            self._disk.sync(self._handle)
        original(self._disk, self._handle)  # type: ignore[arg-type]
        self.length += sum(map(len, data))
        self.next_lsn, self._previous = batch[-1].lsn + 1, batch[-1].stream

    patch.setattr(journal.JournalWriter, "commit", commit)


def a_failed_sync_of_segments_is_tried_again(patch: Patch) -> None:
    original = cp._sync_job

    def sync_job(disk: SimDisk, *rest: Any) -> None:
        try:
            original(disk, *rest)
        except SyncFailedError:
            SimDisk.sync_everything(disk)

    patch.setattr(cp, "_sync_job", sync_job)


def a_failed_cut_is_passed_over(patch: Patch) -> None:
    """What was answered as failed stays in the journal behind the next batch, or comes back."""

    def cut_back(self: journal.JournalWriter) -> None:
        with suppress(OSError):
            self._disk.truncate(self._handle, self.length)

    patch.setattr(journal.JournalWriter, "_cut_back", cut_back)


def catalogue_synced_but_not_written_again(patch: Patch) -> None:
    def secure(disk: SimDisk, loaded: catalog.Loaded) -> None:
        disk_module.sync_file(disk, fmt.catalog_path(loaded.number))

    patch.setattr(catalog, "secure", secure)


FAILING_MUTANTS: tuple[Mutant, ...] = (
    a_failed_sync_is_tried_again,
    a_failed_sync_of_segments_is_tried_again,
    a_failed_cut_is_passed_over,
    catalogue_synced_but_not_written_again,
    successes_beside_a_failure_forgotten,
    a_failed_checkpoint_forgets_its_marks,
)

MUTANTS: tuple[Mutant, ...] = (
    removals_left_out_of_the_commit,
    uploads_nobody_looks_for,
    recovery_builds_on_what_was_not_synced,
    no_journal_sync,
    acknowledged_before_the_sync,
    no_directory_sync_for_the_journal,
    no_directory_sync_for_streams,
    no_frame_checksum,
    recovery_serves_before_it_syncs,
    torn_end_taken_for_damage,
    files_not_cut_back,
    delete_not_journalled,
    journal_retired_before_the_catalogue,
    journal_retired_too_far,
    catalogue_not_synced,
    producers_not_in_the_frame,
    closure_not_in_the_frame,
    rows_ahead_of_the_files,
    replay_of_what_the_rows_include,
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_seeded_bug_is_caught(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((ViolationError, DurastreamError, AssertionError, KeyError, OSError)):
        for seed in range(40):
            hunt(seed, steps=30, cap=6)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", FAILING_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_seeded_bug_is_caught_where_the_disk_fails(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((ViolationError, DurastreamError, AssertionError, KeyError, OSError)):
        for seed in range(200):
            hunt_failures(seed, steps=40)


def test_a_row_left_out_of_a_checkpoint_is_caught(monkeypatch: Patch) -> None:
    ended_streams_left_out_of_the_rows(monkeypatch)
    with pytest.raises(ViolationError):
        hunt_an_end_in_a_checkpoint()


def test_what_a_failed_checkpoint_forgets_to_trim_is_caught(monkeypatch: Patch) -> None:
    a_failed_checkpoint_forgets_what_is_trimmed(monkeypatch)
    with pytest.raises(ViolationError):
        hunt_a_failed_cut()


def test_the_unbroken_engine_passes_what_catches_the_mutants() -> None:
    hunt_an_end_in_a_checkpoint()
    hunt_a_failed_cut()
    for seed in range(2):
        assert hunt(seed, steps=30, cap=6).states > 0
