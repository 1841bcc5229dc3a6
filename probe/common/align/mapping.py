"""The way in which names of the target read on the golden side, as the options say."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from probe.common.align import mapping_checks
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layer_names import Rules, ScopedRecords, load_rules, side_of
from probe.common.align.mapping_files import ApiEntry, api_names, load_api_entries, load_names
from probe.common.align.name_mapping import NameMapping, entries_in_use
from probe.common.align.options import BUILT_IN, MatchOptions
from probe.common.dump.frameworks import of_dump
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException

Dumps = tuple[Dump, Dump]
"""Target and golden side."""


def name_mapping(dumps: Dumps, calls: Calls, options: MatchOptions) -> NameMapping:
    """The way in which names of the target read on the golden side, as ``-am``, ``-cm`` and ``-dm`` say.

    Raises:
        MsprobeException: the options do not fit the dumps, or one of their files holds something else.
    """
    target, golden = dumps
    apis, entries = api_mapping(target, calls, options)
    cells = cell_mapping(calls, options)
    items = item_mapping(calls, options) if options.data_mapping is not None else None
    root = of_dump(golden.framework).module_root
    return NameMapping(apis, entries, cells, items, target.framework != golden.framework, root)


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


LayerMapping = tuple[ScopedRecords, ScopedRecords, Rules]
"""The records of both sides by where they stand, and what is called differently."""


def layer_mapping(dumps: Dumps, calls: Calls, options: MatchOptions) -> LayerMapping:
    """The places of all records, and their golden names as a layer mapping (``-lm``) says.

    Raises:
        MsprobeException: the option does not fit the dumps, or its file holds something else.
    """
    rules = {} if options.layer_mapping in (None, BUILT_IN) else load_rules(options.layer_mapping or "")
    trees = dumps[0].tree, dumps[1].tree
    if (trees[0] is None) != (trees[1] is None):
        raise MsprobeException("a layer mapping (-lm) needs construct.json next to both dumps; one of them has none.")
    target, golden = (side_of(side, tree, dump.framework) for side, tree, dump in zip(calls, trees, dumps))
    mapping_checks.warn_of_layers(options.layer_mapping or "", rules, target)
    return target, golden, rules


def _bases(side: Iterable[KeyedCall]) -> set[str]:
    return {parsed.base for call in side if (parsed := call.record.parsed) is not None}
