"""What can go wrong in a query or a job, besides what a server, a client or a disk does."""

from durastreamd.errors import DurastreamError


class OptionError(DurastreamError):
    """An option is unknown, malformed or contradicts another; the text says what to do."""


class JavaMissingError(DurastreamError):
    """Spark needs a Java that is not there."""


class DataLossError(DurastreamError):
    """What was to be read is not there; ``failOnDataLoss=false`` goes on without it."""


class CheckpointError(DurastreamError):
    """An offset in the checkpoint is not one of ours."""


class ContentError(DurastreamError):
    """The bytes of a stream are not what the query takes them for."""


class SinkError(DurastreamError):
    """A row or a batch cannot be written; the text says which and why."""


class FoldError(DurastreamError):
    """A user's fold failed, or made something that is no JSON."""
