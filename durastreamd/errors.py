"""Every exception raised on purpose, named by whose fault it is and what can still be done.

Expected answers (a closed stream, a stale producer) are values, see ``protocol.outcomes``; these
are for "cannot go on".
"""


class DurastreamError(Exception):
    """The root of all of ours; never raised itself."""


class ConfigError(DurastreamError):
    """The operator's: a setting, or a file that one names, does not exist or does not fit."""


class ListenError(DurastreamError):
    """The operator's: an address cannot be listened on, because it is taken or is not here."""


class DataDirectoryError(DurastreamError):
    """The operator's: this directory is missing, foreign or of a version we do not read."""


class DirectoryLockedError(DataDirectoryError):
    """The operator's: another process holds the data directory."""


class UnknownStreamError(DurastreamError):
    """The user's: no stream of this directory is called so."""


class StreamNameError(DurastreamError):
    """The user's: no stream can be called so."""


class PatternError(DurastreamError):
    """The user's: a pattern over names of streams is longer than one may be."""


class StorageError(DurastreamError):
    """The disk's or the file system's fault."""


class WriteFailedError(StorageError):
    """A write did not happen (a full disk, mostly). It was cut back: nothing of it is there."""


class SyncFailedError(StorageError):
    """A sync failed, so what the page cache shows is no longer proof. The process must stop.

    Never retried: the kernel reports the error once and marks the pages clean.
    """


class ReadFailedError(StorageError):
    """The disk did not hand out a file's bytes. It says nothing about them: ask again later."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file} cannot be read: {reason}")
        self.file = file


class CorruptDataError(StorageError):
    """Bytes that were durable do not verify, and it cannot be told whose they were.

    Carries the file and position for the operator; ``dsadmin repair`` is the way out.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file}:{position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


class StreamDamagedError(StorageError):
    """One stream's bytes do not verify; it is refused, every other stream is served."""


class ColdReadError(StorageError):
    """Not an error: the bytes are not in the page cache and the caller said not to wait."""


class LongReadError(StorageError):
    """Not an error: the job would hold the event loop too long, and belongs in a thread."""


class StreamStoppedError(DurastreamError):
    """The server is going down and has not begun with this: nothing of it is stored, for certain.

    The caller may ask again.
    """


class OutcomeUnknownError(DurastreamError):
    """The server went down while this was being made durable: it may be there after the restart.

    Never answered as if it were refused: who repeats what was stored has it twice.
    """


class OverloadedError(DurastreamError):
    """A bound was reached; the caller should come back a little later."""
