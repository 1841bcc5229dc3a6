"""Tensors that are more, or less, than a dense block of numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from free_port import free_port
from torch.utils._python_dispatch import TorchDispatchMode

from probe.common.interfaces import StatisticsMode

KEYS = ("Max", "Min", "Mean", "Norm")


def describe(backend: Any, tensor: Any, mode: str = "statistics") -> dict[str, Any]:
    return backend.adapter.tensors.describe_tensor(tensor, StatisticsMode(mode))


def statistics(entry: dict[str, Any]) -> list[Any]:
    return [entry[key] for key in KEYS]


DENSE = np.array([[0.0, 3.0, 0.0], [-4.0, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_have_the_statistics_of_their_dense_form(backend: Any, layout: str) -> None:
    dense = torch.from_numpy(DENSE)
    tensor = {
        "coo": dense.to_sparse,
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((1, 1)),
    }[layout]()
    entry = describe(backend, tensor)
    assert (entry["type"], entry["dtype"], entry["shape"]) == ("torch.Tensor", "torch.float32", [2, 3])
    assert statistics(entry) == pytest.approx([3.0, -4.0, -1 / 6, 5.0])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_an_uncoalesced_sparse_tensor_sums_its_duplicates(backend: Any) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2]]), torch.tensor([1.0, 2.0, -5.0]), (4,))
    assert statistics(describe(backend, tensor)) == pytest.approx([3.0, -5.0, -0.5, np.sqrt(34)])
    assert not tensor.is_coalesced()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_sparse_gradients_are_recorded(runs: Any, level: str, task: str) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    debugger = runs.new(level=level, task=task, summary_mode="md5")
    debugger.start(model)
    model(torch.tensor([1, 1, 3])).sum().backward()
    debugger.stop()
    data = runs.read().data
    expected = torch.tensor([0.0, 2.0, 0.0, 1.0]).repeat(2, 1).t()
    if level != "L1":
        (entry,) = data["Module.0.Embedding.parameters_grad.0"]["weight"]
    else:
        (entry,) = data["Functional.embedding.0.backward"]["output"]
    assert entry["shape"] == [4, 2]
    assert statistics(entry) == pytest.approx([2.0, 0.0, 0.75, np.sqrt(10)])
    if task == "tensor":
        path = runs.read().folder / "dump_tensor_data" / entry["data_name"]
        assert torch.equal(torch.load(path, weights_only=True), expected)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_every_kind_passes_the_hooks_without_a_failure(runs: Any, mode: str, task: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    dense = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
    with FakeTensorMode():
        fake = torch.ones(2)
    kinds = [
        dense.to_sparse(), dense.to_sparse_csr(), dense.to("meta"), fake, dense.as_subclass(Plain), Wrapped(dense),
        torch.nested.nested_tensor([dense, dense]), torch.nested.nested_tensor([dense, dense], layout=torch.jagged),
        (dense + 1j).conj(), (dense + 1j).conj().imag, dense.to(torch.float8_e4m3fn), dense.expand(3, 2, 2),
        torch.zeros(()).expand(2, 2), torch.nn.Parameter(dense), dense.requires_grad_(), dense.detach()[:0],
        torch.quantize_per_tensor(dense.detach(), 0.1, 0, torch.qint8), dense.detach().to(torch.uint16),
    ]  # fmt: skip
    owner = SimpleNamespace(take=lambda value: value)
    debugger = runs.new(task=task, summary_mode=mode)
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    for value in kinds:
        assert owner.take(value) is value
    debugger.stop()
    dump = runs.read()
    assert dump.names == [f"User.take.{number}.forward" for number in range(len(kinds))], "and nothing of ours"
    for name in dump.names:
        (given,), (returned,) = dump.data[name]["input_args"], dump.data[name]["output"]
        assert given["shape"] == returned["shape"] and given["dtype"] == returned["dtype"]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_tensor_without_elements(backend: Any) -> None:
    tensor = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros(0), (4,))
    assert statistics(describe(backend, tensor)) == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_tensors_have_the_statistics_of_what_they_stand_for(backend: Any) -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([1.0, -2.0, 0.5]), 0.5, 0, torch.qint8)
    entry = describe(backend, tensor)
    assert entry["dtype"] == "torch.qint8"
    assert statistics(entry) == pytest.approx([1.0, -2.0, -0.5 / 3, np.sqrt(5.25)])


def test_meta_tensors_have_none(backend: Any) -> None:
    entry = describe(backend, torch.ones(2, 3, device="meta"))
    assert (entry["type"], entry["shape"], statistics(entry)) == ("torch.Tensor", [2, 3], [None] * 4)
    assert describe(backend, torch.ones(2, device="meta"), "md5")["md5"] is None


def test_fake_tensors_have_none_and_their_own_type(backend: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = torch.ones(2, 3)
    entry = describe(backend, fake)
    assert entry["type"] == "torch._subclasses.fake_tensor.FakeTensor"
    assert (entry["shape"], statistics(entry)) == ([2, 3], [None] * 4)
    with mode:
        assert statistics(describe(backend, fake)) == [None] * 4


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_have_the_statistics_of_their_values(backend: Any, layout: Any) -> None:
    tensor = torch.nested.nested_tensor([torch.tensor([1.0, 2.0]), torch.tensor([-3.0])], layout=layout)
    entry = describe(backend, tensor)
    assert entry["type"] == "torch.nested._internal.nested_tensor.NestedTensor"
    assert statistics(entry) == pytest.approx([2.0, -3.0, 0.0, np.sqrt(14)])
    assert len(entry["shape"]) == 2


@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_conjugated_and_negated_views_are_read_as_what_they_show(backend: Any, mode: str) -> None:
    values = torch.tensor([1 + 2j, -3j])
    conjugated, negated = values.conj(), values.conj().imag
    assert conjugated.is_conj() and negated.is_neg()
    if mode == "md5":
        expected = np.array([1 + 2j, -3j], np.complex64).conj()
        assert describe(backend, conjugated, mode)["md5"] == f"{zlib.crc32(expected.tobytes()):08x}"
        imaginary = np.array(expected.imag)
        assert describe(backend, negated, mode)["md5"] == f"{zlib.crc32(imaginary.tobytes()):08x}"
    else:
        assert statistics(describe(backend, conjugated))[:3] == pytest.approx([3.0, np.sqrt(5), (3 + np.sqrt(5)) / 2])
        assert statistics(describe(backend, negated)) == pytest.approx([3.0, -2.0, 0.5, np.sqrt(13)])


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Wrapped(torch.Tensor):
    """A subclass with its own dispatch, whose storage holds nothing."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Wrapped.dispatched.append(function)

        def unwrap(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapped) else value

        result = function(*[unwrap(value) for value in args], **(kwargs or {}))
        return Wrapped(result) if isinstance(result, torch.Tensor) else result

    dispatched: list[Any] = []  # noqa: RUF012


