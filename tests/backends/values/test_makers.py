"""The maker of each tensor that goes into a call: an item, a parameter, a buffer, a gradient, data, or none at all."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import dumped
import numpy as np
import pytest
from programs import BATCH, BIAS1, BIAS2, WEIGHT1, WEIGHT2, Names, batch, block_network, chain

import probe
from probe.collect.describing import makers, values
from probe.common.dump.reading.items import Item

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
RECORDING_FUNCTIONS = pytest.mark.parametrize("level", ["L1", "mix"])


class Made:
    """The tensors of one step, by the names of their items."""

    def __init__(self, runs: Any, step: int = 0) -> None:
        dump = probe.read(str(runs.read(step).folder))
        self.items: dict[str, Item] = {
            item.name: item for each in dump.records for item in each.items() if item.is_tensor
        }

    def by(self, name: str) -> str | None:
        return self.items[name].made_by

    def texts(self) -> dict[str, str | None]:
        return {name: item.made_by for name, item in self.items.items()}

    def of(self, base: str) -> list[str | None]:
        """The makers of the inputs of all forward calls of `base`."""
        return [item.made_by for name, item in self.forward_inputs() if name.startswith(base)]

    def forward_inputs(self) -> list[tuple[str, Item]]:
        return [(name, item) for name, item in self.items.items() if ".forward." in name and is_input(name)]

    def ends(self, name: str) -> set[str | None]:
        """What is reached by walking from the output `name` against the calls: no items, or ``None``."""
        found: set[str | None] = set()
        ahead, seen = [name], set()
        while ahead:
            record = ahead.pop().rpartition(".output.")[0]
            if record not in seen:
                seen.add(record)
                for maker in self._into(record):
                    plain = None if maker is None else maker.replace("view:", "")
                    if plain is None or ":" in plain:
                        found.add(plain)
                    else:
                        ahead.append(plain)
        return found

    def _into(self, record: str) -> Iterator[str | None]:
        for name, item in self.items.items():
            if name.startswith(f"{record}.") and is_input(name) and max(item.shape or (0,)) > 1:
                yield item.made_by


def is_input(name: str) -> bool:
    return ".input." in name or ".kwargs." in name


def collected(runs: Any, backend: Any, model: Any, *inputs: Any, level: str, call: Any = None) -> Made:
    debugger = runs.new(level=level)
    debugger.start(model)
    backend.run(call or model, *inputs, model=model)
    debugger.stop()
    return Made(runs)


def parameters(names: str) -> set[str]:
    return {f"parameter:{name}" for name in names.split()}


@RECORDING_FUNCTIONS
def test_every_tensor_leads_back_to_parameters_and_data(runs: Any, backend: Any, level: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        return (self.net(x) * 2 + self.net(x)).sum()

    model = backend.module("Outer", forward, net=block_network(backend))
    made = collected(runs, backend, model, batch(backend), level=level)
    (total,) = [name for name in made.items if name.endswith(".output.0") and ".sum.0.forward" in name]
    ends = made.ends(total)
    data = {end for end in ends if end is not None and end.startswith("data:")}
    assert len(data) == 1
    assert ends - data == parameters("net.body.fc.weight net.body.fc.bias net.head.weight net.head.bias")


@LEVELS
def test_a_tensor_of_the_user_is_data_wherever_it_goes(runs: Any, backend: Any, level: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        return (self.first(x) + self.second(x)).sum()

    fc = backend.linear(WEIGHT1, BIAS1)
    model = backend.module("Two", forward, first=fc, second=backend.linear(WEIGHT1, BIAS1))
    made = collected(runs, backend, model, batch(backend), level=level)
    given = {item.made_by for _, item in made.forward_inputs() if list(item.shape or ()) == [5, 4]}
    assert len(given) == 1
    assert str(given.pop()).startswith("data:")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_hand_tensors_over(runs: Any, backend: Any, level: str) -> None:
    names = Names(backend)
    made = collected(runs, backend, block_network(backend), batch(backend), level=level)
    assert made.by(f"{names.act}.forward.0.input.0") == made.by(f"{names.fc}.forward.0.output.0") or (
        made.by(f"{names.act}.forward.0.input.0") == f"{names.fc}.forward.0.output.0"
    )
    # What a module hands on was made inside of it.
    inner = made.by(f"{names.body}.forward.0.output.0")
    assert inner is not None
    assert made.by(f"{names.head}.forward.0.input.0") == inner
    assert made.by(f"{names.fc}.forward.0.parameters.weight") == "parameter:body.fc.weight"


@pytest.mark.parametrize("writes", [False, True])
def test_what_was_made_or_written_without_a_record_has_no_maker(runs: Any, backend: Any, writes: bool) -> None:
    def forward(self: Any, x: Any) -> Any:
        hidden = self.a(x)
        if writes:
            backend.write(hidden, 3.0)
        return self.b(hidden if writes else hidden * 2).sum()

    model = backend.module("Net", forward, a=backend.linear(WEIGHT1, BIAS1), b=backend.linear(WEIGHT2, BIAS2))
    debugger = runs.new(level="L0")
    debugger.start(model)
    backend.without_gradient(lambda: model(batch(backend)))
    debugger.stop()
    assert Made(runs).by(f"{backend.root}.b.{backend.classes['linear']}.forward.0.input.0") is None


@RECORDING_FUNCTIONS
def test_the_latest_write_is_the_maker(runs: Any, backend: Any, level: str) -> None:
    add, multiply = backend.apis["add_inplace"], backend.apis["multiply"]
    is_written: list[bool] = []

    def forward(self: Any, x: Any) -> Any:
        kept = hidden = self.a(x) * 2
        before = backend.numpy(kept)
        hidden += 1
        is_written.append(not np.array_equal(before, backend.numpy(kept)))
        return (kept * 3).sum()

    model = backend.module("Net", forward, a=backend.linear(WEIGHT1, BIAS1))
    made = collected(runs, backend, model, batch(backend), level=level)
    assert made.by(f"{add.base}.0.forward.input.0") == f"{multiply.base}.0.forward.output.0"
    # To some frameworks this is no write.
    latest = add if is_written == [True] else multiply
    assert made.by(f"{multiply.base}.1.forward.input.0") == f"{latest.base}.0.forward.output.0"


@RECORDING_FUNCTIONS
def test_each_part_that_a_call_returns_is_its_own(runs: Any, backend: Any, level: str) -> None:
    split, concat = backend.apis["split"], backend.apis["concat"]

    def forward(self: Any, x: Any) -> Any:
        first, second = split.call(self.a(x), 2, 1)
        return concat.call([second, first], 1).sum()

    weight, bias = np.concatenate([WEIGHT1, WEIGHT1[:1]]), np.append(BIAS1, 0).astype(np.float32)
    model = backend.module("Net", forward, a=backend.linear(weight, bias))
    made = collected(runs, backend, model, batch(backend), level=level)
    name = f"{split.base}.0.forward.output"
    assert [made.by(f"{concat.base}.0.forward.input.0.{i}") for i in (0, 1)] == [f"{name}.1", f"{name}.0"]


@LEVELS
def test_a_parameter_of_two_modules_has_its_first_name(runs: Any, backend: Any, level: str) -> None:
    shared = backend.linear(WEIGHT1[:, :3], BIAS1)
    model = backend.module("Net", lambda self, x: (self.b(self.a(x))).sum(), a=shared, b=shared)
    made = collected(runs, backend, model, backend.tensor(BATCH[:, :3]), level=level)
    named = {item.made_by for item in made.items.values() if str(item.made_by).startswith("parameter:")}
    assert named == parameters("a.weight a.bias")


@LEVELS
def test_containers_and_keywords_keep_their_makers(runs: Any, backend: Any, level: str) -> None:
    layer = functools.partial(backend.linear, WEIGHT1, BIAS1)
    inner = backend.module("Inner", lambda self, x: {"first": self.fc(x), "rest": [x]}, fc=layer())
    taker = backend.module("Taker", lambda self, values, other: values["first"] + other, fc=layer())

    def forward(self: Any, x: Any) -> Any:
        made = self.inner(x)
        return self.taker(made, other=self.fc(made["rest"][0])).sum()

    model = backend.module("Net", forward, inner=inner, taker=taker, fc=layer())
    made = collected(runs, backend, model, batch(backend), level=level)
    if level != "L1":
        start = f"{backend.root}.taker.Taker.forward.0"
        for name in ("input.0.first", "kwargs.other" if f"{start}.kwargs.other" in made.items else "input.other"):
            maker = made.by(f"{start}.{name}")
            assert maker is not None
            assert ".output." in maker
        assert str(made.by(f"{start}.input.0.rest.0")).startswith("data:")
    else:
        assert all(made.of(backend.apis["add"].base))


def test_gradients_lead_from_call_to_call(runs: Any, backend: Any) -> None:
    names = Names(backend)
    model = backend.module("Net", lambda self, x: (self.net(x) * x[:, :2]).sum(), net=block_network(backend))
    made = collected(runs, backend, model, batch(backend), level="mix")
    after = f"{backend.root}.net.head.{backend.classes['linear']}.backward.0.output.0"
    relu = f"{backend.root}.net.{names.act.partition('.')[2]}.backward.0.input.0"
    assert made.by(relu) is not None
    assert made.by(relu) in (after, made.by(after))


@LEVELS
def test_records_are_the_same_with_makers_and_without(runs: Any, backend: Any, level: str) -> None:
    model, data = block_network(backend), []
    for sketch in (True, False):
        debugger = runs.new(runs.path / str(sketch), level=level, sketch=sketch)
        debugger.start(model)
        backend.run(model, batch(backend), model=model)
        debugger.stop()
        data.append(dumped.read(runs.path / str(sketch)))
    assert data[0].data == data[1].data
    assert (data[0].folder / "sketch.npz").is_file()
    assert not (data[1].folder / "sketch.npz").exists()


@LEVELS
def test_nothing_is_kept_alive(runs: Any, backend: Any, level: str) -> None:
    debugger, model = runs.new(level=level), block_network(backend)
    kept: list[Any] = []
    head = model.head

    def forward(self: Any, x: Any) -> Any:
        hidden = self.body(x)
        kept.append(weakref.ref(hidden))
        return head(hidden)

    outer = backend.module("Outer", forward, body=model.body, head=head)
    debugger.start(outer)
    backend.without_gradient(lambda: outer(batch(backend)))
    gc.collect()
    alive = [each() is not None for each in kept]
    debugger.stop()
    assert alive == [False]


@LEVELS
def test_each_step_begins_anew_and_makers_are_those_of_python_where_nothing_is_compiled(
    runs: Any, backend: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, debugger = backend.module("Net", chain("net"), net=block_network(backend)), runs.new(level=level)
    for part in (makers.compiled, makers.compiled, None):
        monkeypatch.setattr(makers, "compiled", part)
        if part is None:
            monkeypatch.setattr(values, "entries", values.entries_in_python)
        debugger.start(model)
        backend.run(model, batch(backend), model=model)
        debugger.stop()
        debugger.step()
    first, *others = (Made(runs, step).texts() for step in range(3))
    assert all(other == first for other in others)
