"""Gradients of all parameters, which depend on every call: they tell where most calls have no counterpart.

Of a batch that one run takes in parts, no call returns what a call of the other run does. Gradients of parameters are
linear in the examples: after the last part they are those of the whole batch, or their sum is, where a framework
returns those of each part. Of a model that one run compiles as a whole, the optimizer has the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from probe.common.align.calls import CallPair, Row
from probe.common.dump.naming import PARAMETERS_GRAD
from probe.common.dump.reading.records import Item
from probe.common.dump.update_file import UpdatedParameter
from probe.common.numerics.error_bounds import SAFETY, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.compare.judgement import NOTHING, Sentence
from probe.compare.result import GOLDEN, TARGET
from probe.compare.verdict import arithmetic
from probe.compare.verdict.facts import SHORT, Call, is_parameter
from probe.compare.verdict.findings import Finding, Kind, own_name
from probe.compare.verdict.two_runs import TwoRuns, base_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TERMS = 256.0
"""The terms of the sums that make a gradient, about; a guess."""


class BatchParts(NamedTuple):
    """The gradients of a batch that comes in parts."""

    agree: str
    """The sentence on gradients that agree; empty if they do not."""
    finding: Optional[Finding] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first gradient, where all are one multiple of those of the other run."""
    cause: Sentence = NOTHING


class _Gradient(NamedTuple):
    """The gradient of one parameter in both runs."""

    call: Call
    """The first call that has it."""
    items: tuple[Item, Item]
    numbers: tuple[int, int]
    """The number of parts that gave it."""
    sketches: tuple[NDArray[Any], NDArray[Any]]
    """The sketches of target and golden run, after the last part."""
    sums: tuple[NDArray[Any], NDArray[Any]]
    """The sums of the sketches over the parts."""


def is_in_parts(row: Row) -> bool:
    """True if one side has a part of a batch there, and the other side all of it."""
    sides = [item.shape or () for item in (row.target, row.golden) if item is not None and item.is_tensor]
    if len(sides) < 2 or sides[0] == sides[1] or is_parameter(row) or sides[0][1:] != sides[1][1:]:
        return False
    sizes = sorted(shape[0] for shape in sides if shape)
    return len(sizes) == 2 and sizes[0] > 0 and sizes[1] % sizes[0] == 0


def same_parameters(runs: TwoRuns) -> dict[str, tuple[UpdatedParameter, UpdatedParameter]]:
    """The parameters that optimizers of both runs update, by their names in the model, compiled or not."""
    mine, theirs = ({_plain(each.name): each for step in side for each in step.parameters} for side in runs.updates)
    return {name: (each, theirs[name]) for name, each in mine.items() if name in theirs}


def gradients_agree(runs: TwoRuns) -> str:
    """The sentence on gradients that agree as the optimizers of both runs took them; empty if they do not.

    In short dtypes nothing is said: what rounding may do there to a gradient hides a fault of a tenth of it.
    """
    both = same_parameters(runs)
    gradients = [(one.gradient, other.gradient) for one, other in both.values()]
    names = {_plain(each.name) for side in runs.updates for step in side for each in step.parameters}
    known = [(one.sums.astype("f8"), other.sums.astype("f8")) for one, other in gradients if one and other]
    if not known or len(known) < len(names) or runs.precision.shortest >= SHORT:
        return ""
    allowed = SAFETY * rounding(_TERMS, unit_roundoff("float32"))
    return f"the gradients of all {len(known)} parameters agree" if max(_distances(known)) <= allowed else ""


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")


