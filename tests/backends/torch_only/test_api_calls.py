"""Ways to call a torch function, and under which name each is recorded."""

from __future__ import annotations

import contextlib
import inspect
import operator
import pickle
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu
from torch.nn.functional import relu as bound_functional_relu
from torch.overrides import TorchFunctionMode
from torch_parts import collected, neutral

from probe.backends.torch.hooks.api_calls import ApiCalls

X = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
IMAGE, KERNEL, SEQUENCE = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), torch.ones(1, 3, 2)
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def names(runs: Any, function: Any, **settings: Any) -> list[str]:
    """The forward names of what `function` calls."""
    dump = collected(runs, None, function, **{"level": "L1", **settings})
    return [name[: -len(".forward")] for name in dump.forward]


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: relu(X), "Torch.relu.0"),
    (lambda: bound_functional_relu(X), "Functional.relu.0"),
    (lambda: nn.ReLU()(X), "Functional.relu.0"),
    (lambda: X.relu(), "Tensor.relu.0"),
    (lambda: torch.Tensor.relu(X), "Tensor.relu.0"),
    (lambda: torch.relu_(X.clone()), "Torch.relu_.0"),
    (lambda: X + 1, "Tensor.__add__.0"),
    (lambda: 1 + X, "Tensor.__radd__.0"),
    (lambda: operator.add(X, 1), "Tensor.__add__.0"),
    (lambda: X.add(1), "Tensor.add.0"),
    (lambda: torch.add(X, 1), "Torch.add.0"),
    (lambda: X.__add__(1), "Tensor.__add__.0"),
    (lambda: sum([X, X, X]), "Tensor.__radd__.0 Tensor.__add__.0 Tensor.__add__.1"),
    (lambda: 1 - X, "Tensor.__rsub__.0"),
    (lambda: X - 1, "Tensor.__sub__.0"),
    (lambda: 2**X, "Tensor.__rpow__.0"),
    (lambda: X**2, "Tensor.__pow__.0"),
    (lambda: X / 2, "Tensor.__truediv__.0"),
    (lambda: X // 2, "Tensor.__floordiv__.0"),
    (lambda: X % 2, "Tensor.__mod__.0"),
    (lambda: X @ X, "Tensor.__matmul__.0"),
    (lambda: X < 1, "Tensor.__lt__.0"),
    (lambda: X == X, "Tensor.__eq__.0"),
    (lambda: bool(X[0, 0] > 0), "Tensor.__gt__.0 Tensor.__bool__.0"),
    (lambda: (X > 0) & (X < 2), "Tensor.__gt__.0 Tensor.__lt__.0 Tensor.__and__.0"),
    (lambda: operator.iadd(X.clone(), 1), "Tensor.__iadd__.0"),
    (lambda: operator.imul(X.clone(), 2), "Tensor.__imul__.0"),
    (lambda: operator.setitem(X.clone(), 0, 5.0), "Tensor.__setitem__.0"),
    (lambda: X[0], ""),
    (lambda: X.view(4), ""),
    (lambda: (X.detach(), X.contiguous(), X.T, X[0, 0].item()), ""),
    (lambda: X.sum(), "Tensor.sum.0"),
    (lambda: torch.sum(X), "Torch.sum.0"),
    (lambda: torch.linalg.vector_norm(X), "Torch.vector_norm.0"),
    (lambda: torch.cat([X, X]), "Torch.cat.0"),
    (lambda: F.linear(X, X), "Functional.linear.0"),
    (lambda: F.softmax(X, dim=0), "Functional.softmax.0"),
    (lambda: F.layer_norm(X, (2,)), "Functional.layer_norm.0"),
    (lambda: F.cross_entropy(X, torch.tensor([0, 1])), "Functional.cross_entropy.0"),
    (lambda: torch.softmax(X, 0), "Torch.softmax.0"),
    (lambda: torch.einsum("ij,jk->ik", X, X), "Torch.einsum.0"),
    # Functional and torch are told apart, and a module calls the first.
    (
        lambda: (F.conv2d(IMAGE, KERNEL), torch.conv2d(IMAGE, KERNEL), nn.Conv2d(1, 1, 2)(IMAGE)),
        "Functional.conv2d.0 Torch.conv2d.0 Functional.conv2d.1",
    ),
    (lambda: 1 / X, "Tensor.reciprocal.0 Tensor.__mul__.0"),
    (
        lambda: (torch.ops.aten.relu(X), torch.ops.aten.add.Tensor(X, X), torch.ops.aten.relu.default(X)),
        "Aten.relu.0 Aten.add.0 Aten.relu.1",
    ),
    (lambda: [layer(2, 2)(SEQUENCE) for layer in (nn.LSTM, nn.GRU, nn.RNN)], "VF.lstm.0 VF.gru.0 VF.rnn_tanh.0"),
    (lambda: nn.RNN(2, 2, nonlinearity="relu")(SEQUENCE), "VF.rnn_relu.0"),
    (lambda: [cell(2, 2)(X) for cell in (nn.LSTMCell, nn.GRUCell)], "VF.lstm_cell.0 VF.gru_cell.0"),
    (
        lambda: [nn.RNNCell(2, 2, nonlinearity=kind)(X) for kind in ("tanh", "relu")],
        "VF.rnn_tanh_cell.0 VF.rnn_relu_cell.0",
    ),
]


