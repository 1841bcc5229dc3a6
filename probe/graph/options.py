"""The user's choices for a graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from probe.compare.evidence import Options
from probe.graph.manual_pairs import ManualPair
from probe.graph.micro_steps import AUTO
from probe.graph.rules.probe import PROBE_GRAPH
from probe.graph.rules.protocol import GraphRules

HTML, JSON, MODEL_EXPLORER = "html", "json", "model-explorer"
"""The forms that can be written; the database is msProbe's."""


@dataclass(frozen=True)
class GraphOptions:
    """The way in which dumps are shown.

    Args:
        compare: how they are matched and judged.
        pairs: nodes that belong together whatever else is found.
        rules: whose statuses nodes get.
        overflow: look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: beginnings of paths that are not shown; ``auto`` and ``all`` as `Prefixes` says.
        tensor_log: a log line for each pair of tensors, with its metrics.
        progress_log: a log line for each comparison that is done.

    Raises:
        MsprobeException: the rules have no place for the pairs or the options that are given.
    """

    compare: Options = field(default_factory=Options)
    pairs: tuple[ManualPair, ...] = ()
    rules: GraphRules = PROBE_GRAPH
    overflow: bool = False
    micro_step: str = AUTO
    strip_paths: tuple[str, ...] = ()
    tensor_log: bool = False
    progress_log: bool = False

    def __post_init__(self) -> None:
        self.rules.check(self.compare, self.pairs)
