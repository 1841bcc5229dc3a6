"""Sketches of the tensors that only PyTorch has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from described import describe
from free_port import free_port

from probe.common.interfaces import StatisticsMode
from probe.common.numerics.formats import TABLE, Kind
from probe.common.numerics.sketch import sketch, unpacked

SEED = 20261129
OTHER_FLOATS = ("float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def agree(packed: bytes, values: torch.Tensor) -> None:
    found, expected = unpacked(packed), sketch(values.detach().numpy())
    scale = float(np.linalg.norm(expected.sums)) or 1.0
    np.testing.assert_allclose(found.sums, expected.sums, rtol=0, atol=5e-7 * scale, err_msg=f"seed {SEED}")
    assert found.excluded == expected.excluded


def both_ways(backend: Any, tensor: torch.Tensor, values: torch.Tensor) -> None:
    """On the host, and with the operations for devices."""
    agree(describe(backend, tensor, sketch=True)["sketch"], values)
    agree(backend.sketch_on_device(tensor), values)


@pytest.mark.parametrize("dtype", OTHER_FLOATS)
def test_other_short_floats(backend: Any, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"PyTorch {torch.__version__} has no {dtype}")
    tensor = normal(300).to(getattr(torch, dtype))
    both_ways(backend, tensor, tensor.to(torch.float64))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_half_complex_numbers_are_pairs(backend: Any) -> None:
    tensor = torch.view_as_complex(normal(90, 2).to(torch.float16))
    both_ways(backend, tensor, torch.view_as_real(tensor).to(torch.float64))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_dtypes_without_numbers_have_no_sketch_and_the_entry_that_they_had(backend: Any, mode: str) -> None:
    numbers = {"bool", *(line.name for line in TABLE if line.kind is Kind.FLOAT and line.packed == 1)}
    for line in TABLE:
        dtype = getattr(torch, line.name, None)
        if not isinstance(dtype, torch.dtype) or line.name in numbers or line.kind is Kind.QUANTISED:
            continue
        try:
            tensor = torch.zeros(8, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            continue
        with_sketch, without = (
            backend.adapter.tensors.describe_tensor(tensor, StatisticsMode(mode, sketch=wanted)) for wanted in (1, 0)
        )
        found = with_sketch.pop("sketch", None)
        assert repr(with_sketch) == repr(without), line.name
        assert found is None or not any(found), line.name


def test_conjugated_and_negated_views_are_read_as_what_they_show(backend: Any) -> None:
    values = torch.complex(normal(70), normal(2, 70)[1])
    conjugated, negated = values.conj(), values.conj().imag
    assert conjugated.is_conj() and negated.is_neg()
    both_ways(backend, conjugated, conjugated.resolve_conj())
    both_ways(backend, negated, negated.resolve_neg())
    both_ways(backend, values.conj().t(), values.conj().t().resolve_conj())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_tensors_are_the_numbers_they_stand_for(backend: Any) -> None:
    tensor = torch.quantize_per_tensor(normal(100), 0.1, 0, torch.qint8)
    agree(describe(backend, tensor, sketch=True)["sketch"], tensor.dequantize())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_tensors_without_dense_values_have_none(backend: Any, mode: str) -> None:
    dense = torch.tensor([[0.0, 3.0, 0.0], [-4.0, 0.0, 0.0]])
    for tensor in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((1, 1))):
        entry = describe(backend, tensor, mode=mode, sketch=True)
        assert "sketch" not in entry and "not_supported" not in entry
    for tensor in (torch.ones(2, 3, device="meta"), torch._efficientzerotensor((3, 4))):
        assert "sketch" not in describe(backend, tensor, sketch=True)


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_subclasses_parameters_and_nested_tensors_are_their_values(backend: Any) -> None:
    values = normal(6, 30)
    both_ways(backend, values.as_subclass(Plain), values)
    both_ways(backend, torch.nn.Parameter(values), values)
    jagged = torch.nested.nested_tensor([values[0], values[1, :5]], layout=torch.jagged)
    agree(describe(backend, jagged, sketch=True)["sketch"], torch.cat([values[0], values[1, :5]]))


@pytest.fixture
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_dtensor_has_the_sketch_of_its_local_part(backend: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    values = normal(8, 20)
    sharded = distribute_tensor(values, init_device_mesh("cpu", (1,)), [Shard(0)])
    agree(describe(backend, sharded, sketch=True)["sketch"], values)


@pytest.mark.usefixtures("one_process")
def test_communication_is_sketched_before_and_after_it(runs: Any) -> None:
    import probe

    values = normal(80)
    debugger = runs.new(level="L1")
    debugger.start()
    torch.distributed.all_reduce(values)
    debugger.stop()
    debugger.step()
    dump = probe.read(runs.path)
    assert isinstance(dump, probe.Dump)
    items = [item for item in dump["Distributed.all_reduce.0.forward"].items() if item.is_tensor]
    assert items
    for item in items:
        assert item.sketch is not None
        agree(item.sketch.packed(), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors_are_sketched_alike_with_several_threads(backend: Any, dtype: torch.dtype) -> None:
    tensor, threads = normal((1 << 18) + 5000).to(dtype), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        both_ways(backend, tensor, tensor.to(torch.float64))
        both_ways(backend, tensor.reshape(-1, 8).t(), tensor.to(torch.float64).reshape(-1, 8).t())
    finally:
        torch.set_num_threads(threads)
