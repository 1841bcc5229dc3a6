"""The recorded programs of MindSpore, in parts; README.md says how a case's script is made of them."""

#: part start
import argparse
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from msprobe.mindspore import PrecisionDebugger

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()


args = arguments()
ms.set_context(mode=ms.PYNATIVE_MODE)


def values(*shape, start=0):
    """Small fixed numbers, the same on every machine and version."""
    count = int(np.prod(shape)) if shape else 1
    flat = (np.arange(start, start + count, dtype=np.float32) % 13 - 6) / 8
    return flat.reshape(shape)


def fix_parameters(cell):
    for index, parameter in enumerate(cell.get_parameters()):
        parameter.set_data(Tensor(values(*parameter.shape, start=index)))
    return cell

#: part small_net
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(6, 4)
        self.act = nn.ReLU()

    def construct(self, x, scale=1.0):
        return self.act(self.dense(x) * scale)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.norm = nn.LayerNorm((4,))
        self.head = nn.Dense(4, 2)

    def construct(self, x):
        x = self.block(x, scale=2.0)
        x = self.norm(x)
        return self.head(x)

#: part values
args = arguments()
ms.set_context(mode=ms.PYNATIVE_MODE)


def values(*shape, start=0):
    """Small fixed numbers, the same on every machine and version."""
    count = int(np.prod(shape)) if shape else 1
    flat = (np.arange(start, start + count, dtype=np.float32) % 13 - 6) / 8
    return flat.reshape(shape)


def fix_parameters(cell):
    for index, parameter in enumerate(cell.get_parameters()):
        parameter.set_data(Tensor(values(*parameter.shape, start=index)))
    return cell

#: part mint_net
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = mint.nn.Linear(6, 4)

    def construct(self, x, scale=1.0):
        return mint.nn.functional.relu(self.dense(x) * scale)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = mint.nn.Linear(4, 2)

    def construct(self, x):
        x = self.block(x, scale=2.0)
        x = mint.add(x, x)
        return self.head(x)


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
net = fix_parameters(Net())


def forward(x):
    return net(x).sum()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
data = Tensor(values(3, 6))

#: part forward
net = fix_parameters(Net())


def forward(x):
    return net(x).sum()

#: part head
import argparse
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from msprobe.mindspore import PrecisionDebugger

HERE = os.path.dirname(os.path.abspath(__file__))

#: part arguments
HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    return parser.parse_args()

#: case cell_outputs
#: use start

class Many(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x, kind):
        h = self.dense(x)
        if kind == "tuple":
            return h, h * 2.0
        if kind == "none":
            return h, None
        if kind == "list":
            return [h, h * 3.0]
        if kind == "dict":
            return {"h": h, "count": 3}
        return h


class Source(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(Tensor(values(2, 4)), name="weight")

    def construct(self, flag=True):
        return self.weight * 2.0


class Frozen(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fixed = ms.Parameter(Tensor(values(4)), name="fixed", requires_grad=False)
        self.moved = ms.Parameter(Tensor(values(4)), name="moved")

    def construct(self, x):
        return x * self.fixed + self.moved


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.many = Many()
        self.source = Source()
        self.frozen = Frozen()
        self.stack = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.group = nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4)])

    def construct(self, x):
        a, b = self.many(x, "tuple")
        c, _ = self.many(a + b, "none")
        d = self.many(c, kind="list")[1]
        e = self.many(d, "dict")["h"]
        f = self.stack(self.many(e, "plain"))
        for cell in self.group:
            f = cell(f)
        f = self.frozen(f)
        return f * self.source()


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
#: use forward


debugger.start(model=net)
ms.value_and_grad(forward, 0, net.trainable_params())(Tensor(values(2, 4)))
debugger.stop()
debugger.step()

#: case custom_api
import argparse
import os

import types

import mindspore as ms
import numpy as np
from mindspore import Tensor
from msprobe.mindspore import PrecisionDebugger

#: use arguments


#: use values

