"""Ways to call a torch function, and under which name each is recorded."""

from __future__ import annotations

import contextlib
import inspect
import operator
import pickle
import sys
import threading
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu
from torch.nn.functional import relu as bound_functional_relu
from torch.overrides import TorchFunctionMode

from probe.backends.torch.hooks.api_calls import ApiCalls

X = torch.tensor([[1.0, -2.0], [3.0, -4.0]])


def names(runs: Any, function: Any, **settings: Any) -> list[str]:
    """The forward names of what `function` calls."""
    debugger = runs.new(**settings)
    debugger.start()
    function()
    debugger.stop()
    return [name[: -len(".forward")] for name in runs.read().forward]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: relu(X), ["Torch.relu.0"]),
        (lambda: bound_functional_relu(X), ["Functional.relu.0"]),
        (lambda: nn.ReLU()(X), ["Functional.relu.0"]),
        (lambda: X.relu(), ["Tensor.relu.0"]),
        (lambda: torch.Tensor.relu(X), ["Tensor.relu.0"]),
        (lambda: torch.relu_(X.clone()), ["Torch.relu_.0"]),
        (lambda: X + 1, ["Tensor.__add__.0"]),
        (lambda: 1 + X, ["Tensor.__radd__.0"]),
        (lambda: operator.add(X, 1), ["Tensor.__add__.0"]),
        (lambda: X.add(1), ["Tensor.add.0"]),
        (lambda: torch.add(X, 1), ["Torch.add.0"]),
        (lambda: X.__add__(1), ["Tensor.__add__.0"]),
        (lambda: sum([X, X, X]), ["Tensor.__radd__.0", "Tensor.__add__.0", "Tensor.__add__.1"]),
        (lambda: 1 - X, ["Tensor.__rsub__.0"]),
        (lambda: X - 1, ["Tensor.__sub__.0"]),
        (lambda: 2**X, ["Tensor.__rpow__.0"]),
        (lambda: X**2, ["Tensor.__pow__.0"]),
        (lambda: X / 2, ["Tensor.__truediv__.0"]),
        (lambda: X // 2, ["Tensor.__floordiv__.0"]),
        (lambda: X % 2, ["Tensor.__mod__.0"]),
        (lambda: X @ X, ["Tensor.__matmul__.0"]),
        (lambda: X < 1, ["Tensor.__lt__.0"]),
        (lambda: X == X, ["Tensor.__eq__.0"]),
        (lambda: bool(X[0, 0] > 0), ["Tensor.__gt__.0", "Tensor.__bool__.0"]),
        (lambda: (X > 0) & (X < 2), ["Tensor.__gt__.0", "Tensor.__lt__.0", "Tensor.__and__.0"]),
        (lambda: operator.iadd(X.clone(), 1), ["Tensor.__iadd__.0"]),
        (lambda: operator.imul(X.clone(), 2), ["Tensor.__imul__.0"]),
        (lambda: operator.setitem(X.clone(), 0, 5.0), ["Tensor.__setitem__.0"]),
        (lambda: X[0], []),
        (lambda: X.view(4), []),
        (lambda: (X.detach(), X.contiguous(), X.T, X[0, 0].item()), []),
        (lambda: X.sum(), ["Tensor.sum.0"]),
        (lambda: torch.sum(X), ["Torch.sum.0"]),
        (lambda: torch.linalg.vector_norm(X), ["Torch.vector_norm.0"]),
        (lambda: torch.cat([X, X]), ["Torch.cat.0"]),
        (lambda: F.linear(X, X), ["Functional.linear.0"]),
        (lambda: F.softmax(X, dim=0), ["Functional.softmax.0"]),
        (lambda: F.layer_norm(X, (2,)), ["Functional.layer_norm.0"]),
        (lambda: F.cross_entropy(X, torch.tensor([0, 1])), ["Functional.cross_entropy.0"]),
        (lambda: torch.softmax(X, 0), ["Torch.softmax.0"]),
        (lambda: torch.einsum("ij,jk->ik", X, X), ["Torch.einsum.0"]),
    ],
    ids=range(41),
)
def test_a_call_has_the_name_of_its_entry_point(runs: Any, function: Any, expected: list[str]) -> None:
    assert names(runs, function) == expected


