"""Which functions a dump, which anybody may have written, can have called where torch is MindSpore underneath."""

from __future__ import annotations

import re

import pytest

from probe.backends.msadapter import functions, hooks


@pytest.mark.parametrize(
    "base",
    [
        "Primitive.x.Custom", "Primitive.x.TensorDump", "Primitive.x.ReLU", "Torch.load", "Torch.save",
        "Torch.from_file", "Torch.compile", "Torch.ops", "Torch.hub", "Torch.jit", "Torch.sys.exit", "Tensor.tofile",
        "Aten.save", "NPU.load_library", "NPU.npu_rms_norm", "Distributed.all_reduce",
    ],
)  # fmt: skip
def test_what_does_not_only_compute_is_out_of_reach(base: str) -> None:
    assert functions.function(base) is None
    assert functions.place(base) is None


def test_no_function_of_the_list_reads_writes_or_loads() -> None:
    names = {watched.attribute for family in hooks.watched().values() for watched in family}
    assert len(names) > 500
    acting = re.compile("(^|_)(load|save|file|path|library|compile|eval|exec|import|print|dump|hub|jit)($|_)")
    assert not [name for name in names if acting.search(name)]
