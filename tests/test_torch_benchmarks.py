"""The benchmarks run and count what they should; how long anything takes is never tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sampled(least=1, each=False, group="benchmarks")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    # The benchmarks measure one thread; warnings of the code they run are not theirs.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_overhead_counts_records_and_bytes_per_step(tmp_path: Path) -> None:
    options = ["--sizes", "small", "--steps", "2", "--repeats", "1", "--json", "result.json"]
    done = run(tmp_path, "overhead.py", *options, "--modes", "filtered", "watch-L1", "L1")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    off, watched, apis = result["results"]
    assert (off["mode"], off["records"], off["bytes"]) == ("filtered", 0, 0)
    assert (watched["mode"], watched["records"], watched["bytes"]) == ("watch-L1", 0, 0)
    assert apis["mode"] == "L1"
    assert apis["records"] > 0
    assert apis["bytes"] > 0
    assert apis["ratio"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_floor_writes_about_as_many_records_as_the_tool(tmp_path: Path) -> None:
    options = ["--sizes", "small", "--steps", "2", "--repeats", "1", "--json", "result.json"]
    done = run(tmp_path, "overhead.py", *options, "--modes", "L0", "floor-L0", "L1", "floor-L1", "mix", "floor-mix")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    records = {line["mode"]: line["records"] for line in result["results"]}
    for level in ("L0", "L1", "mix"):
        assert 0.8 * records[level] < records[f"floor-{level}"] < 1.3 * records[level]


def test_records_and_bandwidth_print_their_tables(tmp_path: Path) -> None:
    done = run(tmp_path, "records.py", "--calls", "20", "40", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "| 40" in done.stdout
    done = run(tmp_path, "statistics_bandwidth.py", "--elements", "1000", "--dtypes", "float32")
    assert done.returncode == 0, done.stderr
    assert "| float32 " in done.stdout


def test_commands_are_timed_with_made_dumps(tmp_path: Path) -> None:
    done = run(tmp_path, "commands.py", "compare", "graph", "--sizes", "300", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["results"]
    assert len(results) == 4
    assert all(costs["ours"]["memory_mib"] > 0 for costs in results.values())


def test_the_dumps_for_the_pre_check_have_functions_that_are_found_again(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="models of Transformers are needed")
    done = run(tmp_path, "precheck_models.py", "dumps", "--models", "vit", "--dtypes", "bfloat16", "--names")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("not found: none")
    assert [path.name for path in (tmp_path / "dumps").iterdir()] == ["vit-bfloat16"]


def test_a_backend_without_benchmark_is_refused_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, "run.py", "--backend", "abacus")
    assert done.returncode == 2
    assert "no benchmark for 'abacus' yet; there is: torch" in done.stderr


def test_a_tool_that_cannot_run_is_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    options = ["--sizes", "small", "--modes", "mounted", "--steps", "1", "--repeats", "1", "--real", str(broken)]
    done = run(tmp_path, "overhead.py", *options)
    assert done.returncode == 0, done.stderr
    assert "ended with 3:\nno torch here" in done.stderr
    assert "| mounted | ours |" in done.stdout


@pytest.mark.parametrize(
    ("options", "pairs"), [(["--only", "up before gate"], 8), (["--models", "--only", "Phi3, e"], 1)]
)
def test_answers_of_fingerprints_are_those_of_checkpoints(tmp_path: Path, options: list[str], pairs: int) -> None:
    done = run(tmp_path, "fingerprint_answers.py", *options)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "first" in line or "second" in line]
    same = sum(int(line.partition(": ")[2].partition(" same")[0]) for line in lines)
    assert same >= 2 * pairs and all(line.endswith("0 cannot be told, 0 other") for line in lines)
