"""One case evaluated: on the device in its own dtype, and on the CPU in float64.

The evaluation in float64 is the reference. It can be repeated with its inputs moved by one rounding, which shows how
far a rounding moves the results, and with its inputs rounded to a lower precision.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.arguments import Arguments
from probe.common.containers import parts_of
from probe.common.numerics.formats import is_complex, is_float, is_half, plain_name, rounding_format, rounds
from probe.common.numerics.rounding import rounded_to

Array = NDArray[Any]
DRAWS = 8
"""Runs with other roundings of the inputs, of which the largest change is taken; a guess."""
_FEWER_DRAWS = 4
"""Runs of that kind for large inputs; a guess."""
_LARGE = 1 << 20
"""Elements of the inputs above which fewer draws are made, since each takes long.

Few of them miss nothing of what the inputs do together: see `_is_turned`.
"""
_BLOCK = 1 << 17
"""Elements that are worked on at a time, so that what is made on the way stays in the cache."""
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
"""The bits of each byte."""


@dataclass(frozen=True)
class Output:
    """One tensor or plain value that a call returned, or the gradient of one of its inputs."""

    path: str
    """The position among the outputs: ``0``, ``1.hidden``."""
    value: Any
    """An array for a tensor; ``None`` for a gradient that is not there."""
    dtype: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The plain name; ``None`` of a plain value."""


@dataclass(frozen=True)
class Results:
    """The results of one evaluation."""

    outputs: list[Output]
    gradients: list[Output]
    """One for each differentiated leaf; `path` is its number."""
    returned: Any = None
    """The outputs nested as the function returned them: lists and dictionaries of `Output`."""
    are_gradients_recorded: bool = True
    """True if a record has the same gradients."""

    def nested(self, of: Callable[[Output], Any]) -> Any:
        """The returned value, with `of` each output instead of the output."""
        return _replaced(self.returned, of)


def _replaced(returned: Any, of: Callable[[Output], Any]) -> Any:
    if isinstance(returned, Output):
        return of(returned)
    if isinstance(returned, dict):
        return {key: _replaced(each, of) for key, each in returned.items()}
    return [_replaced(each, of) for each in returned]


