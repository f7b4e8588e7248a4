"""Streams as Spark data: two formats and the jobs made of them.

``options`` declares every option of both formats, ``errors`` what goes wrong, ``session`` makes a
session that starts fast and finds its Python, ``tasks`` says what a task of a sink knows of itself,
``arrow`` what is used of pyarrow, ``cli`` is ``dspipeline``. ``schema`` says which columns rows may
have, ``rows`` makes record batches of messages for both sources, ``members`` the columns of JSON
messages, ``parsing`` the same one message at a time.

``server`` is the format ``durastream``: ``format`` is what Spark looks up; ``places`` asks a server
which streams there are and how far they go, ``offsets`` writes places into Spark's checkpoint,
``planning`` decides in the driver what a batch reads, ``source`` reads it in tasks, ``answers``
makes messages of the bytes. ``sink`` writes, exactly once: ``values`` says which bytes go where,
``commits`` keeps a batch the same however often it runs, ``appends`` appends.

``segments`` is the format ``durastream-segments``, log files without a server: ``source`` chooses
streams and ranges by its ``options``, ``plan`` finds the bytes of files that hold them, ``read``
makes messages of those.

``jobs`` are the commands of ``dspipeline``, one module each; ``job`` and ``source`` are what they
share, ``files`` is where ``export`` writes, ``plot`` draws for ``stats``.

Under spark-submit this directory is the first where Python looks for modules, so nothing in it may
have the name of one of Python's own.
"""
