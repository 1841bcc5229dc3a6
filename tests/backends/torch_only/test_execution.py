"""What running a call alone has to get right for PyTorch besides what every backend does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from probe.backends import loader
from probe.backends.protocol import UnknownValue
from probe.backends.torch.guards import unobserved
from probe.backends.torch.hooks import api_list

execution = loader.load("torch").execution


def tensor(*numbers: Any, dtype: str = "float32") -> Any:
    return execution.tensor(np.array(numbers), dtype, "cpu")


def gradients(function: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], *of_outputs: Any) -> list[Any]:
    evaluated = execution.evaluate(function, inputs, range(len(inputs)))
    return [None if found is None else found.tolist() for found in evaluated.gradients(of_outputs)]


# --- functions


def test_every_listed_function_is_found() -> None:
    families = api_list.watched()
    names = [each.name.base for family in families if family != "distributed" for each in families[family]]
    assert len(names) > 1000
    missing = {name for name in names if execution.function(name) is None}
    # torch has only left a message of these, and nothing of the same name elsewhere.
    removed = {f"Torch.{name}" for name, function in vars(torch).items() if "_linalg_utils" in str(_module(function))}
    assert missing <= removed


def _module(function: Any) -> Any:
    return getattr(function, "__module__", None)


def test_communication_is_not_run_alone() -> None:
    assert execution.function("Distributed.all_reduce") is None


def test_operators_of_aten_are_found_but_none_that_reach_files() -> None:
    assert execution.function("Aten.add")(torch.ones(2), 1).tolist() == [2, 2]
    assert execution.function("Aten._softmax") is not None
    for name in ("save", "from_file", "no_such_operator", "__class__", "op"):
        assert execution.function(f"Aten.{name}") is None, name


def test_functions_that_torch_nn_calls_are_found() -> None:
    cell = execution.function("VF.gru_cell")
    assert cell(torch.ones(1, 2), torch.ones(1, 3), torch.ones(9, 2), torch.ones(9, 3)).shape == (1, 3)
    assert execution.function("VF.dropout") is not None
    assert execution.function("VF.from_file") is None
    assert execution.function("VF.__class__") is None


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


def test_a_write_to_a_view_of_the_input_is_differentiated() -> None:
    def write(given: Sequence[Any]) -> Any:
        given[0][1:].mul_(given[1])
        return given[0]

    assert gradients(write, [tensor(1.0, 2.0), tensor(5.0)], tensor(1.0, 1.0)) == [[1, 5], [2]]


def test_a_named_tuple_with_an_output_of_integers() -> None:
    largest = execution.function("Torch.max")
    found = gradients(lambda given: largest(given[0], 0), [tensor(1.0, 3.0, 2.0)], torch.tensor(2.0), None)
    assert found == [[0, 2, 0]]
    # A gradient of the integers is none of anything.
    evaluated = execution.evaluate(lambda given: largest(given[0], 0), [tensor(1.0, 3.0)], (0,))
    assert evaluated.gradients([torch.tensor(1.0), torch.tensor(1)])[0].tolist() == [0, 1]


def test_a_view_and_the_input_itself_as_output() -> None:
    assert gradients(lambda given: given[0].view(1, 2), [tensor(1.0, 2.0)], tensor([3.0, 4.0])) == [[3, 4]]
    assert gradients(lambda given: given[0], [tensor(1.0, 2.0)], tensor(3.0, 4.0)) == [[3, 4]]


def test_the_same_tensor_twice_among_the_inputs_is_two_inputs() -> None:
    same = tensor(2.0)
    assert gradients(lambda given: given[0] * given[1] ** 2, [same, same], tensor(1.0)) == [[4], [8]]


def test_out_is_written() -> None:
    add = execution.function("Torch.add")
    given = [tensor(1.0), tensor(2.0), tensor(0.0)]
    assert execution.evaluate(lambda values: add(values[0], values[1], out=values[2]), given, ()).output.tolist() == [3]


def test_inputs_can_be_evaluated_again() -> None:
    given = [tensor(1.0, 2.0)]
    for _ in range(2):
        assert gradients(lambda values: values[0].exp_() * 0, given, tensor(1.0, 1.0)) == [[0, 0]]


def test_a_complex_input_is_differentiated() -> None:
    given = [tensor(1 + 1j, dtype="complex64")]
    assert gradients(lambda values: values[0].abs(), given, tensor(1.0)) == [pytest.approx([(1 + 1j) / 2**0.5])]


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


def test_seeding_leaves_the_other_generators_alone() -> None:
    np.random.seed(3)
    expected_draw = np.random.rand()
    np.random.seed(3)
    execution.seed_draws(9)
    assert np.random.rand() == expected_draw


def test_one_thread_computes() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with execution.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
