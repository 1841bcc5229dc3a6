"""One device by ``--rules msprobe`` has the rows that the release was recorded to give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probe.msprobe_rules.precheck.class_metrics import Benchmark, Binary, Dual, measure
from probe.msprobe_rules.precheck.constants import V26_2
from probe.msprobe_rules.precheck.outputs import Tensor
from probe.msprobe_rules.precheck.v26_2_single import classify_output, classify_tensor, worst_of

CASES = Path(__file__).parents[2] / "precheck" / "cases"
ARRAYS = dict(np.load(CASES / "verdict_arrays.npz"))
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
BESIDE_METRICS = {"pair", "status", "Bench Dtype", "DEVICE Dtype", "Shape", "Message", "same_for_all_api_classes"}


def lines(name: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in (CASES / name).read_text("utf-8").splitlines()]
    return {row["pair"]: row for row in rows}


VERDICTS, CLASS_METRICS = lines("verdicts.jsonl"), lines("class_metrics.jsonl")
STRUCTURES = json.loads((CASES / "structure_verdicts.json").read_text("utf-8"))


def arrays(pair: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Device and reference; the recorded bits of bfloat16 as float32."""
    result, reference = ARRAYS[f"{pair}|device"], ARRAYS[f"{pair}|bench"]
    if pair.startswith("bf16"):
        result = (result.astype(np.uint32) << 16).astype(np.uint32).view(np.float32)
    return result, reference


def printed(number: float) -> str:
    """As the release writes it to the table."""
    return f"{number:.14f}" if isinstance(number, float) else str(number)


def test_everything_that_was_recorded_is_there() -> None:
    assert (len(VERDICTS), len(CLASS_METRICS)) == (143, 96)


@pytest.mark.parametrize("pair", VERDICTS)
def test_a_pair_has_the_recorded_row(pair: str) -> None:
    recorded = VERDICTS[pair]
    result, reference = arrays(pair)
    dtype = recorded["DEVICE Dtype"].removeprefix("torch.")
    # The reference is handed over in float64, as the pre-check computes it.
    wide = reference.astype(np.float64) if reference.dtype.kind == "f" else reference
    row = classify_tensor("Functional.silu", result, wide, dtype, "name")
    # The recorded status is that of a case of this one output.
    assert worst_of([row.status]) == recorded["status"]
    assert row.message.strip() == recorded["Message"]
    assert (f"torch.{row.bench_dtype}", list(row.shape or ())) == (recorded["Bench Dtype"], recorded["Shape"])
    metrics = {name: value for name, value in recorded.items() if name not in BESIDE_METRICS}
    assert {name: printed(value) for name, value in row.metrics.items()} == {
        name: printed(value) for name, value in metrics.items()
    }


def test_errors_of_nothing_and_of_exact_elements_are_written_as_recorded() -> None:
    # `0` is what the recorded details have of no element, and `0.00000000000000` of elements without errors.
    exact = classify_tensor("Torch.mean", np.ones(4, np.float32), np.ones(4), "float32", "name")
    assert [printed(exact.metrics[name]) for name in ("max_rel", "small_value_share")] == ["0.00000000000000", "0"]
    small = classify_tensor("Torch.mean", np.zeros(4, np.float32), np.zeros(4), "float32", "name")
    assert [printed(small.metrics[name]) for name in ("max_rel", "small_value_share")] == ["0", "0.00000000000000"]


@pytest.mark.parametrize("base", ["Torch.mul", "Torch.sort", "Torch.matmul", "Functional.conv2d", "Torch.layer_norm"])
def test_the_api_makes_no_difference(base: str) -> None:
    for pair in ("fp32.unit.rel_3e-4", "bf16.unit.rounded", "fp16.saturated"):
        result, reference = arrays(pair)
        row = classify_tensor(base, result, reference, DTYPES[pair.split(".")[0]], "name")
        assert (row.status, row.message.strip()) == (VERDICTS[pair]["status"], VERDICTS[pair]["Message"])


