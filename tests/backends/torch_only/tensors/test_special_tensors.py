"""Tensors that are more, or less, than a dense block of numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from described import describe
from free_port import free_port
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_parts import LEVELS, collected, loaded, maxima, neutral

NO_WARNINGS = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
KEYS = ("Max", "Min", "Mean", "Norm")
DENSE = torch.tensor([[0.0, 3.0, 0.0], [-4.0, 0.0, 0.0]])
ROWS = [torch.tensor([1.0, 2.0]), torch.tensor([-3.0])]
NESTED = "torch.nested._internal.nested_tensor.NestedTensor"
NONE = [None] * 4


def statistics(entry: dict[str, Any]) -> list[Any]:
    return [entry[key] for key in KEYS]


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Wrapped(torch.Tensor):
    """A subclass with its own dispatch, whose storage holds nothing."""

    dispatched: list[Any] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Wrapped.dispatched.append(function)
        given = [value.inner if isinstance(value, Wrapped) else value for value in args]
        result = function(*given, **(kwargs or {}))
        return Wrapped(result) if isinstance(result, torch.Tensor) else result


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2, 3)


def without_memory(view: bool = False, keeps: int = 0, count: int = 100) -> torch.Tensor:
    """Memory that was given back but for its first bytes, or a view into such."""
    tensor = torch.arange(float(count))
    seen = tensor[10:] if view else tensor
    tensor.untyped_storage().resize_(keeps)
    return seen


def cut_in_its_rows() -> torch.Tensor:
    tensor = torch.arange(10_000_000.0).view(1000, 10_000).t()[::2]
    tensor.untyped_storage().resize_(400)
    return tensor


def cut_in_its_last_row() -> torch.Tensor:
    tensor = torch.arange(12.0).view(3, 4).t()
    tensor.untyped_storage().resize_(40)
    return tensor


KINDS: dict[str, tuple[Callable[[], Any], str, list[Any]]] = {
    # The statistics are those of the dense form, of the sum of duplicates, and of what a number stands for.
    "coo": (DENSE.to_sparse, "torch.Tensor", [3.0, -4.0, -1 / 6, 5.0]),
    "csr": (DENSE.to_sparse_csr, "torch.Tensor", [3.0, -4.0, -1 / 6, 5.0]),
    "csc": (DENSE.to_sparse_csc, "torch.Tensor", [3.0, -4.0, -1 / 6, 5.0]),
    "bsr": (lambda: DENSE.to_sparse_bsr((1, 1)), "torch.Tensor", [3.0, -4.0, -1 / 6, 5.0]),
    "uncoalesced": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0, 2]]), torch.tensor([1.0, 2.0, -5.0]), (4,)),
        "torch.Tensor", [3.0, -5.0, -0.5, 34**0.5],
    ),
    "sparse and empty": (
        lambda: torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros(0), (4,)),
        "torch.Tensor", [0.0] * 4,
    ),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.tensor([1.0, -2.0, 0.5]), 0.5, 0, torch.qint8),
        "torch.Tensor", [1.0, -2.0, -0.5 / 3, 5.25**0.5],
    ),
    "meta": (lambda: torch.ones(2, 3, device="meta"), "torch.Tensor", NONE),
    "fake": (fake, "torch._subclasses.fake_tensor.FakeTensor", NONE),
    "nested": (lambda: torch.nested.nested_tensor(ROWS), NESTED, [2.0, -3.0, 0.0, 14**0.5]),
    "jagged": (lambda: torch.nested.nested_tensor(ROWS, layout=torch.jagged), NESTED, [2.0, -3.0, 0.0, 14**0.5]),
    "negated": (lambda: torch.tensor([1 + 2j, -3j]).conj().imag, "torch.Tensor", [3.0, -2.0, 0.5, 13**0.5]),
    "subclass": (lambda: torch.tensor([3.0, -4.0]).as_subclass(Plain), "torch.Tensor", [3.0, -4.0, -0.5, 5.0]),
    "zeros without memory": (lambda: torch._efficientzerotensor((2, 3)), "torch.Tensor", [0.0] * 4),
}  # fmt: skip


@NO_WARNINGS
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_type_and_the_statistics_of_its_values(backend: Any, kind: str) -> None:
    make, name, expected = KINDS[kind]
    tensor = make()
    entry = describe(backend, tensor)
    assert (entry["type"], entry["dtype"]) == (name, str(tensor.dtype))
    assert len(entry["shape"]) == tensor.dim() and statistics(entry) == pytest.approx(expected)
    if expected == NONE:
        assert describe(backend, tensor, mode="md5")["md5"] is None
    if kind == "uncoalesced":
        assert not tensor.is_coalesced()


@NO_WARNINGS
def test_conjugated_views_are_read_as_what_they_show(backend: Any) -> None:
    values = torch.tensor([1 + 2j, -3j])
    assert statistics(describe(backend, values.conj()))[:3] == pytest.approx([3.0, 5**0.5, (3 + 5**0.5) / 2])
    expected = np.array([1 + 2j, -3j], np.complex64).conj()
    for tensor, array in ((values.conj(), expected), (values.conj().imag, np.array(expected.imag))):
        assert tensor.is_conj() or tensor.is_neg()
        assert describe(backend, tensor, mode="md5")["md5"] == f"{zlib.crc32(array.tobytes()):08x}"


@NO_WARNINGS
@LEVELS
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_sparse_gradients_are_recorded(runs: Any, level: str, task: str) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    dump = collected(
        runs, model, lambda: model(torch.tensor([1, 1, 3])).sum().backward(), level, task=task, summary_mode="md5"
    )
    if level != "L1":
        (entry,) = dump.data["Module.0.Embedding.parameters_grad.0"]["weight"]
    else:
        (entry,) = dump.data["Functional.embedding.0.backward"]["output"]
    assert entry["shape"] == [4, 2] and statistics(entry) == pytest.approx([2.0, 0.0, 0.75, 10**0.5])
    if task == "tensor":
        assert loaded(dump, entry).tolist() == [[0.0] * 2, [2.0] * 2, [0.0] * 2, [1.0] * 2]


def taken(runs: Any, values: list[Any], **settings: Any) -> Any:
    """The dump of a function of the user's that is given each of `values`, and returns it."""
    owner, debugger = SimpleNamespace(take=lambda value: value), runs.new(**settings)
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    for value in values:
        assert owner.take(value) is value
    debugger.stop()
    return runs.read(process="*")


