"""The makers of tensors in programs that PyTorch alone runs: checkpoints, optimizers, clipping, inference, views."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import LEVELS, collected

import probe
from probe.collect.describing.makers import KINDS, Makers


def made(runs: Any, model: Any, program: Any, level: str) -> dict[str, str | None]:
    dump = probe.read(str(collected(runs, model, program, level).folder))
    return {item.name: item.made_by for each in dump.records for item in each.items() if item.is_tensor}


def layer() -> nn.Linear:
    return nn.Linear(4, 4)


def test_a_view_that_no_recorded_call_made_is_one_of_its_maker(runs: Any) -> None:
    model, x = layer(), torch.randn(3, 4)

    def program() -> None:
        F.relu(model(x)[1:, :2])
        F.relu(model(x).detach())
        torch.matmul(x, model.weight.view(4, 4))

    names = made(runs, model, program, "L1")
    assert names["Functional.relu.0.forward.input.0"] == "view:Functional.linear.0.forward.output.0"
    assert names["Functional.relu.1.forward.input.0"] == "view:Functional.linear.1.forward.output.0"
    assert names["Torch.matmul.0.forward.input.1"] == "view:parameter:weight"


def test_a_write_to_a_part_is_known_in_the_whole(runs: Any) -> None:
    model, x = layer(), torch.randn(3, 4)

    def program() -> None:
        hidden = model(x)
        part = hidden.detach()[0]
        part.mul_(2)
        torch.abs(hidden)
        with torch.no_grad():
            hidden[0] = 5  # not recorded
        torch.exp(hidden)

    names = made(runs, model, program, "L1")
    assert names["Tensor.mul_.0.forward.input.0"] == "view:Functional.linear.0.forward.output.0"
    assert names["Torch.abs.0.forward.input.0"] == "view:Tensor.mul_.0.forward.output.0"
    if "Tensor.__setitem__.0.forward.output.0" not in names:
        assert names["Torch.exp.0.forward.input.0"] is None


@LEVELS
@pytest.mark.parametrize("write", ["data", "numpy", "storage"])
def test_a_tensor_that_was_written_to_uncounted_has_no_maker(runs: Any, level: str, write: str) -> None:
    model, x = nn.Sequential(layer(), layer()), torch.randn(3, 4)

    def program() -> None:
        hidden = model[0](x)
        if write == "data":
            hidden.data.mul_(2)
        elif write == "numpy":
            hidden.detach().numpy()[0] = 5
        else:
            hidden.untyped_storage().copy_(torch.randn(3, 4).untyped_storage())
        model[1](hidden)

    names = made(runs, model, program, level)
    given = "Functional.linear.1.forward.input.0" if level == "L1" else "Module.1.Linear.forward.0.input.0"
    assert names[given] is None


@LEVELS
@pytest.mark.parametrize("unrecorded", [torch.clone, torch.Tensor.half, torch.fft.rfft])
def test_what_an_unrecorded_function_made_of_a_result_is_no_data(runs: Any, level: str, unrecorded: Any) -> None:
    first, second = layer().requires_grad_(False), nn.Flatten()
    model = nn.Sequential(first, second)

    def program() -> None:
        hidden = unrecorded(first(torch.randn(3, 4)))
        second(hidden.requires_grad_())

    names = made(runs, model, program, level)
    given = [maker for name, maker in names.items() if "latten" in name and ".input.0" in name]
    assert given and not [maker for maker in given if str(maker).startswith("data:")]


@LEVELS
def test_another_part_of_the_memory_of_data_or_of_a_result_is_no_view_of_it(runs: Any, level: str) -> None:
    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kept[0]

    model, x, kept = nn.Sequential(First(), layer(), nn.Identity()), torch.randn(4, 4), torch.randn(3, 4)

    def program() -> None:
        model[2](x[0])
        model[0](x)
        with torch.no_grad():
            for value in (x[1], kept[1], kept[0]):
                model[1](value)

    names = made(runs, model, program, level)
    start = "Functional.linear.{}.forward.input.0" if level == "L1" else "Module.1.Linear.forward.{}.input.0"
    given = [str(names[start.format(index)]) for index in range(3)]
    assert not [maker for maker in given[:2] if maker.startswith("view:")]


def test_a_call_takes_no_longer_where_many_tensors_live(backend: Any) -> None:
    makers = Makers(backend.adapter.tensors, backend.adapter.hooks, True, print)
    note = makers.describing(KINDS.index(Makers.returned), lambda tensor: {"dtype": "torch.float32"})
    living, took = [torch.zeros(1) for _ in range(8500)], []
    for begin in range(0, len(living), 250):
        start = time.process_time()
        for tensor in living[begin : begin + 250]:
            note(tensor)
        took.append(time.process_time() - start)
    # Looking through all of them at each call made the last calls a hundred times slower than the first ones.
    assert took[-1] < 20 * max(took[1], 0.01)


def test_memory_that_is_used_again_is_another_tensor(runs: Any) -> None:
    model, x = layer(), torch.randn(64, 4)

    def program() -> None:
        for _ in range(50):
            model(x)  # its memory is free at once
        for number in range(50):
            torch.abs(torch.randn(64, 4).clamp_max(number) if number % 2 else torch.from_numpy(x.numpy().copy()))

    names = made(runs, model, program, "L1")
    makers = [names[f"Torch.abs.{number}.forward.input.0"] or "" for number in range(50)]
    assert not [maker for maker in makers if "linear" in maker]


@LEVELS
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_again_from_known_tensors(runs: Any, level: str, reentrant: bool) -> None:
    model = nn.Sequential(layer(), nn.ReLU(), layer())
    x = torch.randn(3, 4, requires_grad=True)

    def program() -> None:
        hidden = model[0](x)
        checkpoint(lambda value: model[2](model[1](value)), hidden, use_reentrant=reentrant).sum().backward()

    names = made(runs, model, program, level)
    if level == "L0":
        again, output = "Module.1.ReLU.forward.{}.input.0", "Module.0.Linear.forward.0.output.0"
    else:
        again, output = "Functional.relu.{}.forward.input.0", "Functional.linear.0.forward.output.0"
    assert {str(names[again.format(number)]).replace("view:", "") for number in (0, 1)} == {output}


def test_buffers_and_gradients_that_go_into_clipping_and_the_optimizer_have_their_names(runs: Any) -> None:
    model = nn.Sequential(layer(), nn.BatchNorm1d(4, affine=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)

    def program() -> None:
        model(torch.randn(3, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
        optimizer.step()

    names = made(runs, model, program, "mix")
    start = "Functional.batch_norm.0.forward.input"
    assert [names[f"{start}.{i}"] for i in (1, 2)] == ["buffer:1.running_mean", "buffer:1.running_var"]
    clipped = [maker for name, maker in names.items() if "norm" in name and ".input." in name]
    assert {"gradient:0.weight", "gradient:0.bias"} <= set(clipped)
    taken = [name for name in names if "add_." in name and name.endswith("input.1")]
    assert len(taken) == 2
    for name in taken:
        assert str(names[name.replace(".input.1", ".input.0")]).startswith("parameter:")
        # Clipping has written to it.
        assert str(names[name]).startswith("Tensor.mul_.")


def test_a_sum_of_gradients_has_no_one_maker(runs: Any) -> None:
    model = layer()

    def program() -> None:
        hidden = F.relu(model(torch.randn(3, 4)))
        (torch.abs(hidden) + torch.exp(hidden) * hidden).sum().backward()

    names = made(runs, model, program, "L1")
    assert names["Functional.relu.0.backward.input.0"] is None
    assert names["Functional.linear.0.backward.input.0"] == "Functional.relu.0.backward.output.0"


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_is_followed(runs: Any, mode: Any, level: str) -> None:
    model = nn.Sequential(layer(), nn.ReLU(inplace=True), layer(), nn.Dropout(0.5)).eval()

    def program() -> None:
        with mode():
            model(torch.randn(3, 4))

    names = made(runs, model, program, level)
    if level == "L0":
        assert names["Module.2.Linear.forward.0.input.0"] == "Module.1.ReLU.forward.0.output.0"
        return
    assert names["Functional.relu.0.forward.input.0"] == "Functional.linear.0.forward.output.0"
    assert names["Functional.linear.1.forward.input.0"] == "Functional.relu.0.forward.output.0"
    assert names["Module.3.Dropout.forward.0.output.0"] == "Functional.linear.1.forward.output.0"


def test_what_no_grad_computed_without_a_record_is_not_data(runs: Any) -> None:
    model = nn.Sequential(layer(), layer())
    program = torch.no_grad()(lambda: model[1](model[0](torch.randn(3, 4)) * 2))
    assert made(runs, model, program, "L0")["Module.1.Linear.forward.0.input.0"] is None


def test_transforms_sparse_and_swapped_tensors_do_not_fail(runs: Any) -> None:
    first, second = layer(), layer()

    def program() -> None:
        torch.func.vmap(lambda row: torch.abs(row) * 2)(torch.randn(3, 4))
        torch.func.grad(lambda value: F.relu(value).sum())(torch.randn(4))
        torch.abs(torch.eye(3).to_sparse())
        F.linear(torch.randn(2, 4), first.weight)
        torch.utils.swap_tensors(first.weight, second.weight)

    made(runs, layer(), program, "L1")
    assert runs.read().errors == ""


def test_threads_do_not_take_each_others_tensors(runs: Any) -> None:
    model = nn.Sequential(layer(), layer())

    def work() -> None:
        for _ in range(20):
            model(torch.randn(3, 4))

    def program() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    names = made(runs, model, program, "L0")
    assert runs.read().errors == ""
    given = [names[f"Module.1.Linear.forward.{number}.input.0"] for number in range(60)]
    assert len({maker for maker in given if str(maker).startswith("Module.0.Linear.")}) == 60


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_write_to_one_part_makes_no_other_part(
    runs: Any, dim: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("probe.collect.describing.makers.compiled", None)
    model, x = layer(), torch.randn(8, 4)

    def program() -> None:
        hidden = model(x).detach()
        query, key = hidden.chunk(2, dim)
        query.mul_(2)
        torch.abs(query)
        torch.abs(key)
        torch.abs(hidden)
        torch.abs(query[:1])

    names = made(runs, model, program, "L1")
    assert names["Torch.abs.0.forward.input.0"] == "Tensor.mul_.0.forward.output.0"
    assert names["Torch.abs.1.forward.input.0"] is None
    assert names["Torch.abs.2.forward.input.0"] == "view:Tensor.mul_.0.forward.output.0"
    # A column has gaps, so that it contains no part for certain.
    assert names["Torch.abs.3.forward.input.0"] == (None if dim else "view:Tensor.mul_.0.forward.output.0")
