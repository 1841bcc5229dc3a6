"""The group `Execution` of PyTorch, which the files of this folder make up."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from probe.backends.protocol import Compilation, ScriptWords, UnknownValue
from probe.backends.torch import internals
from probe.backends.torch.devices import available
from probe.backends.torch.execution import compilation as compiler
from probe.backends.torch.execution import script as words
from probe.backends.torch.execution.rounding import moving, rounding_inside
from probe.backends.torch.execution.values import (
    device_name,
    dtype_name,
    function,
    plain_value,
    reference_function,
    tensor,
    values,
)
from probe.backends.torch.guards import alone
from probe.backends.torch.hooks.operators import attach_operators
from probe.backends.torch.randomness import get_states as random_states
from probe.backends.torch.randomness import set_states as set_random_states
from probe.backends.torch.tensors.describe import is_tensor
from probe.common.containers import found_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "attach_operators",
    "autocast",
    "compilation",
    "copied",
    "device_name",
    "devices",
    "differentiates_anywhere",
    "dtype_name",
    "evaluate",
    "function",
    "is_tensor",
    "one_thread",
    "plain_value",
    "random_states",
    "reference_function",
    "restore_draws",
    "rounding_inside",
    "script",
    "seed_draws",
    "set_random_states",
    "tensor",
    "values",
]


class Evaluated:
    """One call that was run.

    Args:
        output: What the function returned.
        inputs: Where the gradients that are asked for arrive.
        nodes: What takes the gradients of the function's own inputs, one for each of `inputs`.
    """

    def __init__(self, output: Any, inputs: tuple[torch.Tensor, ...], nodes: Sequence[Any] = ()) -> None:
        self.output = output
        self._inputs = inputs
        self._nodes = nodes

    @property
    def are_gradients_recorded(self) -> bool:
        """True if the function is one node of the graph; the record then has the gradients that leave it."""
        with alone():
            found: set[Any] = {tensor.grad_fn for tensor in found_in(self.output, torch.Tensor) if tensor.requires_grad}
            if len(found) != 1:
                return False
            before = [node for node, _ in found.pop().next_functions if node is not None]
        return len(before) == len(self._nodes) and all(map(operator.is_, before, self._nodes))

    def gradients(self, output_gradients: Sequence[Any]) -> list[Any]:
        """The gradients of the inputs, ``None`` for one on which nothing depends; once, for the graph is then gone.

        Args:
            output_gradients: One for each tensor in `output`, ``None`` for one that takes no part.
        """
        pairs = zip(found_in(self.output, torch.Tensor), output_gradients)
        with alone(), moving():
            taken = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None and tensor.requires_grad]
            if not taken or not self._inputs:
                return [None] * len(self._inputs)
            outputs, gradients = zip(*taken)
            # torch.autograd.grad calls this; its preparation of a small call takes longer than the engine.
            found = internals.engine.run_backward(
                outputs, gradients, False, False, self._inputs, allow_unreachable=True, accumulate_grad=False
            )
        return list(found)


def evaluate(
    function: Callable[[Sequence[Any]], Any], inputs: Sequence[torch.Tensor], differentiated: Sequence[int]
) -> Evaluated:
    """Call `function` with `inputs`.

    A differentiated input is copied: the function may write to the copy, and the gradient arrives at what was copied.
    A large one is given itself, and its gradient arrives at a tensor without memory of its own.
    """
    with alone(bool(differentiated), _autocast.kind), moving():
        if not differentiated:
            return Evaluated(function(inputs), ())
        given, leaves, nodes = list(inputs), [], []
        for index in differentiated:
            leaf, given[index] = _differentiated(inputs[index].detach())
            leaves.append(leaf)
            nodes.append(given[index].grad_fn)
        return Evaluated(function(given), tuple(leaves), nodes)


_LARGE = 64 << 20
"""Bytes of an input of which no copy is made. For smaller ones a copy takes less time."""


def _differentiated(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor at which the gradient of an input arrives, and the one that the function is given."""
    if values.numel() * values.element_size() < _LARGE:
        leaf = values.requires_grad_()
        return leaf, leaf.clone()
    leaf = torch.zeros((), dtype=values.dtype, device=values.device).expand(values.shape).requires_grad_()
    given: torch.Tensor = _Given.apply(leaf, values)  # type: ignore[no-untyped-call]
    return leaf, given


