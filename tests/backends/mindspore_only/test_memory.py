"""What the tool keeps alive: nothing that grows with the number of passes."""

from __future__ import annotations

import gc
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def training(model: Any) -> Any:
    step = ms.value_and_grad(lambda x: model(x).sum(), 0, list(model.trainable_params()))
    x = Tensor(np.ones((2, 3), np.float32))
    return lambda: step(x)


@pytest.mark.sampled(least=1, each=False)
@LEVELS
def test_memory_does_not_grow_with_the_number_of_steps(runs: Any, level: str) -> None:
    model = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    debugger, train = runs.new(level=level), training(model)

    def steps(count: int) -> None:
        for _ in range(count):
            debugger.start(model)
            train()
            debugger.stop()
            debugger.step()

    steps(5)
    before = objects()
    steps(100)
    assert objects() - before < 100


@pytest.mark.sampled(least=1, each=False)
@LEVELS
def test_memory_does_not_grow_with_the_number_of_passes_in_a_step(runs: Any, level: str) -> None:
    model = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    debugger, train = runs.new(level=level), training(model)
    debugger.start(model)
    for _ in range(5):
        train()
    # What a pass leaves behind would be there after each hundred; MindSpore's own tables grow now and then.
    numbers = [objects()]
    for _ in range(2):
        for _ in range(100):
            train()
        numbers.append(objects())
    debugger.stop()
    assert min(after - before for before, after in zip(numbers, numbers[1:])) < 100, numbers
