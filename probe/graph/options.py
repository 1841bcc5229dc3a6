"""What the user chose for a graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from probe.common.errors import MsprobeException
from probe.compare.options import Options
from probe.graph.manual_pairs import ManualPair
from probe.graph.micro_steps import AUTO
from probe.graph.page.columns import MSPROBE, PROBE

HTML, DATABASE, JSON, MODEL_EXPLORER = "html", "db", "json", "model-explorer"
"""What can be written."""
RULES = (PROBE, MSPROBE)


@dataclass(frozen=True)
class GraphOptions:
    """How dumps are shown.

    Args:
        compare: how they are matched and judged.
        pairs: nodes that belong together whatever else is found.
        rules: ``probe``, or ``msprobe`` for the statuses of the reference tool.
        overflow: look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: beginnings of paths that are not shown; ``auto`` and ``all`` as `Prefixes` says.
        tensor_log: a log line for each pair of tensors, with its metrics.
        progress_log: a log line for each comparison that is done.

    Raises:
        MsprobeException: there are no such rules, or they do not go together with the pairs that are given.
    """

    compare: Options = field(default_factory=Options)
    pairs: tuple[ManualPair, ...] = ()
    rules: str = PROBE
    overflow: bool = False
    micro_step: str = AUTO
    strip_paths: tuple[str, ...] = ()
    tensor_log: bool = False
    progress_log: bool = False

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise MsprobeException(f"rules is {self.rules!r}; allowed: {' and '.join(map(repr, RULES))}.")
        if self.rules == MSPROBE and (self.pairs or self.compare.maps_names):
            given = "pairs made by hand" if self.pairs else "a mapping of names"
            raise MsprobeException(
                f"--rules msprobe matches as msProbe does, which {given} would change; leave --pairs and -lm out, or "
                "give --rules probe."
            )
