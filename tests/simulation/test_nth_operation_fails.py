"""Each operation of a scenario fails in turn, in each way, once, again and again, and for good.

The scenario touches every kind of file; SQLite's loop is the model. Between any two flushes every
stream is appended to, so whatever a failed one left is built upon. Whatever fails, four things
hold: what was acknowledged can be read at once, and is there after a restart; what was answered
with a failed write is not; and after a restart on a healthy disk everything works.
"""

import errno
from collections.abc import Callable
from functools import cache

import pytest

from durastreamd.engine.opening import open_engine
from durastreamd.errors import ReadFailedError, StorageError, SyncFailedError, WriteFailedError
from tests.support.failures import FailingWorld
from tests.support.fault_disk import FAULTS, SHORT, FaultDisk
from tests.support.world import NOW, TINY, Dump, World, dump, start


def scenario(world: World) -> list[Callable[[], object]]:
    """Return operations that use the journal, segments, indexes, catalogue, snapshots, removal."""
    return [
        lambda: world.bucket("logs", exists=True),
        lambda: world.create("/a"),
        lambda: world.append("/a", b"x" * 150, b"y" * 90, producer=("p", 0, 0)),
        lambda: world.append("/a", b"z" * 30, producer=("p", 0, 1), seq="1"),
        lambda: world.create("/c"),
        lambda: append_to_all(world),
        world.flush,
        lambda: world.create("logs/b", content_type="application/json"),
        lambda: append_to_all(world),
        world.flush,
        lambda: append_to_all(world),
        world.checkpoint,
        lambda: append_to_all(world),
        lambda: world.fork("/f", "/a", 150),
        lambda: world.append("/f", b"own"),
        lambda: world.publish("/a", 240, b"folded"),
        lambda: world.append("/a", b"w" * 300, closes=True),
        world.checkpoint,
        lambda: world.delete("logs/b"),
        lambda: world.append("/f", b"more", producer=("q", 3, 0)),
        world.checkpoint,
    ]


def append_to_all(world: World) -> None:
    """Append to every stream, enough for its segment to be full soon."""
    streams = [stream for stream in world.engine.namespace.by_key.values() if not stream.closed]
    world.append_many(
        [
            (
                stream.key,
                (b'"%s",\n' % (b"j" * 90) if stream.json else b"k" * 90,),
                None,
                False,
                None,
            )
            for stream in streams
        ]
    )


_UNHARMED: dict[int, Dump] = {}


class Attempt:
    """The scenario on a disk that fails at one operation, and again after each ``period``."""

    def __init__(self, fail_at: int, fault: int | str, *, period: int = 0) -> None:
        self.world = FailingWorld()
        self.disk = self.world.disk
        self.disk.calls = 0
        self.disk.fail_at, self.disk.fault, self.disk.period = fail_at, fault, period

    def run(self) -> list[Dump]:
        """Run until it stops; return the states it may be found in after a restart."""
        world = self.world
        refused: set[int] = set()
        for number, operation in enumerate(scenario(world)):
            world.now_ms += 10
            world._history, world._acked = [self._before(number)], 0
            try:
                operation()
            except (WriteFailedError, ReadFailedError):
                # Refused and cut back, or a file could not be read: nothing of it may be there.
                assert dump_quietly(self.disk, world) == world._history[-1]
                refused.add(number)
            except (SyncFailedError, OSError):
                # The process stops; a batch on its way may be there, up to any record, or not.
                return [
                    faceless(world._history[-1]),
                    *after_each_record(number, frozenset(refused)),
                ]
            except KeyError:
                refused.add(number)  # it built on a create that was refused
        return [faceless(dump_quietly(self.disk, world))]

    def _before(self, number: int) -> Dump:
        """Return the state before an operation; until something fails it is always the same."""
        if self.disk.fired:
            return dump_quietly(self.disk, self.world)
        if number not in _UNHARMED:
            _UNHARMED[number] = dump_quietly(self.disk, self.world)
        return _UNHARMED[number]


def faceless(found: Dump) -> Dump:
    """Leave out ids: a refused create uses one up."""
    return {key: fields[1:10] + fields[11:] for key, fields in found.items()}


@cache
def after_each_record(number: int, refused: frozenset[int]) -> list[Dump]:
    """Return the states that an operation leads through, when those before it were refused."""
    world = World()
    for at, operation in enumerate(scenario(world)):
        world.now_ms += 10
        world._history, world._acked = [dump(world.engine)], 0
        if at == number:
            operation()
            break
        if at not in refused:
            operation()
    return [faceless(state) for state in world._history]


def dump_quietly(disk: FaultDisk, world: World) -> Dump:
    """Look at the state without meeting the fault, and without using up operations."""
    calls, fail_at, disk.fail_at = disk.calls, disk.fail_at, 0
    found = dump(world.engine)
    disk.calls, disk.fail_at = calls, fail_at
    return found


def operations_of_the_scenario() -> int:
    attempt = Attempt(0, errno.EIO)
    attempt.run()
    return attempt.disk.calls


@pytest.mark.slow
@pytest.mark.parametrize("period", [0, 7, 1], ids=["once", "again", "for-good"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: errno.errorcode.get(fault, SHORT))
def test_any_operation_may_fail_and_nothing_acknowledged_is_lost(
    fault: int | str, period: int
) -> None:
    total = operations_of_the_scenario()
    assert total > 150
    fired = 0
    tried = range(1, total + 1, 1 if fault == errno.EIO and not period else 3)
    for fail_at in tried:
        attempt = Attempt(fail_at, fault, period=period)
        legal = attempt.run()
        fired += attempt.disk.fired > 0
        attempt.disk.fail_at = 0
        engine, _ = start(attempt.disk.survivor(), now_ms=attempt.world.now_ms)
        assert faceless(dump(engine)) in legal, f"operation {fail_at} failed with {fault}"
    assert fired > (len(tried) // 20 if fault == SHORT else len(tried) * 0.9)


@pytest.mark.parametrize("fault", [errno.EIO, errno.EMFILE, errno.ENOSPC])
def test_opening_that_fails_loses_nothing(fault: int) -> None:
    """EMFILE at boot skipped streams silently elsewhere; here it stops the opening."""
    attempt = Attempt(0, fault)
    attempt.run()
    expected = dump_quietly(attempt.disk, attempt.world)
    for fail_at in range(1, 80):
        disk = FaultDisk(attempt.disk.survivor().root)
        disk.fail_at, disk.fault = fail_at, fault
        try:
            open_engine(disk, TINY, lambda: b"", NOW)
        except (StorageError, OSError):
            pass
        engine, _ = start(disk.survivor())
        assert dump(engine) == expected, f"operation {fail_at} of the opening failed"


def test_service_resumes_when_space_returns() -> None:
    attempt = Attempt(0, errno.ENOSPC, period=1)
    world = attempt.world
    world.create("/a")
    attempt.disk.fail_at, attempt.disk.only = attempt.disk.calls + 1, ("pwrite",)
    with pytest.raises(WriteFailedError):
        world.append("/a", b"lost", producer=("p", 0, 0))
    attempt.disk.fail_at = 0
    world.append("/a", b"kept", producer=("p", 0, 0))
    world.reopen()
    view = world.engine.view(world.engine.namespace.by_key["/a"])
    assert view.read(0, view.tail) == b"kept"
