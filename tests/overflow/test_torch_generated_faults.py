"""What was planted into generated trainings is what is named first, in every one of a hundred.

The programs, the faults and what is true of each case are in `generated`; a case is made again by its seed and number:
``python benchmarks/overflow_faults.py --seed SEED --cases NUMBER --keep DIR``.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from generated.cases import KINDS, cases
from generated.judging import Outcome, outcome_of
from generated.making import make_dumps
from while_running import while_running

from probe.common.collectives.collectives import is_communication
from probe.common.dump.reading.dump import Dump, read
from probe.common.nonfinite.call_values import CallValues, infinite_sign, is_nonfinite
from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow

SEED = 1
CASES = range(100)
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
NUMBERS = CASES if LONG else sorted(random.Random(os.environ["PROBE_TEST_SEED"]).sample(CASES, 5))
"""Some of the hundred cases in a run of all tests, drawn from the seed that it prints.

`make reliability` and `benchmarks/overflow_faults.py` take all of them.
"""
# So that `make reliability` runs it.
pytestmark = pytest.mark.sampled()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_dumps(tmp_path_factory.mktemp("generated"), SEED, NUMBERS)


@pytest.fixture(scope="module")
def outcomes(folders: list[Path]) -> list[Outcome]:
    return [outcome_of(folder) for folder in folders]


def test_the_first_finding_is_what_was_planted(outcomes: list[Outcome]) -> None:
    assert len(outcomes) == len(NUMBERS)
    assert [str(each) for each in outcomes if each.wrong] == []


def test_each_rank_finds_the_same_while_it_runs(folders: list[Path]) -> None:
    for step in (step for folder in folders for step in sorted(folder.glob("step*"))):
        first = find_overflow(str(step), where=Where(jobs=1)).first
        running = {int(rank.name[4:]): while_running(read(str(rank))) for rank in step.glob("rank*")}
        # A rank that got the value from another one has no first finding afterwards.
        assert any(running.values()) == bool(first), step
        for finding in first:
            dump = read(str(step / f"rank{finding.rank}"))
            assert running[finding.rank] in (finding.record, _exchange_after(dump, finding.record)), step


def _exchange_after(dump: Dump, record: str) -> str | None:
    """The first call after `record` by which something came back, if minus infinity was sent before.

    What a rank sends so may be a mask; that it was none it learns from what comes back, and only all ranks together
    tell what became of it in between.
    """
    was_sent = False
    names = [each.name for each in dump]
    for name in filter(is_communication, names[names.index(record) + 1 :]):
        values = CallValues.of(dump.items(dump[name]))
        if was_sent and any(infinite_sign(item) != -1 and is_nonfinite(item) for item in values.outputs):
            return name
        was_sent = was_sent or any(infinite_sign(item) == -1 for item in values.inputs)
    return None


def test_the_cases_are_as_varied_as_they_are_said_to_be() -> None:
    drawn = cases(SEED, CASES)
    assert {case.kind for case in drawn} == set(KINDS)
    assert {case.level for case in drawn} == {"L0", "L1", "mix"}
    assert {case.layout.world for case in drawn} == {2, 3, 4, 5, 6, 8}
    assert {case.transfer for case in drawn if case.layout.stages > 1} == {"blocking", "later", "batch"}
    gradients = {case.gradients for case in drawn if case.layout.replicas > 1}
    assert gradients == {"each", "later", "bucket", "sharded", "unseen"}
