"""One dump against another: items are matched, measured and judged, then the first divergence is searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from probe.common.align.by_name import by_name, with_pairs, without
from probe.common.align.call_order import align
from probe.common.align.calls import Call, Calls, calls
from probe.common.align.fuzzy import by_kind
from probe.common.align.layers.siblings import Renumbered, renumbered
from probe.common.align.mapping import correspondence
from probe.common.align.row import Row
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.errors import MsprobeException
from probe.common.numerics import statistics
from probe.common.numerics.checksums import checksum
from probe.common.numerics.error_bounds import are_empty
from probe.common.numerics.missing import UNSUPPORTED
from probe.common.progress import with_progress
from probe.compare.coverage import count_parameters, coverage
from probe.compare.divergence.aligned_calls import AlignedCall, Trees, aligned_calls
from probe.compare.divergence.judged_calls import JudgedCall
from probe.compare.divergence.marks import Marks, Side, marks
from probe.compare.divergence.overlap import overlap
from probe.compare.divergence.precision import TypePair
from probe.compare.divergence.search import unexplained
from probe.compare.divergence.settings import with_settings
from probe.compare.divergence.truncation import truncations
from probe.compare.options import Options
from probe.compare.output import tables
from probe.compare.pairing import pairing
from probe.compare.result import ComparisonResult, Divergence, Mode
from probe.compare.rules import Otherwise

if TYPE_CHECKING:
    from probe.common.align.layers.proposal import Proposal
    from probe.common.progress import ProgressCallback

NO_MATCH = "warning: No golden data matched."
NO_TARGET = "warning: No target data matched."


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
        if self.otherwise is not None:
            self.otherwise.check(self.target, self.golden)
        if self.debug != (self.golden.level == "debug"):
            raise MsprobeException(
                f"{self.target.path} has level {self.target.level!r} and {self.golden.path} level "
                f"{self.golden.level!r}: saved values (debug.json) are compared with saved values only."
            )

    @property
    def across_frameworks(self) -> bool:
        """Whether the dumps are of two frameworks."""
        return self.target.framework != self.golden.framework

    @property
    def otherwise(self) -> Otherwise | None:
        """Matching and measuring as another tool does, where that is asked for."""
        return self.options.rules.otherwise

    @property
    def debug(self) -> bool:
        """Whether these are saved values and not calls."""
        return self.target.level == "debug"


@dataclass
class Evidence:
    """What a comparison has seen on its way, for who shows more than its result."""

    calls: Calls = field(default_factory=lambda: ([], []))
    """The calls of both sides with their items."""
    aligned: list[AlignedCall] = field(default_factory=list)
    """The calls side by side, as far as both sides can have made them; none of saved values."""
    judged: list[JudgedCall] = field(default_factory=list)
    """What was found of each pair, in the order in which they were judged."""


@dataclass(frozen=True)
class Matched:
    """What belongs together in two dumps."""

    rows: list[Row]
    same_names: bool
    """Whether both sides use the same names for the same things."""
    derived: dict[str, str] | None = None
    """The data mapping that a layer mapping became, item by item."""
    proposal: Proposal | None = None
    """The layer mapping that was made because none was given and names differ."""
    moved: Renumbered = field(default_factory=Renumbered)
    """Layers whose numbers have moved."""


def compare_dumps(
    target: Dump,
    golden: Dump,
    options: Options | None = None,
    *,
    values: bool = True,
    release: bool = False,
    watch: ProgressCallback | None = None,
    before: tuple[str, str] | None = None,
    evidence: Evidence | None = None,
) -> ComparisonResult:
    """Compare two dumps with each other.

    Args:
        target, golden: the dumps.
        options: what the user chose.
        values: compare real data by its values; otherwise by its statistics.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.
        watch: a callback for how far the measuring is.
        before: the paths of the dumps of the step before, which tell of the optimizer's step between.
        evidence: gets what was seen on the way.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """
    comparison = Comparison(target, golden, options or Options(), before)
    both = flattened(comparison)
    for dump in (target, golden) if release else ():
        dump.release()
    mode = mode_of(comparison, both, values)
    matched = match(comparison, both)
    algorithms = measure(comparison, matched.rows, mode, watch)
    # What only the golden side has stands at the end and belongs to no record of the target.
    groups = groupby((row for row in matched.rows if row.target is not None), key=attrgetter("record"))
    judge(comparison, (list(rows) for _, rows in groups), mode)
    stacks = target.stacks, golden.stacks
    result = ComparisonResult(target.path, golden.path, mode, comparison.debug, matched.rows, *stacks)
    result.data_mapping, result.proposal, result.algorithms = matched.derived, matched.proposal, algorithms
    add_divergence(comparison, both, matched.same_names, result, evidence, matched.moved)
    comparison.options.rules.conclude(result)
    return result


# --- match


def flattened(comparison: Comparison) -> Calls:
    """The calls of both dumps with their items."""
    options = comparison.options
    renumber = not comparison.debug and not options.fuzzy
    renumber_target = renumber and (comparison.otherwise is None or comparison.otherwise.renumbers_target(options))
    target = calls(comparison.target, renumber_target)
    return target, calls(comparison.golden, renumber, target)


def mode_of(comparison: Comparison, both: Calls, values: bool) -> Mode:
    """What two dumps are compared by.

    Raises:
        MsprobeException: they hold different things.
    """
    target, golden = comparison.target, comparison.golden
    if target.task != golden.task:
        raise MsprobeException(
            f'{target.path}: "task" is {target.task!r} and in {golden.path} it is {golden.task!r}; '
            "collect both with the same task."
        )
    if target.task == "tensor":
        return Mode.TENSOR if values else Mode.STATISTICS
    if target.task != "statistics":
        raise MsprobeException(
            f'{target.path}: "task" is {target.task!r}; what can be compared is "statistics" and "tensor".'
        )
    with_checksums = [has_checksum(side) for side in both]
    if with_checksums[0] != with_checksums[1]:
        has, lacks = (target, golden) if with_checksums[0] else (golden, target)
        raise MsprobeException(
            f"{has.path} holds checksums and {lacks.path} does not; collect both with the same summary_mode."
        )
    return Mode.CHECKSUM if with_checksums[0] else Mode.STATISTICS


def has_checksum(side: Iterable[Call]) -> bool:
    """Whether an item of these calls has one: then dumps are compared by their checksums."""
    return any(item.md5 is not None for call in side for item in call.items)


def match(comparison: Comparison, both: Calls) -> Matched:
    """Pair the items of the calls of both dumps."""
    options = comparison.options
    if comparison.otherwise is not None:
        found, items = comparison.otherwise.match((comparison.target, comparison.golden), both, options)
        return Matched(found, _has_same_names(comparison), items)
    derived = proposal = None
    rest = without(both, options.pairs) if options.pairs else both
    moved = _moved_layers(comparison, both)
    if moved:
        rest = _with_numbers_of_golden(comparison, rest, moved)
    if options.fuzzy:
        rows = list(by_kind(*rest, *_places_and_marks(comparison, rest, moved)))
    else:
        names = correspondence((comparison.target, comparison.golden), rest, options)
        derived, proposal = names.derived, names.proposal
        rows = list(by_name(*rest, names.mapping))
    if options.pairs:
        rows = with_pairs(rows, both, options.pairs, comparison.across_frameworks)
    return Matched(rows, _has_same_names(comparison) and proposal is None, derived, proposal, moved)


def _has_same_names(comparison: Comparison) -> bool:
    options = comparison.options
    return not (comparison.across_frameworks or options.fuzzy or options.maps_names)


def _moved_layers(comparison: Comparison, both: Calls) -> Renumbered:
    """Layers whose numbers have moved, where names are to be the same on both sides."""
    options = comparison.options
    if comparison.across_frameworks or comparison.debug or options.maps_names:
        return Renumbered()
    return renumbered(both)


def _with_numbers_of_golden(comparison: Comparison, both: Calls, moved: Renumbered) -> Calls:
    """The calls of both sides, those of the target with the keys of what they correspond to by place and order."""
    target, golden = both
    if comparison.options.fuzzy:
        return [call._replace(key=moved.record(call.key)) for call in target], golden
    trees = comparison.target.tree, comparison.golden.tree
    names = [call.record.name for call in target], [call.record.name for call in golden]
    aligned = align(*names, trees, marks(*_sides(both, trees, moved)), moved.record)
    there = {call.record.name: call.key for call in golden}
    keys = {record: there[other] for record, other in aligned if record is not None and other is not None}
    # What has no counterpart has no key that the golden side knows.
    return [call._replace(key=keys.get(call.record.name, f"+{call.key}")) for call in target], golden


def _places_and_marks(comparison: Comparison, both: Calls, moved: Renumbered) -> tuple[Trees, tuple[Marks, Marks]]:
    """The call trees, and what tells calls outside of modules from each other."""
    tree: Tree | None = comparison.target.tree
    golden_tree = comparison.golden.tree
    target, golden = _sides(both, (tree, golden_tree), moved)
    if tree is not None and moved:
        tree = {name: around and moved.record(around) for name, around in tree.items()}
    return (tree, golden_tree), marks(target, golden)


def _sides(both: Calls, trees: Trees, moved: Renumbered) -> tuple[Side, Side]:
    target, golden = (
        Side([call.record.name for call in side], {call.record.name: call.items for call in side}, tree)
        for side, tree in zip(both, trees)
    )
    return replace(target, moved=moved), golden


# --- measure


def measure(
    comparison: Comparison, rows: Sequence[Row], mode: Mode, watch: ProgressCallback | None = None
) -> tuple[str, ...]:
    """Give each row its metrics; returns the columns of the user's own metrics."""
    if mode is not Mode.TENSOR:
        for row in rows if watch is None else with_progress(rows, watch, "items", len(rows)):
            measure_row(comparison, row, mode)
        return ()
    # With numpy, which takes longer to import than most statistics take to compare.
    from probe.common.numerics import user_metrics
    from probe.compare.tensor_rows import Values
    from probe.compare.tensor_transforms import load_post_processing

    options = comparison.options
    transforms = None if options.post_processing is None else load_post_processing(options.post_processing)
    algorithms = tuple(user_metrics.load(options.algorithms, tables.RESERVED))
    ready = Values(comparison.target, comparison.golden, comparison.otherwise, algorithms, transforms).measured(rows)
    for row in ready if watch is None else with_progress(ready, watch, "items", len(rows)):
        measure_row(comparison, row, mode, len(algorithms))
    return tuple(algorithm.column for algorithm in algorithms)


