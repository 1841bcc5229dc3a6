"""The file in which a person says which nodes belong together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written

from probe.common.errors import MsprobeException
from probe.graph.diff import diff_of
from probe.graph.graph import Graph, graph_of
from probe.graph.manual_pairs import ManualPair, expanded, load_pairs
from probe.graph.status import REASONS


def _file(folder: Path, text: str) -> str:
    path = folder / "pairs.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _graph(folder: Path, tree: dict[str, str | None]) -> Graph:
    return graph_of(written(folder, {name: call(tensor()) for name in tree}, tree))


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    second_entry = {"target": "C", "golden": "D", "rank": 1, "step": 0}
    entries = [{"target": "A", "golden": "B", "descendants": True}, second_entry]
    yaml = "- {target: A, golden: B, descendants: true}\n- target: C\n  golden: D\n  rank: 1\n  step: 0\n"
    for text in (json.dumps(entries), yaml):
        first, second = load_pairs(_file(tmp_path, text))
        assert (first.target, first.golden, first.descendants, first.rank) == ("A", "B", True, None)
        assert (second.target, second.golden, second.descendants, second.rank, second.step) == ("C", "D", False, 1, 0)
        assert second.location.endswith("pairs.yaml: entry 1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target: A", "expected a list of pairs"),
        ("", "expected a list of pairs"),
        ("[A]", 'entry 0 is "A"; expected keys target, golden, descendants'),
        ("[{target: A, golden: B}, {target: A}]", "entry 1: golden is null; it must be the name of a node"),
        ("[{target: 3, golden: B}]", "entry 0: target is 3; it must be the name of a node"),
        ("[{target: A, golden: B, inside: true}]", 'entry 0 has the key "inside"; allowed: target, golden, desc'),
        ("[{target: A, golden: B, descendants: 1}]", "entry 0: descendants is 1; allowed: true, false"),
        ("[{target: A, golden: B, rank: -1}]", "entry 0: rank is -1; it must be a number from 0 on"),
        ("[{target: A, golden: B, step: true}]", "entry 0: step is true; it must be a number from 0 on"),
        ("[{target: A, golden: B, run: 1}]", "entry 0: run is 1; it must be a path as the page names it"),
    ],
)
def test_what_is_no_pair_is_an_error_that_names_the_entry(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(MsprobeException, match=re.escape(path) + ".*" + re.escape(message)):
        load_pairs(path)


def test_what_is_inside_is_paired_in_its_order_and_named_pairs_come_first(tmp_path: Path) -> None:
    def tree(part: str, numbers: range) -> dict[str, str | None]:
        around = f"Module.{part}.Block.forward.0"
        return {
            around: None,
            f"Module.{part}.act.ReLU.forward.0": around,
            **{f"Torch.sin.{number}.forward": around for number in numbers},
        }

    mine, theirs = _graph(tmp_path / "a", tree("new", range(3))), _graph(tmp_path / "b", tree("old", range(5, 8)))
    block = ManualPair("Module.new.Block.forward.0", "Module.old.Block.forward.0", descendants=True)
    found = expanded([block, ManualPair("Torch.sin.0.forward", "Torch.sin.7.forward")], mine, theirs)
    named = {mine.names[one]: theirs.names[other] for one, other in found.items()}
    assert named == {
        "Module.new.Block.forward.0": "Module.old.Block.forward.0",
        "Module.new.act.ReLU.forward.0": "Module.old.act.ReLU.forward.0",
        "Torch.sin.0.forward": "Torch.sin.7.forward",
        "Torch.sin.1.forward": "Torch.sin.5.forward",
        "Torch.sin.2.forward": "Torch.sin.6.forward",
    }
    assert len(expanded([ManualPair(block.target, block.golden)], mine, theirs)) == 1


def test_a_file_of_pairs_reaches_the_judgement(tmp_path: Path) -> None:
    first, second = "Torch.sin.0.forward", "Torch.sin.1.forward"
    one, other = call(tensor(1.0), output=tensor(2.0)), call(tensor(3.0), output=tensor(4.0))
    records: list[dict[str, Any]] = [{first: one, second: other}, {first: other, second: one}]
    target, golden = (written(tmp_path / str(number), each, dict.fromkeys(each)) for number, each in enumerate(records))
    path = _file(tmp_path, json.dumps([{"target": first, "golden": second}, {"target": second, "golden": first}]))
    found = diff_of(target, golden, pairs=load_pairs(path))
    assert found.first is None
    assert [REASONS[found.reasons[found.target.index[name]]] for name in (first, second)] == ["manual", "manual"]
