"""A framework of its own: numpy arrays with gradients, functions, modules with hooks, and an optimizer.

Gradients are exact where the values are: each function computes with numpy, and its node knows the derivative.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np

np.seterr(all="ignore")  # a framework computes on
LEAF = 1 << 62
_numbers = itertools.count()
_passes = itertools.count()
generator = np.random.default_rng(0)


class Engine:
    """The state of the gradients."""

    enabled = True
    current_pass = -1
    current: Node | None = None
    at_end: list[Callable[[], None]] = []  # noqa: RUF012


class Node:
    """One function that was called: where its gradients go, and hooks around its run."""

    def __init__(self, inputs: Sequence[Tensor], back: Callable[[list[Any]], list[Any]], number: int | None = None):
        self.number = next(_numbers) if number is None else number
        self.edges = [each.edge() if isinstance(each, Tensor) and each.requires_grad else (None, 0) for each in inputs]
        self.back = back
        self.outputs = 1
        self.before: list[Callable[[Any], None]] = []
        self.after: list[Callable[[Any, Any], None]] = []
        self.metadata: dict[str, Any] = {}


class Tensor:
    """An array, the gradient that was accumulated, and the node that made it."""

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data = np.asarray(data)
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self.node: tuple[Node, int] | None = None
        self.writes = 0
        self.accumulated: list[Callable[[Tensor], None]] = []
        self.hooks: list[Callable[[Tensor], None]] = []
        self.base: Tensor | None = None

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)

    def item(self) -> Any:
        return self.data.item()

    __float__ = item

    def edge(self) -> tuple[Node, int]:
        if self.node is None:
            self.node = Node((), self._accumulate, LEAF), 0
        return self.node

    def _accumulate(self, gradients: list[Any]) -> list[Any]:
        data = gradients[0]
        self.grad = Tensor(data.copy() if self.grad is None else self.grad.data + data)
        for hook in list(self.accumulated):
            hook(self)
        return []

    def backward(self, gradient: Tensor) -> None:
        run_backward(self, gradient.data)

    def sum(self) -> Tensor:
        return sum(self)

    def __getitem__(self, at: Any) -> Tensor:
        def back(given: list[Any]) -> list[Any]:
            whole = np.zeros_like(self.data)
            whole[at] = given[0]
            return [whole]

        part = _made(self.data[at], (self,), back)
        part.base = self if self.base is None else self.base
        return part

    def __setitem__(self, at: Any, value: Any) -> None:
        self.data[at] = value.data if isinstance(value, Tensor) else value
        self.writes += 1

    def __add__(self, other: Any) -> Tensor:
        return _broadcast(np.add, self, other, lambda g, a, b: (g, g))

    def __sub__(self, other: Any) -> Tensor:
        return _broadcast(np.subtract, self, other, lambda g, a, b: (g, -g))

    def __mul__(self, other: Any) -> Tensor:
        return _broadcast(np.multiply, self, other, lambda g, a, b: (g * b, g * a))

    def __truediv__(self, other: Any) -> Tensor:
        return self * (1 / other)

    def __iadd__(self, other: Any) -> Tensor:
        added = _broadcast(np.add, self, other, lambda g, a, b: (g, g))
        self.data[...] = added.data
        self.writes += 1
        self.requires_grad, self.node = added.requires_grad, added.node
        return self

    __radd__, __rmul__ = __add__, __mul__


def _made(data: Any, inputs: Sequence[Any], back: Callable[[list[Any]], list[Any]]) -> Tensor:
    made = Tensor(data)
    if Engine.enabled and any(isinstance(each, Tensor) and each.requires_grad for each in inputs):
        made.requires_grad, made.node = True, (Node(inputs, back), 0)
    return made


def _broadcast(operation: Any, one: Tensor, other: Any, back: Callable[..., Any]) -> Tensor:
    if not isinstance(other, (Tensor, int, float)):
        return NotImplemented
    a = one.data
    b = other.data if isinstance(other, Tensor) else a.dtype.type(other)

    def gradients(given: list[Any]) -> list[Any]:
        return [_fitted(each, np.shape(of)) for each, of in zip(back(given[0], a, b), (a, b))]

    return _made(operation(a, b), (one, other), gradients)


def _fitted(gradient: Any, shape: tuple[int, ...]) -> Any:
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    return gradient.sum(
        axis=tuple(at for at, size in enumerate(shape) if size == 1 != gradient.shape[at]), keepdims=True
    )


def run_backward(output: Tensor, gradient: Any) -> None:
    """Run the nodes that `output` came from, those made last first."""
    outer, Engine.current_pass, before = Engine.current_pass, next(_passes), Engine.current
    node, slot = output.edge()
    waiting: dict[Node, list[Any]] = {node: [None] * node.outputs}
    waiting[node][slot] = gradient
    counted = itertools.count()
    ready = [(-node.number, next(counted), node)]
    missing = _gradients_of_leaves(node)
    try:
        while ready:
            node = heapq.heappop(ready)[2]
            Engine.current, given = node, waiting.pop(node)
            shown = [None if each is None else Tensor(each) for each in given]
            for hook in list(node.before):
                hook(shown)
            found = node.back(given)
            for hook in list(node.after):
                hook([None if each is None else Tensor(each) for each in found], shown)
            for (following, at), value in zip(node.edges, found):
                if following is None or value is None:
                    continue
                arrived = waiting.setdefault(following, [None] * following.outputs)
                is_first = all(each is None for each in arrived)
                arrived[at] = value if arrived[at] is None else arrived[at] + value
                missing[following] = missing.get(following, 0) - 1
                if is_first if following.number < LEAF else not missing[following]:
                    heapq.heappush(ready, (-following.number, next(counted), following))
    finally:
        ended, Engine.at_end = Engine.at_end, []
        for callback in ended:
            callback()
        Engine.current_pass, Engine.current = outer, before


def _gradients_of_leaves(begin: Node) -> dict[Node, int]:
    """The number of gradients that arrive at each leaf; the others are run after all that were made later."""
    found: dict[Node, int] = {}
    seen, ahead = {begin}, [begin]
    while ahead:
        for node, _ in ahead.pop().edges:
            if node is not None and node.number >= LEAF:
                found[node] = found.get(node, 0) + 1
            elif node is not None and node not in seen:
                seen.add(node)
                ahead.append(node)
    return found


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    before, Engine.enabled = Engine.enabled, False
    try:
        yield
    finally:
        Engine.enabled = before


# --- functions


def relu(input: Tensor) -> Tensor:
    return _made(np.maximum(input.data, 0), (input,), lambda g: [g[0] * (input.data > 0)])


def abs(input: Tensor) -> Tensor:
    return _made(np.abs(input.data), (input,), lambda g: [g[0] * np.sign(input.data)])


def sum(input: Tensor) -> Tensor:
    return _made(input.data.sum(dtype=input.dtype), (input,), lambda g: [np.broadcast_to(g[0], input.shape).copy()])


def matmul(input: Tensor, other: Tensor) -> Tensor:
    a, b = input.data, other.data
    return _made(a @ b, (input, other), lambda g: [g[0] @ b.T, a.T @ g[0]])


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, w = input.data, weight.data
    data = x @ w.T + (0 if bias is None else bias.data)
    return _made(data, (input, weight, bias), lambda g: [g[0] @ w, g[0].T @ x, g[0].sum(0)])


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    if not training:
        return input
    kept = (generator.random(input.shape) >= p).astype(input.dtype) / np.float32(1 - p)
    return _made(input.data * kept, (input,), lambda g: [g[0] * kept])


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    ends = np.cumsum([each.shape[dim] for each in tensors])[:-1]
    data = np.concatenate([each.data for each in tensors], axis=dim)
    return _made(data, tensors, lambda g: np.split(g[0], ends, axis=dim))


def split(tensor: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    ends = list(range(size, tensor.shape[dim], size))
    parts = [Tensor(part.copy()) for part in np.split(tensor.data, ends, axis=dim)]

    def back(given: list[Any]) -> list[Any]:
        whole = [np.zeros_like(part.data) if each is None else each for each, part in zip(given, parts)]
        return [np.concatenate(whole, axis=dim)]

    if Engine.enabled and tensor.requires_grad:
        node = Node((tensor,), back)
        node.outputs = len(parts)
        for at, part in enumerate(parts):
            part.requires_grad, part.node = True, (node, at)
    return tuple(parts)


# --- modules


class Module:
    """A function with parameters, other modules, and hooks before and after it."""

    def __init__(self) -> None:
        self._parameters: dict[str, Tensor] = {}
        self._modules: dict[str, Module] = {}
        self.hooks: list[tuple[Callable[..., None], Callable[..., None]]] = []
        self.training = True

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self._modules[name] = value
        elif isinstance(value, Tensor):
            self._parameters[name] = value
        object.__setattr__(self, name, value)

    def named_modules(self, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        seen = set() if seen is None else seen
        if id(self) not in seen:
            seen.add(id(self))
            yield path, self
            for name, child in self._modules.items():
                yield from child.named_modules(f"{path}.{name}" if path else name, seen)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            yield from ((f"{path}.{name}" if path else name, each) for name, each in module._parameters.items())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooks = list(self.hooks)
        for before, _ in hooks:
            before(self, args, kwargs)
        output, failed = None, True
        try:
            output, failed = self.forward(*args, **kwargs), False
            return output
        finally:
            for _, after in [each for each in reversed(self.hooks) if each in hooks]:
                after(self, output, failed)

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError


class Linear(Module):
    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.weight, self.bias = Tensor(np.array(weight), True), Tensor(np.array(bias), True)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class ReLU(Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        made = relu(x)
        if not self.inplace:
            return made
        x.data[...] = made.data
        x.writes += 1
        x.requires_grad, x.node = made.requires_grad, made.node
        return x


class Dropout(Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)