def measure_row(comparison: Comparison, row: Row, mode: Mode, further: int = 0) -> None:
    """Give a row its metrics; of real data those that it has without its values, with `further` of the user's own."""
    target, golden, otherwise = row.target, row.golden, comparison.otherwise
    if target is not None and golden is not None and are_empty(target, golden) and otherwise is None:
        _forget_values(target, golden)
    if mode is Mode.STATISTICS and target is not None and golden is not None:
        row.metrics = (statistics.compare_items if otherwise is None else otherwise.statistics)(target, golden)
        if target.requires_grad != golden.requires_grad:
            row.requires_grad_consistent = _is_requires_grad_consistent(comparison, target, golden)
        return
    if mode is Mode.CHECKSUM:
        row.metrics = (checksum(target), checksum(golden))
    elif target is None or golden is None:
        row.metrics = statistics.UNMATCHED if mode is Mode.STATISTICS else UNSUPPORTED
    if further and len(row.metrics) == len(UNSUPPORTED):
        # What keeps the built-in metrics from being taken keeps these too.
        row.metrics += row.metrics[:1] * further
    if target is None or golden is None or target.requires_grad != golden.requires_grad:
        row.requires_grad_consistent = _is_requires_grad_consistent(comparison, target, golden)
    if target is None:
        row.notes += (NO_TARGET,)
        row.messages, row.result = row.notes, comparison.options.rules.alone
    elif golden is None and (mode is not Mode.CHECKSUM or row.metrics[0] == "N/A"):
        # A missing checksum has a message of its own.
        row.notes += (NO_MATCH,)


