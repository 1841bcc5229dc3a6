"""The least that a tool written in Python can do, to measure what of a tool's time is avoidable.

`Floor` sees every call and every backward as a tool has to, reads the memory of each tensor once with the compiled
statistics, and hands one frame of 350 bytes to the system for each record, so that a kill loses none. It knows no
names, takes no stacks, keeps no tree, tells no module's gradients from others that arrive at the same tensor, finds out
nothing about unusual values, and makes no files: no dump could be made from what it writes.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from probe.backends.shared import tensors

LEVELS = {"floor-L0": (True, False), "floor-L1": (False, True), "floor-mix": (True, True)}
"""Mode -> whether modules are seen, whether functions are."""

_FRAME = b"\0" * 350
"""As long as the middle one of the frames in a journal."""
_unseen = torch._C.DisableTorchFunction
_tensor_types = (torch.Tensor, torch.nn.Parameter)


class Floor:
    """Used in the place of a debugger.

    Args:
        mode: One of `LEVELS`.
        path: The file that frames go to; removed by whoever measures.
    """

    def __init__(self, mode: str, path: str) -> None:
        if tensors.reduce is None:
            raise SystemExit("The compiled statistics are missing: python setup.py build_ext --inplace")
        self._reduce = tensors.reduce
        self._float32 = tensors.KINDS["float32"]
        self._modules, functions = LEVELS[mode]
        self._function_mode = _Functions(self) if functions else None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._hooks: list[Any] = []
        self._frames = 0
        self.wrote = {"records": 0, "bytes": 0}
        """In the last step."""

    def start(self, model: torch.nn.Module) -> None:
        if self._modules:
            for module in model.modules():
                self._hooks.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self._hooks.append(module.register_forward_hook(self._after, with_kwargs=True))
            for parameter in model.parameters():
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        if self._function_mode is not None:
            self._function_mode.__enter__()

    def stop(self) -> None:
        if self._function_mode is not None:
            self._function_mode.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def step(self) -> None:
        """There are no files to make."""
        self.wrote = {"records": self._frames, "bytes": self._frames * len(_FRAME)}
        self._frames = 0

    def read(self, value: Any) -> None:
        kind = type(value)
        if kind in _tensor_types:
            if value.dtype is torch.float32 and value.dim():
                self._reduce(value.data_ptr(), value.shape, value.stride(), self._float32, False, True)
        elif kind is tuple or kind is list:
            for item in value:
                self.read(item)

    def record(self) -> None:
        self._frames += 1
        os.write(self._file, _FRAME)

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        with _unseen():
            self.read(args)

    def _after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        with _unseen():
            self.read(output)
            for parameter in module._parameters.values():
                self.read(parameter)
            if type(output) is torch.Tensor and output.grad_fn is not None:
                output.grad_fn.register_prehook(self._arrived)
                output.grad_fn.register_hook(self._departed)
        self.record()

    def _arrived(self, gradients: Any) -> None:
        with _unseen():
            self.read(gradients)

    def _departed(self, grad_inputs: Any, grad_outputs: Any) -> None:
        with _unseen():
            self.read(grad_inputs)
        self.record()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        with _unseen():
            self.read(parameter.grad)
        self.record()


class _Functions(TorchFunctionMode):
    def __init__(self, floor: Floor) -> None:
        super().__init__()
        self._floor = floor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        # What gives no tensor, or a part of one as `Tensor.grad` does, is no record of a tool either.
        if type(output) not in _OF_CALLS or func.__name__ in _NO_CALLS:
            return output
        floor = self._floor
        # A tool has to read them before the call; it costs the same.
        floor.read(args)
        floor.read(output)
        node = output.grad_fn if type(output) is torch.Tensor else None
        if node is not None:
            node.register_hook(self._backward)
        floor.record()
        return output

    def _backward(self, grad_inputs: Any, grad_outputs: Any) -> None:
        with _unseen():
            self._floor.read(grad_outputs)
            self._floor.read(grad_inputs)
        self._floor.record()


_OF_CALLS = (torch.Tensor, tuple, list)
_NO_CALLS = ("__get__", "__set__", "size", "stride")
