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
def test_memory_does_not_grow_with_the_number_of_steps_nor_of_passes_in_one(runs: Any, level: str) -> None:
    model = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    debugger, train = runs.new(level=level), training(model)
    # What is left behind would be there after each hundred; MindSpore's own tables grow now and then.
    for passes_in_one in (False, True):
        numbers = []
        debugger.start(model)
        for number in range(205):
            train()
            if not passes_in_one:
                debugger.stop()
                debugger.step()
                debugger.start(model)
            if number in (4, 104, 204):
                numbers.append(objects())
        debugger.stop()
        debugger.step()
        assert min(after - before for before, after in zip(numbers, numbers[1:])) < 100, numbers
