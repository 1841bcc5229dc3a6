"""A case made ready to be run (function, inputs, recorded results), and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from probe.backends.protocol import Execution, UnknownValue
from probe.calls.arguments import RecordedArguments, Unreadable
from probe.calls.cases import Case, Values, not_run, unchecked, values_of
from probe.calls.evaluation import Call, Output, Results, autocast_for, raise_unless_refusal
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import INPUT, OUTPUT, Item, add, flatten
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.numerics.formats import is_complex, is_float, is_half, plain_name
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

Array = NDArray[Any]
Load = Callable[[Dump, Item, str, "tuple[int, ...]", int], Values]
"""The signature of `values_of`."""
_LONGEST_REASON = 300
"""Characters of an error that are shown; a guess."""
RECORDED = "recorded"
"""The name of the device whose results are those of the dump."""


@dataclass(frozen=True)
class PreparedCall:
    """A case ready to be evaluated."""

    case: Case
    arguments: RecordedArguments
    leaves: list[Array]
    output_gradients: list[Optional[Array]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    outputs: list[Item]
    """The recorded outputs that are tensors."""
    gradients: list[Item]
    """The recorded gradients, which are those of the inputs where the call is one node of the gradient graph."""
    generated: bool
    backward_not_run: str
    call: Call
    random_state: Optional[Array] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """From what random numbers were drawn, where that is recorded."""

    def forward_alone(self, why: str = "") -> PreparedCall:
        """The case without its backward; `why` says for what reason."""
        call = self.call.forward_alone()
        return replace(self, output_gradients=[], gradients=[], backward_not_run=why, call=call)


@dataclass(frozen=True)
class RecordedValues:
    """The inputs of a call and its recorded results, which no framework is needed for."""

    arguments: RecordedArguments
    leaves: list[Array]
    output_gradients: list[Optional[Array]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    outputs: list[Item]
    gradients: list[Item]
    generated: bool
    backward_not_run: str


def recorded_values(dump: Dump, case: Case, seed: int, load: Load = values_of) -> RecordedValues:
    """Read what a case is run with.

    Args:
        load: Gives the values of each tensor.

    Raises:
        Unreadable: the dump does not have it.
    """
    if "output" not in case.forward.fields:
        raise Unreadable("it did not return when it was recorded")
    arguments = RecordedArguments(case.forward.name, case.forward.fields)
    values = [load(dump, leaf.item, leaf.dtype, leaf.shape, seed) for leaf in arguments.leaves]
    leaves = [each.array for each in values]
    outputs = [item for item in case.forward.items() if item.state == OUTPUT and item.is_tensor]
    output_gradients, gradients, why_not, generated = _backward(dump, case, arguments, outputs, seed, load)
    generated = generated or any(each.generated for each in values)
    return RecordedValues(arguments, leaves, output_gradients, outputs, gradients, generated, why_not)


def prepare(execution: Execution, dump: Dump, case: Case, seed: int, load: Load = values_of) -> PreparedCall:
    """Find the function and the values of a case.

    Args:
        load: Gives the values of each tensor.

    Raises:
        Unreadable: the case cannot be run from what the dump has.
    """
    why = not_run(case.base) or unchecked(case)
    named = case.base, made_with(case), called(case)
    function = None if why else execution.function(*named)
    if function is None:
        raise Unreadable(why or f"{called(case) or case.base} is not in this framework's lists of functions")
    try:
        given = recorded_values(dump, case, seed, load)
    except DumpFormatError:
        raise
    except (ArithmeticError, TypeError, ValueError) as error:
        # A number of the record is no number, or one that no tensor holds.
        raise Unreadable(f"its record is damaged: {reason(error)}") from None
    reference_function = execution.reference_function(*named)
    values = given.leaves, given.output_gradients
    returns_nothing = not given.outputs
    call = Call(execution, function, given.arguments, *values, case.name, reference_function, returns_nothing)
    state = _random_state(dump, case)
    results = given.outputs, given.gradients
    why_not = given.backward_not_run
    return PreparedCall(case, given.arguments, *values, *results, given.generated, why_not, call, state)


def _random_state(dump: Dump, case: Case) -> Array | None:
    entry = case.forward.fields.get("random_state")
    if entry is None:
        return None
    found: list[Item] = []
    add(found, f"{case.forward.name}.random_state", INPUT, entry, 0)
    try:
        return dump.tensor(found[0])
    except FileCheckException as error:
        raise Unreadable(str(error)) from None


def made_with(case: Case) -> Mapping[str, Any] | None:
    """The arguments that a primitive was made with; ``None`` if the record does not have all of them.

    It does where it has files of tensors, by the contract of a dump.
    """
    fields = case.forward.fields
    is_whole = any(item.is_tensor and item.data_name is not None for item in case.forward.items())
    return fields.get("attributes") if is_whole else None


def called(case: Case) -> str:
    """The full name of the function that was called; empty where the name of the record says it.

    Raises:
        Unreadable: the record has something else there.
    """
    found = case.forward.fields.get("function", "")
    if not isinstance(found, str):
        raise Unreadable(f'its "function" is {found!r}, which is not a name')
    return found


def _backward(
    dump: Dump, case: Case, arguments: RecordedArguments, outputs: Sequence[Item], seed: int, load: Load
) -> tuple[list[Array | None], list[Item], str, bool]:
    """Gradients of the outputs, recorded ones of the inputs, why there is no backward, and whether any is generated."""
    if case.backward is None:
        return [], [], "", False
    if not any(leaf.is_differentiated for leaf in arguments.leaves):
        return [], [], "no input has a gradient", False
    items = flatten(case.backward.name, case.backward.fields)
    given = _aligned([item for item in items if item.state == INPUT], outputs)
    if given is None:
        return [], [], "it is not clear which gradient of the record belongs to which output", False
    found: list[Array | None] = []
    generated = False
    for item, output in zip(given, outputs):
        if item is None:
            found.append(None)
            continue
        try:
            values = load(dump, item, plain_name(item.dtype or ""), output.shape or (), seed)
        except Unreadable as error:
            # The forward can be run without it.
            return [], [], str(error), False
        generated = generated or values.generated
        found.append(values.array)
    if not any(each is not None for each in found):
        return [], [], "the record has no gradient of an output", False
    return found, [item for item in items if item.state == OUTPUT and item.is_tensor], "", generated


def _has_gradient(output: Item) -> bool:
    return output.requires_grad is not False and is_float(plain_name(output.dtype or ""))


def _aligned(gradients: Sequence[Item], outputs: Sequence[Item]) -> list[Item | None] | None:
    """The gradient of each output; ``None`` where the record does not say.

    A record has one for each output, or for each output that has one.
    """
    if len(gradients) == len(outputs):
        found: list[Item | None] = [item if item.is_tensor else None for item in gradients]
    else:
        taken = iter(item for item in gradients if item.is_tensor)
        found = [next(taken, None) if _has_gradient(output) else None for output in outputs]
        if next(taken, None) is not None:
            return None
    fits = all(item is None or item.shape == output.shape for item, output in zip(found, outputs))
    return found if fits else None


def run_as_recorded(execution: Execution, prepared: PreparedCall, device: str) -> tuple[Results, str]:
    """The results on a device, and the dtype of the autocast under which they were made, if the record was.

    Raises:
        Exception: whatever the framework raises.
    """
    call = prepared.call
    inputs = [leaf.dtype for leaf in prepared.arguments.leaves]
    draw_as_recorded(execution, prepared, device)
    try:
        results = call.on(device)
    except Exception as error:
        # A layer of bfloat16 with an input of float32 runs under autocast only.
        half = half_of_mixed(inputs)
        if half is None:
            raise
        raise_unless_refusal(error)
        draw_as_recorded(execution, prepared, device)
        return call.on(device, half), half
    recorded = [plain_name(item.dtype or "") for item in prepared.outputs]
    autocast = autocast_for(recorded, results, inputs)
    if autocast is None:
        return results, ""
    draw_as_recorded(execution, prepared, device)
    cast = call.on(device, autocast)
    # Another dtype that autocast does not explain is one that the kernel gives by itself.
    return (results, "") if autocast_for(recorded, cast, inputs) is not None else (cast, autocast)


def half_of_mixed(inputs: Sequence[str]) -> str | None:
    """The half precision among inputs of which others are float32; ``None`` where they are not mixed."""
    half = next((dtype for dtype in inputs if is_half(dtype)), None)
    return half if "float32" in inputs else None


def draw_as_recorded(execution: Execution, prepared: PreparedCall, device: str) -> None:
    """Let the next call draw the random numbers that it drew when it was recorded, or else always the same ones."""
    if prepared.random_state is None or not execution.restore_draws(prepared.random_state, device):
        execution.seed_draws(0)


def recorded_results(dump: Dump, prepared: PreparedCall, like: Results) -> Results:
    """The results that the dump has, in the places of `like`.

    The gradients of a backward record are those of the node of the gradient graph that was watched: where a function is
    made of several nodes they are not those of its arguments, and left out.

    Raises:
        Unreadable: it does not have them.
    """
    if dump.task != "tensor":
        raise Unreadable('the dump has no values of results; collect with "tensor"')
    of_record = [item for item in prepared.case.forward.items() if item.state == OUTPUT]
    if len(of_record) != len(like.outputs):
        raise Unreadable(f"the record has {len(of_record)} results, and the call gives {len(like.outputs)}")
    found = {output.path: _recorded(dump, item, output) for item, output in zip(of_record, like.outputs)}
    there = [each for each in like.gradients if each.value is not None]
    dtypes = [prepared.arguments.leaves[int(each.path)].dtype for each in there]
    # A function that was another one when it was recorded had other nodes.
    fits = all(
        item.shape == each.value.shape and plain_name(item.dtype or "") == dtype
        for item, each, dtype in zip(prepared.gradients, there, dtypes)
    )
    is_node = like.are_gradients_recorded and not _returned_its_input(prepared)
    known = is_node and len(prepared.gradients) == len(there) and fits
    items = iter(prepared.gradients)
    gradients = [
        _recorded(dump, next(items), output) if known and output.value is not None else Output(output.path, None, None)
        for output in like.gradients
    ]
    return Results(list(found.values()), gradients, like.nested(lambda output: found[output.path]))


def _returned_its_input(prepared: PreparedCall) -> bool:
    """True if the call was a cast to the dtype that its input had.

    It returned the input itself, which no node of the graph made, though in float64 it is a cast. The gradients of the
    record are those of all that took the input.
    """
    inputs = prepared.arguments.leaves
    dtypes = {plain_name(item.dtype or "") for item in prepared.outputs}
    return has(prepared.case.base, Trait.CASTS) and bool(inputs) and dtypes == {inputs[0].dtype}


def _recorded(dump: Dump, item: Item, like: Output) -> Output:
    if not item.is_tensor and like.dtype is None:
        return Output(like.path, item.value, None)
    array = dump.tensor(item)
    if array is None:
        raise Unreadable('the dump lacks values of some results; collect with "tensor"')
    return Output(like.path, array, plain_name(item.dtype or ""))


def reason(error: Exception) -> str:
    """An error in one line, with its class where it is a framework's."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (Unreadable, UnknownValue, DumpFormatError)):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