@pytest.mark.parametrize(("function", "expected"), CALLS, ids=range(len(CALLS)))
def test_a_call_has_the_name_of_its_entry_point(runs: Any, function: Any, expected: str) -> None:
    assert names(runs, function) == expected.split()


def test_an_object_that_says_it_is_a_module_and_is_none_stops_no_recording(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        """Looks like a library of cffi, which the package cryptography puts among the modules."""

        __class__ = ModuleType  # type: ignore[assignment]

    library = Library()
    assert isinstance(library, ModuleType)
    assert type(library) is Library
    monkeypatch.setitem(sys.modules, "a_library_of_cffi", library)  # type: ignore[arg-type]
    assert names(runs, lambda: torch.relu(X)) == ["Torch.relu.0"]


def test_matrix_products_are_core_and_what_gathers_is_not(runs: Any, backend: Any) -> None:
    classes = {
        True: "Functional.linear Torch.matmul Torch.chain_matmul Tensor.__matmul__ Torch.bmm Distributed.gather",
        False: "Tensor.gather Torch.gather Tensor.scatter Torch.scatter",
    }
    for is_core, bases in classes.items():
        assert {backend.adapter.hooks.risk_class(base) == "core" for base in bases.split()} == {is_core}
    assert names(runs, lambda: (F.linear(X, X), F.relu(X)), level="L1", risk_level="CORE") == ["Functional.linear.0"]


def test_calls_after_an_exception_in_an_api_are_recorded(runs: Any) -> None:
    def call() -> None:
        for function in (torch.matmul, F.linear):
            with pytest.raises(RuntimeError):
                function(torch.ones(2, 3), torch.ones(2, 4))
        torch.abs(X)

    assert names(runs, call, level="L1")[-1] == "Torch.abs.0"


def test_arguments_are_recorded_as_the_user_gave_them(runs: Any) -> None:
    def call() -> None:
        F.softmax(X, dim=1)
        F.dropout(X, training=False)
        torch.sum(X, 0, keepdim=True)

    data = collected(runs, None, call, "L1").data
    assert data["Functional.softmax.0.forward"]["input_kwargs"] == {"dim": {"type": "int", "value": 1}}
    assert data["Functional.dropout.0.forward"]["input_kwargs"] == {"training": {"type": "bool", "value": False}}
    record = data["Torch.sum.0.forward"]
    assert record["input_args"][1] == {"type": "int", "value": 0}
    assert record["input_kwargs"] == {"keepdim": {"type": "bool", "value": True}}


# --- operands and tensors with rules of their own


class Strange:
    __array_priority__ = 0


def answers(operand: Any) -> list[Any]:
    """What operators give or raise beside `operand`; some of it they know nothing of."""
    found: list[Any] = [X.__eq__(operand) is NotImplemented, X.__ne__(operand) is NotImplemented]
    for operate in (operator.eq, operator.add, operator.and_, operator.or_, operator.xor, operator.lshift):
        try:
            found.append(repr(operate(torch.tensor([1, 2]), operand)))
        except TypeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("operand", [None, "a", Strange(), 2], ids=repr)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, lambda: torch.device("cpu")])
