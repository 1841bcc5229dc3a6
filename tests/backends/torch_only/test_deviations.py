"""Where this tool does better than the one it replaces.

The numbers are those of the list of deviations in the reference's FACTS.md. A behaviour with a thorough test elsewhere
has its shortest proof here.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probe.common.interfaces import StatisticsMode


def collected(runs: Any, model: Any, call: Any = None, level: str = "mix", **settings: Any) -> Any:
    debugger = runs.new(level=level, **settings)
    debugger.start(model)
    (call or (lambda: model(torch.ones(2, 4, requires_grad=True)).sum().backward()))()
    debugger.stop()
    return runs.read()


# 1; more in test_statistics.py
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("high", [False, True])
def test_mean_and_norm_are_never_missing(backend: Any, dtype: torch.dtype, high: bool) -> None:
    entry = backend.adapter.tensors.describe_tensor(
        torch.full((2, 2), 3.0, dtype=dtype), StatisticsMode("statistics", high)
    )
    assert (entry["Mean"], entry["Norm"]) == (3.0, 6.0)


# 2; more in test_life.py
def test_modules_have_their_backward_after_an_early_stop(runs: Any) -> None:
    model, debugger = nn.Sequential(nn.Linear(4, 2)), runs.new(level="L0")
    debugger.start(model)
    loss = model(torch.ones(2, 4)).sum()
    debugger.stop()
    loss.backward()
    debugger.step()
    later = ["Module.0.Linear.backward.0", "Module.0.Linear.parameters_grad.0"]
    assert sorted(runs.read().names) == [*later[:1], "Module.0.Linear.forward.0", *later[1:]]


# 3
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_last_api_of_a_scope_is_complete(runs: Any, level: str) -> None:
    def call() -> None:
        for _ in range(3):
            torch.abs(torch.ones(2))

    scope = ["Torch.abs.0.forward", "Torch.abs.1.forward"]
    dump = collected(runs, nn.Sequential(nn.ReLU()), call, level, scope=scope)
    assert dump.names == scope
    assert set(dump.data["Torch.abs.1.forward"]) == {"input_args", "input_kwargs", "output"}


# 3
def test_the_last_module_of_a_scope_keeps_its_apis_and_the_range_stays_closed(runs: Any) -> None:
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(ordered(body=body, head=nn.Linear(4, 1)))
    dump = collected(
        runs, model, scope=["Module.body.Sequential.forward.0", "Module.body.2.Linear.forward.0"], extra_info=False
    )
    assert dump.names == [
        # The module that opened the range ends outside it and keeps its inputs, at the place of its begin.
        "Module.body.Sequential.forward.0",
        "Functional.linear.0.forward",
        "Module.body.0.Linear.forward.0",
        "Functional.relu.0.forward",
        "Module.body.1.ReLU.forward.0",
        "Functional.linear.1.forward",
        "Module.body.2.Linear.forward.0",
    ]
    assert set(dump.data["Module.body.Sequential.forward.0"]) == {"input_args", "input_kwargs"}
    last = dump.data["Module.body.2.Linear.forward.0"]
    assert set(last) == {"input_args", "input_kwargs", "output", "parameters"}


def ordered(**modules: Any) -> Any:
    return collections.OrderedDict(modules)


# 4
def test_calls_after_an_exception_in_an_api_are_recorded(runs: Any) -> None:
    def call() -> None:
        with pytest.raises(RuntimeError):
            torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
        with pytest.raises(RuntimeError):
            F.linear(torch.ones(2, 3), torch.ones(2, 4))
        torch.abs(torch.ones(2))

    assert collected(runs, nn.ReLU(), call, "L1").names[-1] == "Torch.abs.0.forward"


# 4
def test_modules_after_an_exception_have_their_own_parent(runs: Any) -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("no")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Failing(), nn.ReLU()

        def forward(self, x: Any) -> Any:
            try:
                return self.bad(x)
            except ValueError:
                return self.good(x)

    tree = collected(runs, Net()).tree
    assert (
        tree["Module.good.ReLU.forward.0"] is None and tree["Functional.relu.0.forward"] == "Module.good.ReLU.forward.0"
    )


# 4
def test_calls_after_the_early_stop_of_a_checkpoint_are_recorded(runs: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return checkpoint(lambda v: self.two(torch.tanh(self.one(v))) + 1, x, use_reentrant=False)

    def call() -> None:
        for _ in range(2):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        torch.abs(torch.ones(1))

    model = Net()
    dump = collected(runs, model, call)
    assert "Torch.abs.0.forward" in dump.names and dump.tree["Torch.abs.0.forward"] is None
    assert dump.tree["Module.one.Linear.forward.2"] is None, "the second pass is inside nothing"


# 5
def test_all_matrix_products_are_core(runs: Any, backend: Any) -> None:
    for base in ("Functional.linear", "Torch.matmul", "Torch.chain_matmul", "Tensor.__matmul__", "Torch.bmm"):
        assert backend.adapter.hooks.risk_class(base) == "core", base
    for base in ("Tensor.gather", "Torch.gather", "Tensor.scatter", "Torch.scatter"):
        assert backend.adapter.hooks.risk_class(base) != "core", base
    assert (
        backend.adapter.hooks.risk_class("Distributed.gather")
        == backend.adapter.hooks.risk_class("Distributed.scatter")
        == "core"
    )
    x = torch.ones(2, 2)
    dump = collected(runs, nn.ReLU(), lambda: (F.linear(x, x), F.relu(x)), "L1", risk_level="CORE")
    assert dump.names == ["Functional.linear.0.forward"]


# 6; more in test_api_calls.py
def test_vf_and_aten_are_recorded(runs: Any) -> None:
    x = torch.ones(1, 3, 2)
    relu = nn.RNN(2, 2, nonlinearity="relu")
    calls = (nn.LSTM(2, 2), nn.GRU(2, 2), nn.RNN(2, 2), relu, torch.ops.aten.relu)
    dump = collected(runs, nn.ReLU(), lambda: [call(x) for call in calls], "L1")
    recurrent = [f"VF.{name}.0.forward" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    assert dump.names == [*recurrent, "Aten.relu.0.forward"]


def test_single_steps_of_recurrent_layers_are_recorded(runs: Any) -> None:
    x = torch.ones(3, 2)
    calls = (nn.LSTMCell(2, 2), nn.GRUCell(2, 2), nn.RNNCell(2, 2), nn.RNNCell(2, 2, nonlinearity="relu"))
    dump = collected(runs, nn.ReLU(), lambda: [call(x) for call in calls], "L1")
    assert dump.names == [
        f"VF.{name}.0.forward" for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
    ]


def test_tied_weights_are_reported_by_the_module_that_was_called_first(runs: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.embedding = nn.Linear(4, 8, bias=False), nn.Embedding(8, 4)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(tokens))

    model = Tied()
    theirs: list[int] = []
    # A hook of the program, such as an optimizer's, still comes last.
    model.head.weight.register_post_accumulate_grad_hook(lambda parameter: theirs.append(parameter.grad.numel()))
    dump = collected(runs, model, lambda: model(torch.tensor([1, 2])).sum().backward(), "L0")
    gradients = [name for name in dump.names if "parameters_grad" in name]
    assert gradients == ["Module.embedding.Embedding.parameters_grad.0", "Module.head.Linear.parameters_grad.0"]
    assert theirs == [32]


# 7; more in test_checksums.py
def test_xor_is_a_hexadecimal_text_for_any_shape(backend: Any) -> None:
    for tensor, expected in ((torch.tensor(2.0), "0x0000000040000000"), (torch.zeros(0), "0x" + "0" * 16)):
        assert backend.adapter.tensors.describe_tensor(tensor, StatisticsMode("xor"))["md5"] == expected


# 8; more in test_values.py
def test_positional_dtypes_and_devices_are_described(runs: Any) -> None:
    def call() -> None:
        torch.Tensor.float(torch.ones(1))
        Owner.take(torch.float16, torch.device("cpu"), None, device=torch.device("cpu"), dtype=None)

    class Owner:
        take = staticmethod(lambda *args, **kwargs: None)

    debugger = runs.new()
    debugger.register_custom_api(Owner, "take", "User")
    debugger.start()
    call()
    debugger.stop()
    record = runs.read().data["User.take.0.forward"]
    dtype, device = {"type": "torch.dtype", "value": "torch.float16"}, {"type": "torch.device", "value": "cpu"}
    assert record["input_args"] == [dtype, device, None]
    assert record["input_kwargs"] == {"device": device, "dtype": None}


# 9; more in test_given_models.py
def test_names_belong_to_the_model_given_last(runs: Any) -> None:
    shared = nn.Linear(4, 4)
    first, second = nn.Sequential(ordered(a=shared)), nn.Sequential(ordered(b=shared))
    debugger = runs.new(level="L0")
    for model in (first, second):
        debugger.start(model)
        model(torch.ones(1, 4))
        debugger.stop()
    assert runs.read().names == ["Module.a.Linear.forward.0", "Module.b.Linear.forward.0"]


# 10; more in test_given_models.py
@pytest.mark.parametrize("form", ["ReLU", "+=", "mul_"])
def test_in_place_modules_lose_no_backward(runs: Any, form: str) -> None:
    class InPlace(nn.Module):
        def forward(self, x: Any) -> Any:
            if form == "+=":
                x += 1
                return x
            return x.mul_(2) if form == "mul_" else F.relu(x, inplace=True)

    model = nn.Sequential(nn.Linear(4, 3), InPlace(), nn.Linear(3, 2))
    dump = collected(runs, model, level="L0")
    expected = ["Module.2.Linear.backward.0", "Module.1.InPlace.backward.0", "Module.0.Linear.backward.0"]
    assert dump.backward == expected
    for name in expected:
        assert all(entry is not None for entry in dump.data[name]["input"] + dump.data[name]["output"])


# 11; more in test_training.py
def test_modules_with_dataclass_outputs_and_keyword_inputs_have_backward(runs: Any) -> None:
    @dataclasses.dataclass
    class Result:
        value: Any

    class Inner(nn.Module):
        def forward(self, x: Any, *, y: Any) -> Any:
            return Result(x * 2 + y * 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Any) -> Any:
            return self.inner(x * 1, y=x * 1).value

    dump = collected(runs, Net(), level="L0")
    record = dump.data["Module.inner.Inner.backward.0"]
    assert [entry["Max"] for entry in record["output"]] == [2.0, 3.0]


# 12; more in test_life.py
def test_step_without_stop_ends_collection_quietly(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = runs.new()
    debugger.start()
    torch.abs(torch.ones(1))
    debugger.step()
    capsys.readouterr()
    torch.abs(torch.ones(1))
    debugger.start()
    torch.abs(torch.ones(1))
    debugger.stop()
    assert "not a dict" not in capsys.readouterr().err
    assert runs.read(0).names == runs.read(1).names == ["Torch.abs.0.forward"]


# 13
def test_the_task_given_to_the_constructor_reaches_save(runs: Any) -> None:
    debugger = runs.new(task="structure", arguments={"task": "statistics", "level": "debug"})
    debugger.save(torch.ones(2), "x", save_backward=False)
    debugger.stop()
    (path,) = runs.path.glob("step0/*/debug.json")
    content = json.loads(path.read_text())
    assert content["task"] == "statistics" and content["data"]["x.0.debug"]["Max"] == 1.0


# 14
def test_one_divided_by_a_tensor_is_named_by_what_torch_does(runs: Any) -> None:
    dump = collected(runs, nn.ReLU(), lambda: 1 / torch.ones(2), "L1")
    assert dump.names == ["Tensor.reciprocal.0.forward", "Tensor.__mul__.0.forward"]


# 15; more in test_statistics.py
def test_integers_have_a_mean_and_a_norm_in_every_shape(backend: Any) -> None:
    for shape in ((), (1,), (2, 2)):
        entry = backend.adapter.tensors.describe_tensor(torch.full(shape, 3), StatisticsMode())
        assert (entry["Mean"], entry["Norm"]) == (3.0, 3.0 * np.sqrt(max(1, np.prod(shape))))


# 16
def test_construct_at_l1_is_an_empty_object(runs: Any) -> None:
    dump = collected(runs, nn.ReLU(), lambda: torch.abs(torch.ones(1)), "L1")
    assert (dump.folder / "construct.json").read_text() == "{}"