# --- memory


GB = 1e9
"""Bytes."""
_SHARE = 4
"""The part of the machine's memory that a call may take by default is one of so many, ..."""
_SHARE_OF_PROCESSES = 2
"""... and that of all processes together one of so many."""
_LEAF_ARRAYS, _GRADIENT_ARRAYS, _OUTPUT_ARRAYS, _OF_OUTPUT_ARRAYS = 2, 5, 4, 2
"""Arrays of float64 that exist at once for an input: moved, and as a tensor; with a backward its copy in the graph, its
gradient as a tensor and as an array, the one of the reference and the distance that it was moved; for an output: the
reference, the tensor, its array, the distance; for the gradient of an output: moved, and as a tensor."""
_OF_RULES = 2
"""Arrays of float64 of each result while rules of another tool judge it: the reference, and blocks that are computed.
Measured with the drop-in tables: 1.6 for 64 MiB, 1.1 for 256 MiB."""


def default_limit(machine: int, processes: int) -> int:
    """Bytes that one call may take: a quarter of the machine; of several processes all together half of it."""
    return machine // max(_SHARE, _SHARE_OF_PROCESSES * processes)


def most_elements(case: Case) -> int:
    """The number of elements of the largest tensor that a call takes or returns."""
    return max((math.prod(item.shape or ()) for item in case.forward.items() if item.is_tensor), default=0)


