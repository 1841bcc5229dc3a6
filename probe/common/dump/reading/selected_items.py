"""Items chosen from dumps as a sequence or a table, and the conditions that choose them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

from probe.common import harmless_text
from probe.common.dump import naming
from probe.common.dump.reading.items import Item, shape_text
from probe.common.errors import MissingDependency, MsprobeException
from probe.common.harmless_text import show
from probe.common.numerics.formats import format_of

FRAME_LIBRARIES = ("polars", "pandas")
"""The libraries that `Selection.to_frame` serves; the first that is installed, unless one is named."""
_SHOWN = 50
"""Rows in a table for notebooks; a guess."""
_LONGEST_VALUE = 80
"""Characters of a value in it; a guess."""
# Of a column of whole numbers.
_LARGEST = 2**63 - 1


class Selected(NamedTuple):
    """An item and where it stands."""

    step: int | None
    rank: int | None
    process: str | None
    """``proc123`` of a process without a rank."""
    mode: str | None
    """``graph`` or ``pynative``, where MindSpore wrote folders of these names."""
    record: str
    module: str | None
    """The innermost module around the call, or the call if it is one."""
    item: Item

    @property
    def path(self) -> str:
        """The place of the item in its record: ``input.0``, ``parameters.weight``."""
        return self.item.name[len(self.record) + 1 :] if self.item.name != self.record else self.item.state


class Selection(Sequence[Item]):
    """Items in the order of their dumps."""

    def __init__(self, rows: Iterable[Selected]) -> None:
        self.rows = list(rows)
        """The items with step, rank, record and module."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Selection: ...

    def __getitem__(self, index: int | slice) -> Item | Selection:
        return Selection(self.rows[index]) if isinstance(index, slice) else self.rows[index].item

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        names = ", ".join(row.item.name for row in self.rows[:3])
        return f"<{_count(self)}{f': {names}' if names else ''}{', ...' if len(self) > 3 else ''}>"

    def to_frame(self, library: str | None = None) -> Any:
        """The items as a data frame, a row for each.

        Columns: ``step``, ``rank`` (whole numbers, missing where the path does not say); ``process`` (``proc123`` of a
        process without a rank); ``mode`` (``graph`` or ``pynative`` of MindSpore); ``record``; ``base``, ``number``,
        ``direction`` (the name of the record taken apart); ``module`` (the innermost around the call, as
        ``Module.layers.0.fc.Linear``); ``item`` (``input.0``); ``state``; ``dtype``; ``shape`` (a text, ``[2, 3]``);
        ``elements``; ``max``, ``min``, ``mean``, ``norm`` (numbers, of tensors only); ``requires_grad``; ``md5``;
        ``value`` (the text of a plain value); ``data_name``.

        Args:
            library: ``polars`` or ``pandas``; by default the first of them that is installed.

        Raises:
            MissingDependency: it is not installed.
        """
        chosen = installed_library(library)
        columns = {column: [take(row) for row in self.rows] for column, take in _COLUMNS.items()}
        found = importlib.import_module(chosen)
        if chosen == "polars":
            types = {column: getattr(found, _POLARS.get(column, "String")) for column in columns}
            return found.DataFrame(columns, schema=types)
        types = {column: _PANDAS.get(column, "object") for column in columns}
        return found.DataFrame({name: found.Series(values, dtype=types[name]) for name, values in columns.items()})

    def _repr_html_(self) -> str:
        more = len(self) - _SHOWN
        rest = harmless_text.paragraph(f"and {more} more; to_frame() has them all") if more > 0 else ""
        return harmless_text.paragraph(_count(self)) + self[:_SHOWN].html_rows() + rest

    def html_rows(self) -> str:
        """All items as a table for notebooks."""
        where = self._columns_of_processes()
        columns = (*where, "item", "type", "shape", "Max", "Min", "Mean", "Norm", "value")
        rows = [(*(getattr(row, column) for column in where), *_shown(row.item)) for row in self.rows]
        return harmless_text.table(columns, rows)

    def _columns_of_processes(self) -> list[str]:
        """The columns that tell the items of several dumps from each other; none where they are of one."""
        if len({(row.step, row.rank, row.process, row.mode) for row in self.rows}) < 2:
            return []
        of_folders = [column for column in ("process", "mode") if any(getattr(row, column) for row in self.rows)]
        return ["step", "rank", *of_folders]