def test_operators_answer_as_without_us_also_what_they_know_nothing_of(runs: Any, operand: Any, mode: Any) -> None:
    with mode():
        neutral(runs, nn.Identity, lambda _: answers(operand), "L1")


class Logged(torch.Tensor):
    """Does something of its own where it is given to one of a table of functions."""

    seen: list[str] = []  # noqa: RUF012
    table = {getattr(torch.Tensor, f"__{name}__") for name in ("eq", "setitem", "and", "or", "xor", "lshift")}  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(function, "__name__", str(function)))
        if function in cls.table:
            return cls.seen.append("of the table")
        return super().__torch_function__(function, types, args, kwargs or {})


class Duck:
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> str:
        return f"duck {function.__name__}"


def test_tensors_and_objects_with_torch_function_are_respected(runs: Any) -> None:
    def work(_: Any) -> Any:
        Logged.seen.clear()
        value, whole = X.as_subclass(Logged), torch.tensor([1, 2]).as_subclass(Logged)
        torch.abs(value), F.relu(value), value + 1, value.sum()
        _ = whole == 2, whole & whole, whole | whole, whole ^ whole, whole << 1
        whole[0] = 5
        assert Logged.seen.count("of the table") == len(Logged.table)
        ducks = [torch.abs(Duck()), F.relu(Duck()), F.softmax(Duck(), dim=0), torch.cat([Duck()])]
        assert ducks == ["duck abs", "duck relu", "duck softmax", "duck cat"]
        return list(Logged.seen)

    assert "Torch.abs.0.forward" in neutral(runs, nn.Identity, work, "L1").forward


# --- the user's modes


class Recording(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def use() -> None:
    y = torch.abs(X) + 1
    F.relu(y).sum()
    F.softmax(y, dim=0)
    nn.Linear(2, 2)(y)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    "nesting", ["start outside", "start inside", "start inside, stop outside", "start outside, stop inside"]
)
def test_a_function_mode_of_the_user_sees_nothing_of_ours(runs: Any, nesting: str, task: str) -> None:
    with Recording() as plain:
        use()
    debugger = runs.new(task=task, summary_mode="md5")
    mode = Recording()
    if not nesting.startswith("start inside"):
        debugger.start()
    with mode:
        if nesting.startswith("start inside"):
            debugger.start()
        use()
        if nesting.endswith("stop inside") or nesting == "start inside":
            debugger.stop()
    debugger.stop()
    assert torch._C._len_torch_function_stack() == 0
    assert mode.seen == plain.seen
    assert runs.read().forward[:2] == ["Torch.abs.0.forward", "Tensor.__add__.0.forward"]


def test_a_default_device_works_in_any_nesting(runs: Any) -> None:
    debugger = runs.new()
    with torch.device("meta"):
        debugger.start()
        assert torch.ones(2).device.type == "meta"
        assert F.relu(torch.ones(2)).device.type == "meta"
    assert torch.ones(2).device.type == "cpu"
    with torch.device("meta"):
        debugger.stop()
        assert torch.ones(2).device.type == "meta"
        debugger.start()
    assert torch.abs(torch.ones(2)).device.type == "cpu"
    debugger.stop()
    assert torch._C._len_torch_function_stack() == 0
    assert runs.read().forward == ["Functional.relu.0.forward", "Torch.abs.0.forward"]


