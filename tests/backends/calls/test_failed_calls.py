"""A call that raised has ended: nothing that comes later is taken for a part of it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from programs import batch, chain

import probe

ROOT = Path(probe.__file__).parent


class Failing:
    """A network whose module ``bad`` raises while `fails`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.fails = True

        def bad(module: Any, x: Any) -> Any:
            y = module.act(x)
            if self.fails:
                raise ValueError("the user's")
            return y * 7

        self.bad = backend.module("Bad", bad, act=backend.relu())
        self.model = backend.module("Net", chain("bad", "last"), bad=self.bad, last=backend.relu())

    def call(self) -> None:
        if self.fails:
            # Not for gradients: MindSpore itself goes on recording them after an exception, for the whole process.
            with pytest.raises(ValueError, match="the user's"):
                self.model(batch(self.backend))
        else:
            self.backend.run(self.model, batch(self.backend, requires_grad=True))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_failed_calls_leave_the_next_step_as_if_they_had_not_been(runs: Any, backend: Any, level: str) -> None:
    failing, debugger = Failing(backend), runs.new(level=level)
    for fails in (False, True, False):
        failing.fails = fails
        debugger.start(failing.model)
        for _ in range(5 if fails else 1):
            failing.call()
        debugger.stop()
        debugger.step()
    expected, after = runs.read(0), runs.read(2)
    assert after.tree == expected.tree and after.data == expected.data
    root, relu = backend.root, backend.classes["relu"]
    assert after.tree[f"{root}.bad.Bad.forward.0"] is None and after.tree[f"{root}.last.{relu}.forward.0"] is None
    assert len(runs.read(1).forward) >= 10
    assert backend.traces_left(failing.model) == []


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_calls_after_failed_ones_in_the_same_step_are_outside_of_them(runs: Any, backend: Any, level: str) -> None:
    failing, debugger = Failing(backend), runs.new(level=level)
    debugger.start(failing.model)
    for _ in range(5):
        failing.call()
    failing.fails = False
    failing.call()
    debugger.stop()
    dump, root, relu = runs.read(), backend.root, backend.classes["relu"]
    bad = [f"{root}.bad.Bad.forward.{number}" for number in range(6)]
    assert [dump.tree[name] for name in bad] == [None] * 6
    assert [dump.tree[f"{root}.bad.act.{relu}.forward.{number}"] for number in range(6)] == bad
    # A call that raised has one output, which is null, or none where the end of such a call cannot be seen.
    assert all(dump.data[name].get("output") in (None, [None]) for name in bad[:5])
    assert dump.data[bad[5]]["output"][0]["Max"] == 14.0
    assert dump.tree[f"{root}.last.{relu}.forward.0"] is None


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_traceback_of_an_error_is_the_users(runs: Any, backend: Any, level: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.act(x) @ x  # these shapes do not fit

    inner = backend.module("Bad", forward, act=backend.relu())
    model = backend.module("Net", chain("bad"), bad=inner)

    def error() -> Any:
        # MindSpore computes in the background, and raises when the result is looked at.
        with pytest.raises(Exception) as raised:
            backend.numpy(model(batch(backend)))
        return raised.value

    expected, debugger = error(), runs.new(level=level)
    debugger.start(model)
    found = error()
    debugger.stop()
    assert type(found) is type(expected) and str(found) == str(expected)
    frames = traceback.extract_tb(found.__traceback__)
    own = [frame.name for frame in frames if Path(frame.filename).is_relative_to(ROOT)]
    # Before 3.11 Python enters the frame that raises an error again once more.
    assert len(own) <= (sys.version_info < (3, 11))
    if level != "L0":
        # The tool waits for each result, so the line is that of the call.
        assert "self.act(x) @ x" in [frame.line.partition("return ")[2].partition("  #")[0] for frame in frames]


def collect_one_pass_that_fails(runs: Any, backend: Any) -> Any:
    failing, debugger = Failing(backend), runs.new(level="L0")
    debugger.start(failing.model, token_range=[0, 0])
    failing.call()
    failing.fails = False
    for _ in range(3):
        failing.call()
    debugger.stop()
    return runs.read()


def test_a_failed_call_does_not_take_the_output_of_a_later_pass(runs: Any, backend: Any) -> None:
    dump = collect_one_pass_that_fails(runs, backend)
    record = dump.data[f"{backend.root}.bad.Bad.forward.0"]
    assert record["input_args"][0]["Max"] == 2.0 and record.get("output") in (None, [None])


def test_a_pass_that_fails_counts_for_token_range(runs: Any, backend: Any) -> None:
    dump, relu = collect_one_pass_that_fails(runs, backend), backend.classes["relu"]
    assert sorted(dump.names) == [
        f"{backend.root}.bad.Bad.forward.0", f"{backend.root}.bad.act.{relu}.forward.0"
    ]  # fmt: skip