@NO_WARNINGS
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_every_kind_passes_the_hooks_without_a_failure(runs: Any, mode: str, task: str) -> None:
    dense = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
    kinds = [make() for make, *_ in KINDS.values()] + [
        Wrapped(dense), (dense + 1j).conj(), dense.to(torch.float8_e4m3fn), dense.expand(3, 2, 2),
        torch.zeros(()).expand(2, 2), torch.nn.Parameter(dense), dense.requires_grad_(), dense.detach()[:0],
        dense.detach().to(torch.uint16),
    ]  # fmt: skip
    dump = taken(runs, kinds, task=task, summary_mode=mode)
    assert dump.names == [f"User.take.{number}.forward" for number in range(len(kinds))], "and nothing of ours"
    for name in dump.names:
        (given,), (returned,) = dump.data[name]["input_args"], dump.data[name]["output"]
        assert given["shape"] == returned["shape"] and given["dtype"] == returned["dtype"]


def test_a_subclass_with_its_own_dispatch_is_not_touched(runs: Any) -> None:
    wrapped, results = Wrapped(torch.tensor([3.0, -4.0])), []
    Wrapped.dispatched.clear()
    dump = collected(runs, None, lambda: results.append(torch.abs(wrapped)), "L1", task="tensor", summary_mode="md5")
    assert Wrapped.dispatched == [torch.ops.aten.abs.default], "only the user's own call"
    assert results[0].inner.tolist() == [3.0, 4.0]
    (entry,) = dump.data["Torch.abs.0.forward"]["input_args"]
    assert (entry["type"], entry["shape"], statistics(entry)) == ("torch.Tensor", [2], NONE)
    assert "Wrapped" in entry["not_supported"]


@pytest.mark.parametrize(
    ("transform", "kind"), [(torch.func.vmap, "BatchedTensor"), (torch.func.grad, "GradTrackingTensor")]
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_function_transforms_work_and_are_recorded(runs: Any, transform: Any, kind: str, task: str) -> None:
    def work(_: Any) -> Any:
        return transform(lambda row: torch.sum(torch.sin(row) * row))(torch.tensor([[1.0, -2.0], [3.0, -4.0]]))

    (entry,) = neutral(runs, torch.nn.Identity, work, "L1", task=task).data["Torch.sin.0.forward"]["input_args"]
    assert entry["type"] == kind


@pytest.mark.parametrize("count", [3, 64, 70])
def test_small_float16_numbers_are_seen_by_a_program_that_flushes_denormal_ones(backend: Any, count: int) -> None:
    # A multiple of 2^-24 that is no normal float16, but a normal float32.
    array = np.full(count, 2.0**-24, np.float16)
    array[1] = -167 * 2.0**-24
    wide = array.astype(np.float64)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes nothing")
    try:
        tensor = torch.from_numpy(array)
        assert (torch.full((1,), 1e-40) * 1.0).item() == 0.0, "it is on"
        found, shown = statistics(describe(backend, tensor)), tensor.max().item()
    finally:
        torch.set_flush_denormal(False)
    assert found[:2] == [shown, wide.min()] == [2.0**-24, -167 * 2.0**-24]
    assert found[2] == float(np.float16(wide.mean()))
    assert found[3] == pytest.approx(np.linalg.norm(wide), rel=1e-2)


def test_tensors_made_in_inference_mode_are_recorded(runs: Any) -> None:
    call = torch.inference_mode()(lambda: torch.abs(torch.tensor([-1.0])))
    dump = collected(runs, None, call, "L1", task="tensor")
    assert maxima(dump, "Torch.abs.0.forward", "output") == [1.0]


def test_a_lazy_module_is_recorded_once_its_parameters_exist(runs: Any, backend: Any) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU())
    debugger = runs.new(level="mix", task="tensor")
    debugger.start(model)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    assert [name for name in runs.read().names if "Module.0" in name and "forward" in name]
    assert type(model[0]) is torch.nn.Linear and backend.traces_left(model) == []


