"""construct.json: who ran inside whom; stack.json: from where each call was made; the task of these alone."""

from __future__ import annotations

import sys
from typing import Any

import dumped
import pytest
from programs import Names, batch, block_network, chain, collect, collect_calls

from probe.common.dump.stack_text import GAP_TEXT

THIS = __file__


def line() -> int:
    return sys._getframe(1).f_lineno


def own_frames(frames: list[str]) -> list[str]:
    """The frames of this file."""
    return [frame for frame in frames if frame.startswith(f"File {THIS}, ")]


# --- the tree


def test_modules_have_the_module_around_them_as_parent(runs: Any, backend: Any) -> None:
    names = Names(backend)
    expected = {}
    for direction in ("forward", "backward"):
        inside = f"{names.body}.{direction}.0"
        expected.update({f"{names.fc}.{direction}.0": inside, f"{names.act}.{direction}.0": inside})
        expected.update({inside: None, f"{names.head}.{direction}.0": None})
    assert collect(runs, backend, "L0").tree == expected


def test_apis_have_the_innermost_module_as_parent(runs: Any, backend: Any) -> None:
    dump, names = collect(runs, backend, "mix"), Names(backend)
    linear, relu = backend.apis["linear"].base, backend.apis["relu"].base
    apis = {name: parent for name, parent in dump.tree.items() if not name.startswith(backend.root)}
    assert apis == {
        f"{linear}.0.forward": f"{names.fc}.forward.0",
        f"{relu}.0.forward": f"{names.act}.forward.0",
        f"{linear}.1.forward": f"{names.head}.forward.0",
        f"{linear}.1.backward": f"{names.head}.backward.0",
        f"{relu}.0.backward": f"{names.act}.backward.0",
        f"{linear}.0.backward": f"{names.fc}.backward.0",
    }
    assert dump.tree[f"{names.act}.forward.0"] == f"{names.body}.forward.0"
    order = list(dump.tree)
    forward = {name: parent for name, parent in dump.tree.items() if parent and ".backward" not in name}
    assert all(order.index(parent) < order.index(name) for name, parent in forward.items()), "parents stand before"
    assert len(dump.parameter_gradients) == 2
    assert set(dump.tree) == set(dump.names) - set(dump.parameter_gradients)


def test_the_tree_is_empty_at_level_l1(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "L1")
    assert (dump.folder / "construct.json").read_text() == "{}" and len(dump.names) == 6


def test_calls_that_a_filter_leaves_out_are_in_the_tree(runs: Any, backend: Any) -> None:
    act = Names(backend).act
    dump = collect(runs, backend, "L0", **{"list": [act]})
    assert [name for name in dump.names if ".parameters_grad" not in name] == [f"{act}.forward.0", f"{act}.backward.0"]
    assert len(dump.tree) == 8


def test_an_api_outside_all_modules_has_no_parent(runs: Any, backend: Any) -> None:
    absolute = backend.apis["abs"]
    dump = collect_calls(runs, block_network(backend), lambda: absolute.call(batch(backend)), "mix")
    assert dump.tree == {f"{absolute.base}.0.forward": None}


@pytest.mark.parametrize("depth", [1, 12])
def test_any_depth_of_modules_is_followed(runs: Any, backend: Any, depth: int) -> None:
    inner = backend.relu()
    for _ in range(depth):
        inner = backend.module("Block", chain("a"), a=inner)
    dump = collect_calls(runs, inner, lambda: inner(batch(backend)))
    classes = ["Block"] * (depth - 1) + [backend.classes["relu"]]
    records = [f"{backend.root}.{'.'.join('a' * (n + 1))}.{kind}.forward.0" for n, kind in enumerate(classes)]
    assert dump.tree == dict(zip(records, [None, *records])) and dump.names == records[::-1]


def test_a_module_that_calls_itself_is_inside_itself(runs: Any, backend: Any) -> None:
    def forward(self: Any, x: Any, again: int = 2) -> Any:
        return self(x * 2, again - 1) if again else x

    model = backend.module("Net", chain("loop"), loop=backend.module("Loop", forward))
    dump, base = collect_calls(runs, model, lambda: model(batch(backend))), f"{backend.root}.loop.Loop.forward"
    assert dump.tree == {f"{base}.0": None, f"{base}.1": f"{base}.0", f"{base}.2": f"{base}.1"}
    assert dump.names == [f"{base}.{n}" for n in (2, 1, 0)]


# --- stacks


def test_a_frame_has_file_line_function_and_source_and_the_innermost_comes_first(runs: Any, backend: Any) -> None:
    def inner(x: Any) -> Any:
        return absolute.call(x)

    def outer(x: Any) -> Any:
        return inner(x)

    absolute, x, debugger = backend.apis["abs"], batch(backend), runs.new()
    debugger.start()
    number = line() + 1
    absolute.call(x)
    outer(x)
    debugger.stop()
    this = "test_a_frame_has_file_line_function_and_source_and_the_innermost_comes_first"
    frames = runs.read().stack_of(f"{absolute.base}.0.forward")
    assert frames[0] == f"File {THIS}, line {number}, in {this}, \n absolute.call(x)"
    frames = own_frames(runs.read().stack_of(f"{absolute.base}.1.forward"))
    assert [frame.split(", in ")[1].split(",")[0] for frame in frames] == ["inner", "outer", this]


