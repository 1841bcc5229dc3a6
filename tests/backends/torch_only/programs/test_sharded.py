"""Models over two processes: the same bits as without the tool, and records of what each rank holds.

One run of two gloo processes serves every test. Its script trains each model without the tool and then once with
each of the settings, and compares on the spot.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import dumped
import pytest
import two_processes

SETTINGS = [
    {"level": "mix", "task": "tensor"},
    {"level": "L0", "task": "statistics"},
    {"level": "L1", "task": "tensor"},
]
if os.environ.get("PROBE_TEST_LONG") == "1":
    SETTINGS += [
        {"level": "mix", "task": "statistics", "summary_mode": "md5"},
        {"level": "mix", "task": "structure"},
    ]
KINDS = ("ddp of convolutions", "ddp of attention", "fully_shard", "parallelize_module")
SCRIPT = """
import contextlib, json, sys, torch, torch.distributed as dist
import torch.nn.functional as F
from pathlib import Path
from backend_torch import Backend
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
settings, kinds = json.loads(sys.argv[4]), json.loads(sys.argv[5])
if "fully_shard" in kinds:
    from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, norm, inplace):
        super().__init__()
        self.up, self.norm, self.act, self.down = nn.Linear(4, 8), norm, nn.ReLU(inplace), nn.Linear(8, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.down(self.act(self.norm(self.up(x)))))

class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        # torch itself allows neither of them on the outputs of a parallel layer.
        norm = (lambda: nn.Identity()) if kind == "parallelize_module" else (lambda: nn.BatchNorm1d(8))
        inplace = kind != "parallelize_module"
        self.one, self.two, self.head = Block(norm(), inplace), Block(norm(), inplace), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.two(self.one(x)))

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
        self.words, self.unused, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.head(self.layer(self.words(x))).flatten(0, 1)

def build(kind):
    torch.manual_seed(0)
    if kind.startswith("ddp"):
        # Buckets so small that there are several, and their reductions run during the backward.
        inner = Convolutions() if "convolutions" in kind else Attention()
        return nn.parallel.DistributedDataParallel(
            inner.train(), bucket_cap_mb=0.0005, find_unused_parameters="attention" in kind)
    net, mesh = Net(kind), init_device_mesh("cpu", (2,))
    for block in (net.one, net.two):
        if kind == "fully_shard":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()})
    return fully_shard(net, mesh=mesh) if kind == "fully_shard" else net

def local(tensor):
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach().clone()

def loss_of(kind, model, generator):
    if "convolutions" in kind:
        return F.cross_entropy(model(torch.randn(4, 3, 8, 8, generator=generator)), torch.tensor([0, 1, 2, 3]))
    if "attention" in kind:
        words = torch.randint(0, 20, (2, 7), generator=generator)
        return F.cross_entropy(model(words), words.flatten())
    return model(torch.randn(6, 4, generator=generator)).pow(2).mean()

def train(kind, debugger=None):
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    # With tensor parallelism every rank has the same batch.
    generator = torch.Generator().manual_seed(5 + (rank if kind != "parallelize_module" else 0))
    torch.manual_seed(9 + rank)
    seen, fired = [], []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
            parameter.register_hook(lambda gradient: fired.append(str(gradient.shape)))
    for step in range(2):
        if debugger is not None:
            debugger.start(model)
        optimizer.zero_grad()
        if kind.startswith("ddp"):
            with model.no_sync():
                loss_of(kind, model, generator).backward()
        loss = loss_of(kind, model, generator)
        loss.backward()
        if kind != "parallelize_module":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen += [local(loss), *(local(p.grad) for p in model.parameters() if p.grad is not None)]
    seen += [*map(local, model.parameters()), *map(local, model.buffers()), torch.get_rng_state()]
    return [value.numpy().tobytes() for value in seen], fired

def debugger(kind, number, **more):
    own = dict(settings[number])
    mode = {"summary_mode": own.pop("summary_mode")} if "summary_mode" in own else {}
    name = f"{kind} {number}" + (" one rank" if more else "")
    config = {**own, **more, own["task"]: mode, "dump_path": str(folder / name)}
    path = folder / f"{name} {rank}.json"
    path.write_text(json.dumps(config))
    return Backend().new_debugger_class()(str(path))

result = {"mesh": str(init_device_mesh("cpu", (2,)))}
for kind in kinds:
    expected, fired = train(kind)
    assert len(expected) > 25 and len(fired) > 20
    assert train(kind) == (expected, fired), "the program repeats itself"
    for number in range(len(settings)):
        found = train(kind, debugger(kind, number))
        different = [index for index, (one, other) in enumerate(zip(found[0], expected)) if one != other]
        result[f"{kind} {number}"] = [len(found[0]) == len(expected), different, found[1] == fired]
    # The other rank waits for ever if describing a tensor communicates.
    found = train(kind, debugger(kind, 0, rank=[0]))
    result[f"{kind} one rank"] = [True, [], found == (expected, fired)]
