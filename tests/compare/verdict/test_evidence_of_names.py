"""What names and sums are evidence of: functions of two programs at L1, and a result that is in another order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from divergence_runs import Run, X, call, result_of, tensor

from probe.compare.output.summary import summarise


def activations(names: list[str], factor: float = 1.0) -> Run:
    """Calls of functions of one input, at L1."""
    return {f"Torch.{name}.0.forward": call([tensor(X)], tensor(factor * np.tanh(X))) for name in names}


def test_at_l1_a_call_of_two_programs_that_share_few_names_is_not_accused(tmp_path: Path) -> None:
    target, golden = activations(["tanh", "a", "b"], 3.0), activations(["tanh", "c", "d"])
    end = {"Torch.tanh.1.forward": call([tensor(X)], tensor(np.tanh(X)))}
    result = result_of(tmp_path, {**target, **end}, {**golden, **end}, level="L1")
    assert result.divergence is None
    assert summarise(result).answer == "cannot_tell"


def test_at_l1_a_call_of_one_program_is(tmp_path: Path) -> None:
    names = ["tanh", "a", "b"]
    result = result_of(tmp_path, activations(names, 3.0), activations(names), level="L1")
    assert summarise(result).answer == "divergence"
