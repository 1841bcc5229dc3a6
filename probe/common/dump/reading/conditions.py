"""Conditions on items, such as ``Max > 1e4 or nan``: what `Dump.where` and ``msprobe show --where`` take.

A condition is spelled as in Python and parsed with its grammar, but nothing of it is executed: every part that is
allowed becomes a function of an item here, and anything else is an error that names what is allowed.

    Max, Min, Mean, Norm             statistics of a tensor; of a plain value they are unknown
    nan, inf                         alone: a NaN or an infinity is in the tensor; beside an operator: the number
    elements, shape                  of a tensor: shape == (8, 64), 768 in shape
    dtype                            "float16", whatever the framework calls it
    state, name, md5                 texts: state == "output", "bias" in name
    value                            of a plain value: value == "tanh"
    requires_grad                    a condition by itself
    == != < <= > >= in, not in       and, or, not, parentheses, + - * /, abs()

What is unknown of an item makes every comparison with it false, ``!=`` included. NaN is equal to NaN, so that
``Mean == nan`` can be asked.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from probe.common.dump.reading.items import Item
from probe.common.errors import MsprobeException
from probe.common.numerics.formats import format_of
from probe.common.show import show

Condition = Callable[[Item], bool]
"""Predicate that is true of items that fit."""

_LONGEST, _MOST_PARTS = 2000, 300
_NUMBER, _TEXT, _TYPE, _SHAPE, _TRUTH, _LIST, _ANY = (
    "a number", "a text", "a type", "a shape", "a condition", "a list", "a value",
)  # fmt: skip
_Getter = Callable[[Item], Any]


class _Operand(NamedTuple):
    """The text that stands on one side of an operator."""

    kind: str
    of: _Getter


def _statistic(name: str) -> _Operand:
    get = operator.attrgetter(name)

    def of(item: Item) -> float | None:
        found = get(item)
        return found if item.is_tensor and isinstance(found, (int, float)) else None

    return _Operand(_NUMBER, of)


def _elements(item: Item) -> int | None:
    return math.prod(item.shape) if item.is_tensor and item.shape is not None else None


def _shape(item: Item) -> Sequence[int] | None:
    return item.shape if item.is_tensor else None


def _type_name(text: str) -> str:
    """The same text for the same type: ``float8_e4m3fn`` of ``torch.float8_e4m3fn`` and of ``Float8E4M3FN``."""
    name = text.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
    found = format_of(name)
    # "int" and "float" are the types of plain values here, and no other names of the dtypes of tensors.
    return name.lower() if found is None or name.lower() in found.aliases else found.name


def _dtype(item: Item) -> str | None:
    return None if item.dtype is None else _type_name(item.dtype)


_FIELDS = {
    **{name: _statistic(name) for name in ("max", "min", "mean", "norm")},
    "elements": _Operand(_NUMBER, _elements),
    "shape": _Operand(_SHAPE, _shape),
    "dtype": _Operand(_TYPE, _dtype),
    "state": _Operand(_TEXT, lambda item: item.state),
    "name": _Operand(_TEXT, lambda item: item.name),
    "md5": _Operand(_TEXT, lambda item: item.md5),
    "value": _Operand(_ANY, lambda item: item.value),
    "requires_grad": _Operand(_TRUTH, lambda item: item.requires_grad),
}
_NUMBERS = {"nan": math.nan, "inf": math.inf}
_ALONE: dict[str, Condition] = {
    "nan": lambda item: item.has_nan,
    "inf": lambda item: item.has_inf,
    "requires_grad": lambda item: item.requires_grad is True,
}
ALLOWED = (
    "Max, Min, Mean, Norm, nan, inf, elements, shape, dtype, state, name, md5, value, requires_grad; "
    "== != < <= > >= in and or not + - * / abs(); example: Max > 1e4 or nan"
)


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
    if tree is None:
        raise _wrong(text, "this is not a condition")
    if sum(1 for _ in ast.walk(tree)) > _MOST_PARTS:
        raise _wrong(text, "it has too many parts")
    try:
        return _condition(tree.body)
    except _Refused as refused:
        raise _wrong(text, str(refused)) from None


def _wrong(text: str, reason: str) -> MsprobeException:
    return MsprobeException(f"where {show(text)}: {reason}. Allowed: {ALLOWED}.")


class _Refused(Exception):
    """Something that a condition cannot hold."""


def _condition(node: ast.expr) -> Condition:
    if isinstance(node, ast.BoolOp):
        parts = [_condition(value) for value in node.values]
        return _all(parts) if isinstance(node.op, ast.And) else _any(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _condition(node.operand)
        return lambda item: not inner(item)
    if isinstance(node, ast.Compare):
        operands = [_operand(part) for part in (node.left, *node.comparators)]
        pairs = zip(node.ops, operands, operands[1:])
        return _all([_comparison(how, left, right) for how, left, right in pairs])
    if isinstance(node, ast.Name) and node.id.lower() in _ALONE:
        return _ALONE[node.id.lower()]
    raise _Refused(f"{_spelled(node)} is {_operand(node).kind} and not a condition; compare it with something")


def _all(parts: Sequence[Condition]) -> Condition:
    if len(parts) == 1:
        return parts[0]
    return lambda item: all(part(item) for part in parts)


def _any(parts: Sequence[Condition]) -> Condition:
    return lambda item: any(part(item) for part in parts)


def _spelled(node: ast.expr) -> str:
    return show(ast.unparse(node))


# --- operands


def _operand(node: ast.expr) -> _Operand:
    if isinstance(node, ast.Name):
        return _named(node.id)
    if isinstance(node, ast.Constant):
        return _constant(node)
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_literal(part) for part in node.elts]
        return _Operand(_LIST, lambda item: values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = operator.neg if isinstance(node.op, ast.USub) else operator.pos
        return _arithmetic(sign, [node.operand])
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[type(node.op)], [node.left, node.right])
    is_abs = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs"
    if isinstance(node, ast.Call) and is_abs and len(node.args) == 1 and not node.keywords:
        return _arithmetic(abs, node.args)
    raise _Refused(f"{_spelled(node)} is not allowed here")


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _named(name: str) -> _Operand:
    known = name.lower()
    if known in _NUMBERS:
        number = _NUMBERS[known]
        return _Operand(_NUMBER, lambda item: number)
    if known not in _FIELDS:
        raise _Refused(f"{show(name)} is not known")
    return _FIELDS[known]


def _constant(node: ast.Constant) -> _Operand:
    value = node.value
    for types, kind in ((bool, _TRUTH), ((int, float), _NUMBER), (str, _TEXT)):
        if isinstance(value, types):
            return _Operand(kind, lambda item: value)
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
        if None in values:
            return None
        try:
            result: float = compute(*values)
        except (ZeroDivisionError, OverflowError):
            return None
        return result

    return _Operand(_NUMBER, of)


# --- comparisons


def _equal(left: Any, right: Any) -> bool:
    # Only a NaN is not itself.
    return bool(left == right or (left != left and right != right))


_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MEMBERSHIP: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_CONTAINS = {_TEXT: (_TEXT,), _TYPE: (_TEXT,), _SHAPE: (_NUMBER,), _LIST: (_TEXT, _TYPE, _NUMBER, _ANY), _ANY: (_TEXT,)}


def _comparison(how: ast.cmpop, left: _Operand, right: _Operand) -> Condition:
    kinds = {left.kind, right.kind}
    if type(how) in _EQUALITY:
        compare = _EQUALITY[type(how)]
        fits = len(kinds) == 1 or _ANY in kinds or kinds in ({_TYPE, _TEXT}, {_SHAPE, _LIST})
    elif type(how) in _ORDER:
        compare = _ORDER[type(how)]
        fits = kinds <= {_NUMBER, _ANY}
    elif type(how) in _MEMBERSHIP:
        compare = _MEMBERSHIP[type(how)]
        fits = left.kind in _CONTAINS.get(right.kind, ())
    else:
        raise _Refused('"is" is not allowed; write ==')
    if not fits:
        raise _Refused(f"{left.kind} and {right.kind} cannot be compared in this way")
    if _TYPE in kinds:
        left, right = _as_type(left), _as_type(right)
    elif _SHAPE in kinds and _LIST in kinds:
        left, right = _as_shape(left), _as_shape(right)
    return _compared(compare, left.of, right.of)


def _compared(compare: Callable[[Any, Any], bool], left: _Getter, right: _Getter) -> Condition:
    def fits(item: Item) -> bool:
        one, other = left(item), right(item)
        if one is None or other is None:
            return False
        try:
            return compare(one, other)
        except TypeError:
            # A plain value may be of any type.
            return False

    return fits


def _as_type(operand: _Operand) -> _Operand:
    """The operand with texts as `dtype` has them, so that "torch.float16" and "Float16" are "float16"."""
    if operand.kind is _TYPE:
        return operand

    def of(item: Item) -> Any:
        value = operand.of(item)
        if isinstance(value, list):
            return [_type_name(text) if isinstance(text, str) else text for text in value]
        return _type_name(value) if isinstance(value, str) else value

    return _Operand(_TYPE, of)


def _as_shape(operand: _Operand) -> _Operand:
    def of(item: Item) -> Any:
        value = operand.of(item)
        return None if value is None else tuple(value)

    return _Operand(_SHAPE, of)