library = types.ModuleType("library")


def compute(left, right, scale=1.0):
    return (left + right) * scale


def twice(value):
    return {"result": value * 2, "label": "twice"}


library.compute = compute
library.twice = twice
debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
debugger.set_init_step(5)
debugger.register_custom_api(library, "compute", "Library")
debugger.register_custom_api(library, "twice", "Library")


def forward(x):
    return library.twice(library.compute(x, x, scale=2.0))["result"].sum()


debugger.start()
ms.value_and_grad(forward, 0)(Tensor(values(2, 3)))
debugger.stop()
debugger.step()
debugger.restore_custom_api(library, "compute")
assert library.compute is compute
debugger.start()
ms.value_and_grad(forward, 0)(Tensor(values(2, 3)))
debugger.stop()
debugger.step()

#: case data_mode list_filter scope structure tensor_list tensor_task
#: use start

#: use mint_net
for _ in range(1):
    debugger.start(model=net)
    grad_fn(data)
    debugger.stop()
    debugger.step()

#: case debug_save
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


def forward(x, w):
    y = ops.matmul(x, w)
    debugger.save(y, "y")
    z = y * y
    debugger.save({"z": z, "list": [z + 1.0, 3, "text"], "flag": 1.5}, "nested")
    debugger.save(z, "z_forward_only", save_backward=False)
    debugger.save(z * 2.0, "unused")
    return z.sum()


for _ in range(2):
    ms.value_and_grad(forward, (0, 1))(Tensor(values(3, 6)), Tensor(values(6, 4, start=5)))
    debugger.save(7, "number")
    debugger.save(Tensor(values(2)), "y")
    debugger.step()

#: case dtypes
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
base = np.array([[-3.0, 2.0, 5.0], [0.0, 1.0, -7.0]], np.float32)
inputs = [Tensor(base.astype(name)) for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64")]
inputs += [Tensor(np.abs(base).astype(name)) for name in ("uint8", "uint16", "uint32", "uint64")]
inputs += [Tensor(base).astype(ms.bfloat16), Tensor(base > 0), Tensor(base + 1j * base), Tensor((base - 2j * base).astype(np.complex64))]
inputs += [Tensor(3.5, ms.float32), Tensor(3, ms.int64), Tensor(True), Tensor(np.zeros((0, 3), np.float32)),
           Tensor(np.array([1.0, np.nan, np.inf, -np.inf], np.float32)), Tensor(np.array([np.inf, 1.0], np.float16))]
debugger.start()
for tensor in inputs:
    tensor.reshape(-1)
x = Tensor(base)
ops.full((2, 3), 1.5, dtype=ms.float32)
mint.clamp(x, min=-1, max=None)
ops.pad(x, [1, 1], mode="constant", value=0.5)
mint.chunk(x, 3, dim=1)
mint.where(x > 0, x, 0.0)
ops.topk(x, 2)
ops.concat([x, x * 2.0], axis=0)
x[0:1, ::2]
x[..., None]
mint.mean(x, dim=(0, 1), keepdim=True)
ops.cast(x, ms.float16)
debugger.stop()
debugger.step()

#: case high_level_model
import argparse
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from msprobe.mindspore import MsprobeStep, PrecisionDebugger

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--with-model", action="store_true")
    return parser.parse_args()


#: use values

#: use small_net


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
net = fix_parameters(Net())


def batches():
    for index in range(2):
        yield values(3, 6, start=index), values(3, 2, start=index)


dataset = ms.dataset.GeneratorDataset(lambda: batches(), ["data", "label"], shuffle=False)
optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01)
trainer = ms.train.Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer)
if args.with_model:
    debugger.start(model=net)
trainer.train(1, dataset, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)

#: case jit
#: use start

class Packed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(6, 4)

    @ms.jit
    def construct(self, x):
        return self.dense(x)


@ms.jit
def scaled(x):
    return x * 2.0


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.packed = Packed()
        self.head = nn.Dense(4, 2)

    def construct(self, x):
        return self.head(scaled(self.packed(x)))


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
#: use forward


