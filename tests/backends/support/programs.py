"""Small programs that several tests run, written once for every framework."""

from __future__ import annotations

from typing import Any

import numpy as np

WEIGHT1 = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
BIAS1 = np.array([0.5, -0.25, 0.125], dtype=np.float32)
WEIGHT2 = np.linspace(1, -0.5, 6, dtype=np.float32).reshape(2, 3)
BIAS2 = np.array([0.25, -1.0], dtype=np.float32)
BATCH = np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 4)


class Failed(Exception):
    """The error of a program."""


def chain(*names: str) -> Any:
    """A forward that calls children one after the other."""

    def forward(self: Any, x: Any) -> Any:
        for name in names:
            x = getattr(self, name)(x)
        return x

    return forward


def block_network(backend: Any) -> Any:
    """``head(body(x))`` with a body of two layers; parameters are those above."""
    body = backend.module("Block", chain("fc", "act"), fc=backend.linear(WEIGHT1, BIAS1), act=backend.relu())
    return backend.module("Net", chain("body", "head"), body=body, head=backend.linear(WEIGHT2, BIAS2))


def batch(backend: Any, requires_grad: bool = False) -> Any:
    return backend.tensor(BATCH, requires_grad=requires_grad)


class Names:
    """Record names of `block_network`."""

    def __init__(self, backend: Any) -> None:
        root, linear, relu = backend.root, backend.classes["linear"], backend.classes["relu"]
        self.fc = f"{root}.body.fc.{linear}"
        self.act = f"{root}.body.act.{relu}"
        self.body = f"{root}.body.Block"
        self.head = f"{root}.head.{linear}"


def values() -> Any:
    """What `block_network` computes on `BATCH`, in float64: hidden before relu, after it, output."""
    hidden = BATCH.astype(np.float64) @ WEIGHT1.T.astype(np.float64) + BIAS1
    return hidden, np.maximum(hidden, 0), np.maximum(hidden, 0) @ WEIGHT2.T.astype(np.float64) + BIAS2


def collect(runs: Any, backend: Any, level: str = "mix", times: int = 1, **settings: Any) -> Any:
    """The dump of a step in which `block_network` runs forward and backward."""
    debugger, model = runs.new(level=level, **settings), block_network(backend)
    debugger.start(model)
    for _ in range(times):
        backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    return runs.read()


def collect_calls(runs: Any, model: Any, call: Any, level: str = "L0", **settings: Any) -> Any:
    """The dump of a step in which `call` is called."""
    debugger = runs.new(level=level, **settings)
    debugger.start(model)
    call()
    debugger.stop()
    return runs.read()