class _Given(torch.autograd.Function):
    """Makes `values` the result of an operation on a tensor of their shape, so that a function may write to them."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


# --- autocast


class _Autocast(threading.local):
    """The kind of device for which `autocast` is on, on this thread; the program's own autocast does not count."""

    kind: str | None = None


_autocast = _Autocast()
_CAST_TO = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@contextlib.contextmanager
def autocast(dtype: str, device: str) -> Iterator[None]:
    """Calls inside run as under torch's autocast to `dtype`.

    Raises:
        UnknownValue: torch casts to another dtype only, or not at all on this kind of device.
    """
    kind = torch.device(device).type
    if dtype not in _CAST_TO:
        raise UnknownValue(f"autocast to {dtype} is not supported; allowed: {', '.join(_CAST_TO)}")
    try:
        # Without its cache, which holds on to the casts of tensors that take a gradient.
        casting = torch.autocast(kind, _CAST_TO[dtype], enabled=True, cache_enabled=False)
    except RuntimeError as error:
        raise UnknownValue(f"torch has no autocast for {device}: {error}") from error
    before, _autocast.kind = _autocast.kind, kind
    try:
        with casting:
            yield
    finally:
        _autocast.kind = before


# --- devices

_accelerators = functools.cache(available)


def devices() -> list[str]:
    """The devices that are there, an accelerator first."""
    return [f"{kind}:{i}" for kind, module in _accelerators() for i in range(module.device_count())] + ["cpu"]


def seed_draws(seed: int) -> None:
    """Let random calls draw the same numbers again, on every device."""
    # Not torch.manual_seed, which takes a call stack for every kind of device that is not there.
    torch.default_generator.manual_seed(seed)
    for _, module in _accelerators():
        module.manual_seed_all(seed)


def restore_draws(state: NDArray[Any], device: str) -> bool:
    """Let the next call on `device` draw from `state`; false where it is that of a device of another kind."""
    kind, given = torch.device(device).type, tensor(state, "uint8", "cpu")
    try:
        if kind == "cpu":
            torch.default_generator.set_state(given)
        else:
            getattr(torch, kind).set_rng_state(given, device)
    except (RuntimeError, TypeError):
        # Each kind has a state of another size.
        return False
    return True


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- copies


_ALIGNMENT = 64
"""Bytes. Libraries add in another order where memory begins elsewhere in a line of the cache."""
_MOST_GAPS = 4
"""A view into memory so many times its own size is copied without what lies between its elements."""


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own with the same values, dtype, device, strides and alignment, which takes no gradient.

    A view with wide gaps, and what has no strides, becomes contiguous where torch's ``clone`` makes it so.

    Raises:
        UnknownValue: it has no values.
    """
    if internals.is_transformed(tensor):
        raise UnknownValue("a tensor inside of a function transform (vmap, grad) has no values of its own")
    with alone():
        plain = tensor.detach()
        if plain.layout is not torch.strided or plain.is_quantized or type(plain) is not torch.Tensor:
            return plain.clone()
        if plain.is_conj() or plain.is_neg() or not plain.numel():
            return plain.clone()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride()))
        if extent > _MOST_GAPS * plain.numel():
            return plain.clone()
        # As memory, so that elements which share a place, as those of an expanded tensor do, share one again.
        memory = torch.as_strided(plain, (extent,), (1,), plain.storage_offset())
        width = plain.element_size()
        room = torch.empty(extent + _ALIGNMENT // width, dtype=plain.dtype, device=plain.device)
        start = (plain.data_ptr() - room.data_ptr()) % _ALIGNMENT // width
        room[start : start + extent].copy_(memory)
        return torch.as_strided(room, plain.shape, plain.stride(), start)


# --- group


script: ScriptWords = words
compilation: Compilation | None = compiler
differentiates_anywhere = True
