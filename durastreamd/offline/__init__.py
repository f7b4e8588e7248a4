"""A data directory without a server: for ``dsadmin``, the Spark jobs and whoever comes next.

``opening`` recovers a directory in memory, beside a running daemon, too, and looks again where
files went meanwhile; ``names`` finds the stream a user means.
``verify`` tells whether every file is as it must be: ``scan`` reads files that may be damaged,
``survey`` has what is there and what catalogue and journal claim, ``census`` counts the streams,
``segments`` checks one segment with its index (in ``workers``, on every core; ``folding`` makes a
stream of what its records say, ``subscribed`` the subscriptions), ``verification`` joins them into
``findings``.
``repair`` makes a ``plan`` of what can be saved (``salvage`` per stream, made of ``pieces``;
``witnesses`` has what hurt entries still prove, ``filling`` makes records of bytes without theirs;
``losses`` says what a lost range means, ``settling`` judges all streams by it,
``layout`` lays out the new files, ``left`` has the streams that cannot be judged and are left
alone) and carries it out (``apply``), so that a kill at any step is finished by the next repair.
"""