(folder / f"result{rank}.json").write_text(json.dumps(result))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch.distributed.fsdp

    path = tmp_path_factory.mktemp("sharded")
    # One that this release lacks does not keep the others from being tested.
    kinds = [kind for kind in KINDS if kind != "fully_shard" or hasattr(torch.distributed.fsdp, kind)]
    outputs = two_processes.run(path, SCRIPT, str(path), json.dumps(SETTINGS), json.dumps(kinds), timeout=300)
    assert all((path / f"result{rank}.json").is_file() for rank in (0, 1)), "\n".join(outputs)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_same_bits(folder: Path, kind: str) -> None:
    for rank, (number, settings) in itertools.product((0, 1), enumerate(SETTINGS)):
        result = json.loads((folder / f"result{rank}.json").read_text())
        assert result[f"{kind} {number}"] == [True, [], True], f"{settings}, rank {rank}: complete, different, hooks"
        dump = dumped.read(folder / f"{kind} {number}", 1, f"rank{rank}")
        assert len(dump.tree if settings["task"] == "structure" else dump.data) > 10, "something was collected"


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_can_be_collected_alone(folder: Path, kind: str) -> None:
    for rank in (0, 1):
        assert json.loads((folder / f"result{rank}.json").read_text())[f"{kind} one rank"] == [True, [], True]
    assert dumped.folders(folder / f"{kind} 0 one rank") == [f"step{step}/rank0" for step in range(2)]


def test_the_tool_did_not_fail(folder: Path) -> None:
    assert {str(path): path.read_text() for path in folder.rglob("dump_error_info.log")} == {}


def entries(folder: Path, kind: str, rank: int) -> Any:
    return dumped.read(folder / f"{kind} 0", 1, f"rank{rank}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_has_its_backward(folder: Path, kind: str) -> None:
    dump = entries(folder, kind, 0)
    called = {name.rsplit(".forward", 1)[0] for name in dump.forward if name.startswith("Module")}
    assert {name.rsplit(".backward", 1)[0] for name in dump.backward if name.startswith("Module")} == called
    assert len(called) > 6


def test_a_distributed_tensor_has_its_placements_and_the_numbers_of_its_shard(folder: Path) -> None:
    import torch

    for rank in (0, 1):
        mesh = json.loads((folder / f"result{rank}.json").read_text())["mesh"]
        dump = entries(folder, "parallelize_module", rank)
        record = dump.data["Module.two.up.Linear.forward.0"]
        found = [
            (record["input_args"][0], [6, 4], ["R"], [6, 4]),
            (record["output"][0], [6, 8], ["S(1)"], [6, 4]),
            (record["parameters"]["weight"], [8, 4], ["S(0)"], [4, 4]),
            (record["parameters"]["bias"], [8], ["S(0)"], [4]),
            (dump.data["Module.two.up.Linear.backward.0"]["input"][0], [6, 8], ["S(1)"], [6, 4]),
            (dump.data["Module.two.up.Linear.parameters_grad.0"]["weight"][0], [8, 4], ["S(0)"], [4, 4]),
            (dump.data["Module.two.down.Linear.forward.0"]["input_args"][0], [6, 8], ["S(1)"], [6, 4]),
        ]
        for entry, shape, placements, of_shard in found:
            assert entry["type"] == "torch.distributed.tensor.DTensor"
            assert (entry["shape"], entry["placements"]) == (shape, placements)
            assert entry["device_mesh"] == mesh
            shard = torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True)
            assert list(shard.shape) == of_shard
            assert (entry["Max"], entry["Min"]) == (shard.max().item(), shard.min().item())


def test_the_shards_of_two_ranks_are_the_layer(folder: Path) -> None:
    import torch

    def shard(rank: int, path: str) -> Any:
        dump = entries(folder, "parallelize_module", rank)
        entry = dump.data["Module.one.up.Linear.forward.0"]
        for key in path.split("."):
            entry = entry[int(key) if key.isdigit() else key]
        return torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True).double()

    x = shard(0, "input_args.0")
    assert torch.equal(x, shard(1, "input_args.0"))
    weight, bias = (torch.cat([shard(rank, f"parameters.{name}") for rank in (0, 1)]) for name in ("weight", "bias"))
    output = torch.cat([shard(0, "output.0"), shard(1, "output.0")], 1)
    assert (x @ weight.T + bias - output).abs().max() < 1e-6


def test_parameters_are_whole_inside_of_a_sharded_module(folder: Path) -> None:
    import torch

    weights = []
    for rank in (0, 1):
        dump = entries(folder, "fully_shard", rank)
        entry = dump.data["Module.one.up.Linear.forward.0"]["parameters"]["weight"]
        assert (entry["type"], entry["shape"]) == ("torch.Tensor", [8, 4])
        weights.append(torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True))
        gradient = dump.data["Module.one.up.Linear.parameters_grad.0"]["weight"][0]
        assert gradient["shape"] == [8, 4]
    assert torch.equal(*weights)
    of_optimizer = [dump.data[name] for name in dump.forward if dump.tree[name] == "optimizer"]
    assert any("'placements': ['S(0)']" in str(record) for record in of_optimizer), "the optimizer works on shards"
