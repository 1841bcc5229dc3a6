"""A training that is killed at any moment, or runs out of memory: a few draws of `kills.py` and `memory.py`.

``make reliability`` runs both at length.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SEED = int(os.environ.get("PROBE_TEST_SEED", random.randrange(10**6)))
"""Set the variable to the number that a failing test has printed to draw the same again."""
PROGRAMS = {
    "kills": (["--kills=2"], ("2 kills survived", "0 of them are lost")),
    "memory": (
        ["--limits=2", "--tasks=1", "--within=4"], ("2 trainings under a limit", "0 are lost without a word")
    ),
}  # fmt: skip


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_training_loses_nothing_that_had_ended_and_goes_on_where_it_can(program: str) -> None:
    if program == "memory" and sys.platform != "linux":
        pytest.skip("memory is limited and read in Linux's ways")
    options, said = PROGRAMS[program]
    # In a process of its own, whose forks have none of the threads and memory of other tests.
    command = [sys.executable, "-W", "ignore", f"tests/reliability/{program}.py", *options, f"--seed={SEED}"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in said)
