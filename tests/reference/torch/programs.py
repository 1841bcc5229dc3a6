"""The recorded programs of PyTorch, in parts; README.md says how a case's script is made of them."""

#: part start
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()


args = arguments()

#: part small_net
seed_all(seed=1234)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(5, 3, bias=False)

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        scaled = hidden * 0.5 + 1
        return self.fc2(scaled)

#: part arguments
HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()


args = arguments()

#: part block_net
seed_all(seed=7)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)) + x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.body = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.body(self.stem(x))
        x = x.mean(dim=(2, 3))
        return self.head(x)


model = Net()

#: part imports
import argparse
import os

import torch

#: part training
output = model(data)
loss = F.mse_loss(output, torch.zeros(4, 3))
loss.backward()
debugger.stop()
debugger.step()

#: case async_dump
#: use start
#: use small_net


model = Net()
for step in range(2):
    data = torch.randn(4, 6)
    debugger.start(model=model)
    loss = model(data).sum()
    loss.backward()
    debugger.stop()
    debugger.step()

#: case bench_diff
#: use imports
import json
import subprocess
import sys
import types
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--phase", default="both")
    return parser.parse_args()


args = arguments()
PLAN = args.phase


def write_config(name, **fields):
    with open(args.config) as stream:
        config = json.load(stream)
    config["tensor"].update(fields)
    with open(name, "w") as stream:
        json.dump(config, stream)
    return name


if PLAN == "both":
    bench = os.path.abspath("bench")
    for phase, target in (("bench", bench), ("actual", args.dump_path)):
        subprocess.run([sys.executable, __file__, "--config", args.config, "--dump-path", target, "--phase", phase], check=True)
    sys.exit(0)

if PLAN == "bench":
    config = write_config("bench_config.json", summary_mode="md5")
    with open(config) as stream:
        content = json.load(stream)
    content["task"] = "statistics"
    content["statistics"] = {"summary_mode": "md5"}
    with open(config, "w") as stream:
        json.dump(content, stream)
else:
    config = write_config("actual_config.json", bench_path=os.path.abspath("bench"))
debugger = PrecisionDebugger(config_path=config, dump_path=args.dump_path)


library = types.ModuleType("library")
library.unstable = lambda value: value + {"bench": 0.0, "actual": 1.0}[PLAN]
library.stable = lambda value: value * 2
debugger.register_custom_api(library, "unstable", "Custom")
debugger.register_custom_api(library, "stable", "Custom")
data = torch.arange(3, dtype=torch.float32)
for step in range(2):
    debugger.start()
    library.stable(data)
    library.unstable(data)
    library.stable(data + 1)
    library.unstable(data + 2)
    other = library.unstable(data + 3)
    library.stable(other)
    debugger.stop()
    debugger.step()

#: case checkpoint
#: use imports
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--reentrant", action="store_true")
    return parser.parse_args()


args = arguments()
seed_all(seed=4)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=args.reentrant)
        return self.second(x)


model = Net()
debugger.start(model)
model(torch.randn(3, 4, requires_grad=True)).sum().backward()
debugger.stop()
debugger.step()

#: case constructor_arguments
#: use start
seed_all()
debugger = PrecisionDebugger(args.config, task="tensor", dump_path=args.dump_path, level="L0", step=[1])
again = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path + "_unused", level="L1")
assert again is debugger
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
for step in range(3):
    PrecisionDebugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()

#: case custom_api
#: use imports
import types
from msprobe.pytorch import PrecisionDebugger, seed_all

#: use arguments
torch.manual_seed(1)
library = types.ModuleType("library")


def compute(left, right, scale=1.0):
    return (left + right) * scale


def twice(value):
    return {"result": value * 2, "label": "twice"}


library.compute = compute
library.twice = twice
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
debugger.register_custom_api(module=library, api="compute")
debugger.register_custom_api(library, "twice", "MyOps")
data = torch.arange(4, dtype=torch.float32, requires_grad=True)
debugger.start()
value = library.compute(data, data, scale=2.0)
value = library.compute(value, 1)
library.twice(value)["result"].sum().backward()
debugger.stop()
debugger.step()
debugger.restore_custom_api(library, "compute")
assert library.compute is compute
debugger.start()
value = library.compute(data, data)
library.twice(value)
debugger.stop()
debugger.step()

#: case data_mode extra_info_false l1_statistics mix_tensor structure tensor_list
#: use start
#: use small_net

