"""The memory that it takes to run a call again and to judge it, computed from the shapes alone.

What is counted are the arrays and tensors that exist at the same time. What a framework takes inside of a function is
not known, as for the matrix that a convolution is unfolded to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.calls.cases import Case
from probe.calls.prepared import PreparedCall
from probe.common.dump.reading.items import Item
from probe.common.numerics.formats import is_complex, is_float, plain_name

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
    has_backward = bool(prepared.of_outputs)
    total = 0
    for leaf in prepared.arguments.leaves:
        arrays = _LEAF_ARRAYS + (_GRADIENT_ARRAYS if has_backward and leaf.is_differentiated else 0)
        total += math.prod(leaf.shape) * (_held(leaf.dtype) + arrays * _high(leaf.dtype))
    for item, given in zip(prepared.outputs, prepared.of_outputs or [None] * len(prepared.outputs)):
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
    gradients = [each for each, wanted in zip(leaves, differentiated) if wanted] if prepared.of_outputs else []
    given = outputs if prepared.of_outputs else []
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
