"""How values are described; what is a tensor, NumpyTensors says."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import sys
import time
import tracemalloc
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_tensors import NumpyTensors

from probe.collect.describing.values import ValueDescriber, entries, entries_in_python
from probe.common.interfaces import StatisticsMode

STATISTICS = ("Max", "Min", "Mean", "Norm")


class Described:
    """A describer, the failures it was told of, and the values it wanted to save."""

    def __init__(self) -> None:
        tensors = NumpyTensors()
        self.failures: list[str] = []
        self.saved: list[tuple[str, Any]] = []
        self.describer = ValueDescriber(
            tensors,
            lambda tensor: tensors.describe_tensor(tensor, StatisticsMode()),
            lambda error: self.failures.append(str(error)),
            direct=None,
        )

    def __call__(self, value: Any, key: str | None = None, path: str | None = None) -> Any:
        entry = self.describer.describe(value, key, path, self.save if path else None)
        # Whatever comes out must fit into the journal and into json.
        msgspec.msgpack.encode(entry)
        json.dumps(entry)
        return entry

    def save(self, value: Any, entry: Any, path: str) -> None:
        self.saved.append((path, value))


@pytest.fixture
def describe() -> Described:
    return Described()


def plain(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "value": value}


ONE = plain("int", 1)


class Word(str, enum.Enum):
    RED = "red"


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: int


class Missing(Point):
    def __init__(self) -> None:
        self.x = 1


class Both(dict):  # type: ignore[type-arg]
    """Like the outputs of Hugging Face models: a dict whose fields are attributes too."""


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (Word.RED, plain("str", "red")),
        (Loud("quiet"), plain("str", "quiet")),
        (slice(np.ones(1, np.float32), "a", 1.5), plain("slice", [None, None, None])),
        ({"a": 1, 2: [1], None: 1, (1, 2): 1}, {"a": ONE, "2": [ONE], "None": ONE, "(1, 2)": ONE}),
        ({1: True, "1": 1, "1~2": ""}, {"1": plain("bool", True), "1~2": ONE, "1~2~3": plain("str", "")}),
        (Point(1, [1]), {"x": ONE, "y": [ONE]}),
        (Slotted(1), {"x": ONE}),
        (Missing(), {"x": ONE, "y": None}),
        (MappingProxyType({"a": 1}), {"a": ONE}),
        (collections.OrderedDict(a=1), {"a": ONE}),
        (collections.defaultdict(int, a=1), {"a": ONE}),
        (collections.UserDict(a=1), {"a": ONE}),
        (collections.ChainMap({"a": 1}, {"b": 1}), {"b": ONE, "a": ONE}),
        (Both(a=1), {"a": ONE}),
        (np.int8(-5), plain("int8", -5)),
        (np.uint64(2**64 - 1), plain("uint64", 2**64 - 1)),
        (np.float16(0.1), plain("float16", 0.0999755859375)),
        (np.float64(0.1), plain("float64", 0.1)),
        (np.bool_(True), plain(np.bool_.__name__, True)),
        (np.str_("a"), plain("str_", "a")),
        (np.complex64(1j), None),
        (np.datetime64("2026-01-01"), None),
        (iter([1]), None),
        (Point, None),
        (Hostile(), None),
        ([Hostile(), 1], [None, ONE]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_has_the_entry_of_its_type(describe: Described, value: Any, entry: Any) -> None:
    assert describe(value) == entry
    assert not describe.failures


def test_the_framework_is_asked_with_the_last_key(describe: Described) -> None:
    text = plain("text", "<cpu>")
    assert describe("cpu", "device") == text and describe("cpu", "other") == plain("str", "cpu")
    assert describe({"device": "cpu", "a": {"device": ["cpu"]}, "b": "cpu"}) == {
        "device": text, "a": {"device": [text]}, "b": plain("str", "cpu"),
    }  # fmt: skip
    assert describe(np.dtype("int8")) == plain("text", "<int8>")
    assert describe.describer.mapping({"device": "cpu", 1: 1}, None, None) == {"device": text, "1": ONE}


# --- arrays


@pytest.mark.parametrize("how", ["warn", "raise"])
@pytest.mark.parametrize(
    ("array", "mean", "norm"),
    [
        (np.array([np.inf, -np.inf]), np.nan, np.inf),
        (np.array([np.inf, -np.inf, 1], np.float16), np.nan, np.inf),
        (np.full(5, 1e308), np.inf, np.inf),
        (np.full(4, 1e30, np.float32), np.float64(np.float32(1e30)), 2 * np.float64(np.float32(1e30))),
        (np.full(4, 1e-200), 1e-200, 0.0),
        (np.full(4, np.longdouble("1e400")), np.inf, np.inf),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_no_number_of_an_array_warns_the_user_or_is_lost(
    describe: Described, how: Any, array: np.ndarray, mean: float, norm: float
) -> None:
    # Warnings are errors here.
    with np.errstate(all=how):
        entry = describe(array)
    assert (entry["Mean"], entry["Norm"]) == pytest.approx((mean, norm), nan_ok=True)
    assert not describe.failures


@pytest.mark.parametrize(
    "array", [np.ones(16 << 20, np.uint8), np.ones((2 << 20, 2))[:, 0], np.ones(8 << 20, np.float16)[::-1]]
)
def test_statistics_of_an_array_take_little_memory(describe: Described, array: np.ndarray) -> None:
    tracemalloc.start()
    try:
        entry = describe(array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (entry["Mean"], entry["Norm"]) == (1.0, array.size**0.5)
    assert peak < 4 << 20


def test_extended_precision_is_written_as_float(describe: Described) -> None:
    entry = describe(np.array([1, 3], np.longdouble))
    assert [entry[key] for key in STATISTICS] == [3.0, 1.0, 2.0, pytest.approx(10**0.5)]
    describe(np.longdouble(1))


# --- depth, cycles, size


def test_deep_values_do_not_end_a_program_that_is_deep_itself(describe: Described) -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]

    def deep(n: int) -> Any:
        return deep(n - 1) if n else describe.describer.describe(value, None, None, None)

    limit = sys.getrecursionlimit()
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    for room in (30, 60, 100):
        assert isinstance(deep(limit - used - room), list)


def test_cycles_end(describe: Described) -> None:
    one: list[Any] = []
    one.append(one)
    assert isinstance(describe(one), list)
    named: dict[str, Any] = {"n": 1}
    named["self"] = named
    assert describe(named)["n"] == ONE
    point = Point(1, None)
    point.y = {"back": point}
    assert describe(point)["x"] == ONE


def in_time(describe: Described, value: Any) -> Any:
    began = time.process_time()
    entry = describe.describer.describe(value, None, None, None)
    assert time.process_time() - began < 5
    return entry


def test_values_that_refer_to_each_other_take_no_exponential_time(describe: Described) -> None:
    parent: dict[str, Any] = {"name": "p"}
    parent["children"] = [{"parent": parent, "n": n} for n in range(2)]
    assert in_time(describe, parent)["name"] == plain("str", "p")


def test_keys_of_one_text_take_no_quadratic_time(describe: Described) -> None:
    class Key:
        def __str__(self) -> str:
            return "key"

    began = time.process_time()
    entry = describe({Key(): number for number in range(20_000)})
    assert [item["value"] for item in entry.values()] == list(range(20_000))
    assert time.process_time() - began < 5


def test_shared_values_take_no_exponential_time(describe: Described) -> None:
    shared: Any = [1]
    for _ in range(40):
        shared = [shared, shared]
    assert isinstance(in_time(describe, shared), list)
    twice = [1]
    assert describe([twice, twice, {"a": twice}]) == [[ONE], [ONE], {"a": [ONE]}], "shared is not a cycle"


# A text under the key "device" is the adapter's to describe.
KEYS = st.integers() | st.text().filter(lambda key: key != "device")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


def expected(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [expected(item) for item in value]
    if isinstance(value, dict):
        return {str(key): expected(item) for key, item in value.items()}
    if value is None or isinstance(value, bytes):
        return None
    return plain(type(value).__name__, value)


@given(VALUES)
def test_plain_values_keep_their_form(value: Any) -> None:
    entry = Described().describer.describe(value, "key", None, None)
    # Through a text, because NaN is not equal to itself.
    assert json.dumps(entry) == json.dumps(expected(value))


def test_all_arguments_of_a_call_are_described_as_in_python(describe: Described) -> None:
    class Whole(enum.IntEnum):
        TWO = 2

    tensor, shrinking = np.ones(3), [np.ones(2), 1, 2]

    def direct(value: Any) -> Any:
        return {"type": "quick"} if value is tensor else None

    several = (
        None,
        True,
        -3,
        1 << 70,
        2.5,
        float("inf"),
        "text",
        "\ud800",
        Whole.TWO,
        tensor,
        np.ones(2),
        [1, (tensor,)],
    )
    for values, quick in ((several, direct), (list(several), None), ((), direct)):
        copied = list(values)
        one, other = (each(copied, quick, describe.describer.describe) for each in (entries, entries_in_python))
        assert one == other
        assert [type(entry) for entry in one] == [type(entry) for entry in other]
    assert not describe.failures

    def shrink(value: Any, *_: Any) -> str:
        shrinking.pop()
        return "described"

    # Compiled code describes numbers itself.
    second = "described" if entries is entries_in_python else plain("int", 1)
    assert entries(shrinking, direct, shrink) == ["described", second]

    def fail(value: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        entries([object()], fail, describe.describer.describe)
    with pytest.raises(TypeError):
        entries(3, direct, describe.describer.describe)  # type: ignore[arg-type]
