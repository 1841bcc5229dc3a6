"""What running a call alone has to get right for PyTorch besides what every backend does."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from probe.backends import loader
from probe.backends.protocol import UnknownValue
from probe.backends.torch.guards import unobserved
from probe.backends.torch.hooks import api_hooks
from probe.common.operations.function import Trait
from probe.common.operations.lookup import function, names_with

execution, randomness = loader.load("torch").execution, loader.load("torch").randomness


def tensor(*numbers: Any, dtype: str = "float32") -> Any:
    return execution.tensor(np.array(numbers), dtype, "cpu")


def gradients(function: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], *output_gradients: Any) -> list[Any]:
    evaluated = execution.evaluate(function, inputs, range(len(inputs)))
    return [None if found is None else found.tolist() for found in evaluated.gradients(output_gradients)]


# --- functions: what a dump, which anybody may have written, can have called

ACTING = re.compile("(^|_)(load|save|file|path|library|compile|eval|exec|import|print|dump|hub|jit|vmap)($|_)")


def test_every_listed_function_is_found_and_none_reads_writes_or_loads() -> None:
    families = api_hooks.watched()
    listed = [each for family in families if family != "distributed" for each in families[family]]
    missing = {each.name.base for each in listed if execution.function(each.name.base) is None}
    # torch has only left a message of these, and nothing of the same name elsewhere.
    of_torch = {name: getattr(function, "__module__", None) for name, function in vars(torch).items()}
    assert missing <= {f"Torch.{name}" for name, module in of_torch.items() if "_linalg_utils" in str(module)}
    assert len(listed) > 1000
    assert not [
        each.attribute for functions in families.values() for each in functions if ACTING.search(each.attribute)
    ]


@pytest.mark.parametrize(
    "base",
    [
        "Torch.load", "Torch.save", "Torch.from_file", "Torch.compile", "Torch.classes", "Torch.ops", "Torch.hub",
        "Torch.jit", "Torch.import_ir_module", "Torch.__import__", "Torch.sys.exit", "Tensor.tofile",
        "Tensor.__reduce__", "Tensor.register_hook", "Aten.from_file", "Aten.save", "Aten.load", "Aten.print",
        "Aten._print", "Aten.warn", "Aten.eval", "Aten._sparse_coo_tensor_unsafe", "Aten.__class__",
        "Aten.no_such_operator", "Aten.op", "Ops.load_library", "NPU.load_library", "Distributed.all_reduce",
        "VF.__dict__", "VF.from_file", "VF.__class__", "torch.ops.load_library",
    ],
)  # fmt: skip
def test_what_does_not_only_compute_is_out_of_reach(base: str) -> None:
    assert execution.function(base) is None
    assert execution.script.spelled(base, None) is None


def test_no_operator_in_reach_takes_the_name_of_a_file() -> None:
    schemas = [each for each in torch._C._jit_get_all_schemas() if each.name.startswith("aten::")]
    taking = {
        schema.name.partition("::")[2] for schema in schemas
        for argument in schema.arguments if re.search("file|path|library|code", argument.name)
        and "str" in str(argument.type)
    }  # fmt: skip
    assert taking
    assert not [name for name in taking if execution.function(f"Aten.{name}") is not None]


@pytest.mark.parametrize("name", ["npu_load_library", "npu_save", "npu_dump_tensor", "npu_config"])
def test_names_of_torch_npu_that_act_are_out_of_reach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    setattr(module, name, print)
    module.npu_rms_norm = torch.relu  # type: ignore[attr-defined]
    assert execution.function(f"NPU.{name}") is None
    assert execution.function("NPU.npu_rms_norm") is torch.relu


@pytest.mark.parametrize("name", ["mm", "add", "convolution", "_softmax", "_unsafe_view", "einsum", "pad"])
def test_ordinary_operators_are_found(name: str) -> None:
    assert execution.function(f"Aten.{name}") is not None


def test_functions_that_torch_nn_calls_are_found() -> None:
    cell = execution.function("VF.gru_cell")
    assert cell(torch.ones(1, 2), torch.ones(1, 3), torch.ones(9, 2), torch.ones(9, 3)).shape == (1, 3)
    assert execution.function("VF.dropout") is not None


def test_keywords_tell_which_of_two_functions_of_a_name_it_was() -> None:
    matrix = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    norm = execution.function("Torch.norm")
    assert norm(matrix, p=1).item() == 7
    assert norm(matrix, ord=1).item() == 4
    assert norm(matrix).item() == 5
    with pytest.raises(TypeError):
        norm(matrix, no_such_keyword=1)


def test_a_name_that_torch_has_removed_is_that_of_the_other_function() -> None:
    solution = execution.function("Torch.solve")(torch.eye(2) * 2, torch.ones(2))
    assert solution.tolist() == [0.5, 0.5]


# --- values


def test_complex_views_are_resolved() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    assert execution.values(numbers.conj()).tolist() == [1 - 2j, 3 + 1j]
    assert execution.values(numbers.conj().imag).tolist() == [-2, 1]


def test_tensors_that_take_a_gradient_and_parameters_have_values() -> None:
    assert execution.values(torch.nn.Parameter(torch.ones(2))).tolist() == [1, 1]
    assert execution.values(torch.ones(2, requires_grad=True) * 3).tolist() == [3, 3]


def resized_away() -> torch.Tensor:
    emptied = torch.ones(8)
    emptied.untyped_storage().resize_(0)
    return emptied


WITHOUT_VALUES = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.ones(2, device="meta"),
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "no values": resized_away,
    "complex32": lambda: torch.zeros(2, dtype=torch.complex32),
}


@pytest.mark.parametrize("kind", WITHOUT_VALUES)
@pytest.mark.filterwarnings("ignore")
def test_what_no_array_holds_is_said(kind: str) -> None:
    words = {"compressed": "sparse_csr"}.get(kind, kind)
    with pytest.raises(UnknownValue, match=words):
        execution.values(WITHOUT_VALUES[kind]())


@pytest.mark.parametrize("dtype", ["quint8", "bits8", "int4", "float4_e2m1fn_x2", "complex32", "torch.float32"])
def test_no_tensor_is_made_of_what_numbers_cannot_be_written_to(dtype: str) -> None:
    with pytest.raises(UnknownValue, match=dtype):
        tensor(1.0, dtype=dtype)


def test_rounding_to_every_short_type_is_that_of_the_exact_number() -> None:
    """Next to every tie between two float8_e5m2, by less than float32 can tell from the tie."""
    codes = torch.arange(0x7B, dtype=torch.uint8)
    numbers = codes.view(torch.float8_e5m2).to(torch.float64).numpy()
    lower, upper = numbers[:-1], numbers[1:]
    ties = (lower + upper) / 2
    for sign in (1, -1):
        above = execution.values(tensor(*(sign * ties * (1 + 2.0**-40)), dtype="float8_e5m2"))
        below = execution.values(tensor(*(sign * ties * (1 - 2.0**-40)), dtype="float8_e5m2"))
        assert np.array_equal(above, sign * upper)
        assert np.array_equal(below, sign * lower)


def test_a_device_becomes_the_one_that_is_asked_for() -> None:
    for text in ("cuda:1", "npu:0", "cpu:None", "cpu"):
        assert execution.plain_value({"type": "torch.device", "value": text}, "cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "torch.dtype", "value": "torch.nn"},
        {"type": "torch.memory_format", "format": "float32"},
        {"type": "torch.memory_format"},
        {"type": "torch.Size", "value": [2, "a"]},
        {"type": "torch.Size", "value": [2, -1]},
        {"type": "torch.Size", "value": 3},
    ],
)
def test_an_entry_that_says_nothing_of_its_type_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(UnknownValue, match="no such value"):
        execution.plain_value(entry, "cpu")


# --- evaluation


def write_to_a_view(given: Sequence[Any]) -> Any:
    given[0][1:].mul_(given[1])
    return given[0]


@pytest.mark.parametrize(
    ("function", "inputs", "of_output", "expected"),
    [
        (write_to_a_view, [tensor(1.0, 2.0), tensor(5.0)], tensor(1.0, 1.0), [[1, 5], [2]]),
        (lambda given: given[0].view(1, 2), [tensor(1.0, 2.0)], tensor([3.0, 4.0]), [[3, 4]]),
        (lambda given: given[0], [tensor(1.0, 2.0)], tensor(3.0, 4.0), [[3, 4]]),
        (lambda given: given[0] * given[1] ** 2, [tensor(2.0)] * 2, tensor(1.0), [[4], [8]]),
        (
            lambda given: given[0].abs(), [tensor(1 + 1j, dtype="complex64")], tensor(1.0),
            [pytest.approx([(1 + 1j) / 2**0.5])],
        ),
    ],
    ids=["write to a view", "a view", "the input itself", "the same tensor twice", "complex"],
)  # fmt: skip
def test_gradients_of_the_inputs(function: Any, inputs: list[Any], of_output: Any, expected: Any) -> None:
    assert gradients(function, inputs, of_output) == expected


def test_a_named_tuple_with_an_output_of_integers() -> None:
    largest = execution.function("Torch.max")
    found = gradients(lambda given: largest(given[0], 0), [tensor(1.0, 3.0, 2.0)], torch.tensor(2.0), None)
    assert found == [[0, 2, 0]]
    # A gradient of the integers is none of anything.
    evaluated = execution.evaluate(lambda given: largest(given[0], 0), [tensor(1.0, 3.0)], (0,))
    assert evaluated.gradients([torch.tensor(1.0), torch.tensor(1)])[0].tolist() == [0, 1]


def test_out_is_written_and_inputs_can_be_evaluated_again() -> None:
    add = execution.function("Torch.add")
    given = [tensor(1.0), tensor(2.0), tensor(0.0)]
    assert execution.evaluate(lambda values: add(values[0], values[1], out=values[2]), given, ()).output.tolist() == [3]
    given = [tensor(1.0, 2.0)]
    for _ in range(2):
        assert gradients(lambda values: values[0].exp_() * 0, given, tensor(1.0, 1.0)) == [[0, 0]]


# --- the caller's surroundings


def expected() -> None:
    evaluated = execution.evaluate(lambda given: given[0].exp(), [tensor(0.0, 1.0)], (0,))
    assert execution.dtype_name(evaluated.output) == "float32"
    (gradient,) = evaluated.gradients([tensor(1.0, 2.0)])
    assert execution.values(gradient).tolist() == pytest.approx([1, 2 * np.e])
    product = execution.evaluate(lambda given: given[0] @ given[0].t(), [tensor([1.0, 2.0])], ()).output
    assert execution.dtype_name(product) == "float32"


class Refusing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} was seen")


class RefusingDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} was seen")


def refused(value: Any) -> Any:
    raise AssertionError("a hook was called")


@contextlib.contextmanager
def restored_grad_mode() -> Iterator[None]:
    before = torch.is_grad_enabled()
    yield
    assert torch.is_grad_enabled() == before


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "function mode": Refusing,
    "dispatch mode": RefusingDispatch,
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(refused, refused),
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("kind", SURROUNDINGS)
def test_the_surroundings_change_nothing(kind: str) -> None:
    with SURROUNDINGS[kind](), restored_grad_mode():
        expected()
    expected()


def test_it_works_inside_of_transforms_and_of_our_own_guard() -> None:
    def transformed(x: torch.Tensor) -> torch.Tensor:
        expected()
        return x.sum()

    assert torch.func.grad(transformed)(torch.ones(3)).tolist() == [1, 1, 1]
    assert torch.func.vmap(transformed)(torch.ones(2, 3)).tolist() == [3, 3]
    unobserved(expected)


def test_autocast_is_that_which_was_asked_for_and_not_the_callers() -> None:
    def product_dtype() -> torch.dtype:
        given = [tensor([1.0]), tensor([2.0])]
        kind: torch.dtype = execution.evaluate(lambda tensors: F.linear(*tensors), given, ()).output.dtype
        return kind

    with torch.autocast("cpu", torch.bfloat16):
        with execution.autocast("float16", "cpu"):
            assert product_dtype() == torch.float16
        assert product_dtype() == torch.float32
        assert F.linear(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16
    with execution.autocast("bfloat16", "cpu"):
        evaluated = execution.evaluate(lambda given: F.linear(*given), [tensor([1.0]), tensor([2.0])], (0, 1))
        assert [found.dtype for found in evaluated.gradients([tensor([1.0], dtype="bfloat16")])] == [torch.float32] * 2
        # Only for what is evaluated: nothing else on this thread knows of it.
    assert product_dtype() == torch.float32


@pytest.mark.parametrize(("dtype", "device"), [("float32", "cpu"), ("float64", "cpu"), ("bfloat16", "meta")])
def test_autocast_that_torch_does_not_have(dtype: str, device: str) -> None:
    with pytest.raises(UnknownValue), execution.autocast(dtype, device):
        pass


def test_one_thread_computes() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with execution.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- random draws


@pytest.mark.parametrize("base", ["Functional.dropout", "Torch.rand_like", "Tensor.normal_", "Torch.alpha_dropout"])
def test_the_same_numbers_are_drawn_again(base: str) -> None:
    x = torch.ones(100)
    torch.rand(7)
    state = randomness.random_state(base, [x], {})
    first = torch.dropout(x, 0.5, True)
    torch.rand(3)
    assert execution.restore_draws(execution.values(state), "cpu")
    assert torch.equal(torch.dropout(x, 0.5, True), first)


def test_asking_for_the_state_changes_nothing() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[Any] = []
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with Mode():
        state = randomness.random_state("Functional.dropout", [expected], {"device": "cpu"})
        assert randomness.random_state("Torch.rand", [1], {}) is not None
    assert not seen and torch.equal(torch.rand(4), expected)
    # Nor does what is drawn later reach it.
    assert not torch.equal(state, torch.default_generator.get_state())


@pytest.mark.parametrize(
    ("base", "keywords"),
    [
        ("Functional.silu", {}), ("Torch.add", {}), ("Functional.scaled_dot_product_attention", {}),
        # A generator of the program has a state of its own.
        ("Torch.rand", {"generator": torch.Generator()}),
    ],
)  # fmt: skip
def test_other_calls_have_no_state(base: str, keywords: Any) -> None:
    assert randomness.random_state(base, [torch.ones(2)], keywords) is None


def test_the_state_of_another_device_is_refused_and_seeding_reaches_torch_alone() -> None:
    before = torch.default_generator.get_state()
    assert not execution.restore_draws(np.zeros(16, np.uint8), "cpu")
    assert torch.equal(torch.default_generator.get_state(), before)
    np.random.seed(3)
    expected_draw = np.random.rand()
    np.random.seed(3)
    execution.seed_draws(9)
    assert np.random.rand() == expected_draw


# --- what operations compute inside, moved by roundings at the cost of those operations

UNIT = 2.0**-24


def softmax_gradient() -> torch.Tensor:
    logits = torch.tensor([[20.0, 0.0, 1.0]], dtype=torch.float64)
    done = execution.evaluate(lambda inputs: F.softmax(inputs[0], -1), [logits], [0])
    (gradient,) = done.gradients([torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64)])
    return gradient  # type: ignore[no-any-return]


def test_the_result_that_the_backward_sees_is_rounded() -> None:
    """Of a saturated softmax the gradient is a difference of what is rounded: no move of its inputs shows that."""
    exact, moved = softmax_gradient(), []
    for _ in range(2):
        with execution.rounding_inside(UNIT, 1):
            moved.append(softmax_gradient())
    assert torch.equal(*moved) and torch.equal(softmax_gradient(), exact)
    assert UNIT / 4 < float((moved[0] - exact).abs().max()) < 16 * UNIT


@pytest.mark.parametrize(
    "moved", [torch.flip, torch.roll, torch.tril, torch.Tensor.copy_, torch.sin], ids=lambda call: call.__name__
)
def test_what_computes_no_number_is_not_moved(moved: Callable[..., torch.Tensor]) -> None:
    value = torch.arange(1.0, 10.0, dtype=torch.float64).reshape(3, 3)
    arguments = {torch.flip: ((0,),), torch.roll: (1,), torch.Tensor.copy_: (value,)}.get(moved, ())
    with execution.rounding_inside(UNIT, 1):
        found = execution.evaluate(lambda inputs: moved(inputs[0].clone(), *arguments), [value], []).output
    assert torch.equal(found, moved(value.clone(), *arguments)) == (moved is not torch.sin)


IMPORTS = """
import sys
import torch
from probe.backends import loader

