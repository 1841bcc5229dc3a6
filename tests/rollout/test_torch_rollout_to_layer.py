"""From log-probabilities to the layer: an engine with a fault, by the functions of benchmarks/rollout_to_layer.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.common import log

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    path = ROOT / "benchmarks" / "rollout_to_layer.py"
    spec = importlib.util.spec_from_file_location("rollout_to_layer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(autouse=True)
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPROBE_LOG_LEVEL", "3")
    log.reset()


FAULTS = ("none", "position", "temperature", "stale", "template", "left_padding", "routing")


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("fault", FAULTS)
def test_kind_and_layer_of_a_fault(benchmark: Any, fault: str) -> None:
    found = benchmark.find(fault, "float32", seed=0)
    assert found.is_kind_right(fault), found.line
    assert found.is_layer_right(fault), found.layer
