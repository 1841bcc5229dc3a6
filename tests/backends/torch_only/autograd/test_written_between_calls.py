"""A tensor that one call returned and the next one is given may have been written in between, also in ways of which
torch knows nothing: every record has what was in memory then, and none has what an earlier record had found there."""

from __future__ import annotations

import ctypes
import threading
import zlib
from typing import Any, Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_parts import collected, loaded

SHAPE = (3, 4)


def by_memmove(x: torch.Tensor) -> None:
    source = np.full(SHAPE, 7, np.float32)
    ctypes.memmove(x.data_ptr(), source.ctypes.data, source.nbytes)


def by_another_thread(x: torch.Tensor) -> None:
    thread = threading.Thread(target=lambda: np.copyto(x.detach().numpy(), 7))
    thread.start()
    thread.join()


def by_the_version_kept(x: torch.Tensor) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(x):
        x.fill_(7)


def by_foreach(x: torch.Tensor) -> None:
    torch._foreach_zero_([x])
    torch._foreach_add_([x], 7)


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "data": lambda x: x.data.fill_(7),
    "a view of data": lambda x: x.data.view(-1)[:].copy_(torch.full((12,), 7.0)),
    "detach": lambda x: x.detach().mul_(0).add_(7),
    "numpy": lambda x: np.copyto(x.detach().numpy(), 7),
    "dlpack": lambda x: torch.from_dlpack(x.detach()).fill_(7),
    "storage": lambda x: x.untyped_storage().copy_(torch.full(SHAPE, 7.0).untyped_storage()),
    "memmove": by_memmove,
    "another thread": by_another_thread,
    "no_grad": torch.no_grad()(lambda x: x.fill_(7)),
    "inference mode": torch.inference_mode()(lambda x: x.fill_(7)),
    "the version kept": by_the_version_kept,
    "foreach": torch.no_grad()(by_foreach),
    "out": lambda x: torch.full(SHAPE, 7.0, out=x.detach()),
    "other data": lambda x: setattr(x, "data", torch.full(SHAPE, 7.0)),
}


class Model(torch.nn.Module):
    """What `write` does between two functions, between two modules, and between a module and the function it calls."""

    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.write = write
        self.first = torch.nn.Sigmoid()
        self.second = torch.nn.Tanh()
        # After the tool has seen what the module is given, and before the module's own function has.
        self.second.forward = self.write_and_call(self.second.forward)  # type: ignore[method-assign]

    def write_and_call(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def changed(x: torch.Tensor) -> Any:
            self.write(x)
            return forward(x)

        return changed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        self.write(x)
        x = self.first(x)
        return self.second(x)


def numbers(values: np.ndarray[Any, Any]) -> Any:
    wide = values.astype(np.float64)
    return pytest.approx([wide.max(), wide.min(), wide.mean(), np.sqrt((wide * wide).sum())], rel=1e-6)


# Torch itself refuses to write in inference mode to a normal tensor that takes a gradient.
@pytest.mark.sampled(least=9)
@pytest.mark.parametrize(
    ("write", "gradient"), [(w, g) for w in WRITES for g in (False, True) if not (g and w == "inference mode")]
)
def test_every_record_has_what_was_in_memory_when_its_call_was_made(runs: Any, write: str, gradient: bool) -> None:
    given = np.linspace(-1, 2, 12, dtype=np.float32).reshape(SHAPE)
    model = Model(WRITES[write])
    results: list[torch.Tensor] = []

    def program() -> None:
        with torch.set_grad_enabled(gradient):
            results.append(model(torch.from_numpy(given.copy()).requires_grad_(gradient)))

    data = collected(runs, model, program, summary_mode="md5").data
    relu, seven = np.maximum(given, 0), np.full(SHAPE, 7, np.float32)
    with torch.no_grad():
        sigmoid = torch.sigmoid(torch.from_numpy(seven)).numpy()
        tanh = torch.tanh(torch.from_numpy(seven)).numpy()
    assert np.array_equal(results[0].detach().numpy(), tanh)
    expected = {
        "Functional.relu.0.forward": (given, relu),
        "Module.first.Sigmoid.forward.0": (seven, sigmoid),
        "Torch.sigmoid.0.forward": (seven, sigmoid),
        "Module.second.Tanh.forward.0": (sigmoid, tanh),
        "Torch.tanh.0.forward": (seven, tanh),
    }
    for name, (before, after) in expected.items():
        [entry], [output] = data[name]["input_args"], data[name]["output"]
        for found, wanted in ((entry, before), (output, after)):
            assert [found[key] for key in ("Max", "Min", "Mean", "Norm")] == numbers(wanted), name
            assert found["md5"] == f"{zlib.crc32(wanted.tobytes()):08x}", name


@pytest.mark.parametrize("async_dump", [False, True], ids=["at once", "async_dump"])
@pytest.mark.parametrize("write", WRITES)
def test_every_file_has_what_was_in_memory_when_its_call_was_made(runs: Any, write: str, async_dump: bool) -> None:
    given = np.linspace(-1, 2, 12, dtype=np.float32).reshape(SHAPE)
    model = Model(WRITES[write])
    # All tensors can only be written at once.
    names = {"list": ["relu", "sigmoid", "tanh"]} if async_dump else {}
    program = torch.no_grad()(lambda: model(torch.from_numpy(given.copy())))
    dump = collected(runs, model, program, task="tensor", async_dump=async_dump, **names)
    for name, expected in {
        "Functional.relu.0.forward.output.0": np.maximum(given, 0),
        "Torch.sigmoid.0.forward.input.0": np.full(SHAPE, 7, np.float32),
        "Torch.tanh.0.forward.input.0": np.full(SHAPE, 7, np.float32),
    }.items():
        assert np.array_equal(loaded(dump, {"data_name": f"{name}.pt"}).numpy(), expected), name
