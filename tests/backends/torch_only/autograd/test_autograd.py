"""Backward in all the ways PyTorch offers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_parts import LEVELS, Call, Cube, collected, gradients, maxima, net, neutral

MODULES = ["Module.0.Linear", "Module.1.Tanh", "Module.2.Linear"]


def leaf(rows: int = 3) -> Any:
    return torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).requires_grad_()


# --- programs that give the same bits, and see the same of their own graph


def gradient_of_a_gradient(model: Any) -> Any:
    x = leaf()
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    # None of the last bias, which the gradient does not depend on.
    return [*(p.grad for p in model.parameters()), x.grad]


def selective_checkpoint(model: Any) -> Any:
    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        saves = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    def context() -> Any:
        return create_selective_checkpoint_contexts(policy)

    checkpoint(model, leaf(), use_reentrant=False, context_fn=context).sum().backward()
    return gradients(model)


def cache_of_autocast(model: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(3, 4)).float().sum()
    loss.backward()
    return gradients(model)


def hooks_of_saved_tensors(model: Any) -> Any:
    packed: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x, lambda x: x):
        model(leaf()).sum().backward()
    assert packed
    return len(packed)


def nodes_of_the_graph(model: Any) -> Any:
    found, ahead = [], [model(leaf()).grad_fn]
    while ahead:
        node = ahead.pop(0)
        if node is not None:
            found.append(node.name())
            ahead += [following for following, _ in node.next_functions]
    return found


def metadata_of_nodes(model: Any) -> Any:
    y = model(torch.ones(3, 4))
    node = y.grad_fn
    node.metadata["mine"] = [1]
    y.sum().backward()
    return node.metadata["mine"]


def anomaly_mode(model: Any) -> Any:
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        model(torch.ones(3, 4)).sum().backward()
    return gradients(model)


def function_transforms(model: Any) -> Any:
    parameters = dict(model.named_parameters())

    def loss(given: Any, x: Any) -> Any:
        return torch.func.functional_call(model, given, (x,)).sum()

    one = torch.func.grad(loss)(parameters, torch.ones(1, 4))
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.ones(3, 4))
    return one, each, torch.func.jacrev(model)(torch.ones(4)), torch.func.jacfwd(model)(torch.ones(4))


def forward_mode(model: Any) -> Any:
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(torch.ones(1, 4), torch.ones(1, 4)))
        return forward_ad.unpack_dual(out).tangent.detach()


PROGRAMS = [
    gradient_of_a_gradient, selective_checkpoint, cache_of_autocast, hooks_of_saved_tensors, nodes_of_the_graph,
    metadata_of_nodes, anomaly_mode, function_transforms, forward_mode,
]  # fmt: skip


@LEVELS
@pytest.mark.parametrize("settings", [{}, {"task": "tensor", "summary_mode": "md5"}], ids=["statistics", "tensor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_give_the_same_bits(runs: Any, level: str, program: Any, settings: Any) -> None:
    assert neutral(runs, net, program, level, **settings).names


# --- passes


@LEVELS
def test_a_second_backward_over_a_kept_graph_is_recorded_again(runs: Any, level: str) -> None:
    def work(model: Any) -> Any:
        out = model(torch.ones(3, 4, requires_grad=True))
        out.sum().backward(retain_graph=True)
        (out * 2).sum().backward()
        return gradients(model)

    dump = neutral(runs, net, work, level)
    if level != "L1":
        # The same name again: the record of the second pass, at the end.
        assert [n for n in dump.backward if "Module" in n] == [f"{m}.backward.0" for m in reversed(MODULES)]
        assert maxima(dump, "Module.2.Linear.backward.0", "input") == [2.0]
        last = [f"Module.2.Linear.parameters_grad.{n}" for n in (0, 1)]
        assert [n for n in dump.parameter_gradients if "Module.2" in n] == last
    if level != "L0":
        assert maxima(dump, "Functional.linear.1.backward", "input") == [2.0]
        assert [n for n in dump.backward if "linear" in n] == [f"Functional.linear.{n}.backward" for n in (1, 0)]


@LEVELS
def test_autograd_grad_takes_gradients_without_touching_parameters(runs: Any, level: str) -> None:
    def work(model: Any) -> Any:
        x = leaf()
        return [*torch.autograd.grad(model(x).sum(), x), *(p.grad for p in model.parameters())]

    dump = neutral(runs, net, work, level)
    assert dump.parameter_gradients == []
    if level != "L1":
        entry = dump.data["Module.0.Linear.backward.0"]["output"][0]
        assert entry["Norm"] == pytest.approx(work(net())[0].norm().item())


def test_code_of_a_custom_function_is_recorded_in_both_directions(runs: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    dump = collected(runs, nn.Sequential(nn.Linear(2, 2)), lambda: Cube.apply(x).sum().backward())
    assert x.grad is not None and x.grad.tolist() == [3.0, 12.0]
    calls = [
        "Torch.mul.0",
        "Tensor.__mul__.0",
        "Tensor.sum.0",
        "Torch.square.0",
        "Tensor.__mul__.1",
        "Tensor.__mul__.2",
    ]
    assert dump.forward == [f"{name}.forward" for name in calls]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_around_a_custom_function_has_its_gradients(runs: Any, level: str) -> None:
    model, x = nn.Sequential(Call(Cube.apply)), torch.tensor([1.0, 2.0], requires_grad=True)
    dump = collected(runs, model, lambda: (model(x) * 2).sum().backward(), level)
    name = "Module.0.Call.backward.0"
    assert maxima(dump, name, "input") == [2.0]
    (leaving,) = dump.data[name]["output"]
    assert (leaving["Max"], leaving["Min"]) == (24.0, 6.0)
    if level == "mix":
        assert dump.tree["Torch.square.0.forward"] == name


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.drop, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.3), reentrant

    def forward(self, x: Any) -> Any:
        y = checkpoint(lambda v: self.drop(torch.tanh(self.one(v))), x, use_reentrant=self.reentrant)
        return self.two(y) + y


@LEVELS
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("inputs_need_gradient", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_checkpoints_give_the_same_bits(runs: Any, level: str, reentrant: bool, inputs_need_gradient: bool) -> None:
    def work(model: Any) -> Any:
        torch.manual_seed(7)
        x = leaf().detach().requires_grad_(inputs_need_gradient)
        out = model(x)
        out.sum().backward()
        return [p.grad for p in model.parameters()], out, x.grad

    dump = neutral(runs, lambda: Checkpointed(reentrant), work, level)
    recomputed = inputs_need_gradient or not reentrant
    if level != "L1":
        assert ("Module.one.Linear.forward.1" in dump.names) is recomputed
        if recomputed:
            assert f"Module.one.Linear.backward.{1 if reentrant else 0}" in dump.names
    if level != "L0":
        assert ("Torch.tanh.1.forward" in dump.names) is recomputed
    assert all(parent is None or parent in dump.tree for parent in dump.tree.values())


def test_calls_after_the_early_stop_of_a_checkpoint_are_inside_of_nothing(runs: Any) -> None:
    model = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)})

    def call() -> None:
        for _ in range(2):
            again = checkpoint(lambda v: model["two"](torch.tanh(model["one"](v))) + 1, leaf(), use_reentrant=False)
            again.sum().backward()
        torch.abs(torch.ones(1))

    tree = collected(runs, model, call).tree
    assert tree["Torch.abs.0.forward"] is None and tree["Module.one.Linear.forward.2"] is None


def test_autocast_does_not_touch_statistics(runs: Any) -> None:
    model, x, out = net(), leaf().detach(), []

    def call() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out.append(model(x))

    record = collected(runs, model, call).data["Module.0.Linear.forward.0"]
    assert out[0].dtype is torch.bfloat16
    assert record["input_args"][0]["dtype"] == "torch.float32" and record["output"][0]["dtype"] == "torch.bfloat16"
    assert record["input_args"][0]["Norm"] == pytest.approx(np.linalg.norm(x.numpy().astype(np.float64)), rel=1e-6)
    weight = model[0].weight.detach().double()
    assert record["parameters"]["weight"]["Norm"] == pytest.approx(weight.norm().item(), rel=1e-6)
    assert record["parameters"]["weight"]["Mean"] == pytest.approx(weight.mean().item(), rel=1e-5)


class Fails(torch.autograd.Function):
    failing = True

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        if Fails.failing:
            raise ZeroDivisionError
        return gradient


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_after_a_backward_that_raised_calls_have_the_parents_of_a_new_beginning(runs: Any, level: str) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), Call(Fails.apply), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), inner)

    def call() -> None:
        for Fails.failing in (True, False):
            with contextlib.suppress(ZeroDivisionError):
                model(torch.ones(2, 4)).sum().backward()

    tree = collected(runs, model, call, level).tree
    again = {name: parent for name, parent in tree.items() if name.endswith("ward.1") and name.startswith("Module")}
    first, outer, inside = "Module.0.Linear", "Module.1.Sequential", ("0.Linear", "1.Call", "2.Linear")
    expected: dict[str, Any] = {}
    for kind, parts in (("forward.1", inside), ("backward.1", inside[::-1])):
        expected.update({f"{first}.{kind}": None, f"{outer}.{kind}": None})
        expected.update({f"Module.1.{part}.{kind}": f"{outer}.{kind}" for part in parts})
    assert again == expected


# --- threads


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_threads_calling_modules_keep_their_trees_apart(runs: Any, level: str) -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
    barrier, failures = threading.Barrier(4), []

    def work(replica: Any) -> None:
        try:
            for _ in range(5):
                barrier.wait(timeout=20)
                replica(torch.ones(2, 4))
        except BaseException as error:
            failures.append(error)

    tree = collected(runs, model, lambda: in_threads(*(lambda each=each: work(each) for each in model)), level).tree
    assert failures == []
    for index in range(4):
        for number in range(5):
            outer = f"Module.{index}.Sequential.forward.{number}"
            assert tree[outer] is None
            assert tree[f"Module.{index}.0.Linear.forward.{number}"] == outer
            assert tree[f"Module.{index}.1.ReLU.forward.{number}"] == outer
    parents = sorted(tree[name] for name in tree if name.startswith("Functional.relu"))
    relus = sorted(f"Module.{index}.1.ReLU.forward.{number}" for index in range(4) for number in range(5))
    assert parents == (relus if level == "mix" else [])


def in_threads(*functions: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_apis_called_in_a_second_thread_are_recorded_there_too(runs: Any) -> None:
    # A mode is set for one thread; what the user starts elsewhere must not disturb it.
    results: list[Any] = []

    def call() -> None:
        in_threads(lambda: results.append(F.relu(torch.tensor([-1.0, 2.0]))))
        torch.abs(results[0])

    dump = collected(runs, None, call, "L1")
    assert results[0].tolist() == [0.0, 2.0]
    assert dump.forward == ["Functional.relu.0.forward", "Torch.abs.0.forward"]


def test_built_in_functions_called_in_a_second_thread_are_recorded(runs: Any) -> None:
    dump = collected(runs, None, lambda: in_threads(lambda: torch.abs(torch.tensor([-1.0, 2.0]))), "L1")
    assert dump.forward == ["Torch.abs.0.forward"]


@LEVELS
def test_backward_in_another_thread_is_recorded(runs: Any, level: str) -> None:
    model = net()
    dump = collected(runs, model, lambda: in_threads(model(leaf()).sum().backward), level)
    if level != "L1":
        assert [name for name in dump.backward if "Module" in name] == [f"{m}.backward.0" for m in reversed(MODULES)]
    if level != "L0":
        assert "Functional.linear.0.backward" in dump.names


# --- what modules return


@pytest.mark.parametrize(
    "layer",
    [nn.Identity, lambda: nn.Dropout(0.0).eval(), nn.Flatten, lambda: nn.Sequential(nn.Identity())],
    ids=["identity", "dropout", "flatten", "nested"],
)
def test_a_module_that_returns_a_leaf_as_it_is_has_its_backward(runs: Any, layer: Any) -> None:
    model = nn.ModuleDict({"layer": layer()})
    x = torch.ones(2, 3, requires_grad=True)
    dump = collected(runs, model, lambda: (model["layer"](x) * 2).sum().backward(), "L0")
    name = f"Module.layer.{type(model['layer']).__name__}.backward.0"
    assert maxima(dump, name, "input") == maxima(dump, name, "output") == [2.0]


def test_a_module_that_returns_its_parameter_has_its_backward(runs: Any) -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Any:
            return self.weight

    model = nn.ModuleDict({"prompt": Prompt()})
    dump = collected(runs, model, lambda: (model["prompt"]() * 5).sum().backward(), "L0")
    assert maxima(dump, "Module.prompt.Prompt.backward.0", "input") == [5.0]
    assert dump.data["Module.prompt.Prompt.backward.0"]["output"] == []
    assert dump.data["Module.prompt.Prompt.parameters_grad.0"]["weight"][0]["Max"] == 5.0


class Beside(nn.Module):
    """Computes with one input and hands the other one through."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.linear(x), y


