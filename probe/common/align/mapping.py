"""How names of the target read on the golden side: as the options say, or where they say nothing as the dumps do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.common.align import mapping_checks
from probe.common.align.calls import Call, Calls
from probe.common.align.layers.module_paths import Side, side_of
from probe.common.align.layers.rules import load_rules, map_items
from probe.common.align.mapping_files import ApiEntry, api_names, load_api_entries, load_names
from probe.common.align.name_mapping import NameMapping, entries_in_use
from probe.common.align.options import BUILT_IN, MatchOptions
from probe.common.dump.frameworks import FRAMEWORKS, of_dump
from probe.common.dump.naming import is_module
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.common.align.layers.proposal import Proposal

# The share of modules that have to be matched by name; below it layers are aligned by values and structure.
_ENOUGH = 0.8

Dumps = tuple[Dump, Dump]
"""Target and golden side."""


@dataclass(frozen=True)
class Correspondence:
    """What corresponds to what, and where that comes from."""

    mapping: NameMapping
    derived: dict[str, str] | None = None
    """What a layer mapping came to, item by item."""
    proposal: Proposal | None = None
    """The layer mapping that was made because none was given and names differ."""


def correspondence(dumps: Dumps, calls: Calls, options: MatchOptions) -> Correspondence:
    """How names of the target read on the golden side.

    Raises:
        MsprobeException: the options do not fit the dumps, or one of their files holds something else.
    """
    if _aligns_layers(dumps, calls, options):
        from probe.common.align.layers.proposal import propose

        sides = _scopes(dumps, calls)
        proposal = propose(*sides)
        aligned = NameMapping(items=map_items(*calls, sides, proposal.rules, values_decide=True))
        return Correspondence(aligned, proposal=proposal if proposal.rules else None)
    target, golden = dumps
    apis: dict[str, str] | None = None
    entries: dict[str, ApiEntry] = {}
    if options.api_mapping is not None:
        check_api_mapping(target)
        apis = _renamed_apis(calls[1], options.compat)
        if options.api_mapping != BUILT_IN:
            found = load_api_entries(options.api_mapping)
            entries = entries_in_use(found, *map(_bases, calls))
            mapping_checks.warn_of_apis(options.api_mapping, found, entries)
    cells: dict[str, str] | None = None
    if options.cell_mapping is not None:
        cells = {}
        if options.cell_mapping != BUILT_IN:
            cells = load_names(options.cell_mapping)
            mapping_checks.warn_of_cells(options.cell_mapping, cells, calls[0])
    items = derived = _derived_items(dumps, calls, options)
    if options.data_mapping is not None:
        items = load_names(options.data_mapping)
        mapping_checks.warn_of_items(options.data_mapping, items, calls)
    root = FRAMEWORKS["torch"].module_root if options.compat else of_dump(golden.framework).module_root
    rename = _across_frameworks(dumps) and not options.compat
    mapping = NameMapping(apis, entries, cells, items=items, parameters=rename, root=root)
    return Correspondence(mapping, derived)


def check_api_mapping(target: Dump) -> None:
    """Whether APIs of `target` can be mapped.

    Raises:
        MsprobeException: they cannot.
    """
    if not of_dump(target.framework).in_msprobe_mindspore:
        raise MsprobeException(
            f"{target.path}: the framework is {target.framework!r}; "
            "an API mapping (-am) is for a target of MindSpore or MSAdapter."
        )


def _derived_items(dumps: Dumps, calls: Calls, options: MatchOptions) -> dict[str, str] | None:
    if options.layer_mapping is None:
        return None
    rules = {} if options.layer_mapping == BUILT_IN else load_rules(options.layer_mapping)
    if (dumps[0].tree is None) != (dumps[1].tree is None):
        raise MsprobeException("a layer mapping (-lm) needs construct.json beside both dumps; one of them has none.")
    sides = _scopes(dumps, calls)
    mapping_checks.warn_of_layers(options.layer_mapping, rules, sides[0])
    return map_items(*calls, sides, rules, compat=options.compat)


def _aligns_layers(dumps: Dumps, calls: Calls, options: MatchOptions) -> bool:
    """Whether no option is given for names that are bound to differ, or do."""
    if options.maps_names or options.compat or dumps[0].level == "debug":
        return False
    return _across_frameworks(dumps) or few_modules_match(*([call.key for call in side] for side in calls))


def _across_frameworks(dumps: Dumps) -> bool:
    return dumps[0].framework != dumps[1].framework


def _scopes(dumps: Dumps, calls: Calls) -> tuple[Side, Side]:
    (target, golden), trees = dumps, (dumps[0].tree, dumps[1].tree)
    if None in trees:
        trees = None, None
    return side_of(calls[0], trees[0], target.framework), side_of(calls[1], trees[1], golden.framework)


def few_modules_match(target: Iterable[str], golden: Iterable[str]) -> bool:
    """Whether both sides' keys have modules, and too few of one have the name and class of one of the other."""
    mine, theirs = (set(filter(is_module, keys)) for keys in (target, golden))
    return bool(mine and theirs) and len(mine & theirs) < _ENOUGH * min(len(mine), len(theirs))


def _bases(side: Iterable[Call]) -> set[str]:
    return {parsed.base for call in side if (parsed := call.record.parsed) is not None}


def _renamed_apis(golden: list[Call], compat: bool) -> dict[str, str]:
    """The table of names, without those that the golden side has too: torch.tanh is also called F.tanh."""
    there = _bases(golden)
    # The reference tool has no entry for it.
    absent = there | {"Functional.tanh"} if compat else there
    return {mine: theirs for mine, theirs in api_names().items() if mine not in absent}
