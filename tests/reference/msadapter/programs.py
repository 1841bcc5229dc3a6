"""The recorded programs of the torch API over MindSpore, in parts; README.md says how a case's script is made of them."""

#: part start
import argparse
import os

import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()  # makes "import torch" mean the torch API on top of MindSpore
setup_metadata_patch()
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402  torch has to be imported before msprobe

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()


args = arguments()


def values(*shape, start=0):
    """Small fixed numbers, the same on every machine and version."""
    count = int(np.prod(shape)) if shape else 1
    flat = (np.arange(start, start + count, dtype=np.float32) % 13 - 6) / 8
    return torch.tensor(flat.reshape(shape))


def fix_parameters(module):
    state = module.state_dict()
    module.load_state_dict({name: values(*state[name].shape, start=index) for index, name in enumerate(state)})
    return module

#: part small_net
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x, scale=1.0):
        return F.relu(self.linear(x) * scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.block(x, scale=2.0)
        x = torch.add(x, x)
        return self.head(x)


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)

#: part imports
import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()  # makes "import torch" mean the torch API on top of MindSpore
setup_metadata_patch()
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

#: case debug_save
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


def forward(x, w):
    y = torch.matmul(x, w)
    debugger.save(y, "y")
    z = y * y
    debugger.save({"z": z, "list": [z + 1.0, 3, "text"]}, "nested")
    return z.sum()


for _ in range(2):
    ms.value_and_grad(forward, (0, 1))(values(3, 6), values(6, 4, start=5))
    debugger.step()

#: case filters tensor_task
#: use start

#: use small_net
net = fix_parameters(Net())


def forward(x):
    return net(x).sum()


grad_fn = ms.value_and_grad(forward, None, list(net.parameters()))
data = values(3, 6)
for _ in range(1):
    debugger.start(model=net)
    grad_fn(data)
    debugger.stop()
    debugger.step()

#: case l1_families
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


def forward(x, w):
    y = torch.matmul(x, w)
    y = torch.add(y, 1.0)
    y = F.relu(y)
    z = y * 2.0 + y
    z = z.reshape(2, -1)
    z = F.softmax(z, dim=-1)
    z = torch.tanh(z)
    return torch.sum(z.abs() * z[0])


debugger.start()
ms.value_and_grad(forward, (0, 1))(values(3, 6), values(6, 4, start=3))
debugger.stop()
debugger.step()

#: case module_list
#: use start

#: use small_net
first, second = fix_parameters(Net()), fix_parameters(Net())


def forward(x):
    return (first(x) * second(x)).sum()


debugger.start(model=[first, second])
ms.value_and_grad(forward, 0)(values(3, 6))
debugger.stop()
debugger.step()

#: case parameters_grad
import argparse
import os

#: use imports
from msprobe.mindspore import PrecisionDebugger  # noqa: E402  torch has to be imported before msprobe

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--with-input", action="store_true")
    return parser.parse_args()


args = arguments()


def values(*shape, start=0):
    """Small fixed numbers, the same on every machine and version."""
    count = int(np.prod(shape)) if shape else 1
    flat = (np.arange(start, start + count, dtype=np.float32) % 13 - 6) / 8
    return torch.tensor(flat.reshape(shape))


def fix_parameters(module):
    state = module.state_dict()
    module.load_state_dict({name: values(*state[name].shape, start=index) for index, name in enumerate(state)})
    return module

#: use small_net
net = fix_parameters(Net())


def forward(x):
    return net(x).sum()


grad_fn = ms.value_and_grad(forward, 0 if args.with_input else None, list(net.parameters()))
data = values(3, 6)
for _ in range(1):
    debugger.start(model=net)
    grad_fn(data)
    debugger.stop()
    debugger.step()

#: case quick_start
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_features=8, out_features=4)
        self.linear2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x):
        x1 = self.linear1(x)
        x2 = self.linear2(x1)
        logits = F.relu(x2)
        return logits


net = fix_parameters(Net())


def train_step(inputs):
    return net(inputs)


if __name__ == "__main__":
    data = (values(10, 8), values(10, 8, start=3), values(10, 8, start=6))
    grad_fn = ms.value_and_grad(train_step, grad_position=0)

    for inputs in data:
        debugger.start(model=net)
        out, grad = grad_fn(inputs)
        debugger.stop()
        debugger.step()

#: case seed_dropout
import argparse
import os

import json
import random

#: use imports
from msprobe.mindspore import seed_all  # noqa: E402  torch has to be imported before msprobe

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()


args = arguments()

observed = {}
seed_all()
observed["default"] = [random.random(), np.random.rand(2).tolist()]
first = torch.randn(3).tolist()
seed_all()
observed["torch_randn_repeats"] = first == torch.randn(3).tolist()
observed["errors"] = []
for keywords in ({"seed": -1}, {"seed": "1"}, {"mode": 1}, {"rm_dropout": "yes"}):
    try:
        seed_all(**keywords)
        observed["errors"].append(None)
    except Exception as error:
        observed["errors"].append(type(error).__name__)
seed_all(rm_dropout=True)
ones = torch.ones(64)
observed["late"] = {}
for name, operation in (("nn.Dropout", lambda: nn.Dropout(0.5)), ("F.dropout", lambda: lambda t: F.dropout(t, 0.5))):
    try:
        observed["late"][name] = bool((operation()(ones) == 1).all())
    except Exception as error:
        observed["late"][name] = type(error).__name__
os.makedirs(args.dump_path, exist_ok=True)
with open(os.path.join(args.dump_path, "observations.json"), "w") as stream:
    json.dump(observed, stream, indent=1)

#: case summary_md5
#: use start

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))

    def forward(self, x):
        return F.relu(x * self.weight)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return torch.add(self.gate(x), 1.0)


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
net = Net()


def forward(x):
    return net(x).sum()


debugger.start(model=net)
ms.value_and_grad(forward, 0, list(net.parameters()))(values(4, 3))
debugger.stop()
debugger.step()
