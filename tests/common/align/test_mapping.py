"""What corresponds to what where names differ: fuzzy matching, mapping files, two frameworks without a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, constant, write

from probe.common.align.mapping_files import api_names, load_api_entries, load_names
from probe.common.align.name_mapping import NameMapping, map_cell
from probe.common.align.options import BUILT_IN
from probe.common.align.row import NAMES_DIFFER
from probe.common.dump.reading.dump import read
from probe.common.errors import FileCheckException, MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult

CASES = Path(__file__).parents[2] / "compare" / "cases"
CROSS = CASES / "cross_ms_pt"


def compared(target: Path, golden: Path, **options: Any) -> ComparisonResult:
    return compare_dumps(read(target), read(golden), Options(**options))


def dump(folder: Path, names: list[str], framework: str = "pytorch", **fields: Any) -> Path:
    record = call([constant(**fields), constant(2.0, **fields)], [constant(**fields)])
    return write(folder, dict.fromkeys(names, record), framework=framework)


def met(result: ComparisonResult) -> dict[str, str]:
    """Records of the target and of the golden side that have items in common."""
    return {row.record: row.golden_record for row in result.rows if row.target and row.golden_record}


def test_fuzzy_matching_matches_shifted_numbers_in_order(tmp_path: Path) -> None:  # D1
    target = [f"Torch.sin.{n}.forward" for n in (3, 4)] + ["Torch.abs.0.forward", "Torch.sin.5.forward"]
    golden = ["Torch.sin.0.forward", "Torch.sin.1.forward", "Torch.abs.7.forward"]
    result = compared(dump(tmp_path / "a", target), dump(tmp_path / "b", golden), fuzzy=True)
    assert met(result) == dict(zip(target, golden))
    assert result.rows[0].messages == (NAMES_DIFFER,) and result.rows[0].result == "pass"


def test_fuzzy_matching_of_checksums_keeps_them(tmp_path: Path) -> None:  # D2
    target = dump(tmp_path / "a", ["Torch.sin.1.forward"], md5="0badcafe")
    golden = dump(tmp_path / "b", ["Torch.sin.0.forward"], md5="0badcafe")
    assert [row.metrics for row in compared(target, golden, fuzzy=True).rows] == [("0badcafe", "0badcafe")] * 3


def test_fuzzy_matching_reads_names_by_their_grammar(tmp_path: Path) -> None:  # D19
    target = ["Module.layers.0.feed_forward.Mlp.forward.0", "Module.layers.1.feed_forward.Mlp.forward.0"]
    result = compared(dump(tmp_path / "a", target), dump(tmp_path / "b", [target[1].replace("d.0", "d.3")]), fuzzy=True)
    assert met(result) == {target[1]: "Module.layers.1.feed_forward.Mlp.forward.3"}


def test_fuzzy_matching_excludes_a_data_mapping() -> None:
    with pytest.raises(MsprobeException, match="-fm cannot be combined with -dm or -lm"):
        Options(fuzzy=True, data_mapping="a.yaml")


def test_backward_calls_match_with_a_mapping_as_without(tmp_path: Path) -> None:  # D3
    case = CASES / "missing_apis_stat"
    plain = met(compared(case / "target", case / "golden"))
    mapped = met(compared(case / "target", case / "golden", data_mapping=str(case / "data_mapping.yaml")))
    backward = {name: other for name, other in plain.items() if name.endswith(".backward")}
    assert len(backward) > 10 and {name: mapped.get(name) for name in backward} == backward


def test_the_documented_form_of_an_api_mapping_is_read() -> None:  # D4
    documented = load_api_entries(str(CROSS / "api_mapping_documented.yaml"))
    assert documented == load_api_entries(str(CROSS / "api_mapping.yaml"))
    result = compared(CROSS / "target", CROSS / "golden", api_mapping=str(CROSS / "api_mapping_documented.yaml"))
    assert met(result)["Functional.sin.0.forward"] == "Torch.sin.0.forward"


def test_an_api_mapping_may_reorder_and_leave_out(tmp_path: Path) -> None:
    target = dump(tmp_path / "a", ["Functional.foo.0.forward"], "mindspore")
    golden = dump(tmp_path / "b", ["Torch.bar.0.forward"])
    (tmp_path / "map.yaml").write_text("{ms_api: Functional.foo, pt_api: Torch.bar, ms_args: [1], pt_args: [0]}")
    result = compared(target, golden, api_mapping=str(tmp_path / "map.yaml"))
    pairs = [(row.target.name[-7:], row.golden and row.golden.name[-7:]) for row in result.rows if row.target]
    assert pairs == [("input.0", None), ("input.1", "input.0"), ("utput.0", None)]


def test_an_api_mapping_needs_a_mindspore_target(tmp_path: Path) -> None:
    side = dump(tmp_path / "a", ["Torch.sin.0.forward"])
    with pytest.raises(MsprobeException, match="is for a target of MindSpore"):
        compared(side, side, api_mapping=BUILT_IN)


@pytest.mark.parametrize(
    ("key", "names", "mapped"),
    [
        ("Cell.fc.Dense.forward.0", {}, "Module.fc.Dense.forward.0"),
        ("Cell.fc.Dense.forward.0", {"fc.Dense": "lin.Linear", "Dense": "No"}, "Module.lin.Linear.forward.0"),
        ("Cell.a.RowLinear.backward.3", {"RowLinear": "TERow"}, "Module.a.TERow.backward.3"),
        ("Module.a.a.A.parameters_grad.0", {"a": "b"}, "Module.b.a.A.parameters_grad.0"),
        ("Cell.x.forward.y.F.forward.2", {"y.F": "z.G"}, "Module.x.forward.z.G.forward.2"),
        ("Torch.sin.0.forward", {"sin": "cos"}, "Torch.sin.0.forward"),
    ],
)
def test_names_of_cells_are_mapped_whole_or_in_parts(key: str, names: dict[str, str], mapped: str) -> None:
    assert map_cell(key, names) == mapped


def test_what_mirrors_torch_needs_no_table() -> None:
    mapping = NameMapping(api_names())
    names = "Mint.add.0.forward", "MintFunctional.relu.1.forward", "Functional.equal.2.forward", "Tensor.sum.3.backward"
    assert [mapping.record(name) for name in names] == [
        "Torch.add.0.forward",
        "Functional.relu.1.forward",
        "Torch.eq.2.forward",
        "Tensor.sum.3.backward",
    ]


def test_two_frameworks_match_without_a_file() -> None:
    assert met(compared(CROSS / "target", CROSS / "golden")) == {
        "Cell.fc1.Dense.forward.0": "Module.linear1.Linear.forward.0",
        "MintFunctional.relu.0.forward": "Functional.relu.0.forward",
        "Cell.norm.LayerNorm.forward.0": "Module.norm.LayerNorm.forward.0",
        "Primitive.layer_norm.LayerNorm.0.forward": "Functional.layer_norm.0.forward",
        "Cell.fc2.Dense.forward.0": "Module.linear2.Linear.forward.0",
        "Functional.sin.0.forward": "Torch.sin.0.forward",
        "Functional.tanh.0.forward": "Torch.tanh.0.forward",
        "Tensor.sum.0.forward": "Tensor.sum.0.forward",
    }


def test_parameters_of_other_names_match() -> None:
    result = compared(CROSS / "target", CROSS / "golden", cell_mapping=BUILT_IN)
    pairs = {row.target.name: row.golden.name for row in result.rows if row.target and row.golden}
    assert pairs["Cell.norm.LayerNorm.forward.0.parameters.gamma"] == (
        "Module.norm.LayerNorm.forward.0.parameters.weight"
    )


@pytest.mark.parametrize("content", ["[1, 2]", "a: 1", "a: {b: c}", "a: [", "- a", "\0"])
def test_a_wrong_mapping_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "map.yaml").write_text(content)
    with pytest.raises(MsprobeException, match=r"map\.yaml"):
        load_names(str(tmp_path / "map.yaml"))
    with pytest.raises(FileCheckException, match=r"none\.yaml"):
        load_names(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "entry", ["{ms_api: a}", "{ms_api: a, pt_api: b, ms_args: [0]}", "{ms_api: a, pt_api: b, ms_args: 0, pt_args: 0}"]
)
def test_a_wrong_entry_is_left_out_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str) -> None:
    (tmp_path / "map.yaml").write_text(f"- {entry}\n- {{ms_api: Functional.x, pt_api: Torch.x}}")
    (kept,) = load_api_entries(str(tmp_path / "map.yaml"))
    assert kept.target == "Functional.x" and "entry 0" in capsys.readouterr().err


def test_every_name_of_the_table_is_well_formed() -> None:
    names = api_names()
    assert len(names) > 250
    for mine, theirs in names.items():
        assert mine.split(".")[0] in ("Functional", "Tensor")
        assert theirs.split(".")[0] in ("Functional", "Tensor", "Torch")
        assert mine != theirs and len(theirs.split(".")) == 2


@pytest.mark.parametrize("golden_root", ["Module", "Cell"])
def test_a_cell_mapping_works_in_either_direction(tmp_path: Path, golden_root: str) -> None:
    roots = {"Module": "Cell", "Cell": "Module"}
    frameworks = {"Module": "pytorch", "Cell": "mindspore"}
    name = f"{roots[golden_root]}.a.Norm.forward.0"
    target = dump(tmp_path / "a", [name], frameworks[roots[golden_root]])
    golden = dump(tmp_path / "b", [f"{golden_root}.a.Norm.forward.0"], frameworks[golden_root])
    assert met(compared(target, golden, cell_mapping=BUILT_IN)) == {name: f"{golden_root}.a.Norm.forward.0"}


TARGET = ["Mint.sin.0.forward", "Cell.block.fc.Dense.forward.0", "Cell.block.Block.forward.0"]
GOLDEN = ["Torch.sin.0.forward", "Module.block.linear.Linear.forward.0", "Module.block.Block.forward.0"]


def told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, content: str) -> list[str]:
    """The warnings of two comparisons with a mapping file."""
    for name, framework, names in (("a", "mindspore", TARGET), ("b", "pytorch", GOLDEN)):
        folder = dump(tmp_path / name, names, framework)
        inside = {name: names[2] if name != names[2] else None for name in names}
        (folder / "construct.json").write_text(json.dumps(inside))
    (tmp_path / "map.yaml").write_text(content)
    for _ in range(2):
        compared(tmp_path / "a", tmp_path / "b", **{option: str(tmp_path / "map.yaml")})
    return re.findall(r"\[WARNING\] .*map\.yaml: (.*)", capsys.readouterr().err)


def test_names_of_a_data_mapping_that_no_item_has_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {
        "Mint.sin.0.forward.input.0": "Torch.sin.0.forward.input.1",
        "Mint.sin.0.forward.output.0": "N/A",
        "Mint.sni.0.forward.input.0": "Torch.sin.0.forward.input.9",
    }
    assert told_of(tmp_path, capsys, "data_mapping", json.dumps(lines)) == [
        '1 of 3 are not an item of the target, the first is "Mint.sni.0.forward.input.0".',
        '1 of 2 are not an item of the golden side, the first is "Torch.sin.0.forward.input.9".',
    ]


@pytest.mark.parametrize(
    ("option", "content", "told"),
    [
        ("api_mapping", "[{ms_api: Mint.sni, pt_api: Torch.sin}, {ms_api: Mint.sin, pt_api: Torch.sni}]",
         ['2 of 2 are not a pair of APIs that the two sides have, the first is "Mint.sni, Torch.sin".']),
        ("api_mapping", "[{ms_api: Mint.cos, pt_api: Torch.cos}, {ms_api: Mint.sin, pt_api: Torch.sin}]", []),
        ("cell_mapping", "{Cell.block.fc.Dense: Module.block.linear.Linear}",
         ['1 of 1 are not part of the name of a module of the target, the first is "Cell.block.fc.Dense".']),
        ("cell_mapping", "{Conv: Convolution, Dense: Linear}", []),
        ("cell_mapping", "{sin: cos}",
         ['1 of 1 are not part of the name of a module of the target, the first is "sin".']),
        ("layer_mapping", "{Block: {fd: linear}, Blok: {fc: linear}}",
         ['2 of 2 are not a layer and what is below it in the target, the first is "Block: fd".']),
        ("layer_mapping", "{Block: {head: output, fc: linear}}", []),
        ("layer_mapping", "{Cell: {block: part}}", []),
        ("layer_mapping", "{TopLayer: {block.fc: block.linear}}", []),
        ("layer_mapping", "{Block: {sin: cos}}", []),
        ("layer_mapping", "{}", []),
    ],
)  # fmt: skip
def test_other_files_are_reported_when_no_line_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, content: str, told: list[str]
) -> None:
    assert told_of(tmp_path, capsys, option, content) == told


@pytest.mark.parametrize("layer", ["blocks", "head"])
def test_a_layer_that_has_no_record_of_its_own_has_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layer: str
) -> None:
    """Of a list only what is in it runs; and of a layer that runs not everything need be collected."""
    names = ["Cell.blocks.0.Dense.forward.0", "Cell.head.Dense.forward.0"]
    for name in ("a", "b"):
        folder = dump(tmp_path / name, names[:1], "mindspore")
        (folder / "construct.json").write_text(json.dumps(dict.fromkeys(names)))
    (tmp_path / "map.yaml").write_text(f"{{TopLayer: {{{layer}: {layer}}}}}")
    compared(tmp_path / "a", tmp_path / "b", layer_mapping=str(tmp_path / "map.yaml"))
    assert "map.yaml" not in capsys.readouterr().err


def test_names_of_dtypes_of_two_frameworks_are_no_finding() -> None:
    found = [row for row in compared(CROSS / "target", CROSS / "golden").rows if row.target and row.golden]
    assert any(row.target.dtype != row.golden.dtype for row in found)  # type: ignore[union-attr]
    assert not any("float32" in text for row in found for text in row.messages)
