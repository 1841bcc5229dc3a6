"""Two dumps that can be compared, and how they are."""

from __future__ import annotations

from dataclasses import dataclass

from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException
from probe.compare.options import Options
from probe.compare.rules import Otherwise


@dataclass(frozen=True)
class Comparison:
    """Two dumps, and how they are compared.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """

    target: Dump
    golden: Dump
    options: Options
    before: tuple[str, str] | None = None
    """The paths of the dumps of the step before."""

    def __post_init__(self) -> None:
        for dump in (self.target, self.golden):
            if dump.framework not in BACKEND_OF:
                raise MsprobeException(
                    f'{dump.path}: "framework" is {dump.framework!r}; known: {", ".join(map(repr, BACKEND_OF))}.'
                )
            dump.refuse_circles()
        if self.otherwise is not None:
            self.otherwise.check(self.target, self.golden)
        if self.debug != (self.golden.level == "debug"):
            raise MsprobeException(
                f"{self.target.path} has level {self.target.level!r} and {self.golden.path} level "
                f"{self.golden.level!r}: saved values (debug.json) are compared with saved values only."
            )

    @property
    def across_frameworks(self) -> bool:
        """True if the dumps are of two frameworks."""
        return self.target.framework != self.golden.framework

    @property
    def otherwise(self) -> Otherwise | None:
        """Matching and measuring as another tool does, where that is asked for."""
        return None if self.options.rules is None else self.options.rules.otherwise

    @property
    def debug(self) -> bool:
        """True if these are saved values and not calls."""
        return self.target.level == "debug"
