"""A call of one run, run again on the inputs of another run, which separates what came in from what was done.

The target's result and the golden run's differ for two reasons: the inputs differ, or the call does. Between the two
results lies a third one, that of the target's call on the golden run's inputs. From there to the target's result the
inputs alone change, and to the golden run's result the call alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.arguments import RecordedLeaf, Unreadable
from probe.calls.cases import Case, case_of, rounded_as
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import draws_random_numbers, judge_results
from probe.calls.prepared import (
    PreparedCall,
    RecordedValues,
    prepare,
    reason,
    recorded_results,
    recorded_values,
    run_as_recorded,
)
from probe.calls.verdict.subject import EXACT, PASS
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, is_module, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import INPUT
from probe.common.numerics.formats import plain_name
from probe.rerun.rerun_call import SelectedCall, check_memory

Array = NDArray[Any]

INPUTS = "inputs"
"""The call gives the golden run's result: what came in is the cause."""
CALL = "call"
"""The call gives the target's result: what was done is the cause."""
NEITHER = "neither"
"""The call gives neither result."""
EITHER = "either"
"""The call gives both results, as far as rounding lets anybody tell."""
NOT_REPRODUCED = "not_reproduced"
"""On the target's own inputs it does not give the target's result, so that it says nothing of the golden run's."""
NOT_RUN = "not_run"

_DOMINATES = 10.0
"""The ratio of two effects from which on the larger one is named alone where tolerances do not tell. A guess:
inputs in another precision move a result by up to a hundredth of it, and a wrong call by more than a tenth."""
_RUNS = 2
"""The call on either inputs is held at once."""


class RecordOf(NamedTuple):
    """One record of a dump."""

    dump: Dump
    name: str


@dataclass(frozen=True)
class ExchangedInputs:
    """The outcome of the call on the other run's inputs."""

    answer: str
    why: str = ""
    """The reason why it was not run."""
    inputs: Sequence[str] = ()
    """The inputs that differ, where others are equal."""
    by_inputs: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The move of the result by the inputs, relative to its norm; ``None`` if it was not run, or is not finite."""
    by_call: Optional[float] = None  # noqa: UP045
    """The move of the result by the call, relative to its norm."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.answer == NOT_RUN:
            return f"not run again: {self.why}"
        if self.answer == NOT_REPRODUCED:
            return (
                "run again on its own inputs, the target's call does not give the target's result: the kernel of the "
                "target is not the kernel of this machine"
            )
        found = f"run again on the golden run's inputs, the target's call gives {_ANSWERS[self.answer]}"
        if self.answer == INPUTS:
            return f"{found} ({', '.join(self.inputs)})" if self.inputs else found
        if self.answer == NEITHER and self.by_inputs is not None and self.by_call is not None:
            return f"{found} (relative effect of the inputs {self.by_inputs:.1e}, of the call {self.by_call:.1e})"
        return found


_ANSWERS = {
    INPUTS: "the golden result: its inputs are the cause",
    CALL: "the target's result: the kernel or its arguments differ",
    NEITHER: "neither result: inputs and call both have an effect",
    EITHER: "either result: they are the same within rounding error",
}


def exchange(
    execution: Execution, target: RecordOf, golden: RecordOf, device: str, max_memory: float = math.inf
) -> ExchangedInputs:
    """Run the target's call on the golden run's inputs, and say which of both results it gives.

    Args:
        execution: The framework of the target.
        target: The call that is run.
        golden: The call whose inputs it gets; it may be one of another framework.
        device: Where it is run, such as ``cpu``.
        max_memory: Bytes that it may take; a call that needs more is not run.
    """
    try:
        return _exchanged(execution, target, golden, device, max_memory)
    except Exception as error:
        # A framework raises what it likes, and a comparison has its answer without this one.
        return ExchangedInputs(NOT_RUN, reason(error))


def _exchanged(
    execution: Execution, target: RecordOf, golden: RecordOf, device: str, max_memory: float
) -> ExchangedInputs:
    mine, theirs = _selected(target), _selected(golden)
    if mine.direction != theirs.direction:
        raise Unreadable(f"it is the {mine.direction} of one side and the {theirs.direction} of the other")
    check_memory(execution, target.dump, mine, max_memory, _RUNS)
    own = _in_direction(prepare(execution, target.dump, mine.case, 0), mine.direction)
    if draws_random_numbers(execution, own, device, ""):
        raise Unreadable("it draws random numbers")
    again, autocast = run_as_recorded(execution, own, device)
    recorded = _recorded(target.dump, own, again, mine.direction)
    if not _Judged(own, device, autocast, mine.direction).agree(again, recorded):
        return ExchangedInputs(NOT_REPRODUCED)
    return _between(execution, own, recorded, (golden.dump, theirs.case), device, mine.direction)