class Call:
    """A recorded call with its inputs, which can be evaluated in several ways.

    Args:
        execution: The framework.
        function: The function that is called on the device.
        arguments: The tree of arguments.
        leaves: The values of its tensors.
        output_gradients: The gradients of the tensors among the outputs, in their order; ``None`` for one without. An
            empty list leaves the backward out.
        name: The seed of random moves.
        reference_function: The function that computes the reference; `function` itself where there is none.
        returns_nothing: True if the function is called for what it writes to its first argument.
    """

    def __init__(
        self,
        execution: Execution,
        function: Callable[..., Any],
        arguments: Arguments,
        leaves: Sequence[Array],
        output_gradients: Sequence[Array | None],
        name: str,
        reference_function: Callable[..., Any] | None = None,
        returns_nothing: bool = False,
    ) -> None:
        self._execution = execution
        self.function = function
        self.reference_function = reference_function
        self._arguments = arguments
        self._leaves = leaves
        self.output_gradients = list(output_gradients)
        self._name = name
        self._returns_nothing = returns_nothing
        self._moves: dict[tuple[float, bool, bool], Results | None] = {}
        self._reference: Results | None = None
        self._is_part = False

    def with_inputs(
        self, arguments: Arguments, leaves: Sequence[Array], output_gradients: Sequence[Array | None]
    ) -> Call:
        """The call with other values."""
        functions = self.reference_function, self._returns_nothing
        return Call(self._execution, self.function, arguments, leaves, output_gradients, self._name, *functions)

    def part(self, leaves: Sequence[Array], output_gradients: Sequence[Array | None]) -> Call:
        """The call with a part of the elements, each of which is made of one element of each input."""
        found = self.with_inputs(self._arguments, leaves, output_gradients)
        found._is_part = True
        return found

    def forward_alone(self) -> Call:
        """The call without its backward."""
        found = self.with_inputs(self._arguments, self._leaves, [])
        if self._reference is not None:
            found._reference = dataclasses.replace(self._reference, gradients=[])
        return found

    def on(self, device: str, autocast: str | None = None) -> Results:
        """The results on `device` in the recorded dtypes, under autocast to the dtype of that name if one is given.

        Raises:
            Exception: whatever the framework raises.
        """
        dtypes = [leaf.dtype for leaf in self._arguments.leaves]
        inside = contextlib.nullcontext() if autocast is None else self._execution.autocast(autocast, device)
        with inside:
            return self._evaluate(self._leaves, self.output_gradients, dtypes, device, high=False)

    @property
    def reference(self) -> Results:
        """The results in float64 on the CPU.

        Raises:
            Exception: whatever the framework raises.
        """
        if self._reference is None:
            self._reference = self._in_high(self._leaves, self.output_gradients)
        return self._reference

    def moved(self, unit: float, inside: bool = False, inputs: bool = True) -> Results | None:
        """The largest movement of the results when each input is moved by `unit`, relative to itself, at random.

        ``None`` where the moved inputs are none that the function takes.

        Args:
            inside: True moves also the values that the framework shows of the inside of the call.
            inputs: True moves the inputs.

        Raises:
            MemoryError: there is no memory for it.
        """
        key = unit, inside, inputs
        if key not in self._moves:
            self._moves[key] = self._moved(*key)
        return self._moves[key]

    def rounded(self, precision: str) -> Results | None:
        """The reference with its inputs rounded to a precision: ``bfloat16``, ``float16`` or ``tfloat32``.

        ``None`` where the rounded inputs are none that the function takes.

        Raises:
            MemoryError: there is no memory for it.
        """
        leaves = [
            _rounded(values, precision) if rounds(leaf.dtype) else values
            for leaf, values in zip(self._arguments.leaves, self._leaves)
        ]
        gradients = [None if each is None else _rounded(each, precision) for each in self.output_gradients]
        # A matrix that was positive definite may be so no more.
        return self._unless_refused(leaves, gradients)

    def _moved(self, unit: float, inside: bool, inputs: bool) -> Results | None:
        furthest: list[Any] = [None] * (len(self.reference.outputs) + len(self.reference.gradients))
        are_rounded = [rounds(leaf.dtype) for leaf in self._arguments.leaves]
        for draw in range(self._number_of_draws(inside)):
            leaves, gradients = list(self._leaves), list(self.output_gradients)
            if inputs:
                moved = self._moved_inputs(unit, draw)
                leaves = [next(moved) if each else values for each, values in zip(are_rounded, leaves)]
                gradients = [None if each is None else next(moved) for each in gradients]
            # A probability of 1 that was moved up is none, and a function may say so.
            results = self._unless_refused(leaves, gradients, (unit, draw) if inside else None)
            if results is None:
                return None
            for index, (first, then) in enumerate(zip(_all(self.reference), _all(results))):
                furthest[index] = _further(furthest[index], first.value, then.value)
            # Before the next draw is made: of a large tensor each is as large.
            del leaves, gradients, results
        outputs = len(self.reference.outputs)
        found = [dataclasses.replace(each, value=value) for each, value in zip(_all(self.reference), furthest)]
        return Results(found[:outputs], found[outputs:])

    def _number_of_draws(self, inside: bool) -> int:
        if self._is_part and not inside:
            # Of one element of each input there is nothing else to see.
            return _draws_in_group(len(self._to_be_moved()))
        is_large = self._is_part or sum(values.size for values in self._leaves) > _LARGE
        return _FEWER_DRAWS if is_large else DRAWS

    def _to_be_moved(self) -> list[Array]:
        leaves = [values for leaf, values in zip(self._arguments.leaves, self._leaves) if rounds(leaf.dtype)]
        return [*leaves, *(each for each in self.output_gradients if each is not None)]

    def _moved_inputs(self, unit: float, draw: int) -> Iterator[Array]:
        """The inputs that are rounded, and the gradients of the outputs, moved as in one of the draws."""
        moved = self._to_be_moved()
        group, draw = divmod(draw, _draws_in_group(len(moved)))
        signs = np.random.default_rng([*self._name.encode(), group])
        for number, values in enumerate(moved):
            yield _move(values, -unit if _is_turned(number, draw) else unit, signs)

    def _unless_refused(
        self, leaves: Sequence[Array], output_gradients: Sequence[Array | None], inside: tuple[float, int] | None = None
    ) -> Results | None:
        """The results in float64 of other values; ``None`` if the function refuses these.

        Args:
            inside: The arguments of `Execution.rounding_inside`; ``None`` if nothing inside is moved.

        Raises:
            MemoryError: there is no memory for it, which says nothing of the values.
            RecursionError: the stack is too deep already.
        """
        # A function refuses the same values each time. What passes the second time was no refusal.
        for _ in range(2):
            try:
                with contextlib.nullcontext() if inside is None else self._execution.rounding_inside(*inside):
                    return self._in_high(leaves, output_gradients)
            except Exception as error:
                raise_unless_refusal(error)
        return None

    def _in_high(self, leaves: Sequence[Array], output_gradients: Sequence[Array | None]) -> Results:
        # Random draws are not part of the movement by the inputs.
        self._execution.seed_draws(0)
        dtypes = [_raised(leaf.dtype) for leaf in self._arguments.leaves]
        return self._evaluate(leaves, output_gradients, dtypes, "cpu", high=True)

    def _evaluate(
        self,
        leaves: Sequence[Array],
        output_gradients: Sequence[Array | None],
        dtypes: Sequence[str],
        device: str,
        high: bool,
    ) -> Results:
        execution, arguments = self._execution, self._arguments
        inputs = [execution.tensor(values, dtype, device) for values, dtype in zip(leaves, dtypes)]
        differentiated = (
            [n for n, leaf in enumerate(arguments.leaves) if leaf.is_differentiated] if output_gradients else []
        )

        def plain_value(entry: Mapping[str, Any]) -> Any:
            return execution.plain_value(_raised_entry(entry) if high else entry, device)

        def call(tensors: Sequence[Any]) -> Any:
            args, kwargs = arguments.bound(tensors, plain_value)
            function = (high and self.reference_function) or self.function
            returned = function(*args, **kwargs)
            return args[0] if self._returns_nothing and returned is None and args else returned

        def gradients_of(tensors: Sequence[Any]) -> list[Any]:
            return [
                None if values is None else execution.tensor(values, execution.dtype_name(tensor), device)
                for values, tensor in zip(output_gradients, tensors)
            ]

        return run(execution, call, inputs, differentiated, gradients_of)