def _forget_values(target: Item, golden: Item) -> None:
    """Of tensors without elements some dumps say nothing, others NaN or zero; there is nothing that could differ."""
    for item in (target, golden):
        item.max = item.min = item.mean = item.norm = None
    if target.md5 != golden.md5:
        target.md5 = golden.md5 = None


def _is_requires_grad_consistent(comparison: Comparison, target: Item | None, golden: Item | None) -> bool:
    of_target = None if target is None else target.requires_grad
    of_golden = None if golden is None else golden.requires_grad
    if target is not None and golden is not None and comparison.across_frameworks and comparison.otherwise is None:
        # Of what is no parameter MindSpore says whether it is part of a recorded gradient.
        return target.state != PARAMETERS or None in (of_target, of_golden) or of_target == of_golden
    return of_target == of_golden


# --- judge


def judge(comparison: Comparison, records: Iterable[list[Row]], mode: Mode) -> None:
    """Give the rows of the target their results; they come record by record."""
    rules, across_frameworks = comparison.options.rules, comparison.across_frameworks
    for rows in records:
        rules.judge(rows, mode, across_frameworks)


def add_divergence(
    comparison: Comparison,
    both: Calls,
    same_names: bool,
    result: ComparisonResult,
    evidence: Evidence | None = None,
    moved: Renumbered | None = None,
) -> None:
    """Say in `result`, which has all rows, where each of the runs ends, and where they diverge."""
    if evidence is not None:
        evidence.calls = both
    target, golden = comparison.target, comparison.golden
    result.levels = target.level, golden.level
    result.truncations = truncations(*both, result.rows, result.levels, (target, golden))
    if comparison.debug:
        return
    order = [call.record.name for call in both[1]]
    shared = overlap(result.rows, order, (target.tree, golden.tree), result.levels, result.truncations)
    by_hand = dict(comparison.options.pairs)
    aligned = aligned_calls(shared.rows, shared.golden_order, shared.trees, same_names, by_hand, moved or Renumbered())
    of_golden = (row for row in shared.rows if row.golden is not None)
    golden_records = dict.fromkeys(row.golden_record or row.record for row in of_golden)
    pairs = [(call.record, call.golden_record) for call in aligned]
    result.coverage = coverage(pairs, golden_records, shared.trees, count_parameters(shared.rows), both)
    result.pairing = pairing(pairs, comparison.options, result.proposal is not None)
    # Rows after the fifth divergence have results too.
    everything = comparison.options.all_divergences or not comparison.options.rules.is_by_record
    if evidence is not None:
        evidence.aligned = aligned
    judged = None if evidence is None else evidence.judged
    more = None, comparison.before, everything, comparison.across_frameworks, judged
    set_divergence(result, aligned, shared.level, shared.trees, same_names, *more)
    chosen = comparison.options.maps_names or by_hand
    if result.coverage.is_of_two_models and not chosen:
        result.divergence = None
    if result.divergence is not None and comparison.across_frameworks:
        result.divergence = _with_settings(result.divergence, target, golden)


