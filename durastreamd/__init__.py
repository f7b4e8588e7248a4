"""durastreamd: a Durable Streams server on plain files.

Read from the bottom: errors, protocol, model and storage, engine, streams. ARCHITECTURE.md has
the map.
"""

__version__ = "0.1.0"  # the one place: packages, programs and the metrics take it from here
