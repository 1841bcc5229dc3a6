"""Which layers of two networks are held to be the same when their names do not say so, and which are not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.common.align.calls import KeyedCall
from probe.common.align.layers.module_paths import ScopedRecords, side_of
from probe.common.align.layers.proposal import propose, write
from probe.common.align.layers.rules import load_rules, translate
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.records import Record
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult
from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS

Layers = Iterable[tuple[str, dict[str, Any]]]


def tensor(shape: list[int], norm: float = 1.0) -> dict[str, Any]:
    """One that is no constant; what is not 1 is in no other tensor of these tests."""
    statistics = {} if norm == 1.0 else {"Max": norm, "Min": -norm, "Mean": 0.1}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, **statistics, "Norm": norm}


def layer(
    name: str, width: int = 2, output: list[int] | None = None, norm: float = 1.0, norm_of_output: float = 1.0
) -> tuple[str, dict[str, Any]]:
    """The record of a call: of a layer with weights where `width` is not 0."""
    parameters = {"weight": tensor([width, width], norm)} if width else {}
    call = {"input_args": [tensor([4])], "parameters": parameters, "output": [tensor(output or [4], norm_of_output)]}
    return f"{name}.forward.0", call


def plain(*names: str) -> Layers:
    return [layer(name) for name in names]


def side(layers: Layers, framework: str = "pytorch") -> ScopedRecords:
    records = [Record(name, fields, "dump.json") for name, fields in layers]
    return side_of([KeyedCall(record, record.name, record.items()) for record in records], None, framework)


def aligned(target: Layers, golden: Layers) -> dict[str, str]:
    """Paths of the target and of the golden side."""
    mine, theirs = side(target), side(golden)
    proposal = propose(mine, theirs)
    translated = {path: translate(path, mine.classes, proposal.rules) for path in mine.classes}
    found = {".".join(path): ".".join(other) for path, other in translated.items() if other in theirs.classes}
    assert len(found) == proposal.layers and len(set(found.values())) == len(found)
    assert proposal.renamed == sum(path != other for path, other in found.items())
    assert len(proposal.target_only) == len(mine.classes) - len(found)
    assert len(proposal.golden_only) == len(theirs.classes) - len(found)
    return found


def test_layers_match_by_class_and_order() -> None:
    target = plain("Cell.emb.Embedding", "Cell.dense1.Dense", "Cell.bn.BatchNorm2d", "Cell.dense2.Dense")
    golden = plain("Module.e.Embedding", "Module.fc1.Linear", "Module.norm.BatchNorm2d", "Module.fc2.Linear")
    assert aligned(target, golden) == {"emb": "e", "dense1": "fc1", "bn": "norm", "dense2": "fc2"}


def test_equal_paths_match_whatever_their_place_and_shapes() -> None:
    target = [layer("Module.a.Linear"), layer("Module.b.Linear", 3), layer("Module.c.Linear", 5)]
    golden = [layer("Module.b.Linear", 7), layer("Module.a.Linear"), layer("Module.d.Linear", 5)]
    assert aligned(target, golden) == {"a": "a", "b": "b", "c": "d"}


def test_equal_paths_of_other_classes_do_not_match() -> None:
    target = plain("Cell.seq.0.Conv2d", "Cell.seq.1.BatchNorm2d", "Cell.seq.2.ReLU")
    golden = plain("Module.seq.0.Conv2d", "Module.seq.1.ReLU", "Module.seq.2.Dropout")
    assert aligned(target, golden) == {"seq.0": "seq.0", "seq.2": "seq.1"}


def test_a_shape_tells_layers_of_one_class_apart() -> None:
    target = [layer("Module.a.Linear", 2), layer("Module.x.Linear", 3), layer("Module.b.Linear", 4)]
    golden = [layer("Module.c.Linear", 2), layer("Module.d.Linear", 4)]
    assert aligned(target, golden) == {"a": "c", "b": "d"}


def test_what_is_uncertain_stays_alone() -> None:
    # Three against two of one kind, and no name to tell which.
    assert aligned(plain("Module.a.Linear", "Module.b.Linear", "Module.c.Linear"), plain("Module.d.Linear")) == {}
    assert aligned(plain("Module.a.Linear"), plain("Module.b.LayerNorm")) == {}


def test_classes_of_the_user_match_by_their_shapes() -> None:
    target = [layer("Module.a.MyNorm", 2), layer("Module.b.Rotary", 0, [8])]
    golden = [layer("Module.c.RMSNormalisation", 2), layer("Module.d.RotaryEmbedding", 0, [8])]
    assert aligned(target, golden) == {"a": "c", "b": "d"}


@pytest.mark.parametrize("wrapper", ["module", "network_with_loss.network"])
def test_levels_of_one_side_are_skipped(wrapper: str) -> None:
    names = ["conv.Conv2d", "block.0.fc.Linear", "block.0.Block", "block.1.fc.Linear", "block.1.Block"]
    levels = wrapper.split(".")
    around = [f"Module.{'.'.join(levels[:end])}.Wrapper{end}" for end in range(len(levels), 0, -1)]
    plain_side = plain(*(f"Module.{name}" for name in names))
    wrapped = plain(*(f"Module.{wrapper}.{name}" for name in names), *around)
    paths = [name.rpartition(".")[0] for name in names]
    assert aligned(plain_side, wrapped) == {path: f"{wrapper}.{path}" for path in paths}
    assert aligned(wrapped, plain_side) == {f"{wrapper}.{path}": path for path in paths}
    mine = side(wrapped)
    assert propose(mine, side(plain_side)).rules["TopLayer"][tuple(levels)] == ()


def test_a_level_inside_is_skipped() -> None:
    blocks = [(f"blocks.{n}.fc.Linear", f"blocks.{n}.Block") for n in range(3)]
    target = plain(*(f"Module.enc.{name}" for names in blocks for name in names), "Module.enc.Encoder")
    golden = plain(*(f"Module.{name.replace('blocks', 'layers')}" for names in blocks for name in names))
    found = aligned(target, golden)
    assert found == {f"enc.blocks.{n}{end}": f"layers.{n}{end}" for n in range(3) for end in ("", ".fc")}


def test_of_nested_candidates_the_one_most_alike_is_taken() -> None:
    target = [
        layer("Cell.all.net.fc.Dense"),
        layer("Cell.all.net.Classifier", 0, [4, 10]),
        layer("Cell.all.NetWithLoss", 0, [1]),
    ]
    golden = [layer("Module.model.head.Linear"), layer("Module.model.ImageClassifier", 0, [4, 10])]
    assert aligned(target, golden) == {"all.net.fc": "model.head", "all.net": "model"}


def test_equal_names_outrank_the_order_among_layers_that_are_alike() -> None:
    target = plain("Module.att.q.Linear", "Module.att.k.Linear", "Module.att.o.Linear", "Module.att.Attention")
    golden = plain("Module.sa.k.Linear", "Module.sa.q.Linear", "Module.sa.out.Linear", "Module.sa.Attention")
    assert aligned(target, golden) == {"att.q": "sa.q", "att.k": "sa.k", "att.o": "sa.out", "att": "sa"}


def test_equal_weights_outrank_the_order_among_layers_that_are_alike() -> None:
    target = [layer(f"Module.att.{name}.Linear", norm=norm) for name, norm in (("a", 1.5), ("b", 2.5), ("c", 3.5))]
    golden = [layer(f"Module.sa.{name}.Linear", norm=norm) for name, norm in (("x", 2.5), ("y", 1.5), ("z", 9.0))]
    whole = plain("Module.att.Attention"), plain("Module.sa.Attention")
    found = aligned([*target, *whole[0]], [*golden, *whole[1]])
    assert found == {"att.a": "sa.y", "att.b": "sa.x", "att.c": "sa.z", "att": "sa"}


def test_layers_of_one_class_may_be_called_differently_in_two_places() -> None:
    names = "a.fc.Linear", "a.Block", "norm.LayerNorm", "b.fc.Linear", "b.Block"
    others = "c.x.Linear", "c.Part", "ln.LayerNorm", "d.y.Linear", "d.Part"
    found = aligned(plain(*(f"Module.{name}" for name in names)), plain(*(f"Module.{name}" for name in others)))
    assert found == {"a": "c", "a.fc": "c.x", "norm": "ln", "b": "d", "b.fc": "d.y"}


def test_a_layer_of_another_class_at_the_same_place_is_kept_apart(tmp_path: Path) -> None:
    target = plain("Module.m.fc.Linear", "Module.m.act.ReLU", "Module.m.Net")
    golden = plain("Module.n.fc.Linear", "Module.n.act.GELU", "Module.n.Net")
    mine = side(target)
    proposal = propose(mine, side(golden))
    assert proposal.rules["TopLayer"][("m", "act")] == ("N/A",)
    write(str(tmp_path / "map.yaml"), proposal, "a", "b")
    assert load_rules(str(tmp_path / "map.yaml")) == proposal.rules


def test_what_a_framework_builds_inside_of_its_layers_is_no_layer_of_the_network() -> None:
    target = plain("Cell.rnn.cell.Whatever", "Cell.rnn.LSTM", "Cell.fc.Dense")
    golden = plain("Module.lstm.LSTM", "Module.head.Linear")
    assert aligned(target, golden) == {"rnn": "lstm", "fc": "head"}


NAMES = st.sampled_from(["a", "b", "c", "net", "block"])


@st.composite
def networks(draw: st.DrawFn, depth: int = 3) -> list[tuple[str, str, int]]:
    """Paths, classes and widths, inner layers before those around them."""
    found = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        if depth and draw(st.booleans()):
            inner = draw(networks(depth - 1))
            found += [(f"{name}.{path}", class_name, width) for path, class_name, width in inner]
            found.append((name, draw(st.sampled_from(["Block", "Part"])), 0))
        else:
            found.append((name, draw(st.sampled_from(["Linear", "LayerNorm", "Mine"])), draw(st.integers(1, 3))))
    return found


@given(networks())
def test_a_network_whose_layers_all_have_other_names_is_found_again(network: list[tuple[str, str, int]]) -> None:
    def spelled(end: str, around: str) -> Layers:
        return [
            layer(f"Module.{around}{'.'.join(part + end for part in path.split('.'))}.{class_name}", width)
            for path, class_name, width in network
        ]

    paths = [path for path, _, _ in network]
    assert aligned(spelled("", ""), spelled("_x", "")) == {
        path: ".".join(part + "_x" for part in path.split(".")) for path in paths
    }
    assert aligned(spelled("", ""), spelled("", "wrapped.")) == {path: f"wrapped.{path}" for path in paths}


def test_thousands_of_layers_take_no_time() -> None:
    parts = "attn.q.Linear", "attn.k.Linear", "attn.v.Linear", "attn.A", "norm.LayerNorm", "mlp.fc.Linear", "mlp.M", "B"
    target = plain(*(f"Module.blocks.{n}.{part}" for n in range(500) for part in parts))
    golden = plain(*(f"Module.net.layers.{n}.x_{part}" for n in range(500) for part in parts[:-1]))
    mine, theirs = side(target), side(golden)
    start = time.process_time()
    assert propose(mine, theirs).layers == 500 * 7
    assert time.process_time() - start < 5


def dump(folder: Path, layers: Layers, framework: str = "pytorch") -> Path:
    return made_dumps.write(folder, dict(layers), level="L0", framework=framework)


def compared(target: Path, golden: Path, **options: Any) -> ComparisonResult:
    return compare_dumps(read(target), read(golden), Options(**options))


def test_two_runs_of_one_framework_are_aligned_if_too_little_matches_by_name(tmp_path: Path) -> None:
    names = [f"layers.{n}.fc.Linear" for n in range(11)]
    alone = dump(tmp_path / "alone", plain(*(f"Module.{name}" for name in names)))
    wrapped = dump(tmp_path / "wrapped", plain(*(f"Module.module.{name}" for name in names)))
    result = compared(wrapped, alone)
    assert all(row.target and row.golden for row in result.rows)
    assert result.proposal is not None and result.proposal.rules == {"TopLayer": {("module",): ()}}
    assert compared(wrapped, alone, rules=V26_2_ROWS).proposal is None
    # Where ten of eleven meet, what the other is called is taken for meant.
    some = dump(tmp_path / "some", plain(*(f"Module.{'x.' * (n > 9)}{name}" for n, name in enumerate(names))))
    result = compared(some, alone)
    assert result.proposal is None and sum(row.golden is None for row in result.rows) == 3


def test_a_fused_layer_is_no_counterpart_of_one_of_those_it_stands_for() -> None:
    target = [layer("Module.att.qkv.Linear", 6), layer("Module.att.o.Linear"), *plain("Module.att.Attention")]
    golden = [layer("Module.sa.q.Linear"), layer("Module.sa.out.Linear"), *plain("Module.sa.Attention")]
    assert aligned(target, golden) == {"att.o": "sa.out", "att": "sa"}


def test_names_that_have_shifted_are_no_evidence_against_equal_weights() -> None:
    """An Identity in a Sequential moves the numbers behind it."""
    kinds = ["Linear", "Linear", "Identity", "Linear", "Linear", "Identity", "Linear", "Linear"]
    target, norm = [], 2.0
    for place, kind in enumerate(kinds):
        target.append(layer(f"Module.net.{place}.{kind}", 2 * (kind == "Linear"), norm=norm))
        norm += kind == "Linear"
    golden = [layer(f"Module.net.{place}.Linear", norm=2.0 + place) for place in range(6)]
    places = {0: 0, 1: 1, 3: 2, 4: 3, 6: 4, 7: 5}
    assert aligned(target, golden) == {f"net.{mine}": f"net.{theirs}" for mine, theirs in places.items()}


def test_a_block_of_functions_is_paired_with_a_block_of_layers_by_what_it_returns() -> None:
    """The last of them where the runs have diverged."""
    target = [layer(f"Module.{n}.Functions", 0, norm_of_output=2.0 + n) for n in range(3)]
    golden = []
    for n, norm in enumerate((2.0, 3.0, 9.0)):
        golden += [layer(f"Module.h.{n}.fc.Linear", 4), layer(f"Module.h.{n}.Block", 0, norm_of_output=norm)]
    assert aligned(target, golden) == {"0": "h.0", "1": "h.1", "2": "h.2"}


def test_blocks_are_paired_in_order_inside_of_layers_that_correspond_alone() -> None:
    """An identity that all layers share is called in each of them, and has the name that it has in the first."""
    target = [layer("Module.start.Identity", 0, norm_of_output=9.0)]
    golden = []
    for n in range(3):
        target.append(layer(f"Module.layers.{n}.fc.Linear", 4, norm=2.0 + n))
        golden.append(layer(f"Module.blocks.{n}.ffn.up.Linear", 4, norm=2.0 + n))
        golden.append(layer(f"Module.blocks.{n}.ffn.Sum", 0, norm_of_output=11.0 + (n and 4 + n)))
        if not n:
            target.append(layer("Module.layers.0.first.Identity", 0, norm_of_output=21.0))
            target.append(layer("Module.layers.0.second.Identity", 0, norm_of_output=11.0))
        target.append(layer(f"Module.layers.{n}.Layer", 0, norm_of_output=31.0 + n))
        golden.append(layer(f"Module.blocks.{n}.Block", 0, norm_of_output=31.0 + n))
    found = aligned(target, golden)
    assert found["layers.0.second"] == "blocks.0.ffn" and found["layers.1"] == "blocks.1"
    assert not {"start", "layers.0.first"} & found.keys()


def test_a_layer_with_other_weights_and_an_equal_result_is_no_counterpart_in_another_block() -> None:
    """In a short type results of layers of other blocks have equal statistics by chance."""
    target, golden = [], []
    for n in range(4):
        target.append(layer(f"Module.h.{n}.fused.Linear", 4, norm=51.0 + n, norm_of_output=41.0 + (n and 4 + n)))
        golden.append(layer(f"Module.blocks.{n}.up.Linear", 4, norm=61.0 + n, norm_of_output=44.0 - n))
        golden.append(layer(f"Module.blocks.{n}.gate.Linear", 4, norm=71.0 + n, norm_of_output=81.0 + n))
        for name, end in (("h", "down"), ("blocks", "fc")):
            layers = target if name == "h" else golden
            layers.append(layer(f"Module.{name}.{n}.{end}.Linear", 2, norm=2.0 + n))
            layers.append(layer(f"Module.{name}.{n}.Block", 0, norm_of_output=31.0 + n))
    found = aligned(target, golden)
    assert found["h.0"] == "blocks.0" and found.get("h.0.fused") != "blocks.3.up"


def test_equal_weights_pair_a_layer_inside_of_a_block_with_one_behind_it() -> None:
    target, golden = [], []
    for n in range(4):
        target.append(layer(f"Module.mix.{'qkvo'[n]}.Linear", norm=2.0 + n))
        golden.append(layer(f"Module.attention.{'abcd'[n]}.Linear", norm=2.0 + n))
    target += [layer("Module.mix.Mix", 0), layer("Module.after.Norm", norm=9.0)]
    golden += [layer("Module.attention.norm.Norm", norm=9.0), layer("Module.attention.Attention", 0)]
    found = aligned(target, golden)
    assert found["mix"] == "attention" and found["after"] == "attention.norm"


def test_layers_that_return_the_same_are_counterparts_and_not_those_that_are_alike() -> None:
    target = [layer("Module.a.fc.Linear"), layer("Module.a.Block", 0, norm_of_output=3.0)]
    golden = [layer("Module.b.fc.Linear"), layer("Module.b.Part", 0, norm_of_output=4.0)]
    assert aligned(target, golden) == {"a.fc": "b.fc", "a": "b"}
    target.append(layer("Module.c.Block", 0, norm_of_output=4.0))
    golden.append(layer("Module.d.Part", 0, norm_of_output=3.0))
    assert aligned(target, golden) == {"a.fc": "b.fc", "a": "d", "c": "b"}


def test_functions_match_in_the_innermost_layer_that_has_a_counterpart(tmp_path: Path) -> None:
    call = layer("x", 0)[1]
    target = {"Functional.relu.0.forward": "Cell.net.fc.Block.forward.0", "Cell.net.fc.Block.forward.0": None}
    golden = {
        "Functional.relu.0.forward": None,
        "Functional.relu.1.forward": "Module.lin.act.ReLU.forward.0",
        "Module.lin.act.ReLU.forward.0": "Module.lin.Block.forward.0",
        "Module.lin.Block.forward.0": None,
    }
    folders = []
    for name, tree, framework in (("a", target, "mindspore"), ("b", golden, "pytorch")):
        folders.append(dump(tmp_path / name, [(record, call) for record in tree], framework))
        (folders[-1] / "construct.json").write_text(json.dumps(tree))
    met = {row.record: row.golden_record for row in compared(*folders).rows if row.target and row.golden}
    assert met["Functional.relu.0.forward"] == "Functional.relu.1.forward"
