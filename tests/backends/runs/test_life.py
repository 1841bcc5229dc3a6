"""start, stop and step in every order, and programs that go wrong."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import time
import types
from pathlib import Path
from typing import Any

import dumped
import numpy as np
import pytest
from programs import BATCH, WEIGHT1, WEIGHT2, Names, batch, block_network, chain, values

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


def test_stop_writes_what_there_is_and_step_what_came_later(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L0"), block_network(backend)
    seen = []

    def stop() -> None:
        debugger.stop()
        seen.append(len(runs.read().names))

    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True), between=stop)
    debugger.step()
    assert seen == [4] and len(runs.read().names) == 10


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


def test_stop_and_step_without_start_do_nothing(runs: Any, backend: Any) -> None:
    debugger = runs.new()
    debugger.stop()
    debugger.step()
    debugger.step()
    debugger.start()
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    assert dumped.folders(runs.path) == ["step2/procN"]


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


def test_the_files_stand_there_from_start_on(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="mix", task="tensor")
    debugger.start(block_network(backend))
    dump = runs.read()
    assert (dump.data, dump.tree, dump.stacks) == ({}, {}, {}) and dump.files == []
    debugger.stop()


def test_nothing_but_the_files_is_left_after_step(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    debugger.step()
    assert sorted(os.listdir(runs.read().folder)) == ["construct.json", "dump.json", "stack.json"]


def test_a_second_constructor_call_returns_the_first_instance(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="L0")
    cls = type(debugger)
    assert cls(level="no level at all", dump_path=5) is debugger
    assert debugger.session().config.level == "L0"


def test_a_second_constructor_call_names_what_it_ignores(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = runs.new(level="mix", step=[0, 2, 3])
    cls, config = type(debugger), str(runs.config)
    capsys.readouterr()
    for equal in ({}, {"config_path": config}, {"level": "mix"}, {"step": [0, "2-3"], "dump_path": str(runs.path)}):
        assert cls(**equal) is debugger
    assert "ignored" not in capsys.readouterr().err
    cls("other.json", task="tensor", dump_path="./other", level="mix", step=["7-9"])
    cls(level=3, step=4)
    first, second = [line.partition("[WARNING] ")[2] for line in capsys.readouterr().err.splitlines()]
    exists = "A PrecisionDebugger exists already, so these arguments are ignored: "
    room = "PrecisionDebugger.reset() makes room for a new one."
    assert first == (
        f'{exists}config_path is "other.json" (in use: "{config}"), task is "tensor" (in use: "statistics"), dump_path '
        f'is "./other" (in use: "{runs.path}"), step is 7-9 (in use: 0, 2-3). {room}'
    )
    assert second == f'{exists}level is 3 (in use: "mix"), step is 4 (in use: 0, 2-3). {room}'


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


def test_calls_on_the_class_serve_the_instance(runs: Any, backend: Any) -> None:
    cls = type(runs.new())
    cls.set_init_step(3)
    cls.start()
    backend.apis["abs"].call(batch(backend))
    cls.stop()
    cls.step()
    assert runs.read(3).names == [f"{backend.apis['abs'].base}.0.forward"]


def test_without_an_instance_there_is_an_error(backend: Any) -> None:
    with pytest.raises(MsprobeException, match="create one before"):
        backend.new_debugger_class().start()


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


# --- programs that go wrong


def test_an_exception_in_an_api_leaves_later_records_alone(runs: Any, backend: Any) -> None:
    debugger, x = runs.new(), batch(backend)
    matmul, absolute = backend.apis["matmul"], backend.apis["abs"]
    debugger.start()
    with pytest.raises(Exception, match=r"."):
        matmul.call(x, x)
    absolute.call(x)
    matmul.call(x, backend.transposed(x))
    debugger.stop()
    dump = runs.read()
    assert dump.names == [f"{matmul.base}.0.forward", f"{absolute.base}.0.forward", f"{matmul.base}.1.forward"]
    assert set(dump.data[dump.names[0]]) == {"input_args", "input_kwargs"}, "the failed call has no output"
    assert set(dump.data[dump.names[1]]) == {"input_args", "input_kwargs", "output"}


class Failed(Exception):
    pass


def failing_network(backend: Any) -> Any:
    """``Net(outer(bad), last)``: `bad` raises in its forward, which the model survives."""

    def bad(self: Any, x: Any) -> Any:
        self.fc(x)
        raise Failed("bad")

    def forward(self: Any, x: Any) -> Any:
        try:
            self.outer(x)
        except Failed:
            pass
        return self.last(x)

    inner = backend.module("Bad", bad, fc=backend.linear(WEIGHT1, np.zeros(3, np.float32)))
    outer = backend.module("Outer", chain("bad"), bad=inner)
    return backend.module("Net", forward, outer=outer, last=backend.linear(WEIGHT1, np.zeros(3, np.float32)))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_exception_in_a_module_leaves_the_tree_intact(runs: Any, backend: Any, level: str) -> None:
    debugger, model = runs.new(level=level), failing_network(backend)
    root, linear = backend.root, backend.classes["linear"]
    debugger.start(model)
    for _ in range(2):
        backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    tree = runs.read().tree
    for n in range(2):
        outer = f"{root}.outer.Outer.forward.{n}"
        assert tree[outer] is None
        assert tree[f"{root}.outer.bad.Bad.forward.{n}"] == outer
        assert tree[f"{root}.outer.bad.fc.{linear}.forward.{n}"] == f"{root}.outer.bad.Bad.forward.{n}"
        assert tree[f"{root}.last.{linear}.forward.{n}"] is None
    names = runs.read().names
    assert f"{root}.last.{linear}.backward.1" in names and not [n for n in names if "Bad.backward" in n]
    assert backend.traces_left(model) == []


def test_an_exception_reaches_the_caller_as_it_was_raised(runs: Any, backend: Any) -> None:
    original = Failed("mine")

    def bad(self: Any, x: Any) -> Any:
        raise original

    model = backend.module("Net", chain("bad"), bad=backend.module("Bad", bad))
    debugger = runs.new(level="mix")
    debugger.start(model)
    with pytest.raises(Failed) as caught:
        model(batch(backend))
    debugger.stop()
    assert caught.value is original and caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_whose_exception_is_caught_in_the_one_around_it_keeps_its_inputs(
    runs: Any, backend: Any, level: str, kind: type[BaseException]
) -> None:
    def bad(self: Any, x: Any) -> Any:
        raise kind

    def careful(self: Any, x: Any) -> Any:
        try:
            self.bad(x)
        except kind:
            pass
        return x

    careful_one = backend.module("Careful", careful, bad=backend.module("Bad", bad))
    debugger = runs.new(level=level)
    model = backend.module("Net", chain("careful"), careful=careful_one)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    dump = runs.read()
    outer, inner = f"{backend.root}.careful.Careful.forward.0", f"{backend.root}.careful.bad.Bad.forward.0"
    assert dump.tree[inner] == outer and dump.stack_of(inner)
    assert dump.data[inner]["input_args"] == dump.data[outer]["input_args"] and dump.data[outer]["output"][0]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_call_can_be_followed_by_another_run(runs: Any, backend: Any, kind: type[BaseException]) -> None:
    calls = [0]

    def sometimes(self: Any, x: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise kind
        return self.fc(x)

    fc = backend.linear(WEIGHT1, np.zeros(3, np.float32))
    model = backend.module("Net", chain("inner"), inner=backend.module("Inner", sometimes, fc=fc))
    debugger = runs.new(level="mix")
    debugger.start(model)
    with pytest.raises(kind):
        model(batch(backend))
    model(batch(backend))
    debugger.stop()
    tree = runs.read().tree
    inner = f"{backend.root}.inner.Inner.forward"
    assert tree[f"{inner}.0"] is None and tree[f"{inner}.1"] is None
    assert tree[f"{backend.root}.inner.fc.{backend.classes['linear']}.forward.0"] == f"{inner}.1"


def test_stop_inside_a_module_ends_collection_there(runs: Any, backend: Any) -> None:
    names = Names(backend)
    debugger = runs.new(level="mix")

    def forward(self: Any, x: Any) -> Any:
        x = self.first(x)
        debugger.stop()
        return self.second(x)

    eye = np.eye(4, dtype=np.float32)
    first, second = (backend.linear(eye, np.zeros(4, np.float32)) for _ in range(2))
    model = backend.module("Net", chain("body"), body=backend.module("Block", forward, first=first, second=second))
    debugger.start(model)
    assert np.array_equal(backend.numpy(model(batch(backend))), BATCH)
    debugger.step()
    assert backend.traces_left(model) == []
    dump = runs.read()
    assert f"{backend.root}.body.first.{backend.classes['linear']}.forward.0" in dump.names
    assert not [name for name in dump.names if "second" in name]
    assert f"{names.body}.forward.0" in dump.tree, "it is the parent of what ran in it"
    assert set(dump.data[f"{names.body}.forward.0"]) == {"input_args", "input_kwargs"}


def test_start_inside_a_module_begins_collection_there(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="mix")

    def forward(self: Any, x: Any) -> Any:
        x = self.first(x)
        debugger.start(model)
        return self.second(x)

    eye = np.eye(4, dtype=np.float32)
    first, second = (backend.linear(eye, np.zeros(4, np.float32)) for _ in range(2))
    model = backend.module("Net", chain("body"), body=backend.module("Block", forward, first=first, second=second))
    model(batch(backend))
    debugger.stop()
    base = f"{backend.root}.body.second.{backend.classes['linear']}"
    assert runs.read().forward == [f"{backend.apis['linear'].base}.0.forward", f"{base}.forward.0"]
    assert runs.read().tree[f"{base}.forward.0"] is None


# --- several models


def test_another_model_in_a_later_start_has_the_names(runs: Any, backend: Any) -> None:
    debugger, first = runs.new(level="L0"), block_network(backend)
    second = backend.module("Other", chain("only"), only=first)
    names, linear = Names(backend), backend.classes["linear"]
    debugger.start(first)
    first(batch(backend))
    debugger.stop()
    debugger.step()
    debugger.start(second)
    second(batch(backend))
    debugger.stop()
    debugger.step()
    assert runs.read(0).names[0] == f"{names.fc}.forward.0"
    assert runs.read(1).names == [
        f"{backend.root}.only.body.fc.{linear}.forward.0",
        f"{backend.root}.only.body.act.{backend.classes['relu']}.forward.0",
        f"{backend.root}.only.body.Block.forward.0",
        f"{backend.root}.only.head.{linear}.forward.0",
        f"{backend.root}.only.Net.forward.0",
    ]
    assert backend.traces_left(second) == []


def test_another_model_in_the_same_step_counts_for_itself(runs: Any, backend: Any) -> None:
    debugger, names = runs.new(level="L0"), Names(backend)
    first, second = block_network(backend), block_network(backend)
    for model in (first, second):
        debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True))
        debugger.stop()
    dump = runs.read()
    assert [name for name in dump.forward if name.startswith(names.fc)] == [f"{names.fc}.forward.{n}" for n in (0, 1)]
    assert [name for name in dump.backward if name.startswith(names.fc)] == [f"{names.fc}.backward.{n}" for n in (0, 1)]
    assert f"{names.fc}.parameters_grad.1" in dump.names


def test_a_module_that_was_exchanged_between_steps_is_seen(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    for _ in range(2):
        debugger.start(model)
        model(batch(backend))
        debugger.stop()
        debugger.step()
        model.head = backend.relu()
    assert runs.read(0).names[-1] == f"{names.head}.forward.0"
    assert runs.read(1).names[-1] == f"{backend.root}.head.{backend.classes['relu']}.forward.0"


# --- modules with other results than one tensor


def outputs(backend: Any, form: str) -> Any:
    if form == "namedtuple":
        kind = collections.namedtuple("Pair", ["left", "right"])
        return lambda a, b: kind(a, b), lambda out: out.left + out.right
    if form == "dataclass":
        made = dataclasses.make_dataclass("Result", ["left", "right"])
        return lambda a, b: made(a, b), lambda out: out.left + out.right
    if form == "dict":
        return lambda a, b: {"left": a, "right": b}, lambda out: out["left"] + out["right"]
    return (lambda a, b: [a, b]) if form == "list" else (lambda a, b: (a, b)), lambda out: out[0] + out[1]


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "namedtuple", "dataclass"])
def test_a_module_may_return_any_container(runs: Any, backend: Any, form: str) -> None:
    make, use = outputs(backend, form)
    fork = backend.module("Fork", lambda self, x: make(x * 2, x * 3))
    model = backend.module("Net", lambda self, x: use(self.fork(x)), fork=fork)
    debugger = runs.new(level="L0")
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    assert outcome.output == pytest.approx(BATCH * 5)
    data = runs.read().data
    base = f"{backend.root}.fork.Fork"
    given = data[f"{base}.forward.0"]["output"]
    if form in ("dict", "dataclass") or (form == "list" and backend.list_is_one_output):
        (given,) = given
    left, right = given if isinstance(given, list) else (given["left"], given["right"])
    assert (left["Max"], right["Max"]) == (4.0, 6.0)
    backward = data[f"{base}.backward.0"]
    assert [entry["Max"] for entry in backward["input"]] == [1.0, 1.0]
    assert [entry["Max"] for entry in backward["output"]] == [5.0]


def test_an_inplace_module_keeps_its_backward_and_that_of_the_one_before(runs: Any, backend: Any) -> None:
    fc = backend.linear(WEIGHT1, np.zeros(3, np.float32))
    model = backend.module("Net", chain("fc", "act"), fc=fc, act=backend.inplace_relu())
    debugger = runs.new(level="L0")
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    hidden = BATCH @ WEIGHT1.T
    root, linear, relu = backend.root, backend.classes["linear"], backend.classes["relu"]
    assert dump.backward == [f"{root}.act.{relu}.backward.0", f"{root}.fc.{linear}.backward.0"]
    forward = dump.data[f"{root}.act.{relu}.forward.0"]
    assert forward["input_args"][0]["Min"] == pytest.approx(hidden.min(), rel=1e-5)
    assert forward["output"][0]["Min"] == 0.0
    before = dump.data[f"{root}.fc.{linear}.backward.0"]
    mask = (hidden > 0).astype(np.float64)
    assert before["input"][0]["Norm"] == pytest.approx(np.linalg.norm(mask))
    assert before["output"][0]["Norm"] == pytest.approx(np.linalg.norm(mask @ WEIGHT1), rel=1e-5)
    assert outcome.inputs[0] == pytest.approx(mask @ WEIGHT1, rel=1e-5)


def test_gradients_of_keyword_inputs_follow_those_of_positional_ones(runs: Any, backend: Any) -> None:
    def forward(self: Any, x: Any, *, scale: Any) -> Any:
        return x * scale

    model = backend.module("Net", lambda self, x, y: self.inner(x, scale=y), inner=backend.module("Scale", forward))
    debugger = runs.new(level="L0")
    debugger.start(model)
    left, right = np.full((2, 2), 2.0, np.float32), np.full((2, 2), 7.0, np.float32)
    backend.run(model, backend.tensor(left, requires_grad=True), backend.tensor(right, requires_grad=True))
    debugger.stop()
    record = runs.read().data[f"{backend.root}.inner.Scale.backward.0"]
    assert [entry["Max"] for entry in record["output"]] == [7.0, 2.0]


# --- module_dump


def test_module_dump_shows_one_module_and_hides_apis(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L1"), block_network(backend)
    absolute, x = backend.apis["abs"], batch(backend)
    debugger.start()
    absolute.call(x)
    debugger.session().module_dump(model.body, "trunk")
    backend.run(model, batch(backend, requires_grad=True))
    absolute.call(x)
    debugger.session().module_dump_end()
    absolute.call(x)
    debugger.stop()
    base = f"{backend.root}.trunk.Block"
    dump = runs.read()
    assert dump.names == [
        f"{absolute.base}.0.forward",
        f"{base}.forward.0",
        f"{base}.backward.0",
        f"{absolute.base}.1.forward",
    ]
    (hidden, middle, _), taken = values(), dump.data[f"{base}.backward.0"]
    assert dump.data[f"{base}.forward.0"]["output"][0]["Norm"] == pytest.approx(np.linalg.norm(middle), rel=1e-5)
    given = np.ones((5, 2)) @ WEIGHT2
    assert taken["input"][0]["Norm"] == pytest.approx(np.linalg.norm(given), rel=1e-5)
    assert taken["output"][0]["Norm"] == pytest.approx(np.linalg.norm((given * (hidden > 0)) @ WEIGHT1), rel=1e-5)
    debugger.step()
    assert backend.traces_left(model) == []


@pytest.mark.parametrize(("module", "name"), [(None, "x"), (3, "x"), ("model", ""), ("model", 5)])
def test_module_dump_refuses_wrong_arguments(runs: Any, backend: Any, module: Any, name: Any) -> None:
    debugger = runs.new(level="L1")
    debugger.start()
    with pytest.raises(MsprobeException, match="module_dump: "):
        debugger.session().module_dump(backend.relu() if module == "model" else module, name)


# --- dump_enable


def test_dump_enable_switches_collection_while_running(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    debugger = runs.new(dump_enable=False)
    absolute = backend.apis["abs"]

    def step() -> None:
        debugger.start()
        absolute.call(batch(backend))
        debugger.stop()
        debugger.step()
        now[0] += 10

    step()
    runs.write_config(dump_enable=True, **{"list": [absolute.base]})
    step()
    step()
    runs.write_config(dump_enable=False)
    step()
    step()
    runs.config.write_text("{ no json")
    step()
    assert "step0/procN" not in dumped.folders(runs.path)
    assert "step2/procN" in dumped.folders(runs.path) and "step4/procN" not in dumped.folders(runs.path)
    assert runs.read(2).names == [f"{absolute.base}.0.forward"]


def test_without_dump_enable_the_file_is_not_read_again(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    debugger = runs.new()
    for _ in range(2):
        debugger.start()
        backend.apis["abs"].call(batch(backend))
        debugger.stop()
        debugger.step()
        now[0] += 100
        runs.config.write_text(json.dumps({"dump_enable": False, "dump_path": str(runs.path), "level": "L0"}))
    assert dumped.folders(runs.path) == ["step0/procN", "step1/procN"]


# --- whole processes


def test_a_process_that_ends_without_stop_leaves_complete_files(backend: Any, tmp_path: Any) -> None:
    source = (
        "import numpy as np\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r})\n"
        "debugger.start()\n"
        "backend.apis['abs'].call(backend.tensor(np.ones(3)))\n"
    )
    backend.run_script(source, cwd=tmp_path)
    dump = dumped.read(tmp_path / "dump")
    assert dump.names == [f"{backend.apis['abs'].base}.0.forward"] and dump.journals == []
    assert dump.data[dump.names[0]]["output"][0]["Max"] == 1.0


def test_a_killed_process_leaves_its_journal(backend: Any, tmp_path: Any) -> None:
    source = (
        "import os, signal, numpy as np\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r})\n"
        "debugger.start()\n"
        "backend.apis['abs'].call(backend.tensor(np.ones(3)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    backend.run_script(source, cwd=tmp_path, code=-9)
    folder = dumped.read(tmp_path / "dump").folder
    assert dumped.read(tmp_path / "dump").names == []
    json_files.write(str(folder))
    assert dumped.read(tmp_path / "dump").names == [f"{backend.apis['abs'].base}.0.forward"]


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
