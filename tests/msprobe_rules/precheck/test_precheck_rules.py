"""The pre-check by the rules of msprobe 26.2: recorded rows of one device and of two, and its command."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probe.api.cli import main
from probe.msprobe_rules.precheck import class_metrics, ours, v26_2
from probe.msprobe_rules.precheck.class_metrics import V26_2, Benchmark, Binary, Dual, Tensor, measure
from probe.msprobe_rules.precheck.details import DetailsRow, read_details
from probe.msprobe_rules.precheck.form import ComparisonRow, Form, write
from probe.msprobe_rules.precheck.layout import MSPROBE, PLAIN
from probe.msprobe_rules.precheck.ours import compare, measured_tensor
from probe.msprobe_rules.precheck.v26_2 import classify_output, classify_tensor, worst_of

# --- one device by ``--rules msprobe`` has the rows that the release was recorded to give

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


def test_two_of_ten_thousand_elements_are_a_warning() -> None:
    reference = np.linspace(10, 20, 10_000)
    result = reference.astype(np.float32)
    assert classify_tensor("Torch.mul", result, reference, "float32", "name").status == "pass"
    result[[5, 7]] *= np.float32(1 + 5e-4)
    assert classify_tensor("Torch.mul", result, reference, "float32", "name").status == "warning"


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


# --- two devices: the recorded tables bit for bit, and the errors that our rules find beyond them

RECORDED = {
    "stage2": ("stage2/npu.csv", "stage2/gpu.csv", "stage2/expected_{}.csv"),
    "stage2_errors": ("stage2_errors/npu.csv", "stage2_errors/gpu.csv", "stage2_errors/expected_{}.csv"),
    # Infinities, blanks, lists of outputs and roll-ups, as the release itself judged them.
    "stage2_more": ("stage2_more/npu.csv", "stage2_more/gpu.csv", "stage2_more/expected_{}.csv"),
    "replay": ("replay/planted_details.csv", "replay/clean_details.csv", "replay/planted_against_clean_{}.csv"),
}


def details(name: str) -> list[DetailsRow]:
    return read_details(str(CASES / name))


@pytest.mark.parametrize("case", RECORDED)
def test_the_release_is_reproduced_bit_for_bit(case: str, tmp_path: Path) -> None:
    npu, gpu, expected = RECORDED[case]
    written = write(str(tmp_path), *v26_2.compare(details(npu), details(gpu)), MSPROBE)
    for kind, path in zip(("details", "result"), written):
        assert Path(path).read_bytes() == (CASES / expected.format(kind)).read_bytes()


METRICS = {"small_value_share": 0.0, "rmse": 0.01, "max_rel": 0.01, "mean_rel": 0.01, "error_balance": 0.0}


def row(name: str = "Functional.silu.0.forward.output.0", **changes: Any) -> DetailsRow:
    whole: dict[str, Any] = {
        "name": name, "status": "pass", "bench_dtype": "float64", "device_dtype": "float32", "shape": (4, 4),
        "metrics": METRICS,
    }  # fmt: skip
    return DetailsRow(**{**whole, **changes})


def compared(npu: DetailsRow, gpu: DetailsRow) -> ComparisonRow:
    rows, _ = compare([npu], [gpu])
    return rows[0]


def test_ratios_decide_in_the_benchmark_class() -> None:
    assert compared(row(), row()).status == "pass"
    worse = row(metrics={**METRICS, "rmse": 0.03})
    found = compared(worse, row())
    assert (found.status, found.message) == ("error", "rmse is 3 times the GPU's; allowed: 2.")
    assert (found.cells["rmse_ratio"], found.cells["rmse_verdict"]) == (pytest.approx(3), "error")
    assert compared(row(metrics={**METRICS, "error_balance": 1.0}), row()).status == "pass"


def test_special_values_of_the_npu_alone_are_an_error() -> None:
    # P7: they are masked out of every ratio.
    for special in ({"cosine": float("nan")}, {"max_abs": float("inf")}):
        npu = row(metrics={**METRICS, **special})
        assert compared(npu, row()).status == "error"
        assert compared(npu, npu).status == "pass"
        assert compared(row(), npu).status == "pass"


def test_a_case_is_as_bad_as_its_worst_row() -> None:
    names = [f"Torch.cumsum.0.{place}" for place in ("forward.output.0", "forward.output.1", "backward.output.0")]
    gpu = [row(name) for name in names]
    npu = [gpu[0], replace(gpu[1], metrics={**METRICS, "rmse": 1.0}), gpu[2]]
    _, results = compare(npu, gpu)
    assert [(result.forward, result.backward) for result in results] == [("error", "pass")]
    assert results[0].message.startswith("rmse is 100 times")


def test_the_planted_faults_are_all_found() -> None:
    _, results = compare(details("replay/planted_details.csv"), details("replay/clean_details.csv"))
    wrong = {result.name for result in results if "error" in (result.forward, result.backward)}
    assert wrong == {"Functional.embedding.0", "Torch.rsqrt.0", "Functional.linear.0", "Functional.silu.0"}
    embedding = next(result for result in results if result.name == "Functional.embedding.0")
    assert embedding.forward == "error"


@pytest.mark.parametrize("method", [ours, v26_2])
@pytest.mark.parametrize("case", RECORDED)
def test_headings_of_either_language_give_the_same(case: str, method: Any, tmp_path: Path) -> None:
    pair = [details(name) for name in RECORDED[case][:2]]
    again = []
    for place, rows in enumerate(pair):
        path = tmp_path / f"{place}.csv"
        path.write_bytes(Form(PLAIN).heading_of_details() + Form(PLAIN).lines(rows))
        again.append(read_details(str(path)))
    expected, found = method.compare(*pair), method.compare(*again)
    assert [(row.name, row.status, row.method) for row in found[0]] == [
        (row.name, row.status, row.method) for row in expected[0]
    ]


# --- metrics of tensors that are larger than one block are those of the whole


@pytest.mark.parametrize("row_of", [measured_tensor, classify_tensor])
def test_blocks_add_up_to_the_whole(row_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    reference = random.normal(size=(100, 77)) * 10.0 ** random.uniform(-7, 2, (100, 77))
    result = (reference * (1 + random.normal(size=reference.shape) * 1e-3)).astype(np.float32)
    reference[7, 7], result[9, 9] = np.nan, np.inf
    whole = row_of("Functional.silu", result, reference, "float32", "name")
    monkeypatch.setattr(class_metrics, "BLOCK", 100)
    parts = row_of("Functional.silu", result, reference, "float32", "name")
    assert (parts.status, parts.message) == (whole.status, whole.message)
    assert parts.metrics == pytest.approx(dict(whole.metrics), rel=1e-12, nan_ok=True)


# --- ``msprobe api_precision_compare``: its files, what it prints, and its exit statuses


CLEAN, PLANTED = (
    str(CASES / "replay/clean_details.csv"),
    str(CASES / "replay/planted_details.csv"),
)


def run(npu: str, gpu: str, folder: Path, *more: str) -> int:
    return main(["api_precision_compare", "-npu", npu, "-gpu", gpu, "-o", str(folder), *more])


def test_an_error_ends_with_1_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PLANTED, CLEAN, tmp_path) == 1
    printed = capsys.readouterr().out
    assert "13 cases: 4 error, 9 pass\n" in printed
    assert "error: Functional.embedding.0: NaN or infinity on the NPU, and none on the GPU.\n" in printed
    assert run(PLANTED, CLEAN, tmp_path, "--fail-on", "never") == 0
    assert run(PLANTED, CLEAN, tmp_path, "--fail-on", "warning") == 1


def test_another_table_is_refused_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(CASES / "replay/clean_result.csv"), CLEAN, tmp_path) == 2
    assert "clean_result.csv: has no column Bench Dtype" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["1" + "0" * 4199, "-" + "9" * 400, "abc", "x" * 200_000])
@pytest.mark.parametrize("side", ["npu", "gpu"])
def test_a_cell_that_is_no_number_of_a_format_is_refused_by_its_heading(
    tmp_path: Path, side: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(CLEAN, newline="", encoding="utf-8") as stream:
        header, *rows = list(csv.reader(stream))
    at = 5  # the largest absolute error
    rows = [[number if place == at else cell for place, cell in enumerate(row)] for row in rows]
    path = tmp_path / "changed.csv"
    with path.open("w", newline="", encoding="utf-8") as written:
        csv.writer(written).writerows([header, *rows])
    tables = {"npu": CLEAN, "gpu": CLEAN, side: str(path)}
    assert run(tables["npu"], tables["gpu"], tmp_path / "new") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "changed.csv" in line and len(line) < 500
