"""Extensions of the format: what a directory may hold that not every reader of version 1 knows.

A directory that uses none is of version 1, byte for byte. Before the first record or row of an
extension is written its name is put into the identity file (``datadir``), durably. So a reader that
does not know the name refuses the directory and says which one it is, and a reader from before
there were names refuses the number of the format in that file. Names are never taken out again.

How to add one:

    1. a row in ``EXTENSIONS``: its name, and the numbers of the record and row kinds it brings
       (``model.records``, ``storage.rows``); one without numbers (a new field of an old kind) is
       fine, and then a repair that finds the identity lost always names it
    2. whoever decides such a record calls ``Engine.extend(name)`` before it submits or commits the
       record; the name is durable before the batch is written, and costs nothing after that
    3. FORMAT.md, "Extensions": what the kinds hold
"""

from collections.abc import Iterable
from typing import NamedTuple

import cbor2


class Extension(NamedTuple):
    """The kinds of records and of rows that come with an extension."""

    records: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()


SUBSCRIPTIONS = "subscriptions"
RETENTION = "retention"  # a record kind, and what of it stands in rows
STRICT_PRODUCERS = "strict-producers"  # sums of appends in their records and in states

EXTENSIONS: dict[str, Extension] = {
    RETENTION: Extension(),
    STRICT_PRODUCERS: Extension(),
    SUBSCRIPTIONS: Extension(frozenset(range(16, 24)), frozenset({16, 17})),
}


def used_by(headers: Iterable[bytes], rows: Iterable[object]) -> set[str]:
    """Return the extensions of a directory whose identity is lost, by what its files hold.

    ``headers`` are those of journal frames, ``rows`` the catalogue's as CBOR has them.
    """
    records = {_kind(header) for header in headers}
    kinds = {row[0] for row in rows if isinstance(row, list) and row and isinstance(row[0], int)}
    return {
        name
        for name, extension in EXTENSIONS.items()
        if extension.records & records
        or extension.rows & kinds
        or not (extension.records or extension.rows)
    }


def _kind(header: bytes) -> int:
    try:
        fields = cbor2.loads(header)
    except (cbor2.CBORDecodeError, ValueError):
        return -1
    return fields[0] if isinstance(fields, list) and fields and isinstance(fields[0], int) else -1
