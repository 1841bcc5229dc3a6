"""The IR files that the installed MindSpore writes on a CPU."""

from __future__ import annotations

import os
from pathlib import Path

from scripts import script

from probe.kernels.code_mapping import map_code, read

PROGRAM = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops

ms.set_context(mode=ms.GRAPH_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        return ops.tanh(self.dense(x)) + x


Net()(ms.Tensor(np.ones((2, 4), np.float32)))
"""


def test_a_graph_of_this_release(tmp_path: Path) -> None:
    ended = script(tmp_path, PROGRAM, MS_DEV_SAVE_GRAPHS="2", MS_DEV_SAVE_GRAPHS_PATH=str(tmp_path / "ir"))
    assert ended.returncode == 0, ended.stderr
    (graph,) = (tmp_path / "ir").glob("**/graph_build_*.ir")
    nodes = {node.name: node for node in read(str(graph))}
    tanh = next(node for name, node in nodes.items() if "Tanh-op" in name)
    assert any(line.file.endswith("train.py") and line.code.startswith("return ops.tanh(") for line in tanh.stack)
    product = next(name for name in nodes if "MatMul-op" in name)
    (tmp_path / "dump").mkdir()
    name = f"MatMul.{product.replace('/', '_')}.1.0.1700000000123456.output.0.ND.npy"
    (tmp_path / "dump" / name).write_bytes(b"")
    assert map_code(str(graph), os.fspath(tmp_path / "dump"), os.fspath(tmp_path / "out")).linked == 1
