"""Rules of a comparison of two packs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.configcheck.checks.hyperparameters import check_hyperparameters
from probe.configcheck.checks.packages import check_packages
from probe.configcheck.checks.variables import check_variables
from probe.configcheck.compare import compare_packs, read_side, without
from probe.configcheck.findings import Check, Comparison
from probe.configcheck.output.text import lines, row_text
from probe.configcheck.output.written import page, sheets_of
from probe.configcheck.pack import Pack
from probe.configcheck.sources import Sources, entries
from probe.configcheck.values import are_equal

STATISTICS = {"max": 1.0, "min": 0.0, "mean": 0.5, "norm": 2.0}


def found(golden: dict[str, Any], target: dict[str, Any]) -> dict[str, str]:
    return {row.name: row.level for row in compared({"a.yaml": golden}, {"a.yaml": target}).rows}


def compared(golden: Sources, target: Sources) -> Check:
    return check_hyperparameters(entries(golden), entries(target))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1e-4", 0.0001), ("1e-5", "0.00001"), (True, "true"), ("False", False), (1, 1.0), (8, "8"),
        ([1, 2], "[1, 2.0]"),
        ("torch.bfloat16", "bf16"), ("(0.9, 0.95)", ["0.9", "0.95"]), (None, "None"), ("fp16", "float16"), (True, 1),
    ],
)  # fmt: skip
def test_values_are_compared_by_what_they_mean(one: Any, other: Any) -> None:
    assert are_equal(one, other) and are_equal(other, one)


@pytest.mark.parametrize(("one", "other"), [("1e-4", 1e-5), (True, "false"), ("a", "b"), ([1], [1, 2]), (2, True)])
def test_values_that_differ(one: Any, other: Any) -> None:
    assert not are_equal(one, other) and not are_equal(other, one)


def test_a_flag_is_the_dtype_that_it_asks_for() -> None:
    assert found({"bf16": True}, {"dtype": "bfloat16"}) == {}
    assert found({"bf16": "true"}, {"model.compute_dtype": "torch.bfloat16"}) == {}
    assert found({"bf16": True}, {"fp16": True}) == {"fp16 (golden: bf16, another name of the same setting)": "error"}
    assert found({"bf16": True}, {"dtype": "float16"}) == {
        "dtype (golden: bf16, another name of the same setting)": "error"
    }
    (row,) = compared({"a.yaml": {"bf16": True}}, {"a.yaml": {"fp16": True}}).rows
    assert (row.golden, row.target) == ("bfloat16", "float16")


def test_names_are_matched_by_last_part_and_meaning() -> None:
    assert found({"training.learning_rate": 1, "hidden-size": 8}, {"lr": 1, "model.hidden_size": 8}) == {}
    assert found({"rope.alpha-x": 1}, {"alpha_x": 2}) == {"alpha_x (golden: rope.alpha-x)": "error"}


def test_what_one_side_alone_has_is_a_warning_unless_it_is_off() -> None:
    assert found({"alpha": 1, "use_x": False}, {"log_interval": 3}) == {"alpha": "warning", "log_interval": "info"}


def test_variables_of_two_platforms_are_compared_by_meaning_with_defaults() -> None:
    golden = {"HCCL_DETERMINISTIC": "true", "ASCEND_LAUNCH_BLOCKING": "0", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    target = {"NCCL_DETERMINISTIC": "1", "CUDA_VISIBLE_DEVICES": "2,3", "NCCL_DEBUG": "INFO"}
    rows = check_variables(golden, target).rows
    assert [(row.name, row.level) for row in rows] == [
        ("CUDA_VISIBLE_DEVICES (golden: ASCEND_RT_VISIBLE_DEVICES)", "info"),
        ("NCCL_DEBUG", "info"),
    ]
    (row,) = check_variables(golden, {**golden, "HCCL_DETERMINISTIC": "false"}).rows
    assert (row.golden, row.target, row.level) == ("true", "false", "error") and row.why


def test_packages_have_levels_and_builds_of_one_release_are_info() -> None:
    golden = {"torch": "2.9.0+cu124", "numpy": "1.26", "pytest": "8", "flash_attn": "2.1"}
    target = {"torch": "2.9.0+cpu", "numpy": "2.0", "pytest": "9", "Flash-Attn": "2.1"}
    assert [(row.name, row.level) for row in check_packages(golden, target).rows] == [
        ("numpy", "error"),
        ("pytest", "info"),
        ("torch", "info"),
    ]


def pack(**parts: Any) -> Pack:
    return Pack("a.zip", env={}, **parts)


def level_of(comparison: Comparison, name: str) -> str:
    return next(check.level for check in comparison.checks if check.name == name)


def test_a_missing_weight_is_an_error() -> None:
    one = pack(weights={(0, 0): {"a": STATISTICS, "b": STATISTICS}})
    assert level_of(compare_packs(one, pack(weights={(0, 0): {"a": STATISTICS}})), "weights") == "error"
    assert level_of(compare_packs(pack(weights={(0, 0): {"a": STATISTICS}}), one), "weights") == "error"
    assert level_of(compare_packs(one, one), "weights") == "pass"


def test_permuted_values_are_told_by_checksums_and_shapes_come_first() -> None:
    def of(checksum: str, shape: list[int]) -> Pack:
        mark = {"dtype": "float32", "shape": shape, "checksum": checksum}
        return pack(weights={(0, 0): {"a": STATISTICS}}, checksums={("weights", 0, 0): {"a": mark}})

    rows = compare_packs(of("1", [2, 3]), of("2", [2, 3])).checks[1].rows
    assert [(row.golden, row.target) for row in rows] == [
        ("checksum 1, the same statistics", "checksum 2, the same statistics")
    ]
    rows = compare_packs(of("1", [2, 3]), of("2", [3, 2])).checks[1].rows
    assert [(row.golden, row.target) for row in rows] == [("shape [2, 3]", "shape [3, 2]")]


def test_another_seed_is_an_error() -> None:
    def of(seed: str) -> Pack:
        place = {"count": 1, "stack": ["File a.py, line 3, in main, torch.manual_seed(seed)"]}
        calls = {0: {"torch.manual_seed": [{**place, "arguments": [seed]}]}}
        return pack(random={0: {"torch.manual_seed": [place]}}, random_calls=calls)

    assert level_of(compare_packs(of("1"), of("2")), "random") == "error"
    assert level_of(compare_packs(of("1"), of("1")), "random") == "pass"


def test_what_may_be_secret_is_counted_and_not_named() -> None:
    one, other = Pack("a", env={"MY_TOKEN": "planted-1", "X": "1"}), Pack("b", env={"MY_TOKEN": "planted-2", "Y": "1"})
    comparison = compare_packs(one, other)
    assert comparison.withheld == 3 and comparison.answer == "pass"
    assert "planted" not in json.dumps(comparison.as_json()) + page(comparison)
    assert "MY_TOKEN" not in json.dumps(comparison.as_json()) + page(comparison) + "".join(
        t for t, _ in lines(comparison)
    )


def test_accepted_and_ignored_differences_are_left_out(tmp_path: Path) -> None:
    one, other = Pack("a", env={"NCCL_ALGO": "Ring"}, pip={"numpy": "1"}), Pack("b", env={}, pip={"numpy": "2"})
    comparison = compare_packs(one, other)
    assert comparison.answer == "error"
    assert without(comparison, ["NCCL_*", "pip/numpy"], None).answer == "pass"
    baseline = tmp_path / "config_check.json"
    baseline.write_text(json.dumps(comparison.as_json()))
    assert without(comparison, [], str(baseline)).answer == "pass"
    changed = compare_packs(one, Pack("b", env={}, pip={"numpy": "3"}))
    assert without(changed, [], str(baseline)).answer == "error"
    baseline.write_text("[]")
    with pytest.raises(MsprobeException, match="--baseline"):
        without(comparison, [], str(baseline))


def test_the_page_runs_no_script_and_shows_names_as_text() -> None:
    name = "<script>alert(1)</script>"
    text = page(compare_packs(Pack("a", pip={name: "1"}), Pack("b", pip={name: "2"})))
    assert "<script" not in text and "&lt;script&gt;" in text and "default-src 'none'" in text


def test_sheets_begin_with_a_summary() -> None:
    sheets = sheets_of(compare_packs(Pack("a", pip={"numpy": "1"}), Pack("b", pip={"numpy": "2"})))
    assert sheets["summary"] == [["filename", "pass_check"], ["pip", "error"]]
    assert sheets["pip"][1][:3] == ["numpy", "1", "2"]


def test_two_dumps_are_compared_by_their_environments(tmp_path: Path) -> None:
    for name, seed, lr in (("a", 1, 0.1), ("b", 2, 0.2)):
        (tmp_path / name / "step0").mkdir(parents=True)
        optimizers = [{"type": "AdamW", "groups": [{"lr": lr, "parameters": 3}]}]
        content = {"format": 1, "seeds": {"torch": seed}, "variables": {}, "packages": {}, "optimizers": optimizers}
        (tmp_path / name / "environment_rank0.json").write_text(json.dumps(content))
    comparison = compare_packs(read_side(str(tmp_path / "a")), read_side(str(tmp_path / "b")))
    rows = [(check.name, row.name, row.golden, row.target) for check in comparison.checks for row in check.rows]
    assert rows == [("platform", "seed", 1, 2), ("hyperparameters", "optimizer.0.groups.0.lr", 0.1, 0.2)]
    os.unlink(tmp_path / "b" / "environment_rank0.json")
    with pytest.raises(MsprobeException, match="holds no environment_rank"):
        read_side(str(tmp_path / "b"))


def test_each_rank_of_two_dumps_is_compared(tmp_path: Path) -> None:
    for name, versions in (("a", ["2.13", "2.13", "2.13"]), ("b", ["2.13", "2.12", "2.13"])):
        (tmp_path / name / "step0").mkdir(parents=True)
        for rank, version in enumerate(versions):
            content = {"format": 1, "variables": {"NCCL_ALGO": "Ring" if name == "a" else "Tree"}, "packages": {}}
            content["packages"] = {"torch": version}
            (tmp_path / name / f"environment_rank{rank}.json").write_text(json.dumps(content))
    (tmp_path / "b" / "environment_rank2.json").unlink()
    comparison = compare_packs(read_side(str(tmp_path / "a")), read_side(str(tmp_path / "b")))
    rows = [(check.name, row.name, row.golden, row.target) for check in comparison.checks for row in check.rows]
    # What differs on all ranks is one row.
    assert rows == [
        ("env", "NCCL_ALGO", "Ring", "Tree"), ("platform", "number of processes", 3, 2),
        ("pip", "rank 1: torch", "2.13", "2.12"),
    ]  # fmt: skip


def test_an_option_counts_and_the_file_that_it_overrides_is_a_warning() -> None:
    launch = {"launcher.program": "accelerate", "launcher.config_file": "w4.yaml"}
    golden = entries({"run.sh": {**launch, "launcher.num_processes": "8"}, "w4.yaml": {"num_processes": 4}})
    other = entries({"run.sh": {**launch, "launcher.config_file": "w8.yaml"}, "w8.yaml": {"num_processes": 8}})
    rows = [row for row in check_hyperparameters(golden, other).rows if "num_processes" in row.name]
    assert [(row.level, row.golden, row.target, row.golden_place) for row in rows] == [("warning", 4, 8, "w4.yaml")]
    fewer = entries({"run.sh": {**launch, "launcher.num_processes": "2"}, "w4.yaml": {"num_processes": 8}})
    (row,) = (row for row in check_hyperparameters(fewer, other).rows if "num_processes" in row.name)
    assert (row.level, row.golden, row.target) == ("error", "2", 8)


def test_a_value_of_one_of_several_branches_is_named_by_its_number() -> None:
    golden = entries({"a.sh": {"lr": "1e-3"}, "a.sh (2)": {"lr": "1e-4"}})
    other = entries({"b.sh": {"lr": "1e-3"}, "b.sh (2)": {"lr": "2e-4"}})
    (row,) = check_hyperparameters(golden, other).rows
    start = "lr in b.sh, value 2 of 2, is 2e-4 (golden: 1e-4 in a.sh): learning rate: "
    assert row_text(row).startswith(start)


def test_many_settings_of_one_name_are_compared_quickly() -> None:
    sides = [
        entries({"m.json": {f"{side}{index}.weight": f"{side}{index}" for index in range(3000)}}) for side in "ab"
    ]  # fmt: skip
    assert len(check_hyperparameters(*sides).rows) == 3000


def test_devices_that_are_no_numbers_are_counted() -> None:
    (world,) = entries({"a.sh": {"launcher.include": "localhost:0-3@other:²-³"}})
    assert world.value == 5