def run(
    execution: Execution,
    call: Callable[[Sequence[Any]], Any],
    inputs: Sequence[Any],
    differentiated: Sequence[int],
    gradients_of: Callable[[Sequence[Any]], Sequence[Any]],
) -> Results:
    """Make a call, and its backward if an input is differentiated.

    Args:
        execution: The framework.
        call: As for `Execution.evaluate`.
        inputs: Tensors that the call may write to.
        differentiated: The numbers of the inputs that are differentiated.
        gradients_of: Gives the gradient of each tensor that the call returns, ``None`` for one without.

    Raises:
        Exception: whatever the framework raises.
    """
    done = execution.evaluate(call, inputs, differentiated)
    outputs: list[Output] = []
    tensors: list[Any] = []
    returned = _nested(execution, "", done.output, outputs, tensors)
    if not differentiated:
        return Results(outputs, [], returned)
    are_recorded = done.are_gradients_recorded
    gradients = done.gradients(gradients_of(tensors))
    found = [_output(execution, str(number), value) for number, value in zip(differentiated, gradients)]
    return Results(outputs, found, returned, are_recorded)


def outputs_of(execution: Execution, returned: Any) -> list[Output]:
    """The tensors and plain values of what a function returned."""
    return [_output(execution, path, value) for path, value in output_places(returned, execution.is_tensor)]


def output_places(value: Any, is_tensor: Callable[[Any], bool], path: str = "") -> list[tuple[str, Any]]:
    """The tensors and plain values that a call returned, each with its place in the words of records."""
    inside = None if is_tensor(value) else parts_of(value)
    if inside is None:
        return [(path or "0", value)]
    below = f"{path}." if path else ""
    return [found for key, each in inside for found in output_places(each, is_tensor, f"{below}{key}")]


def _nested(execution: Execution, path: str, value: Any, outputs: list[Output], tensors: list[Any]) -> Any:
    """`value` with an `Output` for each tensor and plain value in it, which are added to the lists too."""
    is_tensor = execution.is_tensor(value)
    inside = None if is_tensor else parts_of(value)
    if inside is None:
        if is_tensor:
            tensors.append(value)
        outputs.append(_output(execution, path or "0", value))
        return outputs[-1]
    below = f"{path}." if path else ""
    nested = {key: _nested(execution, f"{below}{key}", each, outputs, tensors) for key, each in inside}
    return list(nested.values()) if isinstance(value, (list, tuple)) else nested


def _output(execution: Execution, path: str, value: Any) -> Output:
    if not execution.is_tensor(value):
        return Output(path, value, None)
    return Output(path, execution.values(value), execution.dtype_name(value))


def autocast_for(recorded: Sequence[str], results: Results, inputs: Sequence[str]) -> str | None:
    """The dtype to which the call was cast when it was recorded; ``None`` where nothing says that it was.

    It was if a result has another floating-point dtype than the function gives by itself, one of both being half of
    the other: a linear layer of float32 that returned bfloat16, or a softmax of bfloat16 that returned float32.

    Args:
        recorded: The dtypes of the tensors that were returned, in their order.
        results: The results of the function without autocast.
        inputs: The dtypes of its tensors.
    """
    now = [output.dtype for output in results.outputs if output.dtype is not None]
    if len(now) != len(recorded):
        return None
    for before, after in zip(recorded, now):
        if before != after and is_float(before) and is_float(after):
            return next((dtype for dtype in (before, *inputs) if is_half(dtype)), None)
    return None


