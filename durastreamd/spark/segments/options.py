"""The options of the format ``durastream-segments``."""

from dataclasses import dataclass
from typing import ClassVar

from durastreamd.spark.errors import OptionError
from durastreamd.spark.options import (
    MIB,
    ChoosingOptions,
    Places,
    option,
    pattern_of,
    places,
    time_ms,
)


@dataclass(frozen=True)
class SegmentOptions(ChoosingOptions):
    """The source of log files."""

    FORMAT: ClassVar[str] = "durastream-segments"

    path: str = option("", "the data directory, or a backup of one; also the argument of load()")
    bucket: str = option("", "the bucket that streams are named in; alone: all of its streams")
    starting_offsets: str = option(
        "earliest", "earliest, or JSON: stream to offset, or to a number"
    )
    ending_offsets: str = option("latest", "latest, or JSON as for startingOffsets")
    starting_timestamp: str = option(
        "", "what was written then or later: ms since 1970, or RFC 3339"
    )
    ending_timestamp: str = option("", "what was written before: ms since 1970, or RFC 3339")
    verify_checksums: bool = option(True, "compare every record with its checksum")  # noqa: FBT003
    fail_on_data_loss: bool = option(
        True,  # noqa: FBT003
        "fail where bytes are damaged or gone; false leaves them out",
    )
    bad_records_path: str = option(
        "", "a directory that is told what failOnDataLoss=false left out"
    )
    max_bytes_per_partition: int = option(16 * MIB, "how many bytes one task reads, about", least=1)
    min_partitions: int = option(1, "make tasks smaller until there are so many", least=1)

    def check(self) -> None:
        """Refuse what contradicts itself."""
        super().check()
        if self.subscribe and self.subscribe_pattern:
            message = (
                "subscribe and subscribePattern exclude each other; none of them: every stream."
            )
            raise OptionError(message)
        if not self.path:
            message = "Which data directory? Give it to load(), or as the option path."
            raise OptionError(message)
        pattern_of(self)
        self.bounds()
        self.times()

    def bounds(self) -> tuple[Places, Places]:
        """Return where reading begins and ends, of the streams that were named."""
        start, end = self.starting_offsets, self.ending_offsets
        return (
            {} if start == "earliest" else places("startingOffsets", start, "earliest"),
            {} if end == "latest" else places("endingOffsets", end, "latest"),
        )

    def times(self) -> tuple[int | None, int | None]:
        """Return between which times what is read was written, in ms since 1970."""
        return (
            time_ms("startingTimestamp", self.starting_timestamp),
            time_ms("endingTimestamp", self.ending_timestamp),
        )
