"""The results of a call that was run again, judged: one verdict for each output and for each gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.evaluation import Call, Output, Results, raise_unless_refusal
from probe.calls.prepared import RECORDED, PreparedCall
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


def draws_random_numbers(execution: Execution, prepared: PreparedCall, device: str, autocast: str) -> bool:
    """Tell whether the function of a recorded call draws random numbers.

    Raises:
        MemoryError: there is no memory to find out.
        RecursionError: the stack is too deep already.
    """

    def run(seed: int) -> Results:
        execution.seed_draws(seed)
        return prepared.call.on("cpu" if device == RECORDED else device, autocast or None)

    try:
        return depends_on_seed(run)
    except Exception as error:
        raise_unless_refusal(error)
        # A call recorded elsewhere may have no kernel here.
        return False


def depends_on_seed(run: Callable[[int], Results]) -> bool:
    """True if a call gives something else with another seed, but not with the same seed; `run` makes it with a seed."""
    first, again, other = run(0), run(0), run(1)
    return are_equal(first, again) and not are_equal(first, other)


def are_equal(one: Results, other: Results) -> bool:
    """True if two results have the same values; NaN equals NaN."""
    pairs = zip([*one.outputs, *one.gradients], [*other.outputs, *other.gradients])
    return all(
        np.array_equal(first.value, second.value, equal_nan=first.value.dtype.kind in "fc")
        if isinstance(first.value, np.ndarray) and isinstance(second.value, np.ndarray)
        else first.value is second.value or bool(first.value == second.value)
        for first, second in pairs
    )


@dataclass
class ExactCall:
    """A call in float64, by which results of it are judged, whether it was recorded or has just been made.

    Args:
        base: The function: ``Functional.silu``.
        call: The call with its inputs.
        inputs: The values of its tensors, followed by the gradients of its outputs that are given.
        dtypes: The dtypes of these.
        tensors: The number of its tensors, so many of `inputs`.
        settings: The arguments that are no tensors.
        autocast: The dtype to which it was cast; empty without.
        on_accelerator: True if the results are not of the CPU, so that the CPU's own kernel is a yardstick for them.
        near: The call with inputs that differ by a rounding, whose conditioning is the same; ``None`` for the call.
        part: The results that are judged unless `verdict` is given another part: ``outputs`` or ``gradients``.
    """

    base: str
    call: Call
    inputs: Sequence[Array]
    dtypes: Sequence[str]
    tensors: int
    settings: Mapping[str, Any]
    autocast: str
    on_accelerator: bool
    near: Optional[Call] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    part: str = "outputs"

    def __post_init__(self) -> None:
        self._cpu_results: Results | None = None

    @property
    def results(self) -> list[Output]:
        """The exact results."""
        found: list[Output] = getattr(self.call.reference, self.part)
        return found

    def on_cpu(self) -> list[Output]:
        """The results of the CPU's own kernels in the dtypes of the call."""
        found: list[Output] = getattr(self._on_cpu(), self.part)
        return found

    def _on_cpu(self) -> Results:
        if self._cpu_results is None:
            self._cpu_results = self.call.on("cpu", self.autocast or None)
        return self._cpu_results

    def verdict(
        self, index: int, result: Output, reference: Array | None = None, part: str = "", precision: str = ""
    ) -> KernelVerdict:
        """The verdict on one result.

        Args:
            index: The number of the result in its part.
            result: The result.
            reference: The exact values, if they are not those of `results`.
            part: The part of the result, if it is another one.
            precision: The dtype in which it was computed, if that is neither its own nor that of autocast.
        """
        part = part or self.part

        def pick(results: Results | None) -> Array | None:
            value = None if results is None else getattr(results, part)[index].value
            return value if isinstance(value, np.ndarray) else None

        is_gradient, near = part == "gradients", self.near or self.call
        count = len(self.inputs) if is_gradient else self.tensors
        return judge(
            Subject(
                base=self.base,
                direction="backward" if is_gradient else "forward",
                result=result.value,
                reference=self.results[index].value if reference is None else reference,
                dtype=result.dtype or "",
                inputs=self.inputs[:count],
                input_dtypes=self.dtypes[:count],
                moved=lambda unit, inside: pick(near.moved(unit, inside)),
                rounded=lambda precision: pick(self.call.rounded(precision)),
                yardstick=lambda: pick(self._yardstick()),
                settings=self.settings,
                moved_inside=lambda unit: pick(near.moved(unit, inside=True, inputs=False)),
                precision=precision or self.autocast,
            )
        )

    def _yardstick(self) -> Results | None:
        # On the CPU the kernel under test would be its own yardstick.
        if not self.on_accelerator:
            return None
        try:
            return self._on_cpu()
        except Exception as error:
            raise_unless_refusal(error)
            # Kernels of half precision are missing on CPUs; the other tolerances stay.
            self.on_accelerator = False
            return None


