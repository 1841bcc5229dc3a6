"""Statistics that are computed on the device, which are operations of MindSpore like the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dumped
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

import probe
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
