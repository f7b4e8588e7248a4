"""The offline tool, ``dsadmin``, laid out as its manual page is.

``cli`` knows the list of commands and ``place`` which data directory they work on. The commands
stand in four rooms: ``look`` (ls, info, cat, dump, decode-offset, verify), ``mend`` (repair,
reindex, gc), ``carry`` (export, import, backup, restore), ``watch`` (tail, top). A command reads
its arguments, asks and prints; ``findings`` says what those of a verification come to, ``server``
which server is meant and what its refusals mean. What verifies and repairs a directory is
``durastreamd.offline``.
"""