model = Net()
data = torch.randn(4, 6)
debugger.start(model=model)
#: use training

#: case ddp_gloo
#: use imports
import datetime
import socket

import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from msprobe.pytorch import PrecisionDebugger, seed_all

#: use arguments
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.fc2 = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def worker(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=60))
    seed_all(seed=20)
    debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
    model = DistributedDataParallel(Net())
    data = torch.full((2, 4), float(rank + 1))
    debugger.start(model=model)
    loss = model(data).sum()
    loss.backward()
    total = torch.tensor([float(rank), 1.0])
    dist.all_reduce(total)
    work = dist.all_reduce(total, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    gathered = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(gathered, total)
    dist.broadcast(total, src=0)
    dist.barrier()
    debugger.stop()
    debugger.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=2)

#: case debug_save
#: use imports
import numpy as np
import torch.nn as nn
from msprobe.pytorch import PrecisionDebugger, seed_all

#: use arguments
torch.manual_seed(5)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
for step in range(2):
    leaf = torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_(True)
    middle = leaf * 2
    debugger.save(leaf, "leaf")
    debugger.save(middle, "middle", save_backward=True)
    nested = {"key1": middle + 1, "key2": [middle - 1, 3, "text", 2.5], "key3": (leaf.detach(),)}
    debugger.save(nested, "nested")
    debugger.save(middle, "middle", save_backward=False)
    total = (middle * middle).sum() + nested["key1"].sum() * 2 + nested["key2"][0].sum() * 3
    debugger.save([total, True], "values")
    debugger.save(np.ones(2), "not_supported")
    debugger.save(middle, 17)
    PrecisionDebugger.save(step, "number")
    total.backward()
    debugger.step()

#: case default_config
#: use start
seed_all()
debugger = PrecisionDebugger(dump_path=args.dump_path)
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
data = torch.randn(2, 4)
debugger.start()
out = model(data).reshape(-1).view(2, 3)
loss = (out.transpose(0, 1) * 2).sum()
loss.backward()
debugger.stop()
debugger.step()

#: case dump_enable
#: use imports
import json
import time
import torch.nn as nn
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--wait", type=float, default=3.2)
    return parser.parse_args()


args = arguments()
seed_all()
with open(args.config) as stream:
    config = json.load(stream)


def write(**fields):
    config.update(fields)
    with open("live.json", "w") as stream:
        json.dump(config, stream)
    time.sleep(args.wait)


write()
debugger = PrecisionDebugger(config_path="live.json", dump_path=args.dump_path)
model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
data = torch.ones(2, 3)
changes = {2: {"dump_enable": True}, 4: {"dump_enable": False}, 6: {"dump_enable": True, "level": "L0"}}
for step in range(8):
    if step in changes:
        write(**changes[step])
    debugger.start(model)
    model(data).sum().backward()
    debugger.stop()
    debugger.step()

#: case errors
#: use imports
import json
from msprobe.pytorch import PrecisionDebugger

#: use arguments
def observe(result):
    os.makedirs(args.dump_path, exist_ok=True)
    with open(os.path.join(args.dump_path, "observations.json"), "w") as stream:
        json.dump(result, stream, indent=1)


import subprocess
import sys
import tempfile

