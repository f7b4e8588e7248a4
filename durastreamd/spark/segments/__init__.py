"""The format ``durastream-segments``: the log files of a data directory, read without a server."""
