"""The life of the process: open the data, listen, serve, obey signals, drain, stop.

Start at ``serving.serve``.
"""

from durastreamd.daemon.listening import addresses, check_config
from durastreamd.daemon.serving import Launch, now_ms, serve

__all__ = ["Launch", "addresses", "check_config", "now_ms", "serve"]
