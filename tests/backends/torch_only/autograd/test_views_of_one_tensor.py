"""Of several views of one tensor, used and written to in any order, each has the gradient of what it was returned with.

A view's gradient comes from all uses of it, before and after writes to other parts of the tensor, until some of its
memory is written to; from then on, from all uses of that memory. The expected gradients are those of a program that
writes nothing in place, for one view at a time: what the call returned is a leaf there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch_parts import Call

ROWS, COLUMNS = 4, 6

MAKE: dict[str, Callable[[Any], Any]] = {
    "Tensor.narrow": lambda x: x.narrow(0, 0, max(1, x.shape[0] // 2)),
    "Tensor.select": lambda x: x.select(0, x.shape[0] - 1),
    "Tensor.flatten": lambda x: x.flatten(),
    "Tensor.t": lambda x: x.t(),
    "Tensor.unsqueeze": lambda x: x.unsqueeze(0),
    "Tensor.unfold": lambda x: x.unfold(0, 1, 2),
}
WRITE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "mul_": (lambda y: y.mul_(3), lambda y: y * 3),
    "add_": (lambda y: y.add_(0.5), lambda y: y + 0.5),
    "sin_": (lambda y: y.sin_(), lambda y: y.sin()),
    "fill_": (lambda y: y.fill_(0.25), lambda y: torch.full_like(y, 0.25)),
    "set": (lambda y: y.__setitem__(..., 0.75), lambda y: torch.full_like(y, 0.75)),
}


class Step(NamedTuple):
    do: str
    """"make" a view, "use" one, or write to it."""
    name: int
    """Of the view that is made, used or written to; 0 is the tensor itself."""
    parent: int = 0
    api: str = ""
    by_module: bool = True
    """Whether a module makes it, which level L0 records."""


def grown(seed: int) -> list[Step]:
    """Views are made, used and written to in any order; at least one is written to."""
    draw = random.Random(seed)
    steps: list[Step] = []
    views = [torch.empty(ROWS, COLUMNS)]
    while len(steps) < 12 or all(step.do in ("make", "use") for step in steps):
        do = draw.choice(["make", "use", "use", "write"]) if len(views) > 2 else "make"
        if do == "make":
            parent = draw.randrange(len(views))
            api = draw.choice([api for api in MAKE if api != "Tensor.t" or views[parent].ndim == 2])
            if not views[parent].ndim:
                continue
            view = MAKE[api](views[parent])
            # No copy. What lies alike, or is the same, cannot be told apart.
            if view.untyped_storage().data_ptr() == views[0].data_ptr() and not lies_as_one_of(views[1:], view):
                views.append(view)
                steps.append(Step("make", len(views) - 1, parent, api, draw.random() < 0.7))
        elif do == "use":
            steps.append(Step("use", draw.randrange(len(views))))
        else:
            steps.append(Step(draw.choice([*WRITE]), draw.randrange(1, len(views))))
    return steps


def lies_as_one_of(views: Sequence[torch.Tensor], view: torch.Tensor) -> bool:
    return any(
        (one.shape, one.stride(), one.data_ptr()) == (view.shape, view.stride(), view.data_ptr()) for one in views
    )


def start() -> Any:
    return torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS).requires_grad_()


def use(value: Any, at: int) -> Any:
    return (value.exp() * (at + 1)).sum()


def filled(x: Any) -> Any:
    """A tensor that took no gradient when it was made."""
    buffer = torch.zeros(ROWS, COLUMNS)
    buffer[:2] = x[:2]
    buffer[2:] = x[2:]
    return buffer


def program(steps: Sequence[Step], modules: Mapping[str, Callable[[Any], Any]], fill: bool = False) -> list[Any]:
    x = start()
    views = {0: filled(x * 2) if fill else x * 2}
    loss = torch.zeros(())
    for at, step in enumerate(steps):
        if step.do == "make":
            views[step.name] = (modules if step.by_module else MAKE)[step.api](views[step.parent])
        elif step.do == "use":
            loss = loss + use(views[step.name], at)
        else:
            WRITE[step.do][0](views[step.name])
    del views
    loss.backward()
    return [loss.detach(), x.grad]


def expected(steps: Sequence[Step], name: int) -> Any:
    """The gradient of what the call that made a view returned; ``None`` where it has none."""
    places = {0: torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)}
    inside = {0: {0}}
    """Of each view, what it is a view of."""
    memory = 2 * start().detach().flatten()
    leaf: Any = None
    loss = torch.zeros((), requires_grad=True)
    memory_is_leafs = False

    def read(view: int) -> Any:
        if leaf is None or memory_is_leafs or name not in inside[view]:
            return memory[places[view]]
        ordered, order = places[name].flatten().sort()
        return leaf.flatten()[order[torch.searchsorted(ordered, places[view].contiguous())]]

    for at, step in enumerate(steps):
        if step.do == "make":
            places[step.name] = MAKE[step.api](places[step.parent])
            inside[step.name] = {step.name, *inside[step.parent]}
            if step.name == name:
                leaf = memory[places[name]].detach().clone().requires_grad_()
        elif step.do == "use":
            loss = loss + use(read(step.name), at)
        else:
            written = places[step.name].contiguous()
            if leaf is not None and not memory_is_leafs and torch.isin(written, places[name].contiguous()).any():
                memory = memory.index_put((places[name],), leaf)
                memory_is_leafs = True
            memory = memory.index_put((written,), WRITE[step.do][1](memory[written]))
    return torch.autograd.grad(loss, leaf, allow_unused=True)[0]


def records(runs: Any, debugger: Any, level: str, seed: int, at: int = 0) -> Iterator[tuple[str, Any, Any]]:
    """Each record of a call that made a view: its name, its gradient or ``None``, and the expected one."""
    steps = grown(seed)
    bits = program(steps, MAKE, fill=seed % 3 == 0)
    modules = {api: Call(make) for api, make in MAKE.items()}
    debugger.start(nn.ModuleDict({api.removeprefix("Tensor."): module for api, module in modules.items()}))
    found = program(steps, modules, fill=seed % 3 == 0)
    debugger.stop()
    debugger.step()
    assert all(torch.equal(one, other) for one, other in zip(found, bits)), "nothing changes"
    dump = runs.read(at)
    calls: Counter[str] = Counter()
    for step in steps:
        if step.do == "make":
            module = f"{step.api.removeprefix('Tensor.')}.Call"
            names = [f"{step.api}.{calls[step.api]}.backward"] * (level != "L0")
            names += [f"Module.{module}.backward.{calls[module]}"] * (level != "L1" and step.by_module)
            calls[step.api] += 1
            calls[module] += step.by_module
            for name in names:
                entry = dump.data.get(name, {"input": [None]})["input"][0]
                path = entry and dump.folder / "dump_tensor_data" / entry["data_name"]
                yield name, path and torch.load(path, weights_only=True), expected(steps, step.name)


def assert_right(name: str, gradient: Any, wanted: Any) -> None:
    wanted = torch.zeros_like(gradient) if wanted is None else wanted
    torch.testing.assert_close(gradient, wanted, msg=lambda text: f"{name}: {text}")


@pytest.mark.sampled(least=20, each=False)
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("seed", range(60))
def test_each_has_its_gradient(runs: Any, level: str, seed: int) -> None:
    debugger = runs.new(level=level, task="tensor")
    for name, gradient, wanted in records(runs, debugger, level, seed):
        if gradient is None:
            assert wanted is None or not wanted.any(), name
        else:
            assert_right(name, gradient, wanted)


@pytest.mark.parametrize("seeds", [range(30), range(30, 60)])
def test_modules_alone_have_nearly_all_and_none_that_is_wrong(runs: Any, seeds: Sequence[int]) -> None:
    """Of views that functions make there is no record at level L0, and they can be views of one that a module made."""
    there = absent = 0
    debugger = runs.new(level="L0", task="tensor")
    for at, seed in enumerate(seeds):
        for name, gradient, wanted in records(runs, debugger, "L0", seed, at):
            if gradient is not None:
                assert_right(f"{name} of {seed}", gradient, wanted)
                there += 1
            elif wanted is not None and wanted.any():
                absent += 1
    assert there > 50 and absent < there / 50
