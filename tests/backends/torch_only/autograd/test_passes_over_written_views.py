"""Views that are written to afterwards, and the passes of the engine: each has the gradient of its pass, or none."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import Call, saved

from probe.backends.torch.later_gradient import LaterGradient

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def leaf() -> Any:
    return torch.linspace(-1, 1.5, 24).reshape(4, 6).requires_grad_()


def rows_used_on_both_sides(call: Any) -> tuple[Any, Any, Any]:
    """Of the gradient of what `call` returns 2 come from before a write elsewhere, and 3 from after it."""
    x = torch.ones(4, 3, requires_grad=True)
    whole = x * 2
    rows = call(whole)
    before = rows * 2
    whole[3:].mul_(7)
    after = rows * 3
    return rows, before, after


def gradients(runs: Any, level: str, call: int = 0) -> list[Any]:
    """What the records of the call have, each as the set of its numbers."""
    names = [f"Module.0.Call.backward.{call}"] * (level != "L1") + [f"Tensor.narrow.{call}.backward"] * (level != "L0")
    known = runs.read().names
    found = [saved(runs, name, "input") if name in known else None for name in names]
    return [None if gradient is None else {*gradient.flatten().tolist()} for gradient in found]


def narrowed(runs: Any, level: str) -> tuple[Any, Any]:
    call = Call(lambda x: x.narrow(0, 0, 2))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    return debugger, call


@LEVELS
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_pass_inside_of_another_over_the_same_graph(runs: Any, level: str, where: str) -> None:
    """A hook of the user that asks for gradients; the inner pass may come before the outer one has reached the view."""
    debugger, call = narrowed(runs, level)
    rows, before, after = rows_used_on_both_sides(call)
    inner = (rows * 11).sum()
    seen: list[Any] = []

    def hook(_: Any) -> None:
        if not seen:
            seen.append(torch.autograd.grad(inner, [rows], retain_graph=True))

    (before if where == "before" else after).register_hook(hook)
    (before.sum() + after.sum()).backward()
    debugger.stop()
    assert seen
    for found in gradients(runs, level):
        assert found == {5.0}


class Waiting:
    """A pass on a thread of its own that has begun and come to no node yet."""

    def __init__(self, loss: Any) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()
        loss.register_hook(self._wait)
        self._thread = threading.Thread(target=loss.backward)

    def _wait(self, _: Any) -> None:
        self._begun.set()
        assert self._go_on.wait(60)

    def begin(self) -> None:
        self._thread.start()
        assert self._begun.wait(60)

    def end(self) -> None:
        self._go_on.set()
        self._thread.join()


@LEVELS
@pytest.mark.parametrize("come", [False, True], ids=["has come to no view", "has come to a view"])
def test_a_pass_inside_of_another_while_a_third_has_begun(runs: Any, level: str, come: bool) -> None:
    """On another thread, over a graph of its own."""
    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    waiting = Waiting(before.sum() + after.sum())
    x = torch.ones(4, 3, requires_grad=True)
    whole = x * 1
    own, inner = whole.narrow(0, 0, 2).sum() if come else whole.sum(), (x * 3).sum()
    if come:
        rows = call(whole)
        whole[3:].mul_(7)
        own = own + rows.sum()

    def hook(_: Any) -> None:
        waiting.begin()
        torch.autograd.grad(inner, x)

    (whole.grad_fn if come else own).register_hook(lambda *_: hook(None))
    own.backward()
    waiting.end()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == {5.0}


@LEVELS
@pytest.mark.parametrize("others", [0, 1])
def test_a_pass_so_deep_inside_of_others_that_it_runs_on_another_thread(runs: Any, level: str, others: int) -> None:
    """Than the one that began it, and one that Python knows nothing of; as the nodes of a device do."""
    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    waiting = [Waiting(rows_used_on_both_sides(call)[1].sum()) for _ in range(others)]
    x = torch.ones(1, requires_grad=True)
    losses = [*(torch.ones(1, requires_grad=True).sum() for _ in range(61)), before.sum() + after.sum(), x.sum()]
    threads: list[int] = []

    def inside_of(at: int) -> None:
        threads.append(threading.get_ident())
        losses[at + 1].backward()

    for at, loss in enumerate(losses[:-1]):
        loss.register_hook(lambda _, at=at: inside_of(at))
    for one in waiting:
        one.begin()
    losses[0].backward()
    for one in waiting:
        one.end()
    debugger.stop()
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is LaterGradient]
    losses.clear()  # a hook that knows its own tensor is kept for ever
    assert x.grad is not None and len({*threads[:-1]}) == 1 and threads[-1] != threads[0]
    # Which of two passes that have come to no view the last one is inside of nobody knows.
    for number in range(1 + others):
        for found in gradients(runs, level, number):
            assert found == (None if others else {5.0})


@LEVELS
def test_two_passes_one_after_the_other(runs: Any, level: str) -> None:
    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    (before.sum() + after.sum()).backward(retain_graph=True)
    (10 * after.sum()).backward()
    debugger.stop()
    # The last one is what stays in the place of a record.
    for found in gradients(runs, level):
        assert found == {30.0}


@LEVELS
def test_collection_that_stopped_in_between(runs: Any, level: str) -> None:
    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    debugger.stop()
    debugger.start(nn.Sequential(call))
    (before.sum() + after.sum()).backward()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == {5.0}


@LEVELS
def test_nothing_is_held_when_the_pass_is_over(runs: Any, level: str) -> None:
    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    (before.sum() + after.sum()).backward(retain_graph=True)
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is LaterGradient]
    debugger.stop()


@LEVELS
def test_a_failure_of_the_tool_leaves_no_part_of_a_gradient(
    runs: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.errors_expected = True

    def fails(*_: Any) -> None:
        raise MemoryError

    debugger, call = narrowed(runs, level)
    _, before, after = rows_used_on_both_sides(call)
    monkeypatch.setattr(LaterGradient, "__init__", fails)
    (before.sum() + after.sum()).backward()
    debugger.stop()
    assert not any(gradients(runs, level))


@LEVELS
def test_a_tensor_that_took_no_gradient_when_it_was_first_written_to(runs: Any, level: str) -> None:
    """A buffer that a program fills, as a cache."""
    debugger, call = narrowed(runs, level)
    y = torch.ones(2, 3, requires_grad=True) * 2
    buffer = torch.zeros(4, 3)
    buffer[0:2] = y
    rows = call(buffer)
    before = rows * 2
    buffer[2:4] = y
    (before.sum() + (rows * 3).sum()).backward()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == {5.0}


@LEVELS
def test_what_was_used_before_the_view_was_made_is_not_its(runs: Any, level: str) -> None:
    """Of a view that lies alike, and that a write has given a new node."""
    debugger, call = narrowed(runs, level)
    whole = torch.ones(4, 3, requires_grad=True) * 2
    alike = whole[0:2]
    alike.mul_(2)
    rows = call(whole)
    other = torch.ones(2, 2, requires_grad=True) * 2
    other.flatten().mul_(3)
    ((rows * 3).sum() + (alike * 10).sum() + other.sum()).backward()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == {3.0}


@LEVELS
def test_an_older_view_that_lies_alike_and_is_used_afterwards(runs: Any, level: str) -> None:
    """It gets its node then. Nothing was written since the other view was made, so that one has its own."""
    debugger, call = narrowed(runs, level)
    whole = torch.ones(4, 3, requires_grad=True) * 2
    alike = whole.narrow(0, 0, 2)
    whole[0].mul_(2)
    rows = call(whole)
    (call(rows) * 3).sum().backward(retain_graph=True)
    ((rows * 3).sum() + (alike * 10).sum()).backward()
    debugger.stop()
    name = "Module.0.Call.backward.0" if level != "L1" else "Tensor.narrow.1.backward"
    assert {*saved(runs, name, "input").flatten().tolist()} == {3.0}


@LEVELS
def test_views_of_two_results_of_one_operation(runs: Any, level: str) -> None:
    """They lie alike, and are of two tensors that have one node."""
    debugger, call = narrowed(runs, level)
    variance, mean = torch.var_mean(torch.ones(5, 4, requires_grad=True) * 2, 0)
    rows, other = call(variance), call(mean)
    loss = (rows * 2).sum() + (other * 11).sum()
    variance[2:].mul_(7)
    loss = loss + (rows * 3).sum()
    del rows, other
    loss.backward()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == {5.0}


class Cache(nn.Module):
    """Writes to a part of a tensor of which it is given another."""

    def __init__(self) -> None:
        super().__init__()
        self.part: Any = None

    def forward(self, x: Any) -> Any:
        self.part.mul_(5)
        return x * 1


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_that_writes_to_what_it_was_not_given(runs: Any, level: str) -> None:
    call, cache = Call(lambda x: x.narrow(0, 0, 2)), Cache()
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call, cache))
    whole = torch.ones(4, 3, requires_grad=True) * 2
    rows = call(whole)
    before = rows.sum() * 2
    cache.part = rows[1:]
    result = cache(whole[2:])
    (before + result.sum() + (whole * 7).sum()).backward()
    debugger.stop()
    # Of the first row 2 before the write and 7 after it, of the one written to 2 and 5 times 7.
    for found in gradients(runs, level):
        assert found == {9.0, 37.0}


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_that_detaches_what_it_was_given(runs: Any, level: str) -> None:
    def detach(x: Any, y: Any) -> Any:
        x.detach_()
        return (x + y).sum()

    call = Call(detach)
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    x = torch.ones(3, requires_grad=True) * 2
    y = torch.ones(3, requires_grad=True) * 3
    call(x, y).backward()
    debugger.stop()
    assert gradients(runs, "L0") == [{1.0}]


@LEVELS
def test_tensors_without_memory_are_no_failure(runs: Any, level: str) -> None:
    call = Call(lambda x: torch.view_as_real(x.narrow(0, 0, 2)))
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    whole = torch.ones(4, dtype=torch.complex64, device="meta", requires_grad=True) * 2
    real = call(whole)
    loss = real.sum()
    whole[3:].mul_(5)
    (loss + real.sum()).backward()
    debugger.stop()
    assert not (runs.read().folder / "dump_error_info.log").exists()


@LEVELS
def test_a_graph_that_is_kept_runs_again(runs: Any, level: str) -> None:
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    y = call(leaf() * 2)
    loss = y.mul_(3).sum()
    loss.backward(retain_graph=True)
    (2 * loss).backward()
    debugger.stop()
    name = "Tensor.flatten.0.backward" if level == "L1" else "Module.0.Call.backward.0"
    assert runs.read().names.count(name) == 1
    assert set(saved(runs, name, "input").tolist()) == {6.0}


@LEVELS
@pytest.mark.parametrize("begin", ["grad", "edge", "checkpoint"])
def test_however_the_backward_begins(runs: Any, level: str, begin: str) -> None:
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    x = leaf()

    def forward(x: Any) -> Any:
        return call(x * 2).mul_(3)

    if begin == "checkpoint":
        checkpoint(forward, x, use_reentrant=True).sum().backward()
        debugger.stop()
    else:
        loss = forward(x).sum()
        edge = torch.autograd.graph.get_gradient_edge(loss)
        torch.autograd.grad([edge if begin == "edge" else loss], x)
        debugger.stop()
    debugger.step()
    base = "Tensor.flatten.{}.backward" if level == "L1" else "Module.0.Call.backward.{}"
    dump = runs.read()
    (name,) = [name for name in dump.names if name in (base.format(0), base.format(1))]
    assert dump.data[name]["input"][0]["Max"] == dump.data[name]["input"][0]["Min"] == 3


@LEVELS
def test_each_of_many_passes_in_a_step_is_looked_at(runs: Any, level: str) -> None:
    """A graph that is gone has left its place in memory to the next one."""
    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential(call))
    for step in range(20):
        y = call(leaf() * 2)
        if step == 19:
            y.mul_(3)
        y.sum().backward()
        del y
    debugger.stop()
    name = "Tensor.flatten.19.backward" if level == "L1" else "Module.0.Call.backward.19"
    assert runs.read().data[name]["input"][0]["Max"] == 3


@LEVELS
def test_what_a_pass_that_raised_left_is_nothing_to_the_next(runs: Any, level: str) -> None:
    class Boom(torch.autograd.Function):
        raised = False

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if not Boom.raised:
                Boom.raised = True
                raise ValueError
            return gradient

    call = Call(lambda x: x.flatten())
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(call))
    y = call(leaf() * 2)
    first = (Boom.apply(y) * 10).sum()  # type: ignore[no-untyped-call]
    y.mul_(100)
    both = first + y.sum()
    with pytest.raises(ValueError):
        both.backward(retain_graph=True)
    first.backward()
    debugger.stop()
    name = "Tensor.flatten.0.backward" if level == "L1" else "Module.0.Call.backward.0"
    assert set(saved(runs, name, "input").tolist()) == {10.0}


@LEVELS
@pytest.mark.parametrize(("views", "writes"), [(20, 1), (1, 20)], ids=["many views", "many writes"])
@pytest.mark.parametrize("limit", [10, 1000])
def test_what_takes_too_long_to_know_has_no_gradient(
    runs: Any, level: str, views: int, writes: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.backends.torch.writes_in_graph._LOOKED_AT", limit)
    debugger, call = narrowed(runs, level)
    whole = torch.ones(4, 3, requires_grad=True) * 2
    others = [whole[2:3, :1] for _ in range(views)]
    rows = call(whole)
    loss = (rows * 2).sum()
    for _ in range(writes):
        whole[3:].mul_(7)
    for other in others:
        loss = loss + other.sum()
    (loss + (rows * 3).sum()).backward()
    debugger.stop()
    for found in gradients(runs, level):
        assert found == ({5.0} if limit == 1000 else None)
