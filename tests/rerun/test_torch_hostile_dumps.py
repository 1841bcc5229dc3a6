"""Scripts of dumps that somebody wrote to have users run something: they hold the call, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hostile import texts as hostile

import probe
from probe.common.errors import MsprobeException


def forged(folder: Path, kwargs: dict[str, Any]) -> str:
    """A dump of one call of silu with these keyword arguments."""
    tensor: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3]}
    tensor.update(Max=1.0, Min=-1.0, Mean=0.1, Norm=1.5)
    record = {"input_args": [tensor], "input_kwargs": kwargs, "output": [tensor]}
    content = {
        "task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": "",
        "data": {"Functional.silu.0.forward": record},
    }  # fmt: skip
    path = folder / "dump.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def entry(value: str) -> dict[str, str]:
    return {"type": "str", "value": value}


@pytest.fixture
def takes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses no argument."""
    monkeypatch.setattr(F, "silu", lambda x, **others: x * torch.sigmoid(x))


def emitted(folder: Path, kwargs: dict[str, Any]) -> str:
    probe.replay(forged(folder, kwargs), "Functional.silu.0.forward", emit=folder / "s.py")
    return (folder / "s.py").read_text(encoding="utf-8")


@pytest.mark.usefixtures("takes_anything")
def test_texts_and_names_of_arguments_are_no_code(tmp_path: Path) -> None:
    usual = hostile.calls(emitted(tmp_path, {"inplace": {"type": "bool", "value": False}}))
    for text in hostile.TEXTS:
        for kwargs in ({"inplace": entry(text)}, {text: entry(text)}, {"a": [{text: entry(text)}, entry(text)]}):
            written = emitted(tmp_path, kwargs)
            assert hostile.calls(written) == usual, text
            assert hostile.imported(written) == {"torch"}


@pytest.mark.usefixtures("takes_anything")
def test_keywords_of_python_are_given_in_a_dictionary(tmp_path: Path) -> None:
    written = emitted(tmp_path, {"from": entry("x"), "to": entry("y")})
    assert 'torch.nn.functional.silu(x0, to="y", **{"from": "x"})' in written


def test_results_that_are_named_like_code_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = 'x": __import__("os").system("touch pwned")}; """'
    monkeypatch.setattr(F, "silu", lambda x, **others: {name: x * torch.sigmoid(x)})
    written = emitted(tmp_path, {})
    assert not [call for call in hostile.calls(written) if "import" in call or "system" in call]


@pytest.mark.parametrize("dtype", ['float32, f())\nf("', "float32#", 'torch."""', "torch.load('x')"])
def test_dtypes_that_are_none_are_refused(tmp_path: Path, dtype: str) -> None:
    path = Path(forged(tmp_path, {}))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["data"]["Functional.silu.0.forward"]["input_args"][0]["dtype"] = dtype
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(MsprobeException):
        probe.replay(str(path), "Functional.silu.0.forward", emit=tmp_path / "s.py")
    assert not (tmp_path / "s.py").exists()