def _between(
    execution: Execution, own: PreparedCall, of_target: Results, golden: tuple[Dump, Case], device: str, direction: str
) -> ExchangedInputs:
    """The recorded result, of the two, that the call gives on the golden run's inputs."""
    dump, case = golden
    as_golden = _given(own, recorded_values(dump, case, 0), direction)
    as_target = _in_dtypes_of(own, as_golden)
    results, autocast = run_as_recorded(execution, as_target, device)
    of_golden = _recorded(dump, replace(as_golden, case=case), results, direction)
    judged = _Judged(as_target, device, autocast, direction)
    # Right results of one call in two precisions are the same, however far the coarser one is from the other.
    is_golden = judged.agree(results, of_golden) or (
        judged.agree(results, as_target.call.reference)
        and _Judged(as_golden, device, "", direction).agree(of_golden, as_golden.call.reference)
    )
    is_target = judged.agree(results, of_target)
    by_inputs = _distance(of_target, results, direction)
    by_call = _distance(results, of_golden, direction)
    if is_golden and is_target:
        # Equal inputs are no cause, however little the results differ.
        answer = CALL if by_call and _are_same(own, as_golden) else EITHER
    else:
        answer = _answer(is_golden, is_target, by_inputs, by_call)
    return ExchangedInputs(answer, "", _differing(own, as_target), _finite(by_inputs), _finite(by_call))


def _answer(is_golden: bool, is_target: bool, by_inputs: float, by_call: float) -> str:
    if is_golden != is_target:
        return INPUTS if is_golden else CALL
    if by_inputs > _DOMINATES * by_call:
        return INPUTS
    return CALL if by_call > _DOMINATES * by_inputs else NEITHER


# --- what is run


def _selected(record: RecordOf) -> SelectedCall:
    """The call of a record.

    Raises:
        Unreadable: it is none of a function.
    """
    if not record.name:
        raise Unreadable("only one side makes this call")
    if is_module(record.name):
        raise Unreadable("it is a module")
    named = parse(record.name)
    forward = "" if named is None else api_name(named.base, named.number, FORWARD)
    case = case_of(record.dump, record.dump[forward]) if forward in record.dump else None
    if named is None or case is None:
        raise Unreadable("it is no call of a function")
    return SelectedCall(case, named.direction)


def _in_direction(prepared: PreparedCall, direction: str) -> PreparedCall:
    if direction == FORWARD:
        return prepared.forward_alone()
    if prepared.backward_not_run:
        raise Unreadable(f"its backward is not run: {prepared.backward_not_run}")
    return prepared


def _given(own: PreparedCall, golden: RecordedValues, direction: str) -> PreparedCall:
    """The call with what the golden run gave it, as that run had it.

    Raises:
        Unreadable: these are other tensors than the call takes.
    """
    order = _in_order(own.arguments.leaves, golden.arguments.leaves)
    for mine, index in zip(own.arguments.leaves, order):
        theirs = golden.arguments.leaves[index]
        if mine.shape != theirs.shape:
            raise Unreadable(f"{_short(mine)} has the shape {list(mine.shape)}, in the golden run {list(theirs.shape)}")
    if direction == BACKWARD and golden.backward_not_run:
        raise Unreadable(f"the golden run's backward is not run: {golden.backward_not_run}")
    output_gradients = golden.output_gradients if direction == BACKWARD else []
    if _shapes(own.output_gradients) != _shapes(output_gradients):
        raise Unreadable("the gradients of its outputs have other shapes in the golden run")
    arguments = own.arguments.with_leaves([golden.arguments.leaves[index] for index in order])
    leaves = [golden.leaves[index] for index in order]
    call = own.call.with_inputs(arguments, leaves, output_gradients)
    return replace(
        own,
        arguments=arguments,
        leaves=leaves,
        output_gradients=output_gradients,
        outputs=golden.outputs,
        gradients=golden.gradients if direction == BACKWARD else [],
        call=call,
    )


def _shapes(output_gradients: Sequence[Array | None]) -> list[tuple[int, ...] | None]:
    return [None if each is None else each.shape for each in output_gradients]


def _in_order(mine: Sequence[RecordedLeaf], theirs: Sequence[RecordedLeaf]) -> list[int]:
    """The index of the golden run's tensor for each of the target's: by its name, or else by its index.

    Raises:
        Unreadable: one side has more.
    """
    if len(mine) != len(theirs):
        raise Unreadable(f"it takes {len(mine)} tensors, in the golden run {len(theirs)}")
    names = {_short(leaf): index for index, leaf in enumerate(theirs)}
    if names.keys() == {_short(leaf) for leaf in mine}:
        return [names[_short(leaf)] for leaf in mine]
    return list(range(len(mine)))


