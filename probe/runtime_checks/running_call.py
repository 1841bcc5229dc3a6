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
from probe.calls.arguments import Arguments, Leaf, OwnValue, Unreadable, same_container
from probe.calls.evaluation import Call, Output, Results, autocast_for, is_out_of_memory, run
from probe.calls.judged_results import ExactCall, depends_on_seed
from probe.calls.prepared import half_of_mixed
from probe.common.containers import MAX_DEPTH
from probe.common.numerics.formats import is_float, rounds

_PLAIN = (bool, int, float, complex, str, np.generic, type(None), type(Ellipsis))


@dataclass(frozen=True)
class LiveLeaf(Leaf):
    """One tensor of a call."""

    device: str


class LiveArguments(Arguments):
    """The arguments of a running call; a tensor that is given twice is one leaf.

    Raises:
        Unreadable: there is a value whose state another call would change, or that is not known.
    """

    leaves: list[LiveLeaf]

    def __init__(self, adapter: FrameworkAdapter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.leaves = []
        self.tensors: list[Any] = []
        """The tensors themselves."""
        self._execution, self._describe_value = execution_of(adapter), adapter.tensors.describe_value
        self._known: dict[int, LiveLeaf] = {}
        read_args = [self._read(value, None, 0) for value in args]
        super().__init__(self.leaves, read_args, {key: self._read(value, key, 0) for key, value in kwargs.items()})

    def forget_tensors(self) -> list[Any]:
        """Copies of the tensors as they are now, of which alone is known from now on."""
        copies = [self._execution.copied(tensor) for tensor in self.tensors]
        self.tensors, self._known = [], {}
        return copies

    def _read(self, value: Any, key: str | None, depth: int) -> Any:
        if self._execution.is_tensor(value):
            return self._leaf(value)
        if isinstance(value, _PLAIN):
            return value
        entry = self._describe_value(value, key)
        if entry is not None:
            return OwnValue(entry, value)
        if depth < MAX_DEPTH:
            if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_make")):
                return same_container(value, [self._read(each, key, depth + 1) for each in value])
            if type(value) is dict:
                return {name: self._read(each, str(name), depth + 1) for name, each in value.items()}
            if isinstance(value, slice):
                parts = (value.start, value.stop, value.step)
                return slice(*(self._read(each, None, depth + 1) for each in parts))
        # A generator would be advanced, a function could do anything.
        raise Unreadable(f"an argument of type {type(value).__name__} cannot be reproduced")

    def _leaf(self, tensor: Any) -> LiveLeaf:
        leaf = self._known.get(id(tensor))
        if leaf is None:
            execution = self._execution
            dtype = execution.dtype_name(tensor)
            takes = bool(getattr(tensor, "requires_grad", False)) and rounds(dtype)
            leaf = self._known[id(tensor)] = LiveLeaf(len(self.leaves), dtype, takes, execution.device_name(tensor))
            self.leaves.append(leaf)
            self.tensors.append(tensor)
        return leaf


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


def exact_call(
    call: RunningCall,
    values: Sequence[Array],
    output_gradients: Sequence[Output | None] = (),
    autocast: str | None = None,
    near: ExactCall | None = None,
) -> ExactCall:
    """A call in float64, which judges its outputs, or its gradients if those of the outputs are given.

    Args:
        call: The call.
        values: The values of its tensors, its own or others.
        output_gradients: The gradients of the tensors that it returns, ``None`` for one without.
        autocast: As for `RunningCall.again`.
        near: The call with values that differ by a rounding, whose conditioning is the same.
    """
    gradients = [None if each is None else each.value for each in output_gradients]
    given = [each for each in output_gradients if each is not None]
    return ExactCall(
        call.base,
        Call(call.execution, call.function, call.arguments, values, gradients, call.name),
        [*values, *(each.value for each in given)],
        [*call.dtypes, *(each.dtype or "" for each in given)],
        len(values),
        call.arguments.settings,
        autocast or "",
        call.on_accelerator,
        None if near is None else near.call,
        "gradients" if output_gradients else "outputs",
    )


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
