"""A case on large tensors: the device computes it as a whole, and its elements are judged part by part.

That is possible for functions of which each element of the result, and of each gradient, is made of one element of each
argument. The reference, and how far roundings move it, then exist for one part at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.cases import Values, values_of
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import JudgedResult, judge_results
from probe.calls.prepared import RECORDED, PreparedCall
from probe.calls.verdict.bounds import known_of
from probe.calls.verdict.subject import EXACT, PASS, SEVERITY, KernelVerdict
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import INPUT, OUTPUT, Item, flatten
from probe.common.numerics.formats import plain_name, rounds
from probe.common.operations.function import ACTIVATION, ELEMENTWISE, ROUNDED_ONCE, Trait
from probe.common.operations.lookup import has
from probe.precheck.case_results import EvaluatedCase

Array = NDArray[Any]
LARGE = 1 << 22
"""Elements from which a case is judged in parts: as a whole it would take half a gigabyte."""
PART = 1 << 19
"""Elements of a part. Measured for `gelu`: smaller ones take a third more time, larger ones no less."""


def is_possible(prepared: PreparedCall, device: str) -> bool:
    """True of a case that may be judged in parts; its values need not be there.

    All tensors have the shape and the dtype of the one output, but for single numbers that have no gradient.
    """
    of_record = [item for item in prepared.case.forward.items() if item.state == OUTPUT]
    if (
        device == RECORDED
        or len(of_record) != 1
        or len(prepared.outputs) != 1
        or not _is_elementwise(prepared.case.base)
    ):
        return False
    output = prepared.outputs[0]
    dtype = plain_name(output.dtype or "")
    others = [leaf for leaf in prepared.arguments.leaves if leaf.shape != output.shape]
    return (
        rounds(dtype)
        and len(others) < len(prepared.arguments.leaves)
        and all(math.prod(leaf.shape) == 1 and not leaf.is_differentiated for leaf in others)
        and all(leaf.dtype == dtype or not rounds(leaf.dtype) for leaf in prepared.arguments.leaves)
    )


def _is_elementwise(base: str) -> bool:
    return known_of(base, "forward").kind in (ELEMENTWISE, ROUNDED_ONCE, ACTIVATION) or has(base, Trait.EACH_ALONE)


@dataclass(frozen=True)
class InParts:
    """A case that was judged in parts."""

    rows: tuple[JudgedResult, ...]
    worst: EvaluatedCase
    """The part with the worst verdict."""
    whole: Optional[EvaluatedCase]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """All of it, where that was asked for."""


def judge_in_parts(
    execution: Execution, dump: Dump, prepared: PreparedCall, seed: int, device: str, keep_whole: bool
) -> InParts:
    """Run a case and judge it.

    Args:
        execution: The framework.
        dump: The dump.
        prepared: The case, without its values.
        seed: The seed of generated inputs.
        device: Where it is run.
        keep_whole: Keep all results with their reference, for rules that judge them as a whole.

    Raises:
        Unreadable: a value cannot be read or made.
        Exception: whatever the framework raises.
    """
    values = _Loaded(dump, prepared, seed)
    ran = _ran(execution, prepared, values, device)
    prepared = replace(
        prepared, leaves=values.leaves(), output_gradients=values.output_gradients(), generated=values.generated
    )
    shape = prepared.outputs[0].shape or ()
    size = math.prod(shape)
    found: dict[str, list[_Part]] = {}
    whole = _Whole(ran, size) if keep_whole else None
    ranked: tuple[tuple[int, float], EvaluatedCase] | None = None
    for start in range(0, size, PART):
        part = slice(start, min(start + PART, size))
        of_part = _part(prepared, size, part)
        results, reference = ran.part(execution, part), of_part.call.reference
        evaluated = EvaluatedCase(of_part, reference, results)
        rows = list(judge_results(of_part, results, reference, device, ""))
        for row in rows:
            found.setdefault(row.name, []).append(_Part(start, row))
        rank = max(_rank(row.verdict) for row in rows)
        if ranked is None or rank > ranked[0]:
            ranked = rank, evaluated
        if whole is not None:
            whole.add(part, evaluated)
    assert ranked is not None
    merged = tuple(_merged(parts, shape) for parts in found.values())
    return InParts(merged, ranked[1], None if whole is None else whole.evaluated(prepared, shape))


def _part(prepared: PreparedCall, size: int, part: slice) -> PreparedCall:
    """The case of some elements alone."""
    leaves = [_cut(each, size, part) for each in prepared.leaves]
    output_gradients = [None if each is None else _cut(each, size, part) for each in prepared.output_gradients]
    return replace(
        prepared, leaves=leaves, output_gradients=output_gradients, call=prepared.call.part(leaves, output_gradients)
    )


class _Loaded:
    """The values of a case, read anew each time: while the device computes they are not kept."""

    def __init__(self, dump: Dump, prepared: PreparedCall, seed: int) -> None:
        self._dump, self._seed = dump, seed
        self._leaves = prepared.arguments.leaves
        self._given: list[Item] = []
        case = prepared.case
        if prepared.output_gradients and case.backward is not None:
            items = flatten(case.backward.name, case.backward.fields)
            self._given = [item for item in items if item.state == INPUT and item.is_tensor][:1]
        self.generated = False

    def leaf(self, number: int) -> Array:
        leaf = self._leaves[number]
        return self._kept(values_of(self._dump, leaf.item, leaf.dtype, leaf.shape, self._seed))

    def leaves(self) -> list[Array]:
        return [self.leaf(number) for number in range(len(self._leaves))]

    def output_gradients(self) -> list[Optional[Array]]:  # noqa: UP045 (as in `PreparedCall`)
        return [
            self._kept(values_of(self._dump, item, plain_name(item.dtype or ""), item.shape or (), self._seed))
            for item in self._given
        ]

    def _kept(self, values: Values) -> Array:
        self.generated = self.generated or values.generated
        return values.array


@dataclass(frozen=True)
class _Ran:
    """The results of a case on a device, as flat tensors of the framework."""

    output: Any
    gradients: Mapping[int, Any]
    """By the number of the input; ``None`` of one on which nothing depends."""

    def part(self, execution: Execution, part: slice) -> Results:
        """The values of some elements."""
        output = self._values(execution, "0", self.output, part)
        gradients = [self._values(execution, str(number), each, part) for number, each in self.gradients.items()]
        return Results([output], gradients, output)

    @staticmethod
    def _values(execution: Execution, path: str, tensor: Any, part: slice) -> Output:
        if tensor is None:
            return Output(path, None, None)
        return Output(path, execution.values(tensor[part]), execution.dtype_name(tensor))


def _ran(execution: Execution, prepared: PreparedCall, values: _Loaded, device: str) -> _Ran:
    arguments, call = prepared.arguments, prepared.call
    # Each array is let go of as soon as there is a tensor of it.
    tensors = [execution.tensor(values.leaf(n), leaf.dtype, device) for n, leaf in enumerate(arguments.leaves)]
    wanted = (
        [n for n, leaf in enumerate(arguments.leaves) if leaf.is_differentiated] if prepared.output_gradients else []
    )

    def run(given: Sequence[Any]) -> Any:
        args, kwargs = arguments.bound(given, lambda entry: execution.plain_value(entry, device))
        return call.function(*args, **kwargs)

    done = execution.evaluate(run, tensors, wanted)
    del tensors
    output = done.output
    if not execution.is_tensor(output) or tuple(output.shape) != prepared.outputs[0].shape:
        raise TypeError("it returns something else than it did when it was recorded")
    gradients: Sequence[Any] = ()
    if wanted:
        dtype = execution.dtype_name(output)
        given = [None if each is None else execution.tensor(each, dtype, device) for each in values.output_gradients()]
        gradients = done.gradients(given)
    flat = [None if each is None else each.reshape(-1) for each in gradients]
    return _Ran(output.reshape(-1), dict(zip(wanted, flat)))


def _cut(values: Array, size: int, part: slice) -> Array:
    """Some elements; of a single number the number."""
    return values.reshape(-1)[part] if values.size == size else values


class _Whole:
    """All results and references of a case, put together again."""

    def __init__(self, ran: _Ran, size: int) -> None:
        count = 1 + len(ran.gradients)
        self._size = size
        self._sides: list[list[Array | None]] = [[None] * count, [None] * count]
        self._dtypes: list[list[str | None]] = [[None] * count, [None] * count]
        self._paths = ["0", *map(str, ran.gradients)]

    def add(self, part: slice, evaluated: EvaluatedCase) -> None:
        assert evaluated.results is not None
        for side, found in enumerate((evaluated.results, evaluated.reference)):
            for index, output in enumerate((*found.outputs, *found.gradients)):
                if output.value is None:
                    continue
                array = self._sides[side][index]
                if array is None:
                    array = self._sides[side][index] = np.empty(self._size, output.value.dtype)
                    self._dtypes[side][index] = output.dtype
                array[part] = output.value

    def evaluated(self, prepared: PreparedCall, shape: tuple[int, ...]) -> EvaluatedCase:
        sides = []
        for arrays, dtypes in zip(self._sides, self._dtypes):
            made = [
                Output(path, None if array is None else array.reshape(shape), dtype)
                for path, array, dtype in zip(self._paths, arrays, dtypes)
            ]
            sides.append(Results(made[:1], made[1:], made[0]))
        return EvaluatedCase(prepared, sides[1], sides[0])


# --- one verdict of many


@dataclass(frozen=True)
class _Part:
    start: int
    row: JudgedResult


def _rank(verdict: KernelVerdict) -> tuple[int, float]:
    return SEVERITY[verdict.status], verdict.ratio or 0.0


def _merged(parts: Sequence[_Part], shape: tuple[int, ...]) -> JudgedResult:
    """The row of a whole result: that of its worst part, with what is counted over all of them."""
    worst = max(parts, key=lambda part: _rank(part.row.verdict))
    verdicts = [(part.row.shape[0], part.row.verdict) for part in parts]
    verdict = worst.row.verdict
    index = None
    if verdict.worst_index:
        index = tuple(map(int, np.unravel_index(worst.start + verdict.worst_index[0], shape)))
    ulps = [each.max_ulp for _, each in verdicts if each.max_ulp is not None]
    merged = replace(
        verdict,
        interpretation=_words(parts, worst, shape),
        worst_index=index,
        max_ulp=max(ulps) if ulps else None,
        mean_ulp=_mean((size, each.mean_ulp) for size, each in verdicts),
        share_over=_mean((size, each.share_over) for size, each in verdicts),
    )
    return replace(worst.row, shape=shape, verdict=merged)


def _mean(values: Iterator[tuple[int, float | None]]) -> float | None:
    """The mean over all elements of the parts that have a number."""
    found = [(size, value) for size, value in values if value is not None]
    return sum(size * value for size, value in found) / sum(size for size, _ in found) if found else None


def _words(parts: Sequence[_Part], worst: _Part, shape: tuple[int, ...]) -> str:
    words, status = worst.row.verdict.interpretation, worst.row.verdict.status
    if all(part.row.verdict.interpretation == words for part in parts) or status == PASS:
        return words
    if status == EXACT:
        return "every element is the nearest number to the exact one"
    wrong = sum(part.row.verdict.status not in (EXACT, PASS) for part in parts)
    begin = list(map(int, np.unravel_index(worst.start, shape)))
    return f"{words}, in the {PART} elements at {begin}; {wrong} of {len(parts)} such parts are over their tolerance"
