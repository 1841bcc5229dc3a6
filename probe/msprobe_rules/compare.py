"""Rows matched, measured and judged as msProbe 26.2 does, its defects included: ``--rules msprobe``.

docs/reference/compare.md lists the defects.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from probe.common.align.calls import ERROR, NAMES_DIFFER, PASS, WARNING, Calls, KeyedCall, Row
from probe.common.align.items import by_name
from probe.common.align.layers import UNMATCHED, Scope, ScopedRecords, translate
from probe.common.align.mapping import (
    LayerMapping,
    MatchOptions,
    api_mapping,
    cell_mapping,
    item_mapping,
    layer_mapping,
)
from probe.common.align.name_mapping import NameMapping
from probe.common.dump.naming import function_name, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.errors import MsprobeException
from probe.common.numerics import statistics
from probe.common.numerics.statistics import UNSUPPORTED
from probe.common.numerics.values import Measured, compare_values
from probe.compare.result import Mode

NONFINITE = "error: There is nan/inf/-inf in the maximum or minimum value of NPU."
NORM = "error: The NormRelativeErr of output is greater than 0.5."
THOUSANDTH = "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
REQUIRES_GRAD = "error: The Required_Grad of NPU and Bench are inconsistent"
SCALAR = "error: The scalar parameters of NPU and Bench are inconsistent."
DTYPE = "error: The dtype of NPU and Bench are inconsistent."
SHAPE = "error: The shape of NPU and Bench are inconsistent."
TENFOLD = "warning: The norm relative error of output is 10 times that of input."
COSINE = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
CHECKSUM = "error: The CRC-32 value of NPU differs from that of the bench."
CHECKSUM_MISSING = "warning: The parameter of NPU does not match the bench."

# The results of these functions are not computed, or not yet.
IGNORED = frozenset(
    (
        "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
        "empty_strided",
    )
)  # fmt: skip
# Their outputs do not follow from the inputs of this process alone.
ONLY_OUTPUTS = frozenset(("_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"))
# Fused projections.
_FUSED = ("qkv", "gate_up")

_COSINE, _THOUSANDTH = 0, 4
_NORM = 7
"""The position of the relative error of norms among the metrics of a row."""


@dataclass(frozen=True)
class RowRule:
    """The rules for the rows of one record: which messages each row gets.

    Args:
        mode: What the dumps are compared by.
    """

    mode: Mode

    def messages(self, rows: list[Row]) -> list[list[str]]:
        """The messages of each of `rows`, which are those of one record."""
        found: list[list[str]] = [[] for _ in rows]
        name = function_name(rows[0].record)
        if name in IGNORED:
            return found
        if self.mode is Mode.CHECKSUM:
            for row, messages in zip(rows, found):
                _checksum(row, messages)
        else:
            self._rules(rows, found, name in ONLY_OUTPUTS)
        return found

    def _rules(self, rows: list[Row], found: list[list[str]], only_outputs: bool) -> None:
        is_output = [_is_output(row) for row in rows]
        for row, messages, output in zip(rows, found, is_output):
            if output or not only_outputs:
                _nonfinite(row, messages)
        if only_outputs:
            return
        inputs = [row for row, output in zip(rows, is_output) if not output]
        outputs = [row for row, output in zip(rows, is_output) if output]
        output_gradients = [messages for messages, output in zip(found, is_output) if output]
        if self.mode is Mode.STATISTICS:
            before, after = _largest(inputs, _norm_error), _largest(outputs, _norm_error)
            if before < 0.1:
                _norms(outputs, output_gradients)
            far_off = after > 0.1 if before == 0 else after / before > 10
            warning = TENFOLD
        else:
            # The limit is not the one that the message has.
            if outputs and _smallest(inputs, _thousandth) > 0.9 and _smallest(outputs, _thousandth) < 0.1:
                output_gradients[0].append(THOUSANDTH)
            before, after = _smallest(inputs, _cosine), _smallest(outputs, _cosine)
            far_off = before > 0.9 and before - after > 0.1
            warning = COSINE
        for row, messages, output in zip(rows, found, is_output):
            _agreement(row, messages, output)
        if outputs and far_off:
            output_gradients[0].append(warning)


def worst(messages: Iterable[str]) -> str:
    """The verdict that `messages` make together."""
    kinds = {message.partition(":")[0] for message in messages}
    return ERROR if ERROR in kinds else WARNING if WARNING in kinds else PASS


def _is_output(row: Row) -> bool:
    """True by the name alone, so that a module called "output" has outputs only."""
    assert row.target is not None
    return ".output." in row.target.name


def _nonfinite(row: Row, messages: list[str]) -> None:
    target, golden = row.target, row.golden
    if target is None or not (_is_nonfinite(target.max) or _is_nonfinite(target.min)):
        return
    if golden is None or not (_is_nonfinite(golden.max) or _is_nonfinite(golden.min)):
        messages.append(NONFINITE)


def _norms(outputs: list[Row], found: list[list[str]]) -> None:
    for row, messages in zip(outputs, found):
        error = row.metrics[_NORM]
        if error == "inf" if type(error) is str else error / 100 > 0.5:
            messages.append(NORM)


def _agreement(row: Row, messages: list[str], is_output: bool) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None:
        return
    if target.requires_grad != golden.requires_grad:
        messages.append(REQUIRES_GRAD)
    if not is_output and _is_scalar(target) and _is_scalar(golden) and str(target.max) != str(golden.max):
        messages.append(SCALAR)
    if target.dtype != golden.dtype and not any(part in golden.name for part in _FUSED):
        messages.append(DTYPE)
    if target.shape != golden.shape:
        messages.append(SHAPE)


def _checksum(row: Row, messages: list[str]) -> None:
    target, golden = row.metrics
    if target != golden:
        messages.append(CHECKSUM_MISSING if "N/A" in (target, golden) else CHECKSUM)


_Measure = Callable[[Row], "float | None"]


def _largest(rows: list[Row], measure: _Measure) -> float:
    """The largest of what can be measured, 0 when nothing can."""
    return max([value for row in rows if (value := measure(row)) is not None], default=0.0)


def _smallest(rows: list[Row], measure: _Measure) -> float:
    """The smallest of what can be measured, 1 when nothing can."""
    return min([value for row in rows if (value := measure(row)) is not None], default=1.0)


def _norm_error(row: Row) -> float | None:
    error = row.metrics[_NORM]
    return None if type(error) is str else error / 100


def _cosine(row: Row) -> float | None:
    value = row.metrics[_COSINE]
    return None if isinstance(value, str) else value


def _thousandth(row: Row) -> float | None:
    value = row.metrics[_THOUSANDTH]
    return None if isinstance(value, str) else value


def _is_nonfinite(value: Any) -> bool:
    return type(value) is float and not math.isfinite(value)


def _is_scalar(item: Item) -> bool:
    return item.shape == () and item.dtype is not None and "class" in item.dtype


# --- other names


def by_kind(target: list[KeyedCall], golden: list[KeyedCall]) -> Iterator[Row]:
    """Every item of the target in its order, matched with the next call of its kind, whatever numbers they have."""
    kinds = [[_kind(call.key) for call in side] for side in (target, golden)]
    matched = dict(match_in_order(*kinds))
    for index, call in enumerate(target):
        name = call.record.name
        other = golden[matched[index]] if index in matched else None
        by_suffix = {} if other is None else {item.name[len(other.record.name) :]: item for item in other.items}
        for item in call.items:
            match = by_suffix.get(item.name[len(name) :])
            if match is None or other is None:
                yield Row(name, item, None)
            else:
                notes = (NAMES_DIFFER,) if name != other.record.name else ()
                yield Row(name, item, match, other.record.name, (), notes)


def _kind(record: str) -> str:
    """The name of a record without the number of its call."""
    parsed = parse(record)
    return record if parsed is None else f"{parsed.base} {parsed.direction}"


class _Unmatched:
    """The elements of one side that were read and have no match yet."""

    def __init__(self) -> None:
        self._first = 0
        self._indexes: dict[str, deque[int]] = {}

    def add(self, key: str, index: int) -> None:
        self._indexes.setdefault(key, deque()).append(index)

    def oldest(self, key: str) -> int | None:
        indexes = self._indexes.get(key)
        while indexes and indexes[0] < self._first:
            indexes.popleft()
        return indexes[0] if indexes else None

    def leave_up_to(self, index: int) -> None:
        self._first = index + 1


def match_in_order(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """The indexes of keys that correspond, each the next of its kind, both ascending.

    Both are walked side by side. A key is looked for among those of the other side that are still waiting, the oldest
    first; once two correspond, what waited before them on either side does not any more.
    """
    waiting_target, waiting_golden = _Unmatched(), _Unmatched()
    found = []
    for index in range(max(len(target), len(golden))):
        target_kind = target[index] if index < len(target) else None
        golden_kind = golden[index] if index < len(golden) else None
        if target_kind is not None:
            waiting_target.add(target_kind, index)
        if golden_kind is not None:
            waiting_golden.add(golden_kind, index)
        pair = None
        if target_kind is not None and (older := waiting_golden.oldest(target_kind)) is not None:
            pair = index, older
        elif golden_kind is not None and (older := waiting_target.oldest(golden_kind)) is not None:
            pair = older, index
        if pair is not None:
            found.append(pair)
            waiting_target.leave_up_to(pair[0])
            waiting_golden.leave_up_to(pair[1])
    return found


def by_layer(calls: Calls, mapping: LayerMapping) -> dict[str, str]:
    """Every item of the target and its counterpart's name, or ``N/A``: the n-th call of a layer with the n-th one."""
    mine, theirs, rules = mapping
    by_scope = _by_scope(theirs)
    counterpart: dict[str, str] = {}
    for (path, direction, is_layer), names in _by_scope(mine).items():
        counterpart.update(zip(names, by_scope.get((translate(path, mine.classes, rules), direction, is_layer), [])))
    # Saved values are not in a tree.
    counterpart.update({call.record.name: call.record.name for call in calls[0] if call.record.name not in mine.scopes})
    there = {call.record.name: {item.name for item in call.items} for call in calls[1]}
    found: dict[str, str] = {}
    for call in calls[0]:
        name = call.record.name
        other = counterpart.get(name, UNMATCHED)
        for item in call.items:
            match = other + item.name[len(name) :]
            found[item.name] = match if match in there.get(other, ()) else UNMATCHED
    return found


