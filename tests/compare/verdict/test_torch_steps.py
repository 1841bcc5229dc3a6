"""Trainings of several steps: batches in parts, buffers, the state of an optimizer, a model that is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import probe

torch = pytest.importorskip("torch")
nn = torch.nn


def trained(
    new_debugger: Any,
    folder: Path,
    *layers: Any,
    parts: int = 1,
    divides: bool = True,
    dtype: Any = None,
    level: str = "mix",
    compiles: bool = False,
) -> Path:
    """Three steps of a small network, dumped.

    Args:
        layers: layers behind the first.
        parts: the parts in which each batch is taken.
        divides: false if the loss of a part is not divided by their number.
        compiles: true if the model is compiled as a whole.
    """
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(12, 16), *layers, nn.Tanh(), nn.Linear(16, 5)).to(dtype or torch.float32)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    debugger = new_debugger(level=level, dump_path=str(folder))
    called = torch.compile(model, backend="aot_eager") if compiles else model
    for step in range(3):
        generator = torch.Generator().manual_seed(100 + step)
        batch, labels = torch.randn(8, 12, generator=generator), torch.randint(5, (8,), generator=generator)
        debugger.start(called)
        optimizer.zero_grad()
        for x, y in zip(batch.chunk(parts), labels.chunk(parts)):
            loss = nn.functional.cross_entropy(called(x.to(model[0].weight.dtype)).float(), y)
            (loss / parts if divides else loss).backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    return folder


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_gradients_of_a_batch_in_parts_are_held_against_those_of_the_whole(
    new_debugger: Any, tmp_path: Path, level: str
) -> None:
    whole = trained(new_debugger, tmp_path / "whole", level=level)
    right = probe.verdict(trained(new_debugger, tmp_path / "right", parts=4, level=level), whole)
    assert right.conclusion == "none", right.answer
    assert "takes the batch in 4 parts" in str(right.answer)
    wrong = probe.verdict(trained(new_debugger, tmp_path / "wrong", parts=4, divides=False, level=level), whole)
    assert wrong.divergence is not None and "parameters_grad" in wrong.divergence.first.record
    assert "adds the gradients of 4 parts of the batch up and does not divide by 4" in str(wrong.answer)


def test_a_batch_in_parts_is_not_told_where_layers_compute_over_the_batch(new_debugger: Any, tmp_path: Path) -> None:
    """Each part has statistics of its own, so that gradients are other ones in a right program."""
    whole = trained(new_debugger, tmp_path / "whole", nn.BatchNorm1d(16, track_running_stats=False))
    parts = trained(new_debugger, tmp_path / "parts", nn.BatchNorm1d(16, track_running_stats=False), parts=2)
    assert probe.verdict(parts, whole).conclusion == "cannot_tell"


def test_a_buffer_that_the_step_before_updated_otherwise_diverges(new_debugger: Any, tmp_path: Path) -> None:
    golden = trained(new_debugger, tmp_path / "golden", nn.BatchNorm1d(16))
    found = probe.verdict(trained(new_debugger, tmp_path / "target", nn.BatchNorm1d(16, momentum=0.4)), golden)
    assert found.divergence is not None and found.divergence.first.record == "Functional.batch_norm.0.forward"
    assert "momentum = 0.4 (golden: 0.1)" in str(found.answer) and "step 1" in found.answer[0]


def test_the_state_of_an_optimizer_in_another_precision_is_not_accused(new_debugger: Any, tmp_path: Path) -> None:
    golden = trained(new_debugger, tmp_path / "golden", nn.BatchNorm1d(16))
    short = trained(new_debugger, tmp_path / "short", nn.BatchNorm1d(16), dtype=torch.bfloat16)
    assert probe.verdict(short, golden).divergence is None


def test_a_model_that_is_compiled_as_a_whole_is_held_against_an_eager_one(new_debugger: Any, tmp_path: Path) -> None:
    """Nothing of its layers is recorded; the optimizer has the gradients of all parameters."""
    eager = trained(new_debugger, tmp_path / "eager")
    right = probe.verdict(trained(new_debugger, tmp_path / "right", compiles=True), eager)
    assert right.conclusion == "none" and "the gradients of all 4 parameters agree" in right.answer[0], right.answer
    wrong = probe.verdict(trained(new_debugger, tmp_path / "wrong", nn.Dropout(0.5), compiles=True), eager)
    assert wrong.divergence is not None, wrong.answer


def test_a_batch_in_parts_in_a_short_type_is_told_by_a_factor_alone(new_debugger: Any, tmp_path: Path) -> None:
    """What rounding to bfloat16 may do to a gradient would hide a fault of a tenth of it."""
    short = {"dtype": torch.bfloat16, "level": "L0"}
    whole = trained(new_debugger, tmp_path / "whole", **short)
    right = probe.verdict(trained(new_debugger, tmp_path / "right", parts=2, **short), whole)
    assert right.conclusion == "cannot_tell", right.answer
    wrong = probe.verdict(trained(new_debugger, tmp_path / "wrong", parts=2, divides=False, **short), whole)
    assert "does not divide by 2" in str(wrong.answer)
