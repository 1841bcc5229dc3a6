"""What corresponds to what where names differ: fuzzy matching, mapping files, layers, two frameworks, missing ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, constant, tensor, write, written

from probe.api import cli
from probe.api.cli import main
from probe.common.align.calls import NAMES_DIFFER
from probe.common.align.layers import load_rules
from probe.common.align.mapping import BUILT_IN
from probe.common.align.name_mapping import load_api_entries, load_names, map_cell, write_names
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult

# --- what corresponds to what where names differ: fuzzy matching, mapping files, two frameworks without a file

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


def test_fuzzy_matching_excludes_a_data_mapping() -> None:
    with pytest.raises(MsprobeException, match="-fm cannot be combined with -dm or -lm"):
        Options(fuzzy=True, data_mapping="a.yaml")


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


@pytest.mark.parametrize(
    "entry", ["{ms_api: a}", "{ms_api: a, pt_api: b, ms_args: [0]}", "{ms_api: a, pt_api: b, ms_args: 0, pt_args: 0}"]
)
def test_a_wrong_entry_is_left_out_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str) -> None:
    (tmp_path / "map.yaml").write_text(f"- {entry}\n- {{ms_api: Functional.x, pt_api: Torch.x}}")
    (kept,) = load_api_entries(str(tmp_path / "map.yaml"))
    assert kept.target == "Functional.x" and "entry 0" in capsys.readouterr().err


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


# --- networks matched by where in the module tree a call stands


def dump_of_tree(folder: Path, tree: dict[str, str | None], with_tree: bool = True) -> Path:
    data = {name: {"input": [tensor()]} if ".backward" in name else {"input_args": [tensor()]} for name in tree}
    return write(folder, data, tree if with_tree else None)


def met_by_layers(target: Path, golden: Path, rules: str = BUILT_IN) -> dict[str, str | None]:
    result = compare_dumps(read(target), read(golden), Options(layer_mapping=rules))
    return {row.record: row.golden_record for row in result.rows if row.target is not None}


def test_rules_are_read_in_their_old_form_too(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("Cell: {a: b}\nBlock:\n  x.y: z(note)\n")
    assert load_rules(str(path)) == {"TopLayer": {("a",): ("b",)}, "Block": {("x", "y"): ("z",)}}
    for wrong in ("[a]", "a: b", "a: [b]"):
        path.write_text(wrong)
        with pytest.raises(MsprobeException, match=r"map\.yaml"):
            load_rules(str(path))


def test_calls_match_by_their_place_and_not_by_their_number(tmp_path: Path) -> None:  # D9
    first, second = "Module.a.Linear.forward.0", "Module.b.Linear.forward.0"
    target = {"Torch.sin.0.forward": first, first: None, "Torch.sin.1.forward": second, second: None}
    golden = {"Torch.sin.0.forward": second, second: None, "Torch.sin.1.forward": first, first: None}
    found = met_by_layers(dump_of_tree(tmp_path / "a", target), dump_of_tree(tmp_path / "b", golden))
    assert found["Torch.sin.0.forward"] == "Torch.sin.1.forward"
    assert found["Torch.sin.1.forward"] == "Torch.sin.0.forward" and found[first] == first


def test_blocks_of_a_pipeline_stage_are_counted_from_zero(tmp_path: Path) -> None:
    target = dict.fromkeys([f"Module.layers.{n}.fc.Linear.forward.0" for n in (0, 1)])
    golden = dict.fromkeys([f"Module.layers.{n}.fc.Linear.forward.0" for n in (10, 9)])
    found = met_by_layers(dump_of_tree(tmp_path / "a", target), dump_of_tree(tmp_path / "b", golden))
    assert list(found.values()) == [f"Module.layers.{n}.fc.Linear.forward.0" for n in (9, 10)]


def test_a_tree_on_one_side_only_is_an_error(tmp_path: Path) -> None:
    tree = {"Torch.sin.0.forward": None}
    with pytest.raises(MsprobeException, match=r"needs construct\.json next to both"):
        met_by_layers(dump_of_tree(tmp_path / "a", tree), dump_of_tree(tmp_path / "b", tree, with_tree=False))


def test_the_derived_mapping_can_be_given_again(tmp_path: Path) -> None:
    sides = [
        dump_of_tree(tmp_path / side, {"Module.a.Linear.forward.0": None, "Torch.sin.0.forward": None}) for side in "ab"
    ]
    arguments = ["compare", "-tp", str(sides[0]), "-gp", str(sides[1]), "-o"]
    assert cli.main([*arguments, str(tmp_path / "first"), "-lm"]) == 0
    (mapping,) = (tmp_path / "first").glob("data_mapping_*.yaml")
    assert cli.main([*arguments, str(tmp_path / "second"), "-dm", str(mapping)]) == 0
    tables = [next((tmp_path / folder).glob("*.csv")).read_text() for folder in ("first", "second")]
    assert tables[0] == tables[1]


def test_names_that_yaml_would_read_otherwise_are_quoted(tmp_path: Path) -> None:
    names = {"a.b": "N/A", "yes": "no", "- x": "a: b", "1.5": "null", "": "#", "é.\n": "'"}
    write_names(str(tmp_path / "names.yaml"), names)
    assert load_names(str(tmp_path / "names.yaml")) == names


# --- A rank whose folder holds no records is named in a warning and left out, by every command that reads a run

VALUE = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 1.0, "Mean": 1.0,
         "Norm": 1.4142}  # fmt: skip
RECORDS = {"Functional.relu.0.forward": {"input_args": [VALUE], "input_kwargs": {}, "output": [VALUE]}}


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
def test_runs_whose_ranks_have_no_records_in_common_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, rank in (("run", 0), ("golden", 1)):
        for each in range(2):
            folder = tmp_path / run / "step0" / f"rank{each}"
            folder.mkdir(parents=True)
            if each == rank:
                written(folder, RECORDS, None)
    paths = ["-tp", str(tmp_path / "run"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "out")]
    assert main([command, *paths]) == 2
    assert "have no rank in common of which both hold records" in capsys.readouterr().err


def made(run: Path, ranks: int) -> Path:
    """A run with records of two ranks, and with folders of `ranks` ranks."""
    for rank in range(ranks):
        folder = run / "step0" / f"rank{rank}"
        folder.mkdir(parents=True)
        if rank < 2:
            written(folder, RECORDS, None)
    return run


MERGED = ["--rank_size", "2", "2", "--tp", "2", "2", "--pp", "1", "1"]


@pytest.mark.parametrize("golden_ranks", [2, 3])
@pytest.mark.parametrize(
    "command",
    [["show"], ["overflow_check", "-i"], ["graph_visualize", "-tp"], ["compare"], ["graph_visualize"],
     ["compare", *MERGED], ["graph_visualize", *MERGED]],
    ids=" ".join,
)  # fmt: skip
def test_is_named_in_a_warning_and_left_out(
    command: Sequence[str], golden_ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, golden = made(tmp_path / "run", 3), made(tmp_path / "golden", golden_ranks)
    takes_two = command[0] in ("compare", "graph_visualize") and command[-1] != "-tp"
    paths = ["-tp", str(run), "-gp", str(golden)] if takes_two else [str(run)]
    output = [] if command[0] == "show" else ["-o", str(tmp_path / "out")]
    assert main([*command, *paths, *output]) == 0
    said = capsys.readouterr().err
    assert f"{run}/step0: no records were found of rank2." in said
    assert "msprobe" not in said and "dump.journal" not in said
