"""``probe.verdict`` and ``probe.graph_diff``: a comparison by the rules of a name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Union

from probe.api.questions.reruns import run_again_for
from probe.api.questions.rules import graph_rules, row_rules
from probe.compare import in_python as comparisons
from probe.compare.in_python import Verdict
from probe.compare.options import Options
from probe.graph import in_python as graphs
from probe.graph.in_python import GraphView
from probe.graph.micro_steps import AUTO
from probe.shards.split import splits_of

Path = Union[str, "os.PathLike[str]"]


def verdict(
    target: Path,
    golden: Path,
    output: Path | None = None,
    options: Options | None = None,
    *,
    rules: str | None = None,
    rank_size: Sequence[int] | None = None,
    tp: Sequence[int] | None = None,
    pp: Sequence[int] | None = None,
    vpp: Sequence[int] | None = None,
    order: Sequence[str] | None = None,
    rerun: bool = False,
    max_memory: float | None = None,
) -> Verdict:
    """Compare two runs as ``msprobe compare`` does.

    Args:
        target: The run under test: dump.json, debug.json, the folder of a process or a step, or a folder of steps.
        golden: The run it is compared with, in the same form.
        output: A folder for the tables; by default none is written.
        options: How to match and measure; `rules` wins over those of the options.
        rules: Whose rules give rows their results: ``msprobe-documented`` (default), ``msprobe`` or ``probe``. The
            variable ``MSPROBE_RULES`` is the default.
        rank_size: How many ranks target and golden run have, if one or both are split; their ranks are merged then.
        tp, pp, vpp, order: How each is split, as the flags of these names say; `tp` and `pp` go with `rank_size`.
        rerun: Run the first five calls that diverge again on the golden run's inputs, with dumps of ``tensor``.
        max_memory: GB that such a call may take; ``None`` for a quarter of the machine's memory.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> print(probe.verdict("run_a", "run_b"))  # doctest: +SKIP
        >>> print(probe.verdict("split", "whole", rank_size=(4, 1), tp=(2, 1), pp=(2, 1)))  # doctest: +SKIP
    """
    asked = replace(options or Options(), rules=row_rules(rules))
    splits = splits_of(2, {"rank_size": rank_size, "tp": tp, "pp": pp, "vpp": vpp, "order": order})
    run_again = run_again_for(target, golden, splits, max_memory) if rerun else None
    return comparisons.verdict(target, golden, output, asked, splits, run_again)


def graph_diff(
    target: Path | Sequence[Path],
    golden: Path | Sequence[Path] | None = None,
    options: Options | None = None,
    *,
    pairs: Path | None = None,
    rules: str | None = None,
    overflow: bool = False,
    micro_step: str | int = AUTO,
    strip_paths: Sequence[str] = (),
) -> GraphView:
    """Show dumps as graphs as ``msprobe graph_visualize`` does.

    Args:
        target: The run under test: dump.json, the folder of a process or a step, or a folder of steps; several next to
            one golden run.
        golden: The run it is compared with, in the same form; several next to one target. Without it the graph of one.
        options: How to match and measure; `rules` wins over those of the options.
        pairs: A file of pairs of nodes that belong together.
        rules: Whose statuses nodes get: ``probe`` (default) or ``msprobe``. The variable ``MSPROBE_RULES`` is the
            default.
        overflow: Look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: Beginnings of paths that the page does not show.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> probe.graph_diff("run_a", "run_b").to_html("graph.html")  # doctest: +SKIP
        'graph.html'
    """
    of_nodes, of_rows = graph_rules(rules)
    asked = replace(options or Options(), rules=of_rows)
    return graphs.graph_diff(
        target, golden, asked, pairs=pairs, rules=of_nodes, overflow=overflow, micro_step=micro_step,
        strip_paths=strip_paths,
    )  # fmt: skip
