"""Settings of modules that differ: causes where values part, and undecided where rounding would hide their effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import X, call, tensor, write

from probe.common.dump.reading.dump import read
from probe.common.environment import files
from probe.common.environment.modules import Buffer, ModuleSettings, folded
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

LAYERS = 6
FLOAT, BFLOAT = "torch.float32", "torch.bfloat16"
TABLE = Buffer(FLOAT, (8,), (1.0, 0.001, 0.25, 1.5))


def module(kind: str = "models.Norm", *hooks: str, training: bool = False, **values: Any) -> ModuleSettings:
    return ModuleSettings(kind, kind.startswith("torch.nn."), training, values, hooks)


def with_table(table: Buffer, training: bool = False) -> ModuleSettings:
    return module(training=training)._replace(buffers={"table": table})


def layers(dtype: str = FLOAT, eps: float = 1e-5, at: int = 3, name: str = "Norm") -> dict[str, Any]:
    """Records of norms, one after the other; one of them has another epsilon."""
    data: dict[str, Any] = {}
    x = X.astype(np.float64)
    for number in range(LAYERS):
        used = eps if number == at else 1e-5
        y = (x + number) / np.sqrt(np.square(x + number).mean(-1, keepdims=True) + used)
        if dtype == BFLOAT:
            y = rounded(y)
        data[f"Module.h.{number}.{name}.forward.0"] = call([tensor(x, dtype)], tensor(y, dtype))
        x = y
    return data


def rounded(values: Any) -> Any:
    """Values with the 8 bits of bfloat16."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 256) / 256, exponent)


def compared(
    folder: Path, sides: tuple[dict[str, Any], dict[str, Any]], settings: tuple[ModuleSettings, ModuleSettings],
    at: int = 3, names: tuple[str, str] = ("Norm", "Norm"), tree: dict[str, str | None] | None = None,
) -> ComparisonResult:  # fmt: skip
    """Two runs whose environments differ in the settings of one module."""
    dumps = []
    for side, (data, own, name) in enumerate(zip(sides, settings, names)):
        path = folder / str(side)
        write(path / "step0" / "rank0", data, tree)
        files.write(str(path), "rank0", {"modules": [folded(0, {f"Module.h.{at}.{name}": own})]})
        dumps.append(read(path / "step0" / "rank0"))
    return compare_dumps(*dumps)


def test_a_setting_is_the_cause_where_its_module_parts(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(eps=0.05), layers()), (module(eps=0.05), module(eps=1e-5)))
    assert result.divergence is not None
    first = result.divergence.first
    assert (first.record, first.cause) == ("Module.h.3.Norm.forward.0", "eps is 0.05 and in the golden run 1e-05")


def test_a_setting_of_a_module_before_is_said_to_differ_as_well(tmp_path: Path) -> None:
    target = layers()
    for number in (4, 5):
        record = target[f"Module.h.{number}.Norm.forward.0"]
        record["output"] = [tensor(X * 2)]
    result = compared(tmp_path, (target, layers()), (module(eps=0.05), module(eps=1e-5)))
    assert result.divergence is not None
    expected = "a setting differs as well: in Module.h.3.Norm.forward.0, eps is 0.05 and in the golden run 1e-05"
    assert result.divergence.first.cause == expected


def test_one_precision_shows_that_it_has_no_effect(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(), layers()), (module(eps=1e-6), module(eps=1e-5)))
    assert result.divergence is None and result.undecided == []
    assert [each.reason for each in result.without_effect] == ["eps is 1e-06 and in the golden run 1e-05"]
    assert result.without_effect[0].shows_from == pytest.approx(2.0**-24)
    assert result.without_effect[0].values == ("1e-06", "1e-05")


BFLOAT_TABLE = Buffer(BFLOAT, (8,), (1.0, 0.001, 0.2505, 1.503))


