"""Settings of two programs by their meaning: other names, other modules, other forms of one number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.common.environment.modules import Buffer, ModuleSettings
from probe.compare.divergence.causes.setting_meanings import MeantSettings, is_one_value, rotary_base

ATTENTIONS = ("Module.blocks.1.attn.Fused", "Module.layers.1.self_attn.Attention")
MODELS = ("Module.Engine", "Module.Model")


def module(**values: Any) -> ModuleSettings:
    return ModuleSettings("models.Module", values=values)


def frequencies(base: float, number: int = 8, dtype: str = "torch.float32", factor: float = 1.0) -> Buffer:
    powers = base ** (-np.arange(number) / number)
    powers[number // 2 :] *= factor
    if dtype == "torch.bfloat16":
        fraction, exponent = np.frexp(powers)
        powers = np.ldexp(np.round(fraction * 256) / 256, exponent)
    norm = float(np.sqrt(np.square(powers).sum()))
    return Buffer(dtype, (number,), (float(powers.max()), float(powers.min()), float(powers.mean()), norm))


def said(target: dict[str, ModuleSettings], golden: dict[str, ModuleSettings], *pairs: tuple[str, str]) -> list[str]:
    found = MeantSettings(pairs or [ATTENTIONS], (target, golden), set()).found()
    return [each.sentence.text for each in found]


def of_attentions(mine: ModuleSettings, theirs: ModuleSettings) -> list[str]:
    return said({ATTENTIONS[0]: mine}, {ATTENTIONS[1]: theirs})


def test_a_scale_of_another_name_is_compared() -> None:
    assert of_attentions(module(scale=0.25), module(scaling=0.25)) == []
    expected = ["scale is 0.275 and in the golden run 0.25 (scaling)"]
    assert of_attentions(module(scale=0.275), module(scaling=0.25)) == expected


@pytest.mark.parametrize("theirs", ({"norm_factor": 4.0}, {"query_pre_attn_scalar": 16}, {"inv_norm_factor": 0.25}))
def test_one_number_is_written_in_several_forms(theirs: dict[str, Any]) -> None:
    assert of_attentions(module(softmax_scale=0.25), module(**theirs)) == []
    assert len(of_attentions(module(softmax_scale=0.2), module(**theirs))) == 1


def test_numbers_of_heads_are_compared() -> None:
    assert of_attentions(module(num_heads=4), module(n_head=2)) == ["num_heads is 4 and in the golden run 2 (n_head)"]


def test_what_one_side_alone_has_is_no_difference() -> None:
    assert of_attentions(module(scale=0.275, eps=1e-3), module(dropout=0.1)) == []
    # A program with three norms where the other one has two, and the third in its code.
    assert said({"Module.blocks.1.attn.a.N": module(eps=1e-6), "Module.blocks.1.attn.b.N": module(eps=1e-3)},
                {"Module.layers.1.self_attn.a.N": module(eps=1e-6)}) == []  # fmt: skip


def test_a_number_belongs_to_the_module_with_a_counterpart_around_it() -> None:
    target = {"Module.blocks.1.attn.core.Core": module(softmax_scale=0.5), ATTENTIONS[0]: module()}
    golden = {ATTENTIONS[1]: module(scaling=0.25)}
    assert said(target, golden) == ["core.softmax_scale is 0.5 and in the golden run 0.25 (scaling)"]
    inside = {"Module.blocks.1.attn.a.N": module(eps=1e-6), "Module.blocks.1.attn.b.N": module(eps=1e-3)}
    others = {"Module.layers.1.self_attn.b.N": module(eps=1e-6), "Module.layers.1.self_attn.a.N": module(epsilon=1e-6)}
    assert said(inside, others) == ["b.eps is 0.001 and in the golden run 1e-06 (a.epsilon)"]


def test_a_scale_of_what_is_no_attention_is_another_thing() -> None:
    pair = ("Module.blocks.1.norm.Norm", "Module.layers.1.norm.RMS")
    assert said({pair[0]: module(scale=8.0)}, {pair[1]: module(scaling=0.25)}, pair) == []


@pytest.mark.parametrize("dtype", ("torch.float32", "torch.bfloat16"))
def test_the_base_of_a_rotation_is_read_from_frequencies(dtype: str) -> None:
    for base in (500.0, 1e4, 1e6):
        found = rotary_base(frequencies(base, dtype=dtype))
        assert found is not None and found[0] == pytest.approx(base, rel=found[1])
    assert rotary_base(frequencies(1e4, factor=0.125)) is None  # Scaled, as for longer contexts.


def test_a_base_that_each_layer_has_is_compared_with_one_of_the_model() -> None:
    rotary = "Module.model.rotary_emb.Rotary"
    layers = {f"Module.blocks.{number}.attn.Fused": module(rotary_base=1e4) for number in range(3)}
    golden = {rotary: module()._replace(buffers={"inv_freq": frequencies(1e4, dtype="torch.bfloat16")})}
    assert said(layers, golden, MODELS) == []
    layers["Module.blocks.1.attn.Fused"] = module(rotary_base=500.0)
    golden[rotary] = module()._replace(buffers={"inv_freq": frequencies(1e4)})
    expected = "blocks.1.attn.rotary_base is 500.0 and in the golden run 10000.0 (model.rotary_emb.base of inv_freq)"
    assert said(layers, golden, MODELS) == [expected]


def test_frequencies_of_a_damaged_file_have_no_base() -> None:
    assert rotary_base(Buffer("torch.float32", (32,), (1.0, 1 - 2**-53, 1.0, 5.7), False)) is None
    found = rotary_base(Buffer("torch.float64", (2,), (1.0, 5e-324, 0.5, 1.0), False))
    assert found is None or np.isfinite(found).all()


@pytest.mark.parametrize(("one", "other", "is_same"), [
    (1 - 0.99, 0.01, True), (0.01, 0.0101, False), (0, 0.0, True), (1_000_000, 1_000_001, False), (1, True, False),
    ([0, 0], "valid", True), (0, "valid", True), ([1, 1], "valid", False), ("same", "valid", False),
    ("valid", "valid", True), ("gelu", "relu", False),
])  # fmt: skip
def test_two_plain_values_may_mean_the_same(one: object, other: object, is_same: bool) -> None:
    """A padding that PyTorch calls ``valid`` is one of zeros."""
    assert is_one_value(one, other) is is_one_value(other, one) is is_same


@pytest.mark.parametrize(("scale", "is_told"), [(4.0, False), (0.25, False), (8.0, True)])
def test_a_scale_of_attention_may_be_a_divisor(scale: float, is_told: bool) -> None:
    """Scores are divided by the one of TransformerLens and multiplied by that of others."""
    assert bool(of_attentions(module(attn_scale=scale), module(scaling=0.25))) is is_told
