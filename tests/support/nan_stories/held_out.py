"""The stories that were written before the rules and not looked at while these were made."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nan_stories.story import FINITE, Story, data, told

INF, NAN = math.inf, math.nan
STORIES: dict[str, Story] = {}
_tell = told(STORIES)
FIRST = torch.tensor([True, False, False, False])
ROWS = torch.arange(8)[:, None] > 5


def _none(h: Tensor) -> Tensor:
    return F.relu(h - 1000)


_tell(
    "xlogy_by_hand",
    "mul.backward",
    "0 * inf",
    lambda h: torch.mul(F.relu(h - 50), F.relu(h - 50).log()).masked_fill(h < 50, 0.0),
)
_tell(
    "mutual_information",
    "__mul__.backward",
    "0 * inf",
    lambda h: torch.nan_to_num(h.softmax(-1).masked_fill(FIRST, 0.0) * h.softmax(-1).masked_fill(FIRST, 0.0).log2()),
)
_tell(
    "kl_of_masked_logits",
    "kl_div.forward|__mul__.forward|mul.forward|sub.forward|__sub__.forward",
    "0 * inf",
    lambda h: F.kl_div(F.log_softmax(h.masked_fill(FIRST, -INF), -1), h.softmax(-1).detach() * (~FIRST)),
)
_tell(
    "weights_of_no_distance",
    "(reciprocal|__mul__).forward",
    "0 * inf",
    lambda h: _none(h) * torch.reciprocal(_none(h)).masked_fill(h > 0, INF),
)
_tell(
    "division_left_out",
    "div.backward",
    "0 * inf|0 / 0|division by 0",
    lambda h: torch.where(_none(h) > 0, torch.div(h, _none(h)), torch.zeros(8, 4)),
)
_tell(
    "reciprocal_left_out",
    "reciprocal.backward",
    "0 * inf|0 / 0|division by 0|slope",
    lambda h: torch.where(h > 500, torch.reciprocal(_none(h)), h),
)
_tell(
    "norm_in_where",
    "sqrt.backward",
    "0 * inf|slope",
    lambda h: torch.where(h.sum(-1) < 900, torch.ones(8), torch.sqrt(_none(h).pow(2).sum(-1))),
)
_tell(
    "asin_clamped_late",
    "asin.backward",
    "hidden domain",
    lambda h: torch.where(h.abs() < 1, h, torch.asin(h * 9).masked_fill((h * 9).abs() > 1, 0.0)),
)
_tell("fractional_power_select", "pow.backward", "hidden domain", lambda h: torch.pow(h - 2, 1 / 3)[:0].sum() + h.sum())
_tell("root_under_maximum", "sqrt.backward", "hidden domain", lambda h: torch.sqrt(h - 3).nan_to_num(0.0).square() + h)
_tell("log_of_difference", "log.forward", "domain", lambda h: torch.log(h.mean(-1) - h.amax(-1)))
_tell("log10_of_count", "log10.forward", "pole", lambda h: torch.log10((h > 100).sum(-1).float()) + h.sum(-1))
_tell("log_of_probability", "log.forward", "pole", lambda h: -torch.log(torch.softmax(h * 1e4, -1)).mean())
_tell(
    "inverse_normal",
    "erfinv.forward|__mul__.forward|mul.forward|sum.forward",
    "domain|pole|data",
    lambda h: torch.erfinv(h * 0 + 2) * 2,
)
_tell("angle_of_vectors", "acos.forward", "domain", lambda h: torch.acos((h * h).sum(-1) / h.norm(dim=-1) ** 2 * 1.001))
_tell(
    "angle_of_equal_vectors",
    "arccos.backward|acos.backward",
    "slope",
    lambda h: torch.arccos(F.cosine_similarity(h.detach() * 0 + 1, h * 0 + 1, dim=-1).round()),
)
_tell("cube_root", "__pow__.forward", "domain", lambda h: (h - 10) ** (1 / 3))
_tell("inverse_square", "pow.forward", "pole|division by 0", lambda h: torch.pow(_none(h), -2))
_tell("spread_of_copies", "", FINITE, lambda h: torch.std(h[:1].expand(8, 4), dim=0))
_tell(
    "spread_by_hand",
    "sqrt.backward",
    "slope",
    lambda h: (h[:1].repeat(8, 1) - h[:1].repeat(8, 1).mean(0)).square().mean(0).mul(0).sqrt(),
)
_tell("ratio_of_sums", "__truediv__.forward", "0 / 0", lambda h: _none(h).sum(-1) / _none(h).sum(-1))
_tell("weighted_mean", "div.forward", "0 / 0", lambda h: torch.div((h * 0).sum(0), torch.zeros(4)))
_tell(
    "inverse_frequency",
    "__rtruediv__.forward|__truediv__.forward|reciprocal.forward",
    "division by 0",
    lambda h: (1.0 / (h > 100).float().sum(0)) * h,
)
_tell(
    "cosine_of_zero",
    "__truediv__.forward",
    "0 / 0",
    lambda h: (h * _none(h)).sum(-1) / (h.norm(dim=-1) * _none(h).norm(dim=-1)),
)
_tell(
    "normalise_without_eps",
    "normalize.forward|__truediv__.forward|div.forward",
    "0 / 0|norm of 0",
    lambda h: F.normalize(_none(h), dim=-1, eps=0.0),
)
_tell(
    "group_norm_without_eps",
    "group_norm.forward",
    "no spread|0 / 0|0 * inf",
    lambda h: F.group_norm(h * 0 + 1, 2, eps=0.0),
)
_tell(
    "window_of_nothing",
    "softmax.forward",
    "masked row",
    lambda h: F.softmax(torch.where(ROWS, torch.tensor(-INF), h @ h.t()), dim=-1),
)
_tell(
    "two_masks",
    "softmax.forward",
    "masked row",
    lambda h: (
        (h @ h.t()).masked_fill(torch.ones(8, 8).tril() == 0, -INF).masked_fill(torch.arange(8) == 0, -INF).softmax(-1)
        @ h
    ),
)
_tell(
    "router_without_experts",
    "softmax.forward",
    "masked row",
    lambda h: (h + torch.full((4,), -INF)).softmax(dim=-1).sum(-1),
)
_tell(
    "shift_by_maximum",
    "sub.forward",
    "inf - inf",
    lambda h: torch.sub(h.masked_fill(ROWS, -INF), h.masked_fill(ROWS, -INF).max(-1, keepdim=True).values).exp(),
)
_tell(
    "gap_of_infinities", "__sub__.forward", "inf - inf", lambda h: h.masked_fill(FIRST, INF) - h.masked_fill(FIRST, INF)
)
_tell(
    "opposite_infinities",
    "__add__.forward",
    "inf - inf",
    lambda h: h.masked_fill(FIRST, INF) + torch.where(FIRST, -INF, 0.0),
)
_tell(
    "negative_log_likelihood_of_padding",
    "nll_loss.forward",
    "mean of nothing",
    lambda h: F.nll_loss(F.log_softmax(h, -1), torch.full((8,), -1), ignore_index=-1),
)
_tell(
    "loss_of_no_boxes",
    "(smooth_l1_loss|mean).forward",
    "mean of nothing",
    lambda h: F.smooth_l1_loss(h[h > 1e9], h.detach()[h > 1e9]),
)
_tell("variance_of_one", "var.forward", "no spread|0 / 0", lambda h: torch.var(h[:, :1], dim=1))
_tell(
    "half_scores",
    "matmul.forward",
    "range",
    lambda h: torch.matmul(h.half() * 0 + 250, (h.half() * 0 + 250).transpose(0, 1)),
    type="float16",
)
_tell(
    "half_gelu_squared",
    "mul.forward",
    "range",
    lambda h: torch.mul(h.half() * 0 + 999, h.half() * 0 + 99),
    type="float16",
)
_tell("half_addition", "__add__.forward", "range", lambda h: (h.half() * 0 + 6e4) + 6e4, type="float16")
_tell(
    "half_convolution",
    "conv1d.forward",
    "range",
    lambda h: F.conv1d((h.half() * 0 + 2e3)[:, None], torch.full((1, 1, 3), 20.0).half()),
    type="float16",
)
_tell(
    "half_einsum",
    "einsum.forward",
    "range",
    lambda h: torch.einsum("bi,bj->ij", h.half() * 0 + 100, h.half() * 0 + 100),
    type="float16",
)
_tell("half_to", "__add__.forward|sum.forward", "range", lambda h: (h * 1e7).to(torch.float16) + 1, type="float16")
_tell(
    "half_bmm",
    "bmm.forward",
    "range",
    lambda h: torch.bmm((h.half() * 0 + 500)[None], torch.full((1, 4, 2), 500.0).half()),
    type="float16",
)
_tell("hyperbolic_sine", "sinh.forward", "range", lambda h: torch.sinh(h + 95), type="float32")
_tell("power_of_large", "pow.forward", "range", lambda h: torch.pow(h * 0 + 1e13, 3), type="float32")
_tell("product_over_dimension", "prod.forward", "range", lambda h: (h * 0 + 1e10).prod(-1), type="float32")
_tell("sum_of_squares", "sum.forward", "range", lambda h: (h * 0 + 1.5e19).square().sum(), type="float32")
_tell("softplus_by_hand", "exp.forward", "range", lambda h: torch.log(1 + torch.exp(h + 300)), type="float32")
_tell("exponential_bfloat16", "exp.forward", "range", lambda h: (h.bfloat16() + 99).exp(), type="bfloat16")
_tell("quotient_of_tiny", "div.forward|__truediv__.forward", "range", lambda h: (h * 0 + 1e30) / 1e-20, type="float32")


def _gradient(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x).half()
    y = torch.matmul(h, torch.full((4, 4), 200.0).half() if bad else torch.eye(4).half())
    return (y * (400.0 if bad else 1.0)).float().sum()


STORIES["half_gradient_of_matmul"] = Story(_gradient, "__mul__.forward", "range", "float16")


def _mixed(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x)
    with torch.autocast("cpu", torch.float16):
        scores = torch.matmul(h * 0 + 5e2 if bad else h, (h * 0 + 5e2 if bad else h).t())
    return scores.float().mean()


STORIES["autocast_scores"] = Story(_mixed, "matmul.forward", "range", "float16")


def _label(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    target = torch.ones(8, 4)
    return F.mse_loss(model(x), data(target, NAN) if bad else target)


STORIES["nan_in_labels"] = Story(_label, "mse_loss.forward", "data")


def _set(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    if bad:
        model[2].weight.data = data(model[2].weight.detach(), NAN)
    return model(x).square().mean()


STORIES["nan_in_weight"] = Story(_set, "linear.forward", "parameter")


def _steep(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return (model(x) * (1e30 if bad else 1)).sum()


STORIES["rate_too_large"] = Story(
    _steep,
    "(__mul__|add_|_foreach_add_|mul_|addcmul_|_foreach_mul_|addcdiv_|_foreach_addcdiv_).forward",
    "range",
    "float32",
    optimizer=lambda p: torch.optim.SGD(p, lr=1e20, momentum=0.9),
)


def _flat(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return (model(x) * (0.0 if bad else 1.0)).sum()


STORIES["rmsprop_without_eps"] = Story(
    _flat,
    "(addcdiv_|_foreach_addcdiv_|_foreach_div_).forward",
    "0 / 0",
    optimizer=lambda p: torch.optim.RMSprop(p, eps=0.0, alpha=0.0),
)

_tell("causal_mask", "", FINITE, lambda h: torch.softmax((h @ h.t()) + torch.full((8, 8), -INF).triu(1), -1))
_tell("nan_labels_left_out", "", FINITE, lambda h: torch.where(torch.isnan(data(torch.ones(8, 4), NAN)), h * 0, h - 1))
_tell(
    "half_lowest_twice",
    "",
    FINITE,
    lambda h: torch.softmax(
        h.half()
        + torch.where(FIRST, torch.finfo(torch.float16).min, 0.0).half()
        + torch.where(FIRST, torch.finfo(torch.float16).min, 0.0).half(),
        -1,
    ),
)
