"""Calls that write in place, also to views: each has its backward, with the gradients of the mathematics, or none.

The expected gradients are those of a program that writes nothing in place: what the module was given, or what the call
returned, is a leaf, and the tensor behind a view is put together anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import LEVELS, Call, collected, loaded, maxima, neutral

OF_MODULES = pytest.mark.parametrize("level", ["L0", "mix"])
ROWS, COLUMNS = 4, 6
SCALE = torch.linspace(-2, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)


def start() -> Any:
    return torch.linspace(-1, 1.5, ROWS * COLUMNS).reshape(ROWS, COLUMNS).requires_grad_()


def calls(*functions: Callable[..., Any]) -> Callable[[], nn.ModuleList]:
    return lambda: nn.ModuleList(Call(function) for function in functions)


def assert_close(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None)
    if expected is not None:
        torch.testing.assert_close(found, expected)


# --- whole networks


class Net(nn.Module):
    """A program over a convolution, batch normalization and an activation in place."""

    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.program = program

    def forward(self, x: Any) -> Any:
        return self.program(self, x)


def sum_on_an_output(net: Any, x: Any) -> Any:
    y = net.norm(net.conv(x))
    y += x
    return net.act(y)


def several_on_an_output(net: Any, x: Any) -> Any:
    y = net.conv(x)
    y.add_(1).mul_(2)
    F.leaky_relu_(y)
    return y


def on_a_slice(net: Any, x: Any) -> Any:
    y = net.norm(net.conv(x))
    y[:, :2].mul_(3)
    return y


def on_a_flat_view(net: Any, x: Any) -> Any:
    y = net.conv(x)
    y.view(-1).mul_(3)
    return net.norm(y)


def on_a_view_and_its_whole(net: Any, x: Any) -> Any:
    y = net.conv(x)
    view = y.transpose(1, 2)
    view.mul_(3)
    return view.sum() + (y * y).sum()


def on_an_input_of_the_program(net: Any, x: Any) -> Any:
    y = x * 2
    y -= 1
    return net.act(net.conv(y))


NETWORKS = {
    "activation after normalization": lambda net, x: net.act(net.norm(net.conv(x))),
    "activation after convolution": lambda net, x: net.norm(net.act(net.conv(x))),
    **{each.__name__.replace("_", " "): each for each in (
        sum_on_an_output, several_on_an_output, on_a_slice, on_a_flat_view, on_a_view_and_its_whole,
        on_an_input_of_the_program,
    )},
}  # fmt: skip


@LEVELS
@pytest.mark.parametrize("program", NETWORKS)
def test_each_call_has_its_backward_and_the_program_its_bits(runs: Any, level: str, program: str) -> None:
    def work(net: Any) -> Any:
        x = torch.linspace(-1, 1, 72).reshape(2, 4, 3, 3).requires_grad_()
        out = net(x)
        out.backward(torch.ones_like(out))
        return out, x.grad, [p.grad for p in net.parameters()], list(net.buffers())

    dump = neutral(runs, lambda: Net(NETWORKS[program]), work, level)
    # The counter of batches takes no gradient.
    called = {base(name) for name in dump.forward if (dump.data[name]["output"][0] or {}).get("requires_grad")}
    if program == "on a view and its whole":
        # Nothing arrives at the node of a view that was written to after the call.
        called.discard("Tensor.transpose.0")
    assert called == {base(name) for name in dump.backward} and called
    assert [name for name in dump.backward if None in dump.data[name]["input"]] == []


def base(name: str) -> str:
    direction = ".forward" if ".forward" in name else ".backward"
    return name.rsplit(direction, 1)[0] if name.startswith("Module") else name.replace(direction, "")


@pytest.mark.parametrize("form", ["slice", "transposed", "slice of a transposed gradient"])
def test_gradients_of_an_operation_on_a_view_are_those_of_its_part(runs: Any, form: str) -> None:
    weights, x = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 4, requires_grad=True)

    def program() -> None:
        y = x + 1
        (y[:, 1:3] if form.startswith("slice") else y.t()).mul_(3)
        # The gradient of y is laid out as the transposed one.
        ((y.t() * weights.t()) if "gradient" in form else (y * weights)).sum().backward()

    dump = collected(runs, None, program, "L1", task="tensor")
    record = dump.data["Tensor.mul_.0.backward"]
    arriving = weights[:, 1:3] if form.startswith("slice") else weights.t()
    assert torch.equal(loaded(dump, record["input"][0]), arriving)
    assert torch.equal(loaded(dump, record["output"][0]), arriving * 3)
    assert x.grad is not None and torch.equal(loaded(dump, dump.data["Tensor.__add__.0.backward"]["input"][0]), x.grad)


# --- modules that write to a view they were given

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
    "index_put_": Writer(
        lambda x: x.index_put_((torch.tensor([0]),), x[-1:] * 3),
        lambda x: torch.cat([x[-1:] * 3, x[1:]]) if len(x) > 1 else x * 3,
    ),
    "copy_": Writer(lambda x: x.copy_(torch.sigmoid(x)), torch.sigmoid),
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


def expected_gradients(writer: Writer, view: Callable[[Any], Any], uses: str) -> tuple[Any, Any]:
    """Of what the module returned (``None``: nothing) and of what it was given."""
    y = 2 * start().detach()
    given = view(y).clone().requires_grad_()
    written = writer.twin(given)
    out = None if writer.returned is None else writer.returned(given, written)
    indices = view(torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS))
    whole = y.flatten().index_put((indices.flatten(),), written.flatten()).reshape(ROWS, COLUMNS)
    ends = [given] if out is None else [given, out]
    found = torch.autograd.grad(loss_of(whole, out, uses), ends, allow_unused=True)
    return (None if out is None else found[1]), found[0]


def selected() -> Iterator[Any]:
    for view in VIEWS:
        for name, writer in WRITERS.items():
            for uses in ("whole", "returned", "both"):
                # What returns nothing and is not used otherwise has no backward.
                if writer.returned is not None or uses != "returned":
                    for level in ("L0", "mix") if uses == "both" else ("L0",):
                        yield level, view, name, uses


@pytest.mark.sampled(least=20)
@pytest.mark.parametrize(("level", "view", "writer", "uses"), list(selected()))
def test_the_record_has_the_gradients_of_a_program_that_writes_nothing(
    runs: Any, level: str, view: str, writer: str, uses: str
) -> None:
    def work(net: Any) -> Any:
        x = start()
        y = x * 2
        loss = loss_of(y, net[0](VIEWS[view](y)), uses)
        loss.backward()
        return loss, x.grad

    dump = neutral(runs, calls(WRITERS[writer].write), work, level, task="tensor")
    record = dump.data["Module.0.Call.backward.0"]
    arriving, leaving = expected_gradients(WRITERS[writer], VIEWS[view], uses)
    if WRITERS[writer].returned is None:
        assert record["input"] == []
    else:
        assert_close(loaded(dump, record["input"][0]), arriving)
    assert_close(loaded(dump, record["output"][0]), leaving)


@OF_MODULES
@pytest.mark.parametrize("writer", WRITERS)
def test_no_node_comes_into_the_graph(runs: Any, level: str, writer: str) -> None:
    def work(net: Any) -> Any:
        """The names of the nodes, and the places in this list of those that follow."""
        y = start() * 2
        loss = loss_of(y, net[0](y[:, 1:4]), "both")
        numbers, ahead = {loss.grad_fn: 0}, [loss.grad_fn]
        for node in ahead:
            for following, _ in node.next_functions:
                if following is not None and following not in numbers:
                    numbers[following] = len(numbers)
                    ahead.append(following)
        assert len(ahead) > 4
        return [(node.name(), [(numbers.get(to), slot) for to, slot in node.next_functions]) for node in ahead]

    neutral(runs, calls(WRITERS[writer].write), work, level, task="tensor")


@OF_MODULES
@pytest.mark.parametrize("way", ["returned", "given", "given twice"])
def test_a_view_of_rewritten_memory_gets_its_node_when_the_program_uses_it(runs: Any, level: str, way: str) -> None:
    """The engine runs nodes by the order in which they were made, so a node made early changes sums of gradients."""

    def work(net: Any) -> Any:
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
        return w.grad

    record = neutral(runs, calls(abs), work, level, task="tensor").data["Module.0.Call.backward.0"]
    assert record["input"][0] is not None and record["output"][0] is not None


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


@LEVELS
@pytest.mark.parametrize("inside", ["nothing", "a checkpoint", "a reentrant checkpoint"])
def test_chains_of_modules_that_write_into_views(runs: Any, level: str, inside: str) -> None:
    """As models have them: each line writes into a view of what the line before made."""

    def work(net: Any) -> Any:
        def part(x: Any) -> Any:
            y = net["linear"](x)
            left, right, buffer = y[:, :4], y[:, 4:], torch.zeros(8, 4)
            net["residual"](y.view(-1), x.reshape(-1))
            net["dropout"](right)
            net["relu"](left)
            net["fill"](buffer[:4], y[:, :4])
            net["fill"](buffer[4:], y[:, 4:])
            return (buffer * torch.linspace(-1, 1, 32).reshape(8, 4)).sum() + (y * y).sum()

        torch.manual_seed(5)
        x = torch.randn(4, 8, requires_grad=True)
        loss = part(x) if inside == "nothing" else checkpoint(part, x, use_reentrant="reentrant" in inside)
        loss.backward()
        return loss, x.grad, [p.grad for p in net.parameters()], torch.get_rng_state()

    dump = neutral(runs, chain_model, work, level)
    found = [name for name in dump.backward if name.startswith("Module")]
    fill, again = (3, 2) if "reentrant" in inside else (1, 0), int("reentrant" in inside)
    names = [f"fill.Call.backward.{number}" for number in fill]
    names += [f"{name}.backward.{again}" for name in ("relu.ReLU", "dropout.Dropout", "residual.Call", "linear.Linear")]
    assert found == ([] if level == "L1" else [f"Module.{name}" for name in names])
    assert all(dump.data[name][field][0] is not None for name in found for field in ("input", "output"))


@OF_MODULES
def test_of_two_views_only_the_one_that_was_written_to_has_its_later_uses(runs: Any, level: str) -> None:
    def work(net: Any) -> Any:
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        y = x * 2
        net[0](y[0], y[1])
        (y * torch.tensor([[3.0], [5.0]])).sum().backward()
        return x.grad

    dump = neutral(runs, calls(lambda a, b: a.add_(b)), work, level, task="tensor")
    # Not the 5 that come from uses of the second row after the call.
    for entry in dump.data["Module.0.Call.backward.0"]["output"]:
        assert_close(loaded(dump, entry), torch.full((4,), 3.0))


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


@OF_MODULES
@pytest.mark.parametrize("function", [write_a_slice, write_all, use_on_both_sides])
@pytest.mark.parametrize("given", ["both", "the other"])
def test_of_a_view_beside_what_was_written_to_the_uses_inside_count(
    runs: Any, level: str, function: Any, given: str
) -> None:
    kept: list[Any] = []

    def work(net: Any) -> Any:
        x = torch.linspace(-1, 1, 8).reshape(4, 2).requires_grad_()
        y = x * 2
        a, b = y[:2], y[2:]
        kept[:] = [a]
        result = net[0](a, b) if given == "both" else net[1](b)
        (result + (b * 7).sum()).backward()
        return x.grad

    dump = neutral(runs, calls(function, lambda b: function(kept[0], b)), work, level, task="tensor")
    record = dump.data[f"Module.{0 if given == 'both' else 1}.Call.backward.0"]
    assert set(loaded(dump, record["output"][-1]).flatten().tolist()) == {2.0}


@OF_MODULES
def test_memory_that_changed_without_the_graph_knowing(runs: Any, level: str) -> None:
    """The optimizer's step does so to views of a flat parameter that a program keeps."""

    def work(net: Any) -> Any:
        flat = nn.Parameter(torch.linspace(-1, 1, 8))
        view = flat.view(2, 4)
        with torch.no_grad():
            flat.mul_(3)
        (net[0](view) * 2).sum().backward()
        return flat.grad

    dump = neutral(runs, lambda: nn.ModuleList([nn.Sequential(nn.Identity(), nn.Tanh())]), work, level, task="tensor")
    expected = 2 * (1 - torch.tanh(3 * torch.linspace(-1, 1, 8)) ** 2).reshape(2, 4)
    for name in ("Module.0.0.Identity", "Module.0.Sequential"):
        assert_close(loaded(dump, dump.data[f"{name}.backward.0"]["output"][0]), expected)


