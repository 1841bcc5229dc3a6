"""The callbacks of ``mindspore.train.Model``, and what `start` does with the model that was given before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Errors only; MindSpore reads it when it is imported.
os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import Callback, Model

from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger
from probe.common.errors import MsprobeException

BATCHES = 2
LAYERS = ["Cell.first.Dense.forward.0", "Cell.second.Dense.forward.0"]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(6, 4)
        self.second = nn.Dense(4, 2)

    def construct(self, x: Any) -> Any:
        return self.second(mint.tanh(self.first(x)))


def train(net: nn.Cell, callbacks: list[Callback], epochs: int = 1, **more: Any) -> None:
    def batches() -> Iterator[tuple[Any, Any]]:
        for number in range(BATCHES):
            yield np.full((3, 6), number, np.float32), np.ones((3, 2), np.float32)

    data = GeneratorDataset(lambda: batches(), ["data", "label"], shuffle=False)
    model = Model(net, loss_fn=nn.MSELoss(), optimizer=nn.SGD(net.trainable_params(), learning_rate=0.01))
    model.train(epochs, data, callbacks=callbacks, dataset_sink_mode=False, **more)


@pytest.fixture
def debuggers(tmp_path: Path) -> Iterator[Callable[..., PrecisionDebugger]]:
    """Makes the debugger, the only one of its process as far as this test can see."""
    made: list[PrecisionDebugger] = []

    def make(level: str, **more: Any) -> PrecisionDebugger:
        config = {"task": "statistics", "level": level, "dump_path": str(tmp_path / "dump"), **more}
        (tmp_path / "config.json").write_text(json.dumps(config))
        made.append(PrecisionDebugger(str(tmp_path / "config.json")))
        return made[-1]

    yield make
    for debugger in made:
        debugger.stop()
        debugger.step()
    PrecisionDebugger._instance = PrecisionDebugger._model = None


def forwards(folder: Path) -> dict[str, list[str]]:
    """The forward records of each step's folder."""
    found = {}
    for path in sorted(folder.glob("dump/step*/proc*/dump.json")):
        records = json.loads(path.read_text())["data"]
        found[path.parents[1].name] = sorted(name for name in records if "forward" in name.split("."))
    return found


def test_every_wanted_step_is_collected_from_the_model_given_before(
    debuggers: Any, tmp_path: Path, capsys: Any
) -> None:
    debugger, net = debuggers("L0", step=[1, 3]), Net()
    debugger.start(net)
    train(net, [MsprobeStep(debugger)], epochs=2)
    assert forwards(tmp_path) == {"step1": LAYERS, "step3": LAYERS}
    assert "twice" not in capsys.readouterr().err, "the start of the callback is no second start"


def test_apis_need_no_start(debuggers: Any, tmp_path: Path) -> None:
    train(Net(), [MsprobeStep(debuggers("L1"))])
    found = forwards(tmp_path)
    assert list(found) == ["step0", "step1"]
    assert all("Mint.tanh.0.forward" in names for names in found.values())


def test_the_callback_changes_nothing(debuggers: Any) -> None:
    def trained(callbacks: list[Callback]) -> list[bytes]:
        for parameter in net.get_parameters():
            parameter.set_data(ms.Tensor(np.linspace(-1, 1, parameter.size, dtype=np.float32).reshape(parameter.shape)))
        train(net, callbacks, epochs=2)
        return [parameter.asnumpy().tobytes() for parameter in net.get_parameters()]

    net = Net()
    without = trained([])
    debugger = debuggers("mix")
    debugger.start(net)
    assert trained([MsprobeStep(debugger)]) == without


def test_the_model_given_last_is_used_until_another_is_given(debuggers: Any, tmp_path: Path) -> None:
    debugger = debuggers("L0")
    x = ms.Tensor(np.ones((3, 6), np.float32))
    first, other = Net(), nn.SequentialCell(Net())
    for given, ran in ((first, first), (None, first), (other, other), (None, other)):
        debugger.start(given)
        ran(x)
        debugger.stop()
        debugger.step()
    inside = ["Cell.0.Net.forward.0", "Cell.0.first.Dense.forward.0", "Cell.0.second.Dense.forward.0"]
    assert forwards(tmp_path) == {"step0": LAYERS, "step1": LAYERS, "step2": inside, "step3": inside}


def test_a_model_that_was_never_given_is_missed(debuggers: Any) -> None:
    with pytest.raises(MsprobeException, match='model is missing; level "L0"'):
        train(Net(), [MsprobeStep(debuggers("L0"))])


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_resumed_training_keeps_its_numbers(level: str, debuggers: Any, tmp_path: Path) -> None:
    debugger, net = debuggers(level), Net()
    if level == "L0":
        debugger.start(net)
    train(net, [MsprobeInitStep(), MsprobeStep(debugger)], epochs=4, initial_epoch=3)
    found = forwards(tmp_path)
    assert list(found) == ["step6", "step7"]
    assert all(found.values())
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step6", "step7"]


def test_a_training_from_the_beginning_begins_at_0_and_goes_on_in_the_next_call(debuggers: Any, tmp_path: Path) -> None:
    debugger, net = debuggers("L0"), Net()
    debugger.start(net)
    callbacks = [MsprobeInitStep(), MsprobeStep(debugger)]
    train(net, callbacks)
    train(net, callbacks)
    assert list(forwards(tmp_path)) == ["step0", "step1", "step2", "step3"]


def test_what_is_no_debugger_is_refused() -> None:
    for debugger, kind in ((None, "NoneType"), ("debugger", "str")):
        with pytest.raises(MsprobeException, match=f"debugger is of type {kind}; allowed: a PrecisionDebugger"):
            MsprobeStep(debugger)  # type: ignore[arg-type]


def test_collecting_in_graph_mode_is_refused_with_one_sentence(debuggers: Any, tmp_path: Path) -> None:
    debugger = debuggers("L0")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(MsprobeException, match="start: MindSpore is in graph mode, where collecting needs"):
            debugger.start(Net())
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"level": "L2"}, "needs an Ascend device"),
        ({"task": "exception_dump"}, "needs an Ascend device"),
    ],
)
def test_what_only_ascend_can_do_is_refused_before_any_work(arguments: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=why):
        PrecisionDebugger(dump_path=str(tmp_path / "dump"), **arguments)
    assert PrecisionDebugger._instance is None
    assert not (tmp_path / "dump").exists()
