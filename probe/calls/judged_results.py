"""The results of a call that was run again, judged: one verdict for each output and for each gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.evaluation import Results
from probe.calls.memory_errors import raise_unless_refusal
from probe.calls.prepared import RECORDED, Prepared
from probe.calls.verdict.subject import ERROR, EXACT, STRUCTURE, KernelVerdict, Subject
from probe.calls.verdict.verdict import judge
from probe.common.dump.reading.items import OUTPUT
from probe.common.numerics.formats import is_float, plain_name

Array = NDArray[Any]


@dataclass(frozen=True)
class JudgedResult:
    """One output of a call, or the gradient of one of its inputs."""

    name: str
    """``Functional.silu.0.forward.output.0``, ``Functional.silu.0.backward.output.0``."""
    of: str
    """For a gradient the input: ``Functional.silu.0.forward.input.0``; empty for an output."""
    dtype: str
    """The plain name of its dtype; the class of a plain value."""
    reference_dtype: str
    shape: tuple[int, ...]
    verdict: KernelVerdict


def draws_random_numbers(execution: Execution, prepared: Prepared, device: str, autocast: str) -> bool:
    """Tell whether the function draws random numbers: another seed gives something else, the same seed does not.

    Raises:
        MemoryError: there is no memory to find out.
        RecursionError: the stack is too deep already.
    """
    where = "cpu" if device == RECORDED else device
    found = []
    for seed in (0, 0, 1):
        execution.seed_draws(seed)
        try:
            found.append(prepared.call.on(where, autocast or None))
        except Exception as error:
            raise_unless_refusal(error)
            # A call recorded elsewhere may have no kernel here.
            return False
    first, again, other = found
    return are_equal(first, again) and not are_equal(first, other)


def are_equal(one: Results, other: Results) -> bool:
    pairs = zip([*one.outputs, *one.gradients], [*other.outputs, *other.gradients])
    return all(
        np.array_equal(first.value, second.value, equal_nan=first.value.dtype.kind in "fc")
        if isinstance(first.value, np.ndarray) and isinstance(second.value, np.ndarray)
        else first.value is second.value or bool(first.value == second.value)
        for first, second in pairs
    )


def judge_results(
    prepared: Prepared, results: Results, reference: Results, device: str, autocast: str
) -> Iterator[JudgedResult]:
    """A row for each of `results`, and for each gradient that there is."""
    return _JudgedCall(prepared, results, reference, device, autocast).rows()


class _JudgedCall:
    """Judges the results of one case."""

    def __init__(self, prepared: Prepared, results: Results, reference: Results, device: str, autocast: str) -> None:
        self._prepared, self._results, self._reference = prepared, results, reference
        self._autocast = autocast
        # On the CPU the kernel under test would be its own yardstick.
        self._has_yardstick = device not in ("cpu", RECORDED)
        self._yardstick: Results | None = None

    def rows(self) -> Iterator[JudgedResult]:
        """A row for each output, and for each gradient that there is."""
        case = self._prepared.case
        given, wanted = len(self._results.outputs), len(self._reference.outputs)
        if given != wanted:
            text = f"it returns {given} values where the reference has {wanted}"
            yield JudgedResult(f"{case.forward.name}.{OUTPUT}", "", "", "", (), KernelVerdict(STRUCTURE, text))
            return
        for place, result in enumerate(self._results.outputs):
            yield self._row(f"{case.forward.name}.{OUTPUT}.{result.path}", "", "outputs", place)
        differentiated = [leaf for leaf in self._prepared.arguments.leaves if leaf.is_differentiated]
        for place, leaf in enumerate(differentiated if self._results.gradients else ()):
            found = self._results.gradients[place], self._reference.gradients[place]
            # The gradient of an input on which nothing depends is none in both.
            if any(each.value is not None for each in found):
                yield self._row(f"{case.name}.backward.{OUTPUT}.{leaf.number}", leaf.item.name, "gradients", place)

    def _row(self, name: str, of: str, part: str, place: int) -> JudgedResult:
        result, expected = getattr(self._results, part)[place], getattr(self._reference, part)[place]
        dtype = result.dtype or ""
        prepared, call = self._prepared, self._prepared.call
        inputs, dtypes = list(prepared.leaves), [leaf.dtype for leaf in prepared.arguments.leaves]
        if of:
            inputs += [each for each in prepared.of_outputs if each is not None]
            dtypes += [plain_name(item.dtype or "") for item in prepared.outputs][: len(inputs) - len(dtypes)]

        def pick(results: Results | None) -> Array | None:
            value = None if results is None else getattr(results, part)[place].value
            return value if isinstance(value, np.ndarray) else None

        if not isinstance(result.value, np.ndarray) or not isinstance(expected.value, np.ndarray):
            return _plain_row(name, of, result.value, expected.value)
        wanted = self._recorded_dtype(of, part, place)
        if wanted != dtype and is_float(wanted) and is_float(dtype):
            verdict = KernelVerdict(STRUCTURE, f"{dtype} where {wanted} was recorded")
            return JudgedResult(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)
        verdict = judge(
            Subject(
                base=prepared.case.base,
                direction="backward" if of else "forward",
                result=result.value,
                reference=expected.value,
                dtype=dtype,
                inputs=inputs,
                input_dtypes=dtypes,
                moved=lambda unit, inside: pick(call.moved(unit, inside)),
                rounded=lambda precision: pick(call.rounded(precision)),
                yardstick=lambda: pick(self._on_cpu()),
                settings=prepared.arguments.settings,
                moved_inside=lambda unit: pick(call.moved(unit, inside=True, inputs=False)),
                precision=self._autocast,
            )
        )
        return JudgedResult(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)

    def _recorded_dtype(self, of: str, part: str, place: int) -> str:
        """The dtype that the result had when it was recorded; that of a gradient is the dtype of its input."""
        if of:
            return self._prepared.arguments.leaves[int(getattr(self._results, part)[place].path)].dtype
        tensors = [number for number, output in enumerate(self._results.outputs) if output.dtype is not None]
        recorded = self._prepared.outputs
        fits = len(tensors) == len(recorded)
        return plain_name(recorded[tensors.index(place)].dtype or "") if fits else ""

    def _on_cpu(self) -> Results | None:
        """The results of the CPU's own kernel for the case, in the device's dtype."""
        if self._has_yardstick:
            self._has_yardstick = False
            try:
                self._yardstick = self._prepared.call.on("cpu", self._autocast or None)
            except Exception as error:
                raise_unless_refusal(error)
                # Kernels of half precision are missing on CPUs; the other tolerances stay.
        return self._yardstick


def _plain_row(name: str, of: str, result: Any, expected: Any) -> JudgedResult:
    """The row of what is no tensor on one side: a number, a text, a gradient that is not there."""
    kind, expected_kind = type(result).__name__, type(expected).__name__
    if isinstance(result, np.ndarray) or isinstance(expected, np.ndarray) or kind != expected_kind:
        verdict = KernelVerdict(STRUCTURE, f"{_spoken(result)} where the reference has {_spoken(expected)}")
    elif result == expected or result != result:
        verdict = KernelVerdict(EXACT, "equal", "exact")
    else:
        verdict = KernelVerdict(ERROR, f"{result!r} where the reference has {expected!r}", "exact")
    return JudgedResult(name, of, kind, expected_kind, (), verdict)


def _spoken(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {list(value.shape)}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
