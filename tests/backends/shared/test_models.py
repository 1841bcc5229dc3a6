"""The names of modules, over models that are plain Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from probe.backends.shared.models import ModuleShape, NamedModules
from probe.common import log
from probe.common.containers import by_prefix


class Net:
    """A module of the user's; modules are called equal, as a user may have it."""

    def __init__(self, *parameters: str, **children: Net) -> None:
        self.parameters = dict.fromkeys(parameters, 1.0)
        self.children = children

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Layer(Net):
    """A layer of the framework."""


Layer.__module__ = "framework.layers.some"


def inside(module: Net, path: str = "", seen: list[int] | None = None) -> Iterator[tuple[str, Net]]:
    seen = [] if seen is None else seen
    if id(module) not in seen:
        seen.append(id(module))
        yield path, module
        for name, child in module.children.items():
            yield from inside(child, f"{path}.{name}" if path else name, seen)


SHAPE = ModuleShape("Module", inside, lambda module: module.parameters, "framework.layers.", ())


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    log.reset()
    yield
    log.reset()


@pytest.fixture
def names() -> NamedModules:
    return NamedModules(SHAPE)


def given(names: NamedModules, models: Any) -> dict[str, int]:
    """The names, each with the identity of its module."""
    modules, _ = names.give(by_prefix(models))
    found = {name.base: id(module) for name, module in modules}
    assert len(found) == len(modules) == len(set(found.values()))
    return found


def test_a_model_has_a_name_if_it_is_one_layer(names: NamedModules) -> None:
    assert list(given(names, Net())) == ["Module.Net"]
    assert list(given(names, Net(fc=Net()))) == ["Module.fc.Net"]
    assert list(given(names, Net("scale", fc=Net()))) == ["Module.fc.Net"]


def test_a_layer_of_the_framework_with_parameters_has_a_name_whatever_it_is_made_of(names: NamedModules) -> None:
    assert list(given(names, Layer("weight", inner=Net()))) == ["Module.inner.Net", "Module.Layer"]
    assert list(given(names, Layer(inner=Net()))) == ["Module.inner.Net"]
    assert list(given(names, [Layer("weight", inner=Layer("weight"))])) == ["Module.0.inner.Layer", "Module.0.Layer"]


def test_no_two_modules_have_one_name(names: NamedModules) -> None:
    def deep() -> Net:
        return Net(a=Net(b=Net(c=Net())), b=Net(c=Net()))

    models = {"": Net(x=deep()), "x": deep(), "x.a": deep(), "x.a.b": Net(), "x~2": Net(a=Net()), "y": Net()}
    assert len(given(names, models)) == 6 + 5 + 5 + 1 + 1 + 1
    assert given(names, models) == given(names, models)


def test_a_module_has_one_name_in_all_models(names: NamedModules) -> None:
    shared, layer = Net(fc=Net()), Net()
    first, second = Net(coder=shared), Net(trunk=shared, head=layer)
    expected = {
        "Module.0.coder.Net": id(shared),
        "Module.0.coder.fc.Net": id(shared.children["fc"]),
        "Module.2.head.Net": id(layer),
    }
    # The layer stands before the model that has it inside.
    assert given(names, [first, layer, second]) == expected


def test_a_model_keeps_its_name_when_another_one_has_it_inside(names: NamedModules) -> None:
    layer, trunk = Net(), Net(fc=Net())
    before = given(names, {"": trunk, "b": layer})
    later = given(names, {"": trunk, "b": layer, "c": Net(layer=layer, trunk=trunk)})
    assert later == {**before, "Module.c.trunk.Net": id(trunk)}


@pytest.mark.parametrize("in_a_circle", [True, False], ids=["in_a_circle", "plain"])
def test_what_outlives_its_model_keeps_its_name(names: NamedModules, in_a_circle: bool) -> None:
    """It is the same name before and after the garbage collector finds the model."""
    trunk, model = Net(fc=Net()), Net()
    model.children = {"trunk": trunk, "circle": model} if in_a_circle else {"trunk": trunk}
    before = given(names, model)
    seen = weakref.ref(model)
    gc.disable()
    try:
        del model
        later = Net(trunk=trunk, head=Net())
        expected = {**before, "Module.b.head.Net": id(later.children["head"])}
        for _ in range(2):
            there = {} if seen() is None else {"": seen()}
            assert given(names, {**there, "b": later}) == expected
            del there
            gc.collect()
        assert seen() is None
        assert given(names, {"b": later, "part": trunk}) == given(names, {"part": trunk, "b": later}) == expected
    finally:
        gc.enable()


def test_a_model_in_the_place_of_another_takes_its_names(
    names: NamedModules, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Net(fc=Net()), Net(fc=Net())
    assert given(names, first) == {"Module.fc.Net": id(first.children["fc"])}
    assert "[WARNING]" not in capsys.readouterr().err
    assert given(names, second) == {"Module.fc.Net": id(second.children["fc"])}
    assert "Module.fc.Net was another module in an earlier start" in capsys.readouterr().err


def test_a_module_in_the_place_of_another_has_its_name(names: NamedModules, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = Net(), Net()
    model = Net(fc=old)
    given(names, model)
    model.children["fc"] = new
    assert given(names, model) == {"Module.fc.Net": id(new)}
    assert "[WARNING]" not in capsys.readouterr().err


def test_names_are_said_to_hold_while_every_model_is_given_or_gone(names: NamedModules) -> None:
    first, second, third = Net(fc=Net()), Net(fc=Net()), Net(fc=Net())

    def hold(models: Any) -> bool:
        return names.give(by_prefix(models))[1]

    assert hold({"": first, "b": second})
    assert hold({"": first, "b": second, "c": third})
    del second
    assert hold({"": first, "c": third})
    assert not hold({"": third})
    assert not hold({"b": third})
