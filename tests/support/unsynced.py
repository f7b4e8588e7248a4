"""A disk for data that only has to be there for a moment: nobody pulls the plug here."""

from durastreamd.storage.disk import RealDisk


class UnsyncedDisk(RealDisk):
    """A disk whose syncs cost nothing."""

    def sync(self, handle: int) -> None:
        """Nothing has to last."""

    def sync_directory(self, path: str) -> None:
        """Nothing has to last."""

    def sync_everything(self) -> None:
        """Nothing has to last."""
