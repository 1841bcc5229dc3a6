"""The compiled entry of a tensor is, to the last bit and in the order of its keys, the one that Python makes."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.backends.torch.tensors import plain_tensors
from probe.common.interfaces import StatisticsMode

pytestmark = pytest.mark.skipif(
    plain_tensors.describers is None, reason="installed without a C compiler, or torch does not lend its tensors"
)
DTYPES = (
    "float16", "bfloat16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32",
)  # fmt: skip


def compiled(tensor: torch.Tensor, wide: bool = False, sketched: bool = False) -> dict[str, Any] | None:
    assert plain_tensors.describers is not None
    return plain_tensors.describers[wide, sketched](tensor)


def in_python(backend: Any, tensor: torch.Tensor, wide: bool = False, sketched: bool = False) -> dict[str, Any]:
    summary = StatisticsMode("statistics", wide, sketch=sketched)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_tensors, "describers", None)
        entry: dict[str, Any] = backend.adapter.tensors.describe_tensor(tensor, summary)
    return entry


def same(backend: Any, tensor: torch.Tensor, wide: bool = False) -> None:
    for sketched in (False, True):
        mine, python = (describe(tensor, wide, sketched) for describe in (compiled, partial(in_python, backend)))
        assert mine is not None
        # The sketch of a number comes later in Python; a journal knows no order of these keys.
        assert mine.pop("sketch", None) == python.pop("sketch", None)
        # As text, in which NaN is NaN, True is not 1, and 1.0 not 1.
        assert json.dumps(mine) == json.dumps(python)
    assert backend.adapter.tensors.describe_tensor(tensor, StatisticsMode("statistics", wide)).keys() == mine.keys()


def numbers(dtype: str, count: int, seed: int = 5) -> torch.Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 100
    return (values.abs() if dtype.startswith("uint") else values).to(getattr(torch, dtype))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5), (1, 1, 1), (300, 300)], ids=str)
def test_it_is_the_same_for_every_type_and_shape(backend: Any, dtype: str, shape: tuple[int, ...], wide: bool) -> None:
    count = 1
    for size in shape:
        count *= size
    same(backend, numbers(dtype, count).reshape(shape), wide)


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
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 60000.0, -0.0, 1e-7, 1e-40, 3e38], ids=repr)
@pytest.mark.parametrize("dimensions", [0, 1])
def test_it_is_the_same_for_every_number(backend: Any, dtype: str, odd: float, dimensions: int) -> None:
    tensor = torch.tensor([odd, 1.0, odd, -2.0]).to(getattr(torch, dtype))
    same(backend, tensor if dimensions else tensor[0])


def test_it_says_whether_a_gradient_is_wanted(backend: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for tensor in (parameter, parameter * 2, parameter.detach(), torch.ones(2).requires_grad_()):
        same(backend, tensor)
        entry = compiled(tensor)
        assert entry is not None and entry["requires_grad"] is tensor.requires_grad


class Own(torch.Tensor):
    pass


def negative(values: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(values)  # type: ignore[attr-defined,no-any-return]


def beyond(strides: tuple[int, ...]) -> torch.Tensor:
    """With strides that lead out of its memory, which torch's public functions do not let one make."""
    shape = (3,) * len(strides)
    return torch._C._dynamo.guards._reinterpret_tensor(torch.ones(4), shape, strides)  # type: ignore[no-any-return]


def given_back() -> torch.Tensor:
    tensor = torch.ones(8)
    view = tensor[4:]
    tensor.untyped_storage().resize_(0)
    return view


