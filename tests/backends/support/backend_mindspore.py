"""What the contract suite needs of MindSpore's dynamic graph; see `backend_torch` for what each method is."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Errors only: MindSpore announces its own deprecations on stderr otherwise. It reads this when it is imported.
os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mindspore.mint.nn.functional as functional
import parts
from mindspore import mint, nn, ops
from mindspore_values import Values
from parts import Api


class Linear(nn.Cell):
    """Cells of MindSpore hold their own references to functions; a user's cell calls them by their public names."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.weight = ms.Parameter(weight)
        self.bias = ms.Parameter(bias)

    def construct(self, x: Any) -> Any:
        return functional.linear(x, self.weight, self.bias)


class ReLU(nn.Cell):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def construct(self, x: Any) -> Any:
        if not self.inplace:
            return functional.relu(x)
        x[x < 0] = 0
        return x


class Backend(Values):
    name = "mindspore"
    framework = "mindspore"
    root = "Cell"
    forward_name = "construct"
    classes = {"linear": "Linear", "relu": "ReLU", "dropout": "Dropout"}  # noqa: RUF012
    apis = {  # noqa: RUF012
        "add": Api("Tensor.__add__", ms.Tensor, "__add__", operator.add),
        "multiply": Api("Tensor.__mul__", ms.Tensor, "__mul__", operator.mul),
        "add_inplace": Api("Tensor.__iadd__", ms.Tensor, "__iadd__", operator.iadd),
        "relu": Api("MintFunctional.relu", functional, "relu"),
        "linear": Api("MintFunctional.linear", functional, "linear"),
        # Those of mint have no kernel for the CPU: dropout nowhere, split not in 2.7.
        "dropout": Api("Functional.dropout", ops, "dropout"),
        "matmul": Api("Mint.matmul", mint, "matmul"),
        "abs": Api("Mint.abs", mint, "abs"),
        "concat": Api("Mint.cat", mint, "cat"),
        "split": Api("Functional.split", ops, "split"),
        "sum": Api("Mint.sum", mint, "sum"),
    }

    def framework_values(self) -> list[tuple[Any, str | None, Any]]:
        return [
            (ms.float16, None, {"type": "mindspore.dtype", "value": "Float16"}),
            (ms.float16, "dtype", {"type": "mindspore.dtype", "value": "Float16"}),
            (ms.bfloat16, "dtype", {"type": "mindspore.dtype", "value": "BFloat16"}),
            (ms.bool_, "dtype", {"type": "mindspore.dtype", "value": "Bool"}),
            (nn.ReLU(), None, None),
        ]

    def module(self, class_name: str, forward: Callable[..., Any], **children: Any) -> Any:
        module = type(class_name, (nn.Cell,), {self.forward_name: forward})()
        for name, child in children.items():
            setattr(module, name, child)
        return module

    def parameter(self, array: Any) -> Any:
        return ms.Parameter(self.tensor(array))

    def parameters(self, model: Any) -> dict[str, Any]:
        return dict(model.parameters_and_names()) if isinstance(model, nn.Cell) else {}

    def linear(self, weight: Any, bias: Any) -> Any:
        return Linear(self.tensor(weight), self.tensor(bias))

    def relu(self) -> Any:
        return ReLU()

    def inplace_relu(self) -> Any:
        return ReLU(inplace=True)

    def dropout(self, probability: float) -> Any:
        return nn.Dropout(p=probability)

    seeded_dropout = dropout

    def largest_place(self, tensor: Any) -> Any:
        """The index of the largest element of each row, which is a choice."""
        return ops.argmax(tensor, dim=-1)

    def trainer(self, model: Any) -> Callable[[Any], Any]:
        parameters = self.parameters(model)
        optimizer = nn.SGD(list(parameters.values()), learning_rate=0.1, momentum=0.9)

        def loss(batch: Any) -> Any:
            return mint.mean(mint.square(model(batch)))

        differentiated = ms.value_and_grad(loss, None, optimizer.parameters)

        def train(batch: Any) -> Any:
            value, gradients = differentiated(batch)
            optimizer(ops.clip_by_global_norm(gradients, 1.0))
            self.last_gradients = dict(zip(parameters, map(self.numpy, gradients)))
            return self.numpy(value)

        return train

    def adam(self, model: Any) -> tuple[Any, Callable[[Any], Any]]:
        parameters = self.parameters(model)
        optimizer = nn.Adam(list(parameters.values()), 0.01)

        def loss(batch: Any) -> Any:
            return mint.mean(mint.square(model(batch)))

        differentiated = ms.value_and_grad(loss, None, optimizer.parameters)

        def train(batch: Any) -> Any:
            value, gradients = differentiated(batch)
            optimizer(gradients)
            self.last_gradients = dict(zip(parameters, map(self.numpy, gradients)))
            return self.numpy(value)

        return optimizer, train

    def random_numbers(self) -> Any:
        return self.numpy(ops.standard_normal((4,)))

    def training(self, model: Any, on: bool) -> None:
        model.set_train(on)

    def traces_left(self, model: Any) -> list[str]:
        found = []
        for path, cell in model.cells_and_names():
            for name, value in vars(cell).items():
                if "hook" in name and isinstance(value, dict):
                    found += [f"{path}.{name}"] * len(value)
                # Calls of a Primitive are seen by giving it another class, which says that it is MindSpore's.
                call = vars(type(value)).get("__call__")
                if getattr(call, "__module__", "").startswith("probe."):
                    found.append(f"{path}.{name}.__class__")
        for path, parameter in self.parameters(model).items():
            found += [f"{path}.hooks"] * len(parameter.hooks())
        return found

    def run_script(self, source: str, *arguments: str, cwd: Path, code: int = 0) -> str:
        head = (
            "from backend_mindspore import Backend\nfrom msprobe.mindspore import PrecisionDebugger, module_dump, "
            "module_dump_end, save, seed_all\nbackend = Backend()\n"
        )
        return parts.run_script(self.name, head, source, *arguments, cwd=cwd, code=code)
