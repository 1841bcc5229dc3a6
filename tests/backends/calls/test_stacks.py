"""stack.json: from where each call was made."""

from __future__ import annotations

import sys
from typing import Any

from programs import Names, batch, block_network

THIS = __file__


def line() -> int:
    return sys._getframe(1).f_lineno


def own_frames(frames: list[str]) -> list[str]:
    """The frames of this file."""
    return [frame for frame in frames if frame.startswith(f"File {THIS}, ")]


def test_a_frame_has_file_line_function_and_source(runs: Any, backend: Any) -> None:
    debugger, absolute, x = runs.new(), backend.apis["abs"], batch(backend)
    debugger.start()
    number = line() + 1
    absolute.call(x)
    debugger.stop()
    frames = runs.read().stack_of(f"{absolute.base}.0.forward")
    function = "test_a_frame_has_file_line_function_and_source"
    assert frames[0] == f"File {THIS}, line {number}, in {function}, \n absolute.call(x)"


def test_calls_from_the_same_place_share_an_entry(runs: Any, backend: Any) -> None:
    debugger, absolute, x = runs.new(), backend.apis["abs"], batch(backend)
    debugger.start()
    for _ in range(3):
        absolute.call(x)
    absolute.call(x)
    debugger.stop()
    names = [names for names, _ in runs.read().stacks.values()]
    base = absolute.base
    assert names == [[f"{base}.{n}.forward" for n in range(3)], [f"{base}.3.forward"]]
    assert list(runs.read().stacks) == ["0", "1"]


def test_different_apis_called_from_one_place_share_an_entry(runs: Any, backend: Any) -> None:
    debugger, x = runs.new(), batch(backend)
    apis = [backend.apis["abs"], backend.apis["matmul"]]
    arguments = [(x,), (x, backend.transposed(x))]
    debugger.start()
    for api, given in zip(apis, arguments):
        api.call(*given)
    debugger.stop()
    ((names, _),) = runs.read().stacks.values()
    assert names == [f"{api.base}.0.forward" for api in apis]


def test_only_forward_calls_have_a_stack(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    found = [name for names, _ in dump.stacks.values() for name in names]
    assert sorted(found) == sorted(dump.forward) and len(dump.backward) == 7


def test_names_stand_in_order_of_their_beginning(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="mix"), block_network(backend), Names(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    found = [name for names, _ in runs.read().stacks.values() for name in names]
    linear, relu = backend.apis["linear"].base, backend.apis["relu"].base
    # Stacks are in the order of their first name, and none is shared here but those of children in one line.
    assert found.index(f"{names.body}.forward.0") == 0
    assert found.index(f"{names.fc}.forward.0") < found.index(f"{linear}.0.forward")
    assert found.index(f"{names.act}.forward.0") < found.index(f"{relu}.0.forward")


def test_frames_of_the_tool_are_left_out(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    frames = [frame for _, frames in runs.read().stacks.values() for frame in frames]
    assert frames and not [
        frame for frame in frames if "/probe/" in frame.split(", line")[0] and "/tests/" not in frame
    ]
    assert not [frame for frame in frames if frame.startswith("File <")]


def test_the_innermost_frame_comes_first(runs: Any, backend: Any) -> None:
    def inner(x: Any) -> Any:
        return backend.apis["abs"].call(x)

    def outer(x: Any) -> Any:
        return inner(x)

    debugger = runs.new()
    debugger.start()
    outer(batch(backend))
    debugger.stop()
    frames = own_frames(runs.read().stack_of(f"{backend.apis['abs'].base}.0.forward"))
    assert [frame.split(", in ")[1].split(",")[0] for frame in frames] == [
        "inner",
        "outer",
        "test_the_innermost_frame_comes_first",
    ]


def test_module_stacks_lead_to_the_line_of_the_call(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    frames = runs.read().stack_of(f"{names.fc}.forward.0")
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
