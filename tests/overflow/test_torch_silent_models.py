"""Nothing is found in healthy models of Transformers, whose masks are of minus infinity.

Three of them in a run of all tests, drawn from the seed that it prints; ``benchmarks/overflow_faults.py --models`` runs
all.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import forks
import healthy_models
import pytest
from healthy_models import MODELS

from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow

pytest.importorskip("transformers", reason="models of Transformers are needed")

SCRIPT = Path(healthy_models.__file__)
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
# What was hard: a logarithm of 0 that is cast to an integer, scores of experts and of samples that are masked.
NAMES = list(MODELS) if LONG else ["t5", *random.Random(os.environ["PROBE_TEST_SEED"]).sample(
    [name for name in MODELS if name not in ("t5", "llama_sampling")], 1
), "llama_sampling"]  # fmt: skip
# So that `make reliability`, which takes all models, runs it.
pytestmark = pytest.mark.sampled()


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_model_is_silent(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT, "HF_HUB_OFFLINE": "1"}
    ran = forks.run_python("transformers", SCRIPT, str(tmp_path), name, environment=environment, without_warnings=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = find_overflow(str(tmp_path / name), where=Where(jobs=1))
    assert sum(step.records[0] for step in report.steps) > 50
    assert [finding.key for step in report.steps for finding in step.findings] == []
    assert [note for step in report.steps for note in step.notes] == []
