"""The settings that decide the results of a pre-check: the first line of its journal.

Lists of names and limits of memory are not among them: a case that crashes the process is put on the black list, and
the run goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from probe._version import __version__
from probe.common.errors import MsprobeException
from probe.precheck.options import PrecheckOptions

NO_RULES = "none"
"""The name of no rules, and so of no tables of another tool."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run.

    Args:
        dump: The path of the dump.
        device: The devices on which cases are run, joined with commas.
        seed: The seed of generated inputs.
        rules: The name of the rules of the drop-in tables; ``none`` if there are none.
        version: The version of msprobe.
    """

    dump: str
    device: str
    seed: int
    rules: str
    version: str

    @classmethod
    def of(cls, path: str, devices: Sequence[str], options: PrecheckOptions) -> RunSettings:
        """The settings of a run that begins now or goes on.

        Args:
            path: The path of the dump.
            devices: The devices that are used.
            options: The other options of the run.
        """
        # Devices share the cases, in whichever order they are given.
        device = ", ".join(sorted(devices))
        # Without tables, nobody asks the rules for rows.
        rules = NO_RULES if options.rules is None else options.rules.name
        return cls(os.path.realpath(path), device, options.seed, rules, __version__)

    def continued_by(self, now: RunSettings) -> RunSettings:
        """The settings of a journal with these settings after a run with the settings `now` has gone on with it.

        Cases that the rules of `now` have not judged are run again, so a run without rules goes on with any, and one
        with rules goes on after one without.

        Raises:
            MsprobeException: a setting differs, so the tables would mix the results of both.
        """
        rules = self.rules if now.rules == NO_RULES else now.rules
        continued = replace(now, rules=rules)
        then = replace(self, rules=rules) if NO_RULES in (self.rules, now.rules) else self
        names = [field.name for field in fields(self)]
        differing = [name for name in names if getattr(then, name) != getattr(continued, name)]
        if differing:
            said = ", ".join(
                f"{name} was {getattr(self, name)} in the earlier run and is {getattr(now, name)} now"
                for name in differing
            )
            raise MsprobeException(
                f"{said}; go on with the same settings, or check the whole dump again without -csv_path."
            )
        return continued

    def plain(self) -> dict[str, Any]:
        """The settings in values of JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, found: Any) -> RunSettings:
        """The settings that `plain` gave.

        Raises:
            ValueError: a setting is missing, unknown, or of another type.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(f"no settings of a run: {found!r}")
        if not all(type(value) is (int if name == "seed" else str) for name, value in found.items()):
            raise ValueError(f"no settings of a run: {found!r}")
        return cls(**found)
