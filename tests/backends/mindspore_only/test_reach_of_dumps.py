"""Which primitives a dump, which anybody may have written, can have made."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from probe.backends.mindspore.execution import values as functions
from probe.backends.mindspore.hooks import api_hooks
from probe.backends.protocol import UnknownValue

CUSTOM = {
    "func": "/nowhere/evil.so:add", "out_shape": [2], "out_dtype": "float32", "func_type": "aot",
    "reg_info": {
        "inputs": [{"index": 0, "name": "x", "param_type": "required"}],
        "outputs": [{"index": 0, "name": "y", "param_type": "required"}],
        "dtype_format": [["float32", "DefaultFormat"], ["float32", "DefaultFormat"]],
        "target": "CPU", "op_name": "add", "attr": [],
    },
}  # fmt: skip


def reachable() -> Iterator[tuple[str, Any]]:
    """Every class that a dump can name."""
    for module in ("mindspore.ops", "mindspore.ops.operations", "mindspore.ops.auto_generate",
                   "mindspore.ops.operations._inner_ops", "mindspore.ops.operations.nn_ops"):  # fmt: skip
        for name in dir(importlib.import_module(module)):
            full = functions.primitive_name(f"Primitive.x.{name}")
            if full is not None:
                yield name, getattr(importlib.import_module(full.rpartition(".")[0]), name)


@pytest.mark.parametrize(
    "name, attributes",
    [
        ("Custom", CUSTOM), ("TensorDump", {}), ("TensorDump", {"input_output": "out"}), ("PyFunc", {}),
        ("PyExecute", None), ("Print", {}), ("ScalarSummary", {}), ("TensorSummary", {}), ("ImageSummary", {}),
        ("HistogramSummary", {}), ("HookBackward", {}), ("InsertGradientOf", {"f": "x"}), ("DumpGradient", {}),
        ("GetNext", {"types": [], "shapes": [], "output_num": 1, "shared_name": "x"}), ("Load", {}), ("Morph", {}),
        ("AllReduce", {}), ("Send", {"sr_tag": 0, "dest_rank": 0}), ("DistCommAllReduce", {}), ("InnerCommIsend", {}),
        ("AllGatherMatmul", {}), ("MoeDistributeDispatch", {}), ("SyncBatchNorm", {}), ("GetMem", {}), ("PutMem", {}),
        ("Primitive", {"name": "Custom"}), ("PrimitiveWithInfer", {"name": "TensorDump"}), ("CellBackwardHook", {}),
        ("Assert", {}), ("Partial", {}), ("AsStrided", {}), ("CacheSwapTable", {}), ("__class__", {}), ("", {}),
    ],
)  # fmt: skip
def test_what_does_not_only_compute_is_out_of_reach(name: str, attributes: Any) -> None:
    assert functions.function(f"Primitive.x.{name}", attributes) is None
    assert functions.primitive_name(f"Primitive.x.{name}") is None


def test_no_class_in_reach_is_of_a_module_that_acts() -> None:
    acting = ("custom_ops", "debug_ops", "comm_ops", "control_ops", "reshard_ops", "_embedding_cache_ops", "primitive")
    found = dict(reachable())
    assert len(found) > 800
    assert not [name for name, kind in found.items() if kind.__module__.rpartition(".")[2] in acting]
    named = ("fn", "func", "function", "path", "file", "file_name", "filename", "shared_name", "reg_info")
    assert not [
        name for name, kind in found.items()
        for method in (kind.__init__, kind.__call__) if set(named) & set(inspect.signature(method).parameters)
    ]  # fmt: skip


def test_nothing_in_reach_that_takes_no_settings_has_side_effects_on_files() -> None:
    for name, kind in reachable():
        if len(inspect.signature(kind.__init__).parameters) == 1:
            assert not getattr(kind(), "side_effect_io", False), name


@pytest.mark.parametrize(
    "name, attributes",
    [
        ("MatMul", {"transpose_b": True}), ("BatchMatMul", {}), ("Conv2D", {"out_channel": 4, "kernel_size": 3}),
        ("Conv2DTranspose", {"out_channel": 4, "kernel_size": [3, 3]}), ("ReLU", {}), ("ReLU6", {}), ("GeLU", {}),
        ("BatchNorm", {"is_training": True}), ("LayerNorm", {}), ("Softmax", {"axis": -1}), ("LogSoftmax", {}),
        ("MaxPool", {"kernel_size": 2, "strides": 2}), ("AvgPool", {}), ("Dropout", {"keep_prob": 0.5}), ("Add", {}),
        ("Sub", {}), ("Mul", {}), ("Div", {}), ("RealDiv", {}), ("Pow", {}), ("Sqrt", {}), ("Rsqrt", {}), ("Tanh", {}),
        ("Sigmoid", {}), ("BiasAdd", {}), ("Cast", {}), ("Reshape", {}), ("Transpose", {}), ("Concat", {"axis": 1}),
        ("Gather", {}), ("ReduceSum", {"keep_dims": True}), ("ReduceMean", {}), ("OneHot", {}), ("Split", {}),
        ("Tile", {}), ("ExpandDims", {}), ("Squeeze", {}), ("StridedSlice", {}), ("TopK", {}), ("Shape", {}),
        ("SoftmaxCrossEntropyWithLogits", {}), ("SparseSoftmaxCrossEntropyWithLogits", {}), ("Stack", {}),
        ("L2Normalize", {}), ("ClipByNorm", {}), ("StandardNormal", {}), ("StopGradient", {}), ("ApplyMomentum", {}),
        ("LSTM", {"input_size": 2, "hidden_size": 3, "num_layers": 1, "has_bias": True, "bidirectional": False,
                  "dropout": 0.0}),
    ],
)  # fmt: skip
def test_ordinary_primitives_are_made(name: str, attributes: dict[str, Any]) -> None:
    assert functions.function(f"Primitive.x.{name}", attributes) is not None
    assert functions.primitive_name(f"Primitive.x.{name}") is not None


def test_primitives_of_layers_are_in_reach() -> None:
    layers = [
        nn.Dense(2, 3), nn.Conv1d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3), nn.Conv2dTranspose(2, 3, 3),
        nn.BatchNorm2d(2), nn.LayerNorm((2,)), nn.GroupNorm(2, 2), nn.ReLU(), nn.GELU(), nn.Dropout(p=0.5),
        nn.Embedding(3, 2), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.LSTM(2, 3), nn.GRU(2, 3), nn.Softmax(), nn.SiLU(),
        nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.MSELoss(), nn.LeakyReLU(), nn.PReLU(), nn.Pad(((0, 1),)),
        nn.Flatten(),
    ]  # fmt: skip
    held = {
        type(value).__name__
        for layer in layers for _, cell in layer.cells_and_names()
        for value in vars(cell).values() if isinstance(value, ops.Primitive)
    }  # fmt: skip
    assert len(held) > 20
    assert not {name for name in held if functions.primitive_name(f"Primitive.x.{name}") is None}


def test_no_function_of_the_list_reads_writes_or_loads() -> None:
    names = {watched.attribute for functions in api_hooks.watched().values() for watched in functions}
    assert len(names) > 500
    acting = re.compile("(^|_)(load|save|file|path|library|compile|eval|exec|import|print|dump|custom|pyfunc)($|_)")
    assert not [name for name in names if acting.search(name)]


def test_they_compute() -> None:
    found = functions.function("Primitive.x.MatMul", {"transpose_b": True})
    assert found is not None
    x = Tensor(np.array([[1, 2]], np.float32))
    assert found(x, x).asnumpy().tolist() == [[5]]


def test_what_a_class_refuses_is_said() -> None:
    with pytest.raises(UnknownValue, match="cannot be made with"):
        functions.function("Primitive.x.MatMul", {"func": "evil.so:add"})
