"""Functions of the user's own choice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import batch

from probe.common.errors import MsprobeException


def twice(x: Any, factor: int = 2) -> Any:
    return x * factor


class Kernels:
    @staticmethod
    def twice(x: Any) -> Any:
        return x * 2

    def method(self, x: Any) -> Any:
        return x * 3


class Base:
    @classmethod
    def named(cls, x: Any) -> Any:
        return cls.__name__


class Derived(Base):
    pass


@pytest.mark.parametrize("prefix", [None, "Mine"])
def test_a_registered_function_is_recorded_under_its_prefix(runs: Any, backend: Any, prefix: str | None) -> None:
    owner = SimpleNamespace(twice=twice)
    debugger = runs.new()
    debugger.register_custom_api(owner, "twice", *([prefix] if prefix else []))
    debugger.start()
    backend.run(lambda x: owner.twice(x, factor=2), batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    base = f"{prefix or 'Custom'}.twice"
    assert dump.names == [f"{base}.0.forward", f"{base}.0.backward"], "and what it calls is not"
    record = dump.data[f"{base}.0.forward"]
    assert record["input_kwargs"] == {"factor": {"type": "int", "value": 2}}
    assert record["output"][0]["Max"] == 4.0
    assert dump.data[f"{base}.0.backward"]["output"][0]["Max"] == 2.0


def test_a_function_under_the_name_of_one_of_the_framework_is_told_apart(runs: Any, backend: Any) -> None:
    base = backend.apis["relu"].base
    owner = SimpleNamespace(relu=twice)
    debugger = runs.new()
    debugger.register_custom_api(owner, "relu", base.partition(".")[0])
    debugger.start()
    owner.relu(batch(backend))
    debugger.stop()
    debugger.restore_custom_api(owner, "relu")
    record = runs.read().data[f"{base}.0.forward"]
    assert record["function"] == "SimpleNamespace.relu"
    assert backend.adapter.execution.function(base, called=record["function"]) is None


def test_methods_are_recorded_under_the_name_of_their_class_and_put_back(runs: Any, backend: Any) -> None:
    x, expected = batch(backend), backend.numpy(batch(backend))
    originals = dict(vars(Kernels)), vars(Base)["named"]
    debugger = runs.new()
    registered = ((Kernels, "twice"), (Kernels, "method"), (Base, "named"))
    for owner, name in registered:
        debugger.register_custom_api(owner, name)
    # A static method may be called on an instance; a class method keeps its class.
    debugger.start()
    assert np.array_equal(backend.numpy(Kernels.twice(x)), expected * 2)
    assert np.array_equal(backend.numpy(Kernels().twice(x)), expected * 2)
    assert np.array_equal(backend.numpy(Kernels().method(x)), expected * 3)
    debugger.stop()
    assert [Base.named(x), Base().named(x), Derived.named(x)] == ["Base", "Base", "Derived"]
    for owner, name in registered:
        assert vars(owner)[name] is not {**originals[0], "named": originals[1]}[name]
        debugger.restore_custom_api(owner, name)
    assert dict(vars(Kernels)) == originals[0] and vars(Base)["named"] is originals[1]
    debugger.start()
    Kernels.twice(x)
    debugger.stop()
    dump = runs.read()
    assert [name for name in dump.names if "Kernels" in name] == [
        f"Kernels.{name}.forward" for name in ("twice.0", "twice.1", "method.0")
    ]
    instance, given = dump.data["Kernels.method.0.forward"]["input_args"]
    assert instance is None and given["Max"] == 2.0


def test_an_exception_of_a_registered_function_reaches_the_caller(runs: Any) -> None:
    def bad() -> None:
        raise KeyError("mine")

    owner = SimpleNamespace(bad=bad)
    debugger = runs.new()
    debugger.register_custom_api(owner, "bad", "User")
    debugger.start()
    with pytest.raises(KeyError, match="mine"):
        owner.bad()
    debugger.stop()
    assert "User.bad.0.forward" in runs.read().names


@pytest.mark.parametrize("begins", [False, True], ids=["step", "step and start"])
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_registered_function_that_ends_the_step_has_no_record_in_the_next_one(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str], raises: bool, begins: bool
) -> None:
    debugger = runs.new()

    def epoch(x: Any) -> Any:
        debugger.step()
        if begins:
            debugger.start()
        if raises:
            raise KeyError("mine")
        return x

    owner = SimpleNamespace(twice=twice, epoch=epoch)
    debugger.register_custom_api(owner, "epoch", "User")
    debugger.register_custom_api(owner, "twice", "User")
    debugger.start()
    owner.twice(batch(backend))
    if raises:
        with pytest.raises(KeyError, match="mine"):
            owner.epoch(batch(backend))
    else:
        owner.epoch(batch(backend))
    if not begins:
        debugger.start()
    owner.twice(batch(backend))
    debugger.stop()
    debugger.step()
    assert "AssertionError" not in capsys.readouterr().err
    assert runs.read(0).names == ["User.twice.0.forward"]
    assert runs.read(1).names == ["User.twice.0.forward"]


@pytest.mark.parametrize(
    ("api", "prefix"), [("absent", None), (None, None), (5, None), ("value", None), ("twice", ""), ("twice", 5)]
)
def test_wrong_arguments_are_refused(runs: Any, api: Any, prefix: Any) -> None:
    owner = SimpleNamespace(twice=twice, value=3)
    debugger = runs.new()
    with pytest.raises(MsprobeException, match="register_custom_api: "):
        debugger.register_custom_api(owner, api, prefix)
    assert owner.twice is twice


def test_restoring_what_was_not_registered_is_refused(runs: Any) -> None:
    with pytest.raises(MsprobeException, match="not registered"):
        runs.new().restore_custom_api(SimpleNamespace(twice=twice), "twice")


def test_a_failure_of_the_tool_leaves_the_function_as_it_is_and_is_told(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    owner = SimpleNamespace(twice=twice)
    debugger = runs.new()
    monkeypatch.setattr(backend.adapter.hooks, "attach_custom_api", failing)
    debugger.register_custom_api(owner, "twice")
    assert owner.twice is twice
    assert "register_custom_api(): ZeroDivisionError: ours" in capsys.readouterr().err


def test_a_function_that_could_not_be_restored_can_be_restored_again(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attach = type(backend.adapter.hooks).attach_custom_api
    failing = [True]

    def attached(self: Any, *args: Any) -> Any:
        handle = attach(self, *args)

        def remove() -> None:
            if failing and failing.pop():
                raise ZeroDivisionError("ours")
            handle.remove()

        return SimpleNamespace(remove=remove)

    monkeypatch.setattr(type(backend.adapter.hooks), "attach_custom_api", attached)
    owner, debugger = SimpleNamespace(twice=twice), runs.new()
    debugger.register_custom_api(owner, "twice")
    debugger.restore_custom_api(owner, "twice")
    assert owner.twice is not twice
    assert "ZeroDivisionError: ours" in capsys.readouterr().err
    debugger.restore_custom_api(owner, "twice")
    assert owner.twice is twice


def test_registering_twice_warns_and_records_once_and_only_between_start_and_stop(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = SimpleNamespace(twice=twice)
    debugger = runs.new()
    for _ in range(2):
        debugger.register_custom_api(owner, "twice", "User")
    assert "registered already" in capsys.readouterr().err
    owner.twice(batch(backend))
    debugger.start()
    owner.twice(batch(backend))
    debugger.stop()
    owner.twice(batch(backend))
    debugger.restore_custom_api(owner, "twice")
    assert runs.read().names == ["User.twice.0.forward"] and owner.twice is twice
