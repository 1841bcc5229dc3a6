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

    def __call__(self, *args: Any, result: Any = None, **kwargs: Any) -> None:
        self.result = result
        self.owner.take(*args, **kwargs)

    def records(self) -> list[dict[str, Any]]:
        """All calls, in their order."""
        self.debugger.stop()
        return list(self.runs.read().data.values())


@pytest.fixture
def take(runs: Any) -> Taking:
    return Taking(runs)


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


def test_one_value_has_one_form(take: Taking) -> None:
    for value, _ in SCALARS:
        take(value, key=value, result=value)
    for record, (value, entry) in zip(take.records(), SCALARS):
        expected = {"input_args": [entry], "input_kwargs": {"key": entry}, "output": [entry]}
        assert record == expected, type(value).__name__


def test_nan_and_infinity_are_written_as_python_writes_them(take: Taking) -> None:
    take(float("nan"), float("inf"), float("-inf"))
    take.records()
    text = (take.runs.read().folder / "dump.json").read_text()
    assert '"value": NaN' in text and '"value": Infinity' in text and '"value": -Infinity' in text


def test_containers_keep_their_nesting_and_arguments_without_keywords_have_empty_keywords(take: Taking) -> None:
    take([1, (2, [])], {"a": {5: 6}}, Point(7, None), Result(8), ())
    (record,) = take.records()
    assert record["input_args"] == [
        [integer(1), [integer(2), []]],
        {"a": {"5": integer(6)}},
        {"left": integer(7), "right": None},
        {"loss": integer(8), "extra": None},
        [],
    ]
    assert list(record) == ["input_args", "input_kwargs", "output"] and record["input_kwargs"] == {}


def test_output_is_a_list_but_a_dict_for_a_named_tuple_and_a_list_is_several_or_one_as_recorded(
    take: Taking, backend: Any
) -> None:
    several = [integer(4), integer(5)]
    outputs = [
        (4, [integer(4)]), ((4, 5), several), (Point(4, 5), {"left": integer(4), "right": integer(5)}),
        ({"a": 4}, [{"a": integer(4)}]), (Result(4), [{"loss": integer(4), "extra": None}]), (None, [None]), ((), []),
        ([4, 5], [several] if backend.list_is_one_output else several),
    ]  # fmt: skip
    for result, _ in outputs:
        take(result=result)
    assert [record["output"] for record in take.records()] == [output for _, output in outputs]


def test_numpy_arrays_of_numbers_have_statistics_and_others_have_none(take: Taking) -> None:
    numbers = [
        np.array([[0, 1, 5], [2, 0, 1]]).astype(each) for each in ("float64", "float32", "int32", "uint8", "bool")
    ]
    others = [np.array(["a", "b"]), np.zeros((0, 2)), np.array([None, 1], dtype=object)]
    take(*numbers, *others)
    (record,) = take.records()
    entries = record["input_args"]
    for array, entry in zip(numbers, entries):
        assert (entry["type"], entry["dtype"], entry["shape"]) == ("numpy.ndarray", str(array.dtype), [2, 3])
        assert (entry["Max"], entry["Min"]) == (array.max(), array.min())
        assert entry["Mean"] == pytest.approx(array.astype(np.float64).mean())
        assert entry["Norm"] == pytest.approx(np.linalg.norm(array.astype(np.float64)))
    for array, entry in zip(others, entries[len(numbers) :]):
        assert entry["shape"] == list(array.shape)
        assert [entry[key] for key in ("Max", "Min", "Mean", "Norm")] == [None] * 4


def test_values_of_the_framework_are_described(take: Taking, backend: Any) -> None:
    values = backend.framework_values()
    for value, key, _ in values:
        if key is None:
            take(value, [value], {"name": value})
        else:
            take(None, [None], {"name": {key: value}}, **{key: value})
    for number, (record, (_, key, entry)) in enumerate(zip(take.records(), values)):
        if key is None:
            assert record["input_args"] == [entry, [entry], {"name": entry}], number
        else:
            assert record["input_args"] == [None, [None], {"name": {key: entry}}], number
            assert record["input_kwargs"] == {key: entry}, number


def test_nesting_ends_at_four_hundred_levels_and_an_object_whose_attributes_raise_is_null(take: Taking) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError("measured")

    value: Any = 7
    for _ in range(399):
        value = [value]
    endless: list[Any] = []
    endless.append(endless)
    take(value, [[value, 8]], endless, Hostile(), 3)
    (record,) = take.records()
    found, deeper, cut_off, *others = record["input_args"]
    for _ in range(399):
        (found,) = found
    assert found == integer(7), "400 levels are followed"
    assert deeper is not None and others == [None, integer(3)]
    depth = 0
    while cut_off is not None:
        (cut_off,) = cut_off
        depth += 1
    assert 395 <= depth <= 402


@pytest.mark.sampled(least=1, each=False)
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
