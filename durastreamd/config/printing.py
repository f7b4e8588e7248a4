"""Settings as TOML: the commented defaults, and what is in force with where it came from."""

import json

from durastreamd.config.loading import LoadedConfig
from durastreamd.config.settings import SETTINGS, Setting, section_defaults

HEADING = """\
# durastreamd.toml: every setting with its default, as `durastreamd --print-defaults` writes it.
# See durastreamd.toml(5). What a file leaves out keeps its default; DURASTREAMD_SECTION__KEY in the
# environment goes over the file, --set section.key=value over both. Times are seconds, sizes bytes.
"""
_COMMENT_AT = 42  # the column of reasons


def defaults_text() -> str:
    """Return every setting with its default and its reason."""
    lines = [HEADING.rstrip()]
    for section, value in section_defaults().items():
        lines += ["", f"# {summary_of(value)}", f"[{section}]"]
        lines += [_line(each, each.default, each.why) for each in in_section(section)]
    return "\n".join(lines) + "\n"


def config_text(loaded: LoadedConfig) -> str:
    """Return every setting as it is in force, with where it came from; secrets are not shown."""
    lines = [f"# The settings in force; the file: {loaded.file or 'none'}."]
    for section in section_defaults():
        lines += ["", f"[{section}]"]
        for each in in_section(section):
            lines.append(_line(each, shown(loaded, each), loaded.source(each.name)))
    return "\n".join(lines) + "\n"


def shown(loaded: LoadedConfig, setting: Setting) -> object:
    """Return the value of a setting that is in force; not that of a secret."""
    value: object = getattr(getattr(loaded.config, setting.section), setting.key)
    return "***" if setting.secret and value else value


def in_section(section: str) -> list[Setting]:
    """Return the settings of a section in their order."""
    return [setting for setting in SETTINGS.values() if setting.section == section]


def summary_of(section: object) -> str:
    """Return what a section is about, in a line."""
    return (section.__doc__ or "").partition("\n")[0]


def toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, str):
        # A JSON string is a TOML string, but for the one control character that JSON lets stand.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def _line(setting: Setting, value: object, comment: str) -> str:
    line = f"{setting.key} = {toml(value)}"
    printable = "".join(each if each.isprintable() else "?" for each in comment)
    return f"{line:<{_COMMENT_AT}}# {printable}" if comment else line
