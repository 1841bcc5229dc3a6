"""The verdict on each parameter, and the sentences on layers, of checkpoints with one fault each."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_checkpoints import Weights, bfloat16_bits, llama, write_safetensors

import probe
from probe.api import cli
from probe.checkpoint.output import lines
from probe.checkpoint.report import Parameter, Report
from probe.common.numerics import values

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def weights() -> Weights:
    return llama()


def compared(folder: Path, one: Weights, other: Weights, **options: Any) -> Report:
    left, right = (write_safetensors(folder / f"{name}.safetensors", each) for name, each in (("a", one), ("b", other)))
    return probe.ckpt_compare(left, right, **options)


def bad(report: Report) -> list[Parameter]:
    return [each for each in report.parameters if not each.is_fine]


def test_a_checkpoint_is_identical_to_itself(tmp_path: Path, weights: Weights) -> None:
    report = compared(tmp_path, weights, weights)
    assert report.answer == "identical" and not report.found
    assert all(each.numbers["cos"] == 1.0 and each.numbers["l2"] == 0 and not each.how for each in report.parameters)
    assert report.layers == ["layers 0-2 identical", "outside of layers: all 3 parameters identical"]


def test_numbers_are_those_of_numpy_in_float64(tmp_path: Path, weights: Weights) -> None:
    other = {**weights, UP: weights[UP] + np.float32(0.01)}
    (row,) = bad(compared(tmp_path, weights, other))
    a, b = weights[UP].astype(np.float64), other[UP].astype(np.float64)
    assert row.verdict == "different"
    assert row.numbers["max_abs"] == np.abs(a - b).max()
    assert math.isclose(row.numbers["l2"], np.linalg.norm(a - b), rel_tol=1e-12)
    assert math.isclose(row.numbers["cos"], (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b), rel_tol=1e-12)
    units = np.abs(a - b) / np.spacing(np.maximum(np.abs(weights[UP]), np.abs(other[UP])))
    assert math.isclose(row.numbers["ulp_max"], units.max(), rel_tol=1e-12)


@pytest.mark.parametrize(("bit", "verdict"), [(0, "close"), (20, "different"), (31, "different")])
def test_one_flipped_bit_is_named(tmp_path: Path, weights: Weights, bit: int, verdict: str) -> None:
    changed = weights[UP].copy()
    changed.view(np.uint32)[3, 4] ^= np.uint32(1 << bit)
    report = compared(tmp_path, weights, {**weights, UP: changed})
    (row,) = bad(report)
    assert (row.name, row.verdict, report.answer) == (UP, verdict, "different")
    assert f"first difference {UP[: -len('.weight')]}" in report.layers[0]


@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_rounding_to_bfloat16_is_rounding(tmp_path: Path, weights: Weights, stored: str) -> None:
    bits = {name: bfloat16_bits(each) for name, each in weights.items()}
    widened = {name: (each.astype(np.uint32) << 16).view(np.float32) for name, each in bits.items()}
    report = compared(tmp_path, weights, bits if stored == "bfloat16" else widened)
    assert report.answer == "rounding" and not report.found
    row = next(each for each in report.parameters if each.name == UP)
    assert (row.verdict, row.how) == ("rounding", "rounded to bfloat16")
    # Storage alone is no rounding of the values.
    row = next(each for each in compared(tmp_path, bits, widened).parameters if each.name == UP)
    assert (row.verdict, row.how) == ("rounding", "float32 storage of bfloat16 values")


def test_exchanged_layers_are_recognised(tmp_path: Path, weights: Weights) -> None:
    other = {
        name.replace(".layers.0.", ".layers.X.").replace(".layers.2.", ".layers.0."): each
        for name, each in weights.items()
    }
    other = {name.replace(".layers.X.", ".layers.2."): each for name, each in other.items()}
    report = compared(tmp_path, weights, other)
    assert "layers 0 and 2 are exchanged" in report.layers
    assert {each.how for each in bad(report) if ".layers.0." in each.name} == {"layer 2 of the other side"}


def test_a_parameter_that_is_transposed_alone_differs(tmp_path: Path, weights: Weights) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    (row,) = bad(compared(tmp_path, weights, {**weights, name: weights[name].T.copy()}))
    assert row.name == name and "transposed" in row.how


def turned(weights: Weights) -> Weights:
    """All linear layers transposed."""
    return {name: each.T.copy() if ".layers." in name and each.ndim == 2 else each for name, each in weights.items()}


def test_linear_layers_that_are_all_transposed_need_a_reason(tmp_path: Path, weights: Weights) -> None:
    report = compared(tmp_path, weights, renamed(turned(weights)))
    assert report.answer == "identical"
    assert all("transposed" in each.how for each in report.parameters if ".mlp." in each.name)
    np.savez(tmp_path / "b.npz", **turned(weights))
    assert probe.ckpt_compare(tmp_path / "a.safetensors", tmp_path / "b.npz").answer == "identical"
    report = compared(tmp_path, weights, turned(weights))
    assert report.answer == "different" and "nothing says that the two have different layouts" in bad(report)[0].how


def permuted(weights: Weights, names: str) -> Weights:
    """Some parameters with the two rows that are rotated beside each other."""

    def pairs(each: Any) -> Any:
        return np.ascontiguousarray(each.reshape(-1, 2, 4, each.shape[1]).swapaxes(1, 2).reshape(each.shape))

    return {name: pairs(each) if re.search(names, name) else each for name, each in weights.items()}


@pytest.mark.parametrize("names", [r"[qk]_proj", "q_proj", r"layers\.1\..*[qk]_proj"])
def test_rotary_rows_in_another_order_are_different_under_one_family(
    names: str, tmp_path: Path, weights: Weights
) -> None:
    report = compared(tmp_path, permuted(weights, names), weights)
    assert {each.name for each in bad(report)} == {name for name in weights if re.search(names, name)}
    assert all("rotary pairs of heads of 8 as halves" in each.how for each in bad(report))


def metas(weights: Weights) -> Weights:
    """The parameters under Meta's names."""
    words = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
             "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
             "mlp.down_proj": "feed_forward.w2", "model.": ""}  # fmt: skip
    found = {}
    for name, each in weights.items():
        for old, new in words.items():
            name = name.replace(old, new)
        found[name] = each
    return found