@pytest.fixture
def one_process_group() -> Iterator[None]:
    port = free_port()
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@NO_WARNINGS
@pytest.mark.usefixtures("one_process_group")
def test_dtensors_show_their_local_shard(runs: Any, backend: Any) -> None:
    values = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    tensor = distribute_tensor(values, init_device_mesh("cpu", (1,)), [Shard(0)])
    entry = describe(backend, tensor)
    assert entry["type"] == "torch.distributed.tensor.DTensor"
    assert entry["shape"] == [2, 2] and statistics(entry) == pytest.approx([3.0, -4.0, -0.25, 5.0])
    assert entry["device_mesh"].startswith("DeviceMesh(") and entry["placements"] == ["S(0)"]
    dump = taken(runs, [tensor], task="tensor")
    assert torch.equal(loaded(dump, dump.data["User.take.0.forward"]["output"][0]), values)


def test_reading_statistics_passes_no_dispatch_mode_of_the_user(runs: Any) -> None:
    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def work(_: Any) -> Any:
        with Counting() as mode:
            torch.abs(torch.ones(3, requires_grad=True)).sum().backward()
        return mode.seen

    neutral(runs, torch.nn.Identity, work, "L1", task="tensor", summary_mode="md5")


# --- memory that is gone: sharded parameters are like this between two uses; to copy one ends the process


@pytest.mark.parametrize("settings", [{}, {"async_dump": True, "list": ["."]}], ids=["at once", "async"])
def test_a_tensor_whose_memory_was_given_back_has_no_file(runs: Any, settings: Any) -> None:
    dump = taken(runs, [without_memory()], task="tensor", **settings)
    (saved,) = dump.data["User.take.0.forward"]["input_args"]
    assert saved["shape"] == [100] and "data_name" not in saved and dump.files == []


@pytest.mark.parametrize("compiled", [True, False], ids=["one pass", "torch's functions"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
@pytest.mark.parametrize(
    "tensor",
    [
        without_memory,
        lambda: without_memory(True),
        lambda: without_memory(False, 400, 10_000_000),
        cut_in_its_rows,
        cut_in_its_last_row,
    ],
    ids=["given back", "view, given back", "cut short", "strided, cut short", "cut in its last row"],
)
def test_memory_that_is_gone_is_not_read(
    backend: Any, monkeypatch: pytest.MonkeyPatch, tensor: Any, mode: str, compiled: bool
) -> None:
    if not compiled:
        backend.without_compiled_parts(monkeypatch)
    gone = tensor()
    entry = describe(backend, gone, mode=mode)
    assert "memory was given back" in entry["not_supported"]
    assert entry["shape"] == list(gone.shape)
    assert {entry.get(key) for key in (*KEYS, "md5")} == {None}
    assert backend.adapter.tensors.tensor_file(gone, True) is backend.adapter.tensors.tensor_file(gone, False) is None


@pytest.mark.parametrize("tensor", [torch.arange(6.0)[3::6], torch.ones(3, 2)[:1, :1].t() * 1, torch.ones(1, 4)[:, 0]])
def test_one_element_has_its_checksum_and_its_file_whatever_its_stride(backend: Any, tensor: torch.Tensor) -> None:
    entry = describe(backend, tensor, mode="md5")
    assert entry["md5"] == f"{zlib.crc32(tensor.numpy().tobytes()):08x}"
    assert (
        describe(backend, tensor, mode="xor")["md5"] == f"0x{int.from_bytes(tensor.numpy().tobytes(), 'little'):016x}"
    )
    assert bytes(backend.adapter.tensors.tensor_file(tensor, False).data) == tensor.numpy().tobytes()


@pytest.mark.parametrize("copied", [True, False])
def test_zeros_without_memory_have_the_checksum_and_the_file_of_zeros(backend: Any, copied: bool) -> None:
    """Forward-mode differentiation makes them."""
    zeros, expected = torch._efficientzerotensor((2, 3)), bytes(24)
    entry = describe(backend, zeros, mode="md5")
    assert (statistics(entry), entry["md5"]) == ([0.0] * 4, f"{zlib.crc32(expected):08x}")
    file = backend.adapter.tensors.tensor_file(zeros, copied)
    assert (bytes(file.data), file.crc) == (expected, zlib.crc32(expected))


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_several_gradients_at_once_have_no_statistics_and_say_so(runs: Any, level: str) -> None:
    def work(model: Any) -> Any:
        x = torch.ones(3, requires_grad=True)
        return torch.autograd.grad(model(x), x, torch.eye(3), is_grads_batched=True)

    dump = neutral(runs, lambda: torch.nn.Sequential(torch.nn.Tanh()), work, level)
    (entry,) = dump.data["Module.0.Tanh.backward.0" if level == "L0" else "Torch.tanh.0.backward"]["input"]
    assert entry["type"] == "BatchedTensor" and entry["Max"] is None and "function transform" in entry["not_supported"]
