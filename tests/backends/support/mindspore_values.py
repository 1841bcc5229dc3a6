"""What the contract suite needs of MindSpore tensors, for both ways to write programs over them.

A MindSpore tensor has no flag that says whether it takes a gradient; the program that asks for gradients says which.
So `Values.tensor` writes down what the test wants in an attribute of its own, and `Values.run` asks for exactly that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import parts
import pytest
from mindspore.common.api import _no_grad
from mindspore.common.seed import _KERNEL_SEED
from mindspore.communication import comm_func
from parts import Api, Outcome

from probe.api import debugger, randomness
from probe.api.mindspore import PrecisionDebugger
from probe.backends import loader
from probe.backends.mindspore import statistics
from probe.backends.shared import tensors

DTYPE_NAMES = {
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    **{f"complex{bits}": f"Complex{bits}" for bits in (64, 128)},
    "bfloat16": "BFloat16",
    "bool": "Bool",
}
TAKES_GRADIENT = "_the_test_wants_a_gradient"
# Taken before anything is collected, so that the tests' own handling of values is not among the recorded calls.
_assign_items = ms.Tensor.__setitem__
_permute = ms.ops.permute
_broadcast_to = ms.ops.broadcast_to


class Values:
    """Tensors, their gradients, files and random numbers; modules and functions are the subclass's."""

    name: str
    apis: dict[str, Api]
    release = ".".join(ms.__version__.split(".")[:2])
    suffix = ".npy"
    tensor_type = "mindspore.Tensor"
    complex_norm = True
    list_is_one_output = True
    empty_tensors_have_files = True
    integer_bounds = float
    risk = {"core": "matmul", "middle": "abs", "low": "concat"}  # noqa: RUF012
    floats = ("float16", "bfloat16", "float32", "float64")
    small_floats = ()
    integers = ("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    complexes = ("complex64", "complex128")
    same_while_collecting = ()
    """MindSpore has no other way to see a call than to replace the function while collecting."""

    def __init__(self) -> None:
        self.last_gradients: dict[str, Any] = {}
        """What `trainer` found for each parameter; MindSpore keeps gradients nowhere."""

    def without_compiled_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where there is no compiler."""
        monkeypatch.setattr(tensors, "reduce", None)

    def parameters(self, model: Any) -> dict[str, Any]:
        """The parameters of a model by path; nothing for a plain function."""
        raise NotImplementedError

    def given(self, tensor: Any) -> Any:
        """A tensor that MindSpore made, as the program's own functions want it."""
        return tensor

    # --- values

    def dtype(self, short: str) -> Any:
        return getattr(ms, "bool_" if short == "bool" else short)

    def dtype_name(self, short: str) -> str:
        return DTYPE_NAMES[short]

    def tensor(self, array: Any, dtype: str | None = None, requires_grad: bool = False) -> Any:
        array = np.array(array)
        if dtype == "bfloat16":
            made = ms.Tensor(array.astype(np.float32), ms.bfloat16)
        else:
            made = ms.Tensor(array if dtype is None else array.astype(dtype))
        setattr(made, TAKES_GRADIENT, requires_grad)
        return self.given(made)

    def numpy(self, tensor: Any) -> Any:
        """The values; bfloat16, which numpy does not have, comes as float32, which holds each of them exactly."""
        array = tensor.asnumpy()
        return array.astype(np.float32) if tensor.dtype == ms.bfloat16 else array.copy()

    def stored_bytes(self, tensor: Any) -> bytes:
        return bytes(np.ascontiguousarray(self.numpy(tensor)).tobytes())

    def transposed(self, tensor: Any) -> Any:
        return self.permuted(tensor, (1, 0))

    def permuted(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        return self.given(_permute(tensor, axes))

    def expanded(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return self.given(_broadcast_to(tensor, shape))

    def sketch_on_device(self, tensor: Any) -> bytes:
        """The packed sketch that operations for devices make, which the CPU has as well."""
        with _no_grad():
            return statistics.fetched([statistics.sketch_on_device(tensor)])[0]

    def write(self, tensor: Any, value: float) -> None:
        _assign_items(tensor, Ellipsis, value)

    def load_tensor_file(self, path: Path) -> Any:
        return np.load(path)

    # --- programs

    def without_gradient(self, function: Callable[[], Any]) -> Any:
        with _no_grad():
            return function()

    def run(
        self, function: Callable[..., Any], *inputs: Any, model: Any = None, between: Callable[[], None] | None = None
    ) -> Outcome:
        def forward(*given: Any) -> Any:
            output = function(*given)
            if between is not None:
                between()
            return output

        weights = self.parameters(function if model is None else model)
        places = tuple(place for place, value in enumerate(inputs) if getattr(value, TAKES_GRADIENT, False))
        output, taken = self._value_and_gradients(forward, places, list(weights.values()))(*inputs)
        found = dict(zip(places, taken))
        return Outcome(
            self.numpy(output),
            [self.numpy(found[place]) if place in found else None for place in range(len(inputs))],
            {} if model is None else dict(zip(weights, map(self.numpy, taken[len(places) :]))),
        )

    def _value_and_gradients(
        self, forward: Callable[..., Any], places: tuple[int, ...], weights: Sequence[Any]
    ) -> Callable[..., Any]:
        """A function that returns the output, and the gradients of the inputs at `places` and of `weights`, flat."""
        differentiated = ms.value_and_grad(forward, places or None, weights or None)

        def call(*inputs: Any) -> Any:
            output, gradients = differentiated(*inputs)
            # The form of the gradients depends on what was asked for: one tensor, a tuple, or a pair of these.
            groups = gradients if places and weights else (gradients,)
            flat: list[Any] = []
            for group in groups:
                flat += group if isinstance(group, (tuple, list)) else [group]
            return output, flat

        return call

    def state(self, model: Any) -> dict[str, Any]:
        state = {name: self.numpy(value) for name, value in self.parameters(model).items()}
        state.update({f"{name}.grad": gradient for name, gradient in self.last_gradients.items()})
        return state

    def random_state(self) -> bytes:
        """What can be read of it: the kernels of the CPU keep the rest to themselves."""
        return repr((ms.get_seed(), _KERNEL_SEED, np.random.get_state(), random.getstate())).encode()

    def seed(self, number: int) -> None:
        ms.set_seed(number)

    def declined(self, tensor: Any) -> Any:
        """MindSpore's operators raise and do not decline."""
        return NotImplemented

    def seldom_calls(self, tensor: Any) -> list[Any]:
        """MindSpore has none."""
        return []

    def background_work(self, tensor: Any) -> Any:
        """The handle of work, with none behind it: that needs processes which msrun starts."""
        return comm_func.CommHandle()

    def end_background_work(self) -> None:
        pass

    # --- the tool

    def api_objects(self) -> dict[str, Any]:
        return parts.api_objects(self.apis)

    @property
    def adapter(self) -> Any:
        return loader.load(self.name)

    def new_debugger_class(self) -> type[debugger.PrecisionDebugger]:
        return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})

    def seed_all(self, *args: Any, **kwargs: Any) -> None:
        randomness.seed_all(self.adapter.randomness, *args, **kwargs)