def _count(items: Selection) -> str:
    return "1 item" if len(items) == 1 else f"{len(items)} items"


def installed_library(library: str | None) -> str:
    """The library that makes a frame: `library`, or else the first of `FRAME_LIBRARIES` that is installed.

    Raises:
        MsprobeException: there is no such library.
        MissingDependency: it is not installed.
    """
    if library is not None and library not in FRAME_LIBRARIES:
        raise MsprobeException(f"{library!r} is no library for data frames; allowed: {', '.join(FRAME_LIBRARIES)}.")
    wanted = FRAME_LIBRARIES if library is None else (library,)
    for name in wanted:
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingDependency(f"a data frame needs {' or '.join(wanted)}; run: pip install {wanted[0]}")


def statistics(item: Item) -> tuple[float | None, ...]:
    """Max, Min, Mean and Norm of a tensor as floats; ``None`` where there is none, and of a plain value."""
    if not item.is_tensor:
        return (None, None, None, None)
    return tuple(map(_number, (item.max, item.min, item.mean, item.norm)))


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None


def number_text(value: float | None) -> str:
    """A statistic as tables for people show it."""
    return "" if value is None else f"{value:.4g}"


def _shown(item: Item) -> tuple[str, ...]:
    numbers = map(number_text, statistics(item))
    shape = "" if item.shape is None or not item.is_tensor else shape_text(item.shape)
    value = "" if item.value is None else str(item.value)[:_LONGEST_VALUE]
    return (item.name, item.dtype or "", shape, *numbers, value)


# The items of a record stand together.
_parse = lru_cache(maxsize=64)(naming.parse)


def _parsed(part: str) -> Callable[[Selected], Any]:
    def take(row: Selected) -> Any:
        parsed = _parse(row.record)
        return None if parsed is None else getattr(parsed, part)

    return take


def _module(row: Selected) -> str | None:
    parsed = None if row.module is None else _parse(row.module)
    return row.module if parsed is None else parsed.base


def _elements(row: Selected) -> int | None:
    number = math.prod(row.item.shape) if row.item.is_tensor and row.item.shape is not None else None
    return None if number is None or number > _LARGEST else number


def _statistic_of_selected(index: int) -> Callable[[Selected], float | None]:
    return lambda row: statistics(row.item)[index]


_COLUMNS: dict[str, Callable[[Selected], Any]] = {
    "step": lambda row: row.step,
    "rank": lambda row: row.rank,
    "process": lambda row: row.process,
    "mode": lambda row: row.mode,
    "record": lambda row: row.record,
    "base": _parsed("base"),
    "number": _parsed("number"),
    "direction": _parsed("direction"),
    "module": _module,
    "item": lambda row: row.path,
    "state": lambda row: row.item.state,
    "dtype": lambda row: row.item.dtype,
    "shape": lambda row: None if row.item.shape is None else shape_text(row.item.shape),
    "elements": _elements,
    **{name: _statistic_of_selected(index) for index, name in enumerate(("max", "min", "mean", "norm"))},
    "requires_grad": lambda row: row.item.requires_grad if isinstance(row.item.requires_grad, bool) else None,
    "md5": lambda row: row.item.md5,
    "value": lambda row: None if row.item.value is None else str(row.item.value),
    "data_name": lambda row: row.item.data_name,
}
_STATISTICS = ("max", "min", "mean", "norm")
_WHOLE = ("step", "rank", "number", "elements")
_POLARS = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_STATISTICS, "Float64"), "requires_grad": "Boolean"}
_PANDAS = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_STATISTICS, "float64"), "requires_grad": "boolean"}


# --- conditions


Condition = Callable[[Item], bool]
"""Predicate that is true of items that fit."""

