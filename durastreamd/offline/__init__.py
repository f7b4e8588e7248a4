"""A data directory without a server: for ``dsadmin``, the Spark jobs and whoever comes next.

``opening`` recovers a directory in memory, beside a running daemon, too, and looks again where
files went meanwhile; ``names`` finds the stream a user means.
``verify`` tells whether every file is as it must be: ``survey`` reads what is there, ``census``
counts the streams, ``segments`` checks one segment with its index (in ``workers``, on every core),
``verification`` joins them. ``repair`` makes a plan of what can be saved (``salvage`` per stream,
``losses`` for what cannot, ``layout`` for the new files) and carries it out (``apply``), so that a
kill at any step is finished by the next repair.
"""
