"""The resident size of a process, as the kernel counts it."""

from pathlib import Path


class Resident:
    """The resident size of a process, and its peak since it was last asked to begin anew."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def _field(self, name: str) -> int:
        for line in (self._folder / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    def begin(self) -> int:
        """Forget the peak; return the size."""
        (self._folder / "clear_refs").write_text("5", encoding="ascii")
        return self.now()

    def now(self) -> int:
        return self._field("VmRSS")

    def peak(self) -> int:
        return self._field("VmHWM")
