"""The items of two dumps that belong together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from probe.common.align.by_name import by_name, with_pairs, without
from probe.common.align.call_order import align
from probe.common.align.calls import Calls, KeyedCall, calls
from probe.common.align.fuzzy import by_kind
from probe.common.align.layers.siblings import Renumbered, renumbered
from probe.common.align.mapping import correspondence
from probe.common.align.row import Row
from probe.common.dump.reading.sources import Tree
from probe.common.errors import MsprobeException
from probe.compare.divergence.aligned_calls import Trees
from probe.compare.divergence.marks import MarkedRecords, Marks, marks
from probe.compare.result import Mode
from probe.compare.two_dumps import Comparison

if TYPE_CHECKING:
    from probe.common.align.layers.proposal import Proposal


@dataclass(frozen=True)
class Matched:
    """The counterparts in two dumps."""

    rows: list[Row]
    same_names: bool
    """True if both sides use the same names for the same things."""
    derived: dict[str, str] | None = None
    """The data mapping that a layer mapping became, item by item."""
    proposal: Proposal | None = None
    """The layer mapping that was made because none was given and names differ."""
    moved: Renumbered = field(default_factory=Renumbered)
    """Layers whose numbers have moved."""
    aligned: bool = False
    """True if layers were aligned by values and structure, whether or not they have the same names."""


def flattened(comparison: Comparison) -> Calls:
    """The calls of both dumps with their items."""
    options = comparison.options
    renumber = not comparison.debug and not options.fuzzy
    renumber_target = renumber and (comparison.otherwise is None or comparison.otherwise.renumbers_target(options))
    return calls(comparison.target, comparison.golden, (renumber_target, renumber))


def mode_of(comparison: Comparison, both: Calls, values: bool) -> Mode:
    """The quantities by which two dumps are compared.

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
        raise MsprobeException(f'{target.path}: "task" is {target.task!r}; allowed: "statistics" and "tensor".')
    with_checksums = [has_checksum(side) for side in both]
    if with_checksums[0] != with_checksums[1]:
        has, lacks = (target, golden) if with_checksums[0] else (golden, target)
        raise MsprobeException(
            f"{has.path} holds checksums and {lacks.path} does not; collect both with the same summary_mode."
        )
    return Mode.CHECKSUM if with_checksums[0] else Mode.STATISTICS


def has_checksum(side: Iterable[KeyedCall]) -> bool:
    """True if an item of these calls has one: then dumps are compared by their checksums."""
    return any(item.md5 is not None for call in side for item in call.items)


def match(comparison: Comparison, both: Calls) -> Matched:
    """Pair the items of the calls of both dumps."""
    options = comparison.options
    if comparison.otherwise is not None:
        found, items = comparison.otherwise.match((comparison.target, comparison.golden), both, options)
        return Matched(found, _has_same_names(comparison), items)
    derived = proposal = None
    aligned = False
    rest = without(both, options.pairs) if options.pairs else both
    moved = _moved_layers(comparison, both)
    if moved:
        rest = _with_numbers_of_golden(comparison, rest, moved)
    if options.fuzzy:
        rows = list(by_kind(*rest, *_trees_and_marks(comparison, rest, moved)))
    else:
        names = correspondence((comparison.target, comparison.golden), rest, options)
        derived, proposal, aligned = names.derived, names.proposal, names.aligned
        rows = by_name(*rest, names.mapping)
    if options.pairs:
        rows = with_pairs(rows, both, options.pairs, comparison.across_frameworks)
    return Matched(rows, _has_same_names(comparison) and not aligned, derived, proposal, moved, aligned)


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
    """The calls of both sides, those of the target with the keys of what they correspond to by module and order."""
    target, golden = both
    if comparison.options.fuzzy:
        return [call._replace(key=moved.record(call.key)) for call in target], golden
    trees = comparison.target.tree, comparison.golden.tree
    names = [call.record.name for call in target], [call.record.name for call in golden]
    aligned = align(*names, trees, marks(*_sides(both, trees, moved)), moved.record)
    there = {call.record.name: call.key for call in golden}
    keys = {record: there[other] for record, other in aligned if record is not None and other is not None}
    # An item without a counterpart has no key of the golden side.
    return [call._replace(key=keys.get(call.record.name, f"+{call.key}")) for call in target], golden


def _trees_and_marks(comparison: Comparison, both: Calls, moved: Renumbered) -> tuple[Trees, tuple[Marks, Marks]]:
    """The call trees, and what tells calls outside of modules from each other."""
    tree: Tree | None = comparison.target.tree
    golden_tree = comparison.golden.tree
    target, golden = _sides(both, (tree, golden_tree), moved)
    if tree is not None and moved:
        tree = {name: around and moved.record(around) for name, around in tree.items()}
    return (tree, golden_tree), marks(target, golden)


def _sides(both: Calls, trees: Trees, moved: Renumbered) -> tuple[MarkedRecords, MarkedRecords]:
    target, golden = (
        MarkedRecords([call.record.name for call in side], {call.record.name: call.items for call in side}, tree)
        for side, tree in zip(both, trees)
    )
    return replace(target, moved=moved), golden