class AroundBeside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.beside = nn.Linear(2, 2), Beside()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        computed, through = self.beside(hidden * 2, hidden * 3)
        return through.mean() + computed.sum()


def test_an_input_handed_through_does_not_hide_the_other_gradients(runs: Any) -> None:
    model = AroundBeside()
    record = collected(runs, model, lambda: model(torch.ones(1, 2)).backward(), "L0").data[
        "Module.beside.Beside.backward.0"
    ]
    assert [entry["Mean"] for entry in record["input"]] == [1.0, 0.5]
    weight = model.beside.linear.weight.detach()
    assert record["output"][0]["Mean"] == pytest.approx(weight.sum(0).mean().item(), rel=1e-5)
    assert record["output"][1]["Mean"] == 0.5


def test_what_is_not_collected_after_stop_adds_no_parameter_gradients(runs: Any) -> None:
    model, debugger = AroundBeside(), runs.new(level="L0")
    debugger.start(model)
    loss = model(torch.ones(1, 2))
    debugger.stop()
    loss.backward()
    model(torch.ones(1, 2)).backward()
    debugger.step()
    expected = ["Module.beside.linear.Linear.parameters_grad.0", "Module.first.Linear.parameters_grad.0"]
    assert runs.read().parameter_gradients == expected


def test_without_gradient_of_the_input_a_backward_stands_before_its_children(runs: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2))
    dump = collected(runs, model, lambda: model(torch.ones(3, 4)).sum().backward(), "L0")
    bases = ["Module.1.Linear", "Module.0.Sequential", "Module.0.1.Tanh", "Module.0.0.Linear"]
    assert dump.backward == [f"{base}.backward.0" for base in bases]
    assert [len(dump.data[f"{base}.backward.0"]["output"]) for base in bases] == [1, 0, 1, 0]
