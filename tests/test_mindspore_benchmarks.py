"""The benchmark of the overhead runs with MindSpore and counts what it should; how long it takes is never tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.sampled(least=1, each=False, group="long programs")
def test_overhead_counts_the_records_of_a_step(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), "--backend", "mindspore"]
    command += ["--sizes", "small", "--steps", "1", "--repeats", "1", "--json", "result.json", "--modes", "L0", "L1"]
    environment = {**os.environ, "GLOG_v": "3"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells, apis = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["results"]
    assert (cells["mode"], apis["mode"]) == ("L0", "L1")
    assert cells["records"] > 0
    assert apis["records"] > cells["records"]
    assert cells["ratio"] > 0