_LONGEST, _MOST_PARTS = 2000, 300
"""Characters and parts of a condition; a guess: nobody is known to write longer ones."""
_NUMBER, _TEXT, _TYPE, _SHAPE, _TRUTH, _LIST, _ANY = (
    "a number", "a text", "a type", "a shape", "a condition", "a list", "a value",
)  # fmt: skip


class _Operand(NamedTuple):
    """One side of an operator: the kind of its values, and its value for an item; ``None`` if that is unknown."""

    kind: str
    of: Callable[[Item], Any]


def _statistic(item: Item, name: str) -> float | None:
    number = getattr(item, name)
    return number if item.is_tensor and isinstance(number, (int, float)) else None


def _type_name(text: str) -> str:
    """The name of a dtype in any spelling: ``float8_e4m3fn`` of ``torch.float8_e4m3fn`` and of ``Float8E4M3FN``."""
    name = text.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
    known = format_of(name)
    # "int" and "float" are the types of plain values here, and no other names of the dtypes of tensors.
    return name.lower() if known is None or name.lower() in known.aliases else known.name


_NAMES = {
    "max": _Operand(_NUMBER, lambda item: _statistic(item, "max")),
    "min": _Operand(_NUMBER, lambda item: _statistic(item, "min")),
    "mean": _Operand(_NUMBER, lambda item: _statistic(item, "mean")),
    "norm": _Operand(_NUMBER, lambda item: _statistic(item, "norm")),
    "elements": _Operand(_NUMBER, lambda item: math.prod(item.shape or ()) if item.is_tensor else None),
    "shape": _Operand(_SHAPE, lambda item: item.shape if item.is_tensor else None),
    "dtype": _Operand(_TYPE, lambda item: item.dtype),
    "state": _Operand(_TEXT, lambda item: item.state),
    "name": _Operand(_TEXT, lambda item: item.name),
    "md5": _Operand(_TEXT, lambda item: item.md5),
    "value": _Operand(_ANY, lambda item: item.value),
    "requires_grad": _Operand(_TRUTH, lambda item: item.requires_grad),
    "nan": _Operand(_NUMBER, lambda item: math.nan),
    "inf": _Operand(_NUMBER, lambda item: math.inf),
}
_ALONE: dict[str, Condition] = {
    "nan": lambda item: item.has_nan,
    "inf": lambda item: item.has_inf,
    "requires_grad": lambda item: item.requires_grad is True,
}
"""Names that are conditions without an operator."""
ALLOWED = (
    "Max, Min, Mean, Norm, nan, inf, elements, shape, dtype, state, name, md5, value, requires_grad; "
    "== != < <= > >= in and or not + - * / abs(); example: Max > 1e4 or nan"
)


class _Refused(Exception):
    """Something that a condition cannot hold."""


def condition(text: str) -> Condition:
    """The condition that `text` spells.

    Raises:
        MsprobeException: it spells none; the message says where, and what is allowed.

    Example:
        >>> fits = condition("abs(Mean) > 3 or nan")
        >>> fits(Item("a.input.0", "input", "torch.float32", (2,), 9.0, 1.0, 5.0, 9.1))
        True
    """
    try:
        with warnings.catch_warnings():
            # Such as on an escape sequence in a text, which Python does not know.
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval") if len(text) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    try:
        if tree is None:
            raise _Refused("this is not a condition")
        if sum(1 for _ in ast.walk(tree)) > _MOST_PARTS:
            raise _Refused("it has too many parts")
        return _condition(tree.body)
    except _Refused as refused:
        raise MsprobeException(f"where {show(text)}: {refused}. Allowed: {ALLOWED}.") from None


