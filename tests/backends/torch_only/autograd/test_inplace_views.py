"""Modules that write in place to a view they were given have their backward, with the gradients of the mathematics.

The expected gradients are those of a program that writes nothing in place: what the module was given is a leaf, its
result goes through `out`, and the tensor behind the view is put together anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import Call

LEVELS = pytest.mark.parametrize("level", ["L0", "mix"])
ROWS, COLUMNS = 4, 6
SCALE = torch.linspace(-2, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)

VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda y: y[1:3, 1:5],
    "reshaped": lambda y: y.reshape(-1),
    "transposed": lambda y: y.t(),
    "view of a view": lambda y: y.t()[1:].unsqueeze(0),
    "every other row": lambda y: y[::2],
    "chunk": lambda y: y.narrow(1, 3, 3),
}


class Writer(NamedTuple):
    """What a module does to the `x` it was given, and the same without writing: what is there afterwards."""

    write: Callable[[Any], Any]
    twin: Callable[[Any], Any]
    returned: Callable[[Any, Any], Any] | None = lambda x, written: written
    """What it returns, of what it was given and what is there afterwards; ``None`` for nothing."""


def set_first(x: Any) -> Any:
    x[0] = 7
    return x


def set_first_twin(x: Any) -> Any:
    return torch.cat([torch.full_like(x[:1], 7), x[1:]])


def write_twice(x: Any) -> Any:
    x.mul_(2)
    x += 1
    return x.mul_(x.detach().clone())


def read_and_write(x: Any) -> Any:
    before = x.exp()
    x.mul_(before.detach() + 1)
    return x.add_(before)


def put_at(x: Any) -> Any:
    return x.index_put_((torch.tensor([0]),), x[-1:] * 3)


def sigmoid_into(x: Any) -> Any:
    x.copy_(torch.sigmoid(x))
    return x


def write_and_return_another(x: Any) -> Any:
    another = x.exp()
    x.mul_(3)
    return another


def write_and_return_nothing(x: Any) -> None:
    set_first(x).mul_(3)


def to_a_view_of_its_own(x: Any) -> Any:
    x.view_as(x)[0].mul_(5)
    return x


WRITERS = {
    "activation": Writer(nn.ReLU(inplace=True), torch.relu),
    "set": Writer(set_first, set_first_twin),
    "several": Writer(write_twice, lambda x: (2 * x + 1) * (2 * x + 1).detach()),
    "read and write": Writer(read_and_write, lambda x: x * (x.exp().detach() + 1) + x.exp()),
    "index_put_": Writer(put_at, lambda x: torch.cat([x[-1:] * 3, x[1:]]) if len(x) > 1 else x * 3),
    "copy_": Writer(sigmoid_into, torch.sigmoid),
    "another": Writer(write_and_return_another, lambda x: x * 3, lambda x, _: x.exp()),
    "nothing": Writer(write_and_return_nothing, lambda x: set_first_twin(x) * 3, None),
    "view inside": Writer(to_a_view_of_its_own, lambda x: torch.cat([x[:1] * 5, x[1:]])),
}


def loss_of(whole: Any, out: Any, uses: str) -> Any:
    loss = torch.zeros(())
    if uses != "returned":
        loss = loss + (whole * SCALE).sum() + (whole * whole).sum()
    if uses != "whole" and out is not None:
        loss = loss + (out * torch.linspace(0.5, 3, out.numel()).reshape(out.shape)).sum()
    return loss


def program(net: nn.ModuleList, view: Callable[[Any], Any], uses: str) -> list[Any]:
    x = torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS).requires_grad_()
    y = x * 2
    out = net[0](view(y))
    loss = loss_of(y, out, uses)
    loss.backward()
    return [loss.detach(), x.grad]


def expected_gradients(writer: Writer, view: Callable[[Any], Any], uses: str) -> tuple[Any, Any]:
    """Of what the module returned (``None``: nothing) and of what it was given."""
    y = 2 * torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    given = view(y).clone().requires_grad_()
    written = writer.twin(given)
    out = None if writer.returned is None else writer.returned(given, written)
    places = view(torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS))
    whole = y.flatten().index_put((places.flatten(),), written.flatten()).reshape(ROWS, COLUMNS)
    ends = [given] if out is None else [given, out]
    found = torch.autograd.grad(loss_of(whole, out, uses), ends, allow_unused=True)
    return (None if out is None else found[1]), found[0]


def loaded(dump: Any, entry: Any) -> Any:
    if entry is None:
        return None
    return torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True)


def assert_close(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None)
    if expected is not None:
        torch.testing.assert_close(found, expected)


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(torch.equal(one, other) for one, other in zip(first, second))


def selected() -> Iterator[Any]:
    for view in VIEWS:
        for name, writer in WRITERS.items():
            for uses in ("whole", "returned", "both"):
                # What returns nothing and is not used otherwise has no backward.
                if writer.returned is not None or uses != "returned":
                    for level in ("L0", "mix") if uses == "both" else ("L0",):
                        yield level, view, name, uses


@pytest.mark.sampled(least=40)
@pytest.mark.parametrize(("level", "view", "writer", "uses"), list(selected()))
def test_the_record_has_the_gradients_of_a_program_that_writes_nothing(
    runs: Any, level: str, view: str, writer: str, uses: str
) -> None:
    net, debugger = nn.ModuleList([Call(WRITERS[writer].write)]), runs.new(level=level, task="tensor")
    bare = program(net, VIEWS[view], uses)
    debugger.start(net)
    assert same(program(net, VIEWS[view], uses), bare)
    debugger.stop()
    dump = runs.read()
    record = dump.data["Module.0.Call.backward.0"]
    arriving, leaving = expected_gradients(WRITERS[writer], VIEWS[view], uses)
    if WRITERS[writer].returned is None:
        assert record["input"] == []
    else:
        assert_close(loaded(dump, record["input"][0]), arriving)
    assert_close(loaded(dump, record["output"][0]), leaving)


def nodes_of(loss: Any) -> list[tuple[str, list[Any]]]:
    """The graph below a loss: each node's name, and the places in this list of those that follow."""
    numbers, ahead = {loss.grad_fn: 0}, [loss.grad_fn]
    for node in ahead:
        for following, _ in node.next_functions:
            if following is not None and following not in numbers:
                numbers[following] = len(numbers)
                ahead.append(following)
    return [(node.name(), [(numbers.get(to), slot) for to, slot in node.next_functions]) for node in ahead]


