"""The same network in every framework gives the same dump: the backends cannot drift apart.

Each backend runs in the environment that `tox` made for its framework. Where these are say PROBE_PYTHON_TORCH,
PROBE_PYTHON_MINDSPORE and PROBE_PYTHON_MSADAPTER, paths of interpreters.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from agreement import program
from agreement.interpreters import BACKENDS

TOLERANCE = 1e-5
"""Relative, of statistics."""


class Dumped:
    """What one backend wrote in one way, in neutral words."""

    def __init__(self, folder: Path, backend: str, way: str) -> None:
        words = json.loads((folder / f"{backend}.json").read_text(encoding="utf-8"))
        (self._folder,) = (folder / backend / way / "step0").iterdir()
        self._words = words
        content = self._read("dump.json")
        self.head = {key: value for key, value in content.items() if key not in ("data", "framework")}
        self.data = {self._neutral(name): value for name, value in content["data"].items()}
        self.tree = {self._neutral(name): parent and self._neutral(parent) for name, parent in self.tree_of().items()}

    def _read(self, name: str) -> Any:
        return json.loads((self._folder / name).read_text(encoding="utf-8"))

    def tree_of(self) -> Any:
        return self._read("construct.json")

    def _neutral(self, name: str) -> str:
        words = self._words
        for api in program.APIS:
            if name.startswith(f"{words[api]}."):
                return f"{api}.{name[len(words[api]) + 1 :]}"
        parts = name.split(".")
        parts[0] = "Module" if parts[0] == words["root"] else parts[0]
        kinds = {words[kind]: kind for kind in ("Linear", "ReLU")}
        return ".".join(kinds.get(part, part) for part in parts)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every value of a record by its path; names of types and dtypes in neutral words."""
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= leaves(item, f"{path}/{key}")
        return found
    if isinstance(value, list):
        return {key: leaf for place, item in enumerate(value) for key, leaf in leaves(item, f"{path}/{place}").items()}
    if path.endswith(("/type", "/dtype")) and isinstance(value, str):
        return {path: value.rpartition(".")[2].lower()}
    return {path: value}


@pytest.fixture(params=list(program.WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dumps(folder: Path, way: str) -> dict[str, Dumped]:
    return {backend: Dumped(folder, backend, way) for backend in BACKENDS}


@pytest.fixture(params=[backend for backend in BACKENDS if backend != "torch"])
def pair(request: pytest.FixtureRequest, dumps: dict[str, Dumped]) -> tuple[Dumped, Dumped]:
    """torch, and another backend."""
    return dumps["torch"], dumps[request.param]


def comparable(names: Any) -> set[str]:
    """All but what is inside of the frameworks' own layers, each of which is built of other functions."""
    return {name for name in names if name.startswith(("Module.", *(f"{api}." for api in program.APIS)))}


def _filled(values: dict[str, Any]) -> set[str]:
    return {path for path, value in values.items() if value is not None}


def test_the_same_calls_are_recorded_with_the_same_fields_in_the_same_tree(
    pair: tuple[Dumped, Dumped], way: str
) -> None:
    one, other = pair
    names = comparable(one.data)
    assert names == comparable(other.data)
    assert len(names) >= {"L0": 10, "mix": 20}.get(way, 1)
    assert one.head["task"] == other.head["task"] and one.head["level"] == other.head["level"]
    assert one.head.keys() == other.head.keys()
    trees = ({name: dumped.tree[name] for name in comparable(dumped.tree)} for dumped in pair)
    assert next(trees) == next(trees)
    for name in names:
        assert one.data[name].keys() == other.data[name].keys(), name
        # A place that takes no gradient is null in one framework and left out in another.
        found, expected = (leaves(side.data[name]) for side in pair)
        assert _filled(found) == _filled(expected), name


def test_values_agree(pair: tuple[Dumped, Dumped], way: str) -> None:
    one, other = pair
    compared = 0
    for name in comparable(one.data):
        found = leaves(other.data[name])
        for path, expected in leaves(one.data[name]).items():
            kind = path.rpartition("/")[2]
            if kind in ("requires_grad", "md5") or expected is None:
                continue  # MindSpore 2.7 does not know the first of an input; the second differs with the last bit
            if isinstance(expected, float):
                compared += 1
                # A mean of numbers that cancel has fewer digits than the numbers.
                scale = leaves(one.data[name]).get(path.replace(kind, "Norm"), 1.0) if kind == "Mean" else 0.0
                assert math.isclose(found[path], expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * (scale or 0.0)), (
                    name, path, found[path], expected,
                )  # fmt: skip
            else:
                assert found[path] == expected, (name, path)
    assert compared >= 8, way
