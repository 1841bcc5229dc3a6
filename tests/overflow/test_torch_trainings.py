"""Clean trainings are silent and faulty ones are blamed on the call at fault, while they run and in their dumps.

A call may be missing in a dump of the default risk level: then the sentence of the finding says so.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from overflow_trainings.outcomes import Outcome, make, outcomes
from overflow_trainings.programs import CLEAN, FAULTS
from while_running import assert_same_while_and_after

LONG = os.environ.get("PROBE_TEST_LONG") == "1"
DRAWN = list(FAULTS) if LONG else random.Random(os.environ["PROBE_TEST_SEED"]).sample(list(FAULTS), 5)
"""Some of the faults in a run of all tests, drawn from the seed that it prints.

`make reliability` and `benchmarks/overflow_faults.py --trainings` take all of them.
"""
TRAININGS = {**CLEAN, **{name: FAULTS[name] for name in FAULTS if name in DRAWN}}
# So that `make reliability` runs it.
pytestmark = pytest.mark.sampled()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainings")
    make(folder, ("watched", "default", "all"), list(TRAININGS))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Outcome]:
    truths = {name: (training.truth, training.step) for name, training in TRAININGS.items()}
    return {outcome.name: outcome for outcome in outcomes(folder, truths)}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_training_is_silent(found: dict[str, Outcome], name: str) -> None:
    assert found[name].wrong == ""


@pytest.mark.parametrize("name", [name for name in FAULTS if name in TRAININGS])
def test_a_fault_is_named(found: dict[str, Outcome], name: str) -> None:
    assert found[name].wrong == ""


def test_each_dump_holds_what_is_found_while_it_is_made(folder: Path) -> None:
    processes = sorted(folder.glob("*/*/step*/*"))
    assert len(processes) > 2 * len(TRAININGS)
    for process in processes:
        # What the scaler does is known to a running training alone.
        if "a_scaler_skips_steps" not in process.parts:
            assert_same_while_and_after(process)


def test_there_are_as_many_as_it_is_said() -> None:
    assert len(CLEAN) == 11 and len(FAULTS) >= 39