def test_subclasses_are_plain_tensors(backend: Any) -> None:
    tensor = torch.tensor([3.0, -4.0]).as_subclass(Plain)
    entry = describe(backend, tensor)
    assert entry["type"] == "torch.Tensor" and statistics(entry) == [3.0, -4.0, -0.5, 5.0]
    assert type(entry["Max"]) is float


def test_a_subclass_with_its_own_dispatch_is_not_touched(runs: Any, backend: Any) -> None:
    wrapped = Wrapped(torch.tensor([3.0, -4.0]))
    debugger = runs.new(task="tensor", summary_mode="md5")
    Wrapped.dispatched.clear()
    debugger.start()
    result = torch.abs(wrapped)
    debugger.stop()
    assert Wrapped.dispatched == [torch.ops.aten.abs.default], "only the user's own call"
    assert result.inner.tolist() == [3.0, 4.0]
    record = runs.read().data["Torch.abs.0.forward"]
    (entry,) = record["input_args"]
    assert (entry["type"], entry["shape"], statistics(entry)) == ("torch.Tensor", [2], [None] * 4)
    assert "Wrapped" in entry["not_supported"]


@pytest.mark.parametrize("transform", ["vmap", "grad"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_function_transforms_work_and_are_recorded(runs: Any, backend: Any, transform: str, task: str) -> None:
    x = torch.tensor([[1.0, -2.0], [3.0, -4.0]])

    def function(row: Any) -> Any:
        return torch.sum(torch.sin(row) * row)

    applied = torch.func.vmap(function) if transform == "vmap" else torch.func.grad(function)
    expected = applied(x)
    debugger = runs.new(task=task)
    debugger.start()
    result = applied(x)
    debugger.stop()
    assert torch.equal(result, expected)
    (entry,) = runs.read().data["Torch.sin.0.forward"]["input_args"]
    assert entry["type"] == ("BatchedTensor" if transform == "vmap" else "GradTrackingTensor")


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
    debugger = runs.new(level="L1", task="tensor")
    debugger.start()
    with torch.inference_mode():
        torch.abs(torch.tensor([-1.0]))
    debugger.stop()
    assert runs.read().data["Torch.abs.0.forward"]["output"][0]["Max"] == 1.0


def test_a_lazy_module_is_recorded_once_its_parameters_exist(runs: Any, backend: Any) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU())
    debugger = runs.new(level="mix", task="tensor")
    debugger.start(model)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    names = runs.read().names
    assert [name for name in names if "Module.0" in name and "forward" in name]
    assert type(model[0]) is torch.nn.Linear and backend.traces_left(model) == []


@pytest.fixture
def one_process_group() -> Iterator[None]:
    port = free_port()
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dtensors_show_their_local_shard(one_process_group: None, runs: Any, backend: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    values = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    tensor = distribute_tensor(values, mesh, [Shard(0)])
    entry = describe(backend, tensor)
    assert entry["type"] == "torch.distributed.tensor.DTensor"
    assert entry["shape"] == [2, 2] and statistics(entry) == pytest.approx([3.0, -4.0, -0.25, 5.0])
    assert entry["device_mesh"].startswith("DeviceMesh(") and entry["placements"] == ["S(0)"]
    owner = SimpleNamespace(take=lambda value: value)
    debugger = runs.new(task="tensor")
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    owner.take(tensor)
    result = torch.abs(tensor)
    debugger.stop()
    dump = runs.read(process="rank0")
    (saved,) = dump.data["User.take.0.forward"]["output"]
    assert torch.equal(torch.load(dump.folder / "dump_tensor_data" / saved["data_name"], weights_only=True), values)
    assert dump.data["Torch.abs.0.forward"]["output"][0]["Min"] == 0.0
    assert result.full_tensor().tolist() == values.abs().tolist()


def test_reading_statistics_passes_no_dispatch_mode_of_the_user(runs: Any, backend: Any) -> None:
    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Counting() as without:
        torch.abs(torch.ones(3, requires_grad=True)).sum().backward()
    debugger = runs.new(task="tensor", summary_mode="md5")
    debugger.start()
    with Counting() as given:
        torch.abs(torch.ones(3, requires_grad=True)).sum().backward()
    debugger.stop()
    assert given.seen == without.seen != []


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "async"])
def test_a_tensor_whose_memory_was_given_back_has_no_values_and_no_file(
    runs: Any, backend: Any, asynchronous: bool
) -> None:
    # Sharded parameters are like this between two uses; to copy one ends the process.
    tensor = torch.ones(3, 4)
    tensor.untyped_storage().resize_(0)
    entry = describe(backend, tensor, mode="md5")
    assert statistics(entry) == [None] * 4 and entry["md5"] is None and "not_supported" in entry
    owner = SimpleNamespace(take=lambda value: None)
    debugger = runs.new(task="tensor", async_dump=asynchronous, **({"list": ["."]} if asynchronous else {}))
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    owner.take(tensor)
    debugger.stop()
    dump = runs.read()
    (saved,) = dump.data["User.take.0.forward"]["input_args"]
    assert saved["shape"] == [3, 4] and "data_name" not in saved and dump.files == []


