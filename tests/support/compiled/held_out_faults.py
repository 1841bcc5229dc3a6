"""Faults of compilers in the models of `compiled.held_out`: none of them was seen while a constant was chosen."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from compiled.faults import Fault, function_instead


def _constant(wanted: float, made: float, *functions: Any) -> Callable[[GraphModule], bool]:
    """A number that is another one, in the first call that has it among its arguments."""

    def change(graph: GraphModule) -> bool:
        for node in graph.graph.nodes:
            if node.op not in ("call_function", "call_method") or (functions and node.target not in functions):
                continue
            if any(_is(each, wanted) for each in (*node.args, *node.kwargs.values())):
                node.args = tuple(made if _is(each, wanted) else each for each in node.args)
                node.kwargs = {key: made if _is(each, wanted) else each for key, each in node.kwargs.items()}
                return True
        return False

    return change


def _is(value: Any, wanted: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == wanted


def _exact_gelu(graph: GraphModule) -> bool:
    return function_instead(graph, torch._C._nn.gelu, lambda x, approximate="none": nn.functional.gelu(x))


def _power_of_two(graph: GraphModule) -> bool:
    """An exponential by a power of two, whose constant, log2(e), is folded to five digits."""
    return function_instead(graph, torch.exp, lambda x: torch.exp2(x * 1.4427))


def _norm_over_one_axis(graph: GraphModule) -> bool:
    """The norm of the response of ConvNeXt V2, over the rows alone."""
    return function_instead(
        graph, torch.linalg.vector_norm, lambda x, *_, **__: torch.linalg.vector_norm(x, dim=2, keepdim=True)
    )


def _mask_off_by_one(graph: GraphModule) -> bool:
    """Every word sees the next one."""
    attention = torch._C._nn.scaled_dot_product_attention

    def run(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **settings: Any) -> Any:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(1)
        scale, grouped = settings.get("scale"), settings.get("enable_gqa", False)
        return attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)

    return function_instead(graph, attention, run)


def _rotary_in_bfloat16(graph: GraphModule) -> bool:
    """A table of cosines that is kept in bfloat16: the cast back to float32 keeps no digits."""
    return function_instead(graph, "unsqueeze", lambda x, dim: x.bfloat16().float().unsqueeze(dim))


def _other_momentum(graph: GraphModule) -> bool:
    """Running statistics that follow at half the pace; the output is right."""

    def norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, training: Any, momentum: Any, eps: Any) -> Any:
        return nn.functional.batch_norm(x, mean, variance, weight, bias, training, momentum / 2, eps)

    return function_instead(graph, nn.functional.batch_norm, norm)


def _epsilon_of_batch_norm(graph: GraphModule) -> bool:
    def norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, training: Any, momentum: Any, eps: Any) -> Any:
        return nn.functional.batch_norm(x, mean, variance, weight, bias, training, momentum, 1e-3)

    return function_instead(graph, nn.functional.batch_norm, norm)


def _short_sixth(graph: GraphModule) -> bool:
    """A sixth that is folded to four digits in the decomposition of hardswish."""
    made = lambda x, inplace=False: x * nn.functional.relu6(x + 3) * 0.1667  # noqa: E731
    return function_instead(graph, nn.functional.hardswish, made)


def _other_groups(graph: GraphModule) -> bool:
    def norm(x: Any, groups: int, *args: Any, **settings: Any) -> Any:
        return torch.group_norm(x, groups // 2, *args, **settings)

    return function_instead(graph, nn.functional.group_norm, norm)


def _bilinear(graph: GraphModule) -> bool:
    def run(x: Any, *args: Any, **settings: Any) -> Any:
        return nn.functional.interpolate(x, scale_factor=2, mode="bilinear")

    return function_instead(graph, nn.functional.interpolate, run)


def _mean_kept_in_gradient(graph: GraphModule) -> bool:
    """A backward of a layer norm that does not take the mean of the gradient away."""
    backward = torch.ops.aten.native_layer_norm_backward.default

    def run(gradient: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any) -> Any:
        _, of_weight, of_bias = backward(gradient, x, shape, mean, rstd, weight, bias, mask)
        scaled, wanted = (x - mean) * rstd, gradient * weight
        return (wanted - scaled * (wanted * scaled).mean(-1, keepdim=True)) * rstd, of_weight, of_bias

    return function_instead(graph, backward, run)


def _softmax_over_rows(graph: GraphModule) -> bool:
    def run(x: Any, dim: int) -> Any:
        return torch.softmax(x, -2)

    return function_instead(graph, "softmax", run)


def _softmax_in_bfloat16(graph: GraphModule) -> bool:
    """Fused attention without the cast of its scores back to float32."""

    def run(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **settings: Any) -> Any:
        scores = (query @ key.transpose(-1, -2) * (settings.get("scale") or query.shape[-1] ** -0.5)).bfloat16()
        return torch.softmax(scores if attn_mask is None else scores + attn_mask, -1).to(value.dtype) @ value

    return function_instead(graph, torch._C._nn.scaled_dot_product_attention, run)


def _softmax_without_its_cast(graph: GraphModule) -> bool:
    """A softmax of short floats that was to be computed in float32, and is rounded to short floats afterwards."""

    def run(x: Any, *_: Any, **__: Any) -> Any:
        return torch.softmax(x, -1).float()

    return function_instead(graph, nn.functional.softmax, run)


HELD_OUT_FAULTS = {
    "gelu by erf for the one by tanh": Fault("Gemma 2", _exact_gelu),
    "log2(e) folded to five digits": Fault("Mamba", _power_of_two),
    "norm over one axis of two": Fault("ConvNeXt V2", _norm_over_one_axis),
    "mask off by one": Fault("Phi-3", _mask_off_by_one),
    "rotary table in bfloat16": Fault("GPT-NeoX", _rotary_in_bfloat16),
    "fused norm with epsilon 2e-6 for 1e-6": Fault("Qwen3", _constant(1e-6, 2e-6, operator.add)),
    "epsilon 1e-5 for 1e-6 in a norm of T5": Fault("T5", _constant(1e-6, 1e-5, operator.add)),
    "running statistics at half the pace": Fault("timm EfficientNet", _other_momentum),
    "batch norm with epsilon 1e-3": Fault("torchvision ResNet", _epsilon_of_batch_norm),
    "a sixth folded to four digits": Fault("torchvision MobileNet v3", _short_sixth),
    "half as many groups": Fault("diffusers UNet2D", _other_groups),
    "bilinear for nearest": Fault("segmentation U-Net", _bilinear),
    "backward of a norm that keeps the mean": Fault("OPT", _mean_kept_in_gradient, in_backward=True),
    "softmax over the other axis": Fault("timm XCiT", _softmax_over_rows),
    "1.702 folded to 1.7": Fault("CLIP", _constant(1.702, 1.7)),
    "16 folded to 15.99": Fault("Swin v2", _constant(16, 15.99, operator.mul)),
    "softmax of scores in bfloat16": Fault("wav2vec 2", _softmax_in_bfloat16),
    "cast to float32 dropped before the softmax of a router": Fault(
        "Mixtral, bfloat16", _softmax_without_its_cast, is_rounding=True
    ),
}
