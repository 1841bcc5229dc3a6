"""A training and the tool that run out of memory, with one task that is drawn.

``python tests/reliability/memory.py`` takes all four, as `make reliability` does, each under more limits.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SEED = int(os.environ.get("PROBE_TEST_SEED", random.randrange(10**6)))
"""Set the variable to the number that a failing test has printed to draw the same limits."""
LIMITS = 2


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and read in Linux's ways")
@pytest.mark.sampled(least=1, each=False, group="a machine that fails")
def test_out_of_memory_a_training_goes_on_or_gets_the_error_it_would_get_alone() -> None:
    # In a process of its own, whose forks have none of the memory and threads of other tests.
    command = [sys.executable, "-W", "ignore", "tests/reliability/memory.py"]
    command += [f"--limits={LIMITS}", "--tasks=1", f"--seed={SEED}"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert f"{LIMITS} trainings under a limit" in done.stdout and "0 are lost without a word" in done.stdout
