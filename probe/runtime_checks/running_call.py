"""One call that was just made, run again on the same device and in float64, and judged.

Whatever is run works on copies, so that nobody's tensors are written to. Who uses this keeps the random states.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution, FrameworkAdapter, execution_of
from probe.calls.arguments import Unreadable
from probe.calls.evaluation import Call, Output, Results, autocast_for, run
from probe.calls.judged_results import ExactCall, depends_on_seed
from probe.calls.memory_errors import is_out_of_memory
from probe.calls.prepared import half_of_mixed
from probe.calls.verdict.subject import KernelVerdict
from probe.common.numerics.formats import is_float
from probe.runtime_checks.arguments import LiveArguments

Array = NDArray[Any]


@dataclass
class RunningCall:
    """A call as it was before it was made."""

    execution: Execution
    name: str
    """``Torch.sum.0``."""
    base: str
    """``Torch.sum``."""
    function: Callable[..., Any]
    arguments: LiveArguments
    inputs: list[Any]
    """Copies of its tensors."""
    states: Any
    """The states of the random generators."""

    @classmethod
    def of(
        cls, adapter: FrameworkAdapter, name: str, function: Callable[..., Any], args: Sequence[Any],
        kwargs: Mapping[str, Any], most_elements: int | None = None,
    ) -> RunningCall:  # fmt: skip
        """The call of `function` that is about to be made.

        Raises:
            Unreadable: it cannot be made again, or its tensors have more than `most_elements` elements together.
        """
        arguments = LiveArguments(adapter, args, kwargs)
        if most_elements is not None and sum(math.prod(each.shape) for each in arguments.tensors) > most_elements:
            raise Unreadable(f"its tensors have more than {most_elements} elements")
        base = name.rpartition(".")[0]
        inputs, states = arguments.forget_tensors(), execution_of(adapter).random_states()
        return cls(execution_of(adapter), name, base, function, arguments, inputs, states)

    @property
    def dtypes(self) -> list[str]:
        """The plain names of the dtypes of its tensors."""
        return [leaf.dtype for leaf in self.arguments.leaves]

    @property
    def on_accelerator(self) -> bool:
        """True if a tensor of it is elsewhere than on the CPU."""
        return any(leaf.device != "cpu" for leaf in self.arguments.leaves)

    def values(self) -> list[Array]:
        """The values of its tensors."""
        return [self.execution.values(tensor) for tensor in self.inputs]

    def tensors(self, values: Sequence[Array]) -> list[Any]:
        """Tensors of these values where those of the call are."""
        leaves = self.arguments.leaves
        return [self.execution.tensor(each, leaf.dtype, leaf.device) for each, leaf in zip(values, leaves)]

    def again(
        self, tensors: Sequence[Any] | None = None, gradients: Sequence[Any] = (), autocast: str | None = None
    ) -> Results:
        """The results of the call now, for random draws from the same states.

        Args:
            tensors: Its tensors, which may be written to; without them copies of those it was called with.
            gradients: Of each tensor that it returns, ``None`` for one without; empty leaves the backward out.
            autocast: The dtype that it was cast to; ``None`` if it was not.

        Raises:
            Exception: whatever the framework raises.
        """
        execution = self.execution
        given = [execution.copied(each) for each in self.inputs] if tensors is None else list(tensors)
        leaves = self.arguments.leaves
        differentiated = [leaf.number for leaf in leaves if leaf.is_differentiated] if gradients else []
        inside: Any = contextlib.nullcontext()
        if autocast is not None:
            device = next((leaf.device for leaf in leaves if leaf.device != "cpu"), "cpu")
            inside = execution.autocast(autocast, device)

        def call(tensors: Sequence[Any]) -> Any:
            args, kwargs = self.arguments.as_given(tensors)
            return self.function(*args, **kwargs)

        execution.set_random_states(self.states)
        with inside:
            return run(execution, call, given, differentiated, lambda _: gradients)

    def autocast_of(self, outputs: Sequence[Output]) -> str | None:
        """The dtype to which the call was cast when it gave `outputs`; ``None`` if it was not.

        Raises:
            Exception: whatever the framework raises where the call is run to find out.
        """
        dtypes = [output.dtype for output in outputs if output.dtype is not None]
        if len({dtype for dtype in (*self.dtypes, *dtypes) if is_float(dtype)}) < 2:
            return None
        try:
            results = self.again()
        except Exception as error:
            # A product of bfloat16 with float32 is one under autocast only.
            half = half_of_mixed(self.dtypes)
            if half is None or is_out_of_memory(error):
                raise
            return half
        return autocast_for(dtypes, results, self.dtypes)

    def draws(self, autocast: str | None) -> bool:
        """True if it draws random numbers: what it returns depends on where the generators stand."""

        def run(seed: int) -> Results:
            self.execution.seed_draws(seed)
            states, self.states = self.states, self.execution.random_states()
            try:
                return self.again(autocast=autocast)
            finally:
                self.states = states

        return depends_on_seed(run)


class Exact:
    """A call in float64, and what that says of results of it.

    Args:
        call: The call.
        values: The values of its tensors, its own or others.
        of_outputs: The gradients of the tensors that it returns, ``None`` for one without; empty for the forward alone.
        autocast: As for `RunningCall.again`.
        near: The call with values that differ by a rounding, whose conditioning is the same.
    """

    def __init__(
        self,
        call: RunningCall,
        values: Sequence[Array],
        of_outputs: Sequence[Output | None],
        autocast: str | None,
        near: Exact | None = None,
    ) -> None:
        gradients = [None if each is None else each.value for each in of_outputs]
        given = [each for each in of_outputs if each is not None]
        self._part = "gradients" if of_outputs else "outputs"
        self._exact: ExactCall = ExactCall(
            call.base,
            Call(call.execution, call.function, call.arguments, values, gradients, call.name),
            [*values, *(each.value for each in given)],
            [*call.dtypes, *(each.dtype or "" for each in given)],
            len(values),
            call.arguments.settings,
            autocast or "",
            call.on_accelerator,
            None if near is None else near._exact.call,
        )

    @property
    def results(self) -> list[Output]:
        """The results in float64: outputs, or gradients where those of the outputs are given."""
        found: list[Output] = getattr(self._exact.call.reference, self._part)
        return found

    def on_cpu(self) -> list[Output]:
        """The results of the CPU's own kernels in the dtypes of the call."""
        found: list[Output] = getattr(self._exact.on_cpu(), self._part)
        return found

    def verdict_of(self, index: int, result: Output, precision: str = "") -> KernelVerdict:
        """The verdict on result number `index`.

        Args:
            index: The number of the result.
            result: The result.
            precision: The dtype in which it was computed, where that is not its own.
        """
        return self._exact.verdict(self._part, index, result, self.results[index].value, precision)


@contextlib.contextmanager
def kept_random_states(execution: Execution) -> Iterator[None]:
    """Put the states of the random generators back at the end: the program draws what it would have drawn."""
    states = execution.random_states()
    try:
        yield
    finally:
        try:
            execution.set_random_states(states)
        except Exception:
            # Once more, before this is told.
            execution.set_random_states(states)
            raise


def differing(one: Any, other: Any) -> int:
    """The number of elements of two results with different bits; 1 for plain values that are not equal."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return int(type(one) is not type(other) or (one != other and not (one != one and other != other)))
    if one.shape != other.shape or one.dtype != other.dtype:
        return max(one.size, other.size, 1)
    if not one.size:
        return 0
    bits = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(one.size, -1) for each in (one, other))
    first, then = bits
    return int((first != then).any(axis=1).sum())