def watched(runs: Any, level: str, make: Callable[[], nn.Module], work: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """What `work` returned without the tool, with it, and the dump."""
    bare = work(make())
    model, debugger = make(), runs.new(level=level, task="tensor")
    debugger.start(model)
    found = work(model)
    debugger.stop()
    return bare, found, runs.read()


@LEVELS
@pytest.mark.parametrize("way", ["returned", "given", "given twice"])
def test_a_view_of_rewritten_memory_gets_its_node_when_the_program_uses_it(runs: Any, level: str, way: str) -> None:
    """The engine runs nodes by the order in which they were made, so a node made early changes sums of gradients."""

    def work(net: Any) -> list[Any]:
        torch.manual_seed(0)
        w = torch.randn(50, requires_grad=True)
        scales = [torch.randn(50) * 10**power for power in (0, 1, -1)]
        y = w * 1.0
        v = y.view(-1)

        def use(x: Any) -> Any:
            if way == "returned":
                x[:3] = 1
                return x
            # Another use of the memory comes before that of the view.
            first = (y * scales[0]).sum()
            return torch.stack([first, (x * scales[1]).sum()]).sum()

        net[0].function = use
        if way == "returned":
            v = net[0](v)
            losses = [(y * scales[0]).sum(), (v * scales[1]).sum()]
        else:
            y[:3] = 1
            losses = [net[0](v) for _ in range(2 if way == "given twice" else 1)]
        (sum(losses) + (y * scales[2]).sum()).backward()
        return [w.grad]

    bare, found, dump = watched(runs, level, lambda: nn.ModuleList([Call(abs)]), work)
    assert same(found, bare)
    record = dump.data["Module.0.Call.backward.0"]
    assert record["input"][0] is not None and record["output"][0] is not None


@LEVELS
@pytest.mark.parametrize("writer", WRITERS)
def test_no_node_comes_into_the_graph(runs: Any, level: str, writer: str) -> None:
    def work(net: Any) -> Any:
        y = torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS).requires_grad_() * 2
        return nodes_of(loss_of(y, net[0](y[:, 1:4]), "both"))

    bare, found, _ = watched(runs, level, lambda: nn.ModuleList([Call(WRITERS[writer].write)]), work)
    assert found == bare and len(found) > 4


def whole_program(net: Any) -> list[Any]:
    """The chains that models have: each line writes into a view of what the line before made."""
    torch.manual_seed(5)
    x = torch.randn(4, 8, requires_grad=True)
    y = net["linear"](x)
    left, right = y[:, :4], y[:, 4:]
    net["residual"](y.t(), x.t())
    net["dropout"](right)
    net["relu"](left)
    buffer = torch.zeros(8, 4)
    net["fill"](buffer[:4], y[:, :4])
    net["fill"](buffer[4:], y[:, 4:])
    loss = (buffer * torch.linspace(-1, 1, 32).reshape(8, 4)).sum() + (y * y).sum()
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in net.parameters())]


