"""What is wrong with a configuration."""


class ConfigError(Exception):
    """The operator's: a setting that does not exist or does not fit."""
