"""The way in which names of the target read on the golden side: as the options say, or where they say nothing as the
dumps do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.common.align import mapping_checks
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layers.module_paths import ScopedRecords, side_of
from probe.common.align.layers.rules import load_rules, map_items
from probe.common.align.mapping_files import ApiEntry, api_names, load_api_entries, load_names
from probe.common.align.name_mapping import NameMapping, entries_in_use
from probe.common.align.options import BUILT_IN, MatchOptions
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import is_module
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import OUTPUT
from probe.common.errors import MsprobeException
from probe.common.numerics.error_bounds import extent

if TYPE_CHECKING:
    from probe.common.align.layers.proposal import Proposal

_FIRST_FORWARD = ".forward.0"
# The share of modules that have to be matched by name; below it layers are aligned by values and structure.
_ENOUGH = 0.8

Dumps = tuple[Dump, Dump]
"""Target and golden side."""


@dataclass(frozen=True)
class Correspondence:
    """The counterparts, and where they come from."""

    mapping: NameMapping
    derived: dict[str, str] | None = None
    """The result of a layer mapping, item by item."""
    proposal: Proposal | None = None
    """The layer mapping that was made because none was given and names differ; ``None`` if no name differs."""
    aligned: bool = False
    """True if layers were aligned by values and structure, because names are not enough."""


def correspondence(dumps: Dumps, calls: Calls, options: MatchOptions) -> Correspondence:
    """The way in which names of the target read on the golden side.

    Raises:
        MsprobeException: the options do not fit the dumps, or one of their files holds something else.
    """
    if _aligns_layers(dumps, calls, options):
        from probe.common.align.layers.proposal import propose

        sides = _scopes(dumps, calls)
        proposal = propose(*sides)
        aligned = NameMapping(items=map_items(*calls, sides, proposal.rules, values_decide=True))
        return Correspondence(aligned, proposal=proposal if proposal.rules else None, aligned=True)
    target, golden = dumps
    apis, entries = api_mapping(target, calls, options)
    cells = cell_mapping(calls, options)
    derived = derived_items(dumps, calls, options)
    items = item_mapping(calls, options) if options.data_mapping is not None else derived
    root = of_dump(golden.framework).module_root
    parameters = _across_frameworks(dumps)
    return Correspondence(NameMapping(apis, entries, cells, items=items, parameters=parameters, root=root), derived)


def api_mapping(
    target: Dump, calls: Calls, options: MatchOptions, without: Collection[str] = ()
) -> tuple[dict[str, str] | None, dict[str, ApiEntry]]:
    """The names of APIs as ``-am`` says: the built-in table and the entries of a file; ``None`` without the option.

    Args:
        target: The dump of the target.
        calls: The calls of both sides.
        options: What the user chose.
        without: Names that the table shall not have.

    Raises:
        MsprobeException: APIs of `target` cannot be mapped, or the file holds something else.
    """
    if options.api_mapping is None:
        return None, {}
    check_api_mapping(target)
    # Without those that the golden side has too: torch.tanh is also called F.tanh.
    there = _bases(calls[1]).union(without)
    apis = {mine: theirs for mine, theirs in api_names().items() if mine not in there}
    if options.api_mapping == BUILT_IN:
        return apis, {}
    found = load_api_entries(options.api_mapping)
    entries = entries_in_use(found, *map(_bases, calls))
    mapping_checks.warn_of_apis(options.api_mapping, found, entries)
    return apis, entries


def cell_mapping(calls: Calls, options: MatchOptions) -> dict[str, str] | None:
    """The names of cells as ``-cm`` says; ``None`` without the option."""
    if options.cell_mapping is None:
        return None
    if options.cell_mapping == BUILT_IN:
        return {}
    cells = load_names(options.cell_mapping)
    mapping_checks.warn_of_cells(options.cell_mapping, cells, calls[0])
    return cells


def item_mapping(calls: Calls, options: MatchOptions) -> dict[str, str]:
    """The names of items as the file of ``-dm`` says."""
    assert options.data_mapping is not None
    items = load_names(options.data_mapping)
    mapping_checks.warn_of_items(options.data_mapping, items, calls)
    return items


def check_api_mapping(target: Dump) -> None:
    """Check that APIs of `target` can be mapped.

    Raises:
        MsprobeException: they cannot.
    """
    if not of_dump(target.framework).in_msprobe_mindspore:
        raise MsprobeException(
            f"{target.path}: the framework is {target.framework!r}; "
            "an API mapping (-am) is for a target of MindSpore or MSAdapter."
        )


def derived_items(
    dumps: Dumps, calls: Calls, options: MatchOptions, by_position: bool = False
) -> dict[str, str] | None:
    """The names of items that a layer mapping (``-lm``) comes to; ``None`` without the option.

    Args:
        by_position: That of `map_items`.
    """
    if options.layer_mapping is None:
        return None
    rules = {} if options.layer_mapping == BUILT_IN else load_rules(options.layer_mapping)
    if (dumps[0].tree is None) != (dumps[1].tree is None):
        raise MsprobeException("a layer mapping (-lm) needs construct.json next to both dumps; one of them has none.")
    sides = _scopes(dumps, calls)
    mapping_checks.warn_of_layers(options.layer_mapping, rules, sides[0])
    return map_items(*calls, sides, rules, by_position=by_position)


def _aligns_layers(dumps: Dumps, calls: Calls, options: MatchOptions) -> bool:
    """True if no option is given for names that are bound to differ, or do."""
    if options.maps_names or dumps[0].level == "debug":
        return False
    if _across_frameworks(dumps) or few_modules_match(*([call.key for call in side] for side in calls)):
        return True
    return have_other_shapes(*calls)


def _across_frameworks(dumps: Dumps) -> bool:
    return dumps[0].framework != dumps[1].framework


def _scopes(dumps: Dumps, calls: Calls) -> tuple[ScopedRecords, ScopedRecords]:
    (target, golden), trees = dumps, (dumps[0].tree, dumps[1].tree)
    if None in trees:
        trees = None, None
    return side_of(calls[0], trees[0], target.framework), side_of(calls[1], trees[1], golden.framework)


def few_modules_match(target: Iterable[str], golden: Iterable[str]) -> bool:
    """True if both sides' keys have modules, and too few of one have the name and class of one of the other."""
    mine, theirs = (set(filter(is_module, keys)) for keys in (target, golden))
    return bool(mine and theirs) and len(mine & theirs) < _ENOUGH * min(len(mine), len(theirs))


def have_other_shapes(target: Iterable[KeyedCall], golden: Iterable[KeyedCall]) -> bool:
    """True if most modules of one name return as many elements on both sides in tensors of other shapes.

    These are two programs for one network, an engine with flat tokens beside a model with batches. Their modules may
    have the same names; calls of one name and number are other calls.
    """
    there = {call.key: call for call in golden if call.record.name.endswith(_FIRST_FORWARD)}
    compared = moved = 0
    for call in target:
        other = there.get(call.key) if is_module(call.key) else None
        if other is None or call.items is other.items:
            continue
        shapes = _result_shape(call), _result_shape(other)
        if None in shapes or extent(shapes[0]).elements != extent(shapes[1]).elements:
            continue
        compared += 1
        moved += shapes[0] != shapes[1]
    return 2 * moved > compared


def _result_shape(call: KeyedCall) -> Shape | None:
    return next((item.shape for item in call.items if item.state == OUTPUT and item.is_tensor), None)


def _bases(side: Iterable[KeyedCall]) -> set[str]:
    return {parsed.base for call in side if (parsed := call.record.parsed) is not None}
