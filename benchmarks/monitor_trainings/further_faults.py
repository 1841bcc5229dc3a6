"""Further faults: optimizer state, ties, routers, loss scales, hyper-parameters, with words of their headlines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from monitor_trainings import further, healthy
from monitor_trainings.faults import FROM, _middle, _Steps
from monitor_trainings.healthy import Training
from torch import nn


class Fault(NamedTuple):
    """A training with a fault, and words of the right headline."""

    training: Training
    plant: Callable[[nn.Module, torch.optim.Optimizer], None]
    words: tuple[str, ...]
    """Parts of the line, all of which it has."""
    steps: tuple[int, int] = (FROM - 1, FROM + 1)


def _at(optimizer: torch.optim.Optimizer, change: Callable[[], Any], lasts: bool = False) -> None:
    """Call `change` between two steps, before the one with the number `FROM`."""
    steps = _Steps(optimizer)
    done: list[int] = []

    def before(*_: Any) -> None:
        if steps.now >= FROM and (lasts or not done):
            done.append(steps.now)
            change()

    optimizer.register_step_pre_hook(before)


def _after(optimizer: torch.optim.Optimizer, change: Callable[[], Any]) -> None:
    """Call `change` once, when the step before `FROM` is over."""
    steps = _Steps(optimizer)
    optimizer.register_step_post_hook(lambda *_: change() if steps.now == FROM else None)


def state_cleared(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A resume without the state of the optimizer."""
    _after(optimizer, optimizer.state.clear)


def state_zeroed(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Moments that are zero again, with their counters as they were."""

    def zero() -> None:
        for state in optimizer.state.values():
            for name, value in state.items():
                if name != "step" and isinstance(value, torch.Tensor):
                    value.zero_()

    _after(optimizer, zero)


def tie_parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The head gets a weight of its own."""
    _after(optimizer, lambda: setattr(model.head, "weight", nn.Parameter(model.tok.weight.detach().clone())))


def router_to_one(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """One logit of the router becomes so large that every token goes to this expert."""
    steps = _Steps(optimizer)
    first = torch.zeros(len(model.experts)).index_fill(0, torch.tensor(2), 100.0)
    model.forced = lambda logits: logits + first if steps.now >= FROM else logits


def hyper(**values: Any) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    """A change of the groups of the optimizer."""

    def plant(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _after(optimizer, lambda: [group.update(values) for group in optimizer.param_groups])

    return plant


def overflowing(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Gradients that are infinite at each loss scale, from a step on."""
    steps = _Steps(optimizer)
    _, module = _middle(model)
    module.weight.register_hook(lambda gradient: gradient * math.inf if steps.now >= FROM else gradient)


def half_overflowing(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Gradients that are infinite at each loss scale in most steps."""
    steps, seen = _Steps(optimizer), [0]
    _, module = _middle(model)

    def now_and_then(gradient: torch.Tensor) -> torch.Tensor:
        seen[0] += steps.now >= FROM
        return gradient * math.inf if seen[0] % 4 else gradient

    module.weight.register_hook(now_and_then)


def norm_off(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The output of a module in the middle is a thousand times too large in one step."""
    steps = _Steps(optimizer)
    _, module = _middle(model)
    forward = module.forward
    module.forward = lambda *args: forward(*args) * (1000 if steps.now == FROM else 1)  # type: ignore[method-assign]


def bad_batch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One batch that is ten thousand times too large."""
    steps = _Steps(optimizer)
    forward = model.forward
    model.forward = lambda x: forward(x * (1e4 if steps.now == FROM else 1))  # type: ignore[method-assign]


def infinite_gradient(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An infinity in the gradient of one weight in one step."""
    steps = _Steps(optimizer)
    _, module = _middle(model)
    module.weight.register_hook(lambda gradient: gradient + (math.inf if steps.now == FROM else 0))


def with_alert(plant: Callable[[nn.Module, torch.optim.Optimizer], None]) -> Callable[..., None]:
    """Another fault behind an alert that is none of it: a bias without a gradient any more, from step 20 on."""

    def both(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        steps = _Steps(optimizer)
        _, module = _middle(model)

        def take(*_: Any) -> None:
            if steps.now >= 20:
                module.bias.grad = None

        optimizer.register_step_pre_hook(take)
        plant(model, optimizer)

    return both


LISTED: dict[str, Fault] = {
    "state_cleared, AdamW": Fault(further.gpt_no_warmup, state_cleared, ("optimizer state starts anew",)),
    "state_cleared, SGD": Fault(healthy.mlp_sgd, state_cleared, ("optimizer state starts anew",)),
    "state_zeroed": Fault(healthy.vae_adam, state_zeroed, ("optimizer state starts anew",), (FROM - 1, FROM + 2)),
    "tie_parts": Fault(further.tied_lm, tie_parts, ("tied weights part", "head.weight")),
    "router_to_one": Fault(further.experts_starving, router_to_one, ("router goes to one expert", "experts.2")),
    "beta2": Fault(healthy.vae_adam, hyper(betas=(0.9, 0.5)), ("beta2", "0.999", "0.5")),
    "weight_decay": Fault(further.gpt_no_warmup, hyper(weight_decay=100.0), ("weight_decay", "0.01", "100")),
    "rate": Fault(healthy.mlp_sgd, hyper(lr=5.0), ("lr", "0.1", "5")),
    "overflowing": Fault(further.scaled_half, overflowing, ("loss scale collapses",), (FROM - 1, FROM + 20)),
    "bad_batch": Fault(healthy.mlp_sgd, bad_batch, (".input", "spike")),
    "norm_off": Fault(further.gpt_no_warmup, norm_off, ("spike", ".output")),
    "weight_decay behind an alert": Fault(
        healthy.vae_adam, with_alert(hyper(weight_decay=100.0)), ("weight_decay", "100", "other incident")
    ),
}  # fmt: skip
HELD_OUT: dict[str, Fault] = {
    "state_cleared, RMSprop": Fault(further.policy_gradient, state_cleared, ("optimizer state starts anew",)),
    "state_cleared, Nesterov": Fault(further.curriculum, state_cleared, ("optimizer state starts anew",)),
    "router_to_one, two each": Fault(further.experts_top2_sgd, router_to_one, ("router goes to one expert",)),
    "momentum": Fault(further.step_decay_cnn, hyper(momentum=0.0), ("momentum", "0.9", "0")),
    "eps": Fault(further.contrastive, hyper(eps=1.0), ("eps", "1e-08")),
    "rate, AdamW": Fault(further.dropped_layers, hyper(lr=0.5), ("lr", "0.001", "0.5")),
    "half_overflowing": Fault(further.scaled_half, half_overflowing, ("loss scale collapses",), (FROM - 1, FROM + 20)),
    "bad_batch, autoencoder": Fault(healthy.diffusion_adagrad, bad_batch, (".input", "spike")),
    "norm_off, CNN": Fault(further.step_decay_cnn, norm_off, ("spike", ".output")),
    "infinite_gradient": Fault(further.adapters, infinite_gradient, ("nonfinite",)),
    "infinite_gradient behind an alert": Fault(
        healthy.lstm_adam, with_alert(infinite_gradient), ("nonfinite", "head.weight")
    ),
}  # fmt: skip
