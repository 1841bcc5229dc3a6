"""The modules around calls where a dump has none, as call stacks name them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from graph_dumps import CASES, call, tensor
from graph_dumps import recorded as recorded_dump
from made_dumps import written

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.graph.diff import diff_of
from probe.graph.graph import graph_of
from probe.graph.restored_tree import restored_tree
from probe.graph.status import ONE_SIDE

_TORCH = [
    "File /site-packages/torch/nn/modules/module.py, line 1789, in _call_impl, \n return forward_call(*args)",
    "File /site-packages/torch/nn/modules/module.py, line 1778, in _wrapped_call_impl, \n return self._call_impl()",
]
_MINDSPORE = ["File /site-packages/mindspore/nn/cell.py, line 700, in __call__, \n return self.construct(*args)"]
_LINEAR = "File /site-packages/torch/nn/modules/linear.py, line 134, in forward, \n return F.linear(input)"
_RELU = "File /site-packages/torch/nn/modules/activation.py, line 90, in forward, \n return F.relu(input)"


def _line(number: int, code: str) -> str:
    return f"File /srv/team/model.py, line {number}, in forward, \n {code}"


def _stack(*lines: str, inside: list[str] = _TORCH) -> list[str]:
    """A stack, innermost first, in which each line calls a module that has the line before."""
    found = list(lines[:1])
    for line in lines[1:]:
        found += [*inside, line]
    return found


_MAIN = "File /srv/team/train.py, line 3, in <module>, \n loss = model(x).sum()"


def _layers(number: int) -> dict[str, list[str]]:
    """The calls of a model with `number` blocks, each two layers and a sum, and their stacks."""
    block = _line(20, "x = block(x)")
    found = {}
    for each in range(number):
        found[f"Functional.linear.{2 * each}.forward"] = _stack(_LINEAR, _line(7, "h = self.up(x)"), block, _MAIN)
        found[f"Functional.linear.{2 * each + 1}.forward"] = _stack(
            _LINEAR, _line(8, "h = self.mlp.down(h)"), block, _MAIN
        )
        found[f"Tensor.__add__.{each}.forward"] = _stack(_line(9, "return x + h"), block, _MAIN)
    return found


def test_blocks_of_a_loop_are_calls_of_their_own() -> None:
    stacks = _layers(3)
    tree = restored_tree(stacks, stacks, "pytorch")
    assert tree["Functional.linear.0.forward"] == "Module.model.block.up.Module.forward.0"
    assert tree["Functional.linear.5.forward"] == "Module.model.block.mlp.down.Module.forward.2"
    assert tree["Tensor.__add__.1.forward"] == "Module.model.block.Module.forward.1"
    assert tree["Module.model.block.up.Module.forward.2"] == "Module.model.block.Module.forward.2"
    assert tree["Module.model.block.Module.forward.2"] == "Module.model.Module.forward.0"
    assert tree["Module.model.Module.forward.0"] is None


def test_the_backward_is_inside_of_the_backwards_of_these_modules() -> None:
    stacks = _layers(2)
    names = [*stacks, *(name.replace("forward", "backward") for name in reversed(stacks))]
    tree = restored_tree(names, stacks, "pytorch")
    assert tree["Functional.linear.2.backward"] == "Module.model.block.up.Module.backward.1"
    assert tree["Module.model.block.up.Module.backward.1"] == "Module.model.block.Module.backward.1"
    assert tree["Module.model.block.Module.backward.1"] == "Module.model.Module.backward.0"


def test_layers_that_one_line_calls_are_told_apart_by_their_code() -> None:
    line = "File /site-packages/torch/nn/modules/container.py, line 240, in forward, \n input = module(input)"
    names = ["Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"]
    stacks = {name: _stack(layer, line, _MAIN) for name, layer in zip(names, (_LINEAR, _RELU, _LINEAR))}
    tree = restored_tree(names, stacks, "pytorch")
    assert [tree[name] for name in names] == [f"Module.model.module.Module.forward.{n}" for n in range(3)]


def test_a_line_that_calls_two_layers_has_the_names_of_both() -> None:
    name = "Functional.linear.0.forward"
    stacks = {name: _stack(_LINEAR, _line(5, "return self.down(self.up(x))"), _MAIN)}
    assert restored_tree([name], stacks, "pytorch")[name] == "Module.model.down|up.Module.forward.0"


def test_one_layer_that_is_called_again_by_the_same_line_is_a_call_of_its_own() -> None:
    names = [f"Functional.linear.{n}.forward" for n in range(3)]
    stacks = {name: _stack(_LINEAR, _line(5, "x = layer(x)"), _MAIN) for name in names}
    tree = restored_tree(names, stacks, "pytorch")
    assert len({tree[name] for name in names}) == 3


def test_cells_are_called_cells() -> None:
    name = "Mint.add.0.forward"
    stacks = {name: _stack(_line(5, "return mint.add(x, y)"), _MAIN, inside=_MINDSPORE)}
    cell = "Cell.model.Cell.forward.0"
    assert restored_tree([name], stacks, "mindspore") == {cell: None, name: cell}


@pytest.mark.parametrize("frames", [[], [_MAIN], [_LINEAR, *_TORCH], ["nothing like a frame"]])
def test_stacks_without_a_module_restore_nothing(frames: list[str]) -> None:
    name = "Functional.linear.0.forward"
    assert restored_tree([name, "no.name"], {name: frames}, "pytorch") == {}


def test_a_dump_of_functions_shows_these_modules_and_says_so(tmp_path: Path) -> None:
    sides = []
    for side, number in (("target", 3), ("golden", 2)):
        stacks = _layers(number)
        records = {name: call(tensor(), output=tensor()) for name in stacks}
        shared = {str(place): [[name], frames] for place, (name, frames) in enumerate(stacks.items())}
        sides.append(written(tmp_path / side, records, {}, shared, level="L1"))
    graph = graph_of(sides[0])
    assert graph.names[-2] == "Module.model.Module.forward.0"
    assert "their call stacks give the modules around them" in graph.notes[0]
    found = diff_of(*sides)
    assert found.golden is not None
    alone = [found.target.names[node] for node, other in enumerate(found.pairs) if other < 0]
    assert len(alone) == 6  # Three calls, the block, and its two layers.
    assert len(found.golden) == len(found.target) - 6


# --- a dump of level mix whose construct.json is lost


@pytest.mark.parametrize("without", ["target", "golden", "both"])
@pytest.mark.parametrize(("target", "golden"), [("llama_weight", "llama"), ("bert_bf16", "bert"), ("llama", "llama")])
def test_without_construct_the_page_has_the_pairs_of_the_rows(
    tmp_path: Path, target: str, golden: str, without: str
) -> None:
    sides = {}
    for side, name in (("target", target), ("golden", golden)):
        sides[side] = Path(shutil.copytree(CASES / "dumps" / name, tmp_path / side))
        if without in (side, "both"):
            (sides[side] / "construct.json").unlink()
    mine, theirs = (read(folder) for folder in sides.values())
    rows = compare_dumps(mine, theirs).rows
    expected = {row.record: row.golden_record or row.record for row in rows if row.target and row.golden}
    view = diff_of(mine, theirs)
    assert view.golden is not None
    pairs = zip(view.target.names, view.pairs)
    found = {name: view.golden.names[other] for name, other in pairs if other >= 0 and name in expected}
    assert found == expected
    # Nothing is invented, and nothing said to be missing that the other side cannot name.
    recorded = {record.name for record in (*mine, *theirs)}
    for graph, statuses in ((view.target, view.statuses), (view.golden, view.golden_statuses)):
        modules = [name for name in graph.names if name.startswith("Module.") and not graph.has_tree]
        assert set(modules) <= recorded
        assert not any(status == ONE_SIDE for status in statuses)
    whole = diff_of(recorded_dump(target), recorded_dump(golden)).first
    assert (view.first is None) == (whole is None)
    for side, graph in (("target", view.target), ("golden", view.golden)):
        assert any("construct.json is missing" in note for note in graph.notes) == (without in (side, "both"))