execution = loader.load("torch").execution
x, before = torch.ones(3, dtype=torch.float64), set(sys.modules)
with execution.rounding_inside(1e-7, 0):
    execution.evaluate(lambda inputs: inputs[0].exp().sum(), [x], [0]).gradients([x.sum()])
print({"sympy", "torch._dynamo"} & (set(sys.modules) - before))
"""


@pytest.mark.sampled(least=1, each=False, group="an interpreter")
def test_no_compiler_is_imported_for_it() -> None:
    """Torch imports its compiler for a dispatch mode, which takes longer than a whole pre-check of a model."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- sums of half precision are rounded once, but for the functions whose line in the table says so

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
half_sums = importlib.import_module("half_sums")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", half_sums.CASES)
def test_only_functions_with_the_trait_round_before_the_sum_is_complete(name: str) -> None:
    result, of_inputs = half_sums.measure(half_sums.CASES[name])
    known = function(name)
    assert result <= half_sums.ONE_ROUNDING or known.has(Trait.ROUNDS_EARLY)
    assert of_inputs <= half_sums.ONE_ROUNDING or known.has(Trait.ROUNDS_GRADIENTS_EARLY)


def test_every_function_with_the_trait_is_measured() -> None:
    known = {function(name).name for name in names_with(Trait.ROUNDS_EARLY, Trait.ROUNDS_GRADIENTS_EARLY)}
    assert known <= set(half_sums.CASES)