class Loan(ctypes.Structure):
    """The part of DLPack's C exchange interface up to the function that lends a tensor."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("own", ctypes.c_void_p), ("give", ctypes.c_void_p),
        ("borrow", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)), ("stream", ctypes.c_void_p),
    ]  # fmt: skip


@pytest.fixture
def refusals() -> Iterator[list[int]]:
    """What torch answers when it is to lend a tensor, 0 where it does; each refusal takes it a millisecond."""
    exchange = torch.Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    capsules = ctypes.pythonapi
    capsules.PyCapsule_GetPointer.restype = ctypes.c_void_p
    capsules.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsules.PyCapsule_New.restype = ctypes.py_object
    capsules.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"dlpack_exchange_api"
    theirs = Loan.from_address(capsules.PyCapsule_GetPointer(exchange, name))
    # The interpreter's lock is held, and an exception is left to the caller, as in the call that this stands in for.
    lend = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.cast(theirs.borrow, ctypes.c_void_p).value
    )
    answers: list[int] = []

    def counted(tensor: Any, borrowed: Any) -> int:
        try:
            answers.append(lend(tensor, borrowed))
        except Exception:
            answers.append(-1)
        return answers[-1]

    ours = Loan.from_buffer_copy(theirs)
    ours.borrow = type(theirs.borrow)(counted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.Tensor, "__dlpack_c_exchange_api__", capsules.PyCapsule_New(ctypes.addressof(ours), name, None)
        )
        describers = plain_tensors._describers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_tensors, "describers", describers)
        yield answers


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "other",
    [
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
        lambda: beyond((2,)),
        lambda: beyond((1 << 61,)),
        lambda: beyond((1 << 62, 1 << 62)),
        lambda: beyond(((1 << 63) - 1,)),
        given_back,
        lambda: None,
        lambda: [1.0],
        lambda: 3.5,
    ],
)
def test_what_it_does_not_describe_is_left_to_python(other: Callable[[], Any], refusals: list[int]) -> None:
    assert compiled(other()) is None
    assert not any(refusals)
    assert compiled(torch.ones(2)) is not None and refusals[-1:] == [0], "which is asked here"


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_large_tensors_are_left_to_torch_where_it_uses_several_threads(
    backend: Any, threads: Callable[[int], None]
) -> None:
    for dtype in ("float32", "bfloat16"):
        tensor = numbers(dtype, plain_tensors.SEVERAL_THREADS_FROM)
        for wide in (False, True):
            threads(2)
            assert compiled(tensor, wide) is None
            assert compiled(tensor[1:], wide) is not None
            assert compiled(tensor, wide, sketched=True) is not None, "a sketch is made by one thread"
            threads(1)
            same(backend, tensor, wide)


def test_it_is_the_same_or_nothing_for_every_type_that_torch_has(backend: Any) -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    described = set()
    for dtype in dtypes:
        try:
            tensor = torch.ones(24, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            continue  # quantized, or nothing that bytes can be seen as
        if (mine := compiled(tensor)) is not None:
            described.add(dtype)
            assert json.dumps(mine) == json.dumps(in_python(backend, tensor))
    assert described == {getattr(torch, name) for name in DTYPES}


def test_inside_of_function_transforms_it_describes_nothing(refusals: list[int]) -> None:
    found = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        found.append(compiled(x))
        return (x * x).sum()

    torch.func.vmap(seen)(torch.ones(3, 2))
    torch.func.grad(seen)(torch.ones(2))
    torch.func.vmap(torch.func.grad(seen))(torch.ones(3, 2))
    assert found == [None, None, None] and refusals == []


def test_it_keeps_no_tensor_and_no_memory_of_one() -> None:
    for tensor in (torch.ones(3), torch.ones(2, device="meta"), torch.ones(3).to_sparse(), negative(torch.ones(3))):
        held = [tensor, tensor.dtype, tensor.layout]
        if tensor.layout is torch.strided:
            held.append(tensor.untyped_storage())
        before = [sys.getrefcount(each) for each in held]
        for _ in range(100):
            compiled(tensor)
        # Two may differ: what is shared with the rest of the program changes by itself.
        assert [abs(sys.getrefcount(each) - count) < 3 for each, count in zip(held, before)] == [True] * len(held)


def test_nothing_of_it_stays_in_memory() -> None:
    tensors = [torch.ones(3, 3), torch.ones(3, dtype=torch.bool), torch.ones(2, device="meta"), torch.tensor(5), None]
    for _ in range(2):
        before = sys.getallocatedblocks()
        for _ in range(2000):
            for tensor in tensors:
                compiled(tensor)  # type: ignore[arg-type]
    assert sys.getallocatedblocks() - before < 100


@pytest.mark.parametrize("arguments", [(), (torch.ones(2), False)])
def test_other_arguments_are_refused(arguments: tuple[Any, ...]) -> None:
    assert plain_tensors.describers is not None
    with pytest.raises(TypeError):
        plain_tensors.describers[False, False](*arguments)


def test_it_takes_no_arguments_by_name() -> None:
    assert plain_tensors.describers is not None
    kind: Any = type(plain_tensors.describers[False, False])
    for arguments, names in [((), {"wide": True}), ((), {}), ((1, 2), {})]:
        with pytest.raises(TypeError):
            kind(*arguments, **names)


def test_another_version_of_the_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for exchange in (None, 5, object(), torch._C._to_dlpack(torch.ones(1))):  # type: ignore[attr-defined]
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", exchange, raising=False)
        assert plain_tensors._describers() is None
