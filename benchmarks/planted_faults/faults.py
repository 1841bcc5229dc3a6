"""Single faults, each in one layer in the middle of a network, and which calls are to blame.

Five kinds: a wrong constant, a layer that rounds through bfloat16, a transposed weight, a mask that is dropped, and a
NaN. They are planted as such a bug comes into the world: an attribute of a live model is set wrong, a weight is loaded
the wrong way, a forward is written wrong, a kernel returns rubbish.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = ("constant", "bf16", "transpose", "mask", "nan")


class Call(NamedTuple):
    """The call number `number` of `api` among those made directly by the first run of the module at `path`."""

    path: str
    api: str
    number: int = 0


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    Args:
        what: in words.
        module: path of the innermost module that holds the fault.
        plant: puts it into a live model.
        clean: the calls at fault, as the run without fault has them.
        faulty: the same in the run with fault.
        clean_after: where a call is missing or added, those that receive another value for that, in the run without.
        faulty_after: the same in the run with fault.
    """

    what: str
    module: str
    plant: Callable[[nn.Module], None]
    clean: tuple[Call, ...]
    faulty: tuple[Call, ...]
    clean_after: tuple[Call, ...] = ()
    faulty_after: tuple[Call, ...] = ()


def _fault(
    what: str,
    module: str,
    plant: Callable[[Any], None],
    *calls: str,
    clean: str | None = None,
    after: tuple[Call, ...] = (),
    faulty_after: tuple[Call, ...] | None = None,
) -> Fault:
    """`calls` and `clean` are written ``api#number``, of `module`, several in `clean` with a blank between.

    `clean` is what the run without fault has, `calls` where it is not given; `after` holds for both runs where
    `faulty_after` is not given.
    """
    faulty = tuple(_call(module, text) for text in calls)
    return Fault(
        what,
        module,
        lambda model: plant(model.get_submodule(module)),
        faulty if clean is None else tuple(_call(module, text) for text in clean.split()),
        faulty,
        after,
        after if faulty_after is None else faulty_after,
    )


def _call(path: str, text: str) -> Call:
    api, _, number = text.partition("#")
    return Call(path, api, int(number or 0))


# --- wrong constants


def _set(attribute: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module, attribute, value)


def _cube_squared(module: nn.Module) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 2.0))))

    _replace_forward(module, forward)


# --- bfloat16


def _in_bfloat16(layer: nn.Module) -> None:
    """Computed in bfloat16, as in a mixed precision that someone wrote by hand."""

    def forward(self: Any, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.bfloat16()
        return F.linear(x.bfloat16(), self.weight.bfloat16(), bias).float()

    _replace_forward(layer, forward)


def _under_autocast(layer: nn.Module) -> None:
    """An autocast region that was meant for another layer."""
    inner = layer.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args, **kwargs)

    _replace_forward(layer, forward)


def _through_bfloat16(layer: nn.Module) -> None:
    """A communication buffer or a checkpointed activation kept in bfloat16."""
    inner = layer.forward

    def forward(self: Any, *args: Any) -> Any:
        return inner(*args).to(torch.bfloat16).to(torch.float32)

    _replace_forward(layer, forward)


def _first_output_through_bfloat16(layer: nn.Module) -> None:
    inner = layer.forward

    def forward(self: Any, *args: Any) -> Any:
        first, *rest = inner(*args)
        return (first.bfloat16().float(), *rest)

    _replace_forward(layer, forward)


def _weight_kept_in_bfloat16(layer: nn.Module) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.bfloat16().float(), self.bias)

    _replace_forward(layer, forward)


def _router_in_bfloat16(router: nn.Module) -> None:
    """The router of a mixture of experts, which has to stay in float32."""

    def forward(self: Any, hidden_states: Tensor) -> Any:
        hidden_states = hidden_states.reshape(-1, self.hidden_dim)
        logits = F.linear(hidden_states.bfloat16(), self.weight.bfloat16())
        probabilities = F.softmax(logits.float(), dim=-1)
        top, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        top /= top.sum(dim=-1, keepdim=True)
        return logits, top, chosen

    _replace_forward(router, forward)


# --- transposed weights


def _transpose(name: str = "weight") -> Callable[[nn.Module], None]:
    """The parameter read from its file as if it were stored the other way round."""

    def plant(layer: nn.Module) -> None:
        parameter = layer.get_parameter(name)
        parameter.data = parameter.data.transpose(0, 1).contiguous()

    return plant


