"""The options of `msprobe acc_check`, and its section in a configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from probe.calls.cases import Selection
from probe.common import log
from probe.common.config.fields import Location, parse_path, parse_texts
from probe.common.data_files import read_object
from probe.common.parallel.tasks import Where
from probe.precheck.case_results import CaseRules


@dataclass(frozen=True)
class PrecheckOptions:
    """The options for checking a dump.

    Args:
        output: The folder of the tables; ``None`` for none.
        devices: Where cases are run; several share the work. Empty for the accelerator that is there, else ``cpu``;
            ``recorded`` judges the results of the dump.
        selection: The calls to check.
        rules: Rules of another tool, which judge each case besides ours and write tables of their own; ``None`` for
            none. Without `output` they are not asked.
        resume: A file of an earlier run, whose journal has the cases that are done already.
        error_data: The folder for inputs and results that fail; none are written without.
        seed: The seed of generated inputs, besides the names of the records.
        max_memory: GB that one call may take; one that needs more is not run. ``None`` for a quarter of the machine's
            memory, or less where more than two processes work, so that they take no more than half of it together.
        where: The processes that do it.
    """

    output: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    devices: Sequence[str] = ()
    selection: Selection = field(default_factory=Selection)
    rules: Optional[CaseRules] = None  # noqa: UP045
    resume: Optional[str] = None  # noqa: UP045
    error_data: Optional[str] = None  # noqa: UP045
    seed: int = 1234
    max_memory: Optional[float] = None  # noqa: UP045
    where: Where = field(default_factory=lambda: Where(1))


# --- the section of a configuration file

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
