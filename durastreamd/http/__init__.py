"""The connection layer: bytes on sockets become exchanges. The only package that speaks h11 and h2.

The map. A ``server`` accepts on its ``listener``s, wraps each socket as a ``transport`` and has
``connection`` find out which version is spoken: ``h1`` or ``h2``, which both turn requests into the
one ``exchange`` that handlers see (``served`` has what the two versions share of it), and answers
into bytes (``render``). What all connections share
is in their ``context``: sizes, counts and time limits (``limits``), the ``budget`` for bytes in
memory, and the ``loop`` that tells them of time, arrivals and hang-ups. A body is put together by
``gathering``; ``errors`` says why an exchange cannot go on, ``seldom`` logs what happens again and
again. ``outbound`` is the other direction: one request of the server's own. The rest uses
``server.Server``, ``exchange.Exchange`` and ``budget.Budget``; nothing above knows a socket.
"""
