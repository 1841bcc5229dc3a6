"""Section ``acc_check`` of a configuration file of the debugger, as far as it concerns this command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from probe.common import log
from probe.common.config.fields import Location, parse_path, parse_texts
from probe.common.config.json_file import read_object

SECTION = "acc_check"
_KEYS = ("white_list", "black_list", "error_data_path")


@dataclass(frozen=True)
class PrecheckConfig:
    """The settings of a pre-check in a configuration file."""

    white_list: frozenset[str] = frozenset()
    black_list: frozenset[str] = frozenset()
    error_data: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


def read_config(path: str | None) -> PrecheckConfig:
    """The section of the file at `path`; the defaults without a file, and where it has none.

    Raises:
        FileCheckException: there is no such file.
        MsprobeException: a value is wrong; the message names it and what is allowed.
    """
    if path is None:
        return PrecheckConfig()
    content = read_object(path)
    if SECTION not in content:
        log.warning(f'{path} has no section "{SECTION}" and has no effect here; known in it: {", ".join(_KEYS)}.')
    section = content.get(SECTION, {})
    if not isinstance(section, dict):
        raise Location(path, SECTION).wrong(section, "an object with the settings of this command")
    for name in section:
        if name not in _KEYS:
            log.warning(f'{path}: "{SECTION}.{name}" has no effect here; known: {", ".join(_KEYS)}.')

    def location(name: str) -> Location:
        return Location(path, f"{SECTION}.{name}")

    white, black = (frozenset(parse_texts(section.get(key, []), location(key))) for key in _KEYS[:2])
    error_data = section.get("error_data_path")
    return PrecheckConfig(white, black, None if error_data is None else parse_path(error_data, location(_KEYS[2])))