def _all(results: Results) -> list[Output]:
    return [*results.outputs, *results.gradients]


def _raised(dtype: str) -> str:
    return "float64" if is_float(dtype) else "complex128" if is_complex(dtype) else dtype


def _raised_entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry of a value of the framework; of a dtype that has digits to lose the one that has most."""
    value = entry.get("value")
    if "dtype" in str(entry.get("type")).lower() and isinstance(value, str):
        plain = plain_name(value)
        raised = _raised(plain)
        if raised != plain:
            # As this framework spells it: torch.float32, Float32.
            head, dot, _ = value.rpartition(".")
            return {**entry, "value": f"{head}{dot}{raised if dot or value.islower() else raised.capitalize()}"}
    return entry


def _rounded(values: Array, precision: str) -> Array:
    form = rounding_format(precision)
    assert form is not None
    wide = np.ascontiguousarray(values, np.result_type(values.dtype, np.float64))
    return rounded_to(_parts(wide.reshape(-1)), form).view(wide.dtype).reshape(values.shape)


def _parts(values: Array) -> Array:
    """A vector of real numbers as it is, and one of complex numbers as one of their parts, in the same memory."""
    return values.view(values.real.dtype)


def _draws_in_group(inputs: int) -> int:
    """The number of draws that move by the same signs but for what is turned."""
    return 1 if inputs <= 1 else 2 if inputs == 2 else 4


def _is_turned(number: int, draw: int) -> bool:
    """True if an input is moved the other way than in the first draw of a group.

    Up to three inputs that would move a result against each other move it together in one of the draws, so that the
    farthest is the sum of their effects. With independent draws one of 2^k elements would miss that in all k of them,
    and would seem to be better conditioned than it is. The signs are those of a Hadamard matrix: of more inputs the
    mean square over a group is about the sum of the squares of their effects.
    """
    return bin(number & draw).count("1") % 2 == 1


def _move(values: Array, unit: float, draws: np.random.Generator) -> Array:
    """Each of `values`, or each of its parts, moved up or down by `unit` of itself, in float64 or complex128.

    A negative `unit` moves by the same draws the other way.
    """
    # numpy makes a contiguous array of one dimension of a single number, whose gradient would have another shape then.
    moved = np.empty(values.shape, np.result_type(values.dtype, np.float64))
    values = np.ascontiguousarray(values)
    before, after = _parts(values.reshape(-1)), _parts(moved.reshape(-1))
    # A byte of random bits picks eight factors at once: drawing numbers takes longer than the product.
    factors = np.where(_BITS, 1 + unit, 1 - unit)
    for start in range(0, before.size, _BLOCK):
        block = before[start : start + _BLOCK]
        drawn = np.frombuffer(draws.bytes((block.size + 7) // 8), np.uint8)
        signed = np.take(factors, drawn, axis=0).reshape(-1)[: block.size]
        np.multiply(block, signed, out=after[start : start + _BLOCK])
    return moved


def _further(furthest: Any, first: Any, then: Any) -> Any:
    """The larger of the distance so far and that of two results; ``None`` of what has none."""
    if not isinstance(first, np.ndarray) or not isinstance(then, np.ndarray) or first.shape != then.shape:
        return None
    if first.dtype.kind not in "fc":
        return None
    if furthest is None:
        furthest = np.zeros(first.shape)
    most, one, other = furthest.reshape(-1), np.ravel(first), np.ravel(then)
    with np.errstate(all="ignore"):
        for start in range(0, most.size, _BLOCK):
            distance = np.abs(other[start : start + _BLOCK] - one[start : start + _BLOCK])
            # From infinity to infinity is no distance: fmax takes the other one of a NaN.
            np.fmax(most[start : start + _BLOCK], distance, out=most[start : start + _BLOCK])
    return furthest


# --- errors that tell of missing memory

_WORDS = (
    "out of memory", "can't allocate", "cannot allocate", "failed to allocate", "bad_alloc", "bad allocation",
    "memory isn't enough", "memory not enough",
)  # fmt: skip
"""Frameworks raise RuntimeError where their own allocator gets no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if there was no memory for a call, on the host or on a device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _WORDS)


def raise_unless_refusal(error: Exception) -> None:
    """Raise the error of a call again if it says nothing of the call's inputs or settings.

    Raises:
        MemoryError: there was no memory for the call.
        RecursionError: the stack was too deep already.
    """
    if isinstance(error, RecursionError):
        raise error
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error
