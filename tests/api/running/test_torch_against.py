"""``msprobe run --against``: the first divergence when it happens, what is written then, and the end of the program."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from running import Ran
from torch import nn
from torch_running import quick

import probe
from msprobe.pytorch import PrecisionDebugger
from probe.api.packing import pack
from probe.common.errors import MsprobeException

PROGRAM = """
import atexit, sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
atexit.register(print, "at exit")
try:
    for step in range(4):
        if step == {faulty}:
            net[1].eps = 1e-2
        net(torch.randn(5, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step)
finally:
    print("finally")
"""
NORM = "Functional.layer_norm.0.forward"


@pytest.fixture
def golden(scripts: Any, tmp_path: Path) -> Path:
    """A run of three steps without the fault."""
    (tmp_path / "a").mkdir()
    ran = quick(scripts, tmp_path / "a", PROGRAM.format(faulty=-1), "--step", "0-2")
    assert ran.status == 0, ran.err
    return ran.folder


def test_a_program_ends_at_the_step_that_diverges(scripts: Any, tmp_path: Path, golden: Path) -> None:
    (tmp_path / "b").mkdir()
    options = ("--step", "0-3", "--against", str(golden), "--stop-at", "divergence")
    ran = quick(scripts, tmp_path / "b", PROGRAM.format(faulty=1), *options)
    assert ran.status == 1 and ran.out.splitlines()[:3] == ["step 0", "finally", "at exit"]
    assert ran.steps == ["step0", "step1"]
    said = ran.warnings
    assert said[0].startswith("first divergence: step 1, process ") and said[0].endswith(f": 1 (LayerNorm), {NORM}")
    assert "cause:  argument eps = 0.01 (golden: 1e-05)" in said[1] and "the program ends here" in said[-1]
    assert "step 1, " in said[-1]
    # It was said before the step was over.
    assert ran.log.index("first divergence") < ran.log.rindex("Collection stopped.")
    # compare says the same of the two runs.
    assert probe.verdict(str(ran.folder), str(golden)).divergence.record == NORM
    (tensors,) = ran.folder.glob("step1/*/dump_tensor_data")
    names = {path.name for path in tensors.iterdir()}
    assert {f"{NORM}.input.0.pt", f"{NORM}.output.0.pt", "Functional.relu.0.forward.output.0.pt"} <= names
    named = ran.data(1)[NORM]["output"][0]
    assert (
        named["data_name"] == f"{NORM}.output.0.pt" and named["Max"] == torch.load(tensors / named["data_name"]).max()
    )
    # Calls in the rest of the step have no files.
    assert not [name for name in names if "backward" in name]


def test_a_run_without_a_difference_goes_on_and_says_so(scripts: Any, tmp_path: Path, golden: Path) -> None:
    pack(str(golden), str(tmp_path / "golden.zip"))
    (tmp_path / "b").mkdir()
    options = ("--step", "0-3", "--against", str(tmp_path / "golden.zip"), "--stop-at", "divergence")
    ran = quick(scripts, tmp_path / "b", PROGRAM.format(faulty=-1), *options)
    assert ran.status == 0 and "step 3" in ran.out
    assert "no divergence in 3 steps" in ran.log and "has no dump of step3/" in ran.log
    assert "first divergence" not in ran.log
    assert [list(path.iterdir()) for path in ran.folder.glob("step*/*/dump_tensor_data")] in ([[]] * 4, [])


@pytest.mark.parametrize(("options", "why"), [
    (("--against", "nowhere"), '"nowhere"; allowed: the path of an existing run'),
    (("--stop-at", "end"), "--stop-at"),
    (("--stop-at", "divergence"), "give against as well (msprobe run --baseline GOLDEN)"),
    (("--task", "monitor", "--against", "out"), "--baseline cannot be used with --task monitor"),
])  # fmt: skip
def test_a_wrong_option_is_refused_before_the_program_runs(
    scripts: Any, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    ran = quick(scripts, tmp_path, PROGRAM.format(faulty=-1), *options)
    assert ran.status == 2 and ran.out == ""
    assert why in ran.err


RANKS = """
import os, sys, torch, torch.distributed as dist
from torch import nn
rank, is_faulty = int(sys.argv[1]), {faulty}
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", "file://" + os.path.abspath("store"), rank=rank, world_size=2)
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if is_faulty and rank == 1:
    net[1].eps = 1e-2
for step in range(3):
    net(torch.randn(5, 8)).pow(2).mean().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
dist.barrier()
"""
EACH_RANK = """
import sys
from probe.api.cli import main
sys.exit(main(["run", "-o", "out", *{options!r}, "train.py", sys.argv[1]]))
"""


def test_all_ranks_end_after_the_step_in_which_one_diverges(tmp_path: Path) -> None:
    def ranks(name: str, faulty: bool, *options: str) -> list[Ran]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(RANKS.format(faulty=faulty), encoding="utf-8")
        code = EACH_RANK.format(options=options)
        # No launcher, which ends the other ranks as soon as one has ended: each of these ends by itself.
        ended = forks.server(*forks.with_tool("torch")).run(
            folder / "run.py", ["0"], ["1"], code=code, without_warnings=True, tear_down=True
        )
        return [Ran(each.status, each.out, each.written_to_err, folder / "out") for each in ended]

    golden = ranks("a", False)
    assert [(rank.status, "step 2" in rank.out) for rank in golden] == [(0, True)] * 2, golden
    ran = ranks("b", True, "--against", str(golden[0].folder), "--stop-at", "divergence")
    assert [(rank.status, rank.out) for rank in ran] == [(1, "")] * 2, ran
    said = ran[1].written_to_err
    assert "first divergence: step 0, rank 1" in said and "step 0, rank 1 diverges" in said
    assert ran[0].steps == ["step0"]


# --- in the script


def trained(folder: Path, net: nn.Module, **more: Any) -> None:
    torch.manual_seed(1)
    debugger = PrecisionDebugger(**{"dump_path": str(folder), "level": "mix", **more})
    debugger.start(net, rank_id=0)
    net(torch.randn(4, 8)).sum().backward()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())


def test_weights_that_differ_are_named_as_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "my golden", layers())
    net = layers()
    with torch.no_grad():
        net[2].weight[3, 4] += 1
    with pytest.raises(SystemExit) as ended:
        trained(tmp_path / "my run", net, against=str(tmp_path / "my golden"), stop_at="divergence")
    PrecisionDebugger.reset()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "weight" in said[said.index("first divergence") :], said
    (command,) = re.findall("The table: (.+)", said)
    assert shlex.split(command) == ["msprobe", "compare", str(tmp_path / "my run"), str(tmp_path / "my golden")]


def test_a_file_holds_what_its_record_describes_also_where_a_parameter_is_written_to(tmp_path: Path) -> None:
    def step(folder: Path, rate: float, **more: Any) -> None:
        net = layers()
        debugger = PrecisionDebugger(dump_path=str(folder), level="mix", **more)
        debugger.start(net, rank_id=0)
        net(torch.ones(4, 8)).sum().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.mul_(1 - rate)
                torch.mul(parameter.grad, parameter)
        debugger.stop()
        debugger.step()
        PrecisionDebugger.reset()

    step(tmp_path / "a", 0.1)
    step(tmp_path / "b", 0.2, against=str(tmp_path / "a"))
    dump = probe.read(tmp_path / "b" / "step0" / "rank0")
    assert isinstance(dump, probe.Dump)
    saved = {item.name: item for record in dump for item in record.items() if item.data_name}
    assert "Torch.mul.0.forward.input.1" in saved and "Tensor.mul_.0.forward.input.0" not in saved
    for item in saved.values():
        tensor = torch.load(Path(dump.path).parent / "dump_tensor_data" / item.data_name, weights_only=True)
        assert tensor.norm().item() == pytest.approx(item.norm, rel=1e-6), item.name


def test_a_gradient_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "a", layers(), level="L0")
    net = layers()
    net[2].bias.requires_grad_(False)
    trained(tmp_path / "b", net, level="L0", against=str(tmp_path / "a"))
    assert "2.bias has no gradient in the target" in capsys.readouterr().err


def test_a_step_of_which_nobody_can_tell_is_not_said_to_have_no_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("a", "b")):
        net = layers().insert(1, nn.Dropout())
        net.register_forward_pre_hook(lambda *given, seed=seed: torch.manual_seed(seed) and None)
        trained(tmp_path / name, net, **({"against": str(tmp_path / "a")} if seed else {}))
    said = capsys.readouterr().err
    assert "cannot be told: step 0, rank 0: Functional.dropout.0.forward: output.0 holds other random numbers" in said
    assert "no divergence in 0 steps; of 1 more it cannot be told" in said


def test_bench_path_counts_parameters_as_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer whose weights differ is not at fault, and what it feeds has other inputs."""
    checksums = tmp_path / "a.json"
    checksums.write_text(json.dumps({"dump_path": "x", "task": "statistics", "statistics": {"summary_mode": "md5"}}))
    trained(tmp_path / "a", layers(), config_path=str(checksums))
    compared = tmp_path / "b.json"
    section = {"summary_mode": "md5", "bench_path": str(tmp_path / "a"), "diff_nums": -1}
    compared.write_text(json.dumps({"dump_path": "x", "task": "tensor", "tensor": section}))
    net = layers()
    with torch.no_grad():
        net[0].weight.mul_(2)
    trained(tmp_path / "b", net, config_path=str(compared))
    assert list((tmp_path / "b" / "step0" / "rank0" / "dump_tensor_data").iterdir()) == []
    assert "have other inputs than in bench_path" in capsys.readouterr().err


def test_a_failure_of_the_comparison_ends_it_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "a", layers())
    monkeypatch.setattr("probe.compare.while_running.compared", lambda *args, **more: 1 / 0)
    net = layers()
    net[1] = nn.ReLU()
    trained(tmp_path / "b", net, against=str(tmp_path / "a"))
    assert "the comparison with" in capsys.readouterr().err
    assert (tmp_path / "b" / "step0" / "rank0" / "dump.json").stat().st_size > 1000


def test_a_run_that_would_write_into_the_golden_run_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "a", layers())
    with pytest.raises(MsprobeException, match="would write into the same folder"):
        trained(tmp_path / "a", layers(), against=str(tmp_path / "a"))


def test_a_dump_of_one_process_is_that_of_its_step_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "a", layers())
    net = layers()
    torch.manual_seed(1)
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "b"), level="mix", against=str(tmp_path / "a/step0/rank0"))
    for _ in range(2):
        debugger.start(net, rank_id=0)
        net(torch.randn(4, 8)).sum().backward()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    said = capsys.readouterr().err
    assert "no divergence in 1 step" in said and "has no dump of step1/rank0" in said
