"""The items of two calls that correspond.

By the part of the name that follows the record. Where that differs, by keyword and position, and between two programs
by what tensors hold and by their size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from probe.common.align.calls import KeyedCall, Row
from probe.common.align.name_mapping import PARAMETER_NAMES, NameMapping, setting_name
from probe.common.align.operations import arguments_of, operation
from probe.common.dump.naming import is_backward, is_module, parse
from probe.common.dump.reading.records import INPUT, Item
from probe.common.numerics.error_bounds import extent

if TYPE_CHECKING:
    from probe.common.align.contents import Contents

Items = dict[str, Item]
"""Items by what follows the record in their names."""
Way = Callable[[str, Item], "Hashable | None"]
"""A property that two corresponding items share; ``None`` of an item that is not looked at."""


def rows_of(
    call: KeyedCall, other: KeyedCall, frameworks: tuple[str, str], contents: Contents | None = None
) -> list[Row]:
    """The items of two calls side by side: those of the target in order, then those of the golden side alone.

    Args:
        call, other: calls that correspond.
        frameworks: the frameworks of both runs.
        contents: the contents of the tensors of two programs; ``None`` of one program, in which names say it all.
    """
    name, golden_name = call.record.name, other.record.name
    start, other_start = len(name), len(golden_name)
    if contents is None and _have_same_names(call, other):
        return list(map(Row, repeat(name), call.items, other.items, repeat(golden_name)))
    mine = {item.name[start:]: item for item in call.items}
    theirs = {item.name[other_start:]: item for item in other.items}
    found: dict[str, str] = {}
    taken: set[str] = set()
    for way, other_way in _ways(name, golden_name, frameworks, contents):
        for one, another in _equally_many(
            [(suffix, way(suffix, item)) for suffix, item in mine.items() if suffix not in found],
            [(suffix, other_way(suffix, item)) for suffix, item in theirs.items() if suffix not in taken],
        ):
            if contents is None or _may_be_same(mine[one], theirs[another], contents):
                found[one] = another
                taken.add(another)
    rows = [
        Row(name, item, theirs[found[suffix]], golden_name) if suffix in found else Row(name, item, None)
        for suffix, item in mine.items()
    ]
    return rows + [Row(golden_name, None, item, golden_name) for suffix, item in theirs.items() if suffix not in taken]


def _have_same_names(call: KeyedCall, other: KeyedCall) -> bool:
    """True if what follows the record in the names of their items is the same."""
    if call.items is other.items:
        return True
    names, other_names = [item.name for item in call.items], [item.name for item in other.items]
    if call.record.name == other.record.name:
        return names == other_names
    start, other_start = len(call.record.name), len(other.record.name)
    return [name[start:] for name in names] == [name[other_start:] for name in other_names]


def alone(call: KeyedCall, is_target: bool) -> list[Row]:
    """The items of a call that one side alone made."""
    name = call.record.name
    if is_target:
        return [Row(name, item, None) for item in call.items]
    return [Row(name, None, item, name) for item in call.items]


def _ways(
    name: str, golden_name: str, frameworks: tuple[str, str], contents: Contents | None
) -> Iterator[tuple[Way, Way]]:
    """The properties that corresponding items share, the most certain first."""
    if contents is not None:
        yield _content(contents), _content(contents)
        yield _role, _role
    if frameworks[0] != frameworks[1] and is_backward(name) and not is_module(name):
        # The gradients of a function come in another order in another framework.
        yield _shape, _shape
        return
    by_name = _named(name, frameworks[0]), _named(golden_name, frameworks[1])
    by_size = _size, _size
    # A primitive leaves out arguments that a function of the other framework has among its tensors.
    yield from (by_size, by_name) if _is_primitive(name) != _is_primitive(golden_name) else (by_name, by_size)
    if is_module(name):
        # Nothing tells the position of an argument of a module that the other side gives by keyword.
        yield _plain, _plain


def _content(contents: Contents) -> Way:
    def way(suffix: str, item: Item) -> Hashable | None:
        label = contents.label(item)
        return None if label is None else (item.state, label)

    return way


def _role(suffix: str, item: Item) -> Hashable | None:
    """The name that a layer has for the parameter or buffer that a call takes, in PyTorch's words."""
    kind, _, path = (item.made_by or "").partition(":")
    own = path.rpartition(".")[2]
    return (item.state, PARAMETER_NAMES.get(own, own)) if kind in ("parameter", "buffer") else None