def batch_parts(runs: TwoRuns, pairs: Sequence[CallPair]) -> BatchParts | None:
    """The gradients of a batch that comes in parts; ``None`` where they do not tell, as in short dtypes if they agree.

    Args:
        runs: two runs of one program, of which one takes its data in parts.
        pairs: all calls side by side, with those behind the last that both have.
    """
    found = list(_gradients(runs, pairs)) if runs.same_names and runs.tables is not None else []
    numbers = {each.numbers for each in found}
    if len(numbers) != 1 or len(set(next(iter(numbers)))) == 1:
        return None
    parts, side = max((number, side) for number, side in zip(next(iter(numbers)), (TARGET, GOLDEN)))
    unit = max(runs.precision.shortest, *(runs.precision.unit(Row("", *each.items)) for each in found))
    allowed = SAFETY * rounding(_TERMS, unit)
    for gradients in ([each.sketches for each in found], [each.sums for each in found]):
        distances = _distances(gradients)
        if max(distances) <= allowed:
            if unit >= SHORT:
                return None
            text = f"the {side} takes the batch in {parts} parts"
            return BatchParts(f"{text}, and its gradients of all {len(found)} parameters agree")
        value = _common_factor(gradients, allowed)
        if value is not None:
            first = found[0]
            items = first.items
            row = Row(items[0].name.rpartition(".")[0], items[0], items[1], items[1].name.rpartition(".")[0])
            finding = Finding(first.call, row, Kind.OUTPUT, distances[0], 0.0, allowed)
            return BatchParts("", finding, _factor_sentence(value, parts, side))
    return None


def _gradients(runs: TwoRuns, pairs: Sequence[CallPair]) -> Iterator[_Gradient]:
    lists: tuple[dict[str, list[Item]], dict[str, list[Item]]] = {}, {}
    first: dict[str, Call] = {}
    for pair in pairs:
        call = runs.by_record.get(pair.record or "")
        for row in pair.rows if f".{PARAMETERS_GRAD}." in (pair.record or pair.golden_record or "") else ():
            key = f"{base_of(pair.record or pair.golden_record)}.{own_name(row)}"
            if call is not None and call.is_of_both:
                first.setdefault(key, call)
            for side, item in enumerate((row.target, row.golden)):
                if item is not None and item.is_tensor:
                    lists[side].setdefault(key, []).append(item)
    for key, mine in lists[0].items():
        theirs = lists[1].get(key, [])
        one, two = arithmetic.sums(runs, 0, mine), arithmetic.sums(runs, 1, theirs)
        if one is not None and two is not None and key in first:
            items, numbers = (mine[-1], theirs[-1]), (len(mine), len(theirs))
            yield _Gradient(first[key], items, numbers, (one[-1], two[-1]), (one.sum(0), two.sum(0)))


_Pairs = list[tuple["NDArray[Any]", "NDArray[Any]"]]


def _distances(pairs: _Pairs) -> list[float]:
    """The distances of gradients, less what the rounding of the largest adds: some gradients are rounding alone."""
    sizes = [max(math.sqrt(float(each @ each)) for each in pair) for pair in pairs]
    lost = rounding(1.0, unit_roundoff("float32")) * max(sizes)
    found = []
    for (mine, theirs), size in zip(pairs, sizes):
        left = mine - theirs
        found.append(max(0.0, math.sqrt(float(left @ left)) - lost) / size if size else 0.0)
    return found


def _common_factor(pairs: _Pairs, allowed: float) -> float | None:
    """The factor by which all gradients are those of the golden run; ``None`` if they are not."""
    over = sum(float(mine @ theirs) for mine, theirs in pairs)
    under = sum(float(theirs @ theirs) for _, theirs in pairs)
    value = over / under if under else 0.0
    if not value or not math.isfinite(value):
        return None
    return value if max(_distances([(mine / value, theirs) for mine, theirs in pairs])) <= allowed else None


def _factor_sentence(value: float, parts: int, side: str) -> Sentence:
    number = value if side == TARGET else 1.0 / value
    if math.isclose(number, parts, rel_tol=0.01):
        added = f"the {side} adds the gradients of {parts} parts of the batch up"
        return Sentence(f"{added} and does not divide by {parts}")
    scaled = arithmetic.in_words(value, (), 0.01)
    return Sentence(
        f"all gradients of parameters are {scaled} times those of the golden run; the {side} takes the batch in "
        f"{parts} parts"
    )
