"""The graph page stands at faults planted into live models: some of the thirty of ``benchmarks/graph_faults.py``."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import forks
import pytest

pytest.importorskip("transformers", reason="models of Transformers are needed")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "graph_faults.py"
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
NAMES = (
    "torch-torch-bert-weight", "torch-torch-swin-operator", "torch-torch-t5-dtype",
    "torch-torch-encoder-extra_layer", "torch-torch-recurrent-nan", "torch-torch-resnet-order",
)  # fmt: skip
CASES = NAMES if LONG else random.Random(os.environ["PROBE_TEST_SEED"]).sample(NAMES, 1)
"""One kind of fault in a run of all tests, drawn from the seed that it prints."""
# So that `make reliability`, which takes all kinds, runs it.
pytestmark = pytest.mark.sampled()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("graph_faults") / "outcomes.json"
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT, "HF_HUB_OFFLINE": "1"}
    arguments = ("--only", *CASES, "--json", str(file))
    done = forks.run_python("transformers", SCRIPT, *arguments, cwd=Path.cwd(), environment=environment)
    assert file.exists(), done.stderr
    return {found["name"]: found for found in json.loads(file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", CASES)
def test_the_page_stands_at_the_planted_fault(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name]["right"], outcomes[name]
