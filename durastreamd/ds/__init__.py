"""``ds``, the command for everybody: streams of a server, over HTTP, HTTPS and unix sockets.

``dsadmin`` works on the files of a data directory; ``ds`` needs only a URL and a token. It is laid
out as its manual page: ``cli`` has the list of commands, ``server`` says which server and what its
refusals mean. ``manage`` makes and ends streams, ``look`` lists and describes them, ``append`` and
``pipe`` write, ``cat`` and ``tail`` read, ``sub`` works for subscriptions,
``bench`` loads a server and verifies what it reads.

Below: ``slots`` keeps the state of appends that were interrupted, ``inputs`` takes messages from
arguments, files and standard input, ``output`` writes messages, ``cursor`` keeps a reader's place.
"""
