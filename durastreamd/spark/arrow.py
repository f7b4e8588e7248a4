"""What is used of pyarrow, which comes without types."""

from typing import Protocol


class RecordBatch(Protocol):
    """A pyarrow record batch, as far as it is used here."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    @property
    def nbytes(self) -> int:
        """The size of its buffers."""

    def column(self, name: str) -> "ArrowColumn":
        """Return a column."""

    def to_pylist(self) -> list[dict[str, object]]:
        """Return the rows as dictionaries."""


class ArrowColumn(Protocol):
    """A pyarrow array, as far as it is used here."""

    def to_pylist(self) -> list[object]:
        """Return the values."""

    def cast(self, kind: object) -> "ArrowColumn":
        """Return the values as another type."""