GOOD = {"task": "statistics", "dump_path": "./unused", "rank": [], "step": [], "level": "L1", "statistics": {"scope": [], "list": []}}
CHANGES = {
    "good": {},
    "task_unknown": {"task": "statistic"},
    "level_unknown": {"level": "L5"},
    "level_lower_case": {"level": "l1"},
    "dump_path_not_string": {"dump_path": 3},
    "dump_path_absent": {"dump_path": None},
    "rank_not_list": {"rank": 0},
    "rank_negative": {"rank": [-1]},
    "rank_float": {"rank": [1.5]},
    "rank_bad_range": {"rank": ["6-4"]},
    "rank_bad_text": {"rank": ["a-b"]},
    "step_not_list": {"step": 1},
    "step_negative": {"step": [-1]},
    "step_bool": {"step": [True]},
    "step_bad_range": {"step": ["3-1"]},
    "step_three_parts": {"step": ["1-2-3"]},
    "step_too_big": {"step": [10 ** 7]},
    "async_not_bool": {"async_dump": "yes"},
    "async_tensor_without_list": {"task": "tensor", "tensor": {}, "async_dump": True},
    "async_md5": {"async_dump": True, "statistics": {"summary_mode": "md5"}},
    "dump_enable_not_bool": {"dump_enable": "true"},
    "extra_info_not_bool": {"extra_info": 1},
    "precision_unknown": {"precision": "middle"},
    "risk_level_unknown": {"risk_level": "HIGH"},
    "risk_level_lower_case": {"risk_level": "core"},
    "scope_one_element": {"statistics": {"scope": ["Functional.relu.0.forward"]}},
    "scope_not_list": {"statistics": {"scope": "Functional.relu.0.forward"}},
    "scope_bad_name": {"statistics": {"scope": ["relu", "conv"]}},
    "scope_module_at_l1": {"statistics": {"scope": ["Module.a.B.forward.0", "Module.c.D.forward.0"]}},
    "scope_api_at_l0": {"level": "L0", "statistics": {"scope": ["Functional.relu.0.forward", "Functional.relu.1.forward"]}},
    "list_not_list": {"statistics": {"list": "relu"}},
    "list_not_strings": {"statistics": {"list": [1]}},
    "tensor_list_not_list": {"statistics": {"tensor_list": "relu"}},
    "data_mode_unknown": {"statistics": {"data_mode": ["sideways"]}},
    "data_mode_all_and_more": {"statistics": {"data_mode": ["all", "input"]}},
    "data_mode_not_list": {"statistics": {"data_mode": "all"}},
    "summary_mode_unknown": {"statistics": {"summary_mode": "crc"}},
    "task_section_absent": {"statistics": None},
    "unknown_keys": {"colour": "red", "statistics": {"taste": 1}},
    "l2_on_cpu_statistics": {"level": "L2"},
}
CALLS = {
    "start_l0_without_model": ("L0", "PrecisionDebugger.start()"),
    "start_mix_without_model": ("mix", "PrecisionDebugger.start()"),
    "start_model_not_module": ("L0", "PrecisionDebugger.start(model=3)"),
    "start_list_with_not_module": ("L0", "PrecisionDebugger.start(model=[torch.nn.ReLU(), 3])"),
    "start_l1_model_not_module": ("L1", "PrecisionDebugger.start(model=3)"),
    "token_range_without_model": ("L1", "PrecisionDebugger.start(token_range=[0, 1])"),
    "token_range_reversed": ("L1", "PrecisionDebugger.start(model=torch.nn.ReLU(), token_range=[2, 1])"),
    "token_range_not_ints": ("L1", "PrecisionDebugger.start(model=torch.nn.ReLU(), token_range=['0', 1])"),
    "token_range_one_element": ("L1", "PrecisionDebugger.start(model=torch.nn.ReLU(), token_range=[1])"),
    "rank_id_negative": ("L1", "PrecisionDebugger.start(rank_id=-1)"),
    "rank_id_text": ("L1", "PrecisionDebugger.start(rank_id='0')"),
    "init_step_negative": ("L1", "PrecisionDebugger.set_init_step(-1)"),
    "init_step_text": ("L1", "PrecisionDebugger.set_init_step('1')"),
    "stop_without_start": ("L1", "PrecisionDebugger.stop()"),
    "step_without_start": ("L1", "PrecisionDebugger.step()"),
    "save_at_l1": ("L1", "PrecisionDebugger.save(torch.ones(1), 'x')"),
    "register_missing_api": ("L1", "PrecisionDebugger.register_custom_api(torch, 'no_such_api')"),
    "register_bad_prefix": ("L1", "PrecisionDebugger.register_custom_api(torch, 'matmul', 3)"),
    "restore_missing_api": ("L1", "PrecisionDebugger.restore_custom_api(torch, 'no_such_api')"),
    "module_dump_not_module": ("L1", "module_dump(3, 'name')"),
    "module_dump_name_not_text": ("L1", "module_dump(torch.nn.ReLU(), 3)"),
}
CONSTRUCTORS = {
    "no_instance_start": "PrecisionDebugger.start()",
    "no_instance_stop": "PrecisionDebugger.stop()",
    "no_instance_module_dump": "module_dump(torch.nn.ReLU(), 'x')",
    "config_missing": "PrecisionDebugger(config_path='absent.json')",
    "config_not_json_name": "PrecisionDebugger(config_path='config.txt')",
    "config_broken": "PrecisionDebugger(config_path='broken.json')",
    "config_not_text": "PrecisionDebugger(config_path=3)",
    "task_unknown": "PrecisionDebugger(task='x')",
    "level_unknown": "PrecisionDebugger(level='x')",
    "dump_path_not_text": "PrecisionDebugger(dump_path=3)",
    "step_not_list": "PrecisionDebugger(step=3, dump_path='d')",
}


