"""What ``msprobe.mindspore`` imports and when, and which backend serves it beside something else called torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import scripts


def python(code: str, folder: Path) -> str:
    path = os.pathsep.join([str(folder), scripts.CHECKOUT])
    done = scripts.python("-c", code, folder=folder, PYTHONPATH=path, GLOG_v="3")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mindspore_is_imported_when_a_name_needs_it(tmp_path: Path) -> None:
    code = """
import sys
import msprobe.mindspore
from msprobe.mindspore import PrecisionDebugger, module_dump, random_save, seed_all
print("mindspore" in sys.modules)
from msprobe.mindspore import MsprobeStep, MsprobeInitStep, save, save_grad, step
print("mindspore" in sys.modules)
"""
    assert python(code, tmp_path).split() == ["False", "True"]


def test_every_listed_name_exists_and_others_do_not(tmp_path: Path) -> None:
    code = """
import msprobe.mindspore as names
print(all(callable(getattr(names, name)) for name in names.__all__))
try:
    from msprobe.mindspore import nothing
except ImportError as error:
    print("has no 'nothing'" in str(error))
"""
    assert python(code, tmp_path).split() == ["True", "True"]


@pytest.mark.parametrize("first", ["torch", "mindspore"])
def test_a_torch_whose_tensors_are_not_mindspores_switches_nothing(first: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class Tensor:\n    pass\n")
    code = f"""
import {first}
import mindspore, torch
from msprobe.mindspore import PrecisionDebugger
print(PrecisionDebugger(dump_path="dump").session()._adapter.framework)
"""
    assert python(code, tmp_path).split()[-1] == "mindspore"
