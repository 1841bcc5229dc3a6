"""Calls on large tensors: parts of them come to the verdict of the whole, in a fraction of the memory."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
import torch.nn.functional as F
from planted_kernels import FAULTS, IN_FLOAT32, planted

from msprobe.pytorch import PrecisionDebugger
from probe.api.cli import main
from probe.api.replaying import acc_check
from probe.precheck import in_parts
from probe.precheck.report import Report


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Judge every call that can be in parts of 100 elements; return the names of those that were."""
    judged: list[str] = []
    judge = in_parts.judge_in_parts

    def noted(*args: Any, **options: Any) -> in_parts.InParts:
        judged.append(args[2].case.name)
        return judge(*args, **options)

    monkeypatch.setattr(in_parts, "LARGE", 1)
    monkeypatch.setattr(in_parts, "PART", 100)
    monkeypatch.setattr(in_parts, "judge_in_parts", noted)
    return judged


def dump_of(folder: Path, kernel: Any, values: torch.Tensor) -> str:
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    debugger.start()
    given = values.clone().requires_grad_()
    kernel(given).backward(torch.linspace(-1, 1, values.numel()).reshape(values.shape).to(values.dtype))
    debugger.stop()
    PrecisionDebugger.reset()
    (path,) = folder.glob("step0/*/dump.json")
    return str(path)


def verdicts(report: Report) -> dict[str, tuple[Any, ...]]:
    return {
        row.name: (row.verdict.status, row.verdict.bound, row.shape, row.dtype, row.of)
        for result in report.results
        for row in result.rows
    }


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_parts_come_to_the_verdicts_of_the_whole(
    recorded: dict[str, str], task: str, request: pytest.FixtureRequest
) -> None:
    whole = acc_check(recorded[task])
    judged = request.getfixturevalue("in_small_parts")
    found = acc_check(recorded[task])
    assert len(judged) > 20, "silu, gelu, add and mul of three dtypes, and their like"
    assert verdicts(found) == verdicts(whole)
    rows = {row.name: row for result in whole.results for row in result.rows}
    for row in (row for result in found.results for row in result.rows):
        expected = rows[row.name].verdict
        assert row.verdict.max_ulp == expected.max_ulp
        assert row.verdict.mean_ulp == (expected.mean_ulp and pytest.approx(expected.mean_ulp))
        assert row.verdict.worst_index is None or len(row.verdict.worst_index) == len(row.shape)


def test_a_wrong_element_is_named_by_its_place_in_the_whole(tmp_path: Path, in_small_parts: list[str]) -> None:
    path = dump_of(tmp_path, F.gelu, torch.linspace(-3, 3, 640).reshape(32, 20))

    def wrong(result: torch.Tensor) -> torch.Tensor:
        return result.clone().index_put_((torch.tensor(17), torch.tensor(3)), torch.tensor(9.0))

    with planted(F, "gelu", wrong):
        (result,) = acc_check(path).results
    verdict = result.rows[0].verdict
    assert in_small_parts == ["Functional.gelu.0"]
    assert (result.forward, verdict.worst_index, verdict.worst_result) == ("error", (17, 3), 9.0)
    assert verdict.share_over == 1 / 640
    assert verdict.interpretation.endswith("; 1 of 7 such parts are over their tolerance")


@pytest.mark.parametrize("fault", [*IN_FLOAT32, "one element 10 % off"])
def test_wrong_kernels_are_found_in_parts(tmp_path: Path, request: pytest.FixtureRequest, fault: str) -> None:
    path = dump_of(tmp_path, F.silu, torch.linspace(-4, 4, 640))
    with planted(F, "silu", {**FAULTS, **IN_FLOAT32}[fault]):
        (whole,) = acc_check(path).results
        judged = request.getfixturevalue("in_small_parts")
        (result,) = acc_check(path).results
    assert judged
    assert result.status == whole.status != "pass"


