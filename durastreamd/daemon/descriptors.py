"""How many descriptors the process may have, and what is fitted to that."""

import resource
from dataclasses import replace

from durastreamd.config import Config

# For what is neither a client's connection nor a segment kept open: the journal, a flush and a
# checkpoint, listeners, snapshots on their way to the disk, the event loop's own.
RESERVED = 96
_UNLIMITED = 2**30
_SMALLEST = 4  # a server that cannot have so many says so with every request, but it runs


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # an unlimited hard limit is above what the kernel allows a process
    return soft if soft >= 0 else _UNLIMITED


def fitted(config: Config, descriptors: int) -> Config:
    """Return a configuration that needs no more descriptors than there are.

    Connections that are being refused have one, too. Segments kept open are a cache: they give way
    first, down to a quarter.
    """
    room = max(descriptors - RESERVED, 2 * _SMALLEST)
    http, engine = config.http, config.engine
    refused = min(http.refusals_max, room // 8)
    if http.connections_max + http.refusals_max + engine.handles_max <= room:
        return config
    handles = max(min(engine.handles_max, room // 4), _SMALLEST)
    connections = max(min(http.connections_max, room - handles - refused), _SMALLEST)
    return replace(
        config,
        http=replace(http, connections_max=connections, refusals_max=max(refused, 1)),
        engine=replace(engine, handles_max=handles),
    )
