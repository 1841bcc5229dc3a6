"""The stories with which the rules were made."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nan_stories.story import FINITE, Story, data, told

INF, NAN = math.inf, math.nan
STORIES: dict[str, Story] = {}
_tell = told(STORIES)
LAST = torch.tensor([False, False, False, True])
ROW = torch.arange(8)[:, None] == 3


def _masked(h: Tensor) -> Tensor:
    return h.masked_fill(LAST, -INF).softmax(-1)


def _low(h: Tensor) -> Tensor:
    return torch.relu(h - 100)


# --- 0 times infinity
_tell(
    "masked_entropy",
    "__mul__.backward",
    "0 * inf",
    lambda h: (_masked(h) * torch.log(_masked(h))).masked_fill(LAST, 0.0),
)
_tell(
    "entropy_in_where",
    "mul.backward",
    "0 * inf",
    lambda h: torch.where(LAST, 0.0, torch.mul(_masked(h), torch.log(_masked(h)))),
)
_tell("entropy", "(log|__mul__).forward", "0 * inf", lambda h: -_masked(h) * torch.log(_masked(h)))
_tell(
    "divergence_of_labels",
    "(log|__mul__).forward",
    "0 * inf",
    lambda h: (
        F.one_hot(torch.arange(8) % 4, 4).float()
        * (F.one_hot(torch.arange(8) % 4, 4).float().log() - F.log_softmax(h, -1))
    ),
)
_tell(
    "cross_entropy_by_hand",
    "(log|__mul__).forward",
    "0 * inf",
    lambda h: (1 - torch.ones(8, 4)) * torch.log(1 - torch.sigmoid(h * 0 + 200)),
)
_tell("masked_scores_times_mask", "__mul__.forward", "0 * inf", lambda h: h.masked_fill(LAST, -INF) * (~LAST).float())
_tell("log_in_where", "log.backward", "0 * inf|0 / 0|slope", lambda h: torch.where(h > -100, h, torch.log(_low(h))))
_tell(
    "quotient_in_where",
    "(div|__truediv__).backward",
    "0 * inf|0 / 0|division by 0",
    lambda h: torch.where(h > -100, h, h / _low(h)),
)
_tell("power_in_where", "__pow__.backward", "0 * inf|slope", lambda h: torch.where(h > -100, h, _low(h) ** 0.5))
_tell("sqrt_then_square", "sqrt.backward", "0 * inf|slope", lambda h: torch.sqrt(_low(h)) * 0)

# --- outside of the domain, in the forward alone
_tell("sqrt_in_where", "sqrt.backward", "hidden domain", lambda h: torch.where(h > 100, torch.sqrt(h - 50), h))
_tell(
    "power_of_negative_in_where",
    "pow.backward",
    "hidden domain",
    lambda h: torch.where(h > 100, torch.pow(h - 50, 0.3), h),
)
_tell("arc_cosine_in_where", "acos.backward", "hidden domain", lambda h: torch.where(h > 100, torch.acos(h + 50), h))
_tell(
    "inverse_root_in_where", "rsqrt.backward", "hidden domain", lambda h: torch.where(h > 100, torch.rsqrt(h - 50), h)
)
_tell("sqrt_replaced", "sqrt.backward", "hidden domain", lambda h: torch.nan_to_num(torch.sqrt(h - h.detach().mean())))
_tell("sqrt_selected", "sqrt.backward", "hidden domain", lambda h: torch.sqrt(h - h.detach().mean())[(h > h.mean())])
_tell(
    "log_power_masked_fill", "__pow__.backward", "hidden domain", lambda h: ((h - 50) ** 1.5).masked_fill(h < 100, 0.0)
)

# --- outside of the domain, and at its ends
_tell("sqrt_of_negative", "sqrt.forward", "domain", lambda h: torch.sqrt(h - 100))
_tell(
    "variance_by_moments",
    "sqrt.forward",
    "domain",
    lambda h: torch.sqrt(((h + 5e3).square().mean(0) - (h + 5e3).mean(0).square()) - 10),
)
_tell("log_of_negative", "log.forward", "domain", lambda h: torch.log(h - 100))
_tell("log_of_zero", "log.forward", "pole", lambda h: torch.log(_low(h)))
_tell("log_of_sigmoid", "log.forward", "pole", lambda h: torch.log(torch.sigmoid(h - 200)))
_tell("log1p_of_minus_one", "log1p.forward", "pole", lambda h: torch.log1p(h * 0 - 1))
_tell("root_of_negative_by_power", "pow.forward", "domain", lambda h: torch.pow(h - 100, 0.5))
_tell("negative_power_of_zero", "__pow__.forward", "pole|division by 0", lambda h: _low(h) ** -1.0)
_tell("arc_cosine", "acos.forward", "domain", lambda h: torch.acos(h + 100))
_tell("arc_sine", "asin.forward", "domain", lambda h: torch.asin(h - 100))
_tell("inverse_hyperbolic_tangent", "atanh.forward", "domain", lambda h: torch.atanh(h * 0 + 1.5))
_tell("inverse_hyperbolic_cosine", "acosh.forward", "domain", lambda h: torch.acosh(h - 100))

# --- slopes
_tell("distance_of_equal_points", "sqrt.backward", "slope", lambda h: torch.sqrt((h - h).square().sum(-1)))
_tell("arc_cosine_of_one", "acos.backward", "slope", lambda h: torch.acos(h * 0 + 1))
_tell("deviation_of_equal_values", "", FINITE, lambda h: (h * 0).std(0))
_tell(
    "sums_of_no_distance",
    "logsumexp.backward",
    "inf - inf|masked row",
    lambda h: torch.logsumexp(h.masked_fill(ROW, -INF), -1).masked_fill(ROW[:, 0], 0.0),
)

# --- division
_tell("divided_by_zero", "__truediv__.forward", "division by 0", lambda h: (h + 100) / _low(h))
_tell("unit_vector_of_zero", "__truediv__.forward", "0 / 0", lambda h: (h * 0) / (h * 0).norm(dim=-1, keepdim=True))
_tell("standardised_constant", "__truediv__.forward", "0 / 0", lambda h: (h * 0 - (h * 0).mean(0)) / (h * 0).std(0))
_tell(
    "mean_over_no_mask",
    "__truediv__.forward",
    "0 / 0",
    lambda h: (h * torch.zeros(8, 4)).sum() / torch.zeros(8, 4).sum(),
)
_tell("reciprocal_of_zero", "reciprocal.forward", "division by 0", lambda h: torch.reciprocal(_low(h)))
_tell(
    "root_mean_square_of_zero",
    "rsqrt.forward",
    "division by 0|pole",
    lambda h: h * torch.rsqrt((h * 0).square().mean(-1, keepdim=True)),
)
_tell(
    "layer_norm_without_eps",
    "layer_norm.forward",
    "no spread|0 / 0|0 * inf",
    lambda h: F.layer_norm(h * 0, (4,), eps=0.0),
)

# --- masks
_tell("row_all_masked", "softmax.forward", "masked row", lambda h: torch.softmax(h.masked_fill(ROW, -INF), -1))
_tell("row_all_masked_log", "log_softmax.forward", "masked row", lambda h: F.log_softmax(h.masked_fill(ROW, -INF), -1))
_tell(
    "attention_of_padding",
    "softmax.forward",
    "masked row",
    lambda h: torch.softmax(h @ h.t() + torch.zeros(8, 8).masked_fill(ROW, -INF), -1) @ h,
)
_tell(
    "softmax_by_hand",
    "__sub__.forward",
    "inf - inf",
    lambda h: (h.masked_fill(ROW, -INF) - h.masked_fill(ROW, -INF).amax(-1, keepdim=True)).exp(),
)

# --- means of nothing
_tell(
    "labels_all_ignored",
    "cross_entropy.forward",
    "mean of nothing",
    lambda h: F.cross_entropy(h, torch.full((8,), -100)),
)
_tell("mean_of_no_rows", "mean.forward", "mean of nothing", lambda h: h[h.sum(-1) > 1e9].mean())
_tell("deviation_of_one_row", "std.forward", "no spread|0 / 0", lambda h: h[:1].std(0))

# --- beyond the range
_tell(
    "half_matmul",
    "__matmul__.forward",
    "range",
    lambda h: (h.half() * 0 + 300) @ torch.full((4, 4), 300.0).half(),
    type="float16",
)
_tell(
    "half_linear",
    "linear.forward",
    "range",
    lambda h: F.linear(h.half() * 0 + 60, torch.full((3, 4), 400.0).half()),
    type="float16",
)
_tell("half_square", "__pow__.forward", "range", lambda h: (h.half() * 0 + 300) ** 2, type="float16")
_tell("half_sum_of_squares", "sum.forward", "range", lambda h: (h.half() * 0 + 200).square().sum(), type="float16")
_tell("half_cast", "__mul__.forward", "range", lambda h: (h + 1e5).half() * 0.5, type="float16")
_tell(
    "half_loss_times_scale", "__mul__.forward", "range", lambda h: (h.half().abs() + 2).sum() * 65504.0, type="float16"
)
_tell("half_exponential", "exp.forward", "range", lambda h: (h.half() + 15).exp(), type="float16")
_tell("exponential", "exp.forward", "range", lambda h: torch.exp(h + 100), type="float32")
_tell(
    "softmax_without_maximum",
    "exp.forward",
    "range",
    lambda h: (h + 200).exp() / (h + 200).exp().sum(-1, keepdim=True),
    type="float32",
)
_tell(
    "cumulative_product",
    "cumprod.forward",
    "range",
    lambda h: torch.cumprod(h.repeat(1, 8) * 0 + 1e3, -1),
    type="float32",
)
_tell("product_of_large", "__mul__.forward", "range", lambda h: (h * 0 + 1e20) * (h * 0 + 1e20), type="float32")
_tell(
    "growing_states",
    "__matmul__.forward",
    "range",
    lambda h: torch.linalg.multi_dot([h.t() @ h * 0 + 1e13] * 2) @ (h.t() * 0 + 1e14),
    type="float32",
)
_tell("bfloat16_product", "mul.forward", "range", lambda h: torch.mul(h.bfloat16() * 0 + 1e30, 1e10), type="bfloat16")


# --- a gradient beyond the range, autocast, what comes in, optimizers
def _half_gradient(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x).half()
    y = F.linear(h, torch.full((4, 4), 30.0).half() if bad else torch.eye(4).half())
    return y.float().sum() * (3e3 if bad else 1.0)


STORIES["half_gradient"] = Story(_half_gradient, "linear.backward", "range", "float16")


def _autocast_large(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    h = model(x)
    with torch.autocast("cpu", torch.float16):
        return F.linear(h * 0 + 900.0 if bad else h, torch.full((3, 4), 50.0)).float().sum()


STORIES["autocast_product"] = Story(_autocast_large, "linear.forward", "range", "float16")


def _data(value: float):
    def loss(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
        return model(data(x, value) if bad else x).square().mean()

    return loss


STORIES["nan_in_data"] = Story(_data(NAN), "linear.forward", "data")
STORIES["infinity_in_data"] = Story(_data(INF), "linear.forward", "data")


def _square(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return model(x).square().mean() * (1e20 if bad else 1.0)


STORIES["learning_rate"] = Story(
    _square, "square.forward", "range", "float32", optimizer=lambda p: torch.optim.SGD(p, lr=1e25)
)


def _unused(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    return (model(x) * (0.0 if bad else 1.0)).sum()


STORIES["adam_without_eps"] = Story(
    _unused,
    "(addcdiv_|_foreach_addcdiv_|_foreach_div_).forward",
    "0 / 0",
    optimizer=lambda p: torch.optim.Adam(p, eps=0.0, betas=(0.0, 0.0)),
)


def _scaled(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
    large = (model(x) * 1e6).sum()
    return large - large.detach() + 1


STORIES["scaler_skips"] = Story(_scaled, "", FINITE, scale=2.0**120)

# --- healthy
_tell("mask", "", FINITE, lambda h: torch.softmax(h.masked_fill(LAST, -INF), -1) * 2)
_tell(
    "mask_of_lowest",
    "",
    FINITE,
    lambda h: torch.softmax(
        h.bfloat16() * 1e36 + torch.where(LAST, torch.finfo(torch.bfloat16).min, 0.0).bfloat16(), -1
    ),
)
_tell("entropy_of_labels", "", FINITE, lambda h: h * torch.where(LAST, 0.0, LAST.float().log().neg()).clamp(max=5.0))


# --- what a new user found; the next call, which makes a NaN of the infinity, is told in the same sentence
_WEIGHT = torch.linspace(-3.1, 2.3, 20).reshape(5, 4)


def _large(h: Tensor) -> Tensor:
    return (h.half() * 0 + 300 + torch.arange(4).half() * 0).square().float()


_tell("half_into_matrix", "square.forward", "sum of both signs", lambda h: _large(h) @ _WEIGHT.t())
_tell(
    "half_into_batches",
    "square.forward",
    "sum of both signs",
    lambda h: torch.bmm(_large(h)[None], _WEIGHT.t()[None]),
)
_tell(
    "half_into_einsum",
    "square.forward",
    "sum of both signs",
    lambda h: torch.einsum("bi,oi->bo", _large(h), _WEIGHT),
)
_tell(
    "half_into_convolution",
    "square.forward",
    "sum of both signs",
    lambda h: F.conv1d(_large(h)[:, None], torch.tensor([[[-1.5, 0.4, 2.2]]])),
)
_tell(
    "quotient_into_matrix",
    "__truediv__.forward",
    "sum of both signs",
    lambda h: F.linear((h * h + 1) / (h.detach() * 0), _WEIGHT),
)
_tell(
    "large_into_relu",
    "exp.forward",
    "zero alone",
    lambda h: torch.matmul((h + 300).exp(), F.relu(_WEIGHT).t()),
)
_tell("arc_sine_of_both", "arcsin.forward|asin.forward", "edges of one", lambda h: torch.arcsin(h - h.detach() + 3.5))
_tell("error_function", "erfinv.forward", "edges of one", lambda h: torch.erfinv(h - h.detach() - 1.25))
_tell("arc_tangent", "atanh.forward|arctanh.forward", "edges of one", lambda h: torch.arctanh(h * 0 - 4.5))
_tell("arc_hyperbolic", "acosh.forward|arccosh.forward", "below one", lambda h: torch.arccosh(h * 0 + 0.25))
_tell("log_of_one_plus", "log1p.forward", "below minus one", lambda h: torch.log1p(h * 0 - 7.5))
_tell("fifth_root", "pow.forward", "fraction", lambda h: torch.pow(h * 0 - 6, 0.2))
_tell("root_of_batch", "float_power.forward", "fraction", lambda h: torch.float_power(h * 0 - 6, 1.3))
_tell("rest_of_division", "fmod.forward", "no divisor", lambda h: torch.fmod(h + 9, torch.zeros(4)))
_tell(
    "root_of_relu",
    "rsqrt.backward|sqrt.backward",
    "infinite gradient",
    lambda h: torch.sqrt(F.relu(h)) * 2.5,
)
_tell("power_of_relu", "pow.backward", "infinite gradient", lambda h: torch.pow(F.relu(h), 0.75) * 1.5)
_tell(
    "masked_log2",
    "log2.backward",
    "masked pole",
    lambda h: torch.log2(F.relu(h)).masked_fill(h <= 0, 1.0),
)
_tell(
    "replaced_reciprocal",
    "reciprocal.backward",
    "masked pole",
    lambda h: torch.where(h <= 0, 0.0, torch.reciprocal(F.relu(h))),
)
_tell("negative_square", "square.forward", "brackets", lambda h: (h.half() * 0 - 700).square())
_tell(
    "masked_large_value",
    "square.forward",
    "weight of 0",
    lambda h: F.scaled_dot_product_attention(
        h[None], h[None], torch.where(torch.arange(8)[:, None] == 6, _large(h), h)[None], is_causal=True
    ),
)
_tell("infinite_loss", "log10.forward", "no NaN of another", lambda h: torch.log10(h - h.detach()) * 3)


def _below(h: Tensor) -> Tensor:
    return -(h.abs() + 1)


# Two values of one dtype and size are not finite, and one of them is left out.
_tell(
    "beside_one_that_is_replaced",
    "log.forward",
    "domain",
    lambda h: torch.log(_below(h)) * 2 + torch.nan_to_num(torch.sqrt(_below(h))),
)
_tell(
    "part_of_one_beside_parts_of_another",
    "log.forward",
    "domain",
    lambda h: (
        torch.nan_to_num((root := torch.sqrt(_below(h)))[:, :2])
        + torch.nan_to_num(root[:, 2:])
        + torch.log(_below(h))[:, :2]
    ),
)
