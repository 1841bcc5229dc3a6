"""Which micro step a node belongs to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from made_dumps import call, written

from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.graph.graph import Graph, graph_of
from probe.graph.micro_steps import add_micro_steps

CASES = Path(__file__).parent / "cases" / "dumps"


def graph(folder: Path, calls: dict[str, str | None]) -> Graph:
    """The graph of a dump that has these calls, each inside of another or of none."""
    return graph_of(written(folder, {name: call([]) for name in calls}, calls))


def step(number: int, *, layers: int = 2, with_loss: bool = True) -> dict[str, str | None]:
    """The forward and the backward call of a model, and the loss between."""
    model = "Module.model.Net"
    calls: dict[str, str | None] = {f"{model}.forward.{number}": None}
    for layer in range(layers):
        calls[f"Module.model.{layer}.Linear.forward.{number}"] = f"{model}.forward.{number}"
        api = f"Functional.linear.{number * layers + layer}.forward"
        calls[api] = f"Module.model.{layer}.Linear.forward.{number}"
    if with_loss:
        calls[f"Functional.mse_loss.{number}.forward"] = None
    return calls


def backward(number: int, *, layers: int = 2) -> dict[str, str | None]:
    around = f"Module.model.Net.backward.{number}"
    inside = {f"Module.model.{layer}.Linear.backward.{number}": around for layer in reversed(range(layers))}
    return {around: None, **inside}


def steps_of(found: Graph) -> dict[str, int]:
    return dict(zip(found.names, found.micro_steps))


def test_a_step_that_runs_the_model_once_is_one_micro_step() -> None:
    found = graph_of(read(CASES / "llama"))
    assert add_micro_steps(found) == 1
    assert set(found.micro_steps) == {0}
    assert not found.notes


def test_each_run_of_the_model_is_a_micro_step(tmp_path: Path) -> None:
    found = graph(tmp_path, {**step(0), **backward(0), **step(1), **backward(1), **step(2), **backward(2)})
    assert add_micro_steps(found) == 3
    steps = steps_of(found)
    for number in range(3):
        assert steps[f"Module.model.Net.forward.{number}"] == number
        assert steps[f"Functional.linear.{2 * number}.forward"] == number
        assert steps[f"Functional.mse_loss.{number}.forward"] == number
        assert steps[f"Module.model.1.Linear.backward.{number}"] == number


@pytest.mark.parametrize("order", ["ffbb", "fbfb", "ffbfbb"])
def test_backward_calls_belong_to_their_forward_call(tmp_path: Path, order: str) -> None:
    calls: dict[str, str | None] = {}
    forwards = backwards = 0
    for kind in order:
        if kind == "f":
            calls.update(step(forwards, with_loss=False))
            forwards += 1
        else:
            calls.update(backward(backwards))
            backwards += 1
    found = graph(tmp_path, calls)
    assert add_micro_steps(found) == forwards
    for name, micro_step in steps_of(found).items():
        if name.startswith("Module"):
            assert micro_step == int(name.rpartition(".")[2])


def test_two_inputs_of_one_loss_are_one_micro_step(tmp_path: Path) -> None:
    found = graph(tmp_path, {**step(0), **step(1), **backward(1), **backward(0)})
    assert add_micro_steps(found) == 1
    assert set(found.micro_steps) == {0}
    assert "another order" in found.notes[-1]


def test_runs_of_different_modules_are_one_micro_step_and_a_note(tmp_path: Path) -> None:
    found = graph(tmp_path, {**step(0, layers=2), **step(1, layers=3)})
    assert add_micro_steps(found) == 1
    assert "Module.model.2.Linear forward runs 0 times in the first and 1 times in number 1" in found.notes[-1]
    assert add_micro_steps(found, 2) == 2
    assert Counter(steps_of(found).values())[1] > 3


def test_gradients_that_add_up_belong_to_the_last_micro_step(tmp_path: Path) -> None:
    gradients = {f"Module.model.{layer}.Linear.parameters_grad.0": None for layer in range(2)}
    outside: dict[str, str | None] = {"Module.head.Linear.parameters_grad.0": None}
    found = graph(tmp_path, {**step(0), **backward(0), **step(1), **backward(1), **gradients, **outside})
    add_micro_steps(found)
    steps = steps_of(found)
    assert {steps[name] for name in [*gradients, *outside]} == {1}


def test_a_module_that_is_used_twice_in_each_run_makes_no_more_of_them(tmp_path: Path) -> None:
    calls: dict[str, str | None] = {}
    for number in range(2):
        calls[f"Module.embed.Embedding.forward.{number}"] = None
        calls[f"Module.layer.Block.forward.{2 * number}"] = None
        calls[f"Module.layer.Block.forward.{2 * number + 1}"] = None
    found = graph(tmp_path, calls)
    assert add_micro_steps(found) == 2
    assert steps_of(found)["Module.layer.Block.forward.1"] == 0
    assert steps_of(found)["Module.layer.Block.forward.2"] == 1


def test_what_was_asked_for_wins(tmp_path: Path) -> None:
    found = graph(tmp_path, {**step(0), **step(1), **step(2), **step(3)})
    assert add_micro_steps(found, "off") == 1
    assert set(found.micro_steps) == {0}
    assert add_micro_steps(found, "2") == 2
    assert steps_of(found)["Module.model.Net.forward.1"] == 0
    assert steps_of(found)["Module.model.Net.forward.2"] == 1


def test_calls_of_apis_alone_are_one_micro_step(tmp_path: Path) -> None:
    found = graph(tmp_path, {"Functional.relu.0.forward": None, "Functional.relu.1.forward": None})
    assert add_micro_steps(found) == 1
    with pytest.raises(MsprobeException, match="no module is called"):
        add_micro_steps(found, 2)


@pytest.mark.parametrize("wanted", ["0", "two", "-1", "", 0, "1.5"])
def test_other_words_are_refused(wanted: str | int) -> None:
    found = graph_of(read(CASES / "llama"))
    with pytest.raises(MsprobeException, match="allowed: auto, off, or the number"):
        add_micro_steps(found, wanted)


def test_a_number_that_does_not_divide_the_runs_is_refused(tmp_path: Path) -> None:
    found = graph(tmp_path, {**step(0), **step(1), **step(2)})
    with pytest.raises(MsprobeException, match=r"Module\.model\.Net is called 3 times, which is no multiple of 2"):
        add_micro_steps(found, 2)
