"""Trainings of many kinds end with the same bits with the tool and without: parallel ones, workers, flags of Python.

`make reliability` runs all of them; the other tests take samples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import forks
import pytest

BEGIN = """
import hashlib, os, sys
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)

def network():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))

def bits(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

def train(model, optimizer, batches):
    for batch in batches:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("bits", os.environ.get("RANK", "0"), bits([*model.parameters(), loss, torch.rand(4)]), flush=True)
"""
GLOO = """
import torch.distributed as dist
meeting, rank = "file://" + os.environ["MEETING"], int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
batches = [torch.randn(4, 8) + (dist.get_rank() if {own} else 0) for _ in range(3)]
model = network()
{wrap}
train(model, torch.optim.AdamW(model.parameters(), 0.01), batches)
dist.destroy_process_group()
"""
PARALLEL = {
    "DDP": (True, "model = nn.parallel.DistributedDataParallel(model)"),
    "FSDP2": (
        True,
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "fully_shard(model[0], mesh=mesh)\nfully_shard(model, mesh=mesh)",
    ),
    "tensor parallel": (
        False,
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module\n"
        "model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))\n"
        "plan = {'0': ColwiseParallel(), '2': RowwiseParallel()}\n"
        "parallelize_module(model, init_device_mesh('cpu', (2,)), plan)",
    ),
    "DTensor": (
        False,
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "model = distribute_module(model, mesh)\n"
        "batches = [distribute_tensor(batch, mesh, [Shard(0)]) for batch in batches]",
    ),
}
ALONE = {
    "plain": """
model = network()
train(model, torch.optim.SGD(model.parameters(), 0.1), [torch.randn(4, 8) for _ in range(3)])
""",
    "loader workers": """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((8,), float(index)) + torch.rand(8)

model = network()
loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, shuffle=True)
train(model, torch.optim.SGD(model.parameters(), 0.1), loader)
""",
}
PROGRAMS = {
    **{name: (BEGIN + GLOO.format(own=own, wrap=wrap), 2, ()) for name, (own, wrap) in PARALLEL.items()},
    **{name: (BEGIN + program, 1, ()) for name, program in ALONE.items()},
    "python -O": (BEGIN + ALONE["plain"], 1, ("-O",)),
    "python -I": (BEGIN + ALONE["plain"], 1, ("-I",)),
}  # fmt: skip
COLLECT = ("run", "--level", "mix", "--task", "statistics", "--step", "all", "-o", "dump", "train.py")
IN_A_FORK = """
import os, runpy, sys
_, rank, processes, collect = sys.argv
os.environ.update({{"RANK": rank, "WORLD_SIZE": processes}} if processes != "1" else {{}})
if collect == "True":
    from probe.api.cli import main
    sys.exit(main({collect!r}))
runpy.run_path("train.py", run_name="__main__")
"""


def ended(folder: Path, program: str, processes: int, flags: tuple[str, ...], collect: bool) -> list[str]:
    """The lines of bits that the processes print; with Python's flags in an interpreter of their own."""
    folder.mkdir()
    (folder / "train.py").write_text(program)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "MEETING": str(folder / "meeting")}
    if flags:
        command = [sys.executable, *flags, "-W", "ignore", *(("-m", "msprobe", *COLLECT) if collect else ("train.py",))]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        told = [(done.returncode, done.stdout, done.stderr)]
    else:
        arguments = [(str(rank), str(processes), str(collect)) for rank in range(processes)]
        code, variables["PYTHONPATH"] = IN_A_FORK.format(collect=list(COLLECT)), forks.CHECKOUT
        run = forks.server(*forks.MODULES["torch"]).run(
            folder / "run.py", *arguments, code=code, environment=variables, without_warnings=True
        )
        told = [(each.status, each.out, each.written_to_err) for each in run]
    found = []
    for status, out, err in told:
        assert status == 0, err
        found += re.findall(r"^bits .*$", out, re.MULTILINE)
        assert not collect or found[1:] or "collected steps 0-2" in err, err  # other ranks say little
    assert len(found) == processes
    return found


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_training_has_the_bits_that_it_has_by_itself(tmp_path: Path, name: str) -> None:
    program, processes, flags = PROGRAMS[name]
    alone = ended(tmp_path / "alone", program, processes, flags, False)
    assert ended(tmp_path / "collected", program, processes, flags, True) == alone
