"""A copy of a model is another model, whenever it was made."""

from __future__ import annotations

import copy
import pickle
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


def users_hook(*_: Any) -> None: ...


@LEVELS
def test_a_copy_made_while_collecting_has_the_users_hooks_and_no_others(runs: Any, backend: Any, level: str) -> None:
    model, debugger = block_network(backend), runs.new(level=level)
    model.head.register_forward_hook(users_hook)
    expected = backend.traces_left(copy.deepcopy(model))
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    copied = copy.deepcopy(model)
    if level != "L1":
        assert len(backend.traces_left(model)) > len(expected)
    # mindtorch's deep copy of a parameter has the memory of the original, and its hooks.
    found = [trace for trace in backend.traces_left(copied) if not trace.endswith(".hooks")]
    assert found == expected and len(expected) == 1


@LEVELS
def test_a_module_is_pickled_while_collecting_as_it_is_otherwise(runs: Any, backend: Any, level: str) -> None:
    def pickled(module: Any) -> Any:
        try:
            return pickle.dumps(module)
        except TypeError as error:
            return str(error)  # MindSpore's own cells cannot be pickled

    model, debugger = block_network(backend), runs.new(level=level)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    expected = pickled(model.head)  # not earlier: MindSpore makes a dictionary of hooks with the first one
    debugger.start(model)
    backend.run(model, batch(backend))
    assert pickled(model.head) == expected
