"""Entries of tensors: those of compiled code are to the last bit those of Python; what is not finite is counted.

Where torch lends its tensors to compiled code, a function in C makes the whole entry of an ordinary tensor, and leaves
any other tensor to Python.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from described import describe
from hypothesis import given
from hypothesis import strategies as st

from probe.common.interfaces import StatisticsMode

NAN, INF = float("nan"), float("inf")
COUNTED = ("Nonfinite", "Finite Max", "Finite Min")
DTYPES = (
    "float16", "bfloat16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32",
)  # fmt: skip


def same(backend: Any, tensor: torch.Tensor, modes: tuple[str, ...] = ("statistics",), **wanted: Any) -> None:
    for mode in modes:
        for sketch in (False, True):
            summary = StatisticsMode(mode, sketch=sketch, **wanted)
            entry = backend.adapter.tensors.describe_tensor(tensor, summary)
            python = backend.described_without_compiled_entry(tensor, summary)
            # The sketch of a number comes later in Python; a journal knows no order of these keys.
            assert entry.pop("sketch", None) == python.pop("sketch", None)
            # As text, in which NaN is NaN, True is not 1, and 1.0 not 1.
            assert json.dumps(entry) == json.dumps(python)


def numbers(dtype: str, count: int, seed: int = 5) -> torch.Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 100
    return (values.abs() if dtype.startswith("uint") else values).to(getattr(torch, dtype))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5), (1, 1, 1), (300, 300)], ids=str)
def test_it_is_the_same_for_every_type_and_shape(backend: Any, dtype: str, shape: tuple[int, ...], wide: bool) -> None:
    same(backend, numbers(dtype, math.prod(shape)).reshape(shape), high_precision=wide)


def a_view(tensor: torch.Tensor, draw: Callable[[st.SearchStrategy[Any]], Any]) -> torch.Tensor:
    kind = draw(st.sampled_from(["expand", "transpose", "slice", "select"])) if tensor.dim() else "expand"
    if kind == "expand":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    axis = draw(st.integers(0, tensor.dim() - 1))
    if kind == "transpose":
        return tensor.transpose(0, axis)
    start = draw(st.integers(0, tensor.shape[axis] - 1))
    if kind == "select":
        return tensor.select(axis, start)
    return tensor[(slice(None),) * axis + (slice(start, None, draw(st.integers(1, 3))),)]


@given(st.data())
def test_it_is_the_same_for_every_view(backend: Any, data: st.DataObject) -> None:
    tensor = numbers(data.draw(st.sampled_from(DTYPES)), 4 * 6 * 5 * 3).reshape(4, 6, 5, 3)
    for _ in range(data.draw(st.integers(1, 4))):
        tensor = a_view(tensor, data.draw)
    same(backend, tensor)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("odd", [NAN, INF, -INF, 60000.0, -0.0, 1e-7, 1e-40, 3e38], ids=repr)
@pytest.mark.parametrize("dimensions", [0, 1])
def test_it_is_the_same_for_every_number(backend: Any, dtype: str, odd: float, dimensions: int) -> None:
    tensor = torch.tensor([odd, 1.0, odd, -2.0]).to(getattr(torch, dtype))
    same(backend, tensor if dimensions else tensor[0])


def test_it_says_whether_a_gradient_is_wanted(backend: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for tensor in (parameter, parameter * 2, parameter.detach(), torch.ones(2).requires_grad_()):
        same(backend, tensor)
        assert describe(backend, tensor)["requires_grad"] is tensor.requires_grad


class Own(torch.Tensor):
    pass


class OnDevice(torch.Tensor):
    """In host memory, and says that it is not."""

    is_cpu = False  # type: ignore[assignment]


def negative(values: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(values)  # type: ignore[attr-defined,no-any-return]


def given_back() -> torch.Tensor:
    tensor = torch.ones(8)
    view = tensor[4:]
    tensor.untyped_storage().resize_(0)
    return view


def beyond(*strides: int) -> torch.Tensor:
    """With strides that lead out of its memory, which torch's public functions do not let one make."""
    shape = (3,) * len(strides)
    return torch._C._dynamo.guards._reinterpret_tensor(torch.ones(4), shape, strides)  # type: ignore[no-any-return]


