"""A dump as a tree of nodes: their order, what they are inside of, micro steps, and modules that stacks give back."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from graph_commands import DUMPS, LLAMA, Beside
from graph_dumps import call, expected, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from made_dumps import write, written

import probe
from probe import Graph
from probe.common.errors import DumpFormatError, MsprobeException
from probe.graph.graph import graph_beside, graph_of
from probe.graph.pairing import paired

_SIDES = [
    (case, side)
    for case in ("build_llama", "weight", "three_layers", "three_layers_fuzzy", "bf16", "nan")
    for side in ("target", "golden")
    if expected(case).get(side)
]
_APIS = "Apis_Between_Modules"
"""Where the names of groups begin."""


def tree_of(graph: Graph) -> dict[str, str | None]:
    return {name: graph.names[parent] if parent >= 0 else None for name, parent in zip(graph.names, graph.parents)}


def made(folder: Path, tree: Mapping[str, str | None], *more: str, micro_step: str | int = "off") -> Graph:
    """The graph of calls that take and return one tensor."""
    records = {name: call(tensor(), output=tensor()) for name in [*tree, *more]}
    return probe.open_graph(write(folder, records, tree), micro_step)


@pytest.mark.parametrize(("case", "side"), _SIDES)
def test_the_recorded_dumps_have_the_recorded_order_and_parents(case: str, side: str) -> None:
    wanted = expected(case)
    recorded = wanted["sides"][side]
    if isinstance(recorded["order_and_parent"], str):
        recorded = expected("build_llama")["sides"]["target"]
    graph = probe.open_graph(DUMPS / wanted[side])
    assert list(tree_of(graph).items()) == [tuple(each) for each in recorded["order_and_parent"]]
    assert graph.notes == []
    if case == "build_llama":
        kinds = sorted(graph.kinds.count(kind) for kind in set(graph.kinds))
        assert kinds == sorted(recorded[key] for key in ("apis", "groups", "modules"))


@st.composite
def forests(draw: st.DrawFn) -> dict[str, str | None]:
    """Forward and backward calls, each inside of one that was made before it, or at the top, in any order."""
    number = draw(st.integers(0, 25))
    names: list[str] = []
    tree: dict[str, str | None] = {}
    for each in range(number):
        is_module = draw(st.booleans())
        names.append(f"Module.m{each}.C.forward.0" if is_module else f"Torch.f.{each}.forward")
        around = draw(st.integers(-1, each - 1))
        tree[names[-1]] = names[around] if around >= 0 and names[around].startswith("Module") else None
        if is_module and draw(st.booleans()):
            # The backward pass is shown as the forward pass was, whatever stands there.
            tree[f"Module.m{each}.C.backward.0"] = draw(st.sampled_from([None, *names]))
    order = draw(st.permutations(list(tree)))
    return {name: tree[name] for name in order}


@given(forests())
def test_any_tree_is_a_graph_in_which_every_call_is_once_and_where_the_tree_says(tree: dict[str, str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = made(Path(folder), tree)
    groups = [name for name in graph.names if name.startswith(_APIS)]
    assert len(set(graph.names)) == len(graph) == len(tree) + len(groups) + 1
    sizes = [1] * len(graph)
    for node, parent in enumerate(graph.parents):
        assert graph.firsts[node] <= node < (parent if parent >= 0 else len(graph))
        assert node - graph.firsts[node] + 1 == sizes[node]
        assert graph.depths[node] == (graph.depths[parent] + 1 if parent >= 0 else 0)
        assert list(graph.above(node)) == ([parent, *graph.above(parent)] if parent >= 0 else [])
        if parent >= 0:
            sizes[parent] += sizes[node]
    assert list(graph.parents).count(-1) == 1 and sizes[-1] == len(graph)
    shown = tree_of(graph)
    for name, inside_of in tree.items():
        around = shown[name]
        if around in groups:
            around = shown[around]
        if ".backward." in name:
            of_forward = tree[name.replace("backward", "forward")]
            twin = of_forward and of_forward.replace("forward", "backward")
            inside_of = twin if twin in tree else None
        assert around == (inside_of or graph.names[-1])
    place = {name: number for number, name in enumerate(tree)}
    for inside in graph.children:
        calls = [graph.firsts[child] if graph.names[child] in groups else child for child in inside]
        assert [place[graph.names[each]] for each in calls] == sorted(place[graph.names[each]] for each in calls)


@settings(max_examples=30, deadline=None)
@given(forests(), st.data())
def test_a_run_of_the_same_calls_has_the_same_nodes_and_pairs_as_by_itself(
    tree: dict[str, str | None], data: st.DataObject
) -> None:
    recorded = [name for name in tree if data.draw(st.booleans())]
    with tempfile.TemporaryDirectory() as folder:
        records = {name: call(tensor(), output=tensor()) for name in recorded}
        target, golden = (written(Path(folder) / side, records, tree, step=step) for step, side in enumerate("ab"))
        graph, alone = graph_of(target), graph_of(golden)
        beside = graph_beside(target, graph, golden)
    assert beside == alone and (beside.names is graph.names or not tree)
    assert beside.micro_steps is not graph.micro_steps and beside.notes is not graph.notes
    judged = set(recorded), set(recorded)
    pairs = [(name, name) for name in recorded]
    assert paired(graph, beside, pairs, judged) == paired(graph, alone, pairs, judged)
    without_first = paired(graph, beside, pairs[1:], judged)
    assert without_first == paired(graph, alone, pairs[1:], judged)
    assert (-1 in without_first.golden) == bool(pairs)


# --- what is not as it should be


def test_clipping_and_the_optimizer_are_groups_where_they_are(tmp_path: Path) -> None:
    norm, mul, relu = "Torch.norm.0.forward", "Torch.mul.1.forward", "Torch.relu.0.forward"
    tree: dict[str, str | None] = {
        norm: "clip_grad", "Torch.mul.0.forward": "optimizer", mul: "optimizer", relu: None,
    }  # fmt: skip
    records = {name: call(tensor(), output=tensor()) for name in tree}
    for name, whole in (("parents", tree), ("calls", {"clip_grad": None, "optimizer": None, **tree})):
        graph = probe.open_graph(write(tmp_path / name, records, whole))
        found = tree_of(graph)
        assert graph.notes == [] and (found[norm], found[mul]) == ("clip_grad", "optimizer")
        assert found["clip_grad"] == found["optimizer"] == found[relu] == graph.names[-1]
        assert graph.index["clip_grad"] < graph.index["optimizer"] < graph.index[relu]


@pytest.mark.parametrize(
    ("tree", "more", "parts"),
    [
        (
            {"Torch.relu.0.forward": "Module.gone.C.forward.0"},
            [],
            ["Torch.relu.0.forward", "Module.gone.C.forward.0", "not in construct.json"],
        ),
        (
            {f"Torch.relu.{n}.forward": f"Module.gone{n // 2}.C.forward.0" for n in range(10)},
            [],
            ["Torch.relu.0.forward and 1 more", "Module.gone0.C.forward.0", "4 more are inside of calls"],
        ),
        ({"Torch.relu.0.forward": None}, ["Torch.relu.1.forward"], ["Torch.relu.1.forward", "not in construct.json"]),
    ],
)
def test_what_the_tree_lacks_is_at_the_top_with_a_note(
    tree: dict[str, str | None], more: list[str], parts: list[str], tmp_path: Path
) -> None:
    graph = made(tmp_path, tree, *more)
    shown = tree_of(graph)
    for name in [*tree, *more]:
        around = shown[name]
        assert around == graph.names[-1] or (around or "").startswith(_APIS)
    notes = " ".join(graph.notes)
    assert all(part in notes for part in parts) and len(graph.notes) < 6


def test_gradients_are_inside_of_the_last_backward_of_their_module(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {f"Module.m.C.{way}.{n}": None for n in range(11) for way in ("forward", "backward")}
    graph = made(tmp_path, tree, "Module.m.C.parameters_grad.0", "Module.m.C.parameters_grad")
    for name in ("Module.m.C.parameters_grad.0", "Module.m.C.parameters_grad"):
        assert tree_of(graph)[name] == "Module.m.C.backward.10"
    assert graph.notes == []


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        ({"Module.a.A.forward.0": "Module.a.A.forward.0"}, ["construct.json", "Module.a.A.forward.0", "itself"]),
        (
            # The first is not in the circle, it hangs below it.
            {
                "Torch.relu.0.forward": "Module.a.A.forward.0",
                "Module.a.A.forward.0": "Module.b.B.forward.0",
                "Module.b.B.forward.0": "Module.c.C.forward.0",
                "Module.c.C.forward.0": "Module.a.A.forward.0",
            },
            ["3 calls", "circle", "Module.a.A.forward.0", "Module.b.B"],
        ),
    ],
)
def test_a_tree_without_an_order_is_an_error_that_names_a_call(
    tmp_path: Path, tree: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(DumpFormatError) as error:
        made(tmp_path, tree)
    assert all(part in str(error.value) for part in parts), error.value


def test_names_are_no_order_and_depth_is_no_limit(tmp_path: Path) -> None:
    part = "Module.lm.backward_lm.LSTM.forward.0"
    tree = {"Module.lm.LM.forward.0": None, part: "Module.lm.LM.forward.0"}
    assert tree_of(made(tmp_path / "a", tree))[part] == "Module.lm.LM.forward.0"
    deep = {f"Module.m{n}.C.forward.0": f"Module.m{n - 1}.C.forward.0" if n else None for n in range(5000)}
    assert max(made(tmp_path / "b", deep).depths) == 5000
    names = ["DefaultModel", "Apis_Between_Modules.0", "", "optimizer.step"]
    graph = made(tmp_path / "c", dict.fromkeys(names))
    assert set(names) < set(graph.names) and graph.parents[-1] == -1


def test_without_a_tree_the_calls_are_a_list_and_a_note_says_what_to_do(tmp_path: Path) -> None:
    names = [f"Torch.relu.{n}.forward" for n in range(5)]
    for tree in ({}, None):
        dump = write(tmp_path / str(tree), {name: call(tensor()) for name in names}, tree, level="L1")
        graph = probe.open_graph(dump)
        assert graph.names[:-1] == names and set(graph.parents[:-1]) == {5}
        (note,) = graph.notes
        assert "level mix" in note


# --- micro steps


def step(number: int, *, layers: int = 2) -> dict[str, str | None]:
    """The forward call of a model, and the loss."""
    model = f"Module.model.Net.forward.{number}"
    calls: dict[str, str | None] = {model: None}
    for layer in range(layers):
        module = f"Module.model.{layer}.Linear.forward.{number}"
        calls.update({module: model, f"Functional.linear.{number * layers + layer}.forward": module})
    return {**calls, f"Functional.mse_loss.{number}.forward": None}


def backward(number: int) -> dict[str, str | None]:
    around = f"Module.model.Net.backward.{number}"
    return {around: None, **{f"Module.model.{layer}.Linear.backward.{number}": around for layer in (1, 0)}}


@pytest.mark.parametrize(
    ("calls", "wanted", "steps"),
    [
        ({**step(0), **backward(0)}, "auto", 1),
        ({**step(0), **backward(0), **step(1), **backward(1), **step(2), **backward(2)}, "auto", 3),
        ({**step(0), **step(1), **backward(0), **backward(1)}, "auto", 2),
        ({**step(0), **step(1), **backward(0), **step(2), **backward(1), **backward(2)}, "auto", 3),
        # Two inputs of one loss.
        ({**step(0), **step(1), **backward(1), **backward(0)}, "auto", 1),
        ({**step(0), **step(1), **step(2), **step(3)}, "off", 1),
        ({**step(0), **step(1), **step(2), **step(3)}, "2", 2),
        (dict.fromkeys(["Functional.relu.0.forward", "Functional.relu.1.forward"]), "auto", 1),
    ],
)
def test_each_run_of_the_model_is_a_micro_step(
    calls: dict[str, str | None], wanted: str, steps: int, tmp_path: Path
) -> None:
    graph = made(tmp_path, calls, micro_step=wanted)
    found = dict(zip(graph.names, graph.micro_steps))
    assert {*found.values()} == {*range(steps)}
    runs = sum(name.startswith("Module.model.Net.forward") for name in calls)
    for name, at in found.items() if runs else ():
        number = [int(part) for part in name.split(".") if part.isdigit()][-1:]
        if name in calls and number and "linear" not in name:
            assert at == number[0] * steps // runs, name


def test_modules_that_differ_or_run_twice_make_no_more_micro_steps(tmp_path: Path) -> None:
    calls = {**step(0), **step(1, layers=3)}
    graph = made(tmp_path / "a", calls, micro_step="auto")
    assert set(graph.micro_steps) == {0} and "Module.model.2.Linear" in graph.notes[-1]
    assert set(made(tmp_path / "a", calls, micro_step=2).micro_steps) == {0, 1}
    twice = {
        name: None
        for n in (0, 1)
        for name in (f"Module.e.E.forward.{n}", *(f"Module.b.B.forward.{2 * n + k}" for k in (0, 1)))
    }
    found = made(tmp_path / "b", twice, micro_step="auto")
    assert [at for name, at in zip(found.names, found.micro_steps) if ".b." in name] == [0, 0, 1, 1]


def test_gradients_that_add_up_belong_to_the_last_micro_step(tmp_path: Path) -> None:
    names = [f"Module.model.{part}.Linear.parameters_grad.0" for part in (0, 1, "head")]
    calls = {**step(0), **backward(0), **step(1), **backward(1), **dict.fromkeys(names)}
    graph = made(tmp_path, calls, micro_step="auto")
    assert {graph.micro_steps[graph.index[name]] for name in names} == {1}


@pytest.mark.parametrize("wanted", ["0", "two", "-1", "", 0, "1.5"])
def test_other_words_for_micro_steps_are_refused(wanted: str | int) -> None:
    with pytest.raises(MsprobeException, match="allowed: auto, off, or the number"):
        probe.open_graph(LLAMA, wanted)


def test_a_number_of_micro_steps_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=r"Module\.model\.Net .* 3 times.* 2"):
        made(tmp_path / "a", {**step(0), **step(1), **step(2)}, micro_step=2)
    with pytest.raises(MsprobeException, match="no module is called"):
        made(tmp_path / "b", {"Functional.relu.0.forward": None}, micro_step=2)


# --- modules that call stacks give back, where a dump has no tree

_TORCH = [
    "File /site-packages/torch/nn/modules/module.py, line 1789, in _call_impl, \n return forward_call(*args)",
    "File /site-packages/torch/nn/modules/module.py, line 1778, in _wrapped_call_impl, \n return self._call_impl()",
]
_MINDSPORE = ["File /site-packages/mindspore/nn/cell.py, line 700, in __call__, \n return self.construct(*args)"]
_LINEAR = "File /site-packages/torch/nn/modules/linear.py, line 134, in forward, \n return F.linear(input)"
_RELU = "File /site-packages/torch/nn/modules/activation.py, line 90, in forward, \n return F.relu(input)"
_SEQUENTIAL = "File /site-packages/torch/nn/modules/container.py, line 240, in forward, \n input = module(input)"
_MAIN = "File /srv/team/train.py, line 3, in <module>, \n loss = model(x).sum()"


def _line(number: int, code: str) -> str:
    return f"File /srv/team/model.py, line {number}, in forward, \n {code}"


def _stack(*lines: str, inside: list[str] = _TORCH) -> list[str]:
    """A stack, innermost first, in which each line calls a module that has the line before."""
    found = list(lines[:1])
    for line in lines[1:]:
        found += [*inside, line]
    return found


def _layers(number: int) -> dict[str, list[str]]:
    """The calls of a model with `number` blocks, each two layers and a sum, and their stacks."""
    block, found = _line(20, "x = block(x)"), {}
    for each in range(number):
        found[f"Functional.linear.{2 * each}.forward"] = _stack(_LINEAR, _line(7, "h = self.up(x)"), block, _MAIN)
        down = _stack(_LINEAR, _line(8, "h = self.mlp.down(h)"), block, _MAIN)
        found[f"Functional.linear.{2 * each + 1}.forward"] = down
        found[f"Tensor.__add__.{each}.forward"] = _stack(_line(9, "return x + h"), block, _MAIN)
    return found


def _written(folder: Path, stacks: Mapping[str, list[str]], names: list[str] | None = None, **head: Any) -> Path:
    records = {name: call(tensor(), output=tensor()) for name in names or stacks}
    shared = {str(place): [[name], frames] for place, (name, frames) in enumerate(stacks.items())}
    return write(folder, records, {}, shared, **{"level": "L1", **head})


def restored(folder: Path, stacks: Mapping[str, list[str]], *args: Any, **head: Any) -> dict[str, str | None]:
    return tree_of(probe.open_graph(_written(folder, stacks, *args, **head)))


def test_blocks_of_a_loop_are_calls_of_their_own_and_so_are_their_backwards(tmp_path: Path) -> None:
    stacks = _layers(3)
    names = [*stacks, *(name.replace("forward", "backward") for name in reversed(stacks))]
    tree = restored(tmp_path, stacks, names)
    assert tree["Functional.linear.0.forward"] == "Module.model.block.up.Module.forward.0"
    assert tree["Functional.linear.5.forward"] == "Module.model.block.mlp.down.Module.forward.2"
    assert tree["Tensor.__add__.1.forward"] == "Module.model.block.Module.forward.1"
    assert tree["Module.model.block.up.Module.forward.2"] == "Module.model.block.Module.forward.2"
    assert tree["Module.model.block.Module.forward.2"] == "Module.model.Module.forward.0"
    assert tree["Functional.linear.2.backward"] == "Module.model.block.up.Module.backward.1"
    assert tree["Module.model.block.Module.backward.1"] == "Module.model.Module.backward.0"


def test_calls_of_one_line_are_told_apart_by_their_code_or_named_by_all(tmp_path: Path) -> None:
    names = ["Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"]
    layers = {name: _stack(layer, _SEQUENTIAL, _MAIN) for name, layer in zip(names, (_LINEAR, _RELU, _LINEAR))}
    tree = restored(tmp_path / "a", layers)
    assert [tree[name] for name in names] == [f"Module.model.module.Module.forward.{n}" for n in range(3)]
    both = {names[0]: _stack(_LINEAR, _line(5, "return self.down(self.up(x))"), _MAIN)}
    assert restored(tmp_path / "b", both)[names[0]] == "Module.model.down|up.Module.forward.0"
    again = {f"Functional.linear.{n}.forward": _stack(_LINEAR, _line(5, "x = layer(x)"), _MAIN) for n in range(3)}
    tree = restored(tmp_path / "c", again)
    assert len({tree[name] for name in again}) == 3
    add = {"Mint.add.0.forward": _stack(_line(5, "return mint.add(x, y)"), _MAIN, inside=_MINDSPORE)}
    assert restored(tmp_path / "d", add, framework="mindspore")["Mint.add.0.forward"] == "Cell.model.Cell.forward.0"


@pytest.mark.parametrize("frames", [[], [_MAIN], [_LINEAR, *_TORCH], ["nothing like a frame"]])
def test_stacks_without_a_module_restore_nothing(frames: list[str], tmp_path: Path) -> None:
    tree = restored(tmp_path, {"Functional.linear.0.forward": frames}, ["Functional.linear.0.forward", "no.name"])
    assert len(tree) == 3 and set(tree.values()) == {None, "DefaultModel"}


def test_a_dump_of_functions_shows_these_modules_and_says_so(tmp_path: Path) -> None:
    sides = [_written(tmp_path / side, _layers(number)) for side, number in (("a", 3), ("b", 2))]
    assert "call stacks" in probe.open_graph(sides[0]).notes[0]
    found = Beside(tmp_path, *sides)
    assert len(found.alone) == 6  # Three calls, the block, and its two layers.
    assert len(found.pairs) == len(found.rows) - 6


@pytest.mark.parametrize("without", ["target", "golden", "both"])
@pytest.mark.parametrize(("target", "golden"), [("llama_weight", "llama"), ("bert_bf16", "bert"), ("llama", "llama")])
def test_without_construct_the_page_has_the_pairs_of_the_rows(
    tmp_path: Path, target: str, golden: str, without: str
) -> None:
    sides = {}
    for side, name in (("target", target), ("golden", golden)):
        sides[side] = Path(shutil.copytree(DUMPS / name, tmp_path / side))
        if without in (side, "both"):
            (sides[side] / "construct.json").unlink()
    found = Beside(tmp_path, *sides.values())
    rows = [row for each in found.diff.items.values() for row in each]
    paired = {row.record: row.golden_record or row.record for row in rows if row.target and row.golden}
    assert {name: other for name, other in found.pairs.items() if name in paired} == paired
    # Nothing is invented, and nothing said to be missing that the other side cannot name.
    assert found.counts["one side only"] == 0
    whole = probe.graph_diff(DUMPS / target, DUMPS / golden).first
    assert (found.view.first is None) == (whole is None)
    for side, graph in (("target", found.diff.target), ("golden", found.diff.golden)):
        assert graph is not None
        assert any("construct.json" in note for note in graph.notes) == (without in (side, "both"))