def _condition(node: ast.expr) -> Condition:
    if isinstance(node, ast.BoolOp):
        parts = [_condition(value) for value in node.values]
        combine = all if isinstance(node.op, ast.And) else any
        return lambda item: combine(part(item) for part in parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _condition(node.operand)
        return lambda item: not inner(item)
    if isinstance(node, ast.Compare):
        operands = [_operand(part) for part in (node.left, *node.comparators)]
        comparisons = [_comparison(*each) for each in zip(node.ops, operands, operands[1:])]
        return comparisons[0] if len(comparisons) == 1 else lambda item: all(each(item) for each in comparisons)
    if isinstance(node, ast.Name) and node.id.lower() in _ALONE:
        return _ALONE[node.id.lower()]
    raise _Refused(f"{_spelled(node)} is {_operand(node).kind} and not a condition; compare it with something")


def _spelled(node: ast.expr) -> str:
    return show(ast.unparse(node))


# --- operands

_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def _operand(node: ast.expr) -> _Operand:
    if isinstance(node, ast.Name):
        if node.id.lower() not in _NAMES:
            raise _Refused(f"{show(node.id)} is not known")
        return _NAMES[node.id.lower()]
    if isinstance(node, ast.Constant):
        value = node.value
        for types, kind in ((bool, _TRUTH), ((int, float), _NUMBER), (str, _TEXT)):
            if isinstance(value, types):
                return _Operand(kind, lambda item: value)
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_literal(part) for part in node.elts]
        return _Operand(_LIST, lambda item: values)
    if isinstance(node, (ast.UnaryOp, ast.BinOp)) and type(node.op) in _ARITHMETIC:
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        return _arithmetic(_ARITHMETIC[type(node.op)], parts)
    is_abs = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs"
    if isinstance(node, ast.Call) and is_abs and len(node.args) == 1 and not node.keywords:
        return _arithmetic(abs, node.args)
    raise _Refused(f"{_spelled(node)} is not allowed here")


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, (int, float, str)):
        raise _Refused(f"a list holds numbers and texts, and not {_spelled(node)}")
    return value


def _arithmetic(compute: Callable[..., Any], nodes: Sequence[ast.expr]) -> _Operand:
    operands = [_operand(node) for node in nodes]
    for node, operand in zip(nodes, operands):
        if operand.kind is not _NUMBER:
            raise _Refused(f"{_spelled(node)} is {operand.kind} and not a number to compute with")

    def of(item: Item) -> float | None:
        values = [operand.of(item) for operand in operands]
        try:
            result: float | None = None if None in values else compute(*values)
        except (ZeroDivisionError, OverflowError):
            return None
        return result

    return _Operand(_NUMBER, of)


# --- comparisons


def _equal(left: Any, right: Any) -> bool:
    # Only a NaN is not itself.
    return bool(left == right or (left != left and right != right))


_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: _equal, ast.NotEq: lambda left, right: not _equal(left, right),
}  # fmt: skip
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_MEMBERSHIP: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
}  # fmt: skip
_CONTAINS = {_TEXT: (_TEXT,), _TYPE: (_TEXT,), _SHAPE: (_NUMBER,), _LIST: (_TEXT, _TYPE, _NUMBER, _ANY), _ANY: (_TEXT,)}


def _comparison(how: ast.cmpop, left: _Operand, right: _Operand) -> Condition:
    kinds = {left.kind, right.kind}
    if isinstance(how, (ast.Is, ast.IsNot)):
        raise _Refused('"is" is not allowed; write ==')
    if type(how) in _EQUALITY:
        fits = len(kinds) == 1 or _ANY in kinds or kinds in ({_TYPE, _TEXT}, {_SHAPE, _LIST})
    elif type(how) in _ORDER:
        fits = kinds <= {_NUMBER, _ANY}
    else:
        fits = left.kind in _CONTAINS.get(right.kind, ())
    if not fits:
        raise _Refused(f"{left.kind} and {right.kind} cannot be compared in this way")
    compare = {**_EQUALITY, **_ORDER, **_MEMBERSHIP}[type(how)]
    same_form = _as_types if _TYPE in kinds else tuple if kinds == {_SHAPE, _LIST} else None

    def holds(item: Item) -> bool:
        one, other = left.of(item), right.of(item)
        if one is None or other is None:
            return False
        if same_form is not None:
            one, other = same_form(one), same_form(other)
        try:
            return compare(one, other)
        except TypeError:
            # A plain value may be of any type.
            return False

    return holds


def _as_types(value: Any) -> Any:
    """Texts as names of dtypes, so that "torch.float16" and "Float16" are "float16"."""
    if isinstance(value, list):
        return list(map(_as_types, value))
    return _type_name(value) if isinstance(value, str) else value
