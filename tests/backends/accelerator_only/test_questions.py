"""Questions about what is recorded on a device: compared with the CPU, a wrong kernel, calls run again, an overflow.

What counts as a read of the host is in `tests/support/accelerator`; no number of reads grows with the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator.alone import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import probe
from probe.api.cli import main

LAYERS = 2


class Router(nn.Module):
    """Takes the larger half of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, x.shape[-1] // 2, dim=-1).values.repeat(1, 2)


class Network(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), Router()]
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.parts(x)
        return found


Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], None]
Output = pytest.CaptureFixture[str]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


class Trained:
    """Two steps of a training, collected if there are settings."""

    def __init__(
        self, backend: Any, runs: Any, device: str, layers: int = LAYERS, step: Step = plain_step,
        parallel: Callable[[nn.Module], nn.Module] = lambda model: model, **settings: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(1)
        self.model = parallel(Network(layers).to(device))
        x = torch.linspace(-2, 2, 96).reshape(6, 16).to(device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        debugger = runs.new(**settings) if settings else None
        self.reads = []
        """Of each step."""
        for _ in range(2):
            before = backend.reads()
            if debugger is not None:
                debugger.start(self.model)
            step(self.model, optimizer, x)
            if debugger is not None:
                debugger.stop()
                debugger.step()
            self.reads.append(backend.reads() - before)
        runs.end()
        state: dict[str, Any] = self.model.state_dict()
        self.state = {name: getattr(value, "_local_tensor", value).cpu() for name, value in state.items()}

    def has_bits_of(self, other: Trained) -> bool:
        return all(torch.equal(value, other.state[name]) for name, value in self.state.items())


@pytest.fixture
def device(backend: Any) -> str:
    return str(backend.device.name)


@pytest.mark.parametrize("settings", [{"task": "statistics"}, {"task": "tensor"}, {"summary_mode": "md5"}])
def test_a_run_on_the_device_is_that_of_the_cpu(
    backend: Any, runs: Any, device: str, tmp_path: Path, capsys: Output, settings: dict[str, str]
) -> None:
    for at in ("cpu", device):
        Trained(backend, runs, at, level="mix", dump_path=tmp_path / at, **settings)
    assert main(["compare", str(tmp_path / device), str(tmp_path / "cpu"), "-o", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no divergence"), out


def test_a_wrong_kernel_is_named(backend: Any, runs: Any, device: str, tmp_path: Path, capsys: Output) -> None:
    Trained(backend, runs, "cpu", level="mix", task="tensor", dump_path=tmp_path / "cpu")
    with backend.device.wrong("aten::gelu", 1.01):
        Trained(backend, runs, device, level="mix", task="tensor", dump_path=tmp_path / device)
        dump = str(next((tmp_path / device).glob("step0/*/dump.json")))
        # The calls are run again on the device, where it is the accelerator that is there.
        assert main(["acc_check", "-api_info", dump, "-o", str(tmp_path)]) == 1
        checked = capsys.readouterr().out
        assert main(["replay", dump, "Functional.gelu.0.forward"]) == 1
        replayed = capsys.readouterr().out
    assert checked.startswith(f"12 calls run on {device}:0, ")
    assert "; 2 wrong.\nerror: Functional.gelu.0.forward" in checked
    assert replayed.startswith(f"Functional.gelu.0 on {device}:0: wrong when it was recorded and now")
    assert main(["compare", str(tmp_path / device), str(tmp_path / "cpu"), "-o", str(tmp_path)]) == 0
    first, cause = capsys.readouterr().out.splitlines()[:2]
    assert first.endswith("parts.2 (GELU), Functional.gelu.0.forward") and "1.01 times that of the golden run" in cause
    assert main(["acc_check", "-api_info", dump, "-o", str(tmp_path)]) == 0, "the kernel is right again"


def test_tensors_of_the_call_that_differs_from_a_golden_run_are_written(
    backend: Any, runs: Any, device: str, tmp_path: Path
) -> None:
    settings = {"level": "L1", "task": "tensor", "summary_mode": "md5"}
    Trained(backend, runs, device, dump_path=tmp_path / "golden", **settings)
    with backend.device.wrong("aten::gelu", 1.01):
        Trained(backend, runs, device, bench_path=str(tmp_path / "golden"), diff_nums=1, **settings)
    names = {path.name for path in runs.path.rglob("*.pt")}
    assert names == {f"Functional.gelu.0.forward.{place}.pt" for place in ("input.0", "output.0")}


def test_weights_on_the_device_have_the_fingerprint_of_those_on_the_host(device: str, tmp_path: Path) -> None:
    on_host, there = Network(LAYERS), Network(LAYERS).to(device)
    there.load_state_dict(on_host.state_dict())
    path = probe.fingerprint(there).save(tmp_path / "a.fingerprint")
    torch.save(on_host.state_dict(), tmp_path / "model.pt")
    assert probe.ckpt_compare(path, tmp_path / "model.pt").answer == "identical"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_a_scaler_are_as_without_the_tool(
    backend: Any, runs: Any, device: str, dtype: torch.dtype
) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    found = []
    for settings in ({}, {"level": "mix"}, {"level": "mix", "task": "overflow_check"}):
        for layers in (2, 8):
            scaler = torch.amp.GradScaler(device, init_scale=256.0)
            found.append(Trained(backend, runs, device, layers, step, **settings))
    # The scaler itself reads once; the tool once for each of five dtypes, once for sketches, twice for choices.
    assert [each.reads for each in found] == [[1, 1]] * 2 + [[9, 8]] * 2 + [[7, 7]] * 2
    assert all(each.has_bits_of(found[at % 2]) for at, each in enumerate(found))
    assert runs.read(1).data["Functional.linear.1.forward"]["output"][0]["dtype"] == str(dtype)


def sharded(model: nn.Module) -> nn.Module:
    for each in model.parts:
        if list(each.parameters()):
            fully_shard(each, mesh=init_device_mesh(next(each.parameters()).device.type, (1,)))
    return model


@pytest.mark.parametrize("parallel", [nn.parallel.DistributedDataParallel, sharded])
def test_what_one_rank_of_a_parallel_model_does_is_as_without_the_tool(
    backend: Any, runs: Any, device: str, parallel: Callable[[nn.Module], nn.Module]
) -> None:
    with process_group(device):
        for count, settings in ((6, {"level": "mix"}), (3, {"level": "mix", "task": "overflow_check"})):
            for layers in (2, 8):
                alone = Trained(backend, runs, device, layers, parallel=parallel)
                seen = Trained(backend, runs, device, layers, parallel=parallel, **settings)
                # DDP reads when it arranges its buckets anew.
                assert [found - own for found, own in zip(seen.reads, alone.reads)] == [count] * 2
                assert seen.has_bits_of(alone)
    names = list(runs.read(1, "rank0").data)
    assert any("Linear.forward" in name for name in names) and any("Linear.parameters_grad" in name for name in names)


def test_the_call_that_overflows_is_named_with_as_many_reads(
    backend: Any, runs: Any, device: str, capsys: Output
) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        (model(x) * 1e30).square().mean().backward()

    for layers in (2, 8):
        found = Trained(backend, runs, device, layers, step, level="mix", task="overflow_check")
        assert found.reads == [3, 0], "nothing is watched when it is found"
        assert "Tensor.square.0.forward is the first record" in capsys.readouterr().err


def test_save_reads_once(backend: Any, runs: Any, device: str) -> None:
    debugger = runs.new(level="debug", task="tensor")
    before = backend.reads()
    for number in range(9):
        debugger.save(torch.full((4,), float(number), device=device), "value")
    debugger.step()
    assert backend.reads() - before == 3
    runs.end()
    assert len(list(runs.path.rglob("value.*.pt"))) == 9