def chain_model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "linear": nn.Linear(8, 8),
            "relu": nn.ReLU(inplace=True),
            "dropout": nn.Dropout(0.5, inplace=True),
            "residual": Call(lambda x, other: x.add_(other)),
            "fill": Call(lambda part, value: part.copy_(value)),
        }
    )


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_chains_of_modules_that_write_into_views(runs: Any, level: str) -> None:
    bare, found, dump = watched(runs, level, chain_model, whole_program)
    assert same(found, bare)
    if level == "L1":
        return
    assert [name for name in dump.backward if name.startswith("Module")] == [
        f"Module.{name}.backward.{number}"
        for name, number in (
            ("fill.Call", 1), ("fill.Call", 0), ("relu.ReLU", 0), ("dropout.Dropout", 0), ("residual.Call", 0),
            ("linear.Linear", 0),
        )
    ]  # fmt: skip

    def gradients(name: str, field: str) -> list[Any]:
        return [loaded(dump, entry) for entry in dump.data[name][field]]

    def forward(name: str, field: str) -> Any:
        return loaded(dump, dump.data[f"Module.{name}.forward.0"][field][0])

    # By hand: the gradient of y is twice itself, and what the halves of the buffer bring.
    scale = torch.linspace(-1, 1, 32).reshape(8, 4)
    whole = 2 * torch.cat([forward("relu.ReLU", "output"), forward("dropout.Dropout", "output")], 1)
    whole += torch.cat([scale[:4], scale[4:]], 1)
    for number, half in enumerate((scale[:4], scale[4:])):
        assert same(gradients(f"Module.fill.Call.backward.{number}", "input"), [half])
        # Once a half is filled the buffer takes a gradient, of which nothing is left where it is overwritten.
        expected = [half] if number == 0 else [torch.zeros(4, 4), half]
        assert same(gradients(f"Module.fill.Call.backward.{number}", "output"), expected)
    slopes = []
    for name, part in (("relu.ReLU", slice(0, 4)), ("dropout.Dropout", slice(4, 8))):
        given, made = forward(name, "input_args"), forward(name, "output")
        slopes.append((made > 0).float() if name == "relu.ReLU" else (made / given).round())
        assert_close(gradients(f"Module.{name}.backward.0", "input")[0], whole[:, part])
        assert_close(gradients(f"Module.{name}.backward.0", "output")[0], whole[:, part] * slopes[-1])
    whole *= torch.cat(slopes, 1)
    for field, count in (("input", 1), ("output", 2)):
        found = gradients("Module.residual.Call.backward.0", field)
        assert len(found) == count
        for gradient in found:
            assert_close(gradient, whole.t())


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_chains_in_a_checkpoint(runs: Any, level: str, reentrant: bool) -> None:
    def work(net: Any) -> list[Any]:
        def part(x: Any) -> Any:
            y = net["linear"](x)
            net["residual"](y.view(-1), x.reshape(-1))
            net["dropout"](y[:, 4:])
            net["relu"](y[:, :4])
            return y

        torch.manual_seed(5)
        x = torch.randn(4, 8, requires_grad=True)
        loss = checkpoint(part, x, use_reentrant=reentrant).pow(2).sum()
        loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in net.parameters()), torch.get_rng_state()]

    bare, found, dump = watched(runs, level, chain_model, work)
    assert same(found, bare)
    if level != "L1":
        kept = 1 if reentrant else 0
        names = {f"Module.{name}.backward.{kept}" for name in ("relu.ReLU", "dropout.Dropout", "residual.Call")}
        assert names <= set(dump.backward)
        assert all(dump.data[name][field][0] is not None for name in names for field in ("input", "output"))


@LEVELS
def test_of_two_views_only_the_one_that_was_written_to_has_its_later_uses(runs: Any, level: str) -> None:
    def work(net: Any) -> list[Any]:
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        y = x * 2
        net[0](y[0], y[1])
        (y * torch.tensor([[3.0], [5.0]])).sum().backward()
        return [x.grad]

    bare, found, dump = watched(runs, level, lambda: nn.ModuleList([Call(lambda a, b: a.add_(b))]), work)
    assert same(found, bare)
    first, second = dump.data["Module.0.Call.backward.0"]["output"]
    assert_close(loaded(dump, first), torch.full((4,), 3.0))
    # Not the 5 that come from uses of the second row after the call.
    assert_close(loaded(dump, second), torch.full((4,), 3.0))


def write_a_slice(a: Any, b: Any) -> Any:
    a[0].mul_(3)
    return a.sum() + (b * 2).sum()


def write_all(a: Any, b: Any) -> Any:
    before = (b * 2).sum()
    a.mul_(3)
    return a.sum() + before


def use_on_both_sides(a: Any, b: Any) -> Any:
    before = b.sum()
    a[1:].add_(1)
    return a.sum() + b.sum() + before


