"""Dumps of MindSpore that somebody wrote to have users run something: no file is written, no script holds a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hostile import texts as hostile

import probe
from probe.backends.mindspore.execution import script
from probe.common.errors import MsprobeException


def forged(folder: Path, base: str, attributes: dict[str, Any], *others: dict[str, Any]) -> str:
    tensor: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 3]}
    tensor.update(Max=1.0, Min=-1.0, Mean=0.1, Norm=1.5)
    record = {"input_args": [*others, tensor], "input_kwargs": {}, "output": [tensor], "attributes": attributes}
    content = {
        "task": "statistics", "level": "L1", "framework": "mindspore", "dump_data_dir": "",
        "data": {f"{base}.0.forward": record},
    }  # fmt: skip
    path = folder / "dump.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_a_dump_writes_no_file(tmp_path: Path) -> None:
    target = tmp_path / "written"
    path = forged(tmp_path, "Primitive.y.TensorDump", {}, {"type": "str", "value": str(target)})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MsprobeException, match="not in this framework"):
        probe.replay(path, "Primitive.y.TensorDump.0.forward")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("text", hostile.TEXTS)
def test_what_a_primitive_was_made_with_is_no_code(text: str) -> None:
    attributes = {"axis": text, text: [text, {text: text}], "from": text}
    spelled = script.spelled("Primitive.x.Softmax", attributes)
    assert spelled is not None
    assert hostile.calls(spelled) == {"mindspore.ops.Softmax"}
    found: dict[str, Any] = {}

    def made(**settings: Any) -> None:
        found.update(settings)

    softmax = type("ops", (), {"Softmax": staticmethod(made)})
    eval(spelled, {"mindspore": type("mindspore", (), {"ops": softmax})})
    assert found == {"axis": text, text: (text, {text: text}), "from": text}


@pytest.mark.parametrize(
    "name", ['"""+print("pwned")+"""', '"""', '\\"""', "\\", '#"""\\', '"""\x00\u202e', "'''+print(1)+'''"]
)
def test_the_name_of_a_primitive_is_no_code(tmp_path: Path, name: str) -> None:
    base = f"Primitive.{name}.ReLU"
    usual = forged(tmp_path, "Primitive.x.ReLU", {})
    probe.replay(usual, "Primitive.x.ReLU.0.forward", emit=tmp_path / "usual.py")
    probe.replay(forged(tmp_path, base, {}), f"{base}.0.forward", emit=tmp_path / "s.py")
    found, meant = ((tmp_path / each).read_text(encoding="utf-8") for each in ("s.py", "usual.py"))
    assert hostile.calls(found) == hostile.calls(meant)
    assert hostile.imported(found) == hostile.imported(meant) == {"mindspore", "numpy"}
