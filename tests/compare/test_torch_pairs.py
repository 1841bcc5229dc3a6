"""What a comparison says first of two runs that are not the same program: some pairs of ``tests/support/pairs``.

``make verdicts`` judges all of them, at all levels, and those of two releases of Transformers.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import forks
import pytest

pytest.importorskip("transformers", reason="models of Transformers are needed")

from pairs import dumping, judging
from pairs.cases import LISTED, OLD

SETTING = "mix:statistics"
SOME = ("attention-rolled-q-vit", "bfloat16-qwen2", "checkpoint-reentrant-scaled-qwen2", "learning-rate-vit")
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
DRAWN = SOME if LONG else tuple(random.Random(os.environ["PROBE_TEST_SEED"]).sample(SOME, 1))
"""One of them in a run of all tests, drawn from the seed that it prints."""
NAMES = (*DRAWN, *(name for name, pair in LISTED.items() if LONG and not pair.needs(OLD)))
# So that `make reliability`, which takes all of them and those that are listed, runs it.
pytestmark = pytest.mark.sampled()


COMMAND = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdicts") / "pairs"
    dumping.make(folder, [(name, SETTING) for name in NAMES], {dumping.NEW: sys.executable})
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_judged_rightly(dumps: Path, name: str) -> None:
    outcome = judging.judge(dumps, name, SETTING)
    assert outcome.right, outcome


def test_the_command_judges_dumps_again(dumps: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    of_pairs = ("--only", "pairs", "--pairs", *DRAWN, "--settings", SETTING)
    command = [sys.executable, str(COMMAND), "--dumps", str(dumps.parent), *of_pairs, "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{len(DRAWN)} of {len(DRAWN)} right"), done.stderr
    lines = report.read_text(encoding="utf-8").splitlines()
    assert all(any(line.startswith(f"| {name} |") and line.endswith("| right |") for line in lines) for name in DRAWN)