def needed(prepared: PreparedCall) -> int:
    """Bytes for a call that is run and judged as a whole; its values need not be there."""
    has_backward = bool(prepared.output_gradients)
    total = 0
    for leaf in prepared.arguments.leaves:
        arrays = _LEAF_ARRAYS + (_GRADIENT_ARRAYS if has_backward and leaf.is_differentiated else 0)
        total += math.prod(leaf.shape) * (_held(leaf.dtype) + arrays * _high(leaf.dtype))
    for item, given in zip(prepared.outputs, prepared.output_gradients or [None] * len(prepared.outputs)):
        dtype = plain_name(item.dtype or "")
        arrays = _OUTPUT_ARRAYS + (0 if given is None else _OF_OUTPUT_ARRAYS)
        total += _elements(item) * (_held(dtype) * (1 if given is None else 2) + arrays * _high(dtype))
    return total


def needed_in_parts(prepared: PreparedCall, with_rules: bool) -> int:
    """Bytes for a call that the device runs as a whole, and of which parts are judged.

    Args:
        with_rules: rules of another tool judge its results as a whole.
    """
    leaves = [(math.prod(leaf.shape), leaf.dtype) for leaf in prepared.arguments.leaves]
    outputs = [(_elements(item), plain_name(item.dtype or "")) for item in prepared.outputs]
    differentiated = [leaf.is_differentiated for leaf in prepared.arguments.leaves]
    gradients = [each for each, wanted in zip(leaves, differentiated) if wanted] if prepared.output_gradients else []
    given = outputs if prepared.output_gradients else []
    tensors, arrays = _total([*leaves, *outputs, *given]), _total([*leaves, *given])
    running = tensors + max(_total(gradients), max((_total([each]) for each in (*leaves, *given)), default=0))
    judging = arrays + _total([*outputs, *gradients])
    if with_rules:
        judging += sum(count * (_held(dtype) + _OF_RULES * _high(dtype)) for count, dtype in (*outputs, *gradients))
    return max(running, judging)


def why_too_much(need: float, limit: float) -> str:
    """The reason why a call is not run."""
    return f"needs about {need / GB:.1f} GB of memory, and --max-memory is {limit / GB:.1f} GB"


def _elements(item: Item) -> int:
    return math.prod(item.shape or ())


def _total(values: Iterable[tuple[int, str]]) -> int:
    return sum(count * _held(dtype) for count, dtype in values)


def _held(dtype: str) -> int:
    """Bytes of an element in an array; a dtype that numpy lacks is held in float32."""
    if is_complex(dtype):
        return 16
    return 8 if dtype.endswith("64") else 4


def _high(dtype: str) -> int:
    """Bytes of an element in the precision of the reference."""
    return 16 if is_complex(dtype) else 8 if is_float(dtype) else _held(dtype)