def _by_scope(side: ScopedRecords) -> dict[Scope, list[str]]:
    """The records of every scope, in order."""
    found: dict[Scope, list[str]] = {}
    for name, scope in side.scopes.items():
        found.setdefault(scope, []).append(name)
    return found


# --- pairs made by hand

RecordPairs = Sequence[tuple[str, str]]
"""Names of records of the target and of the golden side; names of no record say nothing."""


def without(calls: Calls, pairs: RecordPairs) -> Calls:
    """The calls that are left to be matched otherwise."""
    in_pairs = _in_pairs(calls, pairs)
    mine, theirs = set(in_pairs), set(in_pairs.values())
    target, golden = calls
    return [call for call in target if call.record.name not in mine], [
        call for call in golden if call.record.name not in theirs
    ]


def with_pairs(rows: Iterable[Row], calls: Calls, pairs: RecordPairs, across_frameworks: bool) -> list[Row]:
    """`rows` and those of the pairs: items of the target in its order, then what the golden side has alone in its own.

    Args:
        rows: those of the calls that `without` leaves.
        calls: all calls.
        pairs: the pairs.
        across_frameworks: true if parameters have the names of two frameworks.
    """
    target, golden = calls
    mapping = NameMapping(parameters=across_frameworks)
    in_pairs = _in_pairs(calls, pairs)
    there = {call.record.name: call for call in golden}
    of_target: dict[str, list[Row]] = {}
    alone: dict[str, list[Row]] = {}
    for row in rows:
        (alone if row.target is None else of_target).setdefault(row.record, []).append(row)
    for call in target:
        if call.record.name in in_pairs:
            other = there[in_pairs[call.record.name]]
            key = call.record.name
            for row in by_name(
                [KeyedCall(call.record, key, call.items)], [KeyedCall(other.record, key, other.items)], mapping
            ):
                (alone if row.target is None else of_target).setdefault(row.record, []).append(row)
    found = [row for call in target for row in of_target.get(call.record.name, ())]
    return found + [row for call in golden for row in alone.get(call.record.name, ())]