def attempt(kind, name):
    """Run one attempt in this process; print what happened."""
    from msprobe.pytorch import PrecisionDebugger, module_dump
    names = {"PrecisionDebugger": PrecisionDebugger, "module_dump": module_dump, "torch": torch}
    try:
        if kind == "config":
            config = dict(GOOD, **CHANGES[name])
            config = {key: value for key, value in config.items() if value is not None}
            with open("attempt.json", "w") as stream:
                json.dump(config, stream)
            PrecisionDebugger(config_path="attempt.json")
            model = torch.nn.Sequential(torch.nn.ReLU())
            PrecisionDebugger.start(model)
            model(torch.ones(2))
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
        elif kind == "call":
            level, statement = CALLS[name]
            PrecisionDebugger(dump_path="d", level=level)
            exec(statement, names)
        else:
            with open("broken.json", "w") as stream:
                stream.write("{")
            with open("config.txt", "w") as stream:
                stream.write("{}")
            exec(CONSTRUCTORS[name], names)
    except BaseException as error:
        return "raised", type(error).__name__
    return "accepted", None


outcome = {}
for kind, names in (("config", CHANGES), ("call", CALLS), ("constructor", CONSTRUCTORS)):
    for name in names:
        folder = tempfile.mkdtemp(dir=os.getcwd())
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            text = os.open(os.devnull, os.O_WRONLY)
            os.dup2(text, 1)
            os.dup2(text, 2)
            state, error = attempt(kind, name)
            with open("outcome.json", "w") as stream:
                json.dump([state, error], stream)
            os._exit(0)
        os.waitpid(child, 0)
        try:
            with open(os.path.join(folder, "outcome.json")) as stream:
                state, error = json.load(stream)
        except OSError:
            state, error = "ended the process", None
        outcome[kind + "." + name] = {"state": state, "exception": error}
observe(outcome)

#: case grad_accumulation
#: use start
#: use small_net


model = Net()
debugger.start(model=model)
for micro in range(2):
    loss = model(torch.randn(4, 6)).sum() / 2
    loss.backward()
debugger.stop()
debugger.step()

#: case inplace
#: use start
seed_all(seed=2)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.tail = nn.Linear(4, 2)

    def forward(self, x):
        y = self.act(self.fc(x))
        y = y * 1.0
        y.add_(1)
        F.relu_(y)
        y = y * 2.0
        y += 2
        y.sub_(x)
        y[0] = 0
        return self.tail(y)


model = Net()
data = torch.randn(3, 4)
counter = torch.zeros(3)
debugger.start(model)
model(data).sum().backward()
counter.add_(1)
counter.fill_(4)
counter[1:] += 3
debugger.stop()
debugger.step()

#: case l0_statistics list_filter scope
#: use start
#: use block_net
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(2, 1, 8, 8)
target = torch.tensor([0, 1])

debugger.start(model=model)
loss = F.cross_entropy(model(data), target)
loss.backward()
debugger.stop()
debugger.step()

#: case l1_tensor
#: use start
seed_all(seed=3)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
base.requires_grad_(True)
debugger.start()
turned = base.permute(2, 0, 1)
doubled = turned * 2
first, second = torch.split(doubled, [1, 3], dim=0)
picked = second[:, 1, ::2]
joined = torch.cat([first.reshape(-1), picked.reshape(-1)], dim=0)
values, indices = torch.topk(joined, k=2)
total = values.sum() + joined.max()
total.backward()
debugger.stop()
debugger.step()

#: case layers
#: use start
seed_all(seed=6)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 6, num_layers=1, batch_first=True)
        self.gru = nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.convs = nn.ModuleList([nn.Conv1d(8, 8, 3, padding=1, groups=2), nn.Conv1d(8, 4, 1)])
        self.norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        attended, weights = self.attention(x, x, x, need_weights=True, key_padding_mask=tokens == 0)
        x = x + attended
        x, (hidden, cell) = self.lstm(x)
        x, hidden = self.gru(x)
        x = x.transpose(1, 2)
        for conv in self.convs:
            x = F.gelu(conv(x))
        x = self.dropout(self.norm(x.transpose(1, 2)))
        return self.head(x.mean(1))


