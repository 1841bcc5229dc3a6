"""Task ``free_benchmark``: calls are run again, and the training is what it was."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from programs import batch, block_network

from probe.common.errors import MsprobeException


def rows(runs: Any) -> list[dict[str, str]]:
    found = sorted(runs.path.glob("step*/proc*/free_benchmark.csv"))
    return [row for path in found for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]


def checking(runs: Any, mode: str, **settings: Any) -> Any:
    return runs.new(task="free_benchmark", pert_mode=mode, **settings)


def gradients(backend: Any, debugger: Any | None) -> list[Any]:
    backend.seed(1)
    model = block_network(backend)
    if debugger is not None:
        debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True), model=model)
    if debugger is not None:
        debugger.stop()
        debugger.step()
    state = {name: value for name, value in backend.state(model).items() if value is not None}
    return [(name, np.asarray(value).tobytes()) for name, value in state.items()] + [backend.random_state()]


@pytest.mark.parametrize("mode", ["improve_precision", "bit_noise", "no_change"])
def test_a_correct_training_has_no_findings_and_is_bitwise_the_same(
    runs: Any, backend: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = gradients(backend, None)
    assert gradients(backend, checking(runs, mode)) == expected
    assert rows(runs) == []
    assert f"free_benchmark, {mode}, forward: 0 calls" not in capsys.readouterr().err


def test_an_ill_conditioned_call_is_named(runs: Any, backend: Any) -> None:
    debugger, add = checking(runs, "add_noise"), backend.apis["add"]
    large = backend.tensor(np.linspace(1000, 1000.001, 64).astype(np.float32))
    debugger.start()
    add.call(large, backend.tensor(np.full(64, -1000, np.float32)))
    add.call(large, large)
    debugger.stop()
    debugger.step()
    (row,) = rows(runs)
    assert (row["api_name"], row["verdict"]) == (f"{add.base}.0.forward", "ill-conditioned")


def test_a_call_that_gives_something_else_again_is_named(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger, absolute = checking(runs, "no_change"), backend.apis["abs"]
    right = backend.adapter.execution.function(absolute.base)
    monkeypatch.setattr(
        backend.adapter.execution, "function", lambda base, attributes=None, called="": lambda x: right(x) + 1
    )
    debugger.start()
    absolute.call(batch(backend))
    debugger.stop()
    debugger.step()
    (row,) = rows(runs)
    assert (row["api_name"], row["verdict"]) == (f"{absolute.base}.0.forward", "not deterministic")


def test_gradients_where_they_can_be_computed_apart(runs: Any, backend: Any) -> None:
    if not backend.adapter.execution.differentiates_anywhere:
        with pytest.raises(MsprobeException, match=r'fuzz_stage" is "backward", which .* cannot do'):
            checking(runs, "no_change", fuzz_stage="backward")
        return
    expected = gradients(backend, None)
    assert gradients(backend, checking(runs, "no_change", fuzz_stage="backward")) == expected
    assert rows(runs) == []
