"""Lists of functions: which of them exist, how they are named, and how much they matter."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.backends.shared.api_list import risk_class, watched

LIST = """
plain:
  prefix: Math
  names: [sqrt, no_such_function, inner.floor, no_such_part.floor]
collective:
  prefix: Distributed
  names: [gather, all_reduce]
elsewhere:
  prefix: Other
  names: [sqrt]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "api_list.yaml"
    file.write_text(LIST, encoding="utf-8")
    return str(file)


def test_what_exists_is_found_with_its_owner_and_named_by_its_last_part(path: str) -> None:
    inner = SimpleNamespace(floor=math.floor)
    owner = SimpleNamespace(sqrt=math.sqrt, inner=inner)
    families = watched(path, {"plain": owner})
    assert list(families) == ["plain"]
    found = [(one.owner, one.attribute, one.function, one.name.base, one.name.api) for one in families["plain"]]
    assert found == [
        (owner, "sqrt", math.sqrt, "Math.sqrt", "sqrt"),
        (inner, "floor", math.floor, "Math.floor", "floor"),
    ]


def test_collectives_in_place_know_which_arguments_they_fill(path: str) -> None:
    owner = SimpleNamespace(gather=print, all_reduce=print)
    found = watched(path, {"collective": owner}, in_place=["collective"])["collective"]
    gather, all_reduce = (one.name for one in found)
    assert (gather.filled, gather.returns_arguments) == ((1, "gather_list"), True)
    assert (all_reduce.filled, all_reduce.returns_arguments) == ((), True)
    plain, _ = (one.name for one in watched(path, {"collective": owner})["collective"])
    assert (plain.filled, plain.returns_arguments) == ((), False)


LIKE = {"Ours": ("Torch", "Functional"), "Tensor": ("Tensor",), "Unknown": ()}


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("Ours.matmul", "core"),
        ("Ours.linear", "core"),  # Functional has it, Torch does not
        ("Ours.cat", "low"),
        ("Ours.relu", "middle"),
        ("Ours.no_such_function", "middle"),
        ("Tensor.reshape", "low"),
        ("Tensor.linear", "middle"),
        ("Unknown.matmul", "middle"),
        ("Users.cat", "core"),
        ("cat", "core"),
    ],
)
def test_a_function_has_the_class_of_its_namesake_and_a_users_own_is_core(base: str, expected: str) -> None:
    assert risk_class(base, LIKE) == expected
