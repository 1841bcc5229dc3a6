"""Which functions a dump, which anybody may have written, can have called."""

from __future__ import annotations

import re
import sys
import types

import pytest
import torch

from probe.backends.torch.execution import functions
from probe.backends.torch.hooks import api_list

ACTING = re.compile("(^|_)(load|save|file|path|library|compile|eval|exec|import|print|dump|hub|jit|vmap)($|_)")


@pytest.mark.parametrize(
    "base",
    [
        "Torch.load", "Torch.save", "Torch.from_file", "Torch.compile", "Torch.classes", "Torch.ops", "Torch.hub",
        "Torch.jit", "Torch.import_ir_module", "Torch.__import__", "Torch.sys.exit", "Tensor.tofile", "Tensor.__reduce__",
        "Tensor.register_hook", "Aten.from_file", "Aten.save", "Aten.load", "Aten.print", "Aten._print", "Aten.warn",
        "Aten.eval", "Aten._sparse_coo_tensor_unsafe", "Aten.__class__", "Ops.load_library", "NPU.load_library",
        "Distributed.all_reduce", "VF.__dict__", "torch.ops.load_library",
    ],
)  # fmt: skip
def test_what_does_not_only_compute_is_out_of_reach(base: str) -> None:
    assert functions.function(base) is None
    assert functions.place(base) is None


def test_no_function_of_the_list_reads_writes_or_loads() -> None:
    names = {watched.attribute for functions in api_list.watched().values() for watched in functions}
    assert len(names) > 500
    assert not [name for name in names if ACTING.search(name)]


def test_no_operator_in_reach_takes_the_name_of_a_file() -> None:
    schemas = [each for each in torch._C._jit_get_all_schemas() if each.name.startswith("aten::")]
    taking = {
        schema.name.partition("::")[2] for schema in schemas
        for argument in schema.arguments if re.search("file|path|library|code", argument.name)
        and "str" in str(argument.type)
    }  # fmt: skip
    assert taking
    assert not [name for name in taking if functions.function(f"Aten.{name}") is not None]


@pytest.mark.parametrize("name", ["npu_load_library", "npu_save", "npu_dump_tensor", "npu_config"])
def test_names_of_torch_npu_that_act_are_out_of_reach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    setattr(module, name, print)
    module.npu_rms_norm = torch.relu  # type: ignore[attr-defined]
    assert functions.function(f"NPU.{name}") is None
    assert functions.function("NPU.npu_rms_norm") is torch.relu


@pytest.mark.parametrize("name", ["mm", "add", "convolution", "_softmax", "_unsafe_view", "einsum", "pad"])
def test_ordinary_operators_are_found(name: str) -> None:
    assert functions.function(f"Aten.{name}") is not None
