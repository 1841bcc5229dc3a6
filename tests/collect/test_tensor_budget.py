"""The estimate of the disk space of a step, told when the first file of the backward is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from configurations import load

from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.journal.tensor_budget import TensorBudget


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("Module.backward.LSTM.forward.0.input.0.npy", False),
        ("Module.forward.LSTM.backward.0.input.0.npy", True),
        ("Functional.relu.0.backward.input.0.npy", True),
    ],
)
def test_the_first_file_of_a_backward_ends_the_forward(
    name: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of a model may be called `backward`."""
    said: list[str] = []
    monkeypatch.setattr("probe.common.log.info", said.append)
    budget = TensorBudget()
    monkeypatch.chdir(tmp_path)
    folder = DumpFolder(load(), 0, "rank0", "pytorch", True)
    budget.begin_step(folder)
    budget.add("Functional.relu.0.forward.input.0.npy", 1 << 20)
    budget.add(name, 1 << 20)
    folder.close()
    assert any("2 MiB, of which 1 MiB are the forward pass" in each for each in said) == is_told
