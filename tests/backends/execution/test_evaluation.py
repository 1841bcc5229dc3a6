"""One call that is run alone: its output and the gradients of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)
Y = np.array([[0.5, 2.0], [-1.0, 8.0]], np.float32)
ONES = np.ones((2, 2), np.float32)


class Alone:
    """Calls that are run alone on float32 arrays."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.execution = backend.adapter.execution
        self.device = self.execution.devices()[0]

    def tensor(self, array: Any, dtype: str = "float32") -> Any:
        return self.execution.tensor(np.asarray(array), dtype, self.device)

    def function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self.execution.function(self.backend.apis[name].base)
        return function

    def run(self, function: Callable[[Sequence[Any]], Any], *arrays: Any, asked: Sequence[int] = ()) -> Any:
        return self.execution.evaluate(function, [self.tensor(array) for array in arrays], asked)

    def values(self, tensor: Any) -> Any:
        return None if tensor is None else self.execution.values(tensor)

    def gradients(self, evaluated: Any, *output_gradients: Any) -> list[Any]:
        given = [None if array is None else self.tensor(array) for array in output_gradients]
        return [self.values(gradient) for gradient in evaluated.gradients(given)]


@pytest.fixture
def alone(backend: Any) -> Alone:
    return Alone(backend)


def check(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None), found
        assert other is None or np.array_equal(one, other), found


def test_output_and_gradients(alone: Alone) -> None:
    multiply = alone.function("multiply")
    evaluated = alone.run(lambda given: multiply(*given), X, Y, asked=(0, 1))
    assert np.array_equal(alone.values(evaluated.output), X * Y)
    check(alone.gradients(evaluated, 2 * ONES), [2 * Y, 2 * X])


POSITIVE = (Y > 0).astype(np.float32)
Case = tuple[str, Callable[..., Any], list[Any], tuple[int, ...], list[Any], list[Any], Any]
# The function, how it is called with the inputs, the inputs, which gradients are asked for, those of the outputs, and
# what is expected of the inputs and, where it is one tensor, of the output.
CASES: dict[str, Case] = {
    "only those that are asked for": ("multiply", lambda f, a, b: f(a, b), [X, Y], (1,), [ONES], [X], X * Y),
    "none is asked for": ("relu", lambda f, a: f(a), [X], (), [ONES], [], np.maximum(X, 0)),
    "an input on which nothing depends": ("relu", lambda f, a, b: f(b), [X, Y], (0, 1), [ONES], [None, POSITIVE], None),
    "an input that is used twice": ("multiply", lambda f, a: f(a, a), [X], (0,), [ONES], [2 * X], X * X),
    "a write to an input": ("add_inplace", lambda f, a, b: f(a, b), [X, Y], (0, 1), [3 * ONES], [3 * ONES] * 2, X + Y),
    "several outputs": (
        "split", lambda f, a: f(a, 1, 0), [X], (0,), [[[1.0, 2.0]], [[3.0, 4.0]]], [np.array([[1, 2], [3, 4]])], None,
    ),
    "an output that takes no part": (
        "split", lambda f, a: f(a, 1, 0), [X], (0,), [None, [[3.0, 4.0]]], [np.array([[0, 0], [3, 4]])], None,
    ),
    "no output takes part": ("relu", lambda f, a: f(a), [X], (0,), [None], [None], None),
    "inputs in a list": (
        "concat", lambda f, a, b: f([a, b], 0), [X, Y], (0, 1), [np.concatenate([ONES, 2 * ONES])], [ONES, 2 * ONES],
        np.concatenate([X, Y]),
    ),
    "a scalar output": ("sum", lambda f, a: f(a), [X], (0,), [5.0], [5 * ONES], X.sum()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_call_gives_its_output_and_the_gradients_of_its_inputs(alone: Alone, case: str) -> None:
    name, call, inputs, asked, output_gradients, expected, output = CASES[case]
    function = alone.function(name)
    evaluated = alone.run(lambda given: call(function, *given), *inputs, asked=asked)
    if output is not None:
        assert np.array_equal(alone.values(evaluated.output), output)
    if case == "several outputs":
        assert [alone.values(part).tolist() for part in evaluated.output] == [[row] for row in X.tolist()]
    check(alone.gradients(evaluated, *output_gradients), expected)


def test_what_a_function_writes_reaches_no_other_call(alone: Alone) -> None:
    add = alone.function("add_inplace")
    for _ in range(2):
        evaluated = alone.run(lambda given: add(*given), X, Y)
        assert np.array_equal(alone.values(evaluated.output), X + Y)


def test_outputs_in_a_dict_and_lists(alone: Alone) -> None:
    relu, multiply = alone.function("relu"), alone.function("multiply")

    def both(given: Sequence[Any]) -> Any:
        return {"first": [relu(given[0])], "second": (multiply(given[0], given[1]), "text", None)}

    evaluated = alone.run(both, X, Y, asked=(0, 1))
    assert list(evaluated.output) == ["first", "second"]
    assert evaluated.output["second"][1:] == ("text", None)
    check(alone.gradients(evaluated, ONES, 2 * ONES), [(X > 0) + 2 * Y, 2 * X])


def test_what_is_no_tensor_comes_as_it_is(alone: Alone) -> None:
    for returned in (None, 3, "text", [], {}):
        evaluated = alone.run(lambda given, returned=returned: returned, X, asked=(0,))
        assert evaluated.output == returned
        assert evaluated.gradients([]) == [None]


def test_gradients_have_the_dtype_of_their_inputs(alone: Alone) -> None:
    multiply = alone.function("multiply")
    for dtype in ("float64", "float32", "bfloat16"):
        given = [alone.tensor(array, dtype) for array in (X, Y)]
        evaluated = alone.execution.evaluate(lambda tensors: multiply(*tensors), given, (0,))
        (gradient,) = evaluated.gradients([alone.tensor(ONES, dtype)])
        assert alone.execution.dtype_name(evaluated.output) == alone.execution.dtype_name(gradient) == dtype
        assert np.array_equal(alone.values(gradient), Y)


def test_integers_take_no_gradient(alone: Alone) -> None:
    absolute = alone.function("abs")
    given = [alone.tensor([[3, -4], [5, 0]], "int64")]
    output = alone.execution.evaluate(lambda tensors: absolute(*tensors), given, ()).output
    assert alone.execution.dtype_name(output) == "int64"
    assert alone.values(output).tolist() == [[3, 4], [5, 0]]


def test_a_failing_call_fails(alone: Alone) -> None:
    matmul = alone.function("matmul")
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        alone.run(lambda given: matmul(*given), X, np.ones((3, 5)))
    # And leaves nothing behind.
    test_output_and_gradients(alone)


def test_a_program_without_gradients_around_it(alone: Alone) -> None:
    alone.backend.without_gradient(lambda: test_output_and_gradients(alone))


def test_it_is_not_collected(alone: Alone, runs: Any) -> None:
    debugger = runs.new()
    debugger.start()
    test_output_and_gradients(alone)
    alone.backend.apis["relu"].call(alone.backend.tensor(X))
    debugger.stop()
    debugger.step()
    assert list(runs.read().data) == [f"{alone.backend.apis['relu'].base}.0.forward"]
