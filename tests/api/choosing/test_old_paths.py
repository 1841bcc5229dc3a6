"""The module paths of msProbe's releases: each serves the names that scripts import from it, and no other."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

from probe.api.older import PATHS
from probe.common.errors import MsprobeException

CASE = Path(__file__).parents[2] / "compare" / "cases" / "identical_stat"
NEEDS_A_LIBRARY = {"MsprobeInitStep", "MsprobeLightningCallback", "MsprobeStep", "MsprobeTrainerCallback"}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_serves_its_names(path: str) -> None:
    module = importlib.import_module(path)
    assert dir(module) == sorted(PATHS[path])
    for name in set(PATHS[path]) - NEEDS_A_LIBRARY:
        found = getattr(module, name)
        assert found.__name__ == name
        assert found is getattr(importlib.import_module(PATHS[path][name]), name)


def test_all_names_are_imported_by_a_star() -> None:
    names: dict[str, object] = {}
    exec("from msprobe.pytorch.common.utils import *\nfrom msprobe.pytorch import *", names)
    assert {"seed_all", "PrecisionDebugger", "compare", "compare_distributed"} <= names.keys()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from msprobe.pytorch.monitor.module_hook import Trainer", "module_hook has no 'Trainer'; it has TrainerMon"),
        ("import msprobe.core.single_save.saver", "'saver'; it has .*SingleSave, single_comparator, single_saver"),
        ("from msprobe.pytorch import AclGraphDumper", "pytorch has no 'AclGraphDumper'; it has PrecisionChecker, .*"),
        ("import msprobe.visualization", r"msprobe has no 'visualization'; it has GradComparator, .*pytorch"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_are_there(statement: str, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        exec(statement)


def test_an_attribute_that_is_not_there_is_asked_for_as_of_any_module() -> None:
    module = importlib.import_module("msprobe.pytorch.compare")
    assert not hasattr(module, "Comparator")
    assert getattr(module, "__file__", None) is None


def test_compare_is_called_although_a_module_below_it_was_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from msprobe.pytorch import compare
    from msprobe.pytorch.compare.distributed_compare import compare_distributed

    pair = {"npu_json_path": str(CASE / "target" / "dump.json"), "bench_json_path": str(CASE / "golden" / "dump.json")}
    compare({**pair, "stack_json_path": "./stack.json", "is_print_compare_log": False}, str(tmp_path), stack_mode=True)
    assert capsys.readouterr().out.startswith("no divergence")
    assert [path.suffix for path in tmp_path.iterdir()] == [".xlsx"]
    for side in ("target", "golden"):
        shutil.copytree(CASE / side, tmp_path / side / "step0" / "rank0")
    compare_distributed(str(tmp_path / "target" / "step0"), str(tmp_path / "golden" / "step0"), str(tmp_path / "out"))
    assert [path.name.startswith("compare_result_rank0") for path in (tmp_path / "out").iterdir()] == [True]
    with pytest.raises(MsprobeException, match='allowed: a dict with the paths "npu_json_path"'):
        compare({"npu_json_path": "x"}, str(tmp_path))