def test_conv2d_of_functional_and_of_torch_are_told_apart(runs: Any) -> None:
    image, kernel = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    module = nn.Conv2d(1, 1, 2)
    found = names(runs, lambda: (F.conv2d(image, kernel), torch.conv2d(image, kernel), module(image)))
    assert found == ["Functional.conv2d.0", "Torch.conv2d.0", "Functional.conv2d.1"]


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


def test_direct_calls_of_aten_and_vf_are_recorded(runs: Any) -> None:
    found = names(
        runs,
        lambda: (
            torch.ops.aten.relu(X),
            torch.ops.aten.add.Tensor(X, X),
            torch.ops.aten.relu.default(X),
            torch._VF.lstm_cell(X, (X, X), torch.ones(8, 2), torch.ones(8, 2)),
        ),
    )
    assert found == ["Aten.relu.0", "Aten.add.0", "Aten.relu.1", "VF.lstm_cell.0"]


def test_arguments_are_recorded_as_the_user_gave_them(runs: Any) -> None:
    debugger = runs.new()
    debugger.start()
    F.softmax(X, dim=1)
    F.dropout(X, training=False)
    torch.sum(X, 0, keepdim=True)
    debugger.stop()
    data = runs.read().data
    assert data["Functional.softmax.0.forward"]["input_kwargs"] == {"dim": {"type": "int", "value": 1}}
    assert data["Functional.dropout.0.forward"]["input_kwargs"] == {"training": {"type": "bool", "value": False}}
    record = data["Torch.sum.0.forward"]
    assert record["input_args"][1] == {"type": "int", "value": 0}
    assert record["input_kwargs"] == {"keepdim": {"type": "bool", "value": True}}


def test_an_operator_that_declines_leaves_the_call_to_the_other_operand(runs: Any) -> None:
    class Other:
        def __radd__(self, other: Any) -> str:
            return "mine"

    class Strange:
        __array_priority__ = 0

    debugger = runs.new()
    debugger.start()
    result = X.__eq__(Strange())
    assert (X.__ne__(Strange())) is NotImplemented
    X + 1
    debugger.stop()
    assert result is NotImplemented
    assert runs.read().forward == ["Tensor.__add__.0.forward"]


def test_a_failing_operator_raises_what_torch_raises(runs: Any) -> None:
    with pytest.raises(TypeError) as plain:
        X + "text"
    debugger = runs.new()
    debugger.start()
    with pytest.raises(TypeError) as watched:
        X + "text"
    debugger.stop()
    assert str(watched.value) == str(plain.value)


def test_a_tensor_subclass_with_its_own_torch_function_is_respected(runs: Any) -> None:
    class Logged(torch.Tensor):
        seen: list[str] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.seen.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs or {})

    def use() -> list[str]:
        Logged.seen.clear()
        value = X.as_subclass(Logged)
        torch.abs(value)
        F.relu(value)
        value + 1
        value.sum()
        return list(Logged.seen)

    plain = use()
    debugger = runs.new()
    debugger.start()
    watched = use()
    debugger.stop()
    assert watched == plain
    assert [name for name in runs.read().forward if "abs" in name] == ["Torch.abs.0.forward"]


def test_duck_typed_objects_with_torch_function_are_respected(runs: Any) -> None:
    class Duck:
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> str:
            return f"duck {function.__name__}"

    debugger = runs.new()
    debugger.start()
    results = [torch.abs(Duck()), F.relu(Duck()), F.softmax(Duck(), dim=0), torch.cat([Duck()])]
    debugger.stop()
    assert results == ["duck abs", "duck relu", "duck softmax", "duck cat"]


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


def test_set_default_device_between_start_and_stop(runs: Any) -> None:
    debugger = runs.new()
    debugger.start()
    torch.set_default_device("meta")
    try:
        assert torch.abs(torch.ones(2)).device.type == "meta"
        debugger.stop()
        assert torch.ones(2).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
    assert torch._C._len_torch_function_stack() == 0
    assert runs.read().forward == ["Torch.abs.0.forward"]


