"""Compare two checkpoints."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Union

from probe.checkpoint import measuring
from probe.checkpoint.fingerprints.entry import Fingerprinted, NotHeldError, rests_on_fingerprint
from probe.checkpoint.fingerprints.judging import are_same, measure
from probe.checkpoint.fingerprints.parts import first_rows, may_be_reordered, rest_is_zero, verdicts_of_parts
from probe.checkpoint.holding import explain, summarise
from probe.checkpoint.measuring import Measured
from probe.checkpoint.pairing.matching import match
from probe.checkpoint.pairing.pairs import Pair, Side
from probe.checkpoint.readers.opening import open_checkpoint
from probe.checkpoint.report import (
    DIFFERENT,
    FINE,
    IDENTICAL,
    MISSING,
    ROUNDING,
    SHAPE,
    UNKNOWN,
    Checkpoint,
    CheckpointOptions,
    Parameter,
    Replica,
    Report,
    Setting,
    counted,
)
from probe.checkpoint.sampling import best
from probe.checkpoint.scheme import is_computed, order_of
from probe.checkpoint.stored import Reshaped, Slice, Tensor, close_all
from probe.common.environment.gathered import clean_settings
from probe.common.progress import ProgressCallback, with_progress

_DIGITS = re.compile(r"\d+")
_VOCABULARY = ("embed.", "head.")
_NUMBERS = ("max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos")


def judge(pair: Pair, told: Measured | None = None) -> Parameter:
    """Compare a pair, in the layout that was chosen for it; `told` is the verdict on a part of a fingerprint."""
    if pair.one is None or pair.other is None:
        return missing(pair)
    one, other = pair.tensors
    row = _row(pair)
    words = "" if pair.reading is None else pair.reading.words
    try:
        measured = told or (measure(one, other) if one.shape == other.shape else None)
    except NotHeldError:
        measured = Measured(UNKNOWN, "two fingerprints in another layout: give one of the checkpoints", *[None] * 7)
    if measured is not None and measured.verdict == DIFFERENT and may_be_reordered(pair):
        how = "its numbers are the golden ones in another order, of which two fingerprints do not tell the layout"
        measured = Measured(UNKNOWN, f"{how}: give one of the checkpoints", *[None] * 7)
    if measured is None:
        words, measured = _without_ones(pair.one.tensor, pair.other.tensor)
    if measured is None:
        return _other_shape(pair, row)
    _fill(row, measured)
    pair.seen = measured.seen
    if pair.wrong and row.verdict not in (DIFFERENT, UNKNOWN):
        row.verdict = DIFFERENT
        words = "" if pair.wrong.startswith("is the golden one") else words
        row.how = _joined(*pair.how, f"{words}, {pair.wrong}".strip(", "), measured.how)
    else:
        row.how = _joined(*pair.how, words, measured.how)
    return row


def _row(pair: Pair) -> Parameter:
    one, other = pair.one, pair.other
    assert one is not None and other is not None
    return Parameter(
        one.name, other.name, pair.key, IDENTICAL, {}, "", one.tensor.shape, other.tensor.shape, one.tensor.dtype,
        other.tensor.dtype,
    )  # fmt: skip


def _fill(row: Parameter, measured: Measured) -> None:
    row.verdict = measured.verdict
    row.numbers = {name: value for name in _NUMBERS if (value := getattr(measured, name)) is not None}


def _joined(*words: str) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def _without_ones(one: Tensor, other: Tensor) -> tuple[str, Measured | None]:
    """Compare two whose shapes differ in dimensions of size 1 alone."""
    shapes = [tuple(length for length in each.shape if length != 1) for each in (one, other)]
    if shapes[0] != shapes[1]:
        return "", None
    return "another number of dimensions of size 1", measure(Reshaped(one, shapes[0]), Reshaped(other, shapes[0]))


def _other_shape(pair: Pair, row: Parameter) -> Parameter:
    """Two of different shapes: a vocabulary that is filled up on one side, or a difference, told by its rows."""
    one, other = pair.tensors
    row.verdict = SHAPE
    shapes = f"shape {list(one.shape)} and {list(other.shape)}"
    row.how = _joined(*pair.how, shapes)
    if not one.shape or one.shape[1:] != other.shape[1:]:
        return row
    rows = min(one.shape[0], other.shape[0])
    longer, which = (one, "first") if one.shape[0] > rows else (other, "second")
    count = longer.shape[0] - rows
    if rests_on_fingerprint(longer):
        common, ends = first_rows(one, other), "first"
    else:
        common, ends = measure(_rows(one, rows), _rows(other, rows)), "first"
        if common.verdict not in FINE:
            common, ends = measure(_rows(one, rows, True), _rows(other, rows, True)), "last"
    more = "more" if which == "first" else "fewer"
    if common.verdict not in FINE:
        held = rests_on_fingerprint(one) or rests_on_fingerprint(other)
        row.how = _joined(*pair.how, common.how if held else _within(one, other, rows, count, more), shapes)
        return row
    zero = rest_is_zero(longer, rows) if isinstance(longer, Fingerprinted) else _is_zero(longer, rows)
    if (
        ends == "first"
        and pair.key.startswith(_VOCABULARY)
        and _is_padded(rows, longer.shape[0])
        and (zero or count > 1)
    ):
        _fill(row, common)
        tail = ", all zero" if zero else ", not all zero"
        row.how = _joined(
            *pair.how, common.how,
            f"padded vocabulary: rows {rows} to {longer.shape[0] - 1} are on the {which} side alone{tail}",
        )  # fmt: skip
        return row
    row.how = _joined(
        *pair.how,
        f"has {counted(count, 'row')} {more}; the {ends} {rows} rows are {common.verdict}",
        common.how,
        shapes,
    )
    return row


def _within(one: Tensor, other: Tensor, rows: int, count: int, more: str) -> str:
    """Rows in the middle that one side has more, told by those before and behind them."""

    def measured(first: int, last: int, shift: bool = False) -> str:
        moved = (each.shape[0] - rows if shift else 0 for each in (one, other))
        left, right = (Slice(each, [(first + by, last + by, 1)]) for each, by in zip((one, other), moved))
        return measure(left, right).verdict

    part = 0
    for first, last in measuring.blocks(one):
        last = min(last, rows)
        if first >= last or measured(first, last) in FINE:
            part = last
            continue
        # The first row that differs is in this block.
        part = first
        while last - part > 1:
            middle = (part + last) // 2
            part, last = (middle, last) if measured(part, middle) in FINE else (part, middle)
        break
    if not 0 < part < rows:
        return ""
    same = f"the first {part} rows are {measured(0, part)}" if part > 1 else f"the first row is {measured(0, part)}"
    behind = measured(part, rows, True)
    if behind not in FINE:
        return f"{same}, those behind them are not the golden ones"
    side = "this side" if more == "more" else "the golden side"
    where = f"row {part}" if count == 1 else f"rows {part} to {part + count - 1}"
    return (
        f"has {counted(count, 'row')} {more}: {where} of {side}; {same}, and the rest, shifted by {count}, is {behind}"
    )


def _is_padded(rows: int, longer: int) -> bool:
    """True if a vocabulary may have been filled up to a multiple of 8, 16, ..."""
    steps = (8 << power for power in range(longer.bit_length()))
    return any(longer == -(-rows // step) * step for step in steps)


def _rows(tensor: Tensor, rows: int, last: bool = False) -> Tensor:
    """The first rows, or the last."""
    begin = tensor.shape[0] - rows if last else 0
    return tensor if tensor.shape[0] == rows else Slice(tensor, [(begin, begin + rows, 1)])


def _is_zero(tensor: Tensor, start: int) -> bool:
    """True if the rows from `start` on are all zero."""
    return not any(
        tensor.rows(max(first, start), last).any() for first, last in measuring.blocks(tensor) if last > start
    )


def missing(pair: Pair) -> Parameter:
    """A parameter that one side lacks."""
    side = pair.one or pair.other
    assert side is not None
    row = Parameter(
        side.name if pair.one else "", side.name if pair.other else "", side.key, MISSING,
        how=_joined(*pair.how, side.part),
    )  # fmt: skip
    if pair.one is not None:
        row.shape, row.dtype = side.tensor.shape, side.tensor.dtype
    else:
        row.other_shape, row.other_dtype = side.tensor.shape, side.tensor.dtype
    if is_computed(side.name):
        row.harmless = True
        row.how = "computed from the configuration, not trained"
    return row


def check_rounding(rows: Sequence[Parameter]) -> None:
    """Call a parameter different that is rounded where its like in other layers, or all others, are not."""
    kinds: dict[str, list[Parameter]] = defaultdict(list)
    for row in rows:
        if row.verdict in FINE and row.name and row.other_name:
            kinds[_DIGITS.sub("#", row.key)].append(row)
    rounded = [row for row in rows if row.verdict == ROUNDING]
    alone = len(rounded) == 1 and sum(row.verdict == IDENTICAL for row in rows) > 1
    for alike in kinds.values():
        few = [row for row in alike if row.verdict == ROUNDING]
        # Where most are rounded, the others have few digits.
        if few and (alone or (len(few) < len(alike) and 2 * len(few) <= len(alike))):
            for row in few:
                row.verdict = DIFFERENT
                row.how += ", unlike the other parameters"


def tie(rows: Sequence[tuple[Parameter, Pair]], tensors: Sequence[dict[str, Tensor]]) -> None:
    """Recognise parameters that one side lacks because they are another one of its own."""
    paired = [{row.name for row, _ in rows if row.other_name}, {row.other_name for row, _ in rows if row.name}]
    for row, pair in rows:
        if row.verdict != MISSING or row.harmless:
            continue
        index = 0 if pair.one is not None else 1
        side = pair.one or pair.other
        assert side is not None
        name = _twin(side, tensors[index], paired[index])
        if name is not None:
            row.verdict, row.harmless = IDENTICAL, True
            row.how = f"tied to {name}, and the other side stores it once"


def _twin(side: Side, tensors: dict[str, Tensor], paired: set[str]) -> str | None:
    """The name of a parameter of the same checkpoint with the same bits, which has a counterpart."""
    if len(side.tensor.shape) < 2:
        # Vectors of ones and zeros are alike, and never shared.
        return None
    alike = [
        name
        for name, tensor in tensors.items()
        if name in paired and name != side.name
        if (tensor.shape, tensor.dtype) == (side.tensor.shape, side.tensor.dtype)
    ]
    for name in alike:
        if side.tensor.key is not None and side.tensor.key == tensors[name].key:
            return name
    chosen = best(side.tensor, [(name, tensors[name]) for name in alike])
    if chosen is not None and chosen[2] == 0 and are_same(side.tensor, chosen[1]):
        return chosen[0]
    return None


# --- run


Path = Union[str, "os.PathLike[str]"]


def compare_checkpoints(
    one: Path, other: Path, options: CheckpointOptions | None = None, watch: ProgressCallback | None = None
) -> Report:
    """Compare two checkpoints of any formats, parameter by parameter.

    Args:
        one, other: Files or folders.
        options: How they are read and compared.
        watch: A callback for how far the work is.

    Raises:
        MsprobeException: one cannot be read, and what to do.
    """
    options = options or CheckpointOptions()
    try:
        left, right = open_checkpoint(os.fspath(one), options), open_checkpoint(os.fspath(other), options)
        return _compare(left, right, options, watch)
    finally:
        close_all()


def compare_contents(one: Checkpoint, other: Checkpoint, options: CheckpointOptions | None = None) -> Report:
    """Compare two checkpoints that are open already."""
    return _compare(one, other, options or CheckpointOptions(), None)


def _compare(left: Checkpoint, right: Checkpoint, options: CheckpointOptions, watch: ProgressCallback | None) -> Report:
    pairs = match(left, right, options)
    order = {name: index for index, name in enumerate(left.weights)}
    pairs.sort(key=lambda pair: (order_of(pair.key), order.get(pair.one.name if pair.one else "", len(order))))
    every = pairs if watch is None else with_progress(pairs, watch, "parameters", len(pairs))
    parts = verdicts_of_parts(pairs)
    rows = [(judge(pair, parts.get(id(pair))), pair) for pair in every]
    tie(rows, (left.weights, right.weights))
    explain(rows)
    check_rounding([row for row, _ in rows])
    parameters = [row for row, _ in rows]
    report = Report(
        left.path, right.path, left.format, right.format, parameters, layers=summarise(parameters),
        notes=[*left.notes, *right.notes],
    )  # fmt: skip
    for side in (left, right):
        report.replicas += [*side.told_replicas, *replicas_that_differ(side)]
    settings = left.settings, right.settings
    if any(rests_on_fingerprint(each) for side in (left, right) for each in side.weights.values()):
        # A fingerprint, which is sent to others, has no secrets and no paths.
        settings = clean_settings(left.settings)[0], clean_settings(right.settings)[0]
    report.settings = _settings(*settings)
    if options.optimizer:
        report.optimizer = _optimizer(left.optimizer, right.optimizer)
    return report


def replicas_that_differ(content: Checkpoint) -> list[Replica]:
    """The copies of parameters that have to be equal and are not."""
    found = []
    for name, ranks, one, other in content.replicas:
        if one.shape != other.shape:
            found.append(Replica(content.path, name, ranks, float("inf")))
            continue
        measured = measure(one, other)
        if measured.verdict != IDENTICAL:
            found.append(Replica(content.path, name, ranks, measured.max_abs or 0.0))
    return found


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Setting]:
    names = [*one, *(name for name in other if name not in one)]
    if not one or not other:
        return []
    return [
        Setting(name, one.get(name), other.get(name))
        for name in names
        if type(one.get(name)) is not type(other.get(name)) or one.get(name) != other.get(name)
    ]


def _optimizer(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[Parameter]:
    """The state of two optimizers, by equal names."""
    rows = []
    for name in [*one, *(name for name in other if name not in one)]:
        left, right = (Side(name, name, tensors[name]) if name in tensors else None for tensors in (one, other))
        rows.append(judge(Pair(left, right)))
    return rows