def test_rotary_rows_in_one_order_are_different_where_the_declared_ones_differ(
    tmp_path: Path, weights: Weights
) -> None:
    rotated = r"[qk]_proj|w[qk]\."
    halves = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1}
    pairs = {"dim": 16, "n_heads": 2, "n_kv_heads": 1}

    def stored(name: str, held: Weights, config: dict[str, Any]) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        write_safetensors(tmp_path / name / "model.safetensors", held)
        (tmp_path / name / ("params.json" if "dim" in config else "config.json")).write_text(json.dumps(config))
        return tmp_path / name

    golden = stored("golden", weights, halves)
    good, plain = metas(permuted(weights, r"[qk]_proj")), metas(weights)
    assert probe.ckpt_compare(stored("good", good, pairs), golden).answer == "identical"
    for number, wrong in enumerate(
        (rotated, r"wq\.", r"layers\.1\.attention\.w[qk]", r"layers\.[12]\.attention\.w[qk]")
    ):
        held = {name: plain[name] if re.search(wrong, name) else each for name, each in good.items()}
        report = probe.ckpt_compare(stored(f"wrong{number}", held, pairs), golden)
        assert {each.name for each in bad(report)} == {name for name in plain if re.search(wrong, name)}
        assert all("the permutation was left out" in each.how for each in bad(report))
    report = probe.ckpt_compare(golden, stored("plain", plain, pairs))
    assert all(re.search(rotated, each.name) and "declare rotary halves" in each.how for each in bad(report))
    assert len(bad(report)) == 6
    # Rotated in halves whatever the names, or nobody says how.
    for number, config in enumerate(
        ({**pairs, "rope_interleaved": False}, {"dim": 16}, {"model_type": "glm", **pairs})
    ):
        assert probe.ckpt_compare(stored(f"unsure{number}", plain, config), golden).answer == "identical"


def test_rotary_rows_in_another_order_are_fine_where_something_says_so(tmp_path: Path, weights: Weights) -> None:
    meta = metas(permuted(weights, r"[qk]_proj"))
    assert compared(tmp_path, meta, weights).answer == "identical"
    # One layer alone is not.
    name = "layers.1.attention.wk.weight"
    plain = {**meta, name: weights["model.layers.1.self_attn.k_proj.weight"]}
    assert [each.name for each in bad(compared(tmp_path, plain, weights))] == [name]


