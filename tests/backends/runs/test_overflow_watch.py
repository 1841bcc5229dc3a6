"""Task ``overflow_check``: a step with a value that is not finite is written, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dumped
import numpy as np
import pytest
from programs import batch

from probe.api import cli
from probe.collect.sinks.ring.step_ring import Judgement, StepRing

STEPS, PLANTED = 6, 3
LEVELS = ("L0", "L1", "mix")


class Program:
    """A training step with a module whose second product is beyond float32 where `factor` is large."""

    def __init__(self, backend: Any) -> None:
        self.factor = 1.0

        def square(module: Any, x: Any) -> Any:
            return x * self.factor * self.factor

        def forward(net: Any, x: Any) -> Any:
            return net.last(net.square(net.first(x)))

        weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
        self._backend = backend
        self.model = backend.module(
            "Net", forward, first=backend.linear(weight, np.ones(4, np.float32)),
            square=backend.module("Square", square), last=backend.linear(weight[:2], np.ones(2, np.float32)),
        )  # fmt: skip

    def step(self, debugger: Any, factor: float = 1.0, **numbers: Any) -> None:
        self.factor = factor
        debugger.start(self.model)
        self._backend.run(self.model, batch(self._backend), model=self.model)
        debugger.stop()
        debugger.step(**numbers)


@pytest.fixture
def program(backend: Any) -> Program:
    return Program(backend)


def first_record(backend: Any, level: str) -> str:
    name = f"{backend.root}.square.Square.forward.0"
    return name if level == "L0" else f"{backend.apis['multiply'].base}.1.forward"


def watching(runs: Any, **settings: Any) -> Any:
    return runs.new(task="overflow_check", **settings)


def findings(folder: Path, output: Path) -> list[dict[str, Any]]:
    """What the command says of a step."""
    assert cli.main(["overflow_check", "-i", str(folder), "-o", str(output)]) == 1
    report = json.loads((output / "overflow_report.json").read_text(encoding="utf-8"))
    return [finding for finding in report["steps"][0]["findings"] if finding["is_first"]]


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_the_step_is_written_in_which_a_value_is_not_finite(
    runs: Any, backend: Any, program: Program, level: str, tmp_path: Path, capsys: Any
) -> None:
    debugger = watching(runs, level=level)
    for step in range(STEPS):
        assert runs.path.exists() == (step > PLANTED), "without such a value there is no folder"
        program.step(debugger, 1e30 if step == PLANTED else 1.0, loss=0.5, grad_norm=1.0)
    assert dumped.folders(runs.path) == [f"step{PLANTED}/procN"]
    dump = runs.read(PLANTED)
    assert dump.head["task"] == "statistics" and not dump.journals and len(dump.stacks) > 0
    planted = first_record(backend, level)
    assert f"step {PLANTED}: {planted} is the first record" in capsys.readouterr().err
    assert [finding["record"] for finding in findings(runs.path / f"step{PLANTED}", tmp_path / "o")] == [planted]


@pytest.mark.parametrize("level", LEVELS)
def test_the_records_are_those_of_task_statistics(runs: Any, program: Program, level: str, tmp_path: Path) -> None:
    program.step(watching(runs, level=level), 1e30)
    watched = runs.read()
    runs.end()
    program.step(runs.new(dump_path=tmp_path / "other", level=level), 1e30)
    other = dumped.read(tmp_path / "other")
    # The watch records functions that are in no list, too.
    listed = {name: record for name, record in watched.data.items() if name in other.data}
    # As texts, in which a NaN equals itself.
    assert json.dumps(listed) == json.dumps(other.data)
    assert {name: parent for name, parent in watched.tree.items() if name in other.tree} == other.tree
    stacked = [[name for name in names if name in other.data] for names, _ in watched.stacks.values()]
    assert list(filter(None, stacked)) == [names for names, _ in other.stacks.values()]


@pytest.mark.parametrize(
    ("settings", "bad", "written"),
    [
        ({"overflow_nums": 1}, (2, 4, 5), [2]),
        ({"overflow_nums": 2}, (2, 4, 5), [2, 4]),
        ({"overflow_nums": -1}, (2, 4, 5), [2, 4, 5]),
        ({"step": [3, 4]}, range(7), [3]),
    ],
    ids=str,
)
def test_so_many_steps_are_written_of_those_that_are_watched(
    runs: Any, program: Program, settings: Any, bad: Any, written: list[int]
) -> None:
    debugger = watching(runs, **settings)
    for step in range(7):
        program.step(debugger, 1e30 if step in bad else 1.0)
    assert dumped.folders(runs.path) == [f"step{step}/procN" for step in written]


@pytest.mark.parametrize("bad", [1, 2, 5])
def test_several_steps_may_be_decided_on_at_once(runs: Any, program: Program, bad: int) -> None:
    debugger = watching(runs, every=4)
    for step in range(7):
        program.step(debugger, 1e30 if step == bad else 1.0)
        assert dumped.folders(runs.path) == ([f"step{bad}/procN"] if step >= 3 > bad else [])
    runs.end()
    assert dumped.folders(runs.path) == [f"step{bad}/procN"]


def test_a_step_that_the_program_does_not_end_is_decided_on_too(runs: Any, backend: Any, program: Program) -> None:
    debugger = watching(runs)
    program.factor = 1e30
    debugger.start(program.model)
    backend.run(program.model, batch(backend), model=program.model)
    runs.end()
    assert dumped.folders(runs.path) == ["step0/procN"]


@pytest.mark.parametrize("bad", [0, 5, 19])
def test_the_records_around_the_first_one_are_kept(runs: Any, backend: Any, bad: int) -> None:
    names = [f"part{number}" for number in range(20)]
    factors = [1e30 if number == bad else 1.0 for number in range(20)]

    def part(factor: float) -> Any:
        return backend.module("Part", lambda self, x: x * factor * factor)

    def forward(self: Any, x: Any) -> Any:
        for name in names:
            x = getattr(self, name)(x)
        return x

    children = {name: part(factor) for name, factor in zip(names, factors)}
    model = backend.module("Net", forward, **children)
    debugger = watching(runs, level="L0", ring=8)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    debugger.step()
    dump = runs.read()
    assert f"{backend.root}.part{bad}.Part.forward.0" in dump.names
    assert 4 <= len(dump.names) <= 12


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"loss": float("nan")}, "the loss is nan"),
        ({"grad_norm": float("inf")}, "the gradient norm is inf"),
        ({"loss": 1.0, "grad_norm": 50.0}, "deviations above the median"),
    ],
)
def test_numbers_of_the_program_make_a_step_be_written(
    runs: Any, program: Program, numbers: Any, reason: str, capsys: Any
) -> None:
    debugger = watching(runs, max_gradient_norm_score=6)
    for step in range(16):
        program.step(debugger, loss=1.0, grad_norm=1.0 + step % 3 / 10)
    program.step(debugger, **numbers)
    program.step(debugger)
    assert dumped.folders(runs.path) == ["step16/procN"]
    assert reason in capsys.readouterr().err


def test_the_loss_may_be_a_tensor_and_other_tasks_say_that_they_have_no_use_for_it(
    runs: Any, backend: Any, program: Program, capsys: Any
) -> None:
    debugger = watching(runs)
    program.step(debugger, loss=backend.tensor(np.array(1.0, np.float32), requires_grad=True))
    program.step(debugger, loss=backend.tensor(np.array(np.nan, np.float32), requires_grad=True))
    assert dumped.folders(runs.path) == ["step1/procN"]
    runs.end()
    debugger = runs.new(dump_path=runs.path / "other", level="L0")
    program.step(debugger, loss=float("nan"))
    program.step(debugger, grad_norm=1.0)
    assert capsys.readouterr().err.count('task "statistics" ignores them') == 1
    assert dumped.folders(runs.path / "other") == ["step0/procN", "step1/procN"]


@pytest.mark.parametrize("keep", ["batch", "batch+params"])
def test_a_step_is_run_again_or_it_is_said_that_it_cannot_be(
    runs: Any, backend: Any, program: Program, keep: str, capsys: Any
) -> None:
    debugger = watching(runs, level="mix", replay_step=True, keep=keep)
    for step in range(4):
        program.step(debugger, 1e30 if step == 2 else 1.0)
    planted = first_record(backend, "mix")
    assert planted in runs.read(2).names
    out = capsys.readouterr().err
    if backend.name == "torch":
        assert planted in dumped.read(runs.path / "replay", 2).names
        assert "step 2 was run again" in out
    else:
        assert dumped.folders(runs.path) == ["step2/procN"]
        assert out.count('"replay_step" has no effect with') == 1


def test_a_failure_of_the_watch_does_not_stop_the_training(
    runs: Any, program: Program, monkeypatch: Any, capsys: Any
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    runs.errors_expected = True
    debugger = watching(runs, overflow_nums=2)
    with monkeypatch.context() as broken:
        broken.setattr(Judgement, "look_at", fail)
        program.step(debugger, 1e30)
    assert "OSError: no space left" in capsys.readouterr().err
    program.step(debugger, 1e30)
    assert dumped.folders(runs.path) == ["step1/procN"]
    capsys.readouterr()
    monkeypatch.setattr(StepRing, "write", fail)
    program.step(debugger, 1e30)
    output = capsys.readouterr().err
    assert "cannot be written to" in output and "OSError: no space left" in output
    assert "records are in" not in output


KILLED = """
import os, signal, sys
import numpy as np
from probe.common.dump.journal import JournalWriter
factor = 1e30
model = backend.module("Net", lambda self, x: self.b(self.a(x)),
    a=backend.module("A", lambda self, x: x * factor * factor), b=backend.module("B", lambda self, x: x * 2.0))
debugger = PrecisionDebugger("config.json")
record, left = JournalWriter.record, [2]
def killed(self, *args):
    record(self, *args)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
JournalWriter.record = killed
debugger.start(model)
model(backend.tensor(np.ones((2, 2), np.float32)))
debugger.step()
"""


def test_a_kill_while_it_is_written_leaves_a_journal(runs: Any, backend: Any, tmp_path: Path) -> None:
    runs.write_config(task="overflow_check", level="mix")
    backend.run_script(KILLED, cwd=tmp_path, code=-9)
    (folder,) = (runs.path / "step0").iterdir()
    assert (folder / "dump.json").exists() and list(folder.glob("*journal*"))
    assert cli.main(["recover", str(folder)]) == 0
    dump = runs.read()
    assert len(dump.names) == 2
    planted = f"{backend.apis['multiply'].base}.1.forward"
    assert [finding["record"] for finding in findings(folder, tmp_path / "o")] == [planted]
