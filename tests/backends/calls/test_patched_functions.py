"""Functions that the user exchanges between two collections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import BATCH, batch


@pytest.mark.parametrize("api", ["relu", "abs"])
def test_a_function_that_the_user_put_in_place_runs_and_stays(
    runs: Any, backend: Any, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, debugger = backend.apis[api], runs.new()
    debugger.start()
    watched.call(batch(backend))
    debugger.stop()
    debugger.step()
    original = watched.call

    def patched(x: Any) -> Any:
        return original(x) * 4

    monkeypatch.setattr(watched.owner, watched.attribute, patched)
    debugger.start()
    result = watched.call(batch(backend))
    debugger.stop()
    debugger.step()
    assert watched.call is patched
    expected = (np.maximum(BATCH, 0) if api == "relu" else np.abs(BATCH)) * 4
    assert np.array_equal(backend.numpy(result), expected)
    monkeypatch.undo()
    debugger.start()
    result = watched.call(batch(backend))
    debugger.stop()
    assert watched.call is original
    assert np.array_equal(backend.numpy(result), expected / 4)
    assert f"{watched.base}.0.forward" in runs.read(2).names
