"""The format ``durastream``: streams of a server, read and written over HTTP."""
