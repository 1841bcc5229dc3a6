"""The first divergence names faults planted into live models, and nothing where two runs only round differently.

Models of the ten of ``benchmarks/plant_faults.py``, which knows what it planted without asking the comparison.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import forks
import pytest

pytest.importorskip("transformers", reason="models of Transformers are needed")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plant_faults.py"
SEED = os.environ["PROBE_TEST_SEED"]
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
MODELS = random.Random(SEED).sample(("llama", "bert", "resnet"), 3 if LONG else 1)
"""One model in a run of all tests, drawn from the seed that it prints."""
FAULTS = ("constant", "bf16", "transpose", "mask", "nan")
SIDES = ("target", "golden")
# All of them are read from one run. So that `make reliability`, which takes all models, has them too.
pytestmark = pytest.mark.sampled(least=len(MODELS) * len(FAULTS) * len(SIDES))
SETTING = ("--levels", "mix", "--tasks", "statistics", "--dtypes", "float32")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    # Nothing of a model comes from the network.
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT, "HF_HUB_OFFLINE": "1"}
    return forks.run_python("transformers", SCRIPT, *map(str, arguments), cwd=Path.cwd(), environment=environment)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What was named in each comparison of the models' dumps at level mix."""
    file = tmp_path_factory.mktemp("planted") / "outcomes.json"
    done = run("--models", *MODELS, *SETTING, "--json", file)
    assert file.exists(), done.stderr
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", MODELS)
def test_the_planted_call_is_named_first(outcomes: list[dict[str, Any]], model: str, fault: str, side: str) -> None:
    (outcome,) = (each for each in outcomes if (each["model"], each["fault"], each["side"]) == (model, fault, side))
    assert outcome["planted"]
    assert outcome["rank"] == 1, outcome


@pytest.mark.parametrize("model", MODELS)
def test_runs_that_only_round_differently_are_silent(outcomes: list[dict[str, Any]], model: str) -> None:
    clean = [each for each in outcomes if each["model"] == model and not each["planted"]]
    assert len(clean) >= 10
    assert [each for each in clean if each["named"] or each["golden_named"]] == []
    # And they do: another order of sums changes most tensors in their last bits.
    assert max(each["apart"] for each in clean) > 0.6


def test_dumps_that_are_missing_are_named_before_any_work(tmp_path: Path) -> None:
    done = run("--models", "bert", *SETTING, "--dumps", tmp_path)
    assert done.returncode == 2
    assert f"there is no {tmp_path / 'bert' / 'clean_a' / 'mix-statistics'}; --keep {tmp_path} makes" in done.stderr


def test_a_level_that_has_no_such_task_is_refused(tmp_path: Path) -> None:
    done = run("--levels", "L0", "--tasks", "tensor")
    assert done.returncode == 2
    assert "nothing is left of --levels, --tasks and --dtypes; there is: L0, statistics; L1, statistics;" in done.stderr
