"""Sinks of somebody else: registered by the debugger, alone or beside a dump, they get what they say they need."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import dumped
import numpy as np
import pytest
from programs import batch, block_network

import probe
from probe.collect.sinks.journal.sink import JournalSink
from probe.collect.sinks.sink import Status
from probe.common.errors import MsprobeException

RECEIVES = ("enter", "leave", "backward", "record")


class CallCounter(probe.Sink):
    """Notes the calls of each step, and of their backward where that is wanted."""

    def __init__(self, *receives: str, **needs: bool) -> None:
        self.seen: list[str] = []
        self._receives = receives or ("enter", "leave")
        self._needs = needs

    def needs(self) -> probe.Needs:
        return probe.Needs(**{name: getattr(self, name) for name in self._receives}, **self._needs)

    def begin_step(self, step: Any) -> bool:
        self.seen.append(f"step {step.number}")
        return True

    def enter(self, call: Any, args: Any, kwargs: Any) -> None:
        self.seen.append(f"enter {call.name}")

    def leave(self, call: Any, output: Any) -> bool:
        self.seen.append(f"leave {call.name}")
        return True

    def backward(self, call: Any, grad_output: Any, grad_input: Any) -> None:
        self.seen.append(f"backward {call.base}.{call.number}")

    def record(self, call: Any, rule: int) -> None:
        self.seen.append(f"record {call.name} {sorted(call.fields)}")


class Broken(probe.Sink):
    def needs(self) -> probe.Needs:
        return probe.Needs(enter=self.enter, record=self.record, gradients=True)

    def enter(self, call: Any, args: Any, kwargs: Any) -> None:
        raise ZeroDivisionError("somebody else's")

    def record(self, call: Any, rule: int) -> None:
        raise ZeroDivisionError("somebody else's")

    def end_step(self) -> None:
        raise ZeroDivisionError("somebody else's")


def trained(backend: Any, debugger: Any | None, steps: int = 1) -> list[Any]:
    """What a training came to, bit by bit."""
    backend.seed(1)
    model = block_network(backend)
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True), model=model)
        if debugger is not None:
            debugger.stop()
            debugger.step()
    state = {name: value for name, value in backend.state(model).items() if value is not None}
    return [(name, np.asarray(value).tobytes()) for name, value in state.items()] + [backend.random_state()]


def alone_and_beside(runs: Any, backend: Any, sink: Any, steps: int = 1, **settings: Any) -> tuple[Any, Any]:
    """The dumps of the last step without a sink and beside it, whose training is the same and whose data is."""
    trained(backend, runs.new(dump_path=runs.path / "alone", **settings), steps)
    runs.end()
    debugger = runs.new(dump_path=runs.path / "beside", **settings)
    debugger.add_sink(sink)
    assert trained(backend, debugger, steps) == trained(backend, None, steps)
    runs.end()
    for step in range(steps):
        alone, beside = (dumped.read(runs.path / name, step) for name in ("alone", "beside"))
        assert json.dumps(beside.data) == json.dumps(alone.data) and beside.tree == alone.tree
    assert not list(runs.path.rglob("dump.journal")) and not list(runs.path.rglob("dump_error_info.log"))
    return alone, beside


def said_once(capsys: pytest.CaptureFixture[str], text: str, sink: str) -> None:
    lines = [line for line in capsys.readouterr().err.splitlines() if text in line]
    assert len(lines) == 1 and f"{sink}, " in lines[0]


def entered(sink: CallCounter) -> list[str]:
    return [text.removeprefix("enter ") for text in sink.seen if text.startswith("enter ")]


def test_a_sink_alone_sees_the_calls_and_nothing_is_written(runs: Any, backend: Any) -> None:
    sink = CallCounter("enter", "leave", "backward")
    assert trained(backend, runs.new(level="L1", arguments={"sinks": [sink]}), steps=2) == trained(
        backend, None, steps=2
    )
    runs.end()
    assert [text for text in sink.seen if text.startswith("step")] == ["step 0", "step 1"]
    calls = entered(sink)
    left = [text.removeprefix("leave ") for text in sink.seen if text.startswith("leave ")]
    assert len(calls) >= 3 and left == calls
    assert any(text.startswith("backward") for text in sink.seen)
    assert not runs.path.exists()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("settings", [{"task": "statistics"}, {"task": "structure"}, {"extra_info": False}], ids=str)
def test_a_dump_beside_it_is_what_it_is_without(runs: Any, backend: Any, level: str, settings: Any) -> None:
    sink = CallCounter(*RECEIVES, gradients=True, statistics=True, stacks=True, nonfinite=True)
    dumps = alone_and_beside(runs, backend, sink, level=level, **settings)
    stacks = [dump.stacks and [names for names, _ in dump.stacks.values()] for dump in dumps]
    assert stacks[0] == stacks[1]
    records = [text for text in sink.seen if text.startswith("record") and "forward" in text]
    assert records and all("output" in text for text in records)
    if dumps[0].data and level == "L1":
        assert entered(sink) == [name for name in dumps[0].names if name.endswith("forward")]


def test_without_a_need_for_gradients_no_backward_is_reported(runs: Any, backend: Any) -> None:
    sink = CallCounter("enter", "leave", "record", statistics=True)
    trained(backend, runs.new(level="mix", arguments={"sinks": [sink]}))
    assert entered(sink) and not [text for text in sink.seen if "backward" in text]


def test_a_sink_that_fails_reaches_neither_the_dump_nor_the_training(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    alone_and_beside(runs, backend, Broken(), level="mix")
    said_once(capsys, "ZeroDivisionError", "Broken")


@pytest.mark.parametrize("unmade", [0, 1])
def test_a_dump_without_a_folder_saves_nothing_while_another_sink_takes_the_step(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, unmade: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.errors_expected = True
    new_folder = JournalSink.new_folder

    def full(self: JournalSink, step: Any) -> Any:
        if step.number == unmade:
            raise OSError(28, "No space left on device")
        return new_folder(self, step)

    monkeypatch.setattr(JournalSink, "new_folder", full)
    debugger, other = runs.new(level="L1", task="tensor"), CallCounter("record", statistics=True)
    debugger.add_sink(other)
    absolute = backend.apis["abs"]
    for step in range(2):
        debugger.start()
        absolute.call(backend.tensor(np.full((2, 2), step + 1, np.float32)))
        debugger.stop()
        debugger.step()
    runs.end()
    assert len([text for text in other.seen if text.startswith(f"record {absolute.base}.0.forward")]) == 2
    assert "AttributeError" not in capsys.readouterr().err
    made = 1 - unmade
    assert sorted(path.name for path in runs.path.iterdir() if path.is_dir()) == [f"step{made}"]
    saved = sorted(runs.path.rglob("*.input.0.*"))
    assert len(saved) == 1 and np.all(backend.load_tensor_file(saved[0]) == made + 1)


class BrokenSaver(probe.Sink):
    """Fails when it is asked for what saves tensors, or else when that is called."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked

    def needs(self) -> probe.Needs:
        return probe.Needs(saver_of=self.saver_of)

    def saver_of(self, call: Any) -> Any:
        if self._asked:
            raise ZeroDivisionError("somebody else's")
        return self._save

    def _save(self, value: Any, entry: Any, path: str) -> None:
        raise ZeroDivisionError("somebody else's")


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_sink_that_cannot_save_tensors_costs_the_dump_none_of_its_entries(
    runs: Any, backend: Any, task: str, asked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, beside = alone_and_beside(runs, backend, BrokenSaver(asked), level="mix", task=task)
    assert task == "statistics" or beside.files == alone.files != []
    said_once(capsys, "ZeroDivisionError", "BrokenSaver")


class Refusing(probe.Sink):
    """Raises an error of the user's settings at the beginning of one step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def begin_step(self, step: Any) -> bool:
        if step.number == self._step:
            raise MsprobeException("not like this")
        return True


def test_wrong_settings_of_a_sink_are_raised_in_its_first_step_and_nothing_is_left_of_it(runs: Any) -> None:
    debugger = runs.new(level="L1")
    debugger.add_sink(Refusing(0))
    for _ in range(2):
        with pytest.raises(MsprobeException, match="not like this"):
            debugger.start()
    assert not list(runs.path.rglob("*.json"))


def test_an_error_of_settings_in_a_later_step_costs_only_that_sink_its_step(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = runs.new(level="L1")
    debugger.add_sink(Refusing(1))
    assert trained(backend, debugger, steps=2) == trained(backend, None, steps=2)
    runs.end()
    assert runs.read(0).names == runs.read(1).names != []
    assert "Refusing, the beginning of step 1: MsprobeException: not like this" in capsys.readouterr().err


def test_a_sink_joins_with_the_next_step(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="L1")
    sink = CallCounter()
    debugger.start(block_network(backend))
    debugger.add_sink(sink)
    debugger.stop()
    debugger.step()
    assert sink.seen == []
    trained(backend, debugger)
    assert sink.seen[0] == "step 1" and len(entered(sink)) >= 3


def test_sinks_of_a_further_constructor_call_are_ignored_with_a_warning(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = CallCounter()
    debugger = runs.new(level="L1", arguments={"sinks": [sink]})
    capsys.readouterr()
    assert type(debugger)(sinks=[sink]) is debugger and type(debugger)(sinks=[]) is debugger
    assert "ignored" not in capsys.readouterr().err
    assert type(debugger)(sinks=[Broken()]) is debugger
    told = capsys.readouterr().err
    assert "sinks is Broken (in use: CallCounter)" in told and "add_sink(sink)" in told


class Losing(probe.Sink):
    def __init__(self, losses: dict[int, str]) -> None:
        self._losses = losses

    def status(self) -> Status:
        return Status(losses=self._losses)


def test_the_losses_of_all_sinks_of_a_step_are_told(runs: Any) -> None:
    sinks = [Losing({0: "the disk is full"}), Losing({0: "no network", 2: "no memory"})]
    debugger = runs.new(level="L1", arguments={"sinks": sinks})
    assert debugger.session().status().losses == {0: "the disk is full; no network", 2: "no memory"}


class Without(CallCounter):
    """A sink whose author forgot a return."""

    def needs(self) -> Any:
        return None


@dataclasses.dataclass
class Equal(probe.Sink):
    every: int = 1


@pytest.mark.parametrize(
    ("sink", "texts"), [(3, ("sink is a int", "probe.Sink")), (Equal(), ("Equal defines when", "eq=False"))]
)
def test_what_cannot_be_a_sink_is_refused(runs: Any, backend: Any, sink: Any, texts: tuple[str, ...]) -> None:
    with pytest.raises(MsprobeException) as caught:
        runs.new(level="L1").add_sink(sink)
    assert all(text in str(caught.value) for text in texts)
    for sinks in (CallCounter(), [object()], "x", 5):
        with pytest.raises(MsprobeException, match=r"sinks is a .*allowed: a list"):
            backend.new_debugger_class()(sinks=sinks)
    with pytest.raises(TypeError, match=r"enter=True"):
        probe.Needs(enter=True)  # type: ignore[arg-type]


def test_needs_that_are_none_cost_that_sink_alone_and_are_told(
    backend: Any, runs: Any, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.errors_expected = True
    good, debugger = CallCounter(), runs.new(tmp_path, level="L1")
    debugger.add_sink(Without())
    debugger.add_sink(good)
    trained(backend, debugger)
    assert entered(good) and dumped.read(tmp_path, 0).names
    assert "needs() returns a NoneType" in capfd.readouterr().err


def test_a_sink_that_is_added_twice_and_whose_beginning_returns_nothing_gets_a_step_once(
    backend: Any, runs: Any, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    class NoReturn(CallCounter):
        def begin_step(self, step: Any) -> Any:
            super().begin_step(step)

    sink, debugger = NoReturn(), runs.new(tmp_path, level="L1")
    for _ in range(2):
        debugger.add_sink(sink)
    trained(backend, debugger)
    assert sink.seen.count("step 0") == 1 and entered(sink)
    assert "it is not added again" in capfd.readouterr().err


class Everything(CallCounter):
    """Notes what else a sink can receive."""

    def record(self, call: Any, rule: Any) -> None:
        self.seen.append(f"{'node' if rule is None else 'record'} {call.name}")

    def gradient(self, of: Any, name: str, gradient: Any) -> None:
        self.seen.append(f"gradient {of.base} {name}")

    def discard(self, what: Any) -> None:
        self.seen.append(f"discard {what.name}")

    def after_step(self, ended: Any) -> None:
        self.seen.append(f"after {ended.number} {ended.loss} {ended.ends_program}")


@pytest.mark.parametrize("tree", [False, True])
def test_calls_without_a_record_are_handed_to_a_sink_that_needs_the_tree(runs: Any, backend: Any, tree: bool) -> None:
    sink = Everything("record", statistics=True, tree=tree)
    trained(backend, runs.new(level="mix", list=["Linear"], arguments={"sinks": [sink]}))
    kinds = {text.split()[0] for text in sink.seen}
    assert "record" in kinds and ("node" in kinds) == tree


def test_a_sink_gets_the_gradients_of_modules_and_their_parameters(runs: Any, backend: Any) -> None:
    sink = Everything("leave", "gradient")
    trained(backend, runs.new(level="L0", arguments={"sinks": [sink]}))
    names = {text.rsplit(" ", 1)[1] for text in sink.seen if text.startswith("gradient")}
    assert {"input.0", "output.0"} < names and len(names) > 2, "parameters have names of their own"


def test_a_sink_is_told_of_each_step_of_the_program_and_of_its_end(runs: Any, backend: Any) -> None:
    sink = Everything()
    debugger, model = runs.new(level="L1", step=[1], arguments={"sinks": [sink]}), block_network(backend)
    for loss in range(2):
        debugger.start(model)
        debugger.step(loss=float(loss))
    runs.end()
    told = [text for text in sink.seen if text.startswith(("step", "after", "discard"))]
    assert told == ["after 0 0.0 False", "step 1", "after 1 1.0 False", "after 2 None True"]


class NoTruth:
    def __bool__(self) -> bool:
        raise ZeroDivisionError("somebody else's")


class Careless(probe.Sink):
    """Returns something else than it should."""

    def __init__(self, method: str) -> None:
        self._method = method

    def needs(self) -> probe.Needs:
        return probe.Needs(leave=lambda call, output: NoTruth() if self._method == "leave" else None)  # type: ignore[arg-type,return-value]

    def status(self) -> Any:
        answers = {"status": {"steps": 3}, "losses": Status(losses={0: None}), "nothing": None}  # type: ignore[dict-item]
        return answers.get(self._method, Status())


@pytest.mark.parametrize("method", ["leave", "status", "losses", "nothing"])
def test_an_answer_that_is_none_costs_the_dump_nothing(
    runs: Any, backend: Any, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alone_and_beside(runs, backend, Careless(method), steps=2, level="mix")
    said_once(capsys, "the training goes on", "Careless")


def test_what_a_sink_computes_when_collection_begins_is_no_call_of_the_program(runs: Any, backend: Any) -> None:
    absolute = backend.apis["abs"]

    class Computing(probe.Sink):
        def start(self, models: Any) -> None:
            absolute.call(backend.tensor(np.ones((2, 2), np.float32)))

    debugger = runs.new(level="L1")
    debugger.add_sink(Computing())
    debugger.start()
    absolute.call(backend.tensor(np.ones((2, 2), np.float32)))
    debugger.stop()
    runs.end()
    assert runs.read(0).names == [f"{absolute.base}.0.forward"]
