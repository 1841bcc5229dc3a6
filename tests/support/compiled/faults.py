"""Backends of torch.compile with one fault each, made by changing the graph that a right backend would get.

A fault is planted into one graph of many, that of one module, so that the modules before and after it are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import GraphModule

Change = Callable[[GraphModule], bool]
"""Changes a graph; false where there is nothing to change."""


class Fault(NamedTuple):
    """A fault, and a model in which it shows."""

    model: str
    change: Change
    where: int = 1
    """The index of the checked module that has the fault."""
    is_rounding: bool = False
    """True if what it does is no more than the dtype's own rounding."""
    in_backward: bool = False
    """True if the graph of the backward is changed."""


class Planted:
    """A backend that is right but for one graph.

    Every checked module has one graph.
    """

    def __init__(self, fault: Fault) -> None:
        self._fault, self._seen = fault, 0
        self.is_planted = False

    def __call__(self, graph: GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        if not self._fault.in_backward:
            self._change(graph)
            return graph.forward

        def right(graph: Any, inputs: Any) -> Any:
            return make_boxed_func(graph.forward)

        def wrong(graph: Any, inputs: Any) -> Any:
            self._change(graph)
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=right, bw_compiler=wrong)(graph, inputs)

    def _change(self, graph: GraphModule) -> None:
        if self._seen == self._fault.where and self._fault.change(graph):
            self.is_planted = True
            graph.recompile()
        self._seen += 1


def _calls(graph: GraphModule, *targets: Any) -> list[Any]:
    found = []
    for node in graph.graph.nodes:
        target = node.target
        if target in targets or (node.op == "call_function" and getattr(target, "overloadpacket", None) in targets):
            found.append(node)
    return found


def function_instead(graph: GraphModule, wanted: Any, made: Callable[..., Any]) -> bool:
    """Put another function in the place of the first call of one, or of a method if `wanted` is a name."""
    for node in _calls(graph, wanted)[:1]:
        node.op, node.target = "call_function", made
        return True
    return False


# --- the faults


def _tanh_gelu(graph: GraphModule) -> bool:
    return function_instead(graph, torch._C._nn.gelu, lambda x: nn.functional.gelu(x, approximate="tanh"))


def _other_epsilon(graph: GraphModule) -> bool:
    def norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        return torch.layer_norm(x, shape, weight, bias, 1e-3)

    return function_instead(graph, nn.functional.layer_norm, norm)


def _epilogue_epsilon(graph: GraphModule) -> bool:
    """The constant that a fused norm adds before its root."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and len(node.args) == 2 and node.args[1] == 1e-6:
            node.args = (node.args[0], 1e-5)
            return True
    return False


def _dropped_cast(graph: GraphModule) -> bool:
    """The cast to float32, so that what follows is computed in bfloat16."""
    for node in graph.graph.nodes:
        if node.op == "call_method" and node.target in ("to", "float") and torch.float32 in node.args:
            node.args = (node.args[0], torch.bfloat16)
            return True
    return False


def _dropped_cast_of_result(graph: GraphModule) -> bool:
    """The same where the result is float32: it has the dtype, and the digits of bfloat16."""
    result = next(node for node in graph.graph.nodes if node.op == "output")
    with graph.graph.inserting_before(result):
        result.args = (tuple(graph.graph.call_method("to", (each, torch.float32)) for each in result.args[0]),)
    return _dropped_cast(graph)


def _wrong_scale(graph: GraphModule) -> bool:
    """A division of scores by the root of the width that is left out."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "truediv":
            node.args = (node.args[0], 1.0)
            return True
    return False


def _hard_silu(graph: GraphModule) -> bool:
    return function_instead(graph, nn.functional.silu, lambda x, inplace=False: nn.functional.hardswish(x))


def _without_bias(graph: GraphModule) -> bool:
    return function_instead(graph, torch._C._nn.linear, lambda x, weight, bias=None: torch._C._nn.linear(x, weight))


def _short_product(graph: GraphModule) -> bool:
    def product(x: Any, weight: Any, bias: Any = None) -> Any:
        short = torch._C._nn.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)
        return short if bias is None else short + bias

    return function_instead(graph, torch._C._nn.linear, product)


def _unbiased_variance(graph: GraphModule) -> bool:
    """Groups normalised by a variance that is divided by n - 1."""

    def norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        parts = x.reshape(x.shape[0], groups, -1)
        scaled = (parts - parts.mean(-1, keepdim=True)) * torch.rsqrt(parts.var(-1, keepdim=True) + eps)
        scaled = scaled.reshape(x.shape)
        of_channels = (1, -1, *(1 for _ in x.shape[2:]))
        return scaled * weight.reshape(of_channels) + bias.reshape(of_channels)

    return function_instead(graph, nn.functional.group_norm, norm)


def _open_relu(graph: GraphModule) -> bool:
    """A backward that lets every gradient through."""
    return function_instead(graph, torch.ops.aten.threshold_backward.default, lambda gradient, x, threshold: gradient)


def _lost_sum(graph: GraphModule) -> bool:
    """A gradient of a bias that is a mean over the rows instead of a sum."""

    def mean(x: Any, dims: Any, keepdim: bool = False) -> Any:
        return torch.mean(x, dims, keepdim)

    return function_instead(graph, torch.ops.aten.sum.dim_IntList, mean)


FAULTS = {
    "gelu by tanh": Fault("mlp", _tanh_gelu),
    "layer_norm with epsilon 1e-3": Fault("GPT-2", _other_epsilon),
    "fused norm with epsilon 1e-5 for 1e-6": Fault("gated", _epilogue_epsilon),
    "cast to float32 dropped before log_softmax": Fault("gated, bfloat16", _dropped_cast_of_result, 2),
    "cast to float32 dropped inside a norm": Fault("gated, bfloat16", _dropped_cast, is_rounding=True),
    "scores not scaled": Fault("attention", _wrong_scale, 2),
    "silu by hardswish": Fault("group norm", _hard_silu),
    "bias dropped from an epilogue": Fault("nn.TransformerEncoderLayer", _without_bias, 0),
    "product in bfloat16": Fault("mlp", _short_product),
    "variance divided by n - 1": Fault("group norm", _unbiased_variance),
    "backward of relu without its mask": Fault("batch norm", _open_relu, in_backward=True),
    "gradient of a bias is a mean": Fault("mlp", _lost_sum, in_backward=True),
}
