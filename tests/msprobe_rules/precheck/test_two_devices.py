"""Two devices: the recorded tables bit for bit, and the errors that our rules find beyond them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.msprobe_rules.output.comparisons import ComparisonRow, write
from probe.msprobe_rules.output.details import DetailsRow, read_details
from probe.msprobe_rules.output.form import Form
from probe.msprobe_rules.output.layout import MSPROBE, PLAIN
from probe.msprobe_rules.precheck import our_two_device, v26_2_two_device
from probe.msprobe_rules.precheck.our_two_device import compare

CASES = Path(__file__).parents[2] / "precheck" / "cases"
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
    written = write(str(tmp_path), *v26_2_two_device.compare(details(npu), details(gpu)), MSPROBE)
    for kind, path in zip(("details", "result"), written):
        assert Path(path).read_bytes() == (CASES / expected.format(kind)).read_bytes()


@pytest.mark.parametrize("method", [our_two_device, v26_2_two_device])
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


GOOD = {"small_value_share": 0.0, "rmse": 0.01, "max_rel": 0.01, "mean_rel": 0.01, "error_balance": 0.0}


def row(name: str = "Functional.silu.0.forward.output.0", **changes: Any) -> DetailsRow:
    whole: dict[str, Any] = {
        "name": name, "status": "pass", "bench_dtype": "float64", "device_dtype": "float32", "shape": (4, 4),
        "metrics": GOOD,
    }  # fmt: skip
    return DetailsRow(**{**whole, **changes})


def compared(npu: DetailsRow, gpu: DetailsRow) -> ComparisonRow:
    rows, _ = compare([npu], [gpu])
    return rows[0]


def test_ratios_decide_in_the_benchmark_class() -> None:
    assert compared(row(), row()).status == "pass"
    worse = row(metrics={**GOOD, "rmse": 0.03})
    found = compared(worse, row())
    assert (found.status, found.message) == ("error", "rmse is 3 times the GPU's; allowed: 2.")
    assert (found.cells["rmse_ratio"], found.cells["rmse_verdict"]) == (pytest.approx(3), "error")
    assert compared(row(metrics={**GOOD, "error_balance": 1.0}), row()).status == "pass"


@pytest.mark.parametrize(("rate", "status"), [(0.0, "pass"), (1e-9, "error")])
@pytest.mark.parametrize("dtype", ["int64", "bool", "<class 'int'>"])
def test_whole_numbers_have_to_be_equal(dtype: str, rate: float, status: str) -> None:
    pair = [row(device_dtype=dtype, metrics={"binary_error_rate": each}) for each in (rate, 0.0)]
    assert compared(*pair).status == status


class TestStatusOfTheFirstStage:
    """P9: the release does not look at it."""

    def test_an_error_without_metrics_is_one(self) -> None:
        npu = row(status="error", message="the shapes differ.", metrics={})
        found = compared(npu, row())
        assert (found.status, "the shapes differ." in found.message) == ("error", True)

    def test_an_error_of_the_npu_alone_is_one(self) -> None:
        assert compared(row(status="error"), row()).status == "error"

    def test_an_error_of_both_is_judged_by_the_ratios(self) -> None:
        assert compared(row(status="error"), row(status="error")).status == "pass"

    def test_what_was_not_run_stays_so(self) -> None:
        assert compared(row(status="SKIP", message="no kernel"), row()).message == "no kernel"
        assert compared(row(), row(status="SKIP", message="no kernel")).message == "the GPU was not run: no kernel"

    def test_it_stands_where_the_gpu_has_no_metrics(self) -> None:
        assert compared(row(), row(metrics={}, status="error")).status == "pass"
        assert compared(row(status="warning"), row(metrics={}, status="error")).status == "warning"
        assert compared(row(metrics={}), row()).status == "SKIP"


def test_special_values_of_the_npu_alone_are_an_error() -> None:
    # P7: they are masked out of every ratio.
    for special in ({"cosine": float("nan")}, {"max_abs": float("inf")}):
        npu = row(metrics={**GOOD, **special})
        assert compared(npu, row()).status == "error"
        assert compared(npu, npu).status == "pass"
        assert compared(row(), npu).status == "pass"


def test_dtypes_and_shapes_that_differ_are_named() -> None:
    # P19.
    found = compared(row(), row(device_dtype="bfloat16"))
    assert (found.status, found.message) == ("error", "the NPU's dtype is float32, the GPU's bfloat16.")
    found = compared(row(), row(shape=(16,)))
    assert (found.status, found.message) == ("error", "the NPU's shape is (4, 4), the GPU's (16,).")


def test_rows_that_one_side_lacks_are_listed() -> None:
    mine, both, yours = (row(f"Torch.sin.{number}.forward.output.0") for number in range(3))
    rows, results = compare([mine, both], [both, yours])
    assert [(found.status, found.message) for found in rows] == [
        ("SKIP", "the file of the GPU has no such row."),
        ("pass", ""),
        ("SKIP", "the file of the NPU has no such row."),
    ]
    assert [result.forward for result in results] == ["SKIP", "pass", "SKIP"]


def test_a_case_is_as_bad_as_its_worst_row() -> None:
    names = [f"Torch.cumsum.0.{place}" for place in ("forward.output.0", "forward.output.1", "backward.output.0")]
    gpu = [row(name) for name in names]
    npu = [gpu[0], replace(gpu[1], metrics={**GOOD, "rmse": 1.0}), gpu[2]]
    _, results = compare(npu, gpu)
    assert [(result.forward, result.backward) for result in results] == [("error", "pass")]
    assert results[0].message.startswith("rmse is 100 times")


def test_special_metrics_are_compared_as_such() -> None:
    inf = row(metrics={**GOOD, "rmse": float("inf")})
    assert compared(inf, inf).status == "pass"
    assert compared(inf, row()).status == compared(row(), inf).status == "error"


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(MsprobeException, match="stands twice in the file of the GPU"):
        compare([row()], [row(), row()])


def test_the_planted_faults_are_all_found() -> None:
    _, results = compare(details("replay/planted_details.csv"), details("replay/clean_details.csv"))
    wrong = {result.name for result in results if "error" in (result.forward, result.backward)}
    assert wrong == {"Functional.embedding.0", "Torch.rsqrt.0", "Functional.linear.0", "Functional.silu.0"}
    embedding = next(result for result in results if result.name == "Functional.embedding.0")
    assert embedding.forward == "error"