def set_divergence(
    result: ComparisonResult,
    aligned: list[AlignedCall],
    level: str,
    trees: Trees,
    same_names: bool,
    types: Counter[TypePair] | None = None,
    before: tuple[str, str] | None = None,
    everything: bool = False,
    across_frameworks: bool = False,
    judged: list[JudgedCall] | None = None,
) -> None:
    """Say in `result` where the runs diverge, given the calls that both sides can have made.

    Args:
        result: has the mode and the stacks.
        aligned, level, trees, same_names, types, before, everything, across_frameworks, judged: those of
            `unexplained`.
    """
    search = types, before, everything, across_frameworks, judged
    found = unexplained(aligned, result.mode, level, trees, same_names, *search)
    result.with_effect, result.without_effect = found.with_effect, found.without_effect
    if found.diverged:
        first, *suspects = found.diverged
        stack = (result.stacks or {}).get(first.record, [])
        golden_stack = (result.golden_stacks or {}).get(first.golden_record, [])
        result.divergence = Divergence(first, stack, golden_stack, suspects, found.is_complete)


def _with_settings(divergence: Divergence, target: Dump, golden: Dump) -> Divergence:
    first, *suspects = with_settings([divergence.first, *divergence.suspects], target, golden)
    return replace(divergence, first=first, suspects=suspects)
