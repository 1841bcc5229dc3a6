"""A training that is killed at any moment loses nothing; ``python tests/reliability/kills.py`` is the long version."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SEED = int(os.environ.get("PROBE_TEST_SEED", random.randrange(10**6)))
"""Set the variable to the number that a failing test has printed to kill at the same moments."""
KILLS = 2


@pytest.mark.sampled(least=1, each=False, group="a machine that fails")
def test_nothing_that_had_ended_before_a_kill_is_lost() -> None:
    # In a process of its own, whose forks have none of the threads that other tests have started.
    command = [sys.executable, "-W", "ignore", "tests/reliability/kills.py", f"--kills={KILLS}", f"--seed={SEED}"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert f"{KILLS} kills survived" in done.stdout and "0 of them are lost" in done.stdout
