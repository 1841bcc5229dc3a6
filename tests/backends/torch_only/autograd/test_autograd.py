"""Backward in all the ways PyTorch offers."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import Cube, gradients, net, same

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
MODULES = ["Module.0.Linear", "Module.1.Tanh", "Module.2.Linear"]


@LEVELS
def test_a_second_backward_over_a_kept_graph_is_recorded_again(runs: Any, level: str) -> None:
    def work(model: Any) -> list[Any]:
        out = model(torch.ones(3, 4, requires_grad=True))
        out.sum().backward(retain_graph=True)
        (out * 2).sum().backward()
        return gradients(model)

    expected = work(net())
    model, debugger = net(), runs.new(level=level)
    debugger.start(model)
    found = work(model)
    debugger.stop()
    assert same(found, expected)
    dump = runs.read()
    if level != "L1":
        # The same name again: the record of the second pass, at the end.
        assert [n for n in dump.backward if "Module" in n] == [f"{m}.backward.0" for m in reversed(MODULES)]
        assert dump.data["Module.2.Linear.backward.0"]["input"][0]["Max"] == 2.0
        assert [n for n in dump.parameter_gradients if "Module.2" in n] == [
            f"Module.2.Linear.parameters_grad.{n}" for n in (0, 1)
        ]
    if level != "L0":
        assert dump.data["Functional.linear.1.backward"]["input"][0]["Max"] == 2.0
        assert [n for n in dump.backward if "linear" in n] == [
            "Functional.linear.1.backward",
            "Functional.linear.0.backward",
        ]


@LEVELS
def test_autograd_grad_takes_gradients_without_touching_parameters(runs: Any, level: str) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(net()(x).sum(), x)
    model, debugger = net(), runs.new(level=level)
    debugger.start(model)
    (found,) = torch.autograd.grad(model(x).sum(), x)
    debugger.stop()
    assert torch.equal(found, expected)
    assert [p.grad for p in model.parameters()] == [None] * 4
    dump = runs.read()
    assert dump.parameter_gradients == []
    if level != "L1":
        entry = dump.data["Module.0.Linear.backward.0"]["output"][0]
        assert entry["Norm"] == pytest.approx(expected.norm().item())


@LEVELS
def test_a_gradient_of_a_gradient_has_the_same_bits(runs: Any, level: str) -> None:
    def work(model: Any) -> list[Any]:
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return [*gradients(model), x.grad]

    expected = work(net_without_last_bias())
    model, debugger = net_without_last_bias(), runs.new(level=level)
    debugger.start(model)
    found = work(model)
    debugger.stop()
    assert same(found, expected)
    assert runs.read().names


def net_without_last_bias() -> Any:
    model = net()
    model[2] = nn.Linear(6, 2, bias=False)
    return model


def test_code_of_a_custom_function_is_recorded_in_both_directions(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="mix")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    debugger.start(model)
    Cube.apply(x).sum().backward()
    debugger.stop()
    assert x.grad is not None and x.grad.tolist() == [3.0, 12.0]
    assert runs.read().forward == [
        "Torch.mul.0.forward",
        "Tensor.__mul__.0.forward",
        "Tensor.sum.0.forward",
        "Torch.square.0.forward",
        "Tensor.__mul__.1.forward",
        "Tensor.__mul__.2.forward",
    ]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_around_a_custom_function_has_its_gradients(runs: Any, level: str) -> None:
    class Layer(nn.Module):
        def forward(self, x: Any) -> Any:
            return Cube.apply(x)

    model = nn.Sequential(Layer())
    debugger = runs.new(level=level)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    debugger.start(model)
    (model(x) * 2).sum().backward()
    debugger.stop()
    record = runs.read().data["Module.0.Layer.backward.0"]
    assert record["input"][0]["Max"] == 2.0
    assert (record["output"][0]["Max"], record["output"][0]["Min"]) == (24.0, 6.0)
    if level == "mix":
        assert runs.read().tree["Torch.square.0.forward"] == "Module.0.Layer.backward.0"


@LEVELS
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("inputs_need_gradient", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_checkpoints_give_the_same_bits(runs: Any, level: str, reentrant: bool, inputs_need_gradient: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.3)

        def forward(self, x: Any) -> Any:
            y = checkpoint(lambda v: self.drop(torch.tanh(self.one(v))), x, use_reentrant=reentrant)
            return self.two(y) + y

    def work(model: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(7)
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(inputs_need_gradient)
        out = model(x)
        out.sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None] + [out.detach()], x.grad

    expected, of_input = work(Net())
    model, debugger = Net(), runs.new(level=level)
    debugger.start(model)
    found, of_input_found = work(model)
    debugger.stop()
    assert same(found, expected)
    assert (of_input is None) == (of_input_found is None) and (
        of_input is None or torch.equal(of_input, of_input_found)
    )
    dump = runs.read()
    recomputed = inputs_need_gradient or not reentrant
    if level != "L1":
        assert ("Module.one.Linear.forward.1" in dump.names) is recomputed
        if recomputed:
            assert (f"Module.one.Linear.backward.{1 if reentrant else 0}") in dump.names
    if level != "L0":
        assert ("Torch.tanh.1.forward" in dump.names) is recomputed
    assert dump.tree is not None and all(parent is None or parent in dump.tree for parent in dump.tree.values())


def test_selective_checkpoints_keep_their_choices(runs: Any) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def work(model: Any) -> list[Any]:
        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            return (
                CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE
            )

        x = torch.ones(3, 4, requires_grad=True)
        context = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        checkpoint(model, x, use_reentrant=False, context_fn=context).sum().backward()
        return gradients(model)

    expected = work(net())
    model, debugger = net(), runs.new(level="mix", task="tensor", summary_mode="md5")
    debugger.start(model)
    found = work(model)
    debugger.stop()
    assert same(found, expected)


def test_autocast_does_not_touch_statistics(runs: Any) -> None:
    model, debugger = net(), runs.new(level="mix")
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    debugger.start(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    debugger.stop()
    assert out.dtype is torch.bfloat16
    record = runs.read().data["Module.0.Linear.forward.0"]
    assert record["input_args"][0]["dtype"] == "torch.float32" and record["output"][0]["dtype"] == "torch.bfloat16"
    exact = np.linspace(-1, 1, 12, dtype=np.float32).astype(np.float64)
    assert record["input_args"][0]["Norm"] == pytest.approx(np.linalg.norm(exact), rel=1e-6)
    weight = model[0].weight.detach().double()
    assert record["parameters"]["weight"]["Norm"] == pytest.approx(weight.norm().item(), rel=1e-6)
    assert record["parameters"]["weight"]["Mean"] == pytest.approx(weight.mean().item(), rel=1e-5)


def test_describing_under_autocast_does_not_fill_the_cache_of_casts(runs: Any) -> None:
    def work(model: Any) -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(3, 4)).float().sum()
        loss.backward()
        return gradients(model)

    expected = work(net())
    model, debugger = net(), runs.new(level="mix", task="tensor")
    debugger.start(model)
    assert same(work(model), expected)
    debugger.stop()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_after_a_backward_that_raised_calls_have_the_parents_of_a_new_beginning(runs: Any, level: str) -> None:
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

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.two(Fails.apply(self.one(x))).tanh()

    model = nn.Sequential(nn.Linear(4, 4), Inner())
    debugger = runs.new(level=level)
    debugger.start(model)
    for Fails.failing in (True, False):
        with contextlib.suppress(ZeroDivisionError):
            model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    tree = runs.read().tree
    again = {name: parent for name, parent in tree.items() if name.endswith("ward.1") and name.startswith("Module")}
    assert again == {
        "Module.0.Linear.forward.1": None,
        "Module.1.Inner.forward.1": None,
        "Module.1.one.Linear.forward.1": "Module.1.Inner.forward.1",
        "Module.1.two.Linear.forward.1": "Module.1.Inner.forward.1",
        "Module.1.Inner.backward.1": None,
        "Module.1.two.Linear.backward.1": "Module.1.Inner.backward.1",
        "Module.1.one.Linear.backward.1": "Module.1.Inner.backward.1",
        "Module.0.Linear.backward.1": None,
    }


def test_anomaly_mode_works(runs: Any) -> None:
    model, debugger = net(), runs.new(level="mix")
    debugger.start(model)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        model(torch.ones(3, 4)).sum().backward()
    debugger.stop()
    assert "Module.2.Linear.backward.0" in runs.read().names


def test_what_a_program_keeps_at_gradient_nodes_is_its_own(runs: Any) -> None:
    model, debugger = net(), runs.new(level="mix")
    debugger.start(model)
    y = model(torch.ones(3, 4))
    node = y.grad_fn
    node.metadata["mine"] = [1]
    y.sum().backward()
    debugger.stop()
    assert node.metadata["mine"] == [1]
    assert "Module.2.Linear.backward.0" in runs.read().names


def test_saved_tensor_hooks_of_the_user_see_only_their_own(runs: Any) -> None:
    def work(model: Any) -> int:
        packed = []

        def pack(tensor: Any) -> Any:
            packed.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.ones(3, 4, requires_grad=True)).sum().backward()
        return len(packed)

    expected = work(net())
    model, debugger = net(), runs.new(level="mix", task="tensor", summary_mode="md5")
    debugger.start(model)
    assert work(model) == expected > 0
    debugger.stop()


def test_graph_nodes_are_those_of_a_run_without_us(runs: Any) -> None:
    def nodes(out: Any) -> list[str]:
        found, ahead = [], [out.grad_fn]
        while ahead:
            node = ahead.pop(0)
            if node is not None:
                found.append(node.name())
                ahead += [following for following, _ in node.next_functions]
        return found

    x = torch.ones(3, 4, requires_grad=True)
    expected = nodes(net()(x))
    model, debugger = net(), runs.new(level="mix")
    debugger.start(model)
    found = nodes(model(x))
    debugger.stop()
    assert found == expected


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_threads_calling_modules_keep_their_trees_apart(runs: Any, level: str) -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)])
    barrier = threading.Barrier(4)
    debugger = runs.new(level=level)
    failures: list[BaseException] = []

    def work(replica: Any) -> None:
        try:
            for _ in range(5):
                barrier.wait(timeout=20)
                replica(torch.ones(2, 4))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(replica,)) for replica in model]
    debugger.start(model)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    debugger.stop()
    assert failures == []
    tree = runs.read().tree
    for index in range(4):
        for number in range(5):
            outer = f"Module.{index}.Sequential.forward.{number}"
            assert tree[outer] is None
            assert tree[f"Module.{index}.0.Linear.forward.{number}"] == outer
            assert tree[f"Module.{index}.1.Tanh.forward.{number}"] == outer
    if level == "mix":
        linear = [name for name in tree if name.startswith("Functional.linear") or name.startswith("Torch.tanh")]
        assert all(tree[name] is not None and "Module" in tree[name] for name in linear)


def test_apis_called_in_a_second_thread_are_recorded_there_too(runs: Any) -> None:
    # A mode is set for one thread; what the user starts elsewhere must not disturb it.
    debugger = runs.new()
    results = []
    debugger.start()
    thread = threading.Thread(target=lambda: results.append(F.relu(torch.tensor([-1.0, 2.0]))))
    thread.start()
    thread.join()
    torch.abs(results[0])
    debugger.stop()
    assert results[0].tolist() == [0.0, 2.0]
    assert runs.read().forward == ["Functional.relu.0.forward", "Torch.abs.0.forward"]


def test_built_in_functions_called_in_a_second_thread_are_recorded(runs: Any) -> None:
    debugger = runs.new()
    debugger.start()
    thread = threading.Thread(target=lambda: torch.abs(torch.tensor([-1.0, 2.0])))
    thread.start()
    thread.join()
    debugger.stop()
    assert runs.read().forward == ["Torch.abs.0.forward"]


@LEVELS
def test_backward_in_another_thread_is_recorded(runs: Any, level: str) -> None:
    model, debugger = net(), runs.new(level=level)
    debugger.start(model)
    loss = model(torch.ones(3, 4, requires_grad=True)).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    debugger.stop()
    dump = runs.read()
    if level != "L1":
        assert [name for name in dump.backward if "Module" in name] == [f"{m}.backward.0" for m in reversed(MODULES)]
    if level != "L0":
        assert "Functional.linear.0.backward" in dump.names


@pytest.mark.parametrize("layer", ["identity", "dropout", "flatten", "nested"])
def test_a_module_that_returns_a_leaf_as_it_is_has_its_backward(runs: Any, layer: str) -> None:
    made = {
        "identity": nn.Identity(),
        "dropout": nn.Dropout(0.0).eval(),
        "flatten": nn.Flatten(),
        "nested": nn.Sequential(nn.Identity()),
    }[layer]
    model = nn.ModuleDict({"layer": made})
    debugger = runs.new(level="L0")
    debugger.start(model)
    x = torch.ones(2, 3, requires_grad=True)
    (model["layer"](x) * 2).sum().backward()
    debugger.stop()
    record = runs.read().data[f"Module.layer.{type(made).__name__}.backward.0"]
    assert [entry["Max"] for entry in record["input"]] == [2.0]
    assert [entry["Max"] for entry in record["output"]] == [2.0]


def test_a_module_that_returns_its_parameter_has_its_backward(runs: Any) -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Any:
            return self.weight

    model = nn.ModuleDict({"prompt": Prompt()})
    debugger = runs.new(level="L0")
    debugger.start(model)
    (model["prompt"]() * 5).sum().backward()
    debugger.stop()
    data = runs.read().data
    assert data["Module.prompt.Prompt.backward.0"]["input"][0]["Max"] == 5.0
    assert data["Module.prompt.Prompt.backward.0"]["output"] == []
    assert data["Module.prompt.Prompt.parameters_grad.0"]["weight"][0]["Max"] == 5.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@LEVELS
def test_function_transforms_over_modules_give_the_same_bits(runs: Any, level: str) -> None:
    model = net()
    parameters = dict(model.named_parameters())

    def loss(given: Any, x: Any) -> Any:
        return torch.func.functional_call(model, given, (x,)).sum()

    def work() -> list[Any]:
        one = torch.func.grad(loss)(parameters, torch.ones(1, 4))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.ones(3, 4))
        return [
            *one.values(),
            *each.values(),
            torch.func.jacrev(model)(torch.ones(4)),
            torch.func.jacfwd(model)(torch.ones(4)),
        ]

    expected = work()
    debugger = runs.new(level=level, task="tensor", summary_mode="md5")
    debugger.start(model)
    found = work()
    debugger.stop()
    assert same(found, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_derivatives_work(runs: Any) -> None:
    import torch.autograd.forward_ad as forward_ad

    def work(model: Any) -> Any:
        with forward_ad.dual_level():
            out = model(forward_ad.make_dual(torch.ones(1, 4), torch.ones(1, 4)))
            return forward_ad.unpack_dual(out).tangent.detach()

    expected = work(net())
    model, debugger = net(), runs.new(level="mix", task="tensor")
    debugger.start(model)
    assert torch.equal(work(model), expected)
    debugger.stop()


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
    model, debugger = AroundBeside(), runs.new(level="L0")
    debugger.start(model)
    model(torch.ones(1, 2)).backward()
    debugger.stop()
    record = runs.read().data["Module.beside.Beside.backward.0"]
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
    assert runs.read().parameter_gradients == [
        "Module.beside.linear.Linear.parameters_grad.0",
        "Module.first.Linear.parameters_grad.0",
    ]


def test_without_gradient_of_the_input_a_backward_stands_before_its_children(runs: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2))
    debugger = runs.new(level="L0")
    debugger.start(model)
    model(torch.ones(3, 4)).sum().backward()
    debugger.stop()
    dump = runs.read()
    bases = ["Module.1.Linear", "Module.0.Sequential", "Module.0.1.Tanh", "Module.0.0.Linear"]
    assert dump.backward == [f"{base}.backward.0" for base in bases]
    assert [len(dump.data[f"{base}.backward.0"]["output"]) for base in bases] == [1, 0, 1, 0]
