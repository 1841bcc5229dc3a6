"""The backward of a call that returned a view of what it was given is there when the view is written to afterwards.

torch takes the node that such a call made out of the gradient graph. The expected gradients are those of a program that
writes nothing in place: what the call returned is a leaf, and the tensor behind the view is put together anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_parts import Call, saved

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
ROWS, COLUMNS = 4, 6
SCALE = torch.linspace(-2, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)


class View(NamedTuple):
    """A function that makes a view, and its API."""

    of: Callable[[Any], Any]
    api: str


VIEWS = {
    "flat": View(lambda x: x.flatten(), "Tensor.flatten"),
    "turned": View(lambda x: x.t(), "Tensor.t"),
    "some columns": View(lambda x: x.narrow(1, 2, 3), "Tensor.narrow"),
    "a row": View(lambda x: x.select(0, 1), "Tensor.select"),
    "one more dimension": View(lambda x: x.unsqueeze(1), "Tensor.unsqueeze"),
}


class Use(NamedTuple):
    """What is done with a view in place, and the same without writing: what is there in the end, and other results."""

    write: Callable[[Any], Any]
    twin: Callable[[Any], tuple[Any, Any]]
    hidden: bool = False
    """Whether it is used before something is written through a view of it, which level L0 cannot tell from a write to
    something else. No gradient is better there than a part of one."""


def set_first(y: Any) -> None:
    y[0] = 5


def write_and_use_before(y: Any) -> Any:
    other = y.exp()
    y.mul_(2)
    return other


def write_a_part(y: Any) -> None:
    y.narrow(0, 0, 2).mul_(3)


def use_before_and_write_a_part(y: Any) -> Any:
    other = y.exp()
    y.narrow(0, 0, 2).mul_(3)
    return other


def first_two(y: Any) -> Any:
    return torch.cat([y[:2] * 3, y[2:]])


NOTHING = torch.zeros(())
USES = {
    "multiplied": Use(lambda y: y.mul_(3), lambda y: (y * 3, NOTHING)),
    "activation": Use(lambda y: F.relu(y, inplace=True), lambda y: (torch.relu(y), NOTHING)),
    "set": Use(set_first, lambda y: (torch.cat([torch.full_like(y[:1], 5), y[1:]]), NOTHING)),
    "several": Use(lambda y: y.mul_(3).add_(1).mul_(2), lambda y: ((y * 3 + 1) * 2, NOTHING)),
    "used before": Use(write_and_use_before, lambda y: (y * 2, y.exp())),
    "through a view of it": Use(write_a_part, lambda y: (first_two(y), NOTHING)),
    "used before, through a view of it": Use(
        use_before_and_write_a_part, lambda y: (first_two(y), y.exp()), hidden=True
    ),
}


def start() -> Any:
    return torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS).requires_grad_()


def loss_of(whole: Any, view: Any, other: Any, uses: str) -> Any:
    loss = torch.zeros(())
    if uses != "the view":
        loss = loss + (whole * SCALE).sum() + (whole * whole).sum()
    if uses != "the tensor":
        loss = loss + (view.reshape(-1) * torch.linspace(0.5, 3, view.numel())).sum()
    return loss if other is None or not other.ndim else loss + (other * other).sum()


def program(call: Any, use: Use, uses: str) -> list[Any]:
    x = start()
    whole = x * 2
    view = call(whole)
    other = use.write(view)
    loss = loss_of(whole, view, None if other is view else other, uses)
    loss.backward()
    return [loss.detach(), x.grad]


def expected(view: View, use: Use, uses: str) -> tuple[Any, Any]:
    """The gradient of what the call returned, and through it of what it was given."""
    before = 2 * start().detach()
    returned = view.of(before).clone().requires_grad_()
    written, other = use.twin(returned)
    places = view.of(torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)).flatten()
    whole = before.flatten().index_put((places,), written.flatten()).reshape(ROWS, COLUMNS)
    (gradient,) = torch.autograd.grad(loss_of(whole, written, other, uses), returned)
    return gradient, torch.zeros(ROWS * COLUMNS).index_put((places,), gradient.flatten()).reshape(ROWS, COLUMNS)


@LEVELS
@pytest.mark.parametrize("uses", ["the view", "the tensor", "both"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("view", VIEWS)
def test_the_backward_has_the_gradients_of_a_program_that_writes_nothing(
    runs: Any, level: str, view: str, use: str, uses: str
) -> None:
    assert_gradients(runs, level, view, USES[use], uses)


def assert_gradients(runs: Any, level: str, view: str, use: Use, uses: str) -> None:
    bits = program(VIEWS[view].of, use, uses)
    call = Call(VIEWS[view].of)
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    found = program(call, use, uses)
    debugger.stop()
    assert all(torch.equal(one, other) for one, other in zip(found, bits)), "nothing changes"
    gradient, given = expected(VIEWS[view], use, uses)
    names = {"L0": ["Module.0.Call.backward.0"], "L1": [f"{VIEWS[view].api}.0.backward"]}
    for name in names.get(level, [*names["L0"], *names["L1"]]):
        if level == "L0" and use.hidden:
            record = runs.read().data.get(name, {"input": [None], "output": [None]})
            if record["input"] == record["output"] == [None]:
                continue
        torch.testing.assert_close(saved(runs, name, "input"), gradient)
        torch.testing.assert_close(saved(runs, name, "output"), given)


class Step(NamedTuple):
    """A write to a view, or a use of it, by a number; and the same without writing."""

    write: Callable[[Any, float], Any]
    twin: Callable[[Any, float], Any]


def half(y: Any) -> int:
    return max(1, len(y) // 2)


USED = Step(lambda y, n: y, lambda y, n: y)
WRITTEN = [
    Step(lambda y, n: y.mul_(n), lambda y, n: y * n),
    Step(lambda y, n: y.add_(n), lambda y, n: y + n),
    Step(lambda y, n: y.__setitem__(-1, n), lambda y, n: torch.cat([y[:-1], torch.full_like(y[-1:], n)])),
    Step(lambda y, n: y.narrow(0, 0, half(y)).mul_(n), lambda y, n: torch.cat([y[: half(y)] * n, y[half(y) :]])),
    Step(lambda y, n: y.narrow(0, 0, 1)[0].add_(n), lambda y, n: torch.cat([y[:1] + n, y[1:]])),
]


def grown(seed: int) -> Use:
    """Some uses of a view and at least one write, in any order."""
    draw = random.Random(seed)
    steps = [draw.choice([*WRITTEN, USED, USED]) for _ in range(draw.randint(0, 4))]
    steps.insert(draw.randint(0, len(steps)), draw.choice(WRITTEN))
    numbers = [draw.choice([2.0, 0.5, -1.5]) for _ in steps]

    def write(y: Any) -> Any:
        other = torch.zeros(1)
        for step, number in zip(steps, numbers):
            if step is USED:
                other = other + (y.exp() * number).sum()
            else:
                step.write(y, number)
        return other

    def twin(y: Any) -> tuple[Any, Any]:
        other = torch.zeros(1)
        for step, number in zip(steps, numbers):
            if step is USED:
                other = other + (y.exp() * number).sum()
            else:
                y = step.twin(y, number)
        return y, other

    return Use(write, twin, hidden=steps[0] is USED)


@LEVELS
@pytest.mark.parametrize("seed", range(40))
def test_programs_grown_at_random(runs: Any, level: str, seed: int) -> None:
    draw = random.Random(seed)
    assert_gradients(runs, level, draw.choice([*VIEWS]), grown(seed), draw.choice(["the view", "both"]))


@LEVELS
def test_a_view_that_is_returned_as_it_came(runs: Any, level: str) -> None:
    first, second = Call(lambda x: x.flatten()), Call(lambda x: x.flatten())
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(first, second))
    second(first(start() * 2)).mul_(3).sum().backward()
    debugger.stop()
    modules = ["Module.1.Call.backward.0", "Module.0.Call.backward.0"]
    apis = ["Tensor.flatten.1.backward", "Tensor.flatten.0.backward"]
    data = runs.read().data
    for name in modules * (level != "L1") + apis * (level != "L0"):
        assert data[name]["input"][0]["Max"] == data[name]["output"][0]["Min"] == 3, name


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_of_two_views_each_has_its_own(runs: Any, level: str) -> None:
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential())

    def forward(whole: Any) -> Any:
        left, right = whole.narrow(1, 0, 2), whole.narrow(1, 2, 4)
        right.mul_(3)
        return (left * left).sum() + right.sum()

    forward(start() * 2).backward()
    debugger.stop()
    before = 2 * start().detach()
    torch.testing.assert_close(saved(runs, "Tensor.narrow.0.backward", "input"), 2 * before[:, :2])
    torch.testing.assert_close(saved(runs, "Tensor.narrow.1.backward", "input"), torch.full((ROWS, 4), 3.0))


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_write_to_something_else_adds_nothing(runs: Any, level: str) -> None:
    """A buffer that is filled part by part, of which another part was used."""
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential())
    buffer = start() * 2
    row = buffer.select(0, 0)
    used = row.exp().sum()
    buffer[1] = 7
    (used + (buffer * 5).sum()).backward()
    debugger.stop()
    before = 2 * start().detach()
    torch.testing.assert_close(saved(runs, "Tensor.select.0.backward", "input"), before[0].exp())


@LEVELS
def test_no_part_of_a_gradient_is_taken_for_the_whole(runs: Any, level: str) -> None:
    """A view that is used, used again after a write to another one, and gone when the backward begins."""
    halves = Call(lambda h: (h.narrow(1, 0, 2), h.narrow(1, 2, 4)))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(halves))

    def forward(h: Any) -> Any:
        left, right = halves(h)
        gate = left.exp()
        right.mul_(3)
        return (left * 5).sum() + right.sum() + gate.sum()

    forward(start() * 2).backward()
    debugger.stop()
    left = (2 * start().detach()[:, :2]).exp() + 5
    right = torch.full((ROWS, 4), 3.0)
    if level != "L1":
        torch.testing.assert_close(saved(runs, "Module.0.Call.backward.0", "input", 0), left)
        torch.testing.assert_close(saved(runs, "Module.0.Call.backward.0", "input", 1), right)
        both = torch.cat([left, right], 1)
        torch.testing.assert_close(saved(runs, "Module.0.Call.backward.0", "output"), both)
    if level != "L0":
        torch.testing.assert_close(saved(runs, "Tensor.narrow.0.backward", "input"), left)
        torch.testing.assert_close(saved(runs, "Tensor.narrow.1.backward", "input"), right)


@LEVELS
def test_a_write_that_is_not_recorded_is_no_end(runs: Any, level: str) -> None:
    """The gradient of what lay in the view before goes through it as if it had not been written to."""
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    y = call(start() * 2)
    loss = (y * 2).sum()
    with torch.no_grad():
        y.mul_(3)
    (loss + (y * 5).sum()).backward()
    debugger.stop()
    for name in ["Module.0.Call.backward.0"] * (level != "L1") + ["Tensor.flatten.0.backward"] * (level != "L0"):
        assert set(saved(runs, name, "input").tolist()) == {7.0}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("written", [slice(2, 4), slice(6, 12)], ids=["here", "elsewhere"])
def test_a_view_of_another_type(runs: Any, level: str, written: slice) -> None:
    """The new node of such a view does not tell that it is one: what is not known is not recorded."""
    call = Call(lambda z: torch.view_as_real(z[:4]))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    z = torch.view_as_complex(start().reshape(12, 2)) * 2
    real = call(z)
    loss = (real * 2).sum()
    part = z[written]
    part.mul_(5)
    (loss + (real * 3).sum() + part.abs().sum() * 0).backward()
    debugger.stop()
    gradient = saved(runs, "Module.0.Call.backward.0", "input")
    if written.start == 2:
        assert gradient[:, 0].tolist() == [5.0, 5.0, 17.0, 17.0]
    else:
        assert gradient is None


def test_one_of_very_many_writes_is_known_or_nothing_is_recorded(runs: Any) -> None:
    """What wrote is not seen at level L0; it is looked for among some writes."""
    row = Call(lambda x, at: x.select(0, at))
    debugger = runs.new(level="L0", task="tensor")
    debugger.start(nn.Sequential(row))
    table = start().repeat(25, 1) * 2
    rows = [row(table, at) for at in range(100)]
    for one in rows:
        one.mul_(2)
    torch.stack([one.sum() for one in rows]).sum().backward()
    debugger.stop()
    names = runs.read().names
    for at in range(100):
        name = f"Module.0.Call.backward.{at}"
        if at < 60 or name in names:
            assert set(saved(runs, name, "input").tolist()) == {2.0}


class Doubled(torch.autograd.Function):
    """Writes in place, and counts its backwards."""

    backwards = 0

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        Doubled.backwards += 1
        return gradient * 2


@LEVELS
def test_what_wrote_has_one_backward(runs: Any, level: str) -> None:
    """Its node is asked where it wrote before the pass."""
    call = Call(lambda x: x.narrow(0, 0, 2))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    whole = start() * 2
    rows, last = call(whole), whole[3]
    loss = rows.sum()
    Doubled.backwards = 0
    Doubled.apply(last)  # type: ignore[no-untyped-call]
    (loss + last.sum() + rows.sum()).backward()
    debugger.stop()
    assert Doubled.backwards == 1
    for name in ["Module.0.Call.backward.0"] * (level != "L1") + ["Tensor.narrow.0.backward"] * (level != "L0"):
        assert set(saved(runs, name, "input").flatten().tolist()) == {2.0}


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@LEVELS
def test_a_dispatch_mode_sees_what_it_would_see_alone(runs: Any, level: str) -> None:
    def seen(call: Any) -> tuple[list[str], Any]:
        x = start()
        with Seen() as mode:
            whole = x * 2
            left, right = call(whole), whole.narrow(1, 2, 4)
            loss = left.exp().sum()
            right.mul_(3)
            (loss + left.sum() + right.sum()).backward()
        return mode.operations, x.grad

    call = Call(lambda x: x.narrow(1, 0, 2))
    expected = seen(call)
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    found = seen(call)
    debugger.stop()
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


@LEVELS
def test_what_shows_memory_twice_has_no_gradient_of_a_write(runs: Any, level: str) -> None:
    call = Call(lambda x: x.expand(3, ROWS))
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    whole = torch.ones(1, ROWS, requires_grad=True) * 2
    wide = call(whole)
    whole.narrow(1, 0, 2).mul_(3)
    (wide.sum() + whole.sum()).backward()
    debugger.stop()
    assert not {"Module.0.Call.backward.0", "Tensor.expand.0.backward"} & {*runs.read().names}


@LEVELS
def test_what_else_a_module_computes_is_not_the_gradient_of_its_view(runs: Any, level: str) -> None:
    def both(x: Any) -> Any:
        y = x * 1
        return y.narrow(1, 0, 2), y.sum()

    call = Call(both)
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    part, total = call(start() * 2)
    part.mul_(3)
    (part.sum() + 10 * total).backward()
    debugger.stop()
    name = "Tensor.narrow.0.backward" if level == "L1" else "Module.0.Call.backward.0"
    torch.testing.assert_close(saved(runs, name, "input"), torch.full((ROWS, 2), 3.0))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_records_are_in_the_order_of_a_program_that_writes_nothing(runs: Any, level: str) -> None:
    def names(activation: nn.Module) -> Any:
        model = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(), activation, nn.Linear(6, 1))
        debugger = runs.new(level=level)
        debugger.start(model)
        model(start()).sum().backward()
        debugger.stop()
        return runs.read().names, runs.read().tree

    assert names(nn.ReLU(inplace=True)) == names(nn.ReLU())


@LEVELS
def test_nothing_stays_in_the_way(runs: Any, level: str) -> None:
    run: Any = torch.autograd.graph._engine_run_backward
    before = run.__code__
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    loss = call(start() * 2).mul_(3).sum()
    assert run.__code__ is not before
    debugger.stop()
    assert run.__code__ is before
    loss.backward()


@LEVELS
@pytest.mark.parametrize("part", [torch.imag, torch.conj, torch.view_as_real], ids=lambda part: part.__name__)
@pytest.mark.parametrize("use", ["root", "argument"])
def test_a_view_of_complex_numbers_keeps_its_gradient(runs: Any, level: str, part: Any, use: str) -> None:
    """torch can make the new node of such a view only with all of autograd at work."""

    def run(call: Any) -> Any:
        w = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        z = w * 2
        call(z.flatten())
        y = call(part(z))
        z.mul_(2 + 1j)
        y = y if use == "root" else F.dropout(y, 0.5, False)
        return torch.autograd.grad(y, w, torch.ones_like(y))

    call = Call(lambda x: x)
    expected = run(call)
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    found = run(call)
    debugger.stop()
    assert torch.equal(found[0], expected[0])


@LEVELS
def test_batched_gradients_are_no_failure(runs: Any, level: str) -> None:
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    x = start()
    y = call(x * 2)
    y.mul_(3)
    (gradient,) = torch.autograd.grad(y, x, torch.eye(y.numel()), is_grads_batched=True)
    debugger.stop()
    assert torch.equal(gradient.reshape(y.numel(), -1), 6 * torch.eye(y.numel()))
    assert not (runs.read().folder / "dump_error_info.log").exists()


@LEVELS
def test_views_that_cannot_be_written_to_stop_nobody(runs: Any, level: str) -> None:
    """Of those that `split` makes torch gives none another node."""
    parts, flat = Call(lambda x: x.split(2)), Call(lambda x: x.flatten())
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(parts, flat))
    whole, other = start() * 2, start() * 3
    loss = parts(whole)[0].exp().sum()
    y = flat(other)
    y.mul_(3)
    whole.mul_(2)
    (loss + whole.sum() + y.sum()).backward()
    debugger.stop()
    assert ("Tensor.flatten.0.backward" if level == "L1" else "Module.1.Call.backward.0") in runs.read().names
    assert not (runs.read().folder / "dump_error_info.log").exists()


@LEVELS
def test_a_tensor_that_a_module_keeps_is_not_its_view(runs: Any, level: str) -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x * 1)
        return kept[0].flatten()

    call = Call(keep)
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    y = call(start() * 2)
    (y.sum() + (kept[0].flatten() * 10).sum()).backward()
    debugger.stop()
    name = "Tensor.flatten.0.backward" if level == "L1" else "Module.0.Call.backward.0"
    assert set(saved(runs, name, "input").tolist()) == {1.0}


def test_however_long_ago_it_was_written_to(runs: Any) -> None:
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level="L0")
    debugger.start(nn.Sequential(call))
    y = call(start() * 2).mul_(3)
    for _ in range(30_000):
        y = y * 1.0
    y.sum().backward()
    debugger.stop()
    record = runs.read().data["Module.0.Call.backward.0"]
    assert record["input"][0]["Max"] == record["input"][0]["Min"] == 3