def test_a_very_long_stack_has_a_line_in_place_of_its_middle(runs: Any, backend: Any) -> None:
    absolute, x = backend.apis["abs"], batch(backend)

    def deep(n: int) -> Any:
        return deep(n - 1) if n else absolute.call(x)

    dump = collect_calls(runs, block_network(backend), lambda: deep(300), "L1")
    frames = dump.stack_of(f"{absolute.base}.0.forward")
    assert frames.count(GAP_TEXT) == 1 and 200 < len(frames) <= 257
    assert ", in deep, " in frames[0] and ", in deep, " not in frames[-1]


def test_calls_from_the_same_line_share_an_entry(runs: Any, backend: Any) -> None:
    x, absolute, product = batch(backend), backend.apis["abs"], backend.apis["matmul"]
    debugger = runs.new()
    transposed = backend.transposed(x)
    debugger.start()
    for _ in range(3):
        absolute.call(x)
    absolute.call(x)
    for api, given in ((absolute, (x,)), (product, (x, transposed))):
        api.call(*given)
    debugger.stop()
    first, second, both = ([f"{absolute.base}.{n}.forward" for n in numbers] for numbers in (range(3), [3], [4]))
    stacks = runs.read().stacks
    assert [names for names, _ in stacks.values()] == [first, second, [*both, f"{product.base}.0.forward"]]
    assert list(stacks) == ["0", "1", "2"]


def test_forward_calls_have_stacks_without_frames_of_the_tool_in_order_of_their_beginning(
    runs: Any, backend: Any
) -> None:
    dump, names = collect(runs, backend, "mix"), Names(backend)
    found = [name for names, _ in dump.stacks.values() for name in names]
    assert sorted(found) == sorted(dump.forward) and len(dump.backward) == 7
    linear, relu = backend.apis["linear"].base, backend.apis["relu"].base
    # Stacks are in the order of their first name, and none is shared here but those of children in one line.
    assert found.index(f"{names.body}.forward.0") == 0
    assert found.index(f"{names.fc}.forward.0") < found.index(f"{linear}.0.forward")
    assert found.index(f"{names.act}.forward.0") < found.index(f"{relu}.0.forward")
    frames = [frame for _, frames in dump.stacks.values() for frame in frames]
    files = {frame.split(", line")[0] for frame in frames}
    assert files and not [file for file in files if "/probe/" in file and "/tests/" not in file]
    assert not [frame for frame in frames if frame.startswith("File <")]


def test_module_stacks_lead_to_the_line_of_the_call(runs: Any, backend: Any) -> None:
    model = block_network(backend)
    debugger = runs.new(level="L0")
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    frames = runs.read().stack_of(f"{Names(backend).fc}.forward.0")
    assert any("programs.py" in frame and "in forward" in frame for frame in frames)
    assert len(own_frames(frames)) == 1


def test_without_extra_info_there_are_neither_stacks_nor_tree(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix", extra_info=False), block_network(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    debugger.step()
    dump = runs.read()
    assert len(dump.forward) == 7
    assert sorted(path.name for path in dump.folder.iterdir()) == ["dump.json", "sketch.npz"]


# --- task structure: no values


def of_task(runs: Any, backend: Any, level: str, task: str) -> Any:
    path = runs.path / task
    debugger, model = runs.new(dump_path=path, level=level, task=task), block_network(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    return dumped.read(path)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_structure_has_no_data_and_the_same_tree_and_stacks(runs: Any, backend: Any, level: str) -> None:
    structure, statistics = (of_task(runs, backend, level, task) for task in ("structure", "statistics"))
    assert structure.data == {} and len(statistics.data) > 5
    assert structure.head["task"] == "structure" and structure.head["level"] == level
    assert structure.tree == statistics.tree and len(structure.tree) >= 8
    grouping = [[names for names, _ in dump.stacks.values()] for dump in (structure, statistics)]
    assert grouping[0] == grouping[1] and grouping[0]
    assert sorted(path.name for path in structure.folder.iterdir()) == ["construct.json", "dump.json", "stack.json"]


def test_structure_at_another_level_is_mix(runs: Any, backend: Any) -> None:
    dump, names = of_task(runs, backend, "L1", "structure"), Names(backend)
    assert dump.head["level"] == "mix"
    assert dump.tree[f"{names.act}.forward.0"] == f"{names.body}.forward.0"
    assert dump.tree[f"{backend.apis['relu'].base}.0.forward"] == f"{names.act}.forward.0"