@pytest.mark.parametrize("other", ["meta", None])
def test_a_default_device_set_before_can_be_changed_between_start_and_stop(runs: Any, other: str | None) -> None:
    debugger = runs.new()
    torch.set_default_device("cpu")
    try:
        debugger.start()
        torch.set_default_device(other)
        assert torch.abs(torch.ones(2)).device.type == (other or "cpu")
        debugger.stop()
        assert torch.ones(2).device.type == (other or "cpu")
    finally:
        torch.set_default_device(None)
    assert torch._C._len_torch_function_stack() == 0
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
    debugger = runs.new()
    debugger.start()
    with torch._C.DisableTorchFunction():
        assert torch.abs(X).min() == 1.0
    torch.abs(X)
    debugger.stop()
    assert "Torch.abs.0.forward" in runs.read().forward


def test_the_functions_of_torch_keep_their_name_and_get_back_their_code(runs: Any) -> None:
    functions = [F.relu, F.linear, F.softmax, torch.norm, torch.einsum, torch.nn.utils.clip_grad_norm_, F.dropout]

    def facts() -> list[Any]:
        return [(f, f.__name__, f.__doc__, getattr(f, "__defaults__", None)) for f in functions]

    def signatures() -> list[str]:
        return [str(inspect.signature(f)) for f in functions if inspect.isfunction(f)]

    before, code, signature, names = facts(), F.relu.__code__, signatures(), dir(F.relu)
    debugger = runs.new(level="mix")
    debugger.start(nn.Sequential(nn.ReLU()))
    assert facts() == before
    assert pickle.loads(pickle.dumps(F.relu)) is F.relu
    debugger.stop()
    assert facts() == before and F.relu.__code__ is code and signatures() == signature and dir(F.relu) == names


def test_the_functions_of_torch_show_their_signature_while_collecting(runs: Any) -> None:
    before = inspect.signature(F.relu)
    debugger = runs.new()
    debugger.start()
    during = inspect.signature(F.relu)
    debugger.stop()
    assert during == before


