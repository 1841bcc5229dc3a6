"""The way in which names of the target read on the golden side, as the options say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from probe.common import log
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layers import TOP, UNMATCHED, Path, Rules, ScopedRecords, load_rules, side_of
from probe.common.align.name_mapping import (
    ApiEntry,
    NameMapping,
    api_names,
    entries_in_use,
    load_api_entries,
    load_names,
)
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import is_module
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show


def warn_of_items(path: str, names: dict[str, str], calls: Calls) -> None:
    """Warn of names of a data mapping that no item has."""
    mine, theirs = ({item.name for call in side for item in call.items} for side in calls)
    golden = [name for name in names.values() if name != UNMATCHED]
    _warn(path, [name for name in names if name not in mine], len(names), "an item of the target")
    _warn(path, [name for name in golden if name not in theirs], len(golden), "an item of the golden side")


def warn_of_apis(path: str, entries: Collection[ApiEntry], in_use: Collection[str]) -> None:
    """Warn of an API mapping without an entry whose APIs both sides have."""
    if not in_use:
        names = [f"{entry.target}, {entry.golden}" for entry in entries]
        _warn(path, names, len(names), "a pair of APIs that the two sides have")


def warn_of_cells(path: str, names: Collection[str], target: list[KeyedCall]) -> None:
    """Warn of a cell mapping without a name that is part of a module's name."""
    records = (call.record.parsed for call in target if is_module(call.key))
    modules = "\n".join({parsed.base.partition(".")[2] for parsed in records if parsed is not None})
    _warn_if_none(path, list(names), lambda name: name in modules, "part of the name of a module of the target")


def warn_of_layers(path: str, rules: Rules, target: ScopedRecords) -> None:
    """Warn of a layer mapping without a path that a layer of its class has below it."""
    paths = [*target.classes, *(scope for scope, _, _ in target.scopes.values())]
    prefixes = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    layers: dict[str, list[Path]] = {TOP: [()]}
    for layer, class_name in target.classes.items():
        layers.setdefault(class_name, []).append(layer)
    found = {
        f"{class_name}: {'.'.join(below)}": any(layer + below in prefixes for layer in layers.get(class_name, ()))
        for class_name, names in rules.items()
        for below in names
    }
    _warn_if_none(path, list(found), found.__getitem__, "a layer and what is below it in the target")


def _warn_if_none(path: str, names: list[str], fits: Callable[[str], bool], expected: str) -> None:
    if not any(map(fits, names)):
        _warn(path, names, len(names), expected)


def _warn(path: str, unused: list[str], number: int, expected: str) -> None:
    if unused:
        text = f"{path}: {len(unused)} of {number} are not {expected}, the first is {show(unused[0])}."
        log.warning(text, once=f"{path}: not {expected}")


# --- options


BUILT_IN = ""
"""Stands for a mapping file: only what is known without one."""


class MatchOptions(msgspec.Struct, frozen=True):
    """The user's choices for matching.

    Args:
        fuzzy: match without regard to the numbers of calls.
        api_mapping, cell_mapping: files, or `BUILT_IN`.
        data_mapping: a file that names items.
        layer_mapping: a file that names layers, or `BUILT_IN`; it becomes a data mapping.
        pairs: records that belong together whatever else is said, of the target and of the golden side.

    Raises:
        MsprobeException: two of them exclude each other.
    """

    fuzzy: bool = False
    api_mapping: str | None = None
    cell_mapping: str | None = None
    data_mapping: str | None = None
    layer_mapping: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.fuzzy and self.maps_items:
            raise MsprobeException("-fm cannot be combined with -dm or -lm; leave one of them out.")
        if self.data_mapping is not None and self.layer_mapping is not None:
            raise MsprobeException("a layer mapping becomes a data mapping; give one of -dm and -lm.")

    @property
    def maps_names(self) -> bool:
        """True if the user said anything about which names correspond."""
        return self.maps_items or not (self.api_mapping is None and self.cell_mapping is None)

    @property
    def maps_items(self) -> bool:
        """True if items are matched by their whole names."""
        return not (self.data_mapping is None and self.layer_mapping is None)


# --- mapping


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
    warn_of_apis(options.api_mapping, found, entries)
    return apis, entries


def cell_mapping(calls: Calls, options: MatchOptions) -> dict[str, str] | None:
    """The names of cells as ``-cm`` says; ``None`` without the option."""
    if options.cell_mapping is None:
        return None
    if options.cell_mapping == BUILT_IN:
        return {}
    cells = load_names(options.cell_mapping)
    warn_of_cells(options.cell_mapping, cells, calls[0])
    return cells


def item_mapping(calls: Calls, options: MatchOptions) -> dict[str, str]:
    """The names of items as the file of ``-dm`` says."""
    assert options.data_mapping is not None
    items = load_names(options.data_mapping)
    warn_of_items(options.data_mapping, items, calls)
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
    warn_of_layers(options.layer_mapping or "", rules, target)
    return target, golden, rules


def _bases(side: Iterable[KeyedCall]) -> set[str]:
    return {parsed.base for call in side if (parsed := call.record.parsed) is not None}