for _ in range(2):
    debugger.start(model=net)
    ms.value_and_grad(forward, 0, net.trainable_params())(Tensor(values(3, 6)))
    debugger.stop()
    debugger.step()

#: case l0_statistics
#: use start

#: use small_net


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
#: use forward


data = Tensor(values(3, 6))
weights = net.trainable_params()
for grad_fn in (ms.value_and_grad(forward, None, weights), ms.grad(forward), ms.value_and_grad(forward, 0, weights), forward):
    debugger.start(model=net)
    grad_fn(data)
    debugger.stop()
    debugger.step()

#: case l1_families
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


def forward(x, w):
    y = ops.matmul(x, w)
    y = mint.add(y, 1.0)
    y = mint.nn.functional.relu(y)
    z = y * 2.0
    z = z + y
    z = z.reshape(2, -1)
    z = mint.nn.functional.softmax(z, dim=-1)
    z = ops.tanh(z)
    return mint.sum(z.abs() - z[0])


x, w = Tensor(values(3, 6)), Tensor(values(6, 4, start=3))
debugger.start()
value, grads = ms.value_and_grad(forward, (0, 1))(x, w)
debugger.stop()
debugger.step()

#: case l1_primitive
#: use head


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--with-model", action="store_true")
    return parser.parse_args()


#: use values

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()
        self.relu = ops.ReLU()
        self.split = ops.Split(1, 2)
        self.dense = nn.Dense(4, 2)
        self.weight = ms.Parameter(Tensor(values(6, 4)), name="weight")

    def construct(self, x):
        x = self.relu(self.matmul(x, self.weight))
        left, right = self.split(x)
        x = ops.concat((left, right * 2.0), axis=1)
        return self.dense(x)


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
#: use forward


grad_fn = ms.value_and_grad(forward, 0, net.trainable_params())
for _ in range(2):
    if args.with_model:
        debugger.start(model=net)
    else:
        debugger.start()
    grad_fn(Tensor(values(3, 6)))
    debugger.stop()
    debugger.step()

#: case mix_statistics
#: use start

#: use mint_net
for _ in range(2):
    debugger.start(model=net)
    grad_fn(data)
    debugger.stop()
    debugger.step()

#: case model_list
#: use head


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--as-tuple", action="store_true")
    return parser.parse_args()


#: use values

#: use small_net


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
first, second = fix_parameters(Net()), fix_parameters(Net())


def forward(x):
    return (first(x) * second(x)).sum()


grad_fn = ms.value_and_grad(forward, 0, first.trainable_params() + second.trainable_params())
models = tuple([first, second]) if args.as_tuple else [first, second]
debugger.start(model=models)
grad_fn(Tensor(values(3, 6)))
debugger.stop()
debugger.step()

#: case no_config
#: use start

#: use small_net


debugger = PrecisionDebugger(task="tensor", dump_path=args.dump_path, level="L0", step=[1])
#: use forward


for _ in range(2):
    debugger.start(model=net)
    ms.value_and_grad(forward, None, net.trainable_params())(Tensor(values(3, 6)))
    debugger.stop()
    debugger.step()

#: case seed_dropout
import argparse
import os

import json
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from msprobe.mindspore import seed_all

#: use arguments


args = arguments()
ms.set_context(mode=ms.PYNATIVE_MODE)

observed = {}


def observe():
    os.makedirs(args.dump_path, exist_ok=True)
    with open(os.path.join(args.dump_path, "observations.json"), "w") as stream:
        json.dump(observed, stream, indent=1)


def error_of(**keywords):
    try:
        seed_all(**keywords)
    except Exception as error:
        return type(error).__name__
    return None


def draw():
    return [random.random(), np.random.rand(2).tolist()]


def keeps_all(operation):
    result = operation(Tensor(np.ones((1, 4, 8, 8), np.float32)))
    result = result[0] if isinstance(result, tuple) else result
    return bool((result.asnumpy() == 1).all())