model = Net()
tokens = torch.tensor([[1, 2, 3, 4, 0], [5, 6, 7, 0, 0]])
debugger.start(model)
loss = F.cross_entropy(model(tokens), torch.tensor([0, 2]))
loss.backward()
debugger.stop()
debugger.step()

#: case mix_statistics
#: use start
#: use block_net
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(2, 1, 8, 8)
target = torch.tensor([0, 1])

debugger.start(model=model)
loss = F.cross_entropy(model(data), target)
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
optimizer.zero_grad()
debugger.stop()
debugger.step()

#: case module_dump
#: use imports
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end, seed_all

#: use arguments
#: use small_net


model = Net()
data = torch.randn(4, 6)
for step in range(2):
    debugger.start()
    before = data * 2
    module_dump(model, "WholeNet")
    output = model(before)
    module_dump_end()
    loss = output.sum()
    loss.backward()
    debugger.stop()
    debugger.step()

#: case module_list
#: use imports
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--as-tuple", action="store_true")
    return parser.parse_args()


args = arguments()
seed_all()
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
first = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
second = nn.Sequential(nn.Linear(3, 2))
models = (first, second) if args.as_tuple else [first, second]
debugger.start(model=models)
second(first(torch.randn(2, 4))).sum().backward()
debugger.stop()
debugger.step()

#: case multi_step
#: use start
#: use small_net


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    data = torch.randn(4, 6)
    debugger.start(model=model)
    loss = model(data).pow(2).mean()
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()

#: case no_grad_inference
#: use start
#: use block_net
model.eval()
data = torch.randn(2, 1, 8, 8)
target = torch.tensor([0, 1])

debugger.start(model=model)
with torch.no_grad():
    first = model(data).argmax(dim=1)
with torch.inference_mode():
    second = model(data).softmax(dim=-1)
debugger.stop()
debugger.step()

#: case non_tensor_args
#: use imports
import collections
import dataclasses
import types

import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, seed_all

#: use arguments
torch.manual_seed(0)
Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Box:
    value: torch.Tensor
    label: str
    extra: object = None


class Opaque:
    pass


class Holder(nn.Module):
    def forward(self, x, *rest, **options):
        if options.get("kind") == "dataclass":
            return Box(x * 1, "boxed", {"inner": [x, 1]})
        if options.get("kind") == "namedtuple":
            return Pair(x * 1, 2)
        if options.get("kind") == "dict":
            return {"first": x * 1, 2: "two", "nothing": None, "opaque": Opaque()}
        if options.get("kind") == "none":
            return None
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.holder = Holder()

    def forward(self, x):
        self.holder(x, None, "text", 3, 2.5, True, ..., slice(1, 4), slice(None, None, 2), 1 + 2j)
        self.holder(x, torch.float16, torch.device("cpu"), torch.device("cuda", 1), x.shape, torch.contiguous_format,
                    torch.channels_last, b"bytes", {1, 2}, range(3), Opaque(), Opaque, len)
        self.holder(x, np.int64(4), np.float32(0.5), np.bool_(True), np.array([1.0, 2.0]), np.array(["a"]), np.arange(3), np.str_("s"))
        self.holder(x, [1, [x, (None, "deep")]], {"a": {"b": x}, "c": ()}, [], {}, Pair(x, "r"), Box(x, "l"))
        self.holder(x, dtype=torch.float32, device="cpu", flag=False, nested={"device": torch.device("cpu"), "dtype": None}, layout=torch.strided)
        for kind in ("dataclass", "namedtuple", "dict", "none"):
            self.holder(x, kind=kind)
        return x


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
model = Net()
data = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
debugger.start(model)
model(data)
data[0]
data[..., 1]
data[:, 1:3, ::2]
data[None, 0]
data[torch.tensor([1, 0])]
data[data > 5]
data[0, 1, 2] = 5.0
torch.zeros(2, 3, dtype=torch.int32, device="cpu")
data.to(torch.float64)
data.to("cpu", non_blocking=True)
data.to(device=torch.device("cpu"), dtype=torch.float16)
data.view(torch.Size([6, 4]))
data.sum(dim=(0, 1), keepdim=True)
F.interpolate(data, size=2, mode="linear", align_corners=False)
F.pad(data, (1, 1), value=float("inf"))
torch.clamp(data, min=None, max=3)
torch.split(data, split_size_or_sections=2, dim=2)
torch.einsum("bij,bkj->bik", data, data)
data.contiguous(memory_format=torch.contiguous_format)
debugger.stop()
debugger.step()

