"""start, stop and step in every order, and processes that end early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import types
from pathlib import Path
from typing import Any

import dumped
import pytest
from programs import Failed, batch, block_network

from probe.common import clock
from probe.common.dump import json_files
from probe.common.errors import MsprobeException


def test_several_starts_in_one_step_go_on_counting_in_the_same_files(runs: Any, backend: Any) -> None:
    debugger, absolute, x = runs.new(), backend.apis["abs"], batch(backend)
    for number in range(3):
        debugger.start()
        absolute.call(x)
        debugger.stop()
        assert runs.read().names == [f"{absolute.base}.{n}.forward" for n in range(number + 1)]
    debugger.step()
    assert dumped.folders(runs.path) == ["step0/procN"]


def test_stop_before_backward_loses_no_gradient(runs: Any, backend: Any) -> None:
    dumps = []
    for name in ("before", "after"):
        path = runs.path / name
        debugger, model = runs.new(dump_path=path, level="mix"), block_network(backend)
        debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True), between=debugger.stop if name == "before" else None)
        debugger.stop()
        debugger.step()
        dumps.append(dumped.read(path))
    before, after = dumps
    assert before.names == after.names and len(after.backward) == 7 and len(after.parameter_gradients) == 2
    assert before.data == after.data and before.tree == after.tree


def test_gradients_of_a_step_that_is_over_are_not_taken(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)

    def next_step() -> None:
        debugger.stop()
        debugger.step()
        debugger.start(model)

    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True), between=next_step)
    debugger.stop()
    debugger.step()
    assert runs.read(0).backward == [] and len(runs.read(0).forward) == 7
    assert runs.read(1).backward == []
    assert outcome.inputs[0] is not None


def test_step_without_stop_ends_collection(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    before = backend.api_objects()
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.step()
    assert backend.traces_left(model) == []
    assert all(backend.api_objects()[name] is before[name] for name in before)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.step()
    assert dumped.folders(runs.path) == ["step0/procN"]
    assert len(runs.read().names) == 16


def test_start_twice_records_once(runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model)
    debugger.start(model)
    assert "start was called twice" in capsys.readouterr().err
    model(batch(backend))
    debugger.stop()
    assert len(runs.read().names) == 7
    debugger.step()
    assert backend.traces_left(model) == []


def test_the_files_stand_there_from_start_on_and_nothing_else_is_left_after_step(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix", task="tensor"), block_network(backend)
    debugger.start(model)
    dump = runs.read()
    assert (dump.data, dump.tree, dump.stacks) == ({}, {}, {}) and dump.files == []
    model(batch(backend))
    debugger.stop()
    debugger.step()
    left = ["construct.json", "dump.json", "dump_tensor_data", "sketch.npz", "stack.json"]
    assert sorted(os.listdir(runs.read().folder)) == left


def test_a_second_constructor_call_returns_the_first_instance_and_names_what_it_ignores(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = runs.new(level="mix", step=[0, 2, 3])
    cls, config = type(debugger), str(runs.config)
    capsys.readouterr()
    for equal in ({}, {"config_path": config}, {"level": "mix"}, {"step": [0, "2-3"], "dump_path": str(runs.path)}):
        assert cls(**equal) is debugger
    assert "ignored" not in capsys.readouterr().err
    assert cls("other.json", task="tensor", dump_path="./other", level="mix", step=["7-9"]) is debugger
    assert cls(level=3, step=4) is debugger and debugger.session().config.level == "mix"
    first, second = [line for line in capsys.readouterr().err.splitlines() if "ignored" in line]
    # Of a long path the message has the end.
    paths = f'{config[-16:]}"', f'{str(runs.path)[-8:]}"'
    for text in ('"other.json"', *paths, 'task is "tensor" (in use: "statistics")', "7-9"):
        assert text in first and text not in second
    assert "level is" not in first and 'level is 3 (in use: "mix")' in second and "reset()" in second


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("ended_inside", ["nothing", "stop", "step"])
def test_leaving_a_with_block_ends_the_step(runs: Any, backend: Any, raises: bool, ended_inside: str) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    before = backend.api_objects()
    for _ in range(2):
        with pytest.raises(Failed) if raises else contextlib.nullcontext(), debugger as entered:
            assert entered is debugger
            debugger.start(model)
            backend.run(model, batch(backend, requires_grad=True))
            if ended_inside != "nothing":
                getattr(debugger, ended_inside)()
            if raises:
                raise Failed
        assert backend.traces_left(model) == []
        assert all(backend.api_objects()[name] is before[name] for name in before)
    assert dumped.folders(runs.path) == ["step0/procN", "step1/procN"]
    for step in range(2):
        assert len(runs.read(step).names) == 16 and runs.read(step).journals == []


def test_a_with_block_in_which_no_step_began_ends_none(runs: Any, backend: Any) -> None:
    debugger = runs.new(step=[1])
    for begins in (False, True, False, True):
        with debugger:
            if begins:
                debugger.start()
                backend.apis["abs"].call(batch(backend))
    assert dumped.folders(runs.path) == ["step1/procN"]


def test_reset_puts_everything_back_and_a_new_debugger_takes_its_own_arguments(
    runs: Any, backend: Any, tmp_path: Path
) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    cls, owner = type(debugger), types.SimpleNamespace(twice=lambda x: x + x)
    original, before = owner.twice, backend.api_objects()
    cls.register_custom_api(owner, "twice", "Mine")
    debugger.start(model)
    output = model(batch(backend, requires_grad=True))
    for _ in range(2):
        cls.reset()
        assert backend.traces_left(model) == [] and owner.twice is original
        assert all(backend.api_objects()[name] is before[name] for name in before)
    first = runs.read()
    assert len(first.names) == 7 and first.journals == []
    with pytest.raises(MsprobeException, match="create one before"):
        debugger.start(model)
    other = cls(dump_path=str(tmp_path / "other"), level="L0", step=[0])
    assert other is not debugger and other.session().config.level == "L0"
    other.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    other.reset()
    del output
    assert len(dumped.read(tmp_path / "other").names) == 10
    assert runs.read().data == first.data, "the first one takes nothing any more"


def test_after_reset_the_end_of_the_program_and_its_forks_do_nothing_for_the_old_debugger(
    backend: Any, tmp_path: Path
) -> None:
    source = (
        "import os\n"
        "from programs import block_network, batch\n"
        "PrecisionDebugger.reset()\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r}, step=[0, 5])\n"
        "debugger.start(block_network(backend))\n"
        "PrecisionDebugger.reset()\n"
        "print('reset', flush=True)\n"
        "if not os.fork():\n"
        "    raise SystemExit\n"
        "os.wait()\n"
    )
    out = backend.run_script(source, cwd=tmp_path)
    assert out.count("start was never called") == 1 and out.endswith("reset\n")
    assert dumped.folders(tmp_path / "dump") == ["step0/procN"]


def test_arguments_of_the_constructor_win_over_the_file(runs: Any, backend: Any, tmp_path: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    arguments = {"level": "L0", "task": "tensor", "dump_path": str(elsewhere), "step": [0]}
    debugger, model = runs.new(arguments=arguments, level="L1", step=[5]), block_network(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    head = dumped.read(elsewhere).head
    assert (head["level"], head["task"]) == ("L0", "tensor")
    assert len(dumped.read(elsewhere).names) == 4 and not runs.path.exists()


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("model", [None, [], 3, "net", [None]])
def test_a_model_is_needed_where_modules_are_collected(runs: Any, level: str, model: Any) -> None:
    debugger = runs.new(level=level)
    with pytest.raises(MsprobeException, match=r"start: model is .* needs a module"):
        debugger.start(model)


# --- dump_enable


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: times[0])
    return times


def one_step(debugger: Any, backend: Any, now: list[float]) -> None:
    debugger.start()
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    now[0] += 100


def test_dump_enable_switches_collection_while_running(runs: Any, backend: Any, now: list[float]) -> None:
    debugger, base = runs.new(dump_enable=False), backend.apis["abs"].base
    one_step(debugger, backend, now)
    runs.write_config(dump_enable=True, **{"list": [base]})
    one_step(debugger, backend, now)
    one_step(debugger, backend, now)
    runs.write_config(dump_enable=False)
    one_step(debugger, backend, now)
    one_step(debugger, backend, now)
    runs.config.write_text("{ no json")
    one_step(debugger, backend, now)
    found = dumped.folders(runs.path)
    assert "step2/procN" in found and not {"step0/procN", "step4/procN", "step5/procN"} & set(found)
    assert runs.read(2).names == [f"{base}.0.forward"]


def test_without_dump_enable_the_file_is_not_read_again(runs: Any, backend: Any, now: list[float]) -> None:
    debugger = runs.new()
    for _ in range(2):
        one_step(debugger, backend, now)
        runs.config.write_text(json.dumps({"dump_enable": False, "dump_path": str(runs.path), "level": "L0"}))
    assert dumped.folders(runs.path) == ["step0/procN", "step1/procN"]


# --- whole processes


@pytest.mark.parametrize("killed", ["", "SIGTERM", "SIGKILL"])
def test_a_process_that_ends_without_stop_leaves_complete_files_and_a_killed_one_its_journal(
    backend: Any, tmp_path: Any, killed: str
) -> None:
    source = (
        "import os, signal, numpy as np\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r})\n"
        "debugger.start()\n"
        "backend.apis['abs'].call(backend.tensor(np.ones(3)))\n"
        + (f"os.kill(os.getpid(), signal.{killed})\n" if killed else "")
    )
    backend.run_script(source, cwd=tmp_path, code=-getattr(signal, killed) if killed else 0)
    dump = dumped.read(tmp_path / "dump")
    if killed:
        assert dump.names == []
        json_files.write(str(dump.folder))
        dump = dumped.read(tmp_path / "dump")
    assert dump.names == [f"{backend.apis['abs'].base}.0.forward"] and (killed or dump.journals == [])
    assert dump.data[dump.names[0]]["output"][0]["Max"] == 1.0


def test_public_functions_serve_the_one_debugger(backend: Any, tmp_path: Any) -> None:
    source = (
        "import numpy as np\n"
        "from programs import block_network, batch\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r})\n"
        "assert PrecisionDebugger() is debugger\n"
        "model = block_network(backend)\n"
        "PrecisionDebugger.start()\n"
        "module_dump(model, 'whole')\n"
        "model(batch(backend))\n"
        "module_dump_end()\n"
        "PrecisionDebugger.stop()\n"
    )
    out = backend.run_script(source, cwd=tmp_path)
    assert dumped.read(tmp_path / "dump").names == [f"{backend.root}.whole.Net.forward.0"]
    assert f"dump.json is at {dumped.read(tmp_path / 'dump').folder / 'dump.json'}." in out
