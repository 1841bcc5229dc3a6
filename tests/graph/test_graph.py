"""A dump as a tree of nodes: their order, what they are inside of, and what is wrong with a tree."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import CASES, call, expected, recorded, tensor
from hypothesis import given
from hypothesis import strategies as st
from made_dumps import written

from probe.common.errors import DumpFormatError
from probe.graph.graph import API, GROUP, MODULE, Graph, graph_of

_SIDES = [
    (case, side)
    for case in ("build_llama", "weight", "three_layers", "three_layers_fuzzy", "bf16", "nan")
    for side in ("target", "golden")
    if expected(case).get(side)
]


def tree_of(graph: Graph) -> dict[str, str | None]:
    return {name: graph.names[parent] if parent >= 0 else None for name, parent in zip(graph.names, graph.parents)}


def made(folder: Path, tree: dict[str, str | None], *more: str) -> Graph:
    """The graph of calls that take and return one tensor."""
    records = {name: call(tensor(), output=tensor()) for name in [*tree, *more]}
    return graph_of(written(folder, records, tree))


@pytest.mark.parametrize(("case", "side"), _SIDES)
def test_the_recorded_dumps_have_the_recorded_order_and_parents(case: str, side: str) -> None:
    wanted = expected(case)
    order = wanted["sides"][side]["order_and_parent"]
    if isinstance(order, str):
        assert order == "as target in build_llama.json"
        order = expected("build_llama")["sides"]["target"]["order_and_parent"]
    graph = graph_of(recorded(wanted[side]))
    assert list(tree_of(graph).items()) == [tuple(each) for each in order]
    assert graph.notes == []


def test_kinds_are_counted_as_recorded() -> None:
    graph = graph_of(recorded("llama"))
    side = expected("build_llama")["sides"]["target"]
    assert [graph.kinds.count(kind) for kind in (API, GROUP)] == [side["apis"], side["groups"]]
    assert graph.kinds.count(MODULE) == side["modules"]
    assert sum(graph.has_record) == len(recorded("llama"))


# --- properties


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
def test_every_call_is_one_node_behind_everything_inside_of_it(tree: dict[str, str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = made(Path(folder), tree)
    assert len(set(graph.names)) == len(graph) == len(tree) + graph.kinds.count(GROUP) + 1
    sizes = [1] * len(graph)
    for node, parent in enumerate(graph.parents):
        assert graph.firsts[node] <= node < (parent if parent >= 0 else len(graph))
        assert node - graph.firsts[node] + 1 == sizes[node]
        assert graph.depths[node] == (graph.depths[parent] + 1 if parent >= 0 else 0)
        assert list(graph.above(node)) == ([parent, *graph.above(parent)] if parent >= 0 else [])
        if parent >= 0:
            sizes[parent] += sizes[node]
    assert list(graph.parents).count(-1) == 1
    assert sizes[-1] == len(graph)
    assert [sum(sizes[child] for child in inside) + 1 for inside in graph.children] == sizes


@given(forests())
def test_calls_are_inside_of_what_the_tree_says_and_keep_its_order(tree: dict[str, str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = made(Path(folder), tree)
    shown = tree_of(graph)
    for name, parent in tree.items():
        around = shown[name]
        if around is not None and graph.kinds[graph.index[around]] == GROUP:
            around = shown[around]
        if ".backward." in name:
            of_forward = tree[name.replace("backward", "forward")]
            twin = of_forward and of_forward.replace("forward", "backward")
            parent = twin if twin in tree else None
        assert around == (parent or graph.names[-1])
    place = {name: number for number, name in enumerate(tree)}
    for node, inside in enumerate(graph.children):
        first = [place[graph.names[graph.firsts[child] if graph.kinds[child] == GROUP else child]] for child in inside]
        assert first == sorted(first), graph.names[node]


# --- what is not as it should be


def test_clipping_and_the_optimizer_are_groups_where_they_are(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {
        "Torch.norm.0.forward": "clip_grad",
        "Torch.mul.0.forward": "optimizer",
        "Torch.mul.1.forward": "optimizer",
        "Torch.relu.0.forward": None,
    }
    for name, whole in (("parents", tree), ("calls", {"clip_grad": None, "optimizer": None, **tree})):
        records = {name: call(tensor(), output=tensor()) for name in tree}
        graph = graph_of(written(tmp_path / name, records, whole))
        assert graph.notes == []
        found = tree_of(graph)
        assert (found["Torch.norm.0.forward"], found["Torch.mul.1.forward"]) == ("clip_grad", "optimizer")
        assert found["clip_grad"] == found["optimizer"] == found["Torch.relu.0.forward"] == graph.names[-1]
        assert graph.kinds[graph.index["optimizer"]] == GROUP
        assert graph.index["clip_grad"] < graph.index["optimizer"] < graph.index["Torch.relu.0.forward"]


def test_a_call_inside_of_one_that_is_missing_is_at_the_top_with_a_note(tmp_path: Path) -> None:
    graph = made(tmp_path, {"Torch.relu.0.forward": "Module.gone.C.forward.0"})
    assert tree_of(graph)["Torch.relu.0.forward"] == graph.names[-1]
    assert graph.notes == [
        "Torch.relu.0.forward is inside of Module.gone.C.forward.0, which is not in construct.json: shown at the top."
    ]


def test_many_missing_calls_are_few_notes(tmp_path: Path) -> None:
    graph = made(tmp_path, {f"Torch.relu.{n}.forward": f"Module.gone{n // 2}.C.forward.0" for n in range(10)})
    assert len(graph) == 12  # A group around all ten, and the root.
    assert graph.notes[0].startswith("Torch.relu.0.forward and 1 more are inside of Module.gone0.C.forward.0")
    assert graph.notes[-1] == "4 more are inside of calls that are not in construct.json: shown at the top."


def test_a_record_that_the_tree_lacks_is_at_the_top_with_a_note(tmp_path: Path) -> None:
    graph = made(tmp_path, {"Torch.relu.0.forward": None}, "Torch.relu.1.forward")
    assert "Torch.relu.1.forward" in graph.names
    assert graph.notes == ["Torch.relu.1.forward is in the dump and not in construct.json: shown at the top."]


def test_gradients_are_inside_of_the_last_backward_of_their_module(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {f"Module.m.C.{way}.{n}": None for n in range(11) for way in ("forward", "backward")}
    graph = made(tmp_path, tree, "Module.m.C.parameters_grad.0", "Module.m.C.parameters_grad")
    assert tree_of(graph)["Module.m.C.parameters_grad.0"] == "Module.m.C.backward.10"
    assert tree_of(graph)["Module.m.C.parameters_grad"] == "Module.m.C.backward.10"
    assert graph.notes == []


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"Module.a.A.forward.0": "Module.a.A.forward.0"}, "construct.json: Module.a.A.forward.0 is inside of itself"),
        (
            # The first is not in the circle, it hangs below it.
            {
                "Torch.relu.0.forward": "Module.a.A.forward.0",
                "Module.a.A.forward.0": "Module.b.B.forward.0",
                "Module.b.B.forward.0": "Module.c.C.forward.0",
                "Module.c.C.forward.0": "Module.a.A.forward.0",
            },
            "3 calls are inside of each other in a circle: Module.a.A.forward.0, which is inside of Module.b.B",
        ),
    ],
)
def test_a_tree_without_an_order_is_an_error_that_names_a_call(
    tmp_path: Path, tree: dict[str, Any], message: str
) -> None:
    with pytest.raises(DumpFormatError, match=message):
        made(tmp_path, tree)


def test_a_forward_call_of_a_module_whose_path_has_the_word_backward_stays_where_it_is(tmp_path: Path) -> None:
    tree = {"Module.lm.LM.forward.0": None, "Module.lm.backward_lm.LSTM.forward.0": "Module.lm.LM.forward.0"}
    assert tree_of(made(tmp_path, tree))["Module.lm.backward_lm.LSTM.forward.0"] == "Module.lm.LM.forward.0"


def test_thousands_of_calls_inside_of_each_other_are_a_graph(tmp_path: Path) -> None:
    tree = {f"Module.m{n}.C.forward.0": f"Module.m{n - 1}.C.forward.0" if n else None for n in range(5000)}
    assert max(made(tmp_path, tree).depths) == 5000


def test_names_of_ours_that_a_model_has_too_are_other_names(tmp_path: Path) -> None:
    names = ["DefaultModel", "Apis_Between_Modules.0", "", "optimizer.step"]
    graph = made(tmp_path, dict.fromkeys(names))
    assert set(names) < set(graph.names)
    assert graph.parents[-1] == -1
    assert graph.kinds[graph.index["DefaultModel"]] == API


def test_without_a_tree_the_calls_are_a_list_and_a_note_says_what_to_do(tmp_path: Path) -> None:
    names = [f"Torch.relu.{n}.forward" for n in range(5)]
    for tree in ({}, None):
        dump = written(tmp_path / str(tree), {name: call(tensor()) for name in names}, tree, level="L1")
        graph = graph_of(dump)
        assert graph.names[:-1] == names
        assert set(graph.parents[:-1]) == {5}
        (note,) = graph.notes
        assert "Collect with level mix" in note


def test_the_cases_are_here() -> None:
    assert (CASES / "goals.json").is_file()
