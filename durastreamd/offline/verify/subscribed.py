"""The subscriptions a data directory has by now: the catalogue's, and what the journal added.

They are folded by the model's own code, on streams as a verification or a repair found them. Where
records were lost that may have been theirs, nobody knows which wakes were shown to whom. Then every
generation is raised far above anything that could have been, and every wake ends: tokens from
before do not fit any more, and what is pending wakes again.
"""

from collections.abc import Iterator

from sortedcontainers import SortedDict

from durastreamd.model.records import Create, Delete
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription_records import Head, SubscriptionRecord
from durastreamd.model.subscriptions import Subscriptions
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.folding import record_of
from durastreamd.offline.verify.survey import Survey
from durastreamd.storage import format as fmt

RAISED = 1_000_000  # more wakes than a subscription has between two checkpoints


def fold_subscriptions(found: Survey, streams: dict[int, Stream]) -> Subscriptions:
    """Return the subscriptions of these streams; links are settled, but for cursors past an end."""
    by_key = SortedDict({stream.key: stream for stream in streams.values() if not stream.gone})
    held = Subscriptions(by_key)
    held.load((name, fields) for name, fields in found.facts.items() if fields is not None)
    for head in found.heads:
        if head.frame.lsn >= found.torn_lsn or not head.payload_ok:
            continue
        record = record_of(head.frame)
        if isinstance(record, SubscriptionRecord):
            held.apply(record)
        elif isinstance(record, Create) and record.stream in streams:
            held.created(streams[record.stream])
        elif isinstance(record, Delete) and record.stream in streams:
            held.ended(streams[record.stream])
    return held


def cursor_findings(found: Survey, streams: dict[int, Stream]) -> Iterator[Finding]:
    """Yield the cursors that lie past the end of their streams: somebody would miss bytes."""
    held = fold_subscriptions(found, streams)
    for subscription in held.by_incarnation.values():
        for link in subscription.links.values():
            stream = held.stream(subscription.root, link.path)
            if stream is not None and link.cursor > stream.tail:
                detail = f"subscription {subscription.id!r} has its cursor at {link.cursor}, "
                detail += f"past the end at {stream.tail}"
                path = fmt.catalog_path(found.catalog_number)
                yield Finding(path, 0, "cursor", detail, stream.key)


def repaired_facts(found: Survey, streams: dict[int, Stream]) -> list[tuple[str, list[object]]]:
    """Return what a repaired catalogue says of subscriptions."""
    held = fold_subscriptions(found, streams)
    held.settle()
    shared = (fmt.JOURNAL_DIR, fmt.CATALOG_DIR)
    if any(not each.harmless and each.path.startswith(shared) for each in found.findings):
        for subscription in held.by_incarnation.values():
            raised = subscription.head.generation + RAISED
            subscription.head = Head(generation=raised)
        held.tombstones = {key: top + RAISED for key, top in held.tombstones.items()}
        held.floor += RAISED if held.floor else 0
    return held.everything()
