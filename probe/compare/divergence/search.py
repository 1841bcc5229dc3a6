"""Which call is the first whose outputs differ by more than its inputs and its type explain.

The calls are walked in the order in which they ended. `probe.common.metrics.error_bounds` has the rule for one of
them; what is kept on the way is how far apart things were so far, so that an input which carries that is not held
against the call that gets it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import itemgetter

from probe.common.dump.naming import (
    BACKWARD,
    FORWARD,
    PARAMETERS_GRAD,
    ParsedName,
    function_name,
    is_module,
    parse,
    record_name,
)
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.match.collectives import is_communication
from probe.common.match.row import Row
from probe.common.metrics.dtypes import is_device, plain_name
from probe.common.metrics.error_bounds import (
    ALTOGETHER,
    GRADIENT,
    SAFETY,
    Terms,
    condition,
    distance,
    explained,
    extent,
    is_finite,
    rounding,
    unit_roundoff,
)
from probe.compare.divergence.aligned_calls import Step, Trees
from probe.compare.divergence.call_digest import (
    Glance,
    balance_of,
    fingerprint,
    glance,
    gradients_part,
    is_input,
    row_distance,
)
from probe.compare.result import Mode, Unexplained

SUSPECTS = 5
"""How many calls after the first are named."""

# What these write over may be whatever was in memory.
_OVERWRITING = frozenset(("__setitem__", "copy_", "fill_", "zero_", "index_copy_", "scatter_"))
# PyTorch makes these of two operations and records the gradient of the second.
_IN_HALVES = frozenset(("cross_entropy",))
# What these return is not computed from what goes in.
_NOT_COMPUTED = frozenset(
    ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_with_format")
)


TypePair = tuple[str, str]
"""The types of an item of the target and of its match, without what frameworks put before them."""


def pairs_of_types(rows: Iterable[Row]) -> Counter[TypePair]:
    """How many of the rows have which types."""
    found: Counter[TypePair] = Counter()
    both = ((row.target, row.golden) for row in rows)
    as_written = Counter((n.dtype or "", b.dtype or "") for n, b in both if n is not None and b is not None)
    for (n_type, b_type), number in as_written.items():
        found[plain_name(n_type), plain_name(b_type)] += number
    return found


def unexplained(
    calls: Sequence[Step],
    mode: Mode,
    level: str,
    trees: Trees,
    same_names: bool,
    types: Counter[TypePair] | None = None,
) -> list[Unexplained]:
    """The first calls of two runs that nothing explains, in order of execution; the first and at most `SUSPECTS` more.

    Args:
        calls: those of both runs, as `steps` puts them side by side.
        mode: what they were compared by.
        level: ``L0``, ``L1`` or ``mix``.
        trees: the call trees of target and golden side.
        same_names: whether both sides call the same things the same.
        types: what `pairs_of_types` gives for all rows, where that is known.
    """
    walk = _Walk(calls, mode, level, trees, same_names, types)
    found: dict[tuple[str, str], Unexplained] = {}
    for place, step in _causes_first(calls):
        suspect = walk.judge(step)
        if suspect is not None:
            found.setdefault((suspect.record, suspect.golden_record), replace(suspect, place=place))
            if len(found) > SUSPECTS:
                break
    return list(found.values())


def _causes_first(calls: Sequence[Step]) -> list[tuple[int, Step]]:
    """The calls with their places, each after what it is computed from.

    That is their order but for gradients of parameters, which are complete before the backward that gives them is.
    """
    backwards = {step.record: place for place, step in enumerate(calls) if step.record and BACKWARD in step.record}
    found = []
    for place, step in enumerate(calls):
        after = -1
        if step.record is not None and PARAMETERS_GRAD in step.record:
            parsed = parse(step.record)
            after = -1 if parsed is None else backwards.get(_other(parsed, BACKWARD), -1)
        found.append((max(place, after), after > place, place, step))
    found.sort(key=itemgetter(0, 1))
    return [(place, step) for _, _, place, step in found]


class _Walk:
    """What is known after the calls so far."""

    def __init__(
        self,
        calls: Sequence[Step],
        mode: Mode,
        level: str,
        trees: Trees,
        same_names: bool,
        types: Counter[TypePair] | None,
    ) -> None:
        self._calls = calls
        self._type_pairs = types
        self._mode = mode
        self._modules_only = level == "L0"
        self._trees = trees[0] or {}, trees[1] or {}
        self._same_names = same_names
        self._carried = 0.0
        """The largest distance of an output so far, with what its call made of it taken out."""
        self._types: set[str | None] = set()
        self._coarsest = 0.0
        """Those of items so far. Once anything differs, a short type turns the least difference into one of its own
        size, also where it is widened again for a while; and where its statistics are the same, values need not be."""
        self._reshaped = False
        """Whether the number of results of a call depended on values that differed, as that of ``nonzero`` does."""
        self._broken = False
        """Whether an output had NaN or an integer on one side that it had not on the other."""
        self._inside: dict[str | None, float] = {}
        """By module: the largest distance of an output of a call inside it."""
        self._outputs: set[int] = set()
        """Fingerprints of the outputs that are apart, by which they are known where they go in."""
        self._by_shape: dict[str | None, list[tuple[float, Step]]] = {}
        """The balances of these outputs and their calls by shape, for what goes in as a multiple of one."""
        self._gradients_part = False
        """Whether it was said already that a tensor takes a gradient on one side only, as many after it then do."""
        self._missing: Step | None = None
        """A call that one side did not make, right before this one."""

    @cached_property
    def _by_record(self) -> dict[str | None, Step]:
        return {step.record: step for step in self._calls}

    @cached_property
    def _usual_types(self) -> tuple[str, str]:
        """Those of most tensors: a run in half precision differs from one in full by intention, and from the start."""
        pairs = self._type_pairs
        if pairs is None:
            pairs = pairs_of_types(chain.from_iterable(step.rows for step in self._calls))
        # The same one whoever counted: in another order equal counts would be in another one too.
        ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
        return next((pair for pair, _ in ordered if all(map(unit_roundoff, pair))), ("", ""))

    def judge(self, step: Step) -> Unexplained | None:
        """The finding on the next call, if there is one."""
        if step.record is None or step.golden_record is None:
            # Another release may make other calls for the same thing; the values after it show whether it matters.
            if self._same_names:
                self._missing = self._missing or step
            return None
        suspect = None
        look = step.glance or glance(step.rows, self._mode)
        self._note_types(look)
        one_sided = look.gradients_part and self._same_names and not self._gradients_part
        if one_sided or (look.differs and not self._is_below_any_bound(step, look)):
            suspect = self._judge(step)
            if suspect is not None and self._missing is not None and self._is_due_to(self._missing, step, suspect):
                suspect = self._made_on_one_side(self._missing)
        self._missing = None
        return suspect

    def _is_below_any_bound(self, step: Step, look: Glance) -> bool:
        """Whether no row differs by more than what was carried so far, which every bound allows whatever the call."""
        if not look.usual or look.apart > self._carried:
            return False
        self._note_apart(step, look.outputs_apart)
        self._outputs.update(look.outputs)
        for shape, balance in zip(look.shapes, look.balances):
            self._note_shape(step, shape, balance)
        return True

    def _judge(self, step: Step) -> Unexplained | None:
        terms = Terms()
        suspect: Unexplained | None = None
        for row in step.rows:
            if is_input(row):
                found = self._weigh_input(step, row, terms)
                suspect = suspect or found
        api = self._add_what_forward_kept(step, terms)
        if api in _NOT_COMPUTED or self._is_gradient_of_a_part(step):
            return suspect
        for row in step.rows:
            if not is_input(row):
                found = self._judge_output(step, row, api, terms)
                suspect = suspect or found
        return suspect

    def _weigh_input(self, step: Step, row: Row, terms: Terms) -> Unexplained | None:
        reason = self._difference_in_kind(row)
        apart = math.inf if reason else self._distance(row)
        if row.golden is not None:
            (terms.add if row.golden.state == INPUT else terms.add_operand)(row.golden, apart)
        if reason:
            return self._suspect(step, row, reason)
        found = self._out_of_nowhere(step, row, apart)
        if found is not None and _short(row) == "input.0" and function_name(step.record or "") in _OVERWRITING:
            return None
        return found or self._difference_in_gradients(step, row)

    def _judge_output(self, step: Step, row: Row, api: str, terms: Terms) -> Unexplained | None:
        n, b = row.target, row.golden
        # Any difference can turn one whole number into another, and a turned one may have the same statistics.
        turned = bool(terms.error or self._carried or self._broken) and not _rounds(row)
        if turned and n is not None and b is not None and n.shape != b.shape:
            self._reshaped = True
        reason = self._difference_in_kind(row)
        if reason or n is None or b is None:
            return self._suspect(step, row, reason) if reason else None
        apart = self._distance(row)
        factor = condition(api, terms, n, b)
        error = max(terms.error, self._inside.get(step.record, 0.0))
        if math.isinf(apart):
            # Only NaN and infinities give NaN.
            allowed = math.inf if math.isinf(error) else 0.0
        elif turned:
            allowed = math.inf
        else:
            added = rounding(terms.summed(b), max(terms.roundoff, self._roundoff(n, b)))
            allowed = explained(max(error, self._carried), factor, added)
        self._note_output(step, row, apart)
        if apart < ALTOGETHER:
            self._carried = max(self._carried, apart / factor)
        if apart <= allowed:
            return self._difference_in_gradients(step, row)
        what = f"{_short(row)} differs by {_size(apart)} of its size"
        reason = f"{what}; its inputs, which differ by {_size(terms.error)}, and rounding explain {_size(allowed)}"
        return self._suspect(step, row, reason, apart, allowed)

    def _note_output(self, step: Step, row: Row, apart: float) -> None:
        """Keep how far an output was apart, for what comes after."""
        n, b = row.target, row.golden
        self._note_apart(step, apart)
        if apart >= ALTOGETHER:
            self._broken = True
        if apart and n is not None and b is not None and n.value is None and b.value is None:
            self._outputs.add(fingerprint(n, b))
            self._note_shape(step, b.shape, balance_of(b))

    def _note_apart(self, step: Step, apart: float) -> None:
        parent = self._trees[0].get(step.record or "")
        if apart > self._inside.get(parent, 0.0):
            self._inside[parent] = apart

    def _note_shape(self, step: Step, shape: str | None, balance: float) -> None:
        self._by_shape.setdefault(shape, []).append((balance, step))

    def _note_types(self, look: Glance) -> None:
        # A type that one side alone uses is a finding and no reason to forgive more.
        if not self._types.issuperset(look.types):
            self._types.update(look.types)
            self._coarsest = max(map(unit_roundoff, self._types))

    def _is_gradient_of_a_part(self, step: Step) -> bool:
        """Whether one framework hands out the gradient of the whole and the other that of its second half."""
        if self._same_names or function_name(step.record or "") not in _IN_HALVES:
            return False
        parsed = parse(step.record or "")
        return parsed is not None and parsed.direction == BACKWARD

    def _add_what_forward_kept(self, step: Step, terms: Terms) -> str:
        """Count in what a backward, or the gradient of a parameter, is computed from besides its own inputs.

        Returns:
            What `condition` calls the function.
        """
        parsed = parse(step.record or "")
        if parsed is None or parsed.direction == FORWARD:
            return function_name(step.record or "")
        if parsed.direction == PARAMETERS_GRAD:
            for row in self._inputs_of(_other(parsed, BACKWARD)):
                if row.golden is not None:
                    terms.add(row.golden, self._distance(row))
        for row in self._inputs_of(_other(parsed, FORWARD)):
            if row.golden is not None:
                terms.add_operand(row.golden, self._distance(row))
        return GRADIENT

    def _inputs_of(self, record: str) -> list[Row]:
        step = self._by_record.get(record)
        return [] if step is None else [row for row in step.rows if is_input(row)]

    # --- one item

    def _distance(self, row: Row) -> float:
        n, b = row.target, row.golden
        if n is not None and b is not None and n.shape != b.shape and self._reshaped:
            return ALTOGETHER if is_finite(n) == is_finite(b) else math.inf
        # Plain values are the same or are not; see `_difference_of_plain`.
        if n is None or b is None or n.value is not None or b.value is not None:
            return 0.0
        return row_distance(row, self._mode)

    def _difference_in_kind(self, row: Row) -> str:
        """A difference that is no matter of numbers, in words; empty where there is none."""
        n, b = row.target, row.golden
        if n is not None and b is not None and n.dtype == b.dtype and n.shape == b.shape and n.value is b.value is None:
            return ""
        here, there = (item is not None and item.dtype is not None for item in (n, b))
        if here != there:
            side, item = ("target", n) if here else ("golden run", b)
            value = "there" if item is None or item.value is None else str(item.value)
            return f"{_short(row)} is {value} in the {side} only" if self._same_names else ""
        if n is None or b is None or n.dtype is None or b.dtype is None:
            return ""
        if n.value is not None or b.value is not None:
            return self._difference_of_plain(row, n, b)
        types = plain_name(n.dtype), plain_name(b.dtype)
        if types[0] != types[1] and types != self._usual_types and not self._are_whole_between_frameworks(types):
            return f"{_short(row)} is {types[0]} and in the golden run {types[1]}"
        if n.shape != b.shape and self._same_names and not self._reshaped:
            return f"{_short(row)} has shape {n.shape} and in the golden run {b.shape}"
        return ""

    def _are_whole_between_frameworks(self, types: tuple[str, str]) -> bool:
        """Whether they differ in width alone, as labels do: MindSpore takes int32 where torch wants int64."""
        return not self._same_names and all(name.startswith(("int", "uint")) for name in types)

    def _difference_in_gradients(self, step: Step, row: Row) -> Unexplained | None:
        n, b = row.target, row.golden
        if self._gradients_part or not self._same_names or n is None or b is None or not gradients_part(n, b):
            return None
        self._gradients_part = True
        side = "target" if n.requires_grad else "golden run"
        return self._suspect(step, row, f"{_short(row)} takes a gradient in the {side} only")

    def _difference_of_plain(self, row: Row, n: Item, b: Item) -> str:
        if not self._same_names or str(n.value) == str(b.value) or (is_device(n.value) and is_device(b.value)):
            return ""
        if type(n.value) is float and type(b.value) is float and distance(n, b) <= self._allowed_of_unknown(n, b):
            return ""
        return f"{_short(row)} is {n.value} and in the golden run {b.value}"

    def _allowed_of_unknown(self, n: Item, b: Item) -> float:
        """How far an input may be apart that no recorded call returned: a view, or at L0 what functions return."""
        roundoff = self._roundoff(n, b) or unit_roundoff("float32")
        return max(SAFETY * self._carried, rounding(extent(b.shape).longest, roundoff))

    def _roundoff(self, n: Item, b: Item) -> float:
        known = self._mode is Mode.TENSOR and not self._carried
        return max(unit_roundoff(n.dtype), unit_roundoff(b.dtype), 0.0 if known else self._coarsest)

    def _out_of_nowhere(self, step: Step, row: Row, apart: float) -> Unexplained | None:
        if row.target is None or row.golden is None or not apart:
            return None
        allowed = self._allowed_of_unknown(row.target, row.golden)
        if apart <= allowed or (self._broken and apart >= ALTOGETHER):
            return None
        if fingerprint(row.target, row.golden) in self._outputs:
            # It was judged where it was made, and may differ by much: what cancellation left of two near numbers.
            return None
        if self._is_a_multiple(row, row.target, row.golden):
            # The same, scaled by a function that returns nothing, as gradients are clipped.
            return None
        what = f"{_short(row)} differs by {_size(apart)} of its size already"
        if row.golden.state == PARAMETERS:
            return self._suspect(step, row, what, apart, allowed)
        around = self._around(step)
        where = f" where it calls {step.record}" if around is not step else ""
        reason = f"{what}{where}; what was recorded before explains {_size(allowed)}"
        return self._suspect(around, row, reason, apart, allowed)

    def _is_a_multiple(self, row: Row, n: Item, b: Item) -> bool:
        """Whether the items of a row are, on both sides, an earlier output times the same number."""
        allowed = SAFETY * self._roundoff(n, b)
        # A multiple has the same balance up to 4 times what its statistics may be off.
        balance, most = balance_of(b), 5 * allowed
        steps_like_it = [step for there, step in self._by_shape.get(b.shape, ()) if abs(there - balance) <= most]
        for earlier in chain.from_iterable(step.rows for step in steps_like_it):
            if is_input(earlier) or earlier.golden is None or earlier.golden.shape != b.shape:
                continue
            if not self._distance(earlier):
                continue
            factors = _factor(n, earlier.target, allowed), _factor(b, earlier.golden, allowed)
            if all(factors) and abs(factors[0] / factors[1] - 1.0) <= allowed:
                return True
        return False

    # --- one call

    def _around(self, step: Step) -> Step:
        """The call to name for an input that comes out of nowhere: at L0 the module whose own code made it."""
        if not self._modules_only:
            return step
        records = step.record, step.golden_record
        record, golden = (tree.get(name or "") for tree, name in zip(self._trees, records))
        return Step(record, golden, step.rows) if record and golden else step

    def _is_due_to(self, missing: Step, step: Step, suspect: Unexplained) -> bool:
        """Whether `missing`, made right before `step`, can be what `suspect` shows."""
        tree, record, around = (
            (self._trees[0], missing.record, step.record)
            if missing.record
            else (self._trees[1], missing.golden_record, step.golden_record)
        )
        on_input = any(is_input(row) and suspect.item == _name(row) for row in step.rows)
        return on_input or tree.get(record or "") == around

    def _made_on_one_side(self, step: Step) -> Unexplained:
        side = "target" if step.record else "golden run"
        reason = f"only the {side} makes this call"
        return Unexplained(step.record or "", step.golden_record or "", self._module(step), reason)

    def _suspect(
        self, step: Step, row: Row, reason: str, apart: float | None = None, allowed: float | None = None
    ) -> Unexplained:
        measured = apart is not None and apart < ALTOGETHER
        return Unexplained(
            step.record or "",
            step.golden_record or "",
            self._module(step),
            reason,
            communicates=is_communication(step.record or ""),
            item=_name(row),
            found=apart if measured else None,
            allowed=allowed if measured else None,
        )

    def _module(self, step: Step) -> str:
        name, tree = (step.record, self._trees[0]) if step.record else (step.golden_record, self._trees[1])
        return "" if name is None else name if is_module(name) else tree.get(name) or ""


def _other(parsed: ParsedName, direction: str) -> str:
    """The record of the same call in another direction."""
    return record_name(ParsedName(parsed.base, parsed.number, direction, parsed.is_module))


def _factor(item: Item, earlier: Item | None, allowed: float) -> float:
    """What `earlier` was multiplied by to give `item`; 0 where statistics contradict that, or do not tell."""
    if earlier is None:
        return 0.0
    values, before = ((each.max, each.min, each.mean, each.norm) for each in (item, earlier))
    if not all(type(value) is float and math.isfinite(value) for value in (*values, *before)):
        return 0.0
    # Not the norm: of the smallest values it is 0, because their squares are.
    largest, place = max((abs(value), place) for place, value in enumerate(before[:2]))
    factor = values[place] / before[place] if largest else 0.0
    size = max(abs(values[0]), abs(values[1]))
    agree = all(abs(x - factor * y) <= allowed * size for x, y in zip(values[:3], before))
    return factor if agree and abs(values[3] - factor * before[3]) <= allowed * values[3] else 0.0


def _rounds(row: Row) -> bool:
    """Whether an item has a type that rounds."""
    n, b = row.target, row.golden
    return bool((b is not None and unit_roundoff(b.dtype)) or (n is not None and unit_roundoff(n.dtype)))


def _name(row: Row) -> str:
    item = row.target or row.golden
    return "" if item is None else item.name


def _short(row: Row) -> str:
    """``input.0`` of an item; of a saved gradient the parameter's name."""
    record = row.record if row.target is not None else row.golden_record or row.record
    return _name(row)[len(record) + 1 :]


def _size(number: float) -> str:
    if number >= ALTOGETHER:
        return "nan or inf" if math.isinf(number) else "all"
    return f"{number:.1e}" if number else "0"
