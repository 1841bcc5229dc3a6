"""The verdict on a pair of parameters, and on those that have no counterpart."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from probe.checkpoint import measuring
from probe.checkpoint.measuring import Measured, measure
from probe.checkpoint.names.scheme import is_computed
from probe.checkpoint.pairing.pairs import Pair, Side
from probe.checkpoint.pairing.sampling import Samples, best
from probe.checkpoint.report import DIFFERENT, FINE, IDENTICAL, MISSING, SHAPE, Parameter
from probe.checkpoint.stored.tensors import Reshaped, Slice, Tensor

_DIGITS = re.compile(r"\d+")
_FAR = 0.5
"""A reading whose sample differs by half of its length is of other values; two independent ones differ by 1.4 times."""
_VOCABULARY = ("embed.", "head.", "position.")
_NUMBERS = ("max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos")


def judge(pair: Pair) -> Parameter:
    """Compare a pair, in the reading of its sides that fits best."""
    if pair.one is None or pair.other is None:
        return missing(pair)
    one, other = pair.one.tensor, pair.other.tensor
    row = _row(pair)
    if pair.readings or pair.other_readings:
        words, measured = _of_readings(pair)
    elif one.shape == other.shape:
        words, measured = "", measure(one, other)
    else:
        words, measured = "", None
    if measured is None:
        words, measured = _without_ones(one, other)
    if measured is None:
        return _other_shape(pair, row)
    _fill(row, measured)
    row.how = _joined(*pair.how, words, measured.how)
    row.layout = words
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
    row.numbers = {name: getattr(measured, name) for name in _NUMBERS}


def _joined(*words: str) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def _of_readings(pair: Pair) -> tuple[str, Measured | None]:
    """The best reading: as it is stored, where that is no difference, else the one whose values are most alike."""
    assert pair.one is not None and pair.other is not None
    one, other = pair.one.tensor, pair.other.tensor
    readings = list(pair.readings or pair.other_readings)
    fixed = other if pair.readings else one
    plain = next(((words, each) for words, each in readings if not words and each.shape == fixed.shape), None)
    found: Measured | None = None
    if plain is not None:
        found = _measured(pair, fixed, plain[1])
        if found.verdict in (*FINE, measuring.CLOSE):
            return "", found
        readings.remove(plain)
    chosen = best(fixed, readings)
    _release(fixed, [each for _, each in readings])
    if chosen is None:
        return "", found
    words, reading, far = chosen
    if far > _FAR:
        # Nothing fits: the layout that is known, or the usual one.
        words, reading = next(((text, each) for text, each in readings if each.shape == fixed.shape), (words, reading))
    again = _measured(pair, fixed, reading)
    if found is not None and not again.relative_l2 < found.relative_l2 / 2:
        # Another order of rows that fits no better is no explanation.
        return "", found
    return words, again


def _measured(pair: Pair, fixed: Tensor, reading: Tensor) -> Measured:
    return measure(reading, fixed) if pair.readings else measure(fixed, reading)


def _release(fixed: Tensor, readings: Sequence[Tensor]) -> None:
    fixed.release()
    for reading in readings:
        reading.release()


def _without_ones(one: Tensor, other: Tensor) -> tuple[str, Measured | None]:
    """Compare two whose shapes differ in dimensions of size 1 alone."""
    shapes = [tuple(length for length in each.shape if length != 1) for each in (one, other)]
    if shapes[0] != shapes[1]:
        return "", None
    return "another number of dimensions of size 1", measure(Reshaped(one, shapes[0]), Reshaped(other, shapes[0]))


def _other_shape(pair: Pair, row: Parameter) -> Parameter:
    """Two of different shapes: a vocabulary that is filled up on one side, or a difference."""
    assert pair.one is not None and pair.other is not None
    one, other = pair.one.tensor, pair.other.tensor
    row.verdict = SHAPE
    row.how = _joined(*pair.how, f"shape {list(one.shape)} and {list(other.shape)}")
    if not pair.key.startswith(_VOCABULARY) or not one.shape or one.shape[1:] != other.shape[1:]:
        return row
    rows = min(one.shape[0], other.shape[0])
    common = measure(_first(one, rows), _first(other, rows))
    if common.verdict not in FINE:
        return row
    longer, which = (one, "first") if one.shape[0] > rows else (other, "second")
    _fill(row, common)
    row.how = _joined(
        *pair.how, common.how,
        f"padded vocabulary: rows {rows} to {longer.shape[0] - 1} are on the {which} side alone{_tail(longer, rows)}",
    )  # fmt: skip
    return row


def _first(tensor: Tensor, rows: int) -> Tensor:
    return tensor if tensor.shape[0] == rows else Slice(tensor, [(0, rows, 1)])


def _tail(tensor: Tensor, start: int) -> str:
    """Content of the rows that only one side has."""
    step = measuring.blocks(tensor)
    for first, last in step:
        if last > start and tensor.rows(max(first, start), last).any():
            return ", not all zero"
    return ", all zero"


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


def check_layouts(rows: Sequence[Parameter]) -> None:
    """Call a parameter different that is stored in another way than its like in the other layers.

    Another class of layers may transpose a linear layer, and then all of its kind. If one is alone, it was turned.
    """
    kinds: dict[str, list[Parameter]] = defaultdict(list)
    for row in rows:
        if row.verdict in FINE and row.name and row.other_name:
            kinds[_DIGITS.sub("#", row.key)].append(row)
    for alike in kinds.values():
        layouts = Counter(_DIGITS.sub("#", row.layout) for row in alike)
        if len(layouts) < 2:
            continue
        # If there are as many of both, those count that are stored as on the other side.
        usual = max(layouts, key=lambda layout: (layouts[layout], not layout))
        for row in alike:
            if row.layout and _DIGITS.sub("#", row.layout) != usual:
                row.verdict = DIFFERENT
                row.how = f"{row.how}, unlike the others of its kind"


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
    if chosen is not None and chosen[2] == 0 and measuring.are_same(side.tensor, chosen[1]):
        return chosen[0]
    return None


def find_elsewhere(
    rows: Sequence[tuple[Parameter, Pair]], others: dict[str, Tensor], describe: Callable[[str], str]
) -> None:
    """Say of parameters that differ, or that the second side lacks, under which other name it has them."""
    fine = {row.other_name for row, _ in rows if row.verdict in FINE}
    samples = Samples({name: tensor for name, tensor in others.items() if name not in fine})
    for row, pair in rows:
        if row.verdict not in (DIFFERENT, MISSING) or pair.one is None or row.harmless:
            continue
        found = samples.nearest(pair.one.tensor, row.other_name)
        if found is None or not found[1] < _near(row):
            continue
        measured = measure(pair.one.tensor, others[found[0]])
        if measured.verdict in FINE:
            row.how = _joined(row.how, f"{describe(found[0])} of the other side", measured.how)


def _near(row: Parameter) -> float:
    """The distance below which a sample may be of the same parameter; rounding to eight bits changes it by 1 in 16."""
    own = row.numbers.get("relative_l2", math.inf)
    return min(0.07, own if own == own else math.inf)
