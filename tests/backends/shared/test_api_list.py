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
"""


def test_what_exists_is_named_by_its_last_part_and_a_collective_knows_which_arguments_it_fills(tmp_path: Path) -> None:
    file = tmp_path / "api_list.yaml"
    file.write_text(LIST, encoding="utf-8")
    owner = SimpleNamespace(sqrt=math.sqrt, inner=SimpleNamespace(floor=math.floor))
    owners = {"plain": owner, "collective": SimpleNamespace(gather=print, all_reduce=print)}
    families = watched(str(file), owners, in_place=["collective"])
    found = [(one.owner, one.attribute, one.function, one.name.base, one.name.api) for one in families["plain"]]
    assert found == [
        (owner, "sqrt", math.sqrt, "Math.sqrt", "sqrt"),
        (owner.inner, "floor", math.floor, "Math.floor", "floor"),
    ]
    filled = [(one.name.filled, one.name.returns_arguments) for one in families["collective"]]
    assert filled == [((1, "gather_list"), True), ((), True)]


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