def _short(leaf: RecordedLeaf) -> str:
    """The name of an input without that of its record: ``input.1``."""
    return f"{INPUT}{leaf.item.name.partition(f'.{INPUT}')[2]}"


def _in_dtypes_of(own: PreparedCall, as_golden: PreparedCall) -> PreparedCall:
    """The golden run's inputs in the dtypes that the target's call takes."""
    leaves = [rounded_as(each, leaf.dtype) for each, leaf in zip(as_golden.leaves, own.arguments.leaves)]
    dtypes = [plain_name(item.dtype or "") for item in own.outputs]
    output_gradients = [
        None if each is None else rounded_as(each, of) for each, of in zip(as_golden.output_gradients, dtypes)
    ]
    call = own.call.with_inputs(own.arguments, leaves, output_gradients)
    return replace(own, leaves=leaves, output_gradients=output_gradients, call=call)


def _recorded(dump: Dump, prepared: PreparedCall, like: Results, direction: str) -> Results:
    """The recorded values of a dump in the places of `like`.

    Raises:
        Unreadable: it does not have that.
    """
    found = recorded_results(dump, prepared, like)
    if direction == BACKWARD and not any(each.value is not None for each in found.gradients):
        raise Unreadable("the recorded gradients belong to steps inside the function")
    return found


# --- what came of it


class _Judged(NamedTuple):
    """Holds results of one call against each other."""

    prepared: PreparedCall
    device: str
    autocast: str
    direction: str

    def agree(self, results: Results, others: Results) -> bool:
        """Tell whether rounding explains all that differs, in the dtypes of `results`."""
        rows = judge_results(self.prepared, results, _wide(others), self.device, self.autocast)
        wanted = [row for row in rows if bool(row.of) == (self.direction == BACKWARD)]
        return bool(wanted) and all(row.verdict.status in (EXACT, PASS) for row in wanted)


def _wide(results: Results) -> Results:
    """The numbers of results in the type of a reference."""
    return replace(
        results,
        outputs=[_wide_output(each) for each in results.outputs],
        gradients=[_wide_output(each) for each in results.gradients],
    )


def _wide_output(output: Output) -> Output:
    value = output.value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return output
    return replace(output, value=value.astype(np.complex128 if value.dtype.kind == "c" else np.float64))


def _distance(one: Results, other: Results, direction: str) -> float:
    """The largest distance of two results, relative to the norm of `other`; of whole numbers the share that differs."""
    return max((_relative(first, then) for first, then in _pairs(one, other, direction)), default=math.inf)


def _pairs(one: Results, other: Results, direction: str) -> Iterator[tuple[Array, Array]]:
    part = "gradients" if direction == BACKWARD else "outputs"
    for first, then in zip(getattr(one, part), getattr(other, part)):
        if isinstance(first.value, np.ndarray) and isinstance(then.value, np.ndarray):
            yield first.value, then.value


def _relative(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        return math.inf
    differs = np.asarray(one != other)
    if one.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        return float(differs.mean()) if differs.size else 0.0
    differs &= ~(np.isnan(one) & np.isnan(other))
    if not differs.any():
        return 0.0
    with np.errstate(all="ignore"):
        wide: Any = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
        far = np.linalg.norm(one[differs].astype(wide) - other[differs].astype(wide))
        size = np.linalg.norm(other[np.isfinite(other)].astype(wide))
    found = float(far / size) if size else math.inf
    return found if math.isfinite(found) else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _inputs_of(prepared: PreparedCall) -> dict[str, Array]:
    """The values that a call was given, by short names."""
    found = {_short(leaf): values for leaf, values in zip(prepared.arguments.leaves, prepared.leaves)}
    gradients = enumerate(prepared.output_gradients)
    return {**found, **{f"gradient of output {index}": each for index, each in gradients if each is not None}}


def _are_equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc")


def _are_same(own: PreparedCall, golden: PreparedCall) -> bool:
    """Tell whether both runs gave the call the same values."""
    return all(map(_are_equal, _inputs_of(own).values(), _inputs_of(golden).values()))


def _differing(own: PreparedCall, other: PreparedCall) -> list[str]:
    """The inputs whose values differ; none where all of them do, of which names say nothing."""
    mine, theirs = _inputs_of(own), _inputs_of(other)
    found = [name for name, values in mine.items() if not _are_equal(values, theirs[name])]
    return found if len(found) < len(mine) else []
