"""construct.json: who ran inside whom."""

from __future__ import annotations

from typing import Any

import pytest
from programs import Names, batch, block_network, chain


def collect(runs: Any, backend: Any, level: str, **settings: Any) -> Any:
    model = block_network(backend)
    debugger = runs.new(level=level, **settings)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    return runs.read()


def test_modules_have_the_module_around_them_as_parent(runs: Any, backend: Any) -> None:
    names = Names(backend)
    expected = {}
    for direction in ("forward", "backward"):
        inside = f"{names.body}.{direction}.0"
        expected.update({f"{names.fc}.{direction}.0": inside, f"{names.act}.{direction}.0": inside})
        expected.update({inside: None, f"{names.head}.{direction}.0": None})
    assert collect(runs, backend, "L0").tree == expected


def test_apis_have_the_innermost_module_as_parent(runs: Any, backend: Any) -> None:
    tree, names = collect(runs, backend, "mix").tree, Names(backend)
    linear, relu = backend.apis["linear"].base, backend.apis["relu"].base
    apis = {name: parent for name, parent in tree.items() if not name.startswith(backend.root)}
    assert apis == {
        f"{linear}.0.forward": f"{names.fc}.forward.0",
        f"{relu}.0.forward": f"{names.act}.forward.0",
        f"{linear}.1.forward": f"{names.head}.forward.0",
        f"{linear}.1.backward": f"{names.head}.backward.0",
        f"{relu}.0.backward": f"{names.act}.backward.0",
        f"{linear}.0.backward": f"{names.fc}.backward.0",
    }
    assert tree[f"{names.act}.forward.0"] == f"{names.body}.forward.0"


def test_parents_stand_before_their_children(runs: Any, backend: Any) -> None:
    tree = collect(runs, backend, "mix").tree
    order = list(tree)
    for name, parent in tree.items():
        if parent is not None and ".backward" not in name:
            assert order.index(parent) < order.index(name)


def test_the_tree_is_empty_at_level_l1(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "L1")
    assert dump.tree == {} and len(dump.names) == 6


def test_gradients_of_parameters_are_not_in_the_tree(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "mix")
    assert len(dump.parameter_gradients) == 2
    assert set(dump.tree) == set(dump.names) - set(dump.parameter_gradients)


def test_calls_that_a_filter_leaves_out_are_in_the_tree(runs: Any, backend: Any) -> None:
    names = Names(backend)
    dump = collect(runs, backend, "L0", **{"list": [names.act]})
    assert [name for name in dump.names if ".parameters_grad" not in name] == [
        f"{names.act}.forward.0",
        f"{names.act}.backward.0",
    ]
    assert len(dump.tree) == 8


def test_an_api_outside_all_modules_has_no_parent(runs: Any, backend: Any) -> None:
    debugger, model, absolute = runs.new(level="mix"), block_network(backend), backend.apis["abs"]
    debugger.start(model)
    absolute.call(batch(backend))
    debugger.stop()
    assert runs.read().tree == {f"{absolute.base}.0.forward": None}


@pytest.mark.parametrize("depth", [1, 12])
def test_any_depth_of_modules_is_followed(runs: Any, backend: Any, depth: int) -> None:
    inner = backend.relu()
    for _ in range(depth):
        inner = backend.module("Block", chain("a"), a=inner)
    debugger = runs.new(level="L0")
    debugger.start(inner)
    inner(batch(backend))
    debugger.stop()
    paths = [".".join("a" * (n + 1)) for n in range(depth)]
    classes = ["Block"] * (depth - 1) + [backend.classes["relu"]]
    bases = [f"{backend.root}.{path}.{kind}" for path, kind in zip(paths, classes)]
    records = [f"{base}.forward.0" for base in bases]
    assert runs.read().tree == dict(zip(records, [None, *records]))
    assert runs.read().names == records[::-1]


def test_a_module_that_calls_itself_is_inside_itself(runs: Any, backend: Any) -> None:
    def forward(self: Any, x: Any, again: int = 2) -> Any:
        return self(x * 2, again - 1) if again else x

    model = backend.module("Net", chain("loop"), loop=backend.module("Loop", forward))
    debugger = runs.new(level="L0")
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    base = f"{backend.root}.loop.Loop.forward"
    assert runs.read().tree == {f"{base}.0": None, f"{base}.1": f"{base}.0", f"{base}.2": f"{base}.1"}
    assert runs.read().names == [f"{base}.{n}" for n in (2, 1, 0)]