COMPLEX = torch.complex(torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3).flip(0))
OTHER_TYPES: dict[str, Callable[[Any], Any]] = {
    "imaginary part": lambda z: z.imag[:1],
    "whole imaginary part": lambda z: z.imag,
    "real part": lambda z: z.real[:, 1:],
    "conjugate": lambda z: z.conj()[:1],
    "adjoint": lambda z: z.mH[:1],
    "imaginary part of the conjugate": lambda z: z.conj().imag[1:],
    "pairs": lambda z: torch.view_as_real(z)[1:],
    "from pairs": lambda z: torch.view_as_complex(z)[:1],
    "same type": lambda z: z[1:],
}


@OF_MODULES
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_views_of_another_type_have_their_part_of_the_gradient(runs: Any, level: str, kind: str) -> None:
    view_of = OTHER_TYPES[kind]
    factors = torch.complex(torch.linspace(-3, 2, 12).view(4, 3), torch.linspace(5, 7, 12).view(4, 3))
    model, expected = nn.Sequential(Call(lambda x: x.mul_(2))), []

    def program() -> None:
        start = (torch.view_as_real(COMPLEX * 1).clone() if kind == "from pairs" else COMPLEX * 1).requires_grad_()
        whole = start * 1
        model(view_of(whole))
        complexes = whole if whole.is_complex() else torch.view_as_complex(whole)
        loss = (complexes * factors).real.sum()
        expected.extend(torch.autograd.grad(loss, whole, retain_graph=True))
        loss.backward()

    dump = collected(runs, model, program, level, task="tensor")
    found = loaded(dump, dump.data["Module.0.Call.backward.0"]["input"][0])
    wanted = view_of(expected[0]).resolve_conj().resolve_neg()
    assert found.dtype == wanted.dtype and torch.equal(found.resolve_conj().resolve_neg(), wanted)


