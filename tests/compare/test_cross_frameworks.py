"""Recorded runs of one network in MindSpore and in PyTorch, compared without a mapping file.

`pairs/small_network` was recorded with the real tool: a few layers whose names are the same. `pairs/transformer` with
ours, of a kept pair: layers are called differently, MindSpore has a level more, and the
weights are the same. Statistics are rounded to seven digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.common.dump.naming import is_module
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult

PAIRS = Path(__file__).parent / "pairs"
SMALL, TRANSFORMER = PAIRS / "small_network", PAIRS / "transformer"

# A layer of MindSpore computes in primitives, casts and questions of shape; one of PyTorch in a function.
INSIDE_OF_LAYERS = {"Primitive.conv2d", "Primitive.bias_add", "Primitive.matmul", "Primitive.shape_op", "Tensor.to"}
FUNCTIONS_OF_LAYERS = {"Functional.conv2d", "Functional.linear"}


def compared(target: Path, golden: Path, **options: Any) -> ComparisonResult:
    return compare_dumps(read(target), read(golden), Options(**options))


def met(result: ComparisonResult) -> dict[str, str]:
    """Records of the target and of the golden side that have items in common."""
    return {row.record: row.golden_record for row in result.rows if row.target and row.golden_record}


def residue(target: Path, golden: Path) -> tuple[set[str], set[str]]:
    """Records of either side without a counterpart."""
    pairs = met(compared(target, golden))
    assert len(set(pairs.values())) == len(pairs)
    return (
        {record.name for record in read(target)} - pairs.keys(),
        {record.name for record in read(golden)} - set(pairs.values()),
    )


def test_every_module_has_its_counterpart() -> None:
    target, golden = SMALL / "mindspore_L0", SMALL / "torch_L0"
    assert residue(target, golden) == (set(), set())
    assert residue(golden, target) == (set(), set())
    pairs = met(compared(target, golden))
    assert pairs["Cell.head.Dense.parameters_grad.0"] == "Module.head.Linear.parameters_grad.0"
    result = compared(target, golden)
    assert all(row.target and row.golden for row in result.rows)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_every_function_has_its_counterpart_apart_from_the_insides_of_layers(level: str) -> None:
    target, golden = SMALL / f"mindspore_{level}", SMALL / f"torch_{level}"
    kinds = [{".".join(name.split(".")[:2]) for name in side} for side in residue(target, golden)]
    assert kinds == [INSIDE_OF_LAYERS, FUNCTIONS_OF_LAYERS]
    assert residue(golden, target) == residue(target, golden)[::-1]
    pairs = met(compared(target, golden))
    # The second product of MindSpore is that of the program, the first one that of a layer.
    assert pairs["Functional.matmul.0.forward"] == "Torch.matmul.0.forward"
    assert pairs["Primitive.dense.Dense.0.backward"] == "Functional.linear.0.backward"


def _kind(record: str) -> str:
    """A record without its direction and number."""
    return record.rsplit(".", 2)[0]


def test_a_transformer_of_other_names_is_aligned() -> None:
    target, golden = TRANSFORMER / "mindspore_mix", TRANSFORMER / "torch_mix"
    mine, theirs = residue(target, golden)
    # Of PyTorch every layer has its counterpart; its functions of layers are primitives in MindSpore.
    assert {_kind(name) for name in theirs} == {"Functional.linear", "Functional.embedding"}
    # Levels and a layer that only the program in MindSpore has; PyTorch's calls a function in the place of this.
    layers = ("Classifier", "encoder.Encoder", *(f"encoder.blocks.{n}.ffn.activation.GELU" for n in (0, 1)))
    assert {_kind(name) for name in mine if is_module(name)} == {f"Cell.network.{layer}" for layer in layers}
    pairs = met(compared(target, golden))
    assert pairs["Functional.gelu.1.backward"] == "Functional.gelu.1.backward"
    assert pairs["Cell.network.encoder.blocks.1.attention.dense3.Dense.parameters_grad.0"] == (
        "Module.layers.1.self_attn.v_proj.Linear.parameters_grad.0"
    )


def test_equal_weights_give_equal_numbers_in_both_frameworks() -> None:
    result = compared(TRANSFORMER / "mindspore_mix", TRANSFORMER / "torch_mix")
    pairs = [(row.target, row.golden) for row in result.rows if row.target and row.golden and row.target.is_tensor]
    assert len(pairs) > 300
    for mine, theirs in pairs:
        # PyTorch computes this loss in two steps, and the dump shows the gradient of the last of them.
        if mine.name != "Functional.cross_entropy.0.backward.output.0":
            for statistic in ("max", "min", "mean", "norm"):
                expected = pytest.approx(getattr(theirs, statistic), rel=1e-4, abs=1e-5)
                assert getattr(mine, statistic) == expected, (mine.name, statistic)
