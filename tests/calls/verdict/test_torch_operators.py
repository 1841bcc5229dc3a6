"""Correct kernels of PyTorch on this machine pass, and planted faults are found: a sample of the benchmark."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.calls.verdict import judge

torch = pytest.importorskip("torch")
# Without torch a folder of that name may be found, in which there is nothing.
pytest.importorskip("torch.nn")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
benchmark = importlib.import_module("precheck_verdict")

SMALL = benchmark.SIZES[1]
NORMAL = benchmark.VALUES[0]
# Where a number in bfloat16 or float16 decides which pixel is meant, the gradient is that of another pixel.
DISCONTINUOUS = ("grid_sample", "fmod", "remainder", "cdist")


@pytest.fixture(autouse=True)
def quiet() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def judged(dtype: str) -> list[tuple[Any, Any]]:
    found = []
    for operator in benchmark.operators():
        try:
            subjects = list(benchmark.subjects(operator, SMALL, NORMAL, dtype, 1, True))
        except RuntimeError:
            continue
        found += [(subject, judge(subject)) for subject in subjects]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_correct_kernels_are_not_called_wrong(dtype: str) -> None:
    found = judged(dtype)
    alarms = [
        f"{subject.base} {subject.direction}: {verdict.status} {verdict.ratio} {verdict.interpretation}"
        for subject, verdict in found
        if verdict.status not in ("exact", "pass") and not subject.base.endswith(DISCONTINUOUS)
    ]
    assert len(found) > 450
    assert len(alarms) <= len(found) // 100, "\n".join(alarms)
    assert not [alarm for alarm in alarms if "suspect" not in alarm]


@pytest.mark.sampled()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["linear", "layer_norm", "softmax", "silu", "scaled_dot_product_attention", "cat"])
def test_planted_faults_are_found(name: str, dtype: str) -> None:
    draws = np.random.default_rng(1)
    for operator in benchmark.operators():
        if operator.base.endswith(f".{name}"):
            for subject in benchmark.subjects(operator, SMALL, NORMAL, dtype, 1, True):
                for fault, wrong in benchmark.wrong_subjects(subject, draws):
                    # In two or three digits 2 % need many elements, and attention rounds a tenth away.
                    may_hide = "%" in fault or fault in benchmark.IN_TWO_DIGITS
                    if fault not in benchmark.FEW_ROUNDINGS and (dtype == "float32" or not may_hide):
                        assert judge(wrong).status not in ("exact", "pass"), (subject.direction, fault)