@OF_MODULES
def test_a_view_that_torch_gives_no_node_again_costs_the_others_nothing(runs: Any, level: str) -> None:
    """Made without recording, of what was written to since: torch refuses the question where its gradient goes."""
    model = nn.Sequential(Call(lambda x, view: x * view.detach().mean()))

    def program() -> None:
        x = torch.ones(2, 3, requires_grad=True) * 1
        with torch.no_grad():
            view = x.view(-1)
        x.mul_(3)
        model[0](x, view).sum().backward()

    dump, name = collected(runs, model, program, level), "Module.0.Call.backward.0"
    assert maxima(dump, name, "input")[0] == 1 and dump.data[name]["output"][0]["Max"] == 3


# --- views that a call returned, and that are written to afterwards

WEIGHT = torch.linspace(-1, 2, 36).reshape(6, 6)
RETURNING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "flatten": (lambda x: x.flatten(), "Tensor.flatten"),
    "transpose": (lambda x: x.t(), "Tensor.t"),
    "narrow": (lambda x: x.narrow(0, 1, 2), "Tensor.narrow"),
    "view of its own result": (lambda x: F.linear(x.reshape(2, 2, 6), WEIGHT, WEIGHT[0]), "Functional.linear"),
}


def use_and_multiply(y: Any) -> Any:
    before = y.exp()
    y.mul_(2)
    return before.sum() + y.sin().sum()


