"""The steps and states of optimizers of any kind."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any, Callable

import torch

from probe.backends.shared.patching import Handles, wrap_attribute
from probe.backends.torch.guards import guarded, unobserved
from probe.backends.torch.originals import own
from probe.common.interfaces import Handle, Logs


def attach_optimizer(optimizer: Any, before: Callable[[], None], after: Callable[[], None], logs: Logs) -> Handle:
    """See `probe.backends.protocol.Trends.attach_optimizer`."""
    optimizer = innermost(optimizer)
    name = "the step of the optimizer"

    def enter(*_: Any) -> None:
        guarded(logs, name, before)

    def leave(*_: Any) -> None:
        guarded(logs, name, after)

    if isinstance(optimizer, torch.optim.Optimizer):

        def enter_with(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # The optimizer itself is the first of `args`.
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if not callable(closure):
                enter()
                return None
            # Gradients are final when it has run: Lightning makes all of a step in it.
            after_it = _then(closure, enter)
            if len(args) > 1:
                return (args[0], after_it, *args[2:]), kwargs
            return args, {**kwargs, "closure": after_it}

        return Handles([optimizer.register_step_pre_hook(enter_with), optimizer.register_step_post_hook(leave)])

    def wrapped(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            enter()
            result = step(*args, **kwargs)
            leave()
            return result

        return call

    # Megatron's optimizers have no hooks. What was put in place is kept by the optimizer itself.
    attributes = wrap_attribute(optimizer, "step", wrapped)
    optimizer.step.attributes = attributes
    return _Weak(attributes)


class _Weak:
    """A handle for as long as something else keeps it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = weakref.ref(handle)

    def remove(self) -> None:
        handle = self._handle()
        if handle is not None:
            handle.remove()


def _then(closure: Callable[[], Any], enter: Callable[[], None]) -> Callable[[], Any]:
    """`closure`, with a call of `enter` after its first evaluation; LBFGS evaluates it several times a step."""
    evaluated = False

    @functools.wraps(closure)
    def evaluate() -> Any:
        nonlocal evaluated
        result = closure()
        if not evaluated:
            evaluated = True
            enter()
        return result

    return evaluate


def innermost(optimizer: Any) -> Any:
    """The optimizer that a wrapper calls when gradients are complete, such as that of accelerate."""
    seen = {id(optimizer)}
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer) and id(inner) not in seen:
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def optimizer_state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """The tensors of more than one number that the optimizer keeps for `parameter`."""
    held = getattr(innermost(optimizer), "state", None)
    found = held.get(parameter) if isinstance(held, Mapping) and parameter in held else None
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor) and value.dim()} or {
        name: value for name, value in found.items() if isinstance(value, torch.Tensor) and name != "step"
    }


def state_counts(optimizer: Any) -> Mapping[str, float]:
    """See `probe.backends.protocol.Trends.state_counts`. Counters on a device are not fetched."""
    held = getattr(innermost(optimizer), "state", None)
    states = [each for each in held.values() if isinstance(each, Mapping)] if isinstance(held, Mapping) else []
    found = {"parameters": float(sum(any(_is_kept(value) for value in each.values()) for each in states))}
    for step in (each["step"] for each in states if "step" in each):
        if not isinstance(step, torch.Tensor):
            found["step"] = float(step)
        elif step.is_cpu:
            found["step"] = unobserved(own.item, step)
        break
    return found


def _is_kept(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def ties(model: torch.nn.Module) -> list[tuple[str, str, Callable[[], bool]]]:
    """See `probe.backends.protocol.Trends.ties`."""
    first: dict[int, tuple[str, torch.nn.Module, str]] = {}
    found: list[tuple[str, str, Callable[[], bool]]] = []
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            full = f"{path}.{name}" if path else name
            full = full.replace("_orig_mod.", "")
            known = first.setdefault(id(parameter), (full, module, name))
            if known[0] != full:
                found.append((known[0], full, _same(known[1:], (module, name))))
    return found


def _same(one: tuple[torch.nn.Module, str], other: tuple[torch.nn.Module, str]) -> Callable[[], bool]:
    first, second = (_current(weakref.ref(module), name) for module, name in (one, other))
    return lambda: first() is second()


def _current(weak: weakref.ref[torch.nn.Module], name: str) -> Callable[[], Any]:
    """The parameter that a module has under `name` whenever it is called; ``None`` of a module that is deleted."""
    return lambda: None if (module := weak()) is None else module._parameters.get(name)
