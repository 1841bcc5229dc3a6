"""What the contract suite needs of the toy framework; see `backend_torch` for what each method is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parts
import toy_framework as toy
from parts import Api, Outcome
from toy_adapter import ToyAdapter

from probe.api import debugger, randomness
from probe.backends import loader
from probe.common.numerics.sketch import sketch


class PrecisionDebugger(debugger.PrecisionDebugger):
    backend = "toy"


class Backend:
    name = "toy"
    release = "1"
    framework = "pytorch"
    suffix = ".npy"
    root = "Module"
    tensor_type = "torch.Tensor"
    forward_name = "forward"
    classes = {"linear": "Linear", "relu": "ReLU", "dropout": "Dropout"}  # noqa: RUF012
    apis = {  # noqa: RUF012
        "add": Api("Tensor.__add__", toy.Tensor, "__add__", operator.add),
        "multiply": Api("Tensor.__mul__", toy.Tensor, "__mul__", operator.mul),
        "add_inplace": Api("Tensor.__iadd__", toy.Tensor, "__iadd__", operator.iadd),
        "relu": Api("Functional.relu", toy, "relu"),
        "linear": Api("Functional.linear", toy, "linear"),
        "dropout": Api("Functional.dropout", toy, "dropout"),
        "matmul": Api("Torch.matmul", toy, "matmul"),
        "abs": Api("Torch.abs", toy, "abs"),
        "concat": Api("Torch.cat", toy, "cat"),
        "split": Api("Torch.split", toy, "split"),
        "sum": Api("Torch.sum", toy, "sum"),
    }
    risk = {"core": "matmul", "middle": "abs", "low": "concat"}  # noqa: RUF012
    floats = ("float16", "float32", "float64")
    small_floats = ()
    integers = ("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    complexes = ()
    complex_norm = False
    list_is_one_output = False
    empty_tensors_have_files = True
    integer_bounds = int
    same_while_collecting = ()

    def without_compiled_parts(self, monkeypatch: Any) -> None:
        """It has none."""

    # --- values

    def dtype(self, short: str) -> Any:
        return np.dtype(short)

    def dtype_name(self, short: str) -> str:
        return f"torch.{short}"

    def tensor(self, array: Any, dtype: str | None = None, requires_grad: bool = False) -> Any:
        return toy.Tensor(np.array(array, dtype=dtype), requires_grad)

    def numpy(self, tensor: Any) -> Any:
        return tensor.data.copy()

    def stored_bytes(self, tensor: Any) -> bytes:
        return tensor.data.tobytes()

    def transposed(self, tensor: Any) -> Any:
        return toy.Tensor(tensor.data.T, tensor.requires_grad)

    def permuted(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        return toy.Tensor(tensor.data.transpose(axes))

    def expanded(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return toy.Tensor(np.broadcast_to(tensor.data, shape))

    def write(self, tensor: Any, value: float) -> None:
        tensor.data[...] = value
        tensor.writes += 1

    def load_tensor_file(self, path: Path) -> Any:
        return np.load(path, allow_pickle=False)

    def framework_values(self) -> list[tuple[Any, str | None, Any]]:
        return [(np.dtype("float16"), None, {"type": "torch.dtype", "value": "torch.float16"})]

    def sketch_on_device(self, tensor: Any) -> bytes:
        return sketch(tensor.data).packed()

    # --- programs

    def module(self, class_name: str, forward: Callable[..., Any], **children: Any) -> Any:
        module = type(class_name, (toy.Module,), {"forward": forward})()
        for name, child in children.items():
            setattr(module, name, child)
        return module

    def parameter(self, array: Any) -> Any:
        return self.tensor(array, requires_grad=True)

    def linear(self, weight: Any, bias: Any) -> Any:
        return toy.Linear(weight, bias)

    def inplace_relu(self) -> Any:
        return toy.ReLU(inplace=True)

    def relu(self) -> Any:
        return toy.ReLU()

    def dropout(self, probability: float) -> Any:
        return toy.Dropout(probability)

    seeded_dropout = dropout

    def without_gradient(self, function: Callable[[], Any]) -> Any:
        with toy.no_grad():
            return function()

    def run(
        self, function: Callable[..., Any], *inputs: Any, model: Any = None, between: Callable[[], None] | None = None
    ) -> Outcome:
        for value in inputs:
            if isinstance(value, toy.Tensor):
                value.grad = None
        for _, parameter in () if model is None else model.named_parameters():
            parameter.grad = None
        output = function(*inputs)
        if between is not None:
            between()
        output.backward(toy.Tensor(np.ones_like(output.data)))
        return Outcome(output.data.copy(), [self._gradient(value) for value in inputs], self._gradients(model))

    def _gradient(self, value: Any) -> Any:
        return None if getattr(value, "grad", None) is None else value.grad.data.copy()

    def _gradients(self, model: Any) -> dict[str, Any]:
        return {} if model is None else {name: self._gradient(each) for name, each in model.named_parameters()}

    def trainer(self, model: Any) -> Callable[[Any], Any]:
        def train(batch: Any) -> Any:
            for _, parameter in model.named_parameters():
                parameter.grad = None
            output = model(batch)
            loss = (output * output).sum() / output.data.size
            loss.backward(toy.Tensor(np.ones_like(loss.data)))
            for _, parameter in model.named_parameters():
                self.write(parameter, parameter.data - np.float32(0.01) * parameter.grad.data)
            return loss.data.copy()

        return train

    def parameters(self, model: Any) -> dict[str, Any]:
        return dict(model.named_parameters())

    def state(self, model: Any) -> dict[str, Any]:
        return {
            **{name: each.data.copy() for name, each in model.named_parameters()},
            **{f"{name}.grad": gradient for name, gradient in self._gradients(model).items()},
        }

    def random_state(self) -> bytes:
        return str(toy.generator.bit_generator.state).encode()

    def seed(self, number: int) -> None:
        toy.generator = np.random.default_rng(number)

    def random_numbers(self) -> Any:
        return toy.generator.random(4)

    def training(self, model: Any, on: bool) -> None:
        for _, module in model.named_modules():
            module.training = on

    def traces_left(self, model: Any) -> list[str]:
        found = [f"{path}.hooks" for path, module in model.named_modules() if module.hooks]
        return found + [f"{path}.accumulated" for path, each in model.named_parameters() if each.accumulated]

    def api_objects(self) -> dict[str, Any]:
        return parts.api_objects(self.apis)

    # --- the tool

    def run_script(self, source: str, *arguments: str, cwd: Path, code: int = 0) -> str:
        head = "from backend_toy import Backend, PrecisionDebugger\nbackend = Backend()\nbackend.adapter\n"
        return parts.run_script(self.name, head, source, *arguments, cwd=cwd, code=code)

    @property
    def adapter(self) -> Any:
        return loader._loaded.setdefault(self.name, ToyAdapter())

    def new_debugger_class(self) -> type[debugger.PrecisionDebugger]:
        assert self.adapter is not None  # the loader knows it from here on
        return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})

    def seed_all(self, *args: Any, **kwargs: Any) -> None:
        randomness.seed_all(self.adapter.randomness, *args, **kwargs)
