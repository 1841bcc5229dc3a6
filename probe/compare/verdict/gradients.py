"""Causes of gradients: one that a side does not have, one parameter for two, one factor over all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.common.align.calls import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.error_bounds import extent
from probe.compare.judgement import NOTHING, Sentence
from probe.compare.result import SIDES
from probe.compare.verdict import arithmetic
from probe.compare.verdict.facts import Call, is_parameter, of_gradient
from probe.compare.verdict.findings import has_tensor, own_name, ratio_of_norms
from probe.compare.verdict.two_runs import Origin, TwoRuns, path_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CALLS = 200
"""Calls behind a forward that are looked at; a guess."""


def missing(runs: TwoRuns, call: Call, row: Row | None) -> Sentence:
    """The reason why one side has no gradient; `NOTHING` if both have it, or nothing tells."""
    side = _side_without(call, row)
    if side is None:
        return NOTHING
    forward = runs.in_direction(call, FORWARD)
    name = _own_parameter(runs, forward, row, 1 - side) or _parameter_name(call, row)
    said = f"{name} has no gradient in the {SIDES[side]}"
    frozen = "" if forward is None else _frozen(runs, forward, row, side)
    if forward is None or frozen or runs.across_frameworks:
        return Sentence(f"{said}: {frozen}" if frozen else said)
    lost = _without_graph(runs, forward, side)
    if lost is None:
        return Sentence(said, calls=forward.records)
    return Sentence(f"{said}: {lost.text}", calls=lost.call.records)


_NORMS_AGREE = 0.01
"""Relative difference of norms that are said to agree: in short dtypes they are rounded. A guess."""


def direction(runs: TwoRuns, row: Row) -> str:
    """The angle between the gradients of a parameter in both runs; empty if there is none, or no sketch."""
    if row.target is None or row.golden is None or row.target.shape != row.golden.shape:
        return ""
    mine, theirs = (arithmetic.sums(runs, side, [item]) for side, item in enumerate((row.target, row.golden)))
    if mine is None or theirs is None:
        return ""
    from probe.common.numerics.sketch import cosine_interval

    found = cosine_interval(mine[0], theirs[0], extent(row.golden.shape).elements)
    norms = row.target.norm, row.golden.norm
    if found.estimate != found.estimate or not all(type(norm) is float and norm > 0 for norm in norms):
        return ""
    said = f"cosine {found.in_words()} to the golden run's"
    if ratio_of_norms(row):
        # The sentence on the error has it.
        return said
    ratio = norms[0] / norms[1]
    return f"{said}, {'the same norm' if abs(ratio - 1) <= _NORMS_AGREE else f'{ratio:.3g} times the norm'}"


def missing_rows(runs: TwoRuns, call: Call) -> Iterator[Row]:
    """The gradients of parameters of a call that one side lacks and the other has, other than zero.

    Both sides use the parameters, and the side that lacks these gradients has others. Where no module is recorded, the
    gradients are what the backward of a function gives for arguments that are parameters.
    """
    is_of_function = call.direction == BACKWARD and not call.is_module and not runs.has_modules
    if call.is_alike or (call.direction != PARAMETERS_GRAD and not is_of_function):
        return
    forward = runs.in_direction(call, FORWARD)
    if forward is None or not forward.is_of_both:
        return
    if is_of_function:
        shapes = _shapes_of_parameters(runs, forward)
        rows = [row for row in call.outputs if any(_sizes(item) in shapes for item in (row.target, row.golden))]
    else:
        by_name = {own_name(row).partition(".")[0]: row for row in call.outputs}
        used = [row for row in forward.inputs if is_parameter(row) and _is_tensor_of_both(row)]
        names = [own_name(row).partition(".")[2] for row in used]
        rows = [by_name[name] for name in names if name in by_name]
    for row in rows:
        for side in (0, 1):
            lacks, has = (row.target, row.golden)[side], (row.target, row.golden)[1 - side]
            if (
                runs.has_gradients[side]
                and not has_tensor(lacks)
                and has_tensor(has)
                and _is_nonzero(runs, has, 1 - side)
            ):
                yield row


def _is_nonzero(runs: TwoRuns, item: Item | None, side: int) -> bool:
    """True if a gradient is other than zero, by its norm or its sketch."""
    if item is None or item.norm is not None:
        return item is not None and item.norm != 0
    sums = arithmetic.sums(runs, side, [item])
    return sums is not None and bool(sums.any())


def _shapes_of_parameters(runs: TwoRuns, forward: Call) -> set[tuple[int, ...]]:
    """The sizes of parameters that both sides give a function, and of nothing else that they give it.

    Its backward has an order and layout of its own.
    """
    found: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = set(), set()
    for row in forward.inputs:
        if _is_tensor_of_both(row) and row.target is not None and row.golden is not None:
            sources = [graph.source(item) for graph, item in zip(runs.graphs, (row.target, row.golden))]
            found[all(each.origin is Origin.PARAMETER for each in sources)].add(_sizes(row.golden))
    return found[True] - found[False]


def _sizes(item: Item | None) -> tuple[int, ...]:
    return tuple(sorted(item.shape or ())) if item is not None and item.is_tensor else (-1,)


def _is_tensor_of_both(row: Row) -> bool:
    return has_tensor(row.target) and has_tensor(row.golden)


def _side_without(call: Call, row: Row | None) -> int | None:
    if not call.is_of_both:
        return 0 if call.record is None else 1
    if row is None:
        return None
    there = has_tensor(row.target), has_tensor(row.golden)
    return None if there[0] == there[1] else int(there[0])


def _own_parameter(runs: TwoRuns, forward: Call | None, row: Row | None, side: int) -> str:
    """The name of a parameter in the model, which is another one where modules share it; empty if it is not known."""
    wanted = "" if row is None else own_name(row).partition(".")[0]
    for each in () if forward is None else forward.inputs:
        item = (each.target, each.golden)[side]
        if item is not None and is_parameter(each) and own_name(each).partition(".")[2] == wanted:
            return runs.graphs[side].source(item).name
    return ""


def _parameter_name(call: Call, row: Row | None) -> str:
    path = path_of(call.parsed) or call.name
    if call.direction == PARAMETERS_GRAD:
        rows = [row] if row is not None else call.rows
        names = [".".join(filter(None, (path_of(call.parsed), own_name(each).partition(".")[0]))) for each in rows]
        return names[0] if len(names) == 1 else f"{path} ({', '.join(own_name(each) for each in rows)})"
    return path


def _frozen(runs: TwoRuns, forward: Call, row: Row | None, side: int) -> str:
    """The sentence on parameters that one side does not train."""
    wanted = "" if row is None else own_name(row).partition(".")[0]
    for each in forward.inputs:
        own = own_name(each).partition(".")[2]
        item = (each.target, each.golden)[side]
        is_given = item is not None and runs.graphs[side].source(item).origin is Origin.PARAMETER
        if not (is_parameter(each) or is_given) or wanted not in ("", INPUT, OUTPUT, own):
            continue
        items = each.target, each.golden
        lacks, has = items[side], items[1 - side]
        if lacks is not None and has is not None and has.requires_grad and lacks.requires_grad is False:
            return "the parameter is frozen (requires_grad = False)"
    return ""


class _Lost(NamedTuple):
    """The place at which one side loses the graph of a gradient."""

    text: str
    call: Call
    by_function: bool = False
    """True if a graph is there again behind it, as behind a ``torch.autograd.Function``: the graph is its own."""


def _without_graph(runs: TwoRuns, forward: Call, side: int) -> _Lost | None:
    """The first call at or behind a forward that loses the graph on one side; ``None`` if none does."""
    if any(_loses_graph(row, side) for row in forward.outputs):
        made = [
            runs.maker(item, side) for row in forward.outputs if (item := (row.target, row.golden)[side]) is not None
        ]
        if any(call is not None and _has_graph(call, side) for call in made):
            return _Lost(f"what {forward.name} returns is detached (detach)", forward)
        inner = next((call for call in inside(runs, forward) if _is_lost_at(call, side)), None)
        if inner is not None and not any(_loses_graph(row, side) for row in inner.outputs):
            return _Lost(f"{inner.name} takes a tensor that is detached (detach)", inner)
        inputs = [(row.target, row.golden)[side] for row in forward.inputs if not is_parameter(row)]
        tensors = [item for item in inputs if item is not None and item.is_tensor]
        checkpointed = bool(tensors) and not any(item.requires_grad for item in tensors)
        return _computed_without(runs, forward, side, checkpointed)
    return _lost_behind(runs, [forward], side)


def _computed_without(runs: TwoRuns, call: Call, side: int, checkpointed: bool = False) -> _Lost:
    if _has_graph_behind(runs, call, side):
        text = f"{call.name} is computed inside a torch.autograd.Function, which has a backward of its own"
        return _Lost(text, call, by_function=True)
    more = ", or a reentrant checkpoint of which no input takes a gradient" if checkpointed else ""
    return _Lost(f"{call.name} is computed without a graph (no_grad{more})", call)


def _has_graph_behind(runs: TwoRuns, call: Call, side: int) -> bool:
    """True if what a call without a graph leads to has one when it is taken: a Function has given it its own."""
    records = runs.by_record, runs.by_golden_record
    waiting = [(call.record, call.golden_record)[side] or ""]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_CALLS:
        record = waiting.pop(0)
        maker = records[side].get(record)
        if maker is None or _has_graph(maker, side):
            continue
        for taker in runs.graphs[side].takers(record):
            taking = records[side].get(taker)
            for row in () if taking is None else taking.inputs:
                item = (row.target, row.golden)[side]
                # A parameter that the function itself takes is no result of it.
                if item is not None and item.requires_grad and runs.graphs[side].source(item).record == record:
                    return True
            if taker not in seen:
                seen.add(taker)
                waiting.append(taker)
    return False


def _lost_behind(runs: TwoRuns, starts: Sequence[Call], side: int) -> _Lost | None:
    seen: set[str] = set()
    waiting = [(call.record, call.golden_record)[side] or "" for call in starts]
    while waiting and len(seen) < _MOST_CALLS:
        record = waiting.pop(0)
        for taker in runs.graphs[side].takers(record):
            call = (runs.by_record, runs.by_golden_record)[side].get(taker)
            if call is None or taker in seen:
                continue
            seen.add(taker)
            if any(_loses_graph(row, side) for row in call.inputs if not is_parameter(row)):
                return _Lost(f"what {record} returned is detached before {taker} takes it (detach)", call)
            if any(_loses_graph(row, side) for row in call.outputs):
                return _computed_without(runs, call, side)
            waiting.append(taker)
    return None


def lost(runs: TwoRuns, call: Call) -> Sentence:
    """The sentence on a part of a gradient that one side lacks, because a call of its forward loses the graph."""
    forward = runs.in_direction(call, FORWARD)
    # MindSpore says of every tensor that it takes a gradient.
    if forward is None or not forward.is_of_both or runs.across_frameworks:
        return NOTHING
    starts = [forward, *inside(runs, forward)]
    for side in (0, 1):
        at = next((each for each in starts if _is_lost_at(each, side)), None)
        found = _lost_behind(runs, starts, side) if at is None else _without_graph(runs, at, side)
        if at is not None and found is None:
            found = _Lost(f"{at.name} takes a tensor that is detached (detach)", at)
        if found is not None:
            what = "the gradient is another one" if found.by_function else "a part of the gradient is missing"
            return Sentence(f"{what} in the {SIDES[side]}: {found.text}", calls=found.call.records)
    return NOTHING


def inside(runs: TwoRuns, module: Call) -> list[Call]:
    """The forward calls of both sides that a module makes, in order."""
    if not module.is_module:
        return []
    return [
        call
        for call in runs.calls
        if call.is_of_both and call.is_forward and module.name in around(runs.trees[0], call.record or "")
    ]


def _has_graph(call: Call, side: int) -> bool:
    items = ((row.target, row.golden)[side] for row in call.outputs)
    return any(item is not None and bool(item.requires_grad) for item in items)


def _is_lost_at(call: Call, side: int) -> bool:
    return any(_loses_graph(row, side) for row in call.rows if not is_parameter(row))


def _loses_graph(row: Row, side: int) -> bool:
    lacks, has = (row.target, row.golden)[side], (row.target, row.golden)[1 - side]
    return (
        lacks is not None and has is not None and lacks.is_tensor and has.is_tensor
        and lacks.requires_grad is False and bool(has.requires_grad)
    )  # fmt: skip


def tied(runs: TwoRuns, call: Call, row: Row | None) -> Sentence:
    """The sentence on two parameters that are one on one side; `NOTHING` if the gradient is of no such parameter."""
    if call.direction != PARAMETERS_GRAD or row is None or not runs.same_names:
        return NOTHING
    wanted = _parameter_name(call, row)
    shared: set[str] = set()
    others: set[tuple[str, str]] = set()
    for other in runs.calls:
        for taken in other.inputs if other.is_forward and other.is_of_both else ():
            if taken.target is None or taken.golden is None:
                continue
            mine, theirs = (graph.source(item) for graph, item in zip(runs.graphs, (taken.target, taken.golden)))
            if mine.origin is theirs.origin is Origin.PARAMETER:
                if mine.name == theirs.name:
                    shared.add(mine.name)
                else:
                    others.add((mine.name, theirs.name))
    for names in sorted(others):
        sides = [side for side in (0, 1) if names[side] in shared]
        if wanted in names and len(sides) == 1:
            one, two = SIDES[sides[0]], SIDES[1 - sides[0]]
            both = " and ".join(names)
            return Sentence(f"{both} are one parameter in the {one} (tied weights) and two in the {two}")
    return NOTHING


def kept(runs: TwoRuns, call: Call, row: Row | None, before: tuple[str, str] | None) -> Sentence:
    """The sentence on a gradient that holds that of the step before as well.

    Args:
        runs: both runs.
        call: the call at which a gradient diverges.
        row: the gradient.
        before: the paths of the dumps of the step before.
    """
    if before is None or row is None or row.target is None or row.golden is None:
        return NOTHING
    sources = [graph.source(item) for graph, item in zip(runs.graphs, (row.target, row.golden))]
    if call.direction != PARAMETERS_GRAD and any(source.origin is not Origin.GRADIENT for source in sources):
        return NOTHING
    mine, theirs = arithmetic.sums(runs, 0, [row.target]), arithmetic.sums(runs, 1, [row.golden])
    for side, sign in ((1, 1.0), (0, -1.0)):
        earlier = _gradient_before(read(before[side]), (row.target, row.golden)[side].name, sources[side].name)
        if mine is None or theirs is None or earlier is None or not earlier.any():
            continue
        more = sign * (mine[0] - theirs[0])
        left = more - earlier
        if float(left @ left) <= 1e-6 * float(earlier @ earlier):
            text = "hold those of the step before as well: they were accumulated, or not zeroed (zero_grad)"
            return Sentence(f"gradients of the {SIDES[1 - side]} {text}")
    return NOTHING


def _gradient_before(dump: Dump, item: str, parameter: str) -> NDArray[Any] | None:
    """The sketch of a gradient in the step before: that of the item with its name, or that the optimizer took."""
    for update in dump.updates:
        for each in update.parameters:
            if each.name == parameter and each.gradient is not None:
                return each.gradient.sums.astype("f8")
    found = None if dump.sketches is None else dump.sketches.sketch(item)
    return None if found is None else found.sums.astype("f8")


def one_factor(runs: TwoRuns, value: float) -> Sentence:
    """The sentence on gradients of parameters that are all one multiple; `NOTHING` if they are not."""
    number = 0
    for row in _parameter_gradients(runs):
        found = _factor(runs, row)
        if found is None or not math.isclose(found.value, value, rel_tol=1e-3):
            return NOTHING
        number += 1
    if not number:
        return NOTHING
    scaled = arithmetic.in_words(value, _shapes_of_loss(runs), 1e-5)
    text = f"all gradients of parameters are {scaled} times those of the golden run"
    terms = _number_of_terms(runs, value)
    if terms:
        sides = SIDES if value > 1.0 else SIDES[::-1]
        return Sentence(
            f"{text}: probably the {sides[0]} sums the loss over {terms} terms, and the {sides[1]} takes the mean"
        )
    return Sentence(f"{text}: the loss is scaled, or summed instead of averaged, or gradients are clipped")


def _parameter_gradients(runs: TwoRuns) -> Iterator[Row]:
    for call in runs.calls:
        if call.direction == PARAMETERS_GRAD and call.is_of_both:
            for row in call.rows:
                items = row.target, row.golden
                if all(has_tensor(item) and item is not None and item.norm for item in items):
                    yield row


def _factor(runs: TwoRuns, row: Row) -> arithmetic.Factor | None:
    assert row.target is not None and row.golden is not None
    mine, theirs = arithmetic.sums(runs, 0, [row.target]), arithmetic.sums(runs, 1, [row.golden])
    if mine is None or theirs is None:
        return None
    square = float(theirs[0] @ theirs[0])
    if not square:
        return None
    value = float(mine[0] @ theirs[0]) / square
    left = mine[0] - value * theirs[0]
    rest = math.sqrt(float(left @ left) / float(mine[0] @ mine[0])) if mine[0].any() else 1.0
    # The sums that make gradients round more than their elements.
    return arithmetic.Factor(value, rest) if rest <= 4 * arithmetic.noise((row.target, row.golden)) else None


def _shapes_of_loss(runs: TwoRuns) -> list[tuple[int, ...]]:
    shapes = []
    for call in runs.calls:
        if of_gradient(call):
            shapes += [row.target.shape or () for row in call.rows if row.target is not None and row.target.is_tensor]
            if len(shapes) > 4:
                break
    return shapes


def _number_of_terms(runs: TwoRuns, value: float) -> int:
    """The number of elements, or of rows, of a gradient near the loss that is the factor; 0 if none is."""
    size = max(abs(value), 1.0 / abs(value)) if value else 0.0
    for shape in _shapes_of_loss(runs):
        elements = extent(shape).elements
        for number in (elements, elements // shape[-1] if shape and shape[-1] else 0, shape[0] if shape else 0):
            if number > 1 and math.isclose(size, number, rel_tol=1e-3):
                return number
    return 0
