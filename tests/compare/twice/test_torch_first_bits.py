"""Two runs of a small training in which something is not the same: the call, and what makes it so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.compare.twice.answer import Repetition, lines, repetition
from probe.compare.twice.first_bits import How

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional
Plant = Callable[..., Any]


class Noise(torch.autograd.Function):
    """Adds to its argument what nothing records, as a kernel without an order of its own does."""

    @staticmethod
    def forward(ctx: Any, x: Any, forward: float, backward: float) -> Any:
        ctx.backward_noise = backward
        return noisy(x, forward)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return noisy(gradient, ctx.backward_noise), None, None


def noisy(x: Any, noise: float) -> Any:
    found = x.detach().clone()
    found.numpy()[:] += noise
    return found


class Block(nn.Module):
    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.kernel, self.line, self.drop = Kernel(name, number), nn.Linear(16, 16), nn.Dropout(0.2)
        self.name, self.number = name, number

    def forward(self, x: Any) -> Any:
        if self.name == "argument":
            x = x * (1.0 + 0.125 * self.number)
        if self.name in ("memory", "overwritten"):
            memory = torch.empty_like(x)
            memory.detach().numpy()[:] = self.number
            x = x + memory if self.name == "memory" else torch.mul(memory.copy_(x.detach()), x)
        if self.name == "branch" and self.number:
            x = F.relu(x)
        return self.drop(F.relu(self.line(self.kernel(x))))


class Kernel(nn.Module):
    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.noise = [1e-6 * number * (name == each) for each in ("kernel", "backward of a kernel")]

    def forward(self, x: Any) -> Any:
        return Noise.apply(x, *self.noise)


def trained(new_debugger: Any, folder: Path, name: str, number: int, level: str = "mix") -> Path:
    """Three steps of a training, dumped with checksums; `name` is what is planted into run 1 and not into run 0."""
    torch.manual_seed(3)
    data = torch.randn(3, 8, 16)
    if name == "weights":
        torch.seed()
    model = nn.Sequential(nn.Linear(16, 16), Block(name, number), nn.Linear(16, 4))
    if name == "draws":
        torch.seed()
    if name == "seed of the draws":
        torch.manual_seed(11 + number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "order" and number:
        data = data.flip(0)
    if name == "order in the batch" and number:
        data = data.flip(1)
    tokens = torch.arange(8).flip(0) if number else torch.arange(8)
    debugger = new_debugger(level=level, dump_path=str(folder), task="statistics", summary_mode="md5")
    for batch in data:
        debugger.start(model)
        if name == "order of tokens":
            batch = batch + F.embedding(tokens, torch.eye(8, 16))
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        if name == "between steps":
            model[2].bias.detach().numpy()[:] += number
    return folder


def answered(new_debugger: Any, folder: Path, name: str, level: str = "mix") -> tuple[Repetition, str]:
    first, second = (trained(new_debugger, folder / str(number), name, number, level) for number in (0, 1))
    found = repetition(str(first), str(second))
    return found, "\n".join(text for text, _ in lines(found))


@pytest.mark.parametrize("name", ["nothing", "overwritten"])
def test_the_same_bits_are_deterministic_also_where_memory_was_overwritten(
    new_debugger: Any, tmp_path: Path, name: str
) -> None:
    found, text = answered(new_debugger, tmp_path, name)
    assert text.startswith("deterministic: 3 steps, ") and "CRC-32" in text, text
    assert not found.differs and found.first is None


def test_a_step_that_one_run_lacks_is_a_difference(new_debugger: Any, tmp_path: Path) -> None:
    first, second = (trained(new_debugger, tmp_path / str(number), "nothing", number) for number in (0, 1))
    shutil.rmtree(second / "step2")
    found = repetition(str(first), str(second))
    text = "\n".join(line for line, _ in lines(found))
    assert found.differs and text.startswith("not deterministic: one run has records that the other one lacks"), text
    assert text.endswith("missing: step 2 is in the first run only"), text


def test_parameters_that_differ_before_the_first_recorded_step_have_no_cause_in_it(
    new_debugger: Any, tmp_path: Path
) -> None:
    runs = [trained(new_debugger, tmp_path / str(number), "between steps", number) for number in (0, 1)]
    for run in runs:
        shutil.rmtree(run / "step0")
    text = "\n".join(line for line, _ in lines(repetition(*map(str, runs))))
    assert "2.bias differs already at the beginning of the first recorded step" in text and "--step 0" in text, text


def test_last_records_that_one_run_lacks_are_a_difference(new_debugger: Any, tmp_path: Path) -> None:
    first, second = (trained(new_debugger, tmp_path / str(number), "nothing", number) for number in (0, 1))
    drop_records(second, 2, keep=20)
    found = repetition(str(first), str(second))
    text = "\n".join(line for line, _ in lines(found))
    assert found.differs and text.startswith("not deterministic: one run has records that the other one lacks"), text
    assert "missing: step 2" in text and "the second run ends at" in text and "the first run has" in text, text


def test_runs_that_recorded_no_tensor_are_not_called_deterministic(new_debugger: Any, tmp_path: Path) -> None:
    runs = [trained(new_debugger, tmp_path / str(number), "nothing", number) for number in (0, 1)]
    for run in runs:
        for step in range(3):
            drop_records(run, step, keep=0)
    with pytest.raises(MsprobeException, match="no tensor was recorded, so that nothing can be compared"):
        repetition(*map(str, runs))


def drop_records(run: Path, step: int, keep: int) -> None:
    """Leave only the first records of a step."""
    (file,) = (run / f"step{step}").glob("*/dump.json")
    content = json.loads(file.read_text())
    content["data"] = dict(list(content["data"].items())[:keep])
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "how", "record", "words"),
    [
        ("weights", How.PARAMETER, "Functional.linear.0.forward", "sets no seed"),
        ("draws", How.DRAW, "Functional.dropout.0.forward", "sets no seed"),
        ("seed of the draws", How.DRAW, "Functional.dropout.0.forward", "the seed is 11, and 12 in the second run"),
        ("argument", How.ARGUMENT, "Tensor.__mul__.0.forward", "is 1.0, and 1.125 in the second run"),
        ("memory", How.UNRECORDED, "Tensor.__add__.0.forward", "to which nothing was written"),
        ("branch", How.OTHER_MAKER, "Module.1.kernel.Kernel.forward.0", "and Functional.relu.0.forward in the second"),
        ("kernel", How.RESULT, "Module.1.kernel.Kernel.forward.0", "something inside of the module"),
        ("backward of a kernel", How.RESULT, "Module.1.kernel.Kernel.backward.0", "something inside of the module"),
        ("order", How.DATA, "Functional.linear.0.forward", "the second run has this tensor in step 2"),
        ("order in the batch", How.DATA, "Functional.linear.0.forward", "the same elements"),
        ("order of tokens", How.DATA, "Functional.embedding.0.forward", "the same elements"),
        ("between steps", How.PARAMETER, "Functional.linear.2.forward", "updated otherwise after the step before"),
    ],
)
def test_the_first_call_with_other_bits_is_named_with_its_cause(
    new_debugger: Any, tmp_path: Path, name: str, how: How, record: str, words: str
) -> None:
    found, text = answered(new_debugger, tmp_path, name)
    assert found.first is not None and found.differs
    pair, first = found.first
    assert (first.how, first.record, pair.step) == (how, record, "step1" if name == "between steps" else "step0"), text
    assert words in text, text
    assert len(pair.found) == 1 or name in ("draws", "seed of the draws"), text


def test_without_functions_the_module_that_draws_is_named(new_debugger: Any, tmp_path: Path) -> None:
    found, text = answered(new_debugger, tmp_path, "draws", "L0")
    assert found.first is not None and found.first[1].how is How.DRAW, text
    assert found.first[1].record == "Module.1.drop.Dropout.forward.0" and "sets no seed" in text
