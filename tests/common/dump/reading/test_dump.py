"""`probe.read`: what a dump holds, and errors that name file and place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_dumps import plain, write
from stack_trees import stacks_of

import probe
from probe.common.dump.journal import ADD, REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.dump.reading.records import Item
from probe.common.errors import DumpFormatError

CASES = Path(__file__).parents[3] / "compare" / "cases"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "requires_grad": True}
RELU = "Torch.relu.0.forward"


def dump_file(folder: Path, data: dict[str, Any], **head: Any) -> Path:
    return write(folder, data, **{"level": "L1", **head}) / "dump.json"


def only_items(folder: Path, fields: Any, name: str = RELU) -> list[Item]:
    dump = probe.read(dump_file(folder, {name: fields}))
    return dump.items(dump[name])


def test_a_record_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    dump = probe.read(dump_file(tmp_path, {RELU: {}, "Torch.add.0.forward": {}}))
    with pytest.raises(KeyError, match=r"no record 'Torch.rellu.0.forward'; nearest names: Torch.relu.0.forward"):
        dump["Torch.rellu.0.forward"]
    with pytest.raises(KeyError, match="has no record 3"):
        dump[3]  # type: ignore[index]


def test_a_recorded_dump_is_read_with_head_records_tree_and_stacks() -> None:
    folder = CASES / "identical_stat" / "target"
    dump = probe.read(folder)
    assert (dump.framework, dump.task, dump.level) == ("pytorch", "statistics", "mix")
    plain = json.loads((folder / "dump.json").read_text())
    assert [record.name for record in dump] == list(plain["data"]) and len(dump) == len(plain["data"])
    assert dump.tree == json.loads((folder / "construct.json").read_text())
    (line, _) = dump.stacks["Functional.embedding.0.forward"]  # type: ignore[index]
    assert line.startswith("File /site-packages/torch/nn/modules/sparse.py, line 189, in forward")
    record = dump["Module.embed.Embedding.forward.0"]
    assert [item.name for item in record.items()] == [
        "Module.embed.Embedding.forward.0.input.0",
        "Module.embed.Embedding.forward.0.parameters.weight",
        "Module.embed.Embedding.forward.0.output.0",
    ]
    weight = record.items()[1]
    assert (weight.state, weight.dtype, weight.shape) == ("parameters", "torch.float32", (11, 8))
    assert (weight.max, weight.requires_grad) == (2.298342704772949, True)


def test_nested_values_get_the_path_to_them_as_name(tmp_path: Path) -> None:
    fields = {
        "input_args": [[plain(1), [TENSOR, None]], {"a": plain(True), "b": []}, {}],
        "input_kwargs": {"dim": plain(-1)},
        "output": {"hidden": TENSOR},
    }
    assert [(item.name.removeprefix(RELU + "."), item.dtype) for item in only_items(tmp_path, fields)] == [
        ("input.0.0", "<class 'int'>"),
        ("input.0.1.0", "torch.float32"),
        ("input.0.1.1", None),
        ("input.1.a", "<class 'bool'>"),
        ("input.dim", "<class 'int'>"),
        ("output.hidden", "torch.float32"),
    ]


def test_saved_values_are_read_from_debug_json() -> None:
    dump = probe.read(CASES / "debug_save" / "target")
    assert dump.level == "debug" and dump.path.endswith("debug.json") and dump.stacks is None
    names = [item.name for record in dump for item in record.items()]
    assert names[:4] == ["weight.0.debug", "weight_grad.0.debug", "nested.0.debug.y", "nested.0.debug.lst.0"]


def test_values_of_a_framework_have_a_form(tmp_path: Path) -> None:
    point = {"type": "torch.distributed.P2POp", "op": "isend", "peer": 1, "tag": 0, "group_id": "g", "tensor": TENSOR}
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "x"}
    arguments = [plain([2], "torch.Size"), plain([0, None, 2], "slice"), plain("...", "ellipsis"), group, point]
    kwargs = {"src": plain(1), "format": {"type": "torch.memory_format", "format": "contiguous_format"}}
    found = only_items(tmp_path, {"input_args": arguments, "input_kwargs": kwargs})
    assert [(item.dtype, item.shape, item.max) for item in found] == [
        ("torch.Size", (2,), None),
        ("slice", (3,), None),
        ("ellipsis", (), "..."),
        ("torch.ProcessGroup", (), "[0, 1]"),
        ("torch.float32", (2, 3), None),
        ("int", (), "1"),
        ("<class 'str'>", (), "contiguous_format"),
    ]
    assert found[4].peer == ("isend", 1, 0, "g")


@pytest.mark.parametrize("text", ["plain", "a, NaN, b", ": -Infinity]", 'quote " NaN '])
def test_nan_and_infinity_are_numbers_and_texts_stay_texts(tmp_path: Path, text: str) -> None:
    tensor = {**TENSOR, "Max": math.inf, "Min": -math.inf, "Mean": math.nan, "Norm": 1.5}
    item, number, word = only_items(tmp_path, {"output": [tensor, plain(math.nan), plain(text)]})
    assert (item.max, item.min, item.norm) == (math.inf, -math.inf, 1.5) and math.isnan(item.mean)
    assert math.isnan(number.max) and number.dtype == "<class 'float'>"
    assert word.max == text


def journal(folder: Path) -> Path:
    writer = JournalWriter(str(folder / JOURNAL_FILE), Header("statistics", "mix", "pytorch", None))
    writer.stack(0, stacks_of([("gone.py", 7, "forward")]))
    writer.record("Torch.sin.0.forward", 1, 0, "Module.a.A.forward.0", 1, REPLACE, {"output": [TENSOR]})
    writer.record("Module.a.A.forward.0", 0, 0, None, 2, REPLACE, {"input_args": [{**TENSOR, "Max": math.nan}]})
    writer.record("Module.a.A.forward.0", 0, 0, None, 2, ADD, {"output": [TENSOR]})
    writer.close()
    return folder / JOURNAL_FILE


@pytest.mark.parametrize("give", ["the folder", "dump.json", "the journal"])
def test_a_run_that_died_is_read_from_its_journal(tmp_path: Path, give: str) -> None:
    path = journal(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn")
    # What is there before the first record.
    dump_json = dump_file(tmp_path, {}, task="statistics")
    dump = probe.read({"the folder": tmp_path, "dump.json": dump_json, "the journal": path}[give])
    assert [record.name for record in dump] == ["Torch.sin.0.forward", "Module.a.A.forward.0"]
    assert dump.tree == {"Module.a.A.forward.0": None, "Torch.sin.0.forward": "Module.a.A.forward.0"}
    assert dump.stacks == {name: ["File gone.py, line 7, in forward, \n "] for name in dump.tree}
    first, second = dump["Module.a.A.forward.0"].items()
    assert math.isnan(first.max) and second.state == "output"


@pytest.mark.parametrize("fields", [[1], 5, {"output": 5}, {"output": ["text"]}, {"input_args": [[[True]]]}])
def test_a_record_of_a_wrong_form_names_the_place(tmp_path: Path, fields: Any) -> None:
    with pytest.raises(DumpFormatError, match=r"dump\.json: Torch\.relu\.0\.forward"):
        only_items(tmp_path, fields)


@pytest.mark.parametrize(
    "field", [{"md5": [5]}, {"data_name": 5}, *({"shape": shape} for shape in ("[2]", None, [2, "3"], [[2]], [True]))]
)
def test_a_tensor_of_a_wrong_form_names_the_place(tmp_path: Path, field: dict[str, Any]) -> None:
    with pytest.raises(DumpFormatError, match=r"dump\.json: Torch\.relu\.0\.forward\.output\.0: \"[a-z_5]+\" is"):
        only_items(tmp_path, {"output": [{**TENSOR, **field}]})


def test_values_of_a_tensor_come_from_its_file(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tmp_path / "dump_tensor_data").mkdir()
    np.save(tmp_path / "dump_tensor_data" / f"{RELU}.output.0.npy", values)
    entries = [{**TENSOR, "data_name": f"{RELU}.output.0.npy"}, {**TENSOR, "data_name": "../dump.json"}, TENSOR]
    dump = probe.read(dump_file(tmp_path, {RELU: {"output": entries}}, task="tensor"))
    there, outside, nowhere = dump[RELU].items()
    np.testing.assert_array_equal(dump.tensor(there), values)  # type: ignore[arg-type]
    assert dump.tensor(nowhere) is None
    with pytest.raises(DumpFormatError, match="not a file name"):
        dump.tensor(outside)