def _is_primitive(record: str) -> bool:
    return record.startswith("Primitive.")


def _named(record: str, framework: str) -> Way:
    """The part of the name behind the record, in PyTorch's words, with positions of arguments for their names."""
    parsed = parse(record)
    arguments: dict[str, str] = {}
    if parsed is not None and not parsed.is_module:
        known = arguments_of(operation(parsed.base, framework).name, framework).names_by_index
        arguments = {name: str(index) for index, name in known.items()}

    def way(suffix: str, item: Item) -> Hashable | None:
        state, *parts = suffix.split(".")[1:]
        if state == INPUT and parts:
            parts[0] = setting_name(parts[0])
            parts[0] = arguments.get(parts[0], parts[0])
        elif state.startswith("parameters") and parts:
            parts[-1] = PARAMETER_NAMES.get(parts[-1], parts[-1])
        return (state, *parts)

    return way


def _shape(suffix: str, item: Item) -> Hashable | None:
    return (item.state, item.shape) if item.is_tensor else None


def _size(suffix: str, item: Item) -> Hashable | None:
    """The number of elements of a tensor."""
    return (item.state, extent(item.shape).elements) if item.is_tensor else None


def _plain(suffix: str, item: Item) -> Hashable | None:
    """The plain value of an argument."""
    is_plain = item.state == INPUT and item.dtype is not None and not item.is_tensor
    return repr(item.value) if is_plain else None


def _may_be_same(item: Item, other: Item, contents: Contents) -> bool:
    """True if two items can be one thing in two programs: tensors have as many elements, and results are not elsewhere.

    A layer of one framework may take its activation along, so that it returns what another layer of the other does.
    """
    if not item.is_tensor or not other.is_tensor:
        return item.is_tensor == other.is_tensor or item.state == INPUT
    return extent(item.shape).elements == extent(other.shape).elements and not contents.contradict(item, other)


def _equally_many(
    mine: Sequence[tuple[str, Hashable | None]], theirs: Sequence[tuple[str, Hashable | None]]
) -> Iterator[tuple[str, str]]:
    """The names that correspond: those of one key in order if there are as many on both sides."""
    counts = [Counter(key for _, key in side) for side in (mine, theirs)]
    at: dict[Hashable, list[str]] = {}
    for suffix, key in theirs:
        at.setdefault(key, []).append(suffix)
    for suffix, key in mine:
        if key is not None and counts[0][key] == counts[1][key]:
            yield suffix, at[key].pop(0)


# --- by name


def by_name(target: list[KeyedCall], golden: list[KeyedCall], mapping: NameMapping | None = None) -> list[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together and nothing else.
    """
    mapping = mapping or NameMapping()
    index: dict[str, dict[str, tuple[Item, str]]] = {}
    for call in golden:
        name = call.record.name
        index[call.key] = {item.name[len(name) :]: (item, name) for item in call.items}
    own_names = None if mapping.items is None else _own_names(golden)
    used: set[int] = set()
    rows: list[Row] = []
    for call in target:
        name, key = call.record.name, mapping.record(call.key)
        there = index.get(key, _NOTHING)
        for item in call.items:
            suffix = mapping.suffix(name, item)
            match = None if suffix is None else there.get(suffix)
            if own_names is not None and mapping.items is not None and item.name in mapping.items:
                match = own_names.get(mapping.items[item.name])
            if match is None:
                rows.append(Row(name, item, None))
            else:
                used.add(id(match[0]))
                rows.append(Row(name, item, match[0], match[1]))
    for items in index.values():
        for item, record in items.values():
            if id(item) not in used:
                rows.append(Row(record, None, item, record))
    return rows


_NOTHING: dict[str, tuple[Item, str]] = {}


def _own_names(golden: list[KeyedCall]) -> dict[str, tuple[Item, str]]:
    return {item.name: (item, call.record.name) for call in golden for item in call.items}