#: case precision
#: use start
torch.manual_seed(11)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
source = torch.linspace(-3, 7, 30).reshape(5, 6)
small = source.to(torch.float16)
brain = source.to(torch.bfloat16)
wide = source.to(torch.float64)
whole = source.to(torch.int32)
debugger.start()
torch.abs(small)
torch.abs(brain)
torch.abs(source)
torch.abs(wide)
torch.abs(whole)
torch.add(torch.tensor(1.5, dtype=torch.float16), 1)
torch.add(torch.tensor(3), 1)
debugger.stop()
debugger.step()

#: case random_save
#: use imports
import random

import numpy as np
import torch.nn as nn
from msprobe.pytorch import random_save

#: use arguments
torch.manual_seed(0)
random_save(output_path=args.dump_path)


def draw():
    return torch.randn(2, 2)


value = draw()
value = value + torch.rand(2, 2)
draw()
torch.empty(3).normal_()
torch.empty(3).uniform_()
torch.randperm(4)
torch.rand_like(value)
np.random.rand(2)
np.random.randint(3)
random.random()
random.choice([1, 2, 3])
nn.Linear(3, 2)
torch.nn.functional.dropout(value, 0.5)

#: case rank_filter
#: use imports
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, seed_all

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--rank-id", type=int, default=None)
    return parser.parse_args()


args = arguments()
#: use small_net

model = Net()
data = torch.randn(4, 6)
debugger.start(model=model, rank_id=args.rank_id)
#: use training

#: case risk_level
#: use start
seed_all(seed=1234)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(5, 3, bias=False)

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        scaled = hidden * 0.5 + 1
        scaled = scaled.reshape(2, 2, 5).permute(1, 0, 2).contiguous().view(4, 5)
        scaled = torch.cat([scaled, scaled], dim=0).chunk(2)[0].float()
        return torch.matmul(self.fc2(scaled), torch.eye(3))

model = Net()
data = torch.randn(4, 6)
debugger.start(model=model)
#: use training

#: case seed_all
#: use imports
import json
import random

import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from msprobe.pytorch import seed_all

#: use arguments
def observe(result):
    os.makedirs(args.dump_path, exist_ok=True)
    with open(os.path.join(args.dump_path, "observations.json"), "w") as stream:
        json.dump(result, stream, indent=1)


result = {}
seed_all()
result["default"] = [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()]
seed_all(seed=1234)
result["same_seed_again"] = [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()]
result["hash_seed"] = os.environ.get("PYTHONHASHSEED")
seed_all(seed=99, mode=True)
result["other_seed"] = torch.rand(2).tolist()
result["deterministic"] = torch.are_deterministic_algorithms_enabled()
seed_all(seed=5, mode=False)
result["deterministic_off"] = torch.are_deterministic_algorithms_enabled()
seed_all(rm_dropout=True)
ones = torch.ones(64)
late = nn.Dropout(0.5)
late2d, late3d = nn.Dropout2d(0.5), nn.Dropout3d(0.5)
result["late_dropout2d_keeps_all"] = bool((late2d(torch.ones(1, 64, 2, 2)) == 1).all())
result["late_dropout3d_keeps_all"] = bool((late3d(torch.ones(1, 64, 2, 2, 2)) == 1).all())
result["late_dropout_keeps_all"] = bool((late(ones) == 1).all())
result["functional_dropout_keeps_all"] = bool((F.dropout(ones, 0.5) == 1).all())
result["functional_dropout2d_keeps_all"] = bool((F.dropout2d(torch.ones(1, 64, 2, 2), 0.5) == 1).all())
seed_all(seed=1234, is_enhanced=True)
result["enhanced_torch"] = [torch.rand(2).tolist(), torch.rand(2).tolist()]
result["enhanced_randn_is_constant"] = bool((torch.randn(3) == torch.randn(3)).all())
result["enhanced_numpy"] = [np.random.rand(2).tolist(), np.random.rand(2).tolist()]
result["enhanced_python"] = [random.random(), random.random()]
filled = [torch.empty(2).uniform_().tolist(), torch.empty(2).uniform_().tolist()]
result["enhanced_tensor_method"] = filled
for name, keywords in (("negative", {"seed": -1}), ("too_big", {"seed": 2 ** 32}), ("not_int", {"seed": "1"}),
                       ("mode_not_bool", {"mode": 1}), ("dropout_not_bool", {"rm_dropout": "yes"}),
                       ("enhanced_not_bool", {"is_enhanced": 1})):
    try:
        seed_all(**keywords)
        result["error_" + name] = None
    except Exception as error:
        result["error_" + name] = "raised"