@pytest.mark.parametrize("pair", CLASS_METRICS)
def test_class_metrics_are_the_recorded_ones(pair: str) -> None:
    result, reference = arrays(pair)
    dtype = DTYPES[pair.split(".")[0]]
    constants = V26_2[dtype]
    meters = {
        "dual_1000": [Dual([1000])],
        "binary": [Binary()],
        "benchmark": [Benchmark(constants)],
    }
    for name, of_class in meters.items():
        found = measure(result, reference, of_class, dtype, constants)
        np.testing.assert_equal({key: float(value) for key, value in found.items()}, CLASS_METRICS[pair][name])


GOOD = np.linspace(1, 2, 128)


def pair_of(status: str) -> tuple[Tensor, Tensor]:
    """Tensors that the release gives this status."""
    reference = GOOD * 100 if status == "warning" else GOOD
    result = {"error": -reference, "warning": reference * (1 + 3e-4), "pass": reference}[status]
    return Tensor(result.astype(np.float32), "float32"), Tensor(reference, "float64")


def listed(*statuses: str) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [pair_of(status) for status in statuses]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


ONE, OTHER = pair_of("pass")
STRUCTURED: dict[str, tuple[Any, Any]] = {
    "error_then_warning": listed("error", "warning"),
    "warning_then_error": listed("warning", "error"),
    "error_then_pass": listed("error", "pass"),
    "device_has_more_items": ([ONE, ONE], [OTHER]),
    "none_pair": (None, None),
    "none_against_tensor": (ONE, None),
    "list_with_none": ([None, ONE], [None, OTHER]),
    "float_scalar_equal": (1.5, 1.5),
    "float_scalar_differs": (1.5, 2.5),
    "int_against_float": (1.0, 1),
    "string_differs": ("a", "b"),
    "dict": ({"x": ONE}, {"x": OTHER}),
    "dict_keys_differ": ({"x": ONE}, {"y": OTHER}),
    "nested_list": ([[ONE]], [[OTHER]]),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_whole_outputs_are_judged_as_recorded(name: str) -> None:
    rows = list(classify_output("Torch.sort", *STRUCTURED[name], "Torch.sort.0.forward.output"))
    assert [{"status": row.status, "message": row.message.strip()} for row in rows] == STRUCTURES[name]["items"]
    assert worst_of([row.status for row in rows]) == STRUCTURES[name]["status"]


def test_fewer_items_than_the_reference_end_as_recorded() -> None:
    with pytest.raises(IndexError):
        list(classify_output("Torch.sort", [ONE], [OTHER, OTHER], "name"))
    assert STRUCTURES["bench_has_more_items"]["raises"].startswith("IndexError")


def test_every_recorded_structure_is_tested() -> None:
    assert {*STRUCTURED, "bench_has_more_items", "dropout"} == set(STRUCTURES)


def dropped(share: float, size: int, scale: float = 1) -> NDArray[Any]:
    values = np.full(size, float(scale))
    values[: round(share * size)] = 0
    return values


@pytest.mark.parametrize(
    ("name", "result", "reference"),
    [
        ("share_off_0.05", dropped(0.5555, 2000), dropped(0.509, 2000)),
        ("share_off_0.2", dropped(0.7105, 2000), dropped(0.503, 2000)),
        ("50_elements_all_dropped_on_device", np.zeros(50), dropped(0.5, 50)),
        ("wrong_scale", dropped(0.5, 2000, 4), dropped(0.5, 2000, 2)),
        ("99_elements_all_dropped_on_device", np.zeros(99), dropped(0.5, 99)),
        ("100_elements_all_dropped_on_device", np.zeros(100), dropped(0.5, 100)),
        ("101_elements_all_dropped_on_device", np.zeros(101), dropped(0.5, 101)),
    ],
)
def test_dropout_is_judged_as_recorded(name: str, result: NDArray[Any], reference: NDArray[Any]) -> None:
    recorded = STRUCTURES["dropout"][name]
    row = classify_tensor("Functional.dropout", result.astype(np.float32), reference, "float32", "name")
    assert row.status == (recorded if isinstance(recorded, str) else recorded["result"])