@LEVELS
@pytest.mark.parametrize("function", [write_a_slice, write_all, use_on_both_sides])
@pytest.mark.parametrize("given", ["both", "the other"])
def test_of_a_view_beside_what_was_written_to_the_uses_inside_count(
    runs: Any, level: str, function: Any, given: str
) -> None:
    def work(net: Any) -> list[Any]:
        x = torch.linspace(-1, 1, 8).reshape(4, 2).requires_grad_()
        y = x * 2
        a, b = y[:2], y[2:]
        kept[:] = [a]
        result = net[0](a, b) if given == "both" else net[1](b)
        (result + (b * 7).sum()).backward()
        return [x.grad]

    kept: list[Any] = []
    calls = [Call(function), Call(lambda b: function(kept[0], b))]
    bare, found, dump = watched(runs, level, lambda: nn.ModuleList(calls), work)
    assert same(found, bare)
    name = "Module.0.Call.backward.0" if given == "both" else "Module.1.Call.backward.0"
    gradient = loaded(dump, dump.data[name]["output"][-1])
    assert set(gradient.flatten().tolist()) == {2.0}


@LEVELS
def test_memory_that_changed_without_the_graph_knowing(runs: Any, level: str) -> None:
    """The optimizer's step does so to views of a flat parameter that a program keeps."""

    def work(net: Any) -> list[Any]:
        flat = nn.Parameter(torch.linspace(-1, 1, 8))
        view = flat.view(2, 4)
        with torch.no_grad():
            flat.mul_(3)
        (net[0](view) * 2).sum().backward()
        return [flat.grad]

    bare, found, dump = watched(runs, level, lambda: nn.ModuleList([nn.Sequential(nn.Identity(), nn.Tanh())]), work)
    assert same(found, bare)
    for name in ("Module.0.0.Identity", "Module.0.Sequential"):
        record = dump.data[f"{name}.backward.0"]
        expected = 2 * (1 - torch.tanh(3 * torch.linspace(-1, 1, 8)) ** 2).reshape(2, 4)
        assert_close(loaded(dump, record["output"][0]), expected)


OTHER_TYPES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "imaginary part": (lambda: COMPLEX * 1, lambda z: z.imag[:1]),
    "whole imaginary part": (lambda: COMPLEX * 1, lambda z: z.imag),
    "real part": (lambda: COMPLEX * 1, lambda z: z.real[:, 1:]),
    "conjugate": (lambda: COMPLEX * 1, lambda z: z.conj()[:1]),
    "adjoint": (lambda: COMPLEX * 1, lambda z: z.mH[:1]),
    "imaginary part of the conjugate": (lambda: COMPLEX * 1, lambda z: z.conj().imag[1:]),
    "pairs": (lambda: COMPLEX * 1, lambda z: torch.view_as_real(z)[1:]),
    "from pairs": (lambda: torch.view_as_real(COMPLEX * 1).clone(), lambda z: torch.view_as_complex(z)[:1]),
    "same type": (lambda: COMPLEX * 1, lambda z: z[1:]),
}
COMPLEX = torch.complex(torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3).flip(0))


@LEVELS
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_views_of_another_type_have_their_part_of_the_gradient(runs: Any, level: str, kind: str) -> None:
    make, view_of = OTHER_TYPES[kind]
    factors = torch.complex(torch.linspace(-3, 2, 12).view(4, 3), torch.linspace(5, 7, 12).view(4, 3))
    model = nn.Sequential(Call(lambda x: x.mul_(2)))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(model)
    start = make().requires_grad_()
    whole = start * 1
    model(view_of(whole))
    complexes = whole if whole.is_complex() else torch.view_as_complex(whole)
    loss = (complexes * factors).real.sum()
    (gradient,) = torch.autograd.grad(loss, whole, retain_graph=True)
    loss.backward()
    debugger.stop()
    entry = runs.read().data["Module.0.Call.backward.0"]["input"][0]
    saved = torch.load(runs.read().folder / "dump_tensor_data" / entry["data_name"], weights_only=True)
    expected = view_of(gradient).resolve_conj().resolve_neg()
    assert saved.dtype == expected.dtype and torch.equal(saved.resolve_conj().resolve_neg(), expected)


@LEVELS
def test_a_view_that_torch_gives_no_node_again_costs_the_others_nothing(runs: Any, level: str) -> None:
    """Made without recording, of what was written to since: torch refuses the question where its gradient goes."""
    model = nn.Sequential(Call(lambda x, view: x * view.detach().mean()))
    debugger = runs.new(level=level)
    debugger.start(model)
    x = torch.ones(2, 3, requires_grad=True) * 1
    with torch.no_grad():
        view = x.view(-1)
    x.mul_(3)
    model[0](x, view).sum().backward()
    debugger.stop()
    record = runs.read().data["Module.0.Call.backward.0"]
    assert record["input"][0]["Max"] == 1 and record["output"][0]["Max"] == 3
