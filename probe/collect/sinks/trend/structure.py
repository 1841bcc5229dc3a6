"""The structure of a model as its first step shows it: what goes in and comes out of each module, and who calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter, trends_of
from probe.common.callstack import CallStacks
from probe.common.interfaces import Handle, ModuleName

_FIELDS = {"input": "output_grad", "output": "input_grad"}
"""A listener is told of the gradient of an output as ``input`` of the backward."""


class _Seen:
    __slots__ = ("name", "takers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.takers: dict[str, list[int]] = {"input": [], "output": []}


class StructureRecorder:
    """Implements the part of `probe.common.interfaces.Listener` for modules; of each module the first call is noted.

    Args:
        adapter: The framework; of this recorder alone.
        models: The chunks of the model.
        failed: Told of failures of the tool.
    """

    def __init__(
        self, adapter: FrameworkAdapter, models: Sequence[Any], failed: Callable[[Any, BaseException], None]
    ) -> None:
        self._adapter = adapter
        self.failed = failed
        self._stacks = CallStacks()
        self.structure: dict[str, dict[str, Any]] = {}
        """By chunk and path, the types of values."""
        self.stacks: dict[str, int] = {}
        self._found: dict[str, dict[str, Any]] = {}
        self._handles: list[Handle] = []
        listener: Any = self  # of modules alone
        for at, model in enumerate(models):
            for path, module in trends_of(adapter).modules(model):
                handles = adapter.hooks.attach_module(module, ModuleName(f"{at}:{path}"), listener, parameters=False)
                self._handles += [handles.gradients, handles.forward]

    def finish(self) -> None:
        """The first step is over: take the hooks away."""
        self._adapter.hooks.finish_backward()
        self._adapter.hooks.end_step()
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            handle.remove()

    def frames(self, name: str) -> list[Any]:
        """The frames from which the module was called, innermost first."""
        return list(self._stacks.frames(self.stacks[name]))

    def enter_module(self, name: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Seen | None:
        """A call begins; only the first one of a module is noted."""
        if name.base in self._found:
            return None
        seen = _Seen(name.base)
        self._found[name.base] = {"input": self._described([*args, *kwargs.values()], seen.takers["input"])}
        self.stacks[name.base] = self._stacks.current()
        return seen

    def leave_module(self, call: _Seen, output: Any, parameters: Mapping[str, Any]) -> bool:
        """A module returned."""
        entry = self._found[call.name]
        entry["output"] = self._described(output, call.takers["output"])
        for side in ("input", "output"):
            count = len(entry[side]) - 1
            entry[f"{side}_grad"] = {"config": f"tuple[{count}]", **dict.fromkeys(map(str, range(count)), _NOTHING)}
        # In the order in which calls end: a module comes after those inside of it.
        self.structure[call.name] = entry
        return True

    def fail_module(self, call: _Seen, parameters: Mapping[str, Any]) -> None:
        """A module raised: nothing is known of its output."""

    def enter_backward(self, call: _Seen, outputs: int, inputs: int) -> _Seen:
        """Gradients arrive."""
        return call

    def backward_gradient(self, call: _Seen, field: str, index: int, gradient: Any) -> None:
        """One gradient."""
        side = _FIELDS[field].partition("_")[0]
        takers = call.takers[side]
        at = takers[index] if index < len(takers) else index
        self._found[call.name][_FIELDS[field]][str(at)] = self._text(gradient)

    def leave_backward(self, call: _Seen) -> None:
        """All gradients have arrived."""

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        """Parameters are no part of it."""

    def _described(self, value: Any, takers: list[int]) -> dict[str, str]:
        is_tensor = self._adapter.tensors.is_tensor
        if is_tensor(value):
            if trends_of(self._adapter).takes_gradient(value):
                takers.append(0)
            return {"config": "tensor", "tensor": self._text(value)}
        if not isinstance(value, (list, tuple)):
            return {"config": str(type(value))}
        for at, each in enumerate(value):
            if is_tensor(each) and trends_of(self._adapter).takes_gradient(each):
                takers.append(at)
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"config": f"{kind}[{len(value)}]", **{str(at): self._text(each) for at, each in enumerate(value)}}

    def _text(self, value: Any) -> str:
        if not self._adapter.tensors.is_tensor(value):
            return str(type(value))
        return f"size={tuple(value.shape)}, dtype={value.dtype}"


_NOTHING = str(type(None))
