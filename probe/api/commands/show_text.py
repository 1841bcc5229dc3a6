"""The records and items that ``msprobe show`` is asked for, as text and as JSON, after the first NaN or infinity."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any, NamedTuple, Optional

from probe.common.config.record_filter import api_pattern, class_name, module_paths, module_pattern, record_in
from probe.common.dump import naming
from probe.common.dump.naming import nearest
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import INPUT, Item, shape_text
from probe.common.dump.reading.records import PARAMETERS, Record
from probe.common.dump.reading.selected_items import Condition, number_text, statistics
from probe.common.dump.reading.several_dumps import Run
from probe.common.dump.stack_text import short_frame, users_line
from probe.common.errors import MsprobeException
from probe.overflow.find_overflow import first_in_dump

_BAD, _HEAD, _DIM = "bold red", "bold", "dim"
_NUMBERS = ("Max", "Min", "Mean", "Norm")
_WIDEST_SHAPE = 24
"""Characters of a shape before its column stops to grow; a guess."""
_AT_ONCE = 500
"""Rows whose columns are made as wide as each other; a guess."""
_LONGEST_VALUE = 80
"""Characters of a plain value before it is cut: one line of a terminal."""
_DEEPEST = 100
"""Levels of the module tree that are shown; a guess beyond any known model."""
_EXAMPLES = 6
"""Known names that an error lists; a guess."""


class ShownLine(NamedTuple):
    """A line of text."""

    text: str
    style: str = ""
    counts: bool = False
    """True if it is one of those that a limit counts."""


# --- the records that are asked for


@dataclass(frozen=True)
class Wanted:
    """The records and items that are asked for."""

    module: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """A pattern for paths and classes of modules."""
    api: Optional[str] = None  # noqa: UP045
    """A pattern for names of functions."""
    fits: Optional[Condition] = None  # noqa: UP045
    """The condition for items; all, if none is given."""
    items: bool = False
    """True if each item has its line."""
    makers: bool = False
    """True if items say what made them."""

    @property
    def everything(self) -> bool:
        """True if nothing is left out."""
        return self.module is None and self.api is None and self.fits is None and not self.items

    def records(self, dump: Dump) -> Iterator[Record]:
        """The records of `dump` that are asked for by their names."""
        if self.module is None and self.api is None:
            return iter(dump)
        is_named = self.named(dump)
        return (record for record in dump if is_named(record.name))

    def named(self, dump: Dump) -> Callable[[str], bool]:
        """Predicate that is true of calls of `dump` that are asked for by name."""
        is_inside = (lambda name: True) if self.module is None else _inside(self.module, dump.tree or CallTree())
        is_api = (lambda name: True) if self.api is None else api_pattern(self.api)
        return lambda name: is_api(name) and is_inside(name)


def _inside(wanted: str, tree: CallTree) -> Callable[[str], bool]:
    """Predicate that is true of calls of a module that `wanted` fits, and of calls inside of one."""
    fits = module_pattern(wanted)

    def is_inside(name: str) -> bool:
        for call in (name, *tree.around(name)):
            parsed = naming.parse(call)
            if parsed is not None and parsed.is_module and fits(parsed.base):
                return True
            if call in naming.OUTSIDE_MODULES and fnmatchcase(call, wanted):
                return True
        return False

    return is_inside


def names_there_are(dump: Dump, wanted: Wanted) -> str:
    """The end of a sentence: the names that there are, or those nearest to the ones asked for, when none fits."""
    names = list(dict.fromkeys((*(dump.tree or ()), *(record.name for record in dump))))
    for kind, text, alone in (
        ("module", wanted.module, Wanted(module=wanted.module)),
        ("function", wanted.api, Wanted(api=wanted.api)),
    ):
        if text is not None and not any(map(alone.named(dump), names)):
            return _known_of(kind, text, names)
    given = [part for part in (wanted.module, wanted.api, wanted.fits) if part is not None]
    return "; each option alone may match something" if len(given) > 1 else ""


def _known_of(kind: str, wanted: str, names: Iterable[str]) -> str:
    parsed = [one for one in map(naming.parse, names) if one is not None and one.is_module is (kind == "module")]
    bases = dict.fromkeys(one.base for one in parsed)
    if not bases:
        return f"; no {kind} was recorded"
    known = dict.fromkeys((module_paths(base) or [base])[-1] if kind == "module" else base for base in bases)
    record = naming.parse(record_in(wanted))
    text = wanted if record is None else record.base
    if kind == "module":
        spelled = {part: path for path in known for part in path.split(".") if not part.isdecimal()}
        spelled.update({name: name for base in bases for name in (class_name(base), *module_paths(base))})
        text = text.partition(".")[2] if naming.is_module(text) else text
    else:
        spelled = {name: base for base in bases for name in (base.rpartition(".")[2], base)}
    if near := dict.fromkeys(spelled[name] for name in nearest(text, spelled)):
        return f"; nearest {kind}s: {', '.join(near)}"
    return f"; {kind}s are {', '.join(islice(known, _EXAMPLES))}{', ...' if len(known) > _EXAMPLES else ''}"


# --- text


def lines(opened: Dump | Run, wanted: Wanted, as_tree: bool, with_stacks: bool) -> Iterator[ShownLine]:
    """The content of dumps that is asked for; they are read while it is printed."""
    if isinstance(opened, Dump):
        return dump_lines(opened, wanted, as_tree, with_stacks)
    if wanted.everything and not (as_tree or with_stacks):
        return run_lines(opened)
    return several_dumps_lines(opened, wanted, as_tree, with_stacks)


# --- what is first


class FirstNonfinite(NamedTuple):
    """Position of the first NaN or infinity, or the statement that there is none."""

    text: str
    record: str = ""
    """The record that has it."""


def first_nonfinite(dump: Dump) -> FirstNonfinite:
    """A line on the first NaN or infinity of consequence, by the rule of ``overflow_check``, or that there is none."""
    first = _first(dump)
    if first is not None:
        return _pointer("first NaN" if first[1].has_nan else "first infinity", dump, *first)
    without_consequence = next(dump.nonfinite(), None)
    if without_consequence is not None:
        name = without_consequence[1].name
        meant = f"{name} has one that was meant or left out"
        return FirstNonfinite(f"no NaN and no infinity that has a consequence; {meant}")
    tensors = (item for record in dump for item in dump.items(record) if item.is_tensor)
    if any(item.max is not None for item in tensors):
        return FirstNonfinite("no NaN and no infinity")
    return FirstNonfinite("no statistics were recorded, so a NaN cannot be seen")


def _first(dump: Dump) -> tuple[Record, Item] | None:
    """The first record of ``overflow_check``, and its item that is not finite."""
    if next(dump.nonfinite(), None) is None:
        return None
    finding = first_in_dump(dump)
    if finding is None:
        return None
    record = dump[finding.record]
    items = [item for item in dump.items(record) if item.has_nan or item.has_inf]
    # A bad weight is an item of the module around, and an argument of the call.
    return record, next((item for item in items if item.name == finding.item), items[0])


def _pointer(what: str, dump: Dump, record: Record, item: Item) -> FirstNonfinite:
    text = f"{what}: {item.name}{_extent(item)}"
    module = None if dump.tree is None else dump.tree.module(record.name)
    if module is not None and module != record.name:
        text += f" in {module}"
    if item.state in (INPUT, PARAMETERS):
        return FirstNonfinite(text, record.name)
    given = [one for one in dump.items(record) if one.state in (INPUT, PARAMETERS)]
    plain = [one for one in given if isinstance(one.value, float) and not math.isfinite(one.value)]
    tensors = [one for one in given if one.is_tensor]
    if plain:
        # Such as the infinity that a mask is filled with.
        text += f"; {plain[0].name[len(record.name) + 1 :]} is {plain[0].value}"
    elif tensors and not any(one.has_nan or one.has_inf for one in tensors):
        text += "; all its inputs are finite"
    return FirstNonfinite(text, record.name)


def _extent(item: Item) -> str:
    """Share of a tensor that is not finite, if the dump has it."""
    if item.nonfinite is None or item.shape is None:
        return ""
    text = f"{item.nonfinite} of {math.prod(item.shape)} elements"
    if item.finite_max is not None and item.finite_min is not None:
        text += f", the others from {number_text(item.finite_min)} to {number_text(item.finite_max)}"
    return f" ({text})"


# --- one dump


def dump_lines(dump: Dump, wanted: Wanted, as_tree: bool = False, with_stacks: bool = False) -> Iterator[ShownLine]:
    """One dump: what is first, what it is, and its records.

    Raises:
        MsprobeException: a tree is asked for and there is none.
        DumpFormatError: a record is damaged.
    """
    yield from _head_lines(dump, with_stacks)
    table = _table(dump, wanted, as_tree, with_stacks)
    first = next(table, None)
    if first is None:
        unmatched = f"no record matches{names_there_are(dump, wanted)}"
        yield ShownLine("nothing was recorded" if wanted.everything else unmatched)
    else:
        yield from chain([first], table)


def several_dumps_lines(
    run: Run, wanted: Wanted, as_tree: bool = False, with_stacks: bool = False
) -> Iterator[ShownLine]:
    """The dumps of `run` in which something is asked for, each as `dump_lines` has it."""
    nothing = True
    for dump in run:
        table = _table(dump, wanted, as_tree, with_stacks)
        first = next(table, None)
        if first is not None:
            if not nothing:
                yield ShownLine("")
            nothing = False
            yield from _head_lines(dump, with_stacks)
            yield from chain([first], table)
    if nothing:
        yield ShownLine(f"no record matches in any of {len(run)} dumps{names_there_are(next(iter(run)), wanted)}")


def _head_lines(dump: Dump, with_stacks: bool) -> Iterator[ShownLine]:
    found = first_nonfinite(dump)
    yield ShownLine(found.text, _BAD if found.record else "")
    if stack := _stack(dump, found.record):
        yield ShownLine(f"  line: {short_frame(users_line(stack))}")
    yield ShownLine(f"{dump.path}: {_head(dump)}", _HEAD)
    if with_stacks and dump.stacks is None:
        yield ShownLine("there are no call stacks: stack.json is missing")


def _stack(dump: Dump, record: str) -> list[str]:
    try:
        return (dump.stacks or {}).get(record, []) if record else []
    except MsprobeException:
        # Nobody asked for the stacks: a damaged stack.json is no reason to show nothing.
        return []


def _table(dump: Dump, wanted: Wanted, as_tree: bool, with_stacks: bool) -> Iterator[ShownLine]:
    if as_tree and not dump.tree:
        raise MsprobeException(
            f"{dump.path} has no call tree: construct.json is missing, or empty as at level L1. Leave --tree out."
        )
    # At task "structure" the tree is all that there is.
    rows = _tree_rows(dump, wanted) if as_tree or not len(dump) else _rows(dump, wanted)
    return _aligned(rows, (dump.stacks or {}) if with_stacks else {})


def _head(dump: Dump) -> str:
    # Without the verb, and how many they are is said already.
    died = f", {dump.ending.partition(' of which ')[0].removeprefix('is ')}" if dump.ending else ""
    # Old files do not say everything.
    known = [text for text in (dump.framework, dump.level, dump.task) if text]
    return f"{', '.join(known)}, {len(dump)} records{died}"


class _Row(NamedTuple):
    record: str
    item: Item | None
    depth: int = 0
    ends_record: bool = True
    maker: str | None = None


def _rows(dump: Dump, wanted: Wanted) -> Iterator[_Row]:
    for record in wanted.records(dump):
        yield from _rows_of(dump, record, wanted)


def _tree_rows(dump: Dump, wanted: Wanted) -> Iterator[_Row]:
    """The calls as a tree; what is not asked for is left out, unless something asked for is inside."""
    tree = dump.tree or CallTree()
    found = {record.name: list(_rows_of(dump, record, wanted)) for record in wanted.records(dump)}
    found = {name: rows for name, rows in found.items() if rows}
    if not len(dump) and wanted.fits is None:
        found = {name: [] for name in filter(wanted.named(dump), tree)}
    names = tree.around_any(found) | set(found)
    for depth, name in tree.walk():
        if name in names or wanted.everything:
            for row in found.get(name) or [_Row(name, None)]:
                yield row._replace(depth=depth)
    for name, rows in found.items():
        if name not in tree:
            yield from rows


def _rows_of(dump: Dump, record: Record, wanted: Wanted) -> Iterator[_Row]:
    items = dump.items(record)
    if not wanted.items:
        yield _Row(record.name, _shown(items))
        return
    chosen = [item for item in items if item.dtype is not None and (wanted.fits is None or wanted.fits(item))]
    for number, item in enumerate(chosen, 1):
        yield _Row(record.name, item, ends_record=number == len(chosen), maker=item.made_by if wanted.makers else None)


def _shown(items: Sequence[Item]) -> Item | None:
    """The item that stands for its record: the first that is not finite, outputs first, otherwise the first output."""
    tensors = [item for item in items if item.is_tensor]
    outputs = [item for item in tensors if item.state not in (INPUT, PARAMETERS)]
    bad = (item for item in (*outputs, *tensors) if item.has_nan or item.has_inf)
    return next(bad, None) or next(iter(outputs or tensors), None)


def _aligned(rows: Iterable[_Row], stacks: dict[str, list[str]]) -> Iterator[ShownLine]:
    """The table: numbers, type and shape, and at last the name, which may be long."""
    rows = iter(rows)
    headed = False
    while block := list(islice(rows, _AT_ONCE)):
        cells = [_cells(row) for row in block]
        types, shapes = (max(len(cell[index]) for cell in cells) for index in (4, 5))
        types, shapes = max(types, 8), min(max(shapes, 12), _WIDEST_SHAPE)
        if not headed:
            numbers = " ".join(f"{name:>10}" for name in _NUMBERS)
            yield ShownLine(f"{numbers}  {'type':{types}} {'shape':{shapes}} record and item", _HEAD)
            headed = True
        for row, cell in zip(block, cells):
            numbers = " ".join(f"{text:>10}" for text in cell[:4])
            bad = row.item is not None and (row.item.has_nan or row.item.has_inf)
            text = f"{numbers}  {cell[4]:{types}} {cell[5]:{shapes}} {'  ' * row.depth}{cell[6]}"
            yield ShownLine(text, _BAD if bad else "", counts=True)
            for frame in stacks.get(row.record, ()) if row.ends_record else ():
                yield ShownLine(f"{'':12}{' '.join(frame.split())}", _DIM, counts=True)


def _cells(row: _Row) -> tuple[str, ...]:
    item = row.item
    if item is None:
        return ("", "", "", "", "", "", row.record)
    kind = (item.dtype or "").removeprefix("torch.").removeprefix("<class '").removesuffix("'>")
    item_path = item.name[len(row.record) + 1 :] if item.name.startswith(f"{row.record}.") else ""
    name = f"{row.record}  {item_path}" if item_path else row.record
    if item.is_tensor:
        numbers = tuple(map(number_text, statistics(item)))
        shape = "" if item.shape is None else shape_text(item.shape)
        name = f"{name}  from {row.maker}" if row.maker else name
        return (*numbers, kind, shape, f"{name}  {item.md5}" if item.md5 else name)
    return ("", "", "", "", kind, "", f"{name} = {_cut(str(item.value))}")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


# --- several dumps


def run_lines(run: Run) -> Iterator[ShownLine]:
    """A line for each dump of `run`, and before them the first NaN or infinity that has a consequence.

    Raises:
        MsprobeException: dumps of it cannot be read; their lines say why, and the others have come before.
    """
    lines: list[ShownLine] = []
    firsts: list[tuple[FirstNonfinite, str]] = []
    unreadable = 0
    for folder in run.folders:
        where = os.path.relpath(folder, run.root)
        try:
            dump = read(folder)
            found = first_nonfinite(dump)
        except MsprobeException as error:
            unreadable += 1
            lines.append(ShownLine(f"{where}: {error}", _BAD, counts=True))
            continue
        lines.append(ShownLine(f"{where}: {_head(dump)}; {found.text}", _BAD if found.record else "", counts=True))
        if found.record:
            firsts.append((found, where))
    if firsts:
        first, where = firsts[0]
        yield ShownLine(f"{where}: {first.text}", _BAD)
    elif not unreadable:
        yield ShownLine("no NaN and no infinity where statistics were recorded")
    shown = os.path.join(run.path, firsts[0][1] if firsts else os.path.relpath(run.folders[0], run.root))
    yield ShownLine(f"{run.path}: {len(run)} dumps; next: msprobe show {shlex.quote(shown)}", _HEAD)
    yield from lines
    if unreadable:
        raise MsprobeException(f"{unreadable} of {len(run)} dumps of {run.path} could not be read.")


# --- JSON


def dump_as_json(dump: Dump, wanted: Wanted, with_stacks: bool = False, limit: int = 0) -> dict[str, Any]:
    """One dump as values that JSON has; NaN and the infinities are the texts ``NaN``, ``Infinity``, ``-Infinity``.

    Args:
        limit: how many records, 0 for all.
    """
    stacks = (dump.stacks or {}) if with_stacks else None
    tree = dump.tree or CallTree()
    first = _first(dump)
    records = []
    for record in wanted.records(dump):
        items = [item for item in dump.items(record) if wanted.fits is None or wanted.fits(item)]
        if items or wanted.fits is None:
            found: dict[str, Any] = {"name": record.name, "inside": tree.get(record.name)}
            found["items"] = [_item_json(item, wanted.makers) for item in items]
            if stacks is not None:
                found["stack"] = stacks.get(record.name, [])
            records.append(found)
        if limit and len(records) == limit:
            break
    return {
        "path": dump.path,
        "step": dump.step,
        "rank": dump.rank,
        "framework": dump.framework,
        "task": dump.task,
        "level": dump.level,
        "died": dump.died,
        "records_in_dump": len(dump),
        "first_nan": None if first is None or not first[1].has_nan else _item_json(first[1]),
        "first_infinity": None if first is None or first[1].has_nan else _item_json(first[1]),
        "records": records,
    }


def _item_json(item: Item, with_sketch: bool = False) -> dict[str, Any]:
    sketch = item.sketch if with_sketch else None
    sums = None if sketch is None else sketch.sums.tolist()
    numbers = {name: json_safe(value) for name, value in zip(_NUMBERS, _recorded(item))}
    if item.nonfinite is not None:
        numbers.update({"Nonfinite": item.nonfinite, "Finite Max": item.finite_max, "Finite Min": item.finite_min})
    return {
        "name": item.name,
        "state": item.state,
        "dtype": item.dtype,
        "shape": item.shape,
        **numbers,
        "requires_grad": item.requires_grad,
        "md5": item.md5,
        "value": json_safe(item.value),
        "data_name": item.data_name,
        **({"made_by": item.made_by, "sketch": sums} if with_sketch else {}),
    }


def _recorded(item: Item) -> tuple[Any, ...]:
    return (item.max, item.min, item.mean, item.norm) if item.is_tensor else (None,) * 4


def json_safe(value: Any, depth: int = 0) -> Any:
    """`value` as JSON has it; of what a damaged file nests deeper than anyone can read, nothing."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (list, tuple)):
        return [json_safe(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {key: json_safe(part, depth + 1) for key, part in value.items()}
    return value
