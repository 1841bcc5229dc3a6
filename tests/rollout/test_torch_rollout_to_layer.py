"""From log-probabilities to the layer: an engine with a fault, by the functions of benchmarks/rollout_to_layer.py."""

from __future__ import annotations

import importlib.util
import subprocess
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


@pytest.mark.parametrize("fault", ["none", "position", "left_padding", "temperature"])
def test_kind_and_layer_of_a_fault(benchmark: Any, fault: str) -> None:
    found = benchmark.find(fault, "float32", seed=0)
    assert found.is_kind_right(fault), found.line
    assert found.is_layer_right(fault), found.layer


def test_the_demo_names_kind_token_and_layer(tmp_path: Path) -> None:
    # In a copy, because the demo writes next to its folder.
    examples = tmp_path / "examples"
    examples.mkdir()
    for name in ("demo_rollout.py", "demo_summary.py", "rollout_policy.py"):
        (examples / name).write_text((ROOT / "examples" / name).read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, str(examples / "demo_rollout.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "(position): tokens differ from position 1 of the response on" in done.stdout
    assert "tokens with the largest differences:" in done.stdout
    assert "in Module.blocks.0.attention.rotary.Rotary.forward.0" in done.stdout
