"""The trainings: what each computes, and which call makes the first value that is not finite and matters.

Every training takes three steps; a fault is there from step 1 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

INF, NAN = math.inf, math.nan
STEPS, PLANTED = 3, 1
Loss = Callable[[nn.Module, Tensor, bool], Tensor]
"""Of a model, a batch, and whether the fault is in this step."""


@dataclass(frozen=True)
class Training:
    """A training of a small model."""

    loss: Loss
    truth: str = ""
    """The function and the direction of the first record; empty if nothing is wrong."""
    step: int = PLANTED
    """The step in which it is seen."""
    optimizer: Callable[[Any], Any] = field(default=lambda parameters: torch.optim.SGD(parameters, lr=0.05))
    scale: float = 0.0
    """The first scale of a gradient scaler; 0 without one."""
    half: bool = False
    """Whether the model runs in float16."""


CLEAN: dict[str, Training] = {}
FAULTS: dict[str, Training] = {}


def clean(**more: Any) -> Callable[[Loss], Loss]:
    def add(loss: Loss) -> Loss:
        CLEAN[loss.__name__] = Training(loss, **more)
        return loss

    return add


def fault(truth: str, **more: Any) -> Callable[[Loss], Loss]:
    def add(loss: Loss) -> Loss:
        FAULTS[loss.__name__] = Training(loss, truth, **more)
        return loss

    return add


def labels(x: Tensor) -> Tensor:
    """Labels of which two are missing."""
    y = x.detach().abs() * 0.5
    return y.index_fill(0, torch.tensor([1, 4]), NAN)


def data(x: Tensor, value: float) -> Tensor:
    """A batch of a data set in the form of `x` that holds `value`, made by no call that could be recorded."""
    array = np.linspace(-1, 1, x.numel(), dtype=np.float32).reshape(tuple(x.shape))
    array[2, 1] = value
    return torch.from_numpy(array)


# --- clean


@clean()
def missing_labels_are_selected_out(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    y = MISSING
    known = ~torch.isnan(y)
    return (model(x) - y)[known].square().mean()


@clean()
def missing_labels_are_replaced(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    y = MISSING
    known = ~torch.isnan(y)
    return (known * (model(x) - torch.nan_to_num(y)).square()).sum() / known.sum()


@clean()
def a_running_minimum_begins_at_infinity(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    best = torch.full((8,), INF)
    for part in model(x).unbind(1):
        best = torch.minimum(best, part)
    return best.square().mean()


@clean(scale=2.0**120)
def a_scaler_skips_steps(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    # The scaled loss fits its type, and the gradients are beyond it.
    large = (model(x) * 1e6).sum()
    return large - large.detach() + 1


@clean()
def attention_is_masked(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x)
    scores = h @ h.t() + torch.full((8, 8), -INF).triu(1)
    scores = scores.masked_fill(torch.arange(8) > 6, -INF)
    return (torch.softmax(scores, -1) @ h).square().mean()


@clean()
def an_entropy_of_labels_with_zeros(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    p = functional.one_hot(torch.arange(8) % 4, 4).float()
    entropy = torch.where(p > 0, p * torch.log(p), torch.zeros_like(p)).sum(-1)
    return (model(x).sum(-1) - entropy).square().mean()


@clean()
def a_pool_leaves_padding_out(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x).view(2, 4, 4)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
    return h.masked_fill(padding[..., None], -INF).amax(dim=1).square().mean()


@clean()
def means_leave_missing_values_out(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    y = MISSING
    centred = y - torch.nanmean(y)
    return (model(x) - torch.nan_to_num(centred, nan=0.0)).square().mean() + torch.nansum(y) * 0


@clean()
def a_buffer_is_written_by_out(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    buffer = GARBAGE.clone()
    torch.mul(x, 2.0, out=buffer)
    return model(buffer).square().mean()


@clean()
def sampling_keeps_the_largest(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    logits = model(x)
    least = torch.topk(logits, 2).values[:, -1:]
    kept = torch.where(logits < least, torch.tensor(-INF), logits)
    chosen = torch.log_softmax(kept, -1)
    return -chosen.gather(1, logits.argmax(-1, keepdim=True)).mean()


@clean()
def distances_to_no_point_are_clamped(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    weights = (1.0 / torch.tensor([0.0, 1.0, 2.0, 4.0])).clamp(max=10.0)
    return (model(x) * weights).square().mean()


# --- faults of one call


def made_by(truth: str, name: str, call: Callable[[Tensor], Tensor], **more: Any) -> None:
    """A fault: `call` makes something that is not finite of what the model returns, and the loss is made of that."""

    def loss(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
        h = model(x)
        return (call(h) if bad else h).float().sum()

    FAULTS[name] = Training(loss, truth, **more)


made_by("log.forward", "log_of_a_negative", lambda h: torch.log(h - 100))
made_by("sqrt.forward", "root_of_a_negative", lambda h: torch.sqrt(h - 100))
made_by("__truediv__.forward", "division_by_zero", lambda h: (h + 100) / torch.zeros(4))
made_by("div.forward", "zero_by_zero", lambda h: torch.div(h * 0, h * 0))
made_by("exp.forward", "exponential", lambda h: torch.exp(h + 100))
made_by("__matmul__.forward", "half_product", lambda h: (h.half() * 0 + 300) @ torch.full((4, 4), 300.0).half())
made_by("half.forward", "cast_to_half", lambda h: (h + 1e6).half() * 0.5)
made_by("to.forward", "cast_by_to", lambda h: (h + 1e6).to(torch.float16) * 0.5)
made_by("float.forward", "cast_of_double", lambda h: (h.double() + 1e60).float() * 0.5)
made_by("softmax.forward", "row_that_is_all_masked", lambda h: torch.softmax(
    h.masked_fill(torch.arange(8)[:, None] == 3, -INF), -1))  # fmt: skip
made_by("mean.forward", "mean_of_nothing", lambda h: h[:0].mean() * 2)
made_by("std.forward", "deviation_of_one", lambda h: h[:1].std(dim=0) * 2)
made_by("acos.forward", "arc_cosine_beyond", lambda h: torch.acos(h + 100))
made_by("pow.forward", "root_by_power", lambda h: torch.pow(h - 100, 0.5))
made_by("rsqrt.forward", "inverse_root_of_zero", lambda h: torch.rsqrt(h.detach() * 0) * h)
made_by("reciprocal.forward", "reciprocal_of_zero", lambda h: torch.reciprocal(h.detach() * 0) * h)
made_by("sum.forward", "half_sum", lambda h: (h.half() * 0 + 6e4).sum(dim=0) * 0.5)
made_by("prod.forward", "product", lambda h: (h * 0 + 1e20).prod(dim=1) * 2)
made_by("fft.forward", "transform", lambda h: torch.fft.fft(h * 0 + 3e38).abs())
made_by("rfft.forward", "real_transform", lambda h: torch.fft.rfft(h * 0 + 3e38, dim=0).real * 2)
made_by("solve_triangular.forward", "triangular_system", lambda h: torch.linalg.solve_triangular(
    torch.zeros(4, 4), h.t() + 100, upper=True) * 2)  # fmt: skip
made_by("full.forward", "constant_nan", lambda h: h * torch.full((4,), NAN))
made_by("__mul__.forward", "tensor_of_nan", lambda h: h * torch.tensor([1.0, NAN, 2.0, 3.0]))
made_by("complex.forward", "complex_of_nan", lambda h: torch.complex(h, MISSING).abs() * 2)
made_by("addmm.forward", "half_layer", lambda h: torch.addmm(
    torch.zeros(4).half(), h.half() * 0 + 300, torch.full((4, 4), 300.0).half()))  # fmt: skip
made_by("masked_fill.forward", "loss_of_a_mask", lambda h: h.masked_fill(torch.arange(4) > 2, -INF).mean())
made_by("__matmul__.forward", "saturated_product", lambda h: torch.tanh(
    (h.half() * 0 + 300) @ torch.full((4, 4), 300.0).half()))  # fmt: skip
made_by("erfinv.forward", "inverse_error_function", lambda h: torch.special.erfinv(h + 100) * 2)
made_by("nll_loss.forward", "all_labels_ignored", lambda h: functional.nll_loss(
    torch.log_softmax(h, -1), torch.full((8,), -100)))  # fmt: skip
made_by("log.forward", "loss_of_minus_infinity", lambda h: torch.log(torch.relu(h - 100)).mean())
made_by("log1p.forward", "loss_of_infinity", lambda h: -torch.log1p(h.detach() * 0 - 1).sum() + h.sum())
made_by("__setitem__.forward", "written_nan", lambda h: _written(h))


def _written(h: Tensor) -> Tensor:
    h = h.clone()
    h[2, 1] = NAN
    return h * 2


# --- faults of the backward


def made_in_backward(truth: str, name: str, call: Callable[[Tensor], Tensor]) -> None:
    """A fault: the forward is finite and a gradient is not."""

    def loss(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
        h = model(x)
        return (call(h) if bad else h).sum()

    FAULTS[name] = Training(loss, truth)


made_in_backward("sqrt.backward", "root_at_zero", lambda h: torch.sqrt(torch.relu(h - 100)))
made_in_backward("__pow__.backward", "power_at_zero", lambda h: torch.relu(h - 100) ** 0.5)
made_in_backward("sqrt.backward", "root_that_is_left_out", lambda h: torch.where(
    h > -100, h, torch.sqrt(torch.relu(h - 100))))  # fmt: skip
made_in_backward("log.backward", "logarithm_that_is_left_out", lambda h: torch.where(
    h > -100, h, torch.log(torch.relu(h - 100))))  # fmt: skip


# --- what comes in


@fault("linear.forward")
def nan_in_the_data(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return model(data(x, NAN) if bad else x).square().mean()


@fault("linear.forward")
def infinity_in_the_data(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return model(data(x, INF) if bad else x).square().mean()


@fault("linear.forward")
def nan_in_a_parameter(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    if bad:
        model[0].weight.data = data(model[0].weight.detach(), NAN)
    return model(x).square().mean()


@fault("add_.forward", optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e38))
def a_step_that_is_too_large(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return model(x).sum() * (100.0 if bad else 0.0)


@fault("__mul__.forward")
def nan_in_a_buffer(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x)
    return (h * MISSING if bad else h).sum()


MISSING = labels(torch.linspace(-1, 1, 32).view(8, 4))
GARBAGE = torch.full((8, 6), NAN)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def batch(step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
