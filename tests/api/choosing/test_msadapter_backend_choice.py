"""MSAdapter is found whatever is imported first and under whichever of our names, or its absence is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scripts

TORCH = """
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch
initialize_torch_proxy()
setup_metadata_patch()
import torch
"""
DEBUGGER = 'debugger = PrecisionDebugger(dump_path="dump", level={level!r})\n'
TRAINING = """
import mindspore as ms
import numpy as np
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
    def forward(self, x):
        return torch.nn.functional.relu(self.fc(x)).sum()
net = Net()
debugger.start(net)
ms.value_and_grad(lambda x: net(x), 0)(torch.tensor(np.ones((3, 4), np.float32)))
debugger.stop()
debugger.step()
"""
TORCH_LATE = "torch was imported after the PrecisionDebugger was made"


def python(code: str, folder: Path) -> str:
    done = scripts.python("-c", code, folder=folder, GLOG_v="3")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dumped(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("dump/step0/proc*/dump.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


OURS = "from msprobe.mindspore import PrecisionDebugger\n"
OURS_AS_TORCH = "from msprobe.pytorch import PrecisionDebugger\n"


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize(
    "imports",
    [
        TORCH + OURS,
        OURS + TORCH,
        "import mindspore\n" + OURS + TORCH,
        OURS + "import mindtorch as torch\n",
        TORCH + OURS_AS_TORCH,
        OURS_AS_TORCH + TORCH,
    ],
    ids=["first", "last", "after mindspore", "under its own name", "before msprobe.pytorch", "after msprobe.pytorch"],
)
def test_msadapter_is_found_in_any_order_of_imports(imports: str, tmp_path: Path) -> None:
    out = python(imports + DEBUGGER.format(level="mix") + TRAINING, tmp_path)
    found = dumped(tmp_path)
    assert found["framework"] == "mindtorch"
    names = {"Module.fc.Linear.forward.0", "Module.fc.Linear.backward.0", "Functional.relu.0.forward"}
    assert names <= set(found["data"])
    assert TORCH_LATE not in out


def test_a_torch_imported_after_the_debugger_is_said_once(tmp_path: Path) -> None:
    code = OURS + "import mindspore\n" + DEBUGGER.format(level="L1") + TORCH + TRAINING + "debugger.start()\n"
    out = python(code, tmp_path)
    assert out.count(TORCH_LATE) == 1
    assert dumped(tmp_path)["framework"] == "mindspore"


def test_seeding_before_torch_is_imported_does_not_decide(tmp_path: Path) -> None:
    code = "from msprobe.mindspore import seed_all\nseed_all()\n" + TORCH + OURS
    python(code + DEBUGGER.format(level="L0") + TRAINING, tmp_path)
    assert dumped(tmp_path)["framework"] == "mindtorch"


def test_saving_single_points_works_on_tensors_of_torch(tmp_path: Path) -> None:
    code = (
        TORCH
        + """
import mindspore as ms
import numpy as np
from msprobe.mindspore import save, save_grad
def forward(x):
    y = x * 2.0
    save("points", "y", y)
    y = save_grad("points", "y", y)
    return torch.nn.functional.relu(y).sum()
ms.value_and_grad(forward, 0)(torch.tensor(np.ones((3, 4), np.float32)))
"""
    )
    python(code, tmp_path)
    names = [path.name for path in sorted(tmp_path.glob("points/step0/rank0/*"))]
    assert names == ["y_float32_0.npy", "y_grad_float32_0.npy"]