@pytest.mark.parametrize(("before", "other"), [(None, "meta"), ("cpu", "meta"), ("cpu", None)])
def test_a_default_device_can_be_set_between_start_and_stop(runs: Any, before: str | None, other: str | None) -> None:
    debugger = runs.new()
    torch.set_default_device(before)
    try:
        debugger.start()
        torch.set_default_device(other)
        assert torch.abs(torch.ones(2)).device.type == (other or "cpu")
        debugger.stop()
        assert torch.ones(2).device.type == (other or "cpu")
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu" and torch._C._len_torch_function_stack() == 0
    assert runs.read().forward == ["Torch.abs.0.forward"]


@pytest.mark.parametrize("function", ["_leave", "_enter"])
def test_what_an_interrupt_leaves_open_does_not_hide_what_comes_after(
    runs: Any, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """It may come while the tool is at work, and the program may go on after it."""
    debugger = runs.new()
    debugger.start()
    with monkeypatch.context() as patch:

        def interrupted(*_: Any) -> None:
            patch.undo()
            raise KeyboardInterrupt

        patch.setattr(ApiCalls, function, interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.abs(X)
    torch.sin(X)
    debugger.stop()
    assert "Torch.sin.0.forward" in runs.read().forward
    assert torch._C._len_torch_function_stack() == 0


def test_stopping_on_another_thread_leaves_nothing_to_be_noticed(runs: Any) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    given, question = torch.randn(2, 5, 16), torch.overrides.has_torch_function
    with torch.no_grad():
        # By a faster path, with other last bits, than where a mode is active.
        expected = model(given)
    debugger = runs.new()
    debugger.start()
    thread = threading.Thread(target=debugger.stop)
    thread.start()
    thread.join()
    with torch.no_grad():
        assert torch.equal(model(given), expected)
    # The thread that started it has to put back the rest.
    debugger.step()
    assert torch._C._len_torch_function_stack() == 0
    assert torch.overrides.has_torch_function is question
    assert runs.read().forward == []


def test_starting_on_a_thread_that_ends_leaves_nothing(runs: Any) -> None:
    question, debugger = torch.overrides.has_torch_function, runs.new()
    thread = threading.Thread(target=debugger.start)
    thread.start()
    thread.join()
    debugger.stop()
    assert torch.overrides.has_torch_function is question


def test_an_operator_that_the_user_replaces_while_collecting_is_the_original_in_the_end(runs: Any) -> None:
    original, debugger = torch.Tensor.__add__, runs.new()
    debugger.start()
    users = mock.patch.object(torch.Tensor, "__add__", lambda one, other: torch.mul(one, other))
    users.start()
    debugger.stop()
    debugger.step()
    assert torch.equal(X + X, X * X)
    debugger.start()
    debugger.stop()
    assert torch.equal(X + X, X * X)
    # Which puts the tool's own back, for that was there.
    users.stop()
    debugger.step()
    assert torch.Tensor.__add__ is original


def test_an_operator_that_the_user_replaces_between_two_collections_is_the_one_that_runs(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = runs.new()
    debugger.start()
    debugger.stop()
    monkeypatch.setattr(torch.Tensor, "__add__", lambda one, other: torch.mul(one, other))
    debugger.start()
    assert torch.equal(X + X, X * X)
    debugger.stop()
    assert torch.equal(X + X, X * X)


def test_disabled_torch_functions_do_not_break_anything(runs: Any) -> None:
    def call() -> None:
        with torch._C.DisableTorchFunction():
            assert torch.abs(X).min() == 1.0
        torch.abs(X)

    assert "Torch.abs.0" in names(runs, call)


def test_the_functions_of_torch_are_what_they_were(runs: Any) -> None:
    functions = [F.relu, F.linear, F.softmax, torch.norm, torch.einsum, torch.nn.utils.clip_grad_norm_, F.dropout]
    question = torch.overrides.has_torch_function

    def facts() -> list[Any]:
        found = [(f, f.__name__, f.__doc__, getattr(f, "__defaults__", None)) for f in functions]
        written = [f for f in functions if inspect.isfunction(f)]
        assert pickle.loads(pickle.dumps(F.relu)) is F.relu and torch.overrides.has_torch_function((X,)) is False
        return [*found, *(str(inspect.signature(f)) for f in written), inspect.getsource(F.relu)]

    before, code, attributes = facts(), F.relu.__code__, dir(F.relu)
    during: list[Any] = []
    collected(runs, nn.Sequential(nn.ReLU()), lambda: during.extend(facts()))
    assert during == before == facts() and F.relu.__code__ is code and dir(F.relu) == attributes
    assert torch.overrides.has_torch_function is question


@QUIET
def test_functions_modules_and_classes_are_scripted_with_the_names_around_them(runs: Any) -> None:
    def call() -> None:
        def helper(x: torch.Tensor) -> torch.Tensor:
            return F.relu(x) * 2

        class Scaled:
            def __init__(self, factor: int) -> None:
                self.factor = factor

            def get(self, x: torch.Tensor) -> torch.Tensor:
                return helper(x) * self.factor

        def scaled(x: torch.Tensor) -> torch.Tensor:
            return Scaled(2).get(x)

        torch.jit.script(Scaled)
        scripted.extend([torch.jit.script(scaled), torch.jit.script(nn.Sequential(nn.ReLU()))])

    scripted: list[Any] = []
    collected(runs, nn.Sequential(nn.Linear(2, 2), nn.ReLU()), call)
    assert torch.equal(scripted[0](X), X.relu() * 4) and torch.equal(scripted[1](X), X.relu())


def test_a_function_that_was_bound_before_a_user_replaced_it_is_recorded(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, add = torch.relu, torch.Tensor.add
    monkeypatch.setattr(torch, "relu", lambda x: original(x))
    monkeypatch.setattr(torch.Tensor, "add", lambda *args: add(*args))
    found = names(runs, lambda: (original(X), torch.relu(X), add(X, 1)))
    assert found == ["Torch.relu.0", "Torch.relu.1", "Tensor.add.0"]


def test_an_object_in_the_place_of_a_function_stays_the_one_that_the_program_finds(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: Any = mock.MagicMock(wraps=torch.sigmoid)
    monkeypatch.setattr(torch, "sigmoid", ours)
    found: list[Any] = []
    assert names(runs, lambda: found.extend([torch.sigmoid, torch.sigmoid(X)])) == ["Torch.sigmoid.0"]
    assert found[0] is ours and ours.call_count == 1


def test_a_function_of_the_user_that_may_hand_itself_over_does_what_it_does_without_us(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation of torch writes them; some ask by another way than the name in their module."""
    calls: list[str] = []
    library = ModuleType("a_library_of_functions")
    source = """
from torch.overrides import handle_torch_function, has_torch_function
import torch

class Asking:
    asks = staticmethod(has_torch_function)

def named(x):
    if has_torch_function((x,)):
        return handle_torch_function(named, (x,), x)
    calls.append("named")
    return torch.relu(x)

def otherwise(x):
    if Asking.asks((x,)):
        return handle_torch_function(otherwise, (x,), x)
    calls.append("otherwise")
    return torch.abs(x)
"""
    library.__dict__["calls"] = calls
    exec(source, library.__dict__)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    named, otherwise = library.named, library.otherwise
    monkeypatch.setattr(library, "named", lambda x: calls.append("wrapped") or named(x))
    assert names(runs, lambda: (library.named(X), otherwise(X))) == ["Torch.relu.0"]
    assert calls == ["wrapped", "named", "otherwise"]
