"""Functions that the user exchanges between two collections."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable

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


Calls = list[tuple[str, ...]]


def _named_function(function: Any, calls: Calls) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append((*(type(value).__name__ for value in args), *kwargs))
        return function(*args, **kwargs)

    return wrapper


class _Object:
    """An object in the place of a function, bound as one."""

    def __init__(self, function: Any, calls: Calls) -> None:
        self._given = function, calls

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, calls = self._given
        calls.append((*(type(value).__name__ for value in args), *kwargs))
        return function(*args, **kwargs)


@pytest.mark.sampled()
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("when", ["before the debugger", "before start", "while collecting"])
@pytest.mark.parametrize("form", [_named_function, _Object])
def test_what_a_user_has_wrapped_runs_as_often_and_is_recorded_once(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, form: Callable[..., Any], when: str, level: str
) -> None:
    apis = {name: backend.apis[name] for name in ("relu", "abs", "add", "multiply", "sum")}
    before = [getattr(api.owner, api.attribute) for api in apis.values()]
    calls: Calls = []

    def wrap(now: str) -> None:
        for api in apis.values() if now == when else ():
            monkeypatch.setattr(api.owner, api.attribute, form(getattr(api.owner, api.attribute), calls))

    def run() -> None:
        x = batch(backend)
        for name, api in apis.items():
            _ = api.call(x) if name in ("relu", "abs", "sum") else api.call(x, x)

    wrap("before the debugger")
    debugger = runs.new(level=level)
    wrap("before start")
    for _ in range(2):
        debugger.start(backend.module("Net", lambda self, x: x))
        if not calls:
            wrap("while collecting")
        run()
        debugger.stop()
        debugger.step()
    collected = list(calls)
    assert len(collected) == 2 * len(apis)
    calls.clear()
    run()
    assert collected == 2 * calls
    if level != "L0":
        for step in range(2):
            assert {f"{api.base}.0.forward" for api in apis.values()} <= set(runs.read(step).names)
            assert not {f"{api.base}.1.forward" for api in apis.values()} & set(runs.read(step).names)
    monkeypatch.undo()
    # What the user's wrapper covered goes at the end of the next step.
    debugger.start(backend.module("Net", lambda self, x: x))
    debugger.stop()
    debugger.step()
    assert [getattr(api.owner, api.attribute) for api in apis.values()] == before, "nothing stays"
