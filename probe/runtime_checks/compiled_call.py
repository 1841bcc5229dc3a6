"""One call of a module, kept while the program runs, and judged later: its compiled form against its eager one.

Both are evaluated on copies with the inputs of the call, the gradients that its outputs got, and the same random draws.
The exact result is that of float64. What roundings explain is what they do to it when each operation of the module is
moved by the unit roundoff of the dtype in which the eager form computes it, and what the eager form is off itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution, FrameworkAdapter, execution_of
from probe.backends.protocol.execution import Backend, Compilation, Given, KeptModule, NothingCompiled, Part
from probe.calls.arguments import Unreadable
from probe.calls.evaluation import DRAWS, raise_unless_refusal
from probe.calls.prepared import reason
from probe.calls.verdict.subject import FAILURES, SUSPECT, KernelVerdict, Subject
from probe.calls.verdict.verdict import judge
from probe.common.interfaces import Handle
from probe.common.numerics.formats import is_float, unit_roundoff
from probe.common.numerics.values import compare_values
from probe.runtime_checks.running_call import LiveArguments, differing

Array = NDArray[Any]
Failed = Callable[[str, Exception], None]
IDENTICAL = "identical"
"""The bits of both forms are equal."""
ROUNDING = "rounding"
"""The bits differ by no more than roundings make."""
DIFFERENT = "different"
NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class CompiledPart:
    """One tensor of a call in both forms."""

    module: str
    class_name: str
    stage: str
    """``forward`` or ``backward``; empty where nothing could be checked."""
    tensor: str
    status: str
    why: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    max_abs_diff: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    mean_abs_diff: Optional[float] = None  # noqa: UP045
    max_rel_diff: Optional[float] = None  # noqa: UP045
    tolerance: Optional[float] = None  # noqa: UP045
    """The difference of the worst element that roundings explain, if its exact value is known."""


class KeptCall:
    """The first call of a module, as it was made.

    Args:
        adapter: The framework.
        compilation: Its compiler.
        name: The name of the module.
        class_name: The class of the module.
        failed: Called with what a failure of the tool concerns, and the failure.
    """

    def __init__(
        self, adapter: FrameworkAdapter, compilation: Compilation, name: str, class_name: str, failed: Failed
    ) -> None:
        self.name, self.class_name = name, class_name
        self._adapter, self._compilation, self._failed = adapter, compilation, failed
        self._module: KeptModule | None = None
        self._problem = ""
        self._gradients: list[Any] = []
        self._handles: list[Handle] = []
        self.has_backward = False
        """True if a gradient of an output arrived."""

    # --- while the program runs

    def enter(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The module is about to be called."""
        try:
            arguments = LiveArguments(self._adapter, args, kwargs)
            self._inputs = arguments.forget_tensors()
            self._arguments = arguments
            self._module = self._compilation.keep(module)
            self._states = execution_of(self._adapter).random_states()
        except Exception as error:
            self._problem = str(error) if isinstance(error, Unreadable) else reason(error)

    def leave(self, outputs: Sequence[Any]) -> None:
        """The module returned these tensors."""
        self._gradients = [None] * len(outputs)
        for index, tensor in enumerate(outputs):
            about = f"the gradient of output {index} of {self.name or 'the model'}"
            handle = self._adapter.hooks.attach_gradient(tensor, self._taking(index), self, about)
            if handle is not None:
                self._handles.append(handle)

    def _taking(self, index: int) -> Callable[[Any], None]:
        def take(gradient: Any) -> None:
            # Of a tensor that is used twice the whole gradient comes at once.
            self._gradients[index] = execution_of(self._adapter).copied(gradient)
            self.has_backward = True

        return take

    def failed(self, about: Any, error: Exception) -> None:
        """A gradient cannot be kept; the backward is checked without it."""
        self._failed(str(about), error)

    def release(self) -> None:
        """Leave the program as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # --- afterwards

    def parts(self, backend: Backend, cast: str | None, dump: Callable[[str], None] | None) -> list[CompiledPart]:
        """Every tensor of the call in both forms, judged; one line where that cannot be."""
        if self._module is None:
            return [self._not_checked(self._problem)]
        states = execution_of(self._adapter).random_states()
        try:
            return list(self._judged(self._module, backend, cast, dump))
        except (MemoryError, RecursionError) as error:
            # A check takes several times what the call took; the training goes on without it.
            return [self._not_checked(f"there is not enough memory or stack to check it: {reason(error)}")]
        except Exception as error:
            why = str(error) if isinstance(error, NothingCompiled) else f"the compiled form fails: {reason(error)}"
            return [self._not_checked(why)]
        finally:
            execution_of(self._adapter).set_random_states(states)
            self._module, self._inputs, self._gradients = None, [], []

    def _not_checked(self, why: str) -> CompiledPart:
        return CompiledPart(self.name, self.class_name, "", "", NOT_CHECKED, why)

    def _judged(
        self, module: KeptModule, backend: Backend, cast: str | None, dump: Callable[[str], None] | None
    ) -> Iterator[CompiledPart]:
        eager = self.drawing(lambda: module.eager(self.given()))
        compiled_module, given = module, self.given()
        if cast is not None:
            compiled_module, given = self._compilation.cast(module, cast), self.given(cast)
        compiled = self.drawing(lambda: compiled_module.compiled(given, backend, dump))
        if [(each.stage, each.name) for each in eager] != [(each.stage, each.name) for each in compiled]:
            why = f"the compiled form gives {len(compiled)} tensors, and the eager one {len(eager)}"
            yield CompiledPart(self.name, self.class_name, "forward", "", DIFFERENT, why)
            return
        exact = _Exact(self, module, execution_of(self._adapter), cast)
        for index, (one, other) in enumerate(zip(eager, compiled)):
            yield self._part(index, one, other, exact, cast)

    def drawing(self, run: Callable[[], list[Part]]) -> list[Part]:
        """The parts that `run` gives when it draws the random numbers of the call."""
        execution_of(self._adapter).set_random_states(self._states)
        return run()

    def given(self, dtype: str | None = None) -> Given:
        """Copies of the arguments of the call; of another dtype if one is given."""
        execution, leaves = execution_of(self._adapter), self._arguments.leaves
        tensors = []
        for leaf, tensor in zip(leaves, self._inputs):
            if dtype is None or not is_float(leaf.dtype):
                tensors.append(execution.copied(tensor))
            else:
                tensors.append(execution.tensor(execution.values(tensor), dtype, leaf.device))
        differentiated = [leaf.number for leaf in leaves if leaf.is_differentiated]
        return Given(self._arguments.as_given, tensors, differentiated, self._gradients if self.has_backward else ())

    def moved(self, given: Given, draw: int, least: float) -> Given:
        """The inputs moved by the roundings of sums, which every form of a product makes in another order.

        Args:
            given: Copies of the arguments in float64.
            draw: The number of the draw.
            least: The unit by which they are moved at least.
        """
        execution = execution_of(self._adapter)
        signs = np.random.default_rng([*self.name.encode(), draw])
        tensors = []
        for leaf, tensor in zip(self._arguments.leaves, given.tensors):
            if is_float(leaf.dtype):
                unit = max(least, min(unit_roundoff(leaf.dtype), unit_roundoff("float32")))
                values = execution.values(tensor)
                values = values * (1 + unit * signs.choice((-1.0, 1.0), values.shape))
                tensor = execution.tensor(values, "float64", leaf.device)
            tensors.append(tensor)
        return replace(given, tensors=tensors)

    def _part(self, index: int, eager: Part, compiled: Part, exact: _Exact, cast: str | None) -> CompiledPart:
        execution = execution_of(self._adapter)
        named = self.name, self.class_name, eager.stage, eager.name
        if eager.tensor is None or compiled.tensor is None:
            if eager.tensor is compiled.tensor:
                return CompiledPart(*named, IDENTICAL, "there is none in both forms")
            missing = "eager" if eager.tensor is None else "compiled"
            return CompiledPart(*named, DIFFERENT, f"the {missing} form has none")
        dtype, other_dtype = execution.dtype_name(eager.tensor), execution.dtype_name(compiled.tensor)
        one, other = execution.values(eager.tensor), execution.values(compiled.tensor)
        shown = dtype, one.shape
        if one.shape != other.shape:
            why = f"the shape is {list(other.shape)}, and {list(one.shape)} in the eager form"
            return CompiledPart(*named, DIFFERENT, why, *shown)
        if dtype != other_dtype and cast is None:
            why = f"the dtype is {other_dtype}, and {dtype} in the eager form"
            return CompiledPart(*named, DIFFERENT, why, *shown)
        if dtype == other_dtype and not differing(one, other):
            return CompiledPart(*named, IDENTICAL, "", *shown, 0.0, 0.0, 0.0)
        verdict = exact.verdict(index, one, other, other_dtype)
        if exact.refusal:
            # Nothing says then what rounding does here.
            why = f"it differs from the eager form, and the module cannot be computed in float64: {exact.refusal}"
            return CompiledPart(*named, NOT_CHECKED, why, *shown, *_measured(one, other))
        status = DIFFERENT if verdict.status in (*FAILURES, SUSPECT) else ROUNDING
        return CompiledPart(*named, status, verdict.interpretation, *shown, *_measured(one, other), verdict.tolerance)


class _Exact:
    """The call in float64, evaluated where a result in other bits asks for it."""

    def __init__(self, call: KeptCall, module: KeptModule, execution: Execution, cast: str | None) -> None:
        self._call, self._module, self._execution = call, module, execution
        self._least = 0.0 if cast is None else unit_roundoff(cast)
        self._parts: list[Part] | None = None
        self._spreads: list[Any] | None = None
        self.refusal = ""
        """The error of a call that cannot be made in float64."""

    def verdict(self, index: int, eager: Array, compiled: Array, dtype: str) -> KernelVerdict:
        """The verdict on a compiled result: against the exact one, or the eager one where there is no exact one."""
        reference = self._value(index)
        if reference is not None and reference.shape == eager.shape:
            of_eager = self._judge(index, eager, reference, dtype, None)
            if of_eager.status not in (*FAILURES, SUSPECT):
                return self._judge(index, compiled, reference, dtype, eager)
        # The exact result is not what the eager form computes: it draws other numbers, or branches elsewhere.
        return self._judge(index, compiled, eager.astype(np.float64) if eager.dtype.kind == "f" else eager, dtype, None)

    def _judge(self, index: int, result: Array, reference: Array, dtype: str, yardstick: Array | None) -> KernelVerdict:
        # What is moved is moved by the units of the module's operations, whatever unit the judge asks for.
        def spread(unit: float, inside: bool = True) -> Array | None:
            return self._spread(index)

        return judge(
            Subject(
                base=f"Module.{self._call.class_name}",
                direction="forward",
                result=result,
                reference=reference,
                dtype=dtype,
                inputs=(),
                input_dtypes=(),
                moved=spread,
                rounded=lambda precision: None,
                yardstick=lambda: None if yardstick is None else yardstick.astype(np.float64),
                settings={},
                moved_inside=lambda unit: spread(unit),
            )
        )

    def _value(self, index: int) -> Array | None:
        if self._parts is None:
            self._parts = self._evaluated(None)
        if index >= len(self._parts) or self._parts[index].tensor is None:
            return None
        return self._execution.values(self._parts[index].tensor)

    def _evaluated(self, moved: int | None) -> list[Part]:
        try:
            given = self._call.given("float64")
            if moved is not None:
                given = self._call.moved(given, moved, self._least)
            return self._call.drawing(lambda: self._module.exact(given, moved, self._least))
        except Exception as error:
            raise_unless_refusal(error)
            self.refusal = self.refusal or reason(error)
            return []

    def _spread(self, index: int) -> Array | None:
        """Largest distance from the exact part in several draws, element by element."""
        if self._spreads is None:
            self._spreads = self._furthest()
        return self._spreads[index] if index < len(self._spreads) else None

    def _furthest(self) -> list[Any]:
        execution = self._execution
        if self._parts is None:
            self._parts = self._evaluated(None)
        first = [None if each.tensor is None else execution.values(each.tensor) for each in self._parts]
        found: list[Any] = [None if each is None else np.zeros(each.shape) for each in first]
        for draw in range(DRAWS):
            parts = self._evaluated(draw)
            if len(parts) != len(first):
                return []
            for index, (value, part) in enumerate(zip(first, parts)):
                if value is not None and part.tensor is not None and value.dtype.kind == "f":
                    distance = np.abs(execution.values(part.tensor) - value)
                    found[index] = np.fmax(found[index], distance)
        return found


def _measured(eager: Array, compiled: Array) -> tuple[float | None, float | None, float | None]:
    """The largest and the mean absolute difference, and the largest relative one."""
    if eager.dtype.kind not in "f":
        distance = np.abs(eager.astype(np.complex128) - compiled.astype(np.complex128))
        return float(distance.max(initial=0.0)), float(distance.mean()) if distance.size else 0.0, None
    with np.errstate(all="ignore"):
        distance = np.abs(compiled.astype(np.float64) - eager.astype(np.float64))
    _, _, most, relative, *_ = compare_values(compiled, eager).metrics
    finite = distance[np.isfinite(distance)]
    mean = float(finite.mean()) if finite.size else math.nan
    return _number(most), mean, _number(relative)


def _number(cell: Any) -> float | None:
    return float(cell) if isinstance(cell, (int, float)) else None
