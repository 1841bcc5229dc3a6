"""Networks matched by where in the module tree a call stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_dumps import tensor, write

from probe.api import cli
from probe.common.align.layer_names import load_rules, translate
from probe.common.align.mapping_files import load_names, write_names
from probe.common.align.options import BUILT_IN
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options

ATTENTION = {("attn",): "Attention", (): "Model"}


def dump(folder: Path, tree: dict[str, str | None], with_tree: bool = True) -> Path:
    data = {name: {"input": [tensor()]} if ".backward" in name else {"input_args": [tensor()]} for name in tree}
    return write(folder, data, tree if with_tree else None)


def met(target: Path, golden: Path, rules: str = BUILT_IN) -> dict[str, str | None]:
    result = compare_dumps(read(target), read(golden), Options(layer_mapping=rules))
    return {row.record: row.golden_record for row in result.rows if row.target is not None}


@pytest.mark.parametrize(
    ("path", "rules", "expected"),
    [
        (("net", "fc"), {"TopLayer": {("net",): ("module",)}}, ("module", "fc")),
        (("attn", "q"), {"Attention": {("q",): ("query",)}}, ("attn", "query")),
        (("other", "q"), {"Attention": {("q",): ("query",)}}, ("other", "q")),
        (("attn", "a", "b"), {"Attention": {("a",): ("no",), ("a", "b"): ("c",)}}, ("attn", "c")),
        (("a", "fc"), {"TopLayer": {("a",): ("x", "y")}}, ("x", "y", "fc")),
        (("fc",), {}, ("fc",)),
    ],
)
def test_a_path_is_translated_by_the_class_of_each_layer(
    path: tuple[str, ...], rules: dict[str, dict[tuple[str, ...], tuple[str, ...]]], expected: tuple[str, ...]
) -> None:
    assert translate(path, ATTENTION, rules) == expected


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
    found = met(dump(tmp_path / "a", target), dump(tmp_path / "b", golden))
    assert found["Torch.sin.0.forward"] == "Torch.sin.1.forward"
    assert found["Torch.sin.1.forward"] == "Torch.sin.0.forward" and found[first] == first


def test_a_backward_call_stands_where_its_forward_call_stood(tmp_path: Path) -> None:
    layer = "Module.a.Linear.forward.0"
    target = {"Torch.sin.0.forward": layer, layer: None, "Torch.sin.0.backward": None}
    golden = {"Torch.sin.0.forward": None, "Torch.sin.1.forward": layer, layer: None, "Torch.sin.1.backward": None}
    found = met(dump(tmp_path / "a", target), dump(tmp_path / "b", golden))
    assert found["Torch.sin.0.backward"] == "Torch.sin.1.backward"


def test_blocks_of_a_pipeline_stage_are_counted_from_zero(tmp_path: Path) -> None:
    target = dict.fromkeys([f"Module.layers.{n}.fc.Linear.forward.0" for n in (0, 1)])
    golden = dict.fromkeys([f"Module.layers.{n}.fc.Linear.forward.0" for n in (10, 9)])
    found = met(dump(tmp_path / "a", target), dump(tmp_path / "b", golden))
    assert list(found.values()) == [f"Module.layers.{n}.fc.Linear.forward.0" for n in (9, 10)]


def test_a_tree_on_one_side_only_is_an_error(tmp_path: Path) -> None:
    tree = {"Torch.sin.0.forward": None}
    with pytest.raises(MsprobeException, match=r"needs construct\.json next to both"):
        met(dump(tmp_path / "a", tree), dump(tmp_path / "b", tree, with_tree=False))


def test_the_derived_mapping_can_be_given_again(tmp_path: Path) -> None:
    sides = [dump(tmp_path / side, {"Module.a.Linear.forward.0": None, "Torch.sin.0.forward": None}) for side in "ab"]
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
