"""The faults that are planted into ports, and what names each of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing that a port gets wrong."""

    name: str
    network: str
    optimizer: str
    where: str
    """A pattern that the record or module which is named first fits, with the words about it."""
    cause: str
    """A pattern that the words of the verdict fit where the cause is named."""
    levels: tuple[str, ...] = ("mix", "L0")
    """The levels at which anything shows."""


FAULTS = (
    Fault("layernorm epsilon", "bert", "sgd", r"network\.(layer)?norm\b", r"eps"),
    Fault("gelu kind", "gpt2", "sgd", r"\.0\.act(ivation)?\b", r"approximate|gelu"),
    Fault("missing bias", "bert", "sgd", r"\.0\.(attention_)?output\b", r"bias"),
    Fault("transposed weight", "gpt2", "sgd", r"\.0\.(c_proj|projection)\b", r"transpose|\.t\b|swapaxes"),
    Fault("conv padding", "cnn", "sgd", r"\.conv2\b", r"pad"),
    Fault("momentum convention", "cnn", "sgd", r"\.bn1\b", r"momentum|running|moving", ("mix",)),
    Fault("keep_prob", "bert", "sgd", r"network\.dropout\b", r"keep_prob|\bp\b"),
    Fault("causal mask", "llama", "adam", r"\.0\.(self_attn|attention)\b", r"__add__|mask|is_causal|tri[lu]"),
    Fault("attention scale", "bert", "adam", r"\.0\.attention\b", r"0\.125|scale"),
    Fault("head order", "llama", "adam", r"\.0\.(self_attn|attention)\b", r"repeat|tile"),
    Fault(
        "label shift",
        "gpt2",
        "adam",
        r" Tensor\.reshape\.1\.forward|network\.(ln_f|layernorm)\.LayerNorm\.backward\.0",
        r"(?i)label|shift|ids|input\.0|target",
    ),
    # Where parameters differ first says little; what the optimizer did says it.
    Fault("adam epsilon", "t5", "adam", r"(?i)optimizer|adam|eps|update", r"eps"),
)
