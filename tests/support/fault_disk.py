"""A disk whose n-th operation fails: once, again and again, or from then on."""

import errno
import os
import random
from collections.abc import Callable

from durastreamd.errors import SyncFailedError, WriteFailedError
from durastreamd.storage.disk import EXHAUSTED
from tests.support.sim_disk import Directory, SimDisk

SHORT = "short write"
FAULTS: tuple[int | str, ...] = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, SHORT)

COUNTED = (
    "open",
    "pwrite",
    "pread",
    "truncate",
    "sync",
    "sync_directory",
    "sync_everything",
    "rename",
    "unlink",
    "make_directory",
    "remove_directory",
)


class FaultDisk(SimDisk):
    """A SimDisk that fails on purpose."""

    fail_at = 0
    fault: int | str = errno.EIO
    period = 0  # after how many more operations it fails again; 1 is from then on, 0 never
    only: tuple[str, ...] = COUNTED
    ragged = False  # a write that fails may have written a part
    calls = 0
    fired = 0

    def __init__(self, root: Directory | None = None, rng: random.Random | None = None) -> None:
        super().__init__(root)
        self.rng = rng or random.Random(0)  # decides what a failed sync has lost

    def refuse(self, fault: int, only: tuple[str, ...]) -> None:
        """Fail these operations from now on."""
        self.fault, self.only, self.fail_at, self.period = fault, only, self.calls + 1, 1

    def mend(self) -> None:
        """Fail no more."""
        self.fail_at = 0

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name in COUNTED:
            return super().__getattribute__("_counted")(name, found)
        return found

    def _counted(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.calls += 1
            ordinary = self.fault == SHORT and name != "pwrite"
            if ordinary or not self._due or name not in self.only:
                return method(*arguments, **options)
            return self._fail(name, method, arguments)

        return call

    @property
    def _due(self) -> bool:
        past = self.calls - self.fail_at
        if not self.fail_at or past < 0:
            return False
        return past % self.period == 0 if self.period else past == 0

    def _fail(
        self, name: str, method: Callable[..., object], arguments: tuple[object, ...]
    ) -> object:
        if self.fault == SHORT:
            self.fired += 1
            handle, data, position = arguments
            assert isinstance(data, bytes)
            if len(data) < 2 or self.fired > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return method(handle, data[: len(data) // 2], position)
        assert isinstance(self.fault, int)
        self.fired += 1
        if name in ("sync_directory", "sync_everything") and self.fault in EXHAUSTED:
            # The directory could not even be opened; see RealDisk.
            raise WriteFailedError(name) from OSError(self.fault, os.strerror(self.fault))
        if name.startswith("sync"):
            if name != "sync_directory":
                handle = arguments[0] if arguments else None
                assert handle is None or isinstance(handle, int)
                self.fail_sync(handle, self.rng)
            reason = f"{name} failed: {os.strerror(self.fault)}"
            raise SyncFailedError(reason)
        if name == "pwrite" and self.ragged:
            handle, data, position = arguments
            assert isinstance(data, bytes | memoryview)
            method(handle, data[: self.rng.randrange(len(data))], position)
        raise OSError(self.fault, os.strerror(self.fault), name)
