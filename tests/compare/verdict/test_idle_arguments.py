"""Arguments that one release says and another one does not: defaults, other names, flags that modules hand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import X, call, result_of, tensor
from made_dumps import plain

from probe.common.operations.signatures import argument_name, is_default
from probe.compare.result import ComparisonResult

BFLOAT, FLOAT = "torch.bfloat16", "torch.float32"
SDPA = "Functional.scaled_dot_product_attention.0.forward"
MODULE = "Module.attn.Attention.forward.0"


def compared(
    folder: Path, name: str, mine: dict[str, Any], theirs: dict[str, Any], inside: bool = False
) -> ComparisonResult:
    """One call in bfloat16 and in float32, with other keyword arguments."""
    random = np.random.default_rng(1)
    x = X * np.float32(1.004) + (4e-3 * random.normal(size=X.shape)).astype(np.float32)
    runs: list[dict[str, Any]] = []
    for value, dtype, kwargs in ((x, BFLOAT, mine), (X, FLOAT, theirs)):
        record = {**call([tensor(value, dtype)], tensor(value, dtype)), "input_kwargs": kwargs}
        inner = {"Functional.relu.0.forward": call([tensor(value, dtype)], tensor(value, dtype))} if inside else {}
        runs.append({**inner, name: record})
    tree: dict[str, str | None] = {"Functional.relu.0.forward": name} if inside else {}
    found = result_of(folder, *runs, tree, level="mix" if inside else "L0")
    assert found.divergence is None
    return found


def undecided(*arguments: Any, **more: Any) -> list[str]:
    return [each.reason for each in compared(*arguments, **more).undecided if " is " in each.reason]


def looked_for(*arguments: Any, **more: Any) -> list[str]:
    """The differences of which an effect was looked for, and is not there."""
    found = compared(*arguments, **more)
    assert found.undecided == []
    return [each.reason for each in found.without_effect if each.shows_from is not None]


def test_a_default_that_one_side_says_is_no_difference(tmp_path: Path) -> None:
    scale = 64**-0.5  # Of the width of what is given.
    assert undecided(tmp_path, SDPA, {"scale": plain(scale), "is_causal": plain(False)}, {}) == []
    assert undecided(tmp_path, SDPA, {"scale": plain(0.2)}, {}) == ["scale is 0.2 in the target only"]


def test_the_kind_of_an_activation_is_a_difference_unless_it_is_the_default(tmp_path: Path) -> None:
    gelu = "Functional.gelu.0.forward"
    assert undecided(tmp_path, gelu, {"approximate": plain("none")}, {}) == []
    assert undecided(tmp_path, gelu, {"approximate": plain("tanh")}, {}) == ["approximate is tanh in the target only"]


def test_equal_values_of_two_arguments_of_a_function_excuse_none(tmp_path: Path) -> None:
    found = undecided(tmp_path, SDPA, {"is_causal": plain(True)}, {"enable_gqa": plain(True)})
    assert sorted(found) == ["enable_gqa is True in the golden run only", "is_causal is True in the target only"]


def test_a_flag_of_a_module_decides_nothing_where_its_calls_are_recorded(tmp_path: Path) -> None:
    both = {"use_cache": plain(True)}, {"use_cache": plain(False)}
    assert looked_for(tmp_path, MODULE, *both, inside=True) == []


def test_a_number_of_degree_stays_undecided(tmp_path: Path) -> None:
    assert len(undecided(tmp_path, MODULE, {"factor": plain(1.5)}, {"factor": plain(1.0)})) == 1


def test_a_number_that_was_written_is_not_excused_by_rounding(tmp_path: Path) -> None:
    product = "Tensor.__mul__.0.forward"
    said = undecided(tmp_path, product, {"other": plain(0.064)}, {"other": plain(0.0625)})
    assert said == ["other is 0.064 and in the golden run 0.0625"]
    # What the program computed, such as the norm of gradients, differs as values do.
    assert undecided(tmp_path, product, {"other": plain(0.0626512345678)}, {"other": plain(0.0625123456789)}) == []


def test_dimensions_are_counted_from_either_end(tmp_path: Path) -> None:
    softmax = "Functional.softmax.0.forward"
    assert undecided(tmp_path, softmax, {"dim": plain(-1)}, {"dim": plain(1)}) == []
    assert undecided(tmp_path, softmax, {"dim": plain(-1)}, {"dim": plain(0)}) == ["dim is -1 and in the golden run 0"]


@pytest.mark.parametrize(
    ("record", "item", "value", "width", "expected"),
    (
        ("Functional.layer_norm.0.forward", "input.4", 1e-5, 64, True),
        ("Functional.layer_norm.0.forward", "input.eps", 1e-6, 64, False),
        ("Functional.dropout.0.forward", "input.p", 0.5, None, True),
        ("Functional.dropout.0.forward", "input.training", True, None, True),
        ("Functional.dropout.0.forward", "input.training", False, None, False),
        (SDPA, "input.scale", 0.25, 16, True),
        (SDPA, "input.scale", 0.25, None, False),
        ("Torch.addmm.0.forward", "input.beta", 1, None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "mean", None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "sum", None, False),
        ("Functional.unheard_of.0.forward", "input.1", 0.0, None, False),
    ),
)
def test_defaults_are_those_of_the_signatures(
    record: str, item: str, value: Any, width: int | None, expected: bool
) -> None:
    assert is_default(record, item, value, width) is expected


def test_names_of_arguments_have_no_defaults_in_them() -> None:
    assert argument_name("Functional.layer_norm.0.forward", "input.4") == "eps"
    assert argument_name("Torch.addmm.0.forward", "input.4") == "input.4"  # Arguments without a position follow.
