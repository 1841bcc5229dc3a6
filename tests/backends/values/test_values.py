"""What arguments and results that are no tensors look like in dump.json."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

Point = collections.namedtuple("Point", ["left", "right"])


class Colour(enum.IntEnum):
    RED = 3


@dataclasses.dataclass
class Result:
    loss: Any
    extra: Any = None


def integer(value: int) -> dict[str, Any]:
    return {"type": "int", "value": value}


class Taking:
    """A user's function that takes anything, recorded as ``User.take``."""

    def __init__(self, runs: Any, **settings: Any) -> None:
        self.owner = SimpleNamespace(take=lambda *args, **kwargs: self.result)
        self.result: Any = None
        self.runs = runs
        self.debugger = runs.new(**settings)
        self.debugger.register_custom_api(self.owner, "take", "User")
        self.debugger.start()

    def record(self, *args: Any, result: Any = None, **kwargs: Any) -> dict[str, Any]:
        self.result = result
        self.owner.take(*args, **kwargs)
        self.debugger.stop()
        return self.runs.read().data["User.take.0.forward"]


SCALARS = [
    (None, None),
    (3, integer(3)),
    (-(2**70), integer(-(2**70))),
    (2.5, {"type": "float", "value": 2.5}),
    (True, {"type": "bool", "value": True}),
    ("text", {"type": "str", "value": "text"}),
    ("", {"type": "str", "value": ""}),
    ("Grüße \udcff", {"type": "str", "value": "Grüße \\udcff"}),
    (Colour.RED, integer(3)),
    (Ellipsis, {"type": "ellipsis", "value": "..."}),
    (slice(1, 4), {"type": "slice", "value": [1, 4, None]}),
    (slice(None, np.int64(4), 2), {"type": "slice", "value": [None, 4, 2]}),
    (np.float32(0.5), {"type": "float32", "value": 0.5}),
    (np.int64(4), {"type": "int64", "value": 4}),
    (1 + 2j, None),
    (b"bytes", None),
    ({1, 2}, None),
    (range(3), None),
    (len, None),
    (object(), None),
]


@pytest.mark.parametrize(
    ("value", "entry"), SCALARS, ids=[f"{i}-{type(v).__name__}" for i, (v, _) in enumerate(SCALARS)]
)
def test_one_value_has_one_form(runs: Any, value: Any, entry: Any) -> None:
    record = Taking(runs).record(value, key=value, result=value)
    assert record == {"input_args": [entry], "input_kwargs": {"key": entry}, "output": [entry]}


def test_nan_and_infinity_are_written_as_python_writes_them(runs: Any) -> None:
    Taking(runs).record(float("nan"), float("inf"), float("-inf"))
    text = (runs.read().folder / "dump.json").read_text()
    assert '"value": NaN' in text and '"value": Infinity' in text and '"value": -Infinity' in text


def test_containers_keep_their_nesting(runs: Any) -> None:
    record = Taking(runs).record([1, (2, [])], {"a": {5: 6}}, Point(7, None), Result(8), ())
    assert record["input_args"] == [
        [integer(1), [integer(2), []]],
        {"a": {"5": integer(6)}},
        {"left": integer(7), "right": None},
        {"loss": integer(8), "extra": None},
        [],
    ]


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (4, [integer(4)]),
        ((4, 5), [integer(4), integer(5)]),
        (Point(4, 5), {"left": integer(4), "right": integer(5)}),
        ({"a": 4}, [{"a": integer(4)}]),
        (Result(4), [{"loss": integer(4), "extra": None}]),
        (None, [None]),
        ((), []),
    ],
)
def test_output_is_a_list_but_a_dict_for_a_named_tuple(runs: Any, result: Any, output: Any) -> None:
    assert Taking(runs).record(result=result)["output"] == output


def test_a_list_is_several_outputs_or_one_as_recorded(runs: Any, backend: Any) -> None:
    several = [integer(4), integer(5)]
    assert Taking(runs).record(result=[4, 5])["output"] == ([several] if backend.list_is_one_output else several)


def test_arguments_without_keywords_have_empty_keywords(runs: Any) -> None:
    record = Taking(runs).record(1)
    assert list(record) == ["input_args", "input_kwargs", "output"]
    assert record["input_kwargs"] == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "uint8", "bool"])
def test_numpy_arrays_have_statistics(runs: Any, dtype: str) -> None:
    array = np.array([[0, 1, 5], [2, 0, 1]]).astype(dtype)
    (entry,) = Taking(runs).record(array)["input_args"]
    assert entry["type"] == "numpy.ndarray"
    assert (entry["dtype"], entry["shape"]) == (dtype, [2, 3])
    assert (entry["Max"], entry["Min"]) == (array.max(), array.min())
    assert entry["Mean"] == pytest.approx(array.astype(np.float64).mean())
    assert entry["Norm"] == pytest.approx(np.linalg.norm(array.astype(np.float64)))


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.zeros((0, 2)), np.array([None, 1], dtype=object)])
def test_arrays_without_numbers_have_no_statistics(runs: Any, array: Any) -> None:
    (entry,) = Taking(runs).record(array)["input_args"]
    assert entry["shape"] == list(array.shape)
    assert [entry[key] for key in ("Max", "Min", "Mean", "Norm")] == [None] * 4


def test_values_of_the_framework_are_described(runs: Any, backend: Any) -> None:
    values = backend.framework_values()
    taking = Taking(runs)
    for value, key, _ in values:
        if key is None:
            taking.owner.take(value, [value], {"name": value})
        else:
            taking.owner.take(None, [None], {"name": {key: value}}, **{key: value})
    taking.debugger.stop()
    data = runs.read().data
    for number, (_value, key, entry) in enumerate(values):
        record = data[f"User.take.{number}.forward"]
        if key is None:
            assert record["input_args"] == [entry, [entry], {"name": entry}], number
        else:
            assert record["input_args"] == [None, [None], {"name": {key: entry}}], number
            assert record["input_kwargs"] == {key: entry}, number


def test_nesting_ends_at_four_hundred_levels(runs: Any) -> None:
    value: Any = 7
    for _ in range(399):
        value = [value]
    deep = [[value, 8]]
    record = Taking(runs).record(value, deep)
    found = record["input_args"][0]
    for _ in range(399):
        (found,) = found
    assert found == integer(7), "400 levels are followed"
    assert record["input_args"][1] is not None


def test_nesting_without_end_is_cut_off(runs: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    found = Taking(runs).record(endless)["input_args"][0]
    depth = 0
    while found is not None:
        (found,) = found
        depth += 1
    assert 395 <= depth <= 402


def test_an_object_whose_attributes_raise_is_null(runs: Any) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError("measured")

    assert Taking(runs).record(Hostile(), 3)["input_args"] == [None, integer(3)]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_lists_that_share_their_parts_do_not_hold_up_the_program(runs: Any, backend: Any, level: str) -> None:
    inner = backend.module("Inner", lambda self, x, shared: x * 2)
    model = backend.module("Net", lambda self, x, shared: self.inner(x, shared).sum(), inner=inner)
    # The ten thousand containers that are followed would take the tests a minute to validate.
    debugger = runs.new(level=level, data_mode=["output"])
    debugger.start(model)
    # Two to the power of sixty places for the same tensor.
    ones = backend.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    backend.run(lambda x: model(x, functools.reduce(lambda y, _: [y, y], range(60), [x])), ones)
    debugger.stop()
    assert runs.read().data[f"{backend.root}.inner.Inner.forward.0"]["output"][0]["Max"] == 2.0