OTHERS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.ones(2, 2).to_sparse(),
    lambda: torch.ones(2, 2).to_sparse_csr(),
    lambda: torch.ones(2, 2).to_mkldnn(),
    lambda: torch.ones(2, device="meta"),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    lambda: torch.ones(2).as_subclass(Own),
    lambda: torch.ones(2, dtype=torch.complex64),
    lambda: (torch.ones(2) + 1j).conj().imag,
    lambda: torch.ones(2).to(torch.float8_e4m3fn),
    lambda: torch.ones(2).to(torch.uint64),
    lambda: torch._efficientzerotensor((2, 3)),
    lambda: torch.ones(0, 3),
    lambda: negative(torch.ones(2)),
    lambda: negative(torch.arange(3)),
    lambda: negative(torch.ones(2, dtype=torch.bool)),
    lambda: beyond(2),
    lambda: beyond(1 << 61),
    lambda: beyond(1 << 62, 1 << 62),
    lambda: beyond((1 << 63) - 1),
    given_back,
]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_what_is_no_ordinary_tensor_is_described_as_python_does(backend: Any, other: Callable[[], Any]) -> None:
    same(backend, other(), modes=("statistics", "md5"))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_it_is_the_same_for_every_type_that_torch_has(backend: Any) -> None:
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            tensor = torch.ones(24, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            continue  # quantized, or nothing that bytes can be seen as
        same(backend, tensor)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_large_tensors_are_described_alike_with_several_threads(
    backend: Any, threads: Callable[[int], None], dtype: str, wide: bool, count: int
) -> None:
    threads(count)
    for number in ((1 << 18) - 1, 1 << 18):
        same(backend, numbers(dtype, number), high_precision=wide)


def test_no_tensor_and_no_memory_is_kept(backend: Any) -> None:
    tensors = [
        torch.ones(3, 3), torch.ones(3, dtype=torch.bool), torch.tensor(5), torch.ones(2, device="meta"),
        torch.ones(3).to_sparse(), negative(torch.ones(3)),
    ]  # fmt: skip
    held = [*tensors, *(each.untyped_storage() for each in tensors if each.layout is torch.strided), torch.float32]

    def counts() -> tuple[list[int], int]:
        return [sys.getrefcount(each) for each in held], sys.getallocatedblocks()

    for _ in range(2):
        before, blocks = counts()
        for _ in range(300):
            for tensor in tensors:
                describe(backend, tensor)
        after, blocks_after = counts()
    # Two may differ: what is shared with the rest of the program changes by itself.
    assert all(abs(one - other) < 3 for one, other in zip(before, after))
    assert not backend.has_compiled_parts or blocks_after - blocks < 100


@pytest.mark.parametrize("exchange", [None, 5, object(), torch._C._to_dlpack(torch.ones(1))])  # type: ignore[attr-defined]
def test_another_version_of_the_interface_is_not_used(monkeypatch: pytest.MonkeyPatch, exchange: Any) -> None:
    from probe.backends.torch.tensors import plain_tensors

    assert (plain_tensors._describers() is not None) == hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", exchange, raising=False)
    assert plain_tensors._describers() is None


# --- what is not finite


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_what_is_not_finite_is_counted_with_the_statistics(backend: Any, dtype: torch.dtype, on_device: bool) -> None:
    values = [[1.0, NAN, -2.0, INF], [INF, NAN], [1.0, 2.0]]
    tensors = [torch.tensor(one).to(dtype) for one in values]
    if on_device:
        tensors = [tensor.as_subclass(OnDevice) for tensor in tensors]  # type: ignore[no-untyped-call]
    entries = [describe(backend, tensor, nonfinite=True) for tensor in tensors]
    expected = [[2, 1.0, -2.0], [2, None, None], ["none"] * 3]
    assert [[entry.get(key, "none") for key in COUNTED] for entry in entries] == expected
    before = list(describe(backend, tensors[2]))
    end = before.index("Norm") + 1
    assert list(entries[0]) == [*before[:end], *COUNTED, *before[end:]] and list(entries[2]) == before


def test_a_number_on_a_device_is_that_of_its_call(backend: Any) -> None:
    number = torch.tensor(NAN)
    summary = StatisticsMode(nonfinite=True)
    entry = backend.adapter.tensors.describe_tensor(number.as_subclass(OnDevice), summary)  # type: ignore[no-untyped-call]
    assert backend.adapter.tensors.pending() == 1 and entry["Max"] is None
    number.fill_(1.0)
    backend.adapter.tensors.resolve()
    assert [entry[key] for key in COUNTED] == [1, None, None]


def test_integers_and_what_was_not_asked_for_count_nothing(backend: Any) -> None:
    assert not set(COUNTED) & set(describe(backend, torch.tensor([3, 4]), nonfinite=True))
    assert not set(COUNTED) & set(describe(backend, torch.tensor([NAN, 1.0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_that_was_counted_can_still_be_resized(backend: Any, dtype: torch.dtype) -> None:
    tensor = torch.tensor([NAN, 1.0], dtype=dtype)
    for mode in ("statistics", "md5"):
        assert describe(backend, tensor, mode=mode, nonfinite=True)["Nonfinite"] == 1
    assert tensor.resize_(1000).numel() == 1000


def test_views_and_sparse_tensors_are_counted_by_their_values(backend: Any) -> None:
    entry = describe(backend, negative(torch.tensor([NAN, 2.0])), nonfinite=True)
    assert [entry[key] for key in COUNTED] == [1, -2.0, -2.0]
    entry = describe(backend, torch.tensor([[INF, 0], [0, -3.0]]).to_sparse(), nonfinite=True)
    assert [entry[key] for key in COUNTED] == [1, 0.0, -3.0]