def judge_results(
    prepared: PreparedCall, results: Results, reference: Results, device: str, autocast: str
) -> Iterator[JudgedResult]:
    """A row for each of `results`, and for each gradient that there is."""
    return _JudgedCall(prepared, results, reference, device, autocast).rows()


class _JudgedCall:
    """Judges the results of one case."""

    def __init__(
        self, prepared: PreparedCall, results: Results, reference: Results, device: str, autocast: str
    ) -> None:
        self._prepared, self._results, self._reference = prepared, results, reference
        given = [each for each in prepared.output_gradients if each is not None]
        dtypes = [leaf.dtype for leaf in prepared.arguments.leaves]
        self._exact = ExactCall(
            prepared.case.base,
            prepared.call,
            [*prepared.leaves, *given],
            [*dtypes, *[plain_name(item.dtype or "") for item in prepared.outputs][: len(given)]],
            len(dtypes),
            prepared.arguments.settings,
            autocast,
            device not in ("cpu", RECORDED),
        )

    def rows(self) -> Iterator[JudgedResult]:
        """A row for each output, and for each gradient that there is."""
        case = self._prepared.case
        given, wanted = len(self._results.outputs), len(self._reference.outputs)
        if given != wanted:
            text = f"it returns {given} values where the reference has {wanted}"
            yield JudgedResult(f"{case.forward.name}.{OUTPUT}", "", "", "", (), KernelVerdict(STRUCTURE, text))
            return
        for index, result in enumerate(self._results.outputs):
            yield self._row(f"{case.forward.name}.{OUTPUT}.{result.path}", "", "outputs", index)
        differentiated = [leaf for leaf in self._prepared.arguments.leaves if leaf.is_differentiated]
        for index, leaf in enumerate(differentiated if self._results.gradients else ()):
            found = self._results.gradients[index], self._reference.gradients[index]
            # The gradient of an input on which nothing depends is none in both.
            if any(each.value is not None for each in found):
                yield self._row(f"{case.name}.backward.{OUTPUT}.{leaf.number}", leaf.item.name, "gradients", index)

    def _row(self, name: str, of: str, part: str, index: int) -> JudgedResult:
        result, expected = getattr(self._results, part)[index], getattr(self._reference, part)[index]
        dtype = result.dtype or ""
        if not isinstance(result.value, np.ndarray) or not isinstance(expected.value, np.ndarray):
            return _plain_row(name, of, result.value, expected.value)
        wanted = self._recorded_dtype(of, part, index)
        if wanted != dtype and is_float(wanted) and is_float(dtype):
            verdict = KernelVerdict(STRUCTURE, f"{dtype} where {wanted} was recorded")
            return JudgedResult(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)
        verdict = self._exact.verdict(index, result, expected.value, part)
        return JudgedResult(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)

    def _recorded_dtype(self, of: str, part: str, index: int) -> str:
        """The dtype that the result had when it was recorded; that of a gradient is the dtype of its input."""
        if of:
            return self._prepared.arguments.leaves[int(getattr(self._results, part)[index].path)].dtype
        tensors = [number for number, output in enumerate(self._results.outputs) if output.dtype is not None]
        recorded = self._prepared.outputs
        fits = len(tensors) == len(recorded)
        return plain_name(recorded[tensors.index(index)].dtype or "") if fits else ""


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