@pytest.mark.parametrize(
    "target, golden, said",
    [
        (module(eps=1e-6), module(eps=1e-5), "eps is 1e-06 and in the golden run 1e-05"),
        (module(scale=0.25), module(scale=0.5), "scale is 0.25 and in the golden run 0.5"),
        (module(window=8), module(window=16), "window is 8 and in the golden run 16"),
        (module("torch.nn.m.GELU", approximate="tanh"), module("torch.nn.m.GELU", approximate="none"),
         "approximate is tanh and in the golden run none"),
        (module("models.Norm", "forward hook f"), module(), "the forward hook f is there in the target only"),
        (with_table(TABLE._replace(statistics=(1.0, 0.001, 0.26, 1.55))), with_table(TABLE),
         "buffer table differs by 3.2e-02 of its size"),
        (module(dropout=0.1, training=True), module(dropout=0.2, training=True),
         "dropout is 0.1 and in the golden run 0.2"),
        # What decides nothing, or is another thing.
        (module(layer_idx=1), module(layer_idx=2), None),
        (module(training=True, gradient_checkpointing=True), module(training=True, gradient_checkpointing=False), None),
        (module(implementation="sdpa"), module(implementation="eager"), None),
        (module(use_fused=True), module(use_fused=False), None),
        (module(dropout=0.1), module(dropout=0.2), None),
        (module(max_seq_len_cached=64), module(max_seq_len_cached=128), None),
        (module(init_std=0.1), module(init_std=0.2), None),
        (module(scale=0.25), module(scaling=0.5), None),
        (module(scale=None), module(scale=0.5), None),
        (module(eps=0.1), module(eps=float(np.float32(0.1))), None),
        (with_table(BFLOAT_TABLE), with_table(TABLE), None),
        (with_table(TABLE._replace(is_state=True, statistics=(2.0, 0.0, 1.0, 4.0)), training=True),
         with_table(TABLE, training=True), None),
    ],
)  # fmt: skip
def test_two_precisions_cannot_tell_the_effect_of_what_computes(
    tmp_path: Path, target: ModuleSettings, golden: ModuleSettings, said: str | None
) -> None:
    result = compared(tmp_path, (layers(BFLOAT), layers()), (target, golden))
    assert result.divergence is None
    assert [each.reason for each in result.undecided] == ([] if said is None else [said])


OTHER_TABLE = with_table(TABLE._replace(statistics=(1.0, 0.001, 0.26, 1.55)))


@pytest.mark.parametrize("setting", [OTHER_TABLE, module("models.Norm", "forward hook f")])
def test_another_difference_inside_of_the_module_hides_no_setting(tmp_path: Path, setting: ModuleSettings) -> None:
    sides = layers(BFLOAT), layers()
    for is_target, data in zip((True, False), sides):
        given = [tensor(X), tensor(X)] if is_target else [tensor(X)]
        returned = {**tensor(X), "requires_grad": is_target}
        data["Functional.relu.0.forward"] = call(given, returned)
    tree: dict[str, str | None] = {"Functional.relu.0.forward": "Module.h.3.Norm.forward.0"}
    result = compared(tmp_path, sides, (setting, with_table(TABLE)), tree=tree)
    assert result.divergence is None
    assert {"takes a gradient", "is there"} <= {
        words for words in ("takes a gradient", "is there") for each in result.without_effect if words in each.reason
    }
    said = [each.reason for each in result.undecided if each.record == "Module.h.3.Norm.forward.0"]
    assert len(said) == 1 and ("buffer table" in said[0] or "forward hook f" in said[0])


def test_the_one_epsilon_of_two_classes_is_compared_under_any_name(tmp_path: Path) -> None:
    mine, theirs = (
        module("a.RMS", variance_epsilon=1e-6, gain=2.0, mode="a", size=2),
        module("b.Norm", eps=1e-5, gain=1.0, mode="b", size=3),
    )
    sides = layers(BFLOAT, name="RMS"), layers()
    result = compared(tmp_path, sides, (mine, theirs), names=("RMS", "Norm"))
    assert result.divergence is None
    assert "variance_epsilon is 1e-06 and in the golden run 1e-05 (eps)" in [each.reason for each in result.undecided]
    # A number of one name means one thing, a text or a whole number may mean two.
    gains = [each.reason for each in result.undecided if "gain" in each.reason]
    assert gains == ["gain is 2.0 and in the golden run 1.0"]
    assert not any("mode" in each.reason or "size" in each.reason for each in result.undecided)


def test_without_an_environment_nothing_is_said(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(BFLOAT), layers()), (module(eps=1e-6), module(eps=1e-5)))
    assert result.undecided
    (tmp_path / "1" / "environment_rank0.json").unlink()
    again = compare_dumps(*(read(tmp_path / side / "step0" / "rank0") for side in "01"))
    assert (again.divergence, again.undecided) == (None, [])


def test_at_level_l1_a_setting_is_no_cause_but_differs_as_well(tmp_path: Path) -> None:
    """Nothing tells which module makes a call."""
    sides = []
    for value in (2 * X, X):
        sides.append({"Torch.tanh.0.forward": call([tensor(X)], tensor(np.tanh(value)))})
    settings = module("models.Net", scale=2.0)._replace(is_model=True), module("models.Net", scale=1.0)
    found = compared(tmp_path, (sides[0], sides[1]), (settings[0], settings[1]._replace(is_model=True)))
    assert found.divergence is not None
    assert found.divergence.first.cause.startswith("a setting differs as well: ")
    assert "scale is 2.0 and in the golden run 1.0" in found.divergence.first.cause
