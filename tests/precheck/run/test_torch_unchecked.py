"""Calls of a dump whose numbers lead into memory that is not theirs: each is one line, and the others are checked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
import torch.nn.functional as F

from probe.api.cli import main

FAR = 1 << 40
WILD_CTC = [
    torch.randn(10, 2, 5).log_softmax(2), torch.tensor([[FAR, 2], [1, -FAR]]),
    torch.tensor([10, 10]), torch.tensor([2, 2]),
]  # fmt: skip


def entry(value: Any, folder: Path, name: str) -> Any:
    """The entry of an argument, with its file if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        return {"type": type(value).__name__, "value": value}
    torch.save(value, folder / name)
    found = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape), "requires_grad": False}
    numbers = value.double()
    statistics = {"Max": numbers.max(), "Min": numbers.min(), "Mean": numbers.mean(), "Norm": numbers.norm()}
    return {**found, **{key: each.item() for key, each in statistics.items()}, "data_name": name}


def forged(folder: Path, calls: list[tuple[str, list[Any], dict[str, Any], Any]]) -> Path:
    tensors = folder / "dump_tensor_data"
    tensors.mkdir()
    data = {}
    for number, (base, args, kwargs, output) in enumerate(calls):
        name = f"{base}.{number}.forward"
        data[name] = {
            "input_args": [entry(value, tensors, f"{name}.input.{at}.pt") for at, value in enumerate(args)],
            "input_kwargs": {key: entry(value, tensors, f"{name}.kwargs.{key}.pt") for key, value in kwargs.items()},
            "output": [entry(output, tensors, f"{name}.output.0.pt")],
        }
    head = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": str(tensors)}
    path = folder / "dump.json"
    path.write_text(json.dumps({**head, "data": data}))
    return path


def silu() -> tuple[str, list[Any], dict[str, Any], Any]:
    x = torch.randn(4)
    return "Functional.silu", [x], {}, F.silu(x)


COMMAND = """
import sys
from probe.api.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, whose workers read its file."""
    script = folder / "command.py"
    script.write_text(COMMAND, encoding="utf-8")
    return forks.run_python("torch", script, *arguments)


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_call_that_ends_its_process_is_one_line_and_the_others_are_checked(tmp_path: Path, jobs: str) -> None:
    path = forged(tmp_path, [silu(), ("Functional.ctc_loss", WILD_CTC, {}, torch.tensor(1.0)), silu()])
    done = run(tmp_path, "acc_check", "-api_info", str(path), "-o", str(tmp_path), "--jobs", jobs)
    told = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in told, told
    assert "2 calls run on cpu" in told and "1 not run" in told
    assert "its process died of SIGSEGV" in told


def test_replay_of_a_call_that_ends_its_process_says_so(tmp_path: Path) -> None:
    offsets = {"reduce": "sum", "offsets": torch.tensor([0, FAR])}
    path = forged(tmp_path, [("Aten.segment_reduce", [torch.randn(4)], offsets, torch.randn(1))])
    done = run(tmp_path, "replay", str(path), "Aten.segment_reduce.0")
    assert done.returncode == 2 and "its process died of SIGSEGV" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_call_that_asks_for_no_checks_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = {"reduce": "sum", "lengths": torch.tensor([FAR, 3]), "unsafe": True}
    path = forged(tmp_path, [("Aten.segment_reduce", [torch.randn(4)], wild, torch.randn(2))])
    assert main(["replay", str(path), "Aten.segment_reduce.0"]) == 2
    assert "it was called with unsafe=True, which leaves out the checks of its arguments" in capsys.readouterr().err
