"""Two processes that add up their gradients: the same bits on each rank with the tool on.

Written out with MindSpore's collective calls: on the CPU those of mindtorch 0.5.1 do not run, and its
DistributedDataParallel has no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dumped
import mindspore_cluster
import pytest

SCRIPT = """
import json, os, sys, zlib
import backend_msadapter
import mindspore as ms
import numpy as np
import torch
from mindspore.communication import get_rank
from msprobe.mindspore import PrecisionDebugger

backend = backend_msadapter.Backend()
mindspore_cluster.join()
if os.environ["MS_ROLE"] != "MS_WORKER":
    sys.exit()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 6)
        self.drop = backend_msadapter.SeededDropout(0.2)
    def forward(self, x):
        return x + self.down(self.drop(torch.tanh(self.norm(self.up(x)))))

def train(debugger):
    backend.seed(3 + get_rank())
    model, rng = Net().train(), np.random.default_rng(1)
    parameters = list(model.parameters())
    for parameter in parameters:
        ms.ops.assign(parameter, backend.tensor(rng.normal(size=tuple(parameter.shape)).astype(np.float32)))
    differentiated = ms.value_and_grad(lambda x: model(x).pow(2).mean(), None, parameters)
    rng, seen = np.random.default_rng(10 + get_rank()), []
    for _ in range(3):
        if debugger is not None:
            debugger.start(model)
        loss, gradients = differentiated(backend.tensor(rng.normal(size=(5, 6)).astype(np.float32)))
        seen.append(loss)
        for parameter, gradient in zip(parameters, map(backend.given, gradients)):
            ms.mint.distributed.all_reduce(gradient)
            seen.append(gradient)
            ms.ops.assign(parameter, parameter + gradient * -0.05)
        seen = [value if isinstance(value, bytes) else value.asnumpy().tobytes() for value in seen]
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [*seen, *(parameter.asnumpy().tobytes() for parameter in parameters), backend.random_state()]

expected = train(None)
print("result bare", len(expected), train(None) == expected)
# Of other data on each rank: they are the same there only where gradients are exchanged.
print("parameters", zlib.crc32(b"".join(expected[-7:-1])))
for name, settings in json.loads(SETTINGS).items():
    # A file for each rank: a barrier on the CPU does not wait.
    with open(f"config{get_rank()}.json", "w") as file:
        json.dump({"risk_level": "ALL", "dump_path": name, **settings}, file)
    found = train(backend.new_debugger_class()(f"config{get_rank()}.json"))
    print("result", name, found == expected)
"""


SETTINGS: dict[str, dict[str, Any]] = {
    "L0-tensor": {"level": "L0", "task": "tensor"},
    "L1-md5": {"level": "L1", "task": "statistics", "statistics": {"summary_mode": "md5"}},
    "mix-statistics": {"level": "mix", "task": "statistics"},
    "mix-tensor": {"level": "mix", "task": "tensor"},
}


@pytest.mark.sampled(least=1, each=False, group="long programs")
def test_training_gives_the_same_bits_on_each_rank(tmp_path: Path) -> None:
    folder = mindspore_cluster.run(tmp_path, f"SETTINGS = {json.dumps(SETTINGS)!r}\n{SCRIPT}")
    parameters = set()
    for rank in (0, 1):
        log = (folder / "logs" / f"worker_{rank}.log").read_text(encoding="utf-8")
        results = [line for line in log.splitlines() if line.startswith("result")]
        assert results == ["result bare 28 True", *(f"result {name} True" for name in SETTINGS)], log
        parameters.update(line for line in log.splitlines() if line.startswith("parameters"))
        for name in SETTINGS:
            dump = dumped.read(folder / name, 2, f"rank{rank}")
            assert ("Torch.tanh.0.forward" in dump.data) == (not name.startswith("L0")) and not dump.errors
            assert ("Module.norm.LayerNorm.backward.0" in dump.data) == (not name.startswith("L1"))
            assert not any("all_reduce" in record for record in dump.data)
    assert len(parameters) == 1
