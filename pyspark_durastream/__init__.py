"""Found by Spark through its name: the format ``durastream``."""

from durastreamd.spark.server.format import DurastreamSource as DefaultSource

__all__ = ["DefaultSource"]
