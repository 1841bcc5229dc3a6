"""The gradient of a module's input through one call only, computed without the tool."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms


class ShiftedInputs:
    """Modules that add something to their inputs which is zero, and whose gradient is that of the input.

    Of the input through this one call only, as a record has it, because what is added reaches nothing else.

    Args:
        modules: Every module of a model, with its path.
        forward_name: The method in which a module's computation stands.
        given: Makes the user's tensor of one of MindSpore's.
    """

    def __init__(
        self, modules: Iterable[tuple[str, Any]], forward_name: str, given: Callable[[Any], Any] = lambda tensor: tensor
    ) -> None:
        self._given = given
        self._calls: collections.Counter[str] = collections.Counter()
        self._shifts: dict[tuple[str, int], Any] = {}
        """By call and place; a tensor that is given twice has one."""
        self._inputs: dict[str, list[tuple[str, int] | None]] = {}
        """The shift of each tensor of a call, ``None`` for whole numbers; of calls without containers."""
        for path, module in modules:
            if path:
                object.__setattr__(module, forward_name, self._shifting(path, getattr(module, forward_name)))

    def _shifting(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def shifted(*inputs: Any, **keywords: Any) -> Any:
            name = f"{path}.{self._calls[path]}"
            self._calls[path] += 1
            keys: dict[int, tuple[str, int]] = {}
            sums: dict[int, Any] = {}
            for place, value in enumerate(inputs):
                if isinstance(value, ms.Tensor) and value.dtype == ms.float32 and id(value) not in keys:
                    key = keys[id(value)] = (name, place)
                    shift = self._shifts.setdefault(key, ms.ops.zeros(value.shape, ms.float32))
                    sums[id(value)] = value + self._given(shift)
            if not keywords and not any(isinstance(value, (tuple, list, dict)) for value in inputs):
                self._inputs[name] = [keys.get(id(value)) for value in inputs if isinstance(value, ms.Tensor)]
            return forward(*[sums.get(id(value), value) for value in inputs], **keywords)

        return shifted

    def gradients(self, loss: Callable[[], Any]) -> dict[str, list[Any]]:
        """Of every tensor of every call ``path.number`` in `loss`, ``None`` for those that have no gradient."""
        loss()  # finds the calls

        def of_shifts(*shifts: Any) -> Any:
            self._calls.clear()
            self._shifts = dict(zip(self._shifts, shifts))
            return loss()

        taken = ms.grad(of_shifts, tuple(range(len(self._shifts))))(*self._shifts.values())
        found = {key: gradient.asnumpy() for key, gradient in zip(self._shifts, taken)}
        return {name: [key and found[key] for key in keys] for name, keys in self._inputs.items()}