def _in_pairs(calls: Calls, pairs: RecordPairs) -> dict[str, str]:
    """The pairs of which both sides have a record."""
    mine, theirs = ({call.record.name for call in side} for side in calls)
    return {one: other for one, other in pairs if one in mine and other in theirs}


# --- v26 2


# Frameworks that a target is compared with: MindSpore runs with the run they were ported from, never the other way.
_GOLDEN_OF = {
    "pytorch": ("pytorch",),
    "mindspore": ("mindspore", "pytorch"),
    "mindtorch": ("mindspore", "pytorch"),
}
_NO_ENTRY = frozenset(("Functional.tanh",))
"""Names that the built-in table of 26.2 lacks."""


class Matching:
    """Matching and measuring as `probe.compare.judgement.Otherwise`."""

    def check(self, target: Dump, golden: Dump) -> None:
        """Refuse pairs of frameworks that msProbe does not compare."""
        allowed = _GOLDEN_OF[target.framework]
        if golden.framework not in allowed:
            raise MsprobeException(
                f"by the rules msprobe a {target.framework} dump ({target.path}) is compared with one of "
                f"{' or '.join(allowed)}, not of {golden.framework} ({golden.path}); give --rules probe, "
                "or exchange both runs."
            )

    def renumbers_target(self, options: MatchOptions) -> bool:
        """The target's side is forgotten where names are mapped (D3)."""
        return not options.maps_names

    def match(
        self, dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
    ) -> tuple[list[Row], dict[str, str] | None]:
        """The rows of the target; those that the golden side has alone are left out."""
        across_frameworks = dumps[0].framework != dumps[1].framework
        rest = without(calls, options.pairs) if options.pairs else calls
        derived = None
        if options.fuzzy:
            found = list(by_kind(*rest))
        else:
            mapping, derived = _mapping(dumps, rest, options)
            found = list(by_name(*rest, mapping))
        if options.pairs:
            found = with_pairs(found, calls, options.pairs, across_frameworks)
        found = [row for row in found if row.target is not None]
        # With mapped items nobody asks for their types.
        for row in [] if options.maps_items else found:
            _unmatch_other_types(row, across_frameworks)
        return found, derived

    def statistics(self, target: Item, golden: Item) -> tuple[Any, ...]:
        """The metrics of statistics; a flag is no number."""
        cells = statistics.compare_items(target, golden)
        mine = target.max, target.min, target.mean, target.norm
        pairs = zip(mine, (golden.max, golden.min, golden.mean, golden.norm))
        differs = [type(cell) is float and bool in map(type, pair) for cell, pair in zip(cells, pairs)]
        return tuple("Diff" if is_flag else cell for cell, is_flag in zip(cells, differs * 2))

    def values(self, target: Any, golden: Any) -> Measured:
        """The metrics of two arrays; infinities of two signs are the same."""
        if np.squeeze(target).size == 0:
            return Measured(UNSUPPORTED)
        return compare_values(target, golden, signed=False)


