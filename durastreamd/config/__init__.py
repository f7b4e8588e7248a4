"""Every setting of the server: what there is, where its value comes from, how it is shown.

Defaults, below the file, below the environment, below the command line. Read ``settings`` for what
there is; a section is a dataclass, a setting one of its fields, annotated with its reason, and all
else (the shipped file, the manual page, the checks) follows from that.
"""

from durastreamd.config.loading import LoadedConfig, find_file, load, read
from durastreamd.config.printing import config_text, defaults_text
from durastreamd.config.settings import (
    SETTINGS,
    Config,
    LogOptions,
    ServerOptions,
    Setting,
    TlsOptions,
)
from durastreamd.errors import ConfigError

__all__ = [
    "SETTINGS",
    "Config",
    "ConfigError",
    "LoadedConfig",
    "LogOptions",
    "ServerOptions",
    "Setting",
    "TlsOptions",
    "config_text",
    "defaults_text",
    "find_file",
    "load",
    "read",
]
