"""Thirty runs with one fault each, and where the graph page has to stand when it is opened.

The networks of PyTorch alone are those of `planted_faults/networks.py`; those of MindSpore, and of pairs of both, are
the ports in `verdicts/ports`. No rule of the comparison was made by these cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("weight", "operator", "dtype", "extra layer", "NaN", "order")
TORCH, MINDSPORE = "torch", "mindspore"


class Run(NamedTuple):
    """One training step of a network, of `case` where it has that one's fault."""

    framework: str
    network: str
    case: str = ""

    @property
    def folder(self) -> str:
        """The name of its dump."""
        return "-".join(part.replace(" ", "_") for part in self if part)


@dataclass(frozen=True)
class Case:
    """A fault, planted into the module at `module` of the run under test.

    Args:
        kind: one of `KINDS`.
        network: its name in `planted_faults` where it begins with a letter, in `verdicts/ports` with ``port:``.
        module: the path of the innermost module that holds the fault.
        what: the planter, and in words what it does.
        golden: the framework of the run without fault.
    """

    kind: str
    framework: str
    network: str
    module: str
    what: str
    golden: str

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.framework}-{self.golden}-{self.network.replace(':', '_')}-{self.kind}".replace(" ", "_").lower()

    @property
    def runs(self) -> tuple[Run, Run]:
        """The run with the fault, and the one without."""
        network = self.network.replace(":", "_")
        return Run(self.framework, network, self.name), Run(self.golden, network)

    @property
    def side(self) -> str:
        """The frameworks, as the table names them."""
        names = {TORCH: "PyTorch", MINDSPORE: "MindSpore"}
        target, golden = names[self.framework], names[self.golden]
        return target if target == golden else f"{target} against {golden}"


def _cases(framework: str, golden: str, *lines: tuple[str, str, str, str]) -> list[Case]:
    return [Case(kind, framework, network, module, what, golden) for kind, network, module, what in lines]


CASES = [
    *_cases(
        TORCH, TORCH,
        ("weight", "bert", "bert.encoder.layer.1.intermediate.dense", "shifted by a hundredth"),
        ("weight", "mixtral", "model.layers.2.mlp.gate", "scaled by 1.01"),
        ("weight", "resnet", "blocks.2.conv2", "channels rolled by one"),
        ("operator", "swin", "swin.encoder.layers.1.blocks.0.mlp.activation_fn", "GELU by tanh"),
        ("operator", "mixtral", "model.layers.1.mlp.experts.act_fn", "ReLU"),
        ("dtype", "t5", "decoder.block.2.layer.2.DenseReluDense.wo", "computed in bfloat16"),
        ("dtype", "whisper", "model.decoder.layers.1.encoder_attn.out_proj", "computed in bfloat16"),
        ("extra layer", "bert", "bert.encoder.layer.2", "drawn again"),
        ("extra layer", "encoder", "encoder.layers.1", "drawn again"),
        ("NaN", "recurrent", "mix", "in a weight"),
        ("NaN", "swin", "swin.encoder.layers.0.blocks.1.attention.v_proj", "in the output"),
        ("order", "gpt2", "transformer.h.1", "swapped with the next"),
        ("order", "encoder", "encoder.layers.2", "swapped with the next"),
        ("order", "resnet", "blocks.1", "ReLU before batch norm"),
    ),
    *_cases(
        MINDSPORE, MINDSPORE,
        ("weight", "port:bert", "network.encoder.1.attention.dense1", "shifted by a hundredth"),
        ("weight", "port:llama", "network.layers.1.feed_forward.w3", "scaled by 1.01"),
        ("operator", "port:gpt2", "network.blocks.1.activation", "ReLU"),
        ("dtype", "port:t5", "network.decoder.block.1.cross.o", "computed in float16"),
        ("extra layer", "port:gpt2", "network.blocks.1", "drawn again"),
        ("NaN", "port:cnn", "network.conv2", "in a weight"),
        ("order", "port:llama", "network.layers.0", "swapped with the next"),
        ("order", "port:t5", "network.encoder.block.0.feed_forward", "activation after the projection"),
    ),
    *_cases(
        MINDSPORE, TORCH,
        ("weight", "port:gpt2", "network.blocks.1.mapping", "shifted by a hundredth"),
        ("operator", "port:bert", "network.encoder.0.activation", "ReLU"),
        ("dtype", "port:llama", "network.layers.1.attention.wv", "computed in float16"),
        ("extra layer", "port:bert", "network.encoder.1", "drawn again"),
        ("NaN", "port:t5", "network.decoder.block.0.cross.k", "in a weight"),
        ("order", "port:t5", "network.decoder.block.0", "swapped with the next"),
    ),
    *_cases(
        TORCH, MINDSPORE,
        ("weight", "port:cnn", "network.conv2", "scaled by 1.01"),
        ("dtype", "port:bert", "network.layers.1.intermediate", "computed in bfloat16"),
    ),
]  # fmt: skip