def _transpose_parts(name: str) -> Callable[[nn.Module], None]:
    """The same for square matrices stacked in one parameter, such as the gates of an LSTM."""

    def plant(layer: nn.Module) -> None:
        parameter = layer.get_parameter(name)
        parts = parameter.data.split(parameter.shape[1])
        parameter.data.copy_(torch.cat([part.t() for part in parts]))

    return plant


def _transposed_at_use(layer: nn.Module) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)

    _replace_forward(layer, forward)


# --- dropped masks


def _without_argument(name: str, position: int = -1) -> Callable[[nn.Module], None]:
    """A layer that forgets one of its arguments; with its mask goes the causal flag that would stand in for it."""

    def plant(layer: nn.Module) -> None:
        inner = layer.forward

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if name in kwargs:
                kwargs[name] = None
            elif 0 <= position < len(args):
                args = (*args[:position], None, *args[position + 1 :])
            return inner(*args, **kwargs)

        if hasattr(layer, "is_causal"):
            layer.is_causal = False
        _replace_forward(layer, forward)

    return plant


def _without_masking(layer: nn.Module) -> None:
    def forward(self: Any, x: Tensor, there: Tensor) -> Tensor:
        return x

    _replace_forward(layer, forward)


def _without_first_relu(block: nn.Module) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        inner = self.bn1(self.conv1(x))
        return F.relu(x + self.bn2(self.conv2(inner)))

    _replace_forward(block, forward)


# --- NaN


