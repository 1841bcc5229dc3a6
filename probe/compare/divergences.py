"""The end of two compared runs, and their divergence: the last part of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from probe.common.align.calls import Calls
from probe.common.align.counterparts import CallPair, table
from probe.common.align.one_sided import LEFT_OUT
from probe.common.dump.layout import step_and_rank
from probe.common.dump.levels import differ
from probe.common.dump.reading.dump import Dump
from probe.common.environment import files as environment_files
from probe.common.environment.modules import settings_at
from probe.common.environment.products import product_roundoff
from probe.compare.answers.bare_names import are_of_two_programs, untold
from probe.compare.answers.reordered import with_known_order
from probe.compare.coverage import coverage
from probe.compare.divergence.aligned_calls import AlignedCall, Trees
from probe.compare.divergence.judged_calls import JudgedCall
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.search import unexplained
from probe.compare.divergence.settings import with_settings
from probe.compare.divergence.truncation import truncations
from probe.compare.divergence.two_programs.batching import batch_in_parts
from probe.compare.divergence.two_programs.regions import Regions
from probe.compare.pairing import pairing
from probe.compare.result import GOLDEN, TARGET, ComparisonResult, Divergence, Mode
from probe.compare.rows.matching import Matched
from probe.compare.two_dumps import Comparison


class SeenCalls(NamedTuple):
    """The calls on the way to a divergence, or to the end without one, as they were seen."""

    aligned: Sequence[AlignedCall] = ()
    """The calls side by side, as far as both sides can have made them; none of saved values."""
    judged: Sequence[JudgedCall] = ()
    """The findings on each pair, in the order in which they were judged, if they were asked for."""


def add_divergence(
    comparison: Comparison, both: Calls, matched: Matched, result: ComparisonResult, keeps_judged: bool = False
) -> SeenCalls:
    """Say in `result`, which has all rows, where each of the runs ends, and where they diverge."""
    target, golden, options = comparison.target, comparison.golden, comparison.options
    result.levels = target.level, golden.level
    result.truncations = truncations(*both, result.rows, result.levels, (target, golden))
    if comparison.debug:
        return SeenCalls()
    result.without_tree = [side for side, dump in ((TARGET, target), (GOLDEN, golden)) if dump.tree is None]
    pairs = [pair for pair in matched.pairs if pair.rows and pair.how not in LEFT_OUT]
    trees: Trees = (target.tree, golden.tree)
    if not all(trees) or (differ(result.levels) and "L1" in result.levels):
        trees = None, None
    by_hand = dict(options.pairs)
    aligned = pairs if matched.same_names else [pair for pair in pairs if pair.record is not None]
    _add_coverage(comparison, pairs, trees, result, matched.aligned)
    regions = None
    if matched.aligned and not comparison.across_frameworks:
        regions = Regions(table(pairs), [call.record.name for call in both[1]], trees)
    level = "L0" if "L0" in result.levels else result.levels[0] or ""
    environments = [environment_files.of_record_file(path) for path in (target.path, golden.path)]
    mine, theirs = (
        settings_at(environment, step_and_rank(path)[0])
        for environment, path in zip(environments, (target.path, golden.path))
    )
    # Rows after the fifth divergence have results too.
    everything = options.all_divergences or not options.rules.is_by_record
    runs = Runs(
        aligned,
        result.mode,
        level,
        trees,
        matched.same_names,
        comparison.across_frameworks,
        before=comparison.before,
        everything=everything,
        keeps_judged=keeps_judged,
        regions=regions,
        product_roundoff=product_roundoff(environments),
        settings=(mine, theirs),
        with_golden_only=None if matched.same_names else pairs,
    )
    judged = set_divergence(result, runs)
    if result.divergence is not None:
        parts = batch_in_parts(result.divergence.first, result.rows)
        if parts is not None:
            result.divergence, result.undecided = None, [parts, *result.undecided]
    chosen = options.maps_names or by_hand
    if result.divergence is not None and level == "L1" and matched.same_names and not by_hand:
        _take_back_by_bare_names(result, runs)
    if result.coverage.is_of_two_models and not chosen:
        result.divergence = None
    if result.divergence is not None and result.mode is Mode.TENSOR:
        first, *suspects = (
            with_known_order(each, result.rows, target, golden)
            for each in (result.divergence.first, *result.divergence.suspects)
        )
        result.divergence = replace(result.divergence, first=first, suspects=suspects)
    if result.divergence is not None and not matched.same_names:
        result.divergence = _with_settings(result.divergence, target, golden)
    return SeenCalls(aligned, judged)


def _take_back_by_bare_names(result: ComparisonResult, runs: Runs) -> None:
    """Say that nobody can tell, where calls of two programs were paired by the names of functions alone."""
    if result.divergence is not None and are_of_two_programs(runs.made):
        result.undecided = [untold(result.divergence.first), *result.undecided]
        result.divergence = None


def _add_coverage(
    comparison: Comparison, pairs: Sequence[CallPair], trees: Trees, result: ComparisonResult, by_layers: bool
) -> None:
    """Say in `result` how much was compared, and how calls were paired."""
    result.coverage = coverage(pairs, trees)
    result.pairing = pairing([(pair.record, pair.golden_record) for pair in pairs], comparison.options, by_layers)


def set_divergence(result: ComparisonResult, runs: Runs) -> list[JudgedCall]:
    """Say in `result`, which has mode and stacks, where the runs diverge; returns what was found of each pair."""
    found = unexplained(runs)
    result.with_effect, result.without_effect = found.with_effect, found.without_effect
    result.undecided, result.carried = found.undecided, runs.parameters.carried()
    if found.diverged:
        first, *suspects = found.diverged
        stack = (result.stacks or {}).get(first.record, [])
        golden_stack = (result.golden_stacks or {}).get(first.golden_record, [])
        result.divergence = Divergence(first, stack, golden_stack, suspects, found.is_complete)
    return found.judged


def _with_settings(divergence: Divergence, target: Dump, golden: Dump) -> Divergence:
    first, *suspects = with_settings([divergence.first, *divergence.suspects], target, golden)
    return replace(divergence, first=first, suspects=suspects)
