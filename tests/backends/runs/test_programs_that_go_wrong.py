"""Exceptions and interrupts inside calls and modules, and start and stop in the middle of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import BATCH, WEIGHT1, Failed, Names, batch, chain


def test_an_exception_in_an_api_leaves_later_records_alone(runs: Any, backend: Any) -> None:
    debugger, x = runs.new(), batch(backend)
    matmul, absolute = backend.apis["matmul"], backend.apis["abs"]
    debugger.start()
    with pytest.raises(Exception, match=r"."):
        matmul.call(x, x)
    absolute.call(x)
    matmul.call(x, backend.transposed(x))
    debugger.stop()
    dump = runs.read()
    assert dump.names == [f"{matmul.base}.0.forward", f"{absolute.base}.0.forward", f"{matmul.base}.1.forward"]
    assert set(dump.data[dump.names[0]]) == {"input_args", "input_kwargs"}, "the failed call has no output"
    assert set(dump.data[dump.names[1]]) == {"input_args", "input_kwargs", "output"}


def failing_network(backend: Any) -> Any:
    """``Net(outer(bad), last)``: `bad` raises in its forward, which the model survives."""

    def bad(self: Any, x: Any) -> Any:
        self.fc(x)
        raise Failed("bad")

    def forward(self: Any, x: Any) -> Any:
        try:
            self.outer(x)
        except Failed:
            pass
        return self.last(x)

    inner = backend.module("Bad", bad, fc=backend.linear(WEIGHT1, np.zeros(3, np.float32)))
    outer = backend.module("Outer", chain("bad"), bad=inner)
    return backend.module("Net", forward, outer=outer, last=backend.linear(WEIGHT1, np.zeros(3, np.float32)))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_exception_in_a_module_leaves_the_tree_intact(runs: Any, backend: Any, level: str) -> None:
    debugger, model = runs.new(level=level), failing_network(backend)
    root, linear = backend.root, backend.classes["linear"]
    debugger.start(model)
    for _ in range(2):
        backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    tree = runs.read().tree
    for n in range(2):
        outer = f"{root}.outer.Outer.forward.{n}"
        assert tree[outer] is None
        assert tree[f"{root}.outer.bad.Bad.forward.{n}"] == outer
        assert tree[f"{root}.outer.bad.fc.{linear}.forward.{n}"] == f"{root}.outer.bad.Bad.forward.{n}"
        assert tree[f"{root}.last.{linear}.forward.{n}"] is None
    names = runs.read().names
    assert f"{root}.last.{linear}.backward.1" in names and not [n for n in names if "Bad.backward" in n]
    assert backend.traces_left(model) == []


def test_an_exception_reaches_the_caller_as_it_was_raised(runs: Any, backend: Any) -> None:
    original = Failed("mine")

    def bad(self: Any, x: Any) -> Any:
        raise original

    model = backend.module("Net", chain("bad"), bad=backend.module("Bad", bad))
    debugger = runs.new(level="mix")
    debugger.start(model)
    with pytest.raises(Failed) as caught:
        model(batch(backend))
    debugger.stop()
    assert caught.value is original and caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_whose_exception_is_caught_in_the_one_around_it_keeps_its_inputs(
    runs: Any, backend: Any, level: str, kind: type[BaseException]
) -> None:
    def bad(self: Any, x: Any) -> Any:
        raise kind

    def careful(self: Any, x: Any) -> Any:
        try:
            self.bad(x)
        except kind:
            pass
        return x

    careful_one = backend.module("Careful", careful, bad=backend.module("Bad", bad))
    debugger = runs.new(level=level)
    model = backend.module("Net", chain("careful"), careful=careful_one)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    dump = runs.read()
    outer, inner = f"{backend.root}.careful.Careful.forward.0", f"{backend.root}.careful.bad.Bad.forward.0"
    assert dump.tree[inner] == outer and dump.stack_of(inner)
    assert dump.data[inner]["input_args"] == dump.data[outer]["input_args"] and dump.data[outer]["output"][0]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_call_can_be_followed_by_another_run(runs: Any, backend: Any, kind: type[BaseException]) -> None:
    calls = [0]

    def sometimes(self: Any, x: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise kind
        return self.fc(x)

    fc = backend.linear(WEIGHT1, np.zeros(3, np.float32))
    model = backend.module("Net", chain("inner"), inner=backend.module("Inner", sometimes, fc=fc))
    debugger = runs.new(level="mix")
    debugger.start(model)
    with pytest.raises(kind):
        model(batch(backend))
    model(batch(backend))
    debugger.stop()
    tree = runs.read().tree
    inner = f"{backend.root}.inner.Inner.forward"
    assert tree[f"{inner}.0"] is None and tree[f"{inner}.1"] is None
    assert tree[f"{backend.root}.inner.fc.{backend.classes['linear']}.forward.0"] == f"{inner}.1"


def calling(backend: Any, between: Any) -> Any:
    """``Net(body(first, second))`` of identities; `between` is called after the first."""
    eye = np.eye(4, dtype=np.float32)
    first, second = (backend.linear(eye, np.zeros(4, np.float32)) for _ in range(2))

    def forward(self: Any, x: Any) -> Any:
        x = self.first(x)
        between()
        return self.second(x)

    return backend.module("Net", chain("body"), body=backend.module("Block", forward, first=first, second=second))


def test_stop_inside_a_module_ends_collection_there(runs: Any, backend: Any) -> None:
    names, debugger = Names(backend), runs.new(level="mix")
    model = calling(backend, debugger.stop)
    debugger.start(model)
    assert np.array_equal(backend.numpy(model(batch(backend))), BATCH)
    debugger.step()
    assert backend.traces_left(model) == []
    dump = runs.read()
    assert f"{backend.root}.body.first.{backend.classes['linear']}.forward.0" in dump.names
    assert not [name for name in dump.names if "second" in name]
    assert f"{names.body}.forward.0" in dump.tree, "it is the parent of what ran in it"
    assert set(dump.data[f"{names.body}.forward.0"]) == {"input_args", "input_kwargs"}


def test_start_inside_a_module_begins_collection_there(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="mix")
    model = calling(backend, lambda: debugger.start(model))
    model(batch(backend))
    debugger.stop()
    base = f"{backend.root}.body.second.{backend.classes['linear']}"
    assert runs.read().forward == [f"{backend.apis['linear'].base}.0.forward", f"{base}.forward.0"]
    assert runs.read().tree[f"{base}.forward.0"] is None
