"""A failure of the tool itself is written down and reaches nobody else."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from programs import BATCH, Names, batch, block_network, values


class OurFault(Exception):
    pass


@pytest.fixture
def faulty(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make describing tensors of one shape fail."""

    def make(shape: tuple[int, ...], error: type[Exception] = OurFault) -> None:
        adapter = backend.adapter
        describe = adapter.tensors.describe_tensor

        def raising(tensor: Any, summary: Any) -> Any:
            if tuple(tensor.shape) == shape:
                raise error("cannot describe this")
            return describe(tensor, summary)

        monkeypatch.setattr(adapter.tensors, "describe_tensor", raising)
        monkeypatch.setattr(adapter.tensors, "direct_describer", lambda summary: None)

    return make


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_tensor_that_cannot_be_described_costs_its_own_record_only(
    runs: Any, backend: Any, faulty: Any, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.errors_expected = True
    expected = backend.run(block_network(backend), batch(backend, requires_grad=True))
    faulty((5, 3))
    model, names, debugger = block_network(backend), Names(backend), runs.new(level=level)
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    assert np.array_equal(outcome.output, expected.output) and np.array_equal(outcome.inputs[0], expected.inputs[0])
    dump = runs.read()
    assert "OurFault: cannot describe this" in dump.errors and "Traceback" in dump.errors
    name = f"{names.fc}.forward.0" if level != "L1" else f"{backend.apis['linear'].base}.0.forward"
    assert name in dump.errors
    out = capsys.readouterr().err
    assert out.count("could not be recorded completely") == 1, "told once, not for every tensor"
    assert "[ERROR]" in out and "the training goes on" in out
    assert backend.traces_left(model) == []
    if level != "mix":
        return
    # Records without a failure are complete.
    output = dump.data[f"{names.head}.forward.0"].get("output")
    assert output is None or output[0]["Max"] == pytest.approx(values()[2].max())
    assert dump.data[f"{names.body}.forward.0"]["input_args"][0]["Max"] == BATCH.max()
    assert dump.tree[f"{names.fc}.forward.0"] == f"{names.body}.forward.0"
    assert dump.tree[f"{names.head}.forward.0"] is None
    assert len(dump.tree) == 14


def test_a_failed_copy_costs_the_file_and_not_the_statistics(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.errors_expected = True

    def raising(tensor: Any, copied: bool) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backend.adapter.tensors, "tensor_file", raising)
    absolute, debugger = backend.apis["abs"], runs.new(task="tensor")
    debugger.start()
    result = absolute.call(batch(backend))
    debugger.stop()
    dump = runs.read()
    assert np.array_equal(backend.numpy(result), np.abs(BATCH))
    assert dump.files == [] and "out of memory" in dump.errors
    record = dump.data[f"{absolute.base}.0.forward"]
    assert record["output"][0]["Max"] == 2.0 and "data_name" not in record["output"][0]


def test_statistics_that_never_arrive_do_not_stop_the_program(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.errors_expected = True
    waiting = [True]

    def resolve() -> None:
        waiting[0] = False
        raise RuntimeError("device lost")

    monkeypatch.setattr(backend.adapter.tensors, "pending", lambda: waiting[0])
    monkeypatch.setattr(backend.adapter.tensors, "resolve", resolve)
    absolute, debugger = backend.apis["abs"], runs.new()
    debugger.start()
    absolute.call(batch(backend))
    debugger.stop()
    assert "device lost" in runs.read().errors
    assert runs.read().names == [f"{absolute.base}.0.forward"]


def test_a_folder_that_disappears_does_not_stop_the_program(runs: Any, backend: Any) -> None:
    runs.errors_expected = True
    absolute, debugger = backend.apis["abs"], runs.new(task="tensor")
    debugger.start()
    shutil.rmtree(runs.path)
    result = absolute.call(batch(backend))
    assert np.array_equal(backend.numpy(result), np.abs(BATCH))
    debugger.stop()
    debugger.step()


@pytest.mark.parametrize("method", ["items", "values"])
def test_a_hostile_argument_costs_its_own_record_only(runs: Any, backend: Any, method: str) -> None:
    from types import SimpleNamespace

    def refuse(_: Any) -> Any:
        raise OurFault(f"no {method} today")

    class Hostile(dict):  # type: ignore[type-arg]
        pass

    setattr(Hostile, method, refuse)
    owner = SimpleNamespace(take=lambda *args: None)
    runs.errors_expected = True
    debugger = runs.new()
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    owner.take(Hostile(a=1))
    owner.take(5)
    debugger.stop()
    dump = runs.read()
    assert dump.data["User.take.1.forward"]["input_args"] == [{"type": "int", "value": 5}]
    # A tensor is looked for in the values, and not by every backend.
    assert method == "values" or "no items today" in dump.errors
