"""What the streams themselves bound, and how often they are looked after.

Without the event loop: whoever only reads the settings (``config``, ``dsadmin``) needs none.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

MIB = 1024 * 1024
POSITIVE = msgspec.Meta(gt=0)


@dataclass(frozen=True)
class StreamLimits:
    """Streams in use: how many wait, how often they are looked after."""

    mailbox_max: Annotated[int, "requests waiting for one stream; more are told 503", POSITIVE] = (
        1024
    )
    idle_s: Annotated[float, "a stream not written to for so long gives up its task", POSITIVE] = (
        10.0
    )
    checkpoint_s: Annotated[
        float, "a quiet server still empties its journal this often", POSITIVE
    ] = 30.0
    retry_s: Annotated[
        float, "a write that found the disk full is tried again after so long", POSITIVE
    ] = 1.0
    sweep_s: Annotated[
        float, "how often lifetimes are looked at; access judges them at once", POSITIVE
    ] = 1.0


@dataclass(frozen=True)
class ScrubOptions:
    """Verifying, in the background, what is at rest."""

    bytes_per_s: Annotated[
        int, "the pace: 700 GB a day, and a few percent of one core; 0: never", msgspec.Meta(ge=0)
    ] = 8 * MIB
    period_s: Annotated[
        float, "a round over all files begins so long after the last one began", POSITIVE
    ] = 7 * 86_400.0
    start_s: Annotated[
        float, "the first round, after the start: recovery and its rush come first"
    ] = 60.0
    recheck_s: Annotated[
        float, "a stream that did not verify is looked at again so often", POSITIVE
    ] = 3_600.0