def test_the_source_of_a_function_can_be_read_while_collecting(runs: Any) -> None:
    before = inspect.getsource(F.relu)
    debugger = runs.new()
    debugger.start()
    during = inspect.getsource(F.relu)
    debugger.stop()
    assert during == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripting_works_while_collecting(runs: Any) -> None:
    debugger = runs.new(level="mix")
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    debugger.start(model)
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    debugger.stop()
    assert scripted(X).shape == (2, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_class_is_scripted_with_the_names_around_it(runs: Any) -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) * 2

    class Scaled:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def get(self, x: torch.Tensor) -> torch.Tensor:
            return helper(x) * self.factor

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return Scaled(2).get(x)

    debugger = runs.new()
    debugger.start()
    torch.jit.script(Scaled)
    scripted = torch.jit.script(scaled)
    debugger.stop()
    assert torch.equal(scripted(X), X.relu() * 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tracing_sees_none_of_our_operations(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def operations(traced: Any) -> list[str]:
        return [node.kind() for node in traced.inlined_graph.nodes()]

    expected = operations(torch.jit.trace(model, X, check_trace=False))
    debugger = runs.new(level=level, summary_mode="md5")
    debugger.start(model)
    traced = torch.jit.trace(model, X, check_trace=False)
    debugger.stop()
    assert operations(traced) == expected
    assert torch.equal(traced(X), model(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("when", ["compiled before", "compiled while collecting"])
def test_compiled_programs_run_as_without_us(runs: Any, level: str, when: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    plain = model(X)
    compiled = torch.compile(model, backend="eager")
    if when == "compiled before":
        compiled(X)
    debugger = runs.new(level=level)
    debugger.start(model)
    during = compiled(X)
    debugger.stop()
    debugger.step()
    after = compiled(X)
    assert torch.equal(during, plain) and torch.equal(after, plain)
    torch._dynamo.reset()


def test_torch_overrides_says_what_it_says_without_us(runs: Any) -> None:
    question = torch.overrides.has_torch_function
    assert question((X,)) is False
    debugger = runs.new()
    debugger.start()
    assert torch.overrides.has_torch_function((X,)) is False
    debugger.stop()
    assert torch.overrides.has_torch_function is question


def test_a_traced_function_holds_the_same_operations(runs: Any) -> None:
    debugger = runs.new()

    def function(x: Any) -> Any:
        return torch.abs(x) * 2

    debugger.start()
    graph = torch.fx.symbolic_trace(function)
    debugger.stop()
    assert [str(node.op) for node in graph.graph.nodes] == ["placeholder", "call_function", "call_function", "output"]
    assert torch.equal(graph(X), X.abs() * 2)


def test_an_import_from_before_has_the_name_that_everybody_uses(runs: Any) -> None:
    debugger = runs.new(level="L1")
    imported = torch.mm
    debugger.start()
    imported(torch.eye(2), torch.eye(2))
    torch.mm(torch.eye(2), torch.eye(2))
    debugger.stop()
    assert [name for name in runs.read().forward if "mm" in name] == ["Torch.mm.0.forward", "Torch.mm.1.forward"]


def test_a_function_that_was_bound_before_a_user_replaced_it_is_recorded(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, add = torch.relu, torch.Tensor.add
    monkeypatch.setattr(torch, "relu", lambda x: original(x))
    monkeypatch.setattr(torch.Tensor, "add", lambda *args: add(*args))
    debugger = runs.new()
    debugger.start()
    original(X)
    torch.relu(X)
    add(X, 1)
    debugger.stop()
    assert runs.read().forward == ["Torch.relu.0.forward", "Torch.relu.1.forward", "Tensor.add.0.forward"]


def test_an_object_in_the_place_of_a_function_stays_the_one_that_the_program_finds(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: Any = mock.MagicMock(wraps=torch.sigmoid)
    monkeypatch.setattr(torch, "sigmoid", ours)
    debugger = runs.new()
    debugger.start()
    found, _ = torch.sigmoid, torch.sigmoid(X)
    counted = torch.sigmoid.call_count
    debugger.stop()
    assert found is ours and counted == 1
    assert runs.read().forward == ["Torch.sigmoid.0.forward"]


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
    debugger = runs.new()
    debugger.start()
    library.named(X)
    otherwise(X)
    debugger.stop()
    assert calls == ["wrapped", "named", "otherwise"]
    assert runs.read().forward == ["Torch.relu.0.forward"]


def test_tensors_with_a_table_of_functions_are_handed_those_of_torch(runs: Any) -> None:
    seen: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: seen.append(name)

    operators = ["__eq__", "__setitem__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"]
    table = {getattr(torch.Tensor, name): note(name) for name in operators}

    class Noting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in table:
                return table[function](*args)
            return super().__torch_function__(function, types, args, kwargs or {})

    x: Any = torch.tensor([1, 2]).as_subclass(Noting)
    debugger = runs.new(level="L1")
    debugger.start()
    _ = x == 2, x & x, x | x, x ^ x, x << 1, x >> 1
    x[0] = 5
    debugger.stop()
    assert sorted(seen) == sorted(operators)


@pytest.mark.parametrize("other", [None, "a", object(), 2], ids=repr)
@pytest.mark.parametrize("mode", [False, True])
def test_operators_answer_as_without_us_also_what_they_know_nothing_of(runs: Any, other: Any, mode: bool) -> None:
    def answers() -> list[str]:
        found = []
        for operate in (operator.eq, operator.and_, operator.or_, operator.xor, operator.lshift):
            try:
                found.append(repr(operate(torch.tensor([1, 2]), other)))
            except TypeError as error:
                found.append(str(error))
        return found

    with torch.device("cpu") if mode else contextlib.nullcontext():
        expected = answers()
        debugger = runs.new(level="L1")
        debugger.start()
        found = answers()
        debugger.stop()
    assert found == expected
