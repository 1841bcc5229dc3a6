"""A program gives the same bits with the tool as without, and finds everything as it was afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import batch, block_network

from probe.collect.sinks.ring.step_ring import StepRing

SETTINGS = [
    {"level": level, "task": task, **more}
    for level in ("L0", "L1", "mix")
    for task, more in (
        ("statistics", {}),
        ("statistics", {"summary_mode": "md5"}),
        ("statistics", {"summary_mode": "xor"}),
        ("tensor", {}),
        ("tensor", {"summary_mode": "md5"}),
        ("structure", {}),
        ("overflow_check", {}),
    )
]


def residual_network(backend: Any) -> Any:
    """Inputs used several times, dropout, a shared layer: sums of gradients whose order shows in the last bits."""
    rng = np.random.default_rng(3)

    def linear(inputs: int, outputs: int) -> Any:
        scale = 1 / np.sqrt(inputs)
        return backend.linear(
            rng.normal(size=(outputs, inputs)).astype(np.float32) * scale, rng.normal(size=outputs).astype(np.float32)
        )

    def block() -> Any:
        def forward(self: Any, x: Any) -> Any:
            y = self.down(self.drop(self.act(self.up(x))))
            gate = self.gate(x)
            return x + y * gate + x * 0.3

        return backend.module(
            "Block", forward, up=linear(16, 48), act=backend.relu(), drop=backend.seeded_dropout(0.25),
            down=linear(48, 16), gate=linear(16, 16),
        )  # fmt: skip

    def forward(self: Any, x: Any) -> Any:
        first = self.one(self.shared(x))
        second = self.two(first + x)
        return self.shared(second) + first

    return backend.module("Net", forward, one=block(), two=block(), shared=linear(16, 16))


def train(backend: Any, around: Callable[[Any, Callable[[], Any]], Any]) -> tuple[list[Any], dict[str, Any], bytes]:
    """Losses, state and random state after three steps; `around` gets the model and each step to call."""
    # The seed comes first: a dropout layer of MindSpore draws its own when it is made.
    backend.seed(5)
    model = residual_network(backend)
    backend.training(model, True)
    step = backend.trainer(model)
    rng = np.random.default_rng(8)
    losses = []
    for _ in range(3):
        data = backend.tensor(rng.normal(size=(9, 16)).astype(np.float32))
        losses.append(around(model, functools.partial(step, data)))
    return losses, backend.state(model), backend.random_state()


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s.values()))
def test_training_gives_the_same_bits(
    runs: Any, backend: Any, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, state, random = train(backend, lambda model, call: call())
    debugger = runs.new(**settings)
    seen = []
    if settings["task"] == "overflow_check":
        add = StepRing.add
        monkeypatch.setattr(StepRing, "add", lambda ring, frame: (seen.append(frame), add(ring, frame)))

    def collected(model: Any, call: Callable[[], Any]) -> Any:
        debugger.start(model)
        loss = call()
        debugger.stop()
        debugger.step()
        return loss

    watched_losses, watched_state, watched_random = train(backend, collected)
    assert [loss.tobytes() for loss in losses] == [loss.tobytes() for loss in watched_losses]
    assert list(state) == list(watched_state) and len(state) == 28
    different = [name for name in state if state[name].tobytes() != watched_state[name].tobytes()]
    assert different == []
    assert random == watched_random
    if settings["task"] == "overflow_check":
        assert not runs.path.exists()
        assert len(seen) > 3 * 20, "something was watched"
        return
    dump = runs.read(2)
    assert len(dump.tree if settings["task"] == "structure" else dump.data) > 20, "something was collected"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_functions_are_the_same_objects_before_during_and_after(runs: Any, backend: Any, level: str) -> None:
    before = backend.api_objects()
    debugger, model = runs.new(level=level), block_network(backend)
    created = backend.api_objects()
    debugger.start(model)
    during = backend.api_objects()
    model(batch(backend))
    debugger.stop()
    after = backend.api_objects()
    assert [name for name in before if created[name] is not before[name]] == []
    assert [name for name in backend.same_while_collecting if during[name] is not before[name]] == []
    assert [name for name in before if after[name] is not before[name]] == []


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_nothing_is_attached_to_the_model_after_step_nor_ever_at_l1(runs: Any, backend: Any, level: str) -> None:
    debugger, model = runs.new(level=level), block_network(backend)
    assert backend.traces_left(model) == []
    debugger.start(model)
    assert (backend.traces_left(model) == []) == (level == "L1")
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    assert [trace for trace in backend.traces_left(model) if "forward" in trace] == []
    debugger.step()
    assert backend.traces_left(model) == []


def test_a_module_gets_and_returns_the_very_objects_and_values_that_it_does_alone(runs: Any, backend: Any) -> None:
    seen, made = [], []

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        made.append({"a": self.act(args[0]), "b": [args[0]]})
        return made[-1]

    inner = backend.module("Inner", forward, act=backend.relu())
    model = backend.module("Net", lambda self, *args, **kwargs: self.inner(*args, **kwargs), inner=inner)
    debugger, x, holder = runs.new(level="mix", task="tensor"), batch(backend), {"k": [1]}
    before = backend.numpy(x)
    debugger.start(model)
    result = model(x, holder, option=holder)
    debugger.stop()
    ((args, kwargs),) = seen
    assert args[0] is x and args[1] is holder and kwargs["option"] is holder
    assert result is made[0] and result["b"][0] is x and np.array_equal(backend.numpy(x), before)
