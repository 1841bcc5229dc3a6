"""DistributedDataParallel over two gloo processes: the same bits on each rank with the tool on, in every way of it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import two_processes

SCRIPT = """
import functools, json, sys, torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from msprobe.pytorch import PrecisionDebugger
rank, port, folder, settings = int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.act = nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(inplace=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(384, 5)
    def forward(self, x):
        x = self.act(self.norm1(self.conv1(x)))
        y = self.conv2(x)
        y += x
        return self.head(self.drop(self.act(y).flatten(1)))

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20)
    def forward(self, x):
        return self.head(self.layer(self.words(x))).flatten(0, 1)

def train(make, find_unused, around):
    torch.manual_seed(1)
    inner = make().train()
    # Buckets so small that there are several, and their reductions run during the backward.
    model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.0005, find_unused_parameters=find_unused)
    fired, values = [], []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    for name, parameter in inner.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    generator = torch.Generator().manual_seed(10 + rank)
    torch.manual_seed(20 + rank)
    def forward():
        if make is Convolutions:
            x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3])
        else:
            x = torch.randint(0, 20, (2, 7), generator=generator)
            y = x.flatten()
        return F.cross_entropy(model(x), y)
    def step():
        optimizer.zero_grad()
        with model.no_sync():
            first = forward()
            first.backward()
        loss = forward()
        loss.backward()
        values.extend([first, loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        optimizer.step()
    for _ in range(3):
        around(model, step)
    values += [*model.parameters(), *model.buffers(), torch.get_rng_state()]
    return [value.detach().numpy().tobytes() for value in values], fired

def collecting(debugger, model, step):
    debugger.start(model)
    step()
    debugger.stop()
    debugger.step()

def bare(model, step):
    step()

for make, find_unused in ((Convolutions, False), (Attention, True)):
    expected = train(make, find_unused, bare)
    assert train(make, find_unused, bare) == expected, "the program repeats itself"
    for number, one in enumerate(settings):
        path = f"{folder}/{make.__name__}{number}"
        with open(f"{path}-{rank}.json", "w") as file:
            json.dump({"risk_level": "ALL", "dump_path": path, **one}, file)
        PrecisionDebugger._instance = None
        debugger = PrecisionDebugger(f"{path}-{rank}.json")
        found = train(make, find_unused, functools.partial(collecting, debugger))
        bits = sum(a != b for a, b in zip(found[0], expected[0])) if len(found[0]) == len(expected[0]) else "missing"
        print("result", make.__name__, number, "different", bits, "hooks", found[1] == expected[1], len(found[1]) > 50)
dist.barrier()
dist.destroy_process_group()
"""
WAYS = {
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
    "tensor": {"task": "tensor"},
}
LEVELS = ("L0", "L1", "mix")
LONG = os.environ.get("PROBE_TEST_LONG") == "1"


def chosen() -> list[dict[str, Any]]:
    """Each level and each way once, paired by the seed that a run of all tests prints; all pairs in the long run."""
    if LONG:
        return [{"level": level, **way} for level in LEVELS for way in WAYS.values()]
    ways = random.Random(os.environ["PROBE_TEST_SEED"]).sample(list(WAYS.values()), len(WAYS))
    return [{"level": level, **way} for level, way in zip(LEVELS, ways)]


SETTINGS = chosen()


# So that `make reliability`, which takes all pairs, runs it.
@pytest.mark.sampled()
def test_training_gives_the_same_bits_on_each_rank(tmp_path: Path) -> None:
    outputs = two_processes.run(tmp_path, SCRIPT, str(tmp_path), json.dumps(SETTINGS), timeout=300)
    for rank, output in enumerate(outputs):
        results = [line for line in output.splitlines() if line.startswith("result")]
        expected = [
            f"result {model} {number} different 0 hooks True True"
            for model in ("Convolutions", "Attention")
            for number in range(len(SETTINGS))
        ]
        assert results == expected, output
        for model in ("Convolutions", "Attention"):
            for number in range(len(SETTINGS)):
                assert (tmp_path / f"{model}{number}" / "step2" / f"rank{rank}" / "dump.json").stat().st_size > 5000
