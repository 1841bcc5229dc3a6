"""Steps of an optimizer over a model that FSDP2 shards: each rank records its own parts, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import two_processes

import probe
from probe.common.numerics.sketch import sketch

SCRIPT = """
import sys, numpy as np, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from msprobe.pytorch import PrecisionDebugger

rank, port, folder = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

def train(debugger):
    torch.manual_seed(0)
    # Seven rows do not split into two equal parts.
    model, mesh = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 40)), init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, found = torch.optim.AdamW(model.parameters(), 0.01), {}
    for step in range(2):
        if debugger:
            debugger.start(model)
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 20).reshape(4, 5) + rank).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        parts = {name: (each._local_tensor, each.grad._local_tensor) for name, each in model.named_parameters()}
        before = {name: part.detach().clone() for name, (part, _) in parts.items()}
        optimizer.step()
        for name, (part, gradient) in parts.items():
            for kind, value in (("before", before[name]), ("after", part), ("gradient", gradient)):
                found[f"{step} {kind} {name}"] = value.detach().numpy().copy()
        if debugger:
            debugger.stop()
            debugger.step()
    return found

without = train(None)
found = train(PrecisionDebugger(dump_path=f"{folder}/dump", task="statistics", level="mix"))
assert all(value.tobytes() == without[name].tobytes() for name, value in found.items())
np.savez(f"{folder}/rank{rank}.npz", **found)
dist.barrier()
print("compared")
dist.destroy_process_group()
"""


def test_each_rank_records_the_parts_that_it_has(tmp_path: Path) -> None:
    outputs = two_processes.run(tmp_path, SCRIPT, str(tmp_path))
    assert all("compared" in output for output in outputs), outputs
    for rank in range(2):
        with np.load(tmp_path / f"rank{rank}.npz") as content:
            parts = {name: content[name].astype(np.float64) for name in content.files}
        for step in range(2):
            dump = probe.read(tmp_path / "dump" / f"step{step}" / f"rank{rank}")
            assert isinstance(dump, probe.Dump)
            (update,) = dump.updates
            assert [each.name for each in update.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
            for each in update.parameters:
                before, after, gradient = (
                    parts[f"{step} {kind} {each.name}"] for kind in ("before", "after", "gradient")
                )
                size = float(np.linalg.norm(after) + np.linalg.norm(before))
                assert each.state_step == step + 1 and each.note is not None and "local part" in each.note
                assert each.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
                assert each.parameter_norm == pytest.approx(np.linalg.norm(after), rel=1e-6)
                assert each.update is not None
                np.testing.assert_allclose(each.update.sums, sketch(after - before).sums, rtol=0, atol=3e-7 * size)
