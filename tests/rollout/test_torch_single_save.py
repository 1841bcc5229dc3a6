"""``SingleSave`` in programs of PyTorch: the recorded files, processes, values overwritten later, and its limits."""

from __future__ import annotations

import json
import math
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest
import torch
from saved_values.recorded_files import RECORDED, SIDES, files_in, recorded_files

from msprobe.core import SingleSave
from probe.common import log
from probe.common.errors import MsprobeException


@pytest.fixture(autouse=True)
def one_object() -> Iterator[None]:
    log.reset()
    yield
    SingleSave.close()


def is_nearly(one: Any, other: Any) -> bool:
    """True if both are the same but for the last digits of statistics, which depend on the order of a sum."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_nearly(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_nearly, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


@pytest.mark.parametrize("side", SIDES)
def test_by_the_rules_of_msprobe_the_files_are_the_recorded_ones(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSPROBE_RULES", "msprobe")
    monkeypatch.setattr(sys, "argv", ["save.py", str(tmp_path), side])
    runpy.run_path(str(RECORDED / "save.py"))
    SingleSave.flush()
    found, recorded = files_in(tmp_path), recorded_files(side)
    assert found.keys() == recorded.keys()
    for name, content in recorded.items():
        assert is_nearly(found[name], content), name


def test_values_are_those_of_the_moment_of_the_call(tmp_path: Path) -> None:
    SingleSave(tmp_path)
    weight = torch.nn.Parameter(torch.arange(1e6))
    SingleSave.save({"w": weight, "half": weight.bfloat16(), "view": weight[::2]})
    with torch.no_grad():
        weight.zero_()
    SingleSave.flush()
    found = {path.name: np.load(path) for path in tmp_path.rglob("*.npy")}
    assert np.array_equal(found["w.npy"], np.arange(1e6, dtype=np.float32))
    assert np.array_equal(found["view.npy"], np.arange(0, 1e6, 2, dtype=np.float32))
    assert found["half.npy"].dtype == np.float32


def test_a_training_in_any_mode_is_not_disturbed(tmp_path: Path) -> None:
    SingleSave(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = (x * 2).exp()
        SingleSave.save({"y": y})
    with torch.inference_mode():
        SingleSave.save({"y": torch.ones(2)})
    SingleSave.save({"conjugated": torch.tensor([1 + 2j]).conj(), "requires": y, "meta": torch.empty(2, device="meta")})
    y.sum().backward()
    assert torch.equal(x.grad, 2 * y.detach())
    assert y.requires_grad and torch.initial_seed() == 0
    SingleSave.flush()
    assert np.load(next(tmp_path.rglob("conjugated.npy"))).tolist() == [1 - 2j]
    # A tensor without values is a failure that is logged, and the other names are saved.
    assert list(tmp_path.rglob("requires.npy")) and not list(tmp_path.rglob("meta.*"))
    assert "meta device has no values" in (tmp_path / "dump_error_info.log").read_text(encoding="utf-8")


def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MsprobeException, match="fmk is 'jax'; allowed: pytorch, mindspore"):
        SingleSave(tmp_path / "out", fmk="jax")
    monkeypatch.setenv("MSPROBE_RULES", "mine")
    with pytest.raises(MsprobeException, match="MSPROBE_RULES is 'mine'"):
        SingleSave(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_an_object_nothing_is_saved_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    SingleSave.save({"k": torch.ones(1)})
    SingleSave.step()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].endswith("SingleSave.save() saves nothing: call SingleSave(dump_path) first.")


OF_A_FORK = """
import os, sys, torch
from msprobe.core import SingleSave
SingleSave(sys.argv[1])
SingleSave.save({"k": torch.ones(1)})
if os.fork() == 0:
    SingleSave.save({"child": torch.ones(1)})
    SingleSave.flush()
    os._exit(0)
os.wait()
"""


def test_the_end_of_a_program_writes_everything_also_of_a_fork(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(OF_A_FORK, encoding="utf-8")
    done = forks.run_python("torch", script, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/data/k/step0/rank0/micro_step0/k.json").exists()
    (child,) = (tmp_path / "out/data/child/step0").iterdir()
    # A fork is another process without a rank.
    assert child.name.startswith("proc")
    assert json.loads((child / "micro_step0/child.json").read_text(encoding="utf-8"))["data"]["max"] == 1


def test_a_training_does_not_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.rollout import saver

    write, is_trained = saver._write, threading.Event()
    in_time: list[bool] = []
    # The disk answers when the training is over, which never comes if it waits for the disk.
    monkeypatch.setattr(saver, "_write", lambda *given: (in_time.append(is_trained.wait(60)), write(*given)))
    SingleSave(tmp_path)
    value = torch.ones(1000)
    for _ in range(20):
        SingleSave.save({"k": value})
    is_trained.set()
    SingleSave.flush()
    assert in_time == [True] * 20
    assert len(list(tmp_path.rglob("k.npy"))) == 20