def multiply_between_uses(y: Any) -> Any:
    before = y.exp()
    y[:1].mul_(2)
    return before.sum() + (y * y).sum()


def write_without_recording(y: Any) -> Any:
    before = (y * 3).sum()
    with torch.no_grad():
        y.zero_()
    return before


def exp_and_square(y: Any) -> Any:
    return y.exp().sum() + (torch.cat([y[:1] * 2, y[1:]]) ** 2).sum()


USES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "not written": (lambda y: y.exp().sum(), lambda y: y.exp().sum()),
    "written": (lambda y: F.relu(y, inplace=True).sum(), lambda y: F.relu(y).sum()),
    "used and written": (use_and_multiply, lambda y: y.exp().sum() + (y * 2).sin().sum()),
    "a part written": (multiply_between_uses, exp_and_square),
    "written without recording": (write_without_recording, lambda y: (y * 3).sum()),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("call", RETURNING)
def test_what_is_written_to_later_has_the_true_gradient_or_none(runs: Any, call: str, use: str) -> None:
    (function, api), (in_place, twin) = RETURNING[call], USES[use]
    given = (start().detach() * 2).requires_grad_()
    returned = function(given).detach().requires_grad_()
    (arriving,) = torch.autograd.grad(twin(returned), returned)
    (leaving,) = torch.autograd.grad(twin(function(given)), given)

    def work(net: Any) -> Any:
        x = start()
        loss = in_place(net[0](x * 2))
        loss.backward()
        return loss, x.grad

    dump = neutral(runs, calls(function), work, "mix", task="tensor")
    module = "Module.0.Call.backward.0"
    for name, field, wanted in (
        (f"{api}.0.backward", "input", arriving), (module, "input", arriving), (module, "output", leaving),
    ):  # fmt: skip
        gradient = loaded(dump, dump.data.get(name, {field: [None]})[field][0])
        assert gradient is not None or use != "not written"
        if gradient is not None:
            torch.testing.assert_close(gradient, wanted)


def test_a_view_that_was_used_before_it_was_written_to_has_none(runs: Any) -> None:
    """The node that the call made gets the gradient of `exp` alone."""
    net, debugger = nn.ModuleList([nn.Flatten(0)]), runs.new(level="mix")
    for writes in (False, True):
        debugger.start(net)
        y = net[0](torch.ones(3, 4, requires_grad=True) * 1)
        other = y.exp()
        if writes:
            y.mul_(2)
        (other + y).sum().backward()
        debugger.stop()
        debugger.step()
    for step in (0, 1):
        for name in ("Module.0.Flatten.backward.0", "Tensor.flatten.0.backward"):
            record = runs.read(step).data[name]
            assert [record[field][0] is None for field in ("input", "output")] == [bool(step)] * 2