def test_a_kernel_that_raises_is_wrong_also_where_parts_would_be_judged(
    tmp_path: Path, in_small_parts: list[str]
) -> None:
    path = dump_of(tmp_path, F.silu, torch.linspace(-4, 4, 640))

    def raising(result: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("kernel launch failed")

    with planted(F, "silu", raising):
        (result,) = acc_check(path).results
    assert in_small_parts
    assert [row.verdict.interpretation for row in result.rows][-1] == "it raises RuntimeError: kernel launch failed"


def test_a_call_that_writes_in_place_is_judged_in_parts(tmp_path: Path, in_small_parts: list[str]) -> None:
    path = dump_of(tmp_path, lambda x: x.clone().mul_(3.5), torch.linspace(-4, 4, 640))
    assert {result.status for result in acc_check(path).results} <= {"exact", "pass"}
    assert "Tensor.mul_.0" in in_small_parts


def cells(folder: Path) -> list[Any]:
    """Return the cells of the table of details but the messages, numbers as such."""
    (path,) = folder.glob("accuracy_checking_details_*.csv")
    with open(path, newline="", encoding="utf-8") as stream:
        texts = [cell for row in csv.reader(stream) for cell in row[:-1]]
    return [float(text) if re.fullmatch(r"[-+.\de]+", text) else text for text in texts]


def test_drop_in_tables_have_the_same_rows(
    recorded: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    acc_check(recorded["tensor"], output=str(tmp_path / "whole"))
    request.getfixturevalue("in_small_parts")
    acc_check(recorded["tensor"], output=str(tmp_path / "parts"))
    whole, parts = (cells(tmp_path / name) for name in ("whole", "parts"))
    assert len(whole) > 2000
    # Where a part ends the float64 kernels take another path, with another last digit.
    assert len(parts) == len(whole)
    assert all(part == cell or part == pytest.approx(cell, rel=1e-6, nan_ok=True) for part, cell in zip(parts, whole))


# --- memory


def test_a_call_that_needs_too_much_memory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(in_parts, "LARGE", 1000)
    path = dump_of(tmp_path, lambda x: F.softmax(x, -1), torch.ones(100, 100))
    assert main(["acc_check", "-api_info", path, "-o", str(tmp_path / "out"), "--max-memory", "0.001"]) == 2
    assert "needs about 0.0 GB of memory, and --max-memory is 0.0 GB" in capsys.readouterr().out
    assert main(["acc_check", "-api_info", path, "-o", str(tmp_path / "out"), "--max-memory", "0.01"]) == 0


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf"])
def test_only_an_amount_is_taken_for_a_limit(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acc_check", "-api_info", "dump.json", "--max-memory", text]) == 2
    assert f"{text!r} is not an amount of memory; allowed: a number of GB above 0." in capsys.readouterr().err


MEASURED = """
import json, sys
import torch, torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger
from probe.api.replaying import acc_check

def most():
    # The largest memory of getrusage is at first that of the process which started this one.
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def run(count, folder, kernel):
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=folder, task="tensor", level="L1")
    debugger.start()
    torch.manual_seed(count)
    x = torch.randn(count, 1024, requires_grad=True)
    kernel(x).backward(torch.ones(count, 1024))
    debugger.stop()
    before = most()
    (result,) = acc_check(folder, max_memory=float(sys.argv[3])).results
    return result.status, (most() - before) * 1024 / 1e9

kernel = F.gelu if sys.argv[1] == "gelu" else lambda x: F.softmax(x, -1)
# What torch and numpy load at the first call is no matter of sizes.
run(1, sys.argv[2] + "/small", kernel)
print(json.dumps(run(8192, sys.argv[2] + "/large", kernel)))
"""


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(("name", "least", "most"), [("gelu", 0.0, 0.25), ("softmax", 0.7, 1.2)])
def test_the_memory_that_a_call_takes(tmp_path: Path, name: str, least: float, most: float) -> None:
    """Of 32 MiB: as a whole it is a gigabyte, which is what is estimated, and in parts a quarter of that at most."""
    arguments = [sys.executable, "-c", MEASURED, name, str(tmp_path), "4"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=forks.CHECKOUT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    status, taken = json.loads(ran.stdout.splitlines()[-1])
    assert status == "pass"
    assert least <= taken <= most
