"""A run held against a golden run, record by record: which tensors are written, also where statistics come late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from collector_runs import RELU, Run, tensor

from probe.collect.sinks import sink
from probe.collect.sinks.journal.live_comparison import AROUND
from probe.compare.while_running import judge

pytestmark = pytest.mark.usefixtures("ended_runs")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose host can compare steps."""
    monkeypatch.setattr("collector_runs.Host", lambda *given: sink.Host(*given, lambda: judge))


def relus(run: Run, wrong: int) -> None:
    given = tensor(*range(1, 9))
    for n in range(60):
        returned = given * (2.0 if n == wrong else 1.5)
        call: Any = run.collector.enter_api(RELU, (given,), {})
        run.collector.leave_api(call, returned)
    run.sink.flush()
    run.end_step()


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("wrong", [0, 20, 59])
def test_the_tensors_of_the_calls_around_the_divergence_are_written(
    tmp_path: Path, judged: None, capsys: pytest.CaptureFixture[str], delayed: bool, wrong: int
) -> None:
    relus(Run(tmp_path / "golden", level="L1"), wrong=-1)
    relus(Run(tmp_path / "run", delayed, level="L1", against=str(tmp_path / "golden")), wrong=wrong)
    said = capsys.readouterr().err
    assert f"first divergence: step 0, rank 0: Torch.relu.{wrong}.forward" in said
    assert said.index("first divergence") < said.index("step 0, rank 0 diverges")
    found = {path.name.split(".forward")[0] for path in tmp_path.glob("run/step0/rank0/dump_tensor_data/*")}
    assert found == {f"Torch.relu.{n}" for n in range(max(0, wrong - AROUND), min(60, wrong + AROUND + 1))}


def test_a_run_without_sketches_is_compared_by_statistics(
    tmp_path: Path, judged: None, capsys: pytest.CaptureFixture[str]
) -> None:
    relus(Run(tmp_path / "golden", level="L1"), wrong=-1)
    relus(Run(tmp_path / "run", level="L1", against=str(tmp_path / "golden"), sketch=False), wrong=30)
    assert "first divergence: step 0, rank 0: Torch.relu.30.forward" in capsys.readouterr().err
