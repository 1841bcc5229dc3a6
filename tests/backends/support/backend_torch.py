"""What the contract suite needs of PyTorch.

The tests build every value and program through `Backend`, so that another framework runs the same tests with another
`backend_<name>.py`. Names which differ between frameworks are data of `Backend`; what a framework cannot do is a line
in its list of expected failures, not a flag here.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parts
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from parts import Api, Outcome
from torch import nn

from probe.api import debugger, randomness
from probe.api.pytorch import PrecisionDebugger
from probe.backends import loader
from probe.backends.shared import tensors
from probe.backends.torch.tensors import plain_tensors, statistics
from probe.common.interfaces import StatisticsMode


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    """The tests' own handling of values must not appear among the calls that are collected."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return call


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor / 2


class Stranger:
    """No operator of a tensor knows it."""


class Backend:
    """One framework as the tests see it; every method is short enough to be read before it is trusted."""

    name = "torch"
    release = ".".join(torch.__version__.split(".")[:2])
    framework = "pytorch"
    suffix = ".pt"
    root = "Module"
    tensor_type = "torch.Tensor"
    forward_name = "forward"
    """The method in which a user writes a module's computation."""
    classes = {"linear": "Linear", "relu": "ReLU", "dropout": "Dropout"}  # noqa: RUF012
    apis = {  # noqa: RUF012
        "add": Api("Tensor.__add__", torch.Tensor, "__add__", operator.add),
        "multiply": Api("Tensor.__mul__", torch.Tensor, "__mul__", operator.mul),
        "add_inplace": Api("Tensor.__iadd__", torch.Tensor, "__iadd__", operator.iadd),
        "relu": Api("Functional.relu", F, "relu"),
        "linear": Api("Functional.linear", F, "linear"),
        "dropout": Api("Functional.dropout", F, "dropout"),
        "matmul": Api("Torch.matmul", torch, "matmul"),
        "abs": Api("Torch.abs", torch, "abs"),
        "concat": Api("Torch.cat", torch, "cat"),
        "split": Api("Torch.split", torch, "split"),
        "sum": Api("Torch.sum", torch, "sum"),
    }
    risk = {"core": "matmul", "middle": "abs", "low": "concat"}  # noqa: RUF012
    """A neutral API name of each class."""
    floats = ("float16", "bfloat16", "float32", "float64")
    small_floats = ("float8_e4m3fn", "float8_e5m2")
    integers = ("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    complexes = ("complex64", "complex128")
    # What the real tool does for this framework and not for every one.
    complex_norm = False
    """Whether a complex tensor has a norm."""
    list_is_one_output = False
    """Whether a list that a call returns is one output, and not as many as it has items."""
    empty_tensors_have_files = False
    integer_bounds = int
    """The type of Max and Min of a tensor of integers."""

    def without_compiled_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where there is no compiler."""
        monkeypatch.setattr(tensors, "reduce", None)
        monkeypatch.setattr(plain_tensors, "describers", None)

    def described_without_compiled_entry(self, tensor: Any, summary: StatisticsMode) -> Any:
        """The entry of a tensor as Python makes it, of numbers that compiled code may have read."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_tensors, "describers", None)
            return self.adapter.tensors.describe_tensor(tensor, summary)

    @property
    def has_compiled_parts(self) -> bool:
        """Whether the package was installed with a C compiler, and torch lends its tensors to compiled code."""
        return tensors.reduce is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

    # --- values

    def dtype(self, short: str) -> Any:
        return getattr(torch, short)

    def dtype_name(self, short: str) -> str:
        return f"torch.{short}"

    @_unseen
    def tensor(self, array: Any, dtype: str | None = None, requires_grad: bool = False) -> Any:
        """A new tensor with the values of `array`, by default of the array's own type."""
        array = np.array(array)
        made = torch.from_numpy(np.array(array, order="C")) if array.ndim else torch.tensor(array.item())
        if array.ndim == 0 and dtype is None:
            made = made.to(getattr(torch, str(array.dtype)))
        if dtype is not None:
            made = made.to(getattr(torch, dtype))
        return made.requires_grad_(requires_grad)

    @_unseen
    def numpy(self, tensor: Any) -> Any:
        """The values; types that numpy does not have come as float64, which holds each of them exactly."""
        tensor = tensor.detach()
        if tensor.dtype == torch.bfloat16 or str(tensor.dtype).startswith("torch.float8"):
            tensor = tensor.to(torch.float64)
        return tensor.resolve_conj().resolve_neg().numpy().copy()

    @_unseen
    def stored_bytes(self, tensor: Any) -> bytes:
        """The elements' bytes in row-major order, in the type in which a file holds them."""
        return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())

    @_unseen
    def transposed(self, tensor: Any) -> Any:
        """A view with the two dimensions exchanged, not contiguous."""
        return tensor.t()

    @_unseen
    def permuted(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        return tensor.permute(axes)

    @_unseen
    def expanded(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor.expand(shape)

    def sketch_on_device(self, tensor: Any) -> bytes:
        """The packed sketch that operations for devices make, which the CPU has as well."""
        return statistics.fetched([statistics.on_device(tensor)])[0]

    @_unseen
    def write(self, tensor: Any, value: float) -> None:
        """Overwrite all elements in place."""
        with torch.no_grad():
            tensor.fill_(value)

    def load_tensor_file(self, path: Path) -> Any:
        """What a tensor file holds, as a numpy array."""
        return self.numpy(torch.load(path, weights_only=True))

    def framework_values(self) -> list[tuple[Any, str | None, Any]]:
        """Values of the framework that are no tensors: (value, keyword, entry)."""
        return [
            (torch.Size([2, 3]), None, {"type": "torch.Size", "value": [2, 3]}),
            (torch.float16, None, {"type": "torch.dtype", "value": "torch.float16"}),
            (torch.float16, "dtype", {"type": "torch.dtype", "value": "torch.float16"}),
            (torch.device("cpu"), None, {"type": "torch.device", "value": "cpu"}),
            (torch.device("cpu"), "device", {"type": "torch.device", "value": "cpu"}),
            (torch.device("cuda", 1), "device", {"type": "torch.device", "value": "cuda:1"}),
            ("cuda:1", "device", {"type": "torch.device", "value": "cuda:1"}),
            (torch.channels_last, None, {"type": "torch.memory_format", "format": "channels_last"}),
            (torch.strided, None, None),
        ]

    # --- programs

    def module(self, class_name: str, forward: Callable[..., Any], **children: Any) -> Any:
        """A module of a new class; `forward` gets it as first argument. Children are modules or `parameter`s."""
        cls = type(class_name, (torch.nn.Module,), {self.forward_name: forward})
        module = cls()
        for name, child in children.items():
            setattr(module, name, child)
        return module

    def parameter(self, array: Any) -> Any:
        return torch.nn.Parameter(self.tensor(array))

    @_unseen
    def linear(self, weight: Any, bias: Any) -> Any:
        """``x @ weight.T + bias``."""
        module = torch.nn.Linear(np.shape(weight)[1], np.shape(weight)[0])
        with torch.no_grad():
            module.weight.copy_(self.tensor(weight))
            module.bias.copy_(self.tensor(bias))
        return module

    def relu(self) -> Any:
        return torch.nn.ReLU()

    def inplace_relu(self) -> Any:
        return torch.nn.ReLU(inplace=True)

    def dropout(self, probability: float) -> Any:
        return torch.nn.Dropout(probability)

    def seeded_dropout(self, probability: float) -> Any:
        """A dropout that drops the same after the same `seed`."""
        return self.dropout(probability)

    def without_gradient(self, function: Callable[[], Any]) -> Any:
        with torch.no_grad():
            return function()

    def run(
        self, function: Callable[..., Any], *inputs: Any, model: Any = None, between: Callable[[], None] | None = None
    ) -> Outcome:
        """Call `function` and take the gradients of its one output, with ones as its own gradient.

        Args:
            model: whose parameters' gradients to return.
            between: called when the forward has ended and the backward has not begun.
        """
        for value in inputs:
            if isinstance(value, torch.Tensor):
                value.grad = None
        if model is not None:
            model.zero_grad()
        output = function(*inputs)
        if between is not None:
            between()
        output.backward(torch.ones_like(output))
        return Outcome(self.numpy(output), [self._gradient(value) for value in inputs], self._gradients(model))

    def _gradient(self, value: Any) -> Any:
        return None if getattr(value, "grad", None) is None else self.numpy(value.grad)

    def _gradients(self, model: Any) -> dict[str, Any]:
        return {} if model is None else {name: self._gradient(p) for name, p in model.named_parameters()}

    def trainer(self, model: Any) -> Callable[[Any], Any]:
        """A function that does one step of training on a batch and returns the loss."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def train(batch: Any) -> Any:
            optimizer.zero_grad()
            loss = model(batch).float().pow(2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return self.numpy(loss)

        return train

    def parameters(self, model: Any) -> dict[str, Any]:
        """The parameters of a model by path."""
        return dict(model.named_parameters())

    def adam(self, model: Any) -> tuple[Any, Callable[[Any], Any]]:
        """An optimizer with two moments, and a function that does one step of training on a batch."""
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def train(batch: Any) -> Any:
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            return self.numpy(loss)

        return optimizer, train

    def state(self, model: Any) -> dict[str, Any]:
        """Every parameter and buffer, and the last gradient of each parameter."""
        state = {name: self.numpy(value) for name, value in model.state_dict().items()}
        state.update({f"{name}.grad": gradient for name, gradient in self._gradients(model).items()})
        return state

    def random_state(self) -> bytes:
        return bytes(torch.get_rng_state().tolist())

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def random_numbers(self) -> Any:
        return self.numpy(torch.rand(4))

    def declined(self, tensor: Any) -> Any:
        """What an operator gives that leaves the work to the other operand, if the framework has such a one."""
        return tensor == Stranger()

    def largest_place(self, tensor: Any) -> Any:
        """The index of the largest element of each row, which is a choice."""
        return torch.argmax(tensor, dim=-1)

    def seldom_calls(self, tensor: Any) -> list[Any]:
        """What functions give that the tool is called by, or goes around, each in a way of its own."""
        add = torch.Tensor.add
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            patch.setattr(torch.Tensor, "add", lambda *args: add(*args))
            replaced = tensor.add(tensor)
            scripted = torch.jit.script(nn.ReLU())(tensor), torch.jit.script(_halved)(tensor)
        cell = torch._VF.tanh(tensor)
        return [self.numpy(each) for each in (replaced, *scripted, cell, tensor.view_as(tensor))]

    def background_work(self, tensor: Any) -> Any:
        """Work that goes on after the call, until its ``wait`` is called; it leaves `tensor` as it is."""
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return dist.all_reduce(tensor, async_op=True)

    def end_background_work(self) -> None:
        """The process has no rank any more."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def training(self, model: Any, on: bool) -> None:
        model.train(on)

    def traces_left(self, model: Any) -> list[str]:
        """Everything that is attached to a model or its parameters; empty when nothing is."""
        found = []
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if "hook" in name and isinstance(value, dict):
                    found += [f"{path}.{name}"] * len(value)
        for path, parameter in model.named_parameters():
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if getattr(parameter, kind) is not None:
                    found.append(f"{path}.{kind}")
        return found

    def api_objects(self) -> dict[str, Any]:
        return parts.api_objects(self.apis)

    same_while_collecting = ("relu", "linear", "dropout", "matmul", "abs", "concat", "split", "sum")
    """Those that are promised to be the same object even between start and stop."""

    # --- the tool

    @property
    def adapter(self) -> Any:
        return loader.load(self.name)

    def new_debugger_class(self) -> type[debugger.PrecisionDebugger]:
        """A class with no instance yet: what a new process finds, without its cost."""
        return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})

    def seed_all(self, *args: Any, **kwargs: Any) -> None:
        randomness.seed_all(self.adapter.randomness, *args, **kwargs)

    def run_script(self, source: str, *arguments: str, cwd: Path, code: int = 0) -> str:
        """Run a script in a new process, with ``backend`` and `PrecisionDebugger` defined; its standard output."""
        head = (
            "from backend_torch import Backend\nfrom msprobe.pytorch import PrecisionDebugger, module_dump, "
            "module_dump_end, save, seed_all\nbackend = Backend()\n"
        )
        return parts.run_script(self.name, head, source, *arguments, cwd=cwd, code=code)