observe(result)

#: case set_init_step
#: use start
#: use small_net


debugger.set_init_step(10)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    data = torch.randn(4, 6)
    debugger.start(model=model)
    loss = model(data).pow(2).mean()
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()

#: case shared_module
#: use start
seed_all(seed=2)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.twin = self.fc
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.fc.weight

    def forward(self, x):
        x = torch.tanh(self.fc(x))
        x = torch.tanh(self.fc(x))
        x = self.twin(x)
        return self.tied(x)


model = Net()
debugger.start(model)
model(torch.randn(3, 4, requires_grad=True)).pow(2).sum().backward()
debugger.stop()
debugger.step()

#: case special_tensors
#: use imports
import numpy as np
from msprobe.pytorch import PrecisionDebugger, seed_all

#: use arguments
torch.manual_seed(0)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
nan, inf = float("nan"), float("inf")
samples = {
    "bool": torch.tensor([True, False, True]),
    "bool_true": torch.tensor([True, True]),
    "bool_scalar": torch.tensor(False),
    "uint8": torch.tensor([1, 255], dtype=torch.uint8),
    "int8": torch.tensor([-3, 7], dtype=torch.int8),
    "int16": torch.tensor([-300, 700], dtype=torch.int16),
    "int64": torch.tensor([[2 ** 40, -5]]),
    "complex": torch.tensor([3 + 4j, 1 - 1j]),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(2.5),
    "scalar_int": torch.tensor(7),
    "nan": torch.tensor([1.0, nan, 2.0]),
    "inf": torch.tensor([1.0, inf, -inf]),
    "only_inf": torch.tensor([inf, inf]),
    "half_big": torch.tensor([60000.0, 60000.0], dtype=torch.float16),
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3),
    "sliced": torch.arange(10.0)[1:9:3],
    "meta": torch.zeros(2, 2, device="meta"),
}
debugger.start()
for name, value in samples.items():
    torch.clone(value)
torch.as_tensor(np.array([1.5, 2.5], dtype=np.float32))
torch.where(samples["bool"], torch.tensor(1.0), torch.tensor(0.0))
debugger.stop()
debugger.step()

#: case start_stop_twice
#: use start
#: use small_net


model = Net()
data = torch.randn(4, 6)
for step in range(2):
    debugger.start(model=model)
    hidden = model.act(model.fc1(data))
    debugger.stop()
    hidden = hidden * 3
    debugger.start(model=model)
    loss = model.fc2(hidden).sum()
    loss.backward()
    debugger.stop()
    debugger.step()

#: case step_filter
#: use start
#: use small_net


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    data = torch.randn(4, 6)
    debugger.start(model=model)
    loss = model(data).pow(2).mean()
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()

#: case stop_before_backward
#: use start
#: use small_net


model = Net()
data = torch.randn(4, 6)
debugger.start(model=model)
loss = model(data).sum()
debugger.stop()
loss.backward()
debugger.step()

#: case summary_md5 summary_xor
#: use start
torch.manual_seed(0)
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))

    def forward(self, x):
        return torch.relu(x * self.weight)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.tail = nn.Identity()

    def forward(self, x):
        y = self.gate(x) + 1.0
        return self.tail(y)


model = Net()
data = torch.arange(-6, 6, dtype=torch.float32).reshape(4, 3)
mask = data > 0
half = data.to(torch.bfloat16)
debugger.start(model=model)
out = model(data)
out = torch.where(mask, out, torch.neg(out))
other = torch.mul(half, 2)
empty = torch.add(torch.zeros(0, 3), 1)
scalar = torch.add(torch.tensor(2.0), 3)
swapped = torch.mul(data.t(), 2)
out.sum().backward()
debugger.stop()
debugger.step()

#: case token_range
#: use start
#: use small_net


model = Net()
data = torch.randn(4, 6)
debugger.start(model=model, token_range=[1, 2])
with torch.no_grad():
    for token in range(5):
        model(data)
debugger.stop()
debugger.step()
