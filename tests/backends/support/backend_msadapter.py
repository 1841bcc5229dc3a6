"""What the contract suite needs of MSAdapter (mindtorch); see `backend_torch` for what each method is."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Errors only: MindSpore announces its own deprecations on stderr otherwise. It reads this when it is imported.
os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()  # From here on "import torch" means the torch API on top of MindSpore.
setup_metadata_patch()

import numpy as np  # noqa: E402
import parts  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from mindspore_values import Values  # noqa: E402
from parts import Api  # noqa: E402


class ReLU(torch.nn.Module):
    """In place; the gradient of mindtorch's own ``ReLU(inplace=True)`` is wrong on the CPU."""

    def forward(self, x: Any) -> Any:
        x[x < 0] = 0
        return x


class SeededDropout(torch.nn.Module):
    """No seed reaches mindtorch's own dropout on the CPU, so the mask is drawn with numpy, which MindSpore seeds."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        kept = np.random.random(tuple(x.shape)) >= self.probability
        return x * torch.tensor((kept / (1 - self.probability)).astype(np.float32))


class _Adam(torch.optim.Optimizer):
    """Without the correction of the bias, with lr 0.01."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                state["exp_avg"] = state.get("exp_avg", gradient * 0) * 0.9 + gradient * 0.1
                state["exp_avg_sq"] = state.get("exp_avg_sq", gradient * 0) * 0.999 + gradient * gradient * 0.001
                update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
                ms.ops.assign(parameter, parameter + update * -0.01)


class Backend(Values):
    name = "msadapter"
    framework = "mindtorch"
    root = "Module"
    forward_name = "forward"
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

    def given(self, tensor: Any) -> Any:
        # Functions of mindtorch refuse a tensor without it, and MindSpore gives its own results none.
        tensor._device = torch.device("cpu")
        return tensor

    def framework_values(self) -> list[tuple[Any, str | None, Any]]:
        return [
            (torch.Size([2, 3]), None, {"type": "torch.Size", "value": [2, 3]}),
            (torch.float16, None, {"type": "mindspore.dtype", "value": "Float16"}),
            (torch.float16, "dtype", {"type": "mindspore.dtype", "value": "Float16"}),
            (torch.device("cpu"), None, {"type": "torch.device", "value": "cpu"}),
            (torch.device("cpu"), "device", {"type": "torch.device", "value": "cpu"}),
            ("cuda:1", "device", {"type": "torch.device", "value": "cuda:1"}),
        ]

    def module(self, class_name: str, forward: Callable[..., Any], **children: Any) -> Any:
        module = type(class_name, (torch.nn.Module,), {self.forward_name: forward})()
        for name, child in children.items():
            setattr(module, name, child)
        return module

    def parameter(self, array: Any) -> Any:
        return torch.nn.Parameter(self.tensor(array))

    def parameters(self, model: Any) -> dict[str, Any]:
        return dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}

    def linear(self, weight: Any, bias: Any) -> Any:
        module = torch.nn.Linear(np.shape(weight)[1], np.shape(weight)[0])
        module.load_state_dict({"weight": self.tensor(weight), "bias": self.tensor(bias)})
        return module

    def relu(self) -> Any:
        return torch.nn.ReLU()

    def inplace_relu(self) -> Any:
        return ReLU()

    def dropout(self, probability: float) -> Any:
        return torch.nn.Dropout(probability)

    def seeded_dropout(self, probability: float) -> Any:
        return SeededDropout(probability)

    def largest_place(self, tensor: Any) -> Any:
        """The index of the largest element of each row, which is a choice."""
        return torch.argmax(tensor, dim=-1)

    def trainer(self, model: Any) -> Callable[[Any], Any]:
        """Written out: neither mindtorch's ``optim.SGD`` nor its ``clip_grad_norm_`` runs on the CPU."""
        parameters = self.parameters(model)
        velocities: dict[str, Any] = {}

        def loss(batch: Any) -> Any:
            return model(batch).pow(2).mean()

        differentiated = ms.value_and_grad(loss, None, list(parameters.values()))

        def train(batch: Any) -> Any:
            value, found = differentiated(batch)
            gradients = dict(zip(parameters, map(self.given, found)))
            norm = sum((gradient * gradient).sum() for gradient in gradients.values()).sqrt()
            for name, parameter in parameters.items():
                clipped = gradients[name] / torch.clamp(norm, min=1.0)
                velocities[name] = velocities[name] * 0.9 + clipped if name in velocities else clipped
                ms.ops.assign(parameter, parameter + velocities[name] * -0.1)
            self.last_gradients = dict(zip(parameters, map(self.numpy, found)))
            return self.numpy(value)

        return train

    def adam(self, model: Any) -> tuple[Any, Callable[[Any], Any]]:
        """An optimizer of the program's own: those of mindtorch do not run on the CPU."""
        parameters = self.parameters(model)
        optimizer = _Adam(parameters.values(), {})

        def loss(batch: Any) -> Any:
            return model(batch).pow(2).mean()

        differentiated = ms.value_and_grad(loss, None, list(parameters.values()))

        def train(batch: Any) -> Any:
            value, found = differentiated(batch)
            for parameter, gradient in zip(parameters.values(), map(self.given, found)):
                parameter.grad = gradient
            optimizer.step()
            self.last_gradients = dict(zip(parameters, map(self.numpy, found)))
            return self.numpy(value)

        return optimizer, train

    def random_numbers(self) -> Any:
        return self.numpy(torch.empty(4).normal_())

    def training(self, model: Any, on: bool) -> None:
        model.train(on)

    def traces_left(self, model: Any) -> list[str]:
        found = []
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if "hook" in name and isinstance(value, dict):
                    found += [f"{path}.{name}"] * len(value)
        for path, parameter in self.parameters(model).items():
            found += [f"{path}.hooks"] * len(parameter.hooks())
        return found

    def run_script(self, source: str, *arguments: str, cwd: Path, code: int = 0) -> str:
        head = (
            "from backend_msadapter import Backend\nfrom msprobe.mindspore import PrecisionDebugger, module_dump, "
            "module_dump_end, save, seed_all\nbackend = Backend()\n"
        )
        return parts.run_script(self.name, head, source, *arguments, cwd=cwd, code=code)
