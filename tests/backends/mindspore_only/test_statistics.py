"""Statistics that are computed on the device, which are operations of MindSpore like the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dumped
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

import probe
from probe.backends.mindspore.host_memory import KNOWS_ADDRESSES, in_one_pass
from probe.backends.mindspore.statistics import summarize, to_array
from probe.backends.shared import tensors
from probe.common.interfaces import StatisticsMode

KEYS = ("Max", "Min", "Mean", "Norm")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        return mint.nn.functional.relu(mint.abs(self.relu(self.dense(x))) + 1).sum()


def numbers(value: Any) -> list[Any]:
    """The statistics of every tensor below `value`, and nothing else of it."""
    if isinstance(value, dict) and "Max" in value:
        return [value[key] for key in KEYS]
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for item in below for number in numbers(item)]


@pytest.mark.parametrize("dtype", [ms.float16, ms.float32, ms.float64])
def test_what_is_not_finite_is_counted_on_the_device(backend: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.adapter.tensors._statistics, "on_host", False)
    summary = StatisticsMode(nonfinite=True)
    given = ([1.0, np.nan, -2.0, np.inf], [np.inf, np.nan], [1.0, 2.0], np.nan)
    entries = [backend.adapter.tensors.describe_tensor(Tensor(np.array(values), dtype), summary) for values in given]
    entries.append(backend.adapter.tensors.describe_tensor(Tensor([1, 2], ms.int32), summary))
    assert not any("Nonfinite" in entry for entry in entries) and backend.adapter.tensors.pending() == 5
    backend.adapter.tensors.resolve()
    found = [[entry.get(key, "none") for key in ("Nonfinite", "Finite Max", "Finite Min")] for entry in entries]
    assert found == [[2, 1.0, -2.0], [2, None, None], ["none"] * 3, [1, None, None], ["none"] * 3]
    assert list(entries[0])[6:8] == ["Norm", "Nonfinite"]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "permuted": lambda x: x.permute(2, 0, 1),
    "rows": lambda x: x[1:],
    "columns": lambda x: ops.narrow(x, 2, 3, 5),
    "repeated": lambda x: ops.broadcast_to(x[:1], x.shape),
}


@pytest.mark.skipif(tensors.reduce is None, reason="nothing is compiled")
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16, ms.float64, ms.int32, ms.uint8, ms.bool_])
def test_a_tensor_read_where_it_lies_has_the_statistics_of_a_copy(dtype: Any) -> None:
    whole = (Tensor(np.random.default_rng(0).normal(size=(6, 40, 9)), ms.float32) * 9 + 20).astype(dtype)
    for given in (whole, whole[0, 0, 0], whole * 0) if KNOWS_ADDRESSES else ():
        found = in_one_pass(given, False, True)
        assert found is not None and repr(found) == repr(summarize(to_array(given), False, True))
    for name, view in VIEWS.items():
        found, expected = in_one_pass(view(whole), False, True), summarize(to_array(view(whole)), False, True)
        assert found is not None and (found[:2], found[4]) == (expected[:2], expected[4]), name
        # Added up in the order of the memory, not of the view.
        assert found[2:4] == expected[2:4] or found[2:4] == pytest.approx(expected[2:4], rel=1e-6), name


def test_what_one_pass_cannot_tell_is_left_to_numpy() -> None:
    beyond = Tensor(np.full(9, 1e25, np.float32)) + 0
    for given in (beyond, beyond * 1e-25 * 1e-25, Tensor(np.zeros((0, 3), np.float32)), Tensor([1j], ms.complex64)):
        assert in_one_pass(given, False, True) is None
    if KNOWS_ADDRESSES:
        assert in_one_pass(Tensor([np.inf, 1.0], ms.float32) + 0, False, False) == (np.inf, 1.0, np.inf, np.inf, None)


def sketches(folder: Any) -> dict[str, Any]:
    dump = probe.read(folder)
    assert isinstance(dump, probe.Dump)
    return {item.name: item.sketch for record in dump for item in record.items() if item.is_tensor}


def collect(
    runs: Any, backend: Any, level: str, path: Any, before_the_pass: Callable[[], None] = lambda: None
) -> tuple[Any, int]:
    """What was collected, and how many statistics were still being computed when the pass was over."""
    net, x = Net(), Tensor(np.linspace(-2, 1, 8, dtype=np.float32).reshape(2, 4))
    debugger = runs.new(level=level, dump_path=path)
    debugger.start(net)
    before_the_pass()
    ms.value_and_grad(net, 0, list(net.trainable_params()))(x)
    waiting = backend.adapter.tensors.pending()
    debugger.stop()
    debugger.step()
    return dumped.read(path), waiting


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_device_gives_what_the_host_gives_and_records_nothing_of_its_own(
    runs: Any, backend: Any, level: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host, waiting = collect(runs, backend, level, tmp_path / "host")
    assert waiting == 0
    # Before the pass: `start` describes the buffers of modules, after which the device is looked up again.
    away = partial(monkeypatch.setattr, backend.adapter.tensors._statistics, "on_host", False)
    on_device, waiting = collect(runs, backend, level, tmp_path / "device", away)
    assert waiting > 5
    assert on_device.names == on_host.names and on_device.tree == on_host.tree
    expected = numbers(on_host.data)
    assert len(expected) > 20
    assert numbers(on_device.data) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    of_host, of_device = (sketches(dump.folder) for dump in (on_host, on_device))
    assert list(of_host) == list(of_device) and None not in of_device.values()
    for name, sketch in of_device.items():
        assert sketch.sums == pytest.approx(of_host[name].sums, abs=1e-5), name