def given_back(view: bool) -> torch.Tensor:
    tensor = torch.arange(100.0)[10:] if view else torch.arange(100.0)
    tensor.untyped_storage().resize_(0)
    return tensor


def cut_short() -> torch.Tensor:
    tensor = torch.arange(10_000_000.0)
    tensor.untyped_storage().resize_(400)
    return tensor


def cut_in_its_rows() -> torch.Tensor:
    tensor = torch.arange(10_000_000.0).view(1000, 10_000).t()[::2]
    tensor.untyped_storage().resize_(400)
    return tensor


@pytest.mark.parametrize("compiled", [True, False], ids=["one pass", "torch's functions"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
@pytest.mark.parametrize(
    "tensor",
    [lambda: given_back(False), lambda: given_back(True), cut_short, cut_in_its_rows],
    ids=["given back", "view, given back", "cut short", "strided, cut short"],
)
def test_memory_that_is_gone_is_not_read(
    backend: Any, monkeypatch: pytest.MonkeyPatch, tensor: Any, mode: str, compiled: bool
) -> None:
    if not compiled:
        backend.without_compiled_parts(monkeypatch)
    gone = tensor()
    entry = describe(backend, gone, mode)
    assert entry["not_supported"] == "its memory was given back, so it has no values now"
    assert entry["shape"] == list(gone.shape)
    assert {entry.get(key) for key in (*KEYS, "md5")} == {None}
    assert backend.adapter.tensors.tensor_file(gone, True) is backend.adapter.tensors.tensor_file(gone, False) is None


@pytest.mark.parametrize("tensor", [torch.arange(6.0)[3::6], torch.ones(3, 2)[:1, :1].t() * 1, torch.ones(1, 4)[:, 0]])
def test_one_element_has_its_checksum_and_its_file_whatever_its_stride(backend: Any, tensor: torch.Tensor) -> None:
    entry = describe(backend, tensor, "md5")
    assert entry["md5"] == f"{zlib.crc32(tensor.numpy().tobytes()):08x}"
    assert describe(backend, tensor, "xor")["md5"] == f"0x{int.from_bytes(tensor.numpy().tobytes(), 'little'):016x}"
    assert bytes(backend.adapter.tensors.tensor_file(tensor, False).data) == tensor.numpy().tobytes()


@pytest.mark.parametrize("copied", [True, False])
def test_zeros_without_memory_have_the_checksum_and_the_file_of_zeros(backend: Any, copied: bool) -> None:
    """Forward-mode differentiation makes them."""
    zeros, expected = torch._efficientzerotensor((2, 3)), bytes(24)
    entry = describe(backend, zeros, "md5")
    assert (statistics(entry), entry["md5"]) == ([0.0] * 4, f"{zlib.crc32(expected):08x}")
    file = backend.adapter.tensors.tensor_file(zeros, copied)
    assert (bytes(file.data), file.crc) == (expected, zlib.crc32(expected))


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_several_gradients_at_once_have_no_statistics_and_say_so(runs: Any, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    debugger = runs.new(level=level)
    debugger.start(model)
    x = torch.ones(3, requires_grad=True)
    (jacobian,) = torch.autograd.grad(model(x), x, torch.eye(3), is_grads_batched=True)
    debugger.stop()
    assert jacobian.shape == (3, 3)
    name = "Module.1.Tanh.backward.0" if level == "L0" else "Torch.tanh.0.backward"
    (entry,) = runs.read().data[name]["input"]
    assert entry["type"] == "BatchedTensor" and entry["Max"] is None
    assert "function transform" in entry["not_supported"]