def test_a_parameter_that_holds_another_one_says_which(tmp_path: Path, weights: Weights) -> None:
    layer = "model.layers.1."
    norm = np.linspace(0.5, 2, 16, dtype=np.float32)
    golden = {**weights, f"{layer}post_attention_layernorm.weight": norm}
    for name, holds, words in (
        (f"{layer}mlp.gate_proj.weight", UP, "holds the golden `up_proj` of the same layer"),
        (f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight",
         "holds the golden `post_attention_layernorm` of the same layer"),
        ("lm_head.weight", "model.embed_tokens.weight", "holds the golden `embed_tokens`"),
        (UP, UP.replace("1", "2"), "layer 2 of the other side"),
    ):  # fmt: skip
        (row,) = bad(compared(tmp_path, {**golden, name: golden[holds]}, golden))
        assert row.name == name and words in row.how


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda each: np.roll(each, 3, 0), "rows are rolled by 3"),
        (lambda each: np.roll(each, len(each) // 2, 0), "halves are swapped"),
        (lambda each: np.roll(each, 1, 1), "columns are rolled by 1"),
        (lambda each: each[[1, 0, *range(2, len(each))]], "rows 0 and 1 are exchanged"),
        (lambda each: each * np.float32(0.5), "0.5 times the golden"),
        (lambda each: np.zeros_like(each), "all values are zero"),
    ],
)
def test_a_change_of_a_whole_parameter_is_said(change: Any, words: str, tmp_path: Path, weights: Weights) -> None:
    (row,) = bad(compared(tmp_path, {**weights, UP: change(weights[UP])}, weights))
    assert row.name == UP and words in row.how


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_factor_is_told_of_all_numbers_and_of_no_part_of_them(
    is_compiled: bool, dtype: Any, tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(values, "_compiled", None)
    # Several blocks, of which the first is zero. Sums of them in float32 have fewer digits than the numbers.
    drawn = np.random.default_rng(3).uniform(0.5, 2, (700, 500)).astype(dtype)
    drawn[:100] = 0
    other = (drawn / dtype(3.7)).astype(dtype)
    (row,) = bad(compared(tmp_path, {**weights, UP: other}, {**weights, UP: drawn}))
    assert row.verdict == "different" and row.how.endswith(" times the golden")
    assert float(row.how.split()[0]) == pytest.approx(1 / 3.7, rel=5e-4 if dtype is np.float16 else 2e-5)
    for at in ((0, 0), (699, 499)):
        apart = other.copy()
        apart[at] += dtype(0.01)
        (row,) = bad(compared(tmp_path, {**weights, UP: apart}, {**weights, UP: drawn}))
        assert row.verdict == "different" and row.how == ""


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_of_both_sides_is_no_cause_and_one_of_one_side_is(value: float, tmp_path: Path, weights: Weights) -> None:
    golden, other, alone = weights[UP].copy(), weights[UP].copy(), weights[UP].copy()
    golden[0, 0] = other[0, 0] = alone[0, 1] = value
    other[2, 2] += 1
    (row,) = bad(compared(tmp_path, {**weights, UP: other}, {**weights, UP: golden}))
    assert row.how == "1 of 28 rows differs, first row 2"
    (row,) = bad(compared(tmp_path, {**weights, UP: golden * 2}, {**weights, UP: golden}))
    assert row.how == "2 times the golden"
    for held, words in ((alone, "1 of 448 values is NaN or infinite (golden: 1)"),
                        (weights[UP], "0 of 448 values are NaN or infinite (golden: 1)")):  # fmt: skip
        (row,) = bad(compared(tmp_path, {**weights, UP: held}, {**weights, UP: golden}))
        assert words in row.how


@pytest.mark.parametrize(("at", "count"), [(1, 1), (10, 1), (23, 1), (7, 3)])
def test_rows_that_were_inserted_or_left_out_are_told(at: int, count: int, tmp_path: Path, weights: Weights) -> None:
    name = "model.embed_tokens.weight"
    golden = weights[name]
    more = np.concatenate([golden[:at], np.full((count, 16), 0.5, np.float32), golden[at:]])
    where = f"row {at} of" if count == 1 else f"rows {at} to {at + count - 1} of"
    for one, other, words in ((more, golden, ("more", "this side")), (golden, more, ("fewer", "the golden side"))):
        (row,) = bad(compared(tmp_path, {**weights, name: one}, {**weights, name: other}))
        noun = "row" if count == 1 else "rows"
        assert row.how.startswith(f"has {count} {noun} {words[0]}: {where} {words[1]}; the first ")
        assert ("row is" if at == 1 else f"{at} rows are") in row.how
        assert f" identical, and the rest, shifted by {count}, is identical" in row.how
    short = np.concatenate([more[: at + count], -more[at + count :]])
    (row,) = bad(compared(tmp_path, {**weights, name: short}, weights))
    assert row.verdict == "shape" and "those behind them are not the golden ones" in row.how


def test_the_state_of_a_training_is_no_parameter(tmp_path: Path, weights: Weights) -> None:
    state = {"global_step": np.array(7), "iteration": np.array([3]), "optimizer.exp_avg": np.ones(3, np.float32),
             "rng_state": np.arange(4)}  # fmt: skip
    np.savez(tmp_path / "a.npz", **weights, **state)
    np.savez(tmp_path / "b.npz", **weights, global_step=np.array(8))
    report = probe.ckpt_compare(tmp_path / "a.npz", tmp_path / "b.npz")
    assert report.answer == "identical" and [each.name for each in report.settings][:1] == ["global_step"]


def test_a_missing_parameter_is_a_difference_on_either_side(tmp_path: Path, weights: Weights) -> None:
    fewer = {name: each for name, each in weights.items() if name != UP}
    for one, other, side in ((weights, fewer, "name"), (fewer, weights, "other_name")):
        (row,) = bad(compared(tmp_path, one, other))
        assert row.verdict == "missing" and getattr(row, side) == UP


@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_a_vocabulary_that_is_filled_up_is_no_difference(tmp_path: Path, weights: Weights, fill: float) -> None:
    name = "model.embed_tokens.weight"
    padded = np.concatenate([weights[name], np.full((8, 16), fill, np.float32)])
    report = compared(tmp_path, weights, {**weights, name: padded})
    row = next(each for each in report.parameters if each.name == name)
    assert report.answer == "identical"
    assert row.how.startswith("padded vocabulary: rows 24 to 31") and row.how.endswith(
        "all zero" if not fill else "not all zero"
    )


def test_a_tied_head_that_one_side_does_not_store_is_no_difference(tmp_path: Path, weights: Weights) -> None:
    tied = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    without = {name: each for name, each in tied.items() if name != "lm_head.weight"}
    report = compared(tmp_path, tied, without)
    row = next(each for each in report.parameters if each.name == "lm_head.weight")
    assert report.answer == "identical" and row.how.startswith("tied to model.embed_tokens.weight")
    (row,) = bad(compared(tmp_path, weights, without))
    assert (row.name, row.verdict) == ("lm_head.weight", "missing")


def fused(weights: Weights, groups: int | None) -> Weights:
    """Query, key and value as one, by groups of heads or one after the other, and gate and up as one."""
    found = {}
    for name, each in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
            if groups:
                split = [np.split(part, groups) for part in parts]
                parts = [piece for group in range(groups) for piece in (side[group] for side in split)]
            found[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif ".gate_proj." in name:
            both = [each, weights[name.replace("gate_proj", "up_proj")]]
            found[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(both)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".up_proj.")):
            found[name] = each
    return found


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("heads", [None, (4, 2)])
def test_fused_and_split_projections_are_the_same(
    tmp_path: Path, weights: Weights, groups: int | None, heads: tuple[int, int] | None
) -> None:
    report = compared(tmp_path, fused(weights, groups), weights, heads=heads)
    assert report.answer == "identical" and len(report.parameters) == len(weights)
    key = next(each for each in report.parameters if each.other_name == "model.layers.0.self_attn.k_proj.weight")
    assert key.how == ("heads interleaved in 2 groups of qkv" if groups else "rows 16 to 23 of qkv")
    assert compared(tmp_path, weights, fused(weights, groups)).answer == "identical"
    # Names of one family have one layout.
    report = compared(tmp_path, fused(weights, None), fused(weights, 2))
    assert report.answer == "different" and "heads interleaved in 2 groups" in bad(report)[0].how


def test_a_difference_inside_of_a_fused_projection_is_named(tmp_path: Path, weights: Weights) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    changed = {**weights, name: weights[name] * np.float32(1.01)}
    (row,) = bad(compared(tmp_path, fused(weights, 2), changed))
    assert (row.other_name, row.verdict) == (name, "different")
    assert math.isclose(row.numbers["max_rel"], 0.01 / 1.01, rel_tol=1e-3)


def experts(seed: int = 5) -> tuple[Weights, Weights]:
    """Four experts, listed and as stacks."""
    random = np.random.default_rng(seed)
    parts = {name: random.standard_normal((4, 6, 8)).astype(np.float32) for name in ("gate", "up", "down")}
    path = "model.layers.0.mlp.experts"
    listed = {
        f"{path}.{number}.{name}_proj.weight": each[number] for name, each in parts.items() for number in range(4)
    }
    stacks = {
        f"{path}.gate_up_proj": np.concatenate([parts["gate"], parts["up"]], 1),
        f"{path}.down_proj": parts["down"],
    }
    return listed, stacks


def test_experts_are_the_same_listed_and_stacked(tmp_path: Path) -> None:
    listed, stacks = experts()
    assert compared(tmp_path, listed, stacks).answer == compared(tmp_path, stacks, listed).answer == "identical"


def test_a_dropped_expert_is_named_listed_and_stacked(tmp_path: Path) -> None:
    listed, stacks = experts()
    fewer = {name: each for name, each in listed.items() if ".experts.2." not in name}
    assert {each.name for each in bad(compared(tmp_path, listed, fewer))} == set(listed) - set(fewer)
    found = bad(compared(tmp_path, stacks, fewer))
    assert found and all(each.verdict == "missing" and "expert 2" in each.how for each in found)


def renamed(weights: Weights) -> Weights:
    """Names that no family has."""
    short = {"self_attn.q_proj": "a1", "self_attn.k_proj": "a2", "self_attn.v_proj": "a3", "self_attn.o_proj": "a4"}
    short.update({"mlp.gate_proj": "m1", "mlp.up_proj": "m2", "mlp.down_proj": "m3"})
    short.update({"input_layernorm": "n1", "post_attention_layernorm": "n2", "model.layers": "part"})
    found = {}
    for name, each in weights.items():
        for old, new in short.items():
            name = name.replace(old, new)
        found[name] = each
    return found


def test_names_that_say_nothing_are_paired_by_values_and_said(tmp_path: Path, weights: Weights) -> None:
    report = compared(tmp_path, weights, renamed(weights))
    assert report.answer == "identical"
    rows = [each for each in report.parameters if each.name != each.other_name]
    assert rows and all(each.how.startswith("paired by") for each in rows)
    assert next(each for each in rows if each.name == UP).other_name == "part.1.m2.weight"


def test_a_file_of_names_pairs(tmp_path: Path, weights: Weights) -> None:
    other = renamed(weights)
    names = dict(zip(weights, other))
    path = tmp_path / "names.yaml"
    path.write_text("".join(f"{one}: {to}\n" for one, to in names.items()))
    report = compared(tmp_path, weights, other, names=str(path))
    assert report.answer == "identical" and {each.how for each in report.parameters} == {"paired by --map"}


@pytest.mark.parametrize("golden", ["complex64", "float32", "complex128"])
def test_complex_numbers_are_compared_with_complex_ones_alone(tmp_path: Path, golden: str) -> None:
    draw = np.random.default_rng(5).normal
    names = [f"layers.{at}.weight" for at in range(3)]
    np.savez(tmp_path / "a.npz", **{name: (draw(size=(4, 4)) + 1j * draw(size=(4, 4))).astype("c8") for name in names})
    np.savez(tmp_path / "b.npz", **{name: draw(size=(4, 4)).astype(golden) for name in names})
    for one, other in (("a", "b"), ("b", "a")):
        assert cli.main(["ckpt_compare", str(tmp_path / f"{one}.npz"), str(tmp_path / f"{other}.npz")]) == 1


def test_pairs_by_values_are_no_other_storage(tmp_path: Path, weights: Weights) -> None:
    other = renamed(weights)
    report = compared(tmp_path, weights, other)
    assert re.search(r"; some were paired by [^;()]*(\([^()]*\))?$", report.why) and "stored" not in report.why
    text = [line for line, _ in lines(report)]
    assert any(re.search(r"paired by values \(confidence 1.00\); the same for \d+ others$", line) for line in text)
    report = compared(tmp_path, weights, renamed(turned(weights)))
    assert re.search(r"; some are stored in another way \(transposed\)$", report.why)


def test_rows_that_one_side_has_more_are_told(tmp_path: Path, weights: Weights) -> None:
    name = "model.embed_tokens.weight"
    more = np.concatenate([weights[name], weights[name][:1] * 3])
    (row,) = bad(compared(tmp_path, {**weights, name: more}, weights))
    assert row.verdict == "shape" and row.how.startswith("has 1 row more; the first 24 rows are identical")


def test_a_number_that_is_rounded_wrongly_is_not_rounding(tmp_path: Path, weights: Weights) -> None:
    bits = {name: bfloat16_bits(each) for name, each in weights.items()}
    bits[UP] = bits[UP] + np.uint16(4)
    (row,) = bad(compared(tmp_path, weights, bits))
    assert (row.name, row.verdict) == (UP, "different")


def test_a_workbook_without_its_package_is_refused_before_the_work(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_safetensors(tmp_path / "a.safetensors", weights))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert cli.main(["ckpt_compare", path, path, "-o", str(tmp_path / "out")]) == 2
    assert "pip install openpyxl" in capsys.readouterr().err and not (tmp_path / "out").exists()