def _mapping(
    dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
) -> tuple[NameMapping, dict[str, str] | None]:
    """The golden names of the target's names, and the data mapping that a layer mapping became."""
    apis, entries = api_mapping(dumps[0], calls, options, _NO_ENTRY)
    cells = cell_mapping(calls, options)
    derived = None if options.layer_mapping is None else by_layer(calls, layer_mapping(dumps, calls, options))
    items = item_mapping(calls, options) if options.data_mapping is not None else derived
    return NameMapping(apis, entries, cells, items=items), derived


def _unmatch_other_types(row: Row, across_frameworks: bool) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None or may_match(target.dtype, golden.dtype, across_frameworks):
        return
    row.golden, row.golden_record, row.notes = None, None, ()


# Releases of msProbe match these, so that a run in half precision can be compared with one in full.
_FLOATS = (
    frozenset(("Float16", "Float32", "Float64", "BFloat16")),
    frozenset(("torch.float16", "torch.float32", "torch.float64", "torch.bfloat16")),
)
_CLASSES = ("complex", "float", "bool", "int")


@cache
def may_match(target: str | None, golden: str | None, across_frameworks: bool) -> bool:
    """True if msProbe compares values of these types at all."""
    if target == golden:
        return True
    if target is None or golden is None:
        return False
    if across_frameworks:
        return _class(target) == _class(golden)
    return any(target in names and golden in names for names in _FLOATS)


def _class(dtype: str) -> str:
    lower = dtype.lower()
    return next((name for name in _CLASSES if name in lower), lower)


class RowsOf26:
    """The rules as `probe.compare.judgement.RowRules`."""

    otherwise = Matching()

    def classify_rows(self, rows: list[Row], mode: Mode) -> None:
        """Give the rows of one record their results and messages; remarks of measuring are lost (D3a)."""
        for row, messages in zip(rows, RowRule(mode).messages(rows)):
            row.result = worst(messages)
            if messages:
                row.messages = tuple(messages)


V26_2_ROWS = RowsOf26()
