"""A copy of a model is another model, whenever it was made."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from programs import Names, batch, block_network

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


@LEVELS
def test_a_copy_made_while_collecting_computes_the_same_and_is_not_seen_later(
    runs: Any, backend: Any, level: str
) -> None:
    model, debugger = block_network(backend), runs.new(level=level)
    expected = backend.numpy(model(batch(backend)))
    debugger.start(model)
    copied = copy.deepcopy(model)
    debugger.stop()
    debugger.step()
    debugger.start(model)
    assert np.array_equal(backend.numpy(copied(batch(backend))), expected)
    debugger.stop()
    assert [name for name in runs.read(1).names if name.startswith(backend.root)] == []


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_copy_made_while_collecting_is_not_recorded_as_the_model(runs: Any, backend: Any, level: str) -> None:
    model, debugger, names = block_network(backend), runs.new(level=level), Names(backend)
    debugger.start(model)
    copied = copy.deepcopy(model)
    for called in (model, copied, model):
        backend.run(called, batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    assert [name for name in dump.names if name.startswith(names.fc) and "ward" in name] == [
        f"{names.fc}.{half}.{number}" for number in (0, 1) for half in ("forward", "backward")
    ]