class _BrokenKernel(TorchDispatchMode):
    """The kernel's call of that number returns a NaN in one place."""

    def __init__(self, kernels: tuple[str, ...], number: int) -> None:
        super().__init__()
        self._kernels, self._number, self._seen = kernels, number, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.partition("::")[2] in self._kernels:
            if self._seen == self._number:
                first = result[0] if isinstance(result, tuple) else result
                with torch._C.DisableTorchFunction():
                    first.reshape(-1)[first.numel() // 3].fill_(float("nan"))
            self._seen += 1
        return result


_PRODUCTS = ("mm", "addmm", "bmm", "convolution")


def _broken_kernel(*kernels: str, number: int = 0) -> Callable[[nn.Module], None]:
    def plant(layer: nn.Module) -> None:
        inner = layer.forward

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _BrokenKernel(kernels or _PRODUCTS, number):
                return inner(*args, **kwargs)

        _replace_forward(layer, forward)

    return plant


def _writes_nan(layer: nn.Module) -> None:
    inner = layer.forward

    def forward(self: Any, *args: Any) -> Any:
        output = inner(*args)
        output[1, 3, 5] = float("nan")
        return output

    _replace_forward(layer, forward)


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


# --- where


def _llama() -> dict[str, Fault]:
    layer = "model.layers.1"
    attention, norm = f"{layer}.self_attn", f"{layer}.post_attention_layernorm"
    return {
        "constant": _fault(
            "RMS norm with eps 1e-3 for 1e-6", norm, _set("variance_epsilon", 1e-3), "Tensor.__add__"
        ),
        "bf16": _fault(
            "up projection computed in bfloat16", f"{layer}.mlp.up_proj", _in_bfloat16,
            "Tensor.bfloat16", "Tensor.bfloat16#1", "Functional.linear", "Tensor.float", clean="Functional.linear",
        ),
        "transpose": _fault(
            "weight of the query projection", f"{attention}.q_proj", _transpose(), "Functional.linear"
        ),
        "mask": _fault(
            "causal mask not added", attention, _without_argument("attention_mask"), clean="Tensor.__add__#2",
            after=(Call(attention, "Functional.softmax"),),
        ),
        "nan": _fault(
            "kernel of the down projection", f"{layer}.mlp.down_proj", _broken_kernel(), "Functional.linear"
        ),
    }  # fmt: skip


def _mixtral() -> dict[str, Fault]:
    layer = "model.layers.1"
    attention, experts = f"{layer}.self_attn", f"{layer}.mlp.experts"
    fused = "Functional.scaled_dot_product_attention"
    return {
        "constant": _fault(
            "attention scaled by the width, not the head's", attention, _set("scaling", 64**-0.5), fused
        ),
        "bf16": _fault(
            "router computed in bfloat16", f"{layer}.mlp.gate", _router_in_bfloat16,
            "Tensor.bfloat16", "Tensor.bfloat16#1", "Functional.linear", clean="Functional.linear",
            after=(Call(f"{layer}.mlp.gate", "Tensor.float"),),
        ),
        "transpose": _fault(
            "weight of the output projection", f"{attention}.o_proj", _transpose(), "Functional.linear"
        ),
        "mask": _fault("not causal", attention, _without_argument("attention_mask"), fused),
        "nan": _fault("kernel of the first expert's product", experts, _broken_kernel(), "Functional.linear"),
    }  # fmt: skip


def _gpt2() -> dict[str, Fault]:
    block = "transformer.h.2"
    attention, act = f"{block}.attn", f"{block}.mlp.act"
    into_act = (Call(act, "Tensor.__rmul__"), Call(act, "Torch.pow"), Call(act, "Tensor.__add__"))
    return {
        "constant": _fault("GELU with a square for the cube", act, _cube_squared, "Torch.pow"),
        "bf16": _fault(
            "first projection's output through bfloat16", f"{block}.mlp.c_fc", _through_bfloat16,
            "Tensor.to", "Tensor.to#1", clean="", after=into_act,
        ),
        "transpose": _fault("weight of the output projection", f"{attention}.c_proj", _transpose(), "Torch.addmm"),
        "mask": _fault(
            "causal mask not added", attention, _without_argument("attention_mask"), clean="Tensor.__add__",
            after=(Call(attention, "Functional.softmax"),),
        ),
        "nan": _fault(
            "written into the second projection's output", f"{block}.mlp.c_proj", _writes_nan, "Tensor.__setitem__",
            clean="", after=(Call(f"{block}.mlp.dropout", "Functional.dropout"),),
        ),
    }  # fmt: skip


def _bert() -> dict[str, Fault]:
    layer = "bert.encoder.layer.1"
    attention, act = f"{layer}.attention.self", f"{layer}.intermediate.intermediate_act_fn"
    return {
        "constant": _fault(
            "GELU by tanh", act, _set("act", partial(F.gelu, approximate="tanh")), "Functional.gelu"
        ),
        "bf16": _fault(
            "output projection under autocast", f"{layer}.output.dense", _under_autocast, "Functional.linear"
        ),
        "transpose": _fault("weight of the key projection", f"{attention}.key", _transpose(), "Functional.linear"),
        "mask": _fault(
            "padding mask not passed on", attention, _without_argument("attention_mask", 1),
            "Functional.scaled_dot_product_attention",
        ),
        "nan": _fault("kernel of the value projection", f"{attention}.value", _broken_kernel(), "Functional.linear"),
    }  # fmt: skip


def _t5() -> dict[str, Fault]:
    encoder, decoder = "encoder.block.1", "decoder.block.1"
    attention, masked = f"{encoder}.layer.0.SelfAttention", f"{decoder}.layer.0.SelfAttention"
    return {
        "constant": _fault("attention scaled, as T5's is not", attention, _set("scaling", 12**-0.5), "Tensor.__mul__"),
        "bf16": _fault(
            "first projection computed in bfloat16", f"{decoder}.layer.2.DenseReluDense.wi", _in_bfloat16,
            "Tensor.bfloat16", "Tensor.bfloat16#1", "Functional.linear", "Tensor.float", clean="Functional.linear",
        ),
        "transpose": _fault(
            "weight of the value projection", f"{decoder}.layer.1.EncDecAttention.v", _transpose(), "Functional.linear"
        ),
        "mask": _fault(
            "causal mask not added", masked, _without_argument("mask"), clean="Tensor.__add__#1",
            after=(Call(masked, "Functional.softmax"),),
        ),
        "nan": _fault(
            "kernel of a norm's last product", f"{encoder}.layer.1.layer_norm", _broken_kernel("mul", number=1),
            "Tensor.__mul__#1",
        ),
    }  # fmt: skip


def _whisper() -> dict[str, Fault]:
    encoder, masked = "model.encoder.layers.1", "model.decoder.layers.1.self_attn"
    return {
        "constant": _fault("queries scaled by the width", masked, _set("scaling", 48**-0.5), "Tensor.__mul__"),
        "bf16": _fault("second projection under autocast", f"{encoder}.fc2", _under_autocast, "Functional.linear"),
        "transpose": _fault(
            "weight of the output projection, at its use", f"{encoder}.self_attn.out_proj", _transposed_at_use,
            "Tensor.t", "Functional.linear", clean="Functional.linear",
        ),
        "mask": _fault(
            "not causal", masked, _without_argument("attention_mask"), "Functional.scaled_dot_product_attention"
        ),
        "nan": _fault(
            "kernel of a norm", f"{encoder}.final_layer_norm", _broken_kernel("native_layer_norm"),
            "Functional.layer_norm",
        ),
    }  # fmt: skip


def _swin() -> dict[str, Fault]:
    block = "swin.encoder.layers.0.blocks.1"
    attention = f"{block}.attention"
    return {
        "constant": _fault(
            "layer norm with eps 1e-3 for 1e-5", f"{block}.layernorm_after", _set("eps", 1e-3), "Functional.layer_norm"
        ),
        "bf16": _fault(
            "first projection's weight kept in bfloat16", f"{block}.mlp.fc1", _weight_kept_in_bfloat16,
            "Tensor.bfloat16", "Tensor.float", "Functional.linear", clean="Functional.linear",
        ),
        "transpose": _fault("weight of the key projection", f"{attention}.k_proj", _transpose(), "Functional.linear"),
        "mask": _fault(
            "mask of the shifted windows not added", attention, _without_argument("attention_mask", 1),
            clean="Tensor.unsqueeze Tensor.unsqueeze#1 Tensor.expand Tensor.reshape Tensor.__add__",
            after=(Call(attention, "Tensor.__add__", 1),), faulty_after=(Call(attention, "Tensor.__add__"),),
        ),
        "nan": _fault("kernel of the second projection", f"{block}.mlp.fc2", _broken_kernel(), "Functional.linear"),
    }  # fmt: skip


def _resnet() -> dict[str, Fault]:
    block = "blocks.1"
    return {
        "constant": _fault(
            "batch norm with eps 1e-3 for 1e-5", f"{block}.bn2", _set("eps", 1e-3), "Functional.batch_norm"
        ),
        "bf16": _fault(
            "convolution's output through bfloat16", f"{block}.conv2", _through_bfloat16, "Tensor.to", "Tensor.to#1",
            clean="", after=(Call(f"{block}.bn2", "Functional.batch_norm"),),
        ),
        "transpose": _fault(
            "channels of a convolution's weight", f"{block}.conv1", _transpose(), "Functional.conv2d"
        ),
        "mask": _fault(
            "ReLU left out", block, _without_first_relu, clean="Functional.relu",
            after=(Call(f"{block}.conv2", "Functional.conv2d"),),
        ),
        "nan": _fault("kernel of a convolution", f"{block}.conv1", _broken_kernel(), "Functional.conv2d"),
    }  # fmt: skip


def _recurrent() -> dict[str, Fault]:
    return {
        "constant": _fault("slope 0.02 for 0.01", "act", _set("negative_slope", 0.02), "Functional.leaky_relu"),
        "bf16": _fault(
            "GRU's output through bfloat16", "gru", _first_output_through_bfloat16, "Tensor.bfloat16", "Tensor.float",
            clean="", after=(Call("masking", "Tensor.masked_fill"),),
        ),
        "transpose": _fault(
            "recurrent weights of the LSTM", "lstm", _transpose_parts("weight_hh_l0"), "VF.lstm"
        ),
        "mask": _fault(
            "padding not set to zero", "masking", _without_masking, clean="Tensor.masked_fill",
            after=(Call("project", "Functional.linear"),),
        ),
        "nan": _fault("kernel of a projection", "project", _broken_kernel(), "Functional.linear"),
    }  # fmt: skip


def _encoder() -> dict[str, Fault]:
    layer = "encoder.layers.1"
    attention, whole = f"{layer}.self_attn", "Functional.multi_head_attention_forward"
    return {
        "constant": _fault(
            "GELU by tanh", layer, _set("activation", partial(F.gelu, approximate="tanh")), "Functional.gelu"
        ),
        "bf16": _fault(
            "second projection under autocast", f"{layer}.linear2", _under_autocast, "Functional.linear"
        ),
        "transpose": _fault("weight of the output projection", attention, _transpose("out_proj.weight"), whole),
        "mask": _fault("key padding mask not passed on", attention, _without_argument("key_padding_mask"), whole),
        "nan": _fault("kernel of the first projection", f"{layer}.linear1", _broken_kernel(), "Functional.linear"),
    }  # fmt: skip


FAULTS: dict[str, dict[str, Fault]] = {
    "llama": _llama(),
    "mixtral": _mixtral(),
    "gpt2": _gpt2(),
    "bert": _bert(),
    "t5": _t5(),
    "whisper": _whisper(),
    "swin": _swin(),
    "resnet": _resnet(),
    "recurrent": _recurrent(),
    "encoder": _encoder(),
}