seed_all()
observed["default"] = draw()
initial = ms.common.initializer.initializer("normal", [3], ms.float32).init_data().asnumpy().tolist()
seed_all(seed=1234)
observed["same_seed_again"] = draw()
observed["initializer_repeats"] = initial == ms.common.initializer.initializer("normal", [3], ms.float32).init_data().asnumpy().tolist()
observed["global_seed"] = ms.get_seed()
seed_all(seed=99)
observed["other_seed"] = draw()
observed["hash_seed"] = os.environ.get("PYTHONHASHSEED")
seed_all(mode=True)
observed["deterministic"] = [ms.get_context("deterministic"), os.environ.get("HCCL_DETERMINISTIC")]
seed_all(mode=False)
observed["deterministic_off"] = [ms.get_context("deterministic"), os.environ.get("HCCL_DETERMINISTIC")]
early_primitive = ops.Dropout(0.1)
early_nn = nn.Dropout(p=0.9)
seed_all(rm_dropout=True)
observed["early"] = {"ops.Dropout": keeps_all(early_primitive), "nn.Dropout": keeps_all(early_nn.set_train())}
observed["late"] = {
    "ops.Dropout": keeps_all(ops.Dropout(0.1)),
    "ops.Dropout2D": keeps_all(ops.Dropout2D(0.1)),
    "ops.Dropout3D": keeps_all(lambda x: ops.Dropout3D(0.1)(x.reshape(1, 1, 4, 8, 8))),
    "mint.nn.Dropout": keeps_all(mint.nn.Dropout(0.9).set_train()),
    "mint.nn.functional.dropout": keeps_all(lambda x: mint.nn.functional.dropout(x, 0.9)),
    "nn.Dropout": keeps_all(nn.Dropout(p=0.9).set_train()),
}
observed["errors"] = [error_of(seed=-1), error_of(seed="1"), error_of(seed=2 ** 32), error_of(mode=1), error_of(rm_dropout="yes")]
observe()

#: case start_stop
#: use start

debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)


def forward(x):
    x = mint.exp(x)
    debugger.start()
    x = mint.tanh(x)
    debugger.stop()
    x = mint.sin(x)
    debugger.start()
    x = mint.cos(x)
    debugger.stop()
    return mint.sum(x)


ms.value_and_grad(forward, 0)(Tensor(values(3, 6)))
debugger.step()
debugger.start()
ms.value_and_grad(lambda x: mint.sum(mint.abs(x)), 0)(Tensor(values(3, 6)))
debugger.stop()
debugger.step()

#: case step_filter
#: use head


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "config.json"))
    parser.add_argument("--dump-path", required=True)
    parser.add_argument("--step", type=int, nargs="*", default=None)
    return parser.parse_args()


#: use values

#: use small_net


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path, step=args.step)
#: use forward


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
for index in range(5):
    debugger.start(model=net)
    grad_fn(Tensor(values(3, 6, start=index)))
    debugger.stop()
    debugger.step()

#: case summary_md5
#: use start

class Gate(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.array([1.0, -2.0, 4.0], np.float32)), name="weight")

    def construct(self, x):
        return mint.nn.functional.relu(mint.mul(x, self.weight))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def construct(self, x):
        return mint.add(self.gate(x), 1.0)


debugger = PrecisionDebugger(config_path=args.config, dump_path=args.dump_path)
net = Net()
data = Tensor(np.arange(-6, 6, dtype=np.float32).reshape(4, 3))


def forward(x):
    return net(x).sum()


debugger.start(model=net)
ms.value_and_grad(forward, 0, net.trainable_params())(data)
half = data.astype(ms.bfloat16)
half.reshape(-1)
mint.add(Tensor(2.0, ms.float32), 3)
mint.neg(Tensor(np.array([1, -2], np.int32)))
mint.logical_not(Tensor(np.array([True, False])))
debugger.stop()
debugger.step()
