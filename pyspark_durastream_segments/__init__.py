"""Found by Spark through its name: the format ``durastream-segments``."""

from durastreamd.spark.segments.source import SegmentSource as DefaultSource

__all__ = ["DefaultSource"]
